//! Answers pushes: each part to its shard, in the order of the frame; one outcome per part.

use mneme_proto::codec;
use mneme_proto::frame::{PartOutcome, PushPart, PushView, PushedHeader};
use mneme_proto::ids::{Epoch, ShardIndex};
use mneme_proto::refusal::Refusal;
use zerocopy::IntoBytes;

use crate::shard::effects::PartData;
use crate::shard::session::Outcome;
use crate::table::Table;
use crate::{Moment, Scratch};

/// The answer to a push.
#[derive(Debug, Default)]
pub struct Pushed {
    /// One per part.
    pub outcomes: Vec<PartOutcome>,
    /// Why parts were refused.
    pub refusals: Vec<Refusal>,
    /// Rows changed.
    pub rows: u64,
}

/// Shards of the push that have not yet let a push in: the data directory must say that they do
/// before [`answer`] is called.
#[must_use]
pub fn untouched(table: &Table, view: &PushView<'_>) -> Vec<ShardIndex> {
    let shards = view.parts.iter().map(|part| part.shard.get());
    let untouched = |shard: &u32| {
        let place = table.places.get(*shard as usize);
        place
            .and_then(|p| p.mutable.as_ref())
            .is_some_and(|m| !m.is_touched())
    };
    shards.filter(untouched).map(ShardIndex).collect()
}

/// Orders, applies and acknowledges every part.
pub fn answer(table: &Table, view: &PushView<'_>, moment: Moment, scratch: &mut Scratch) -> Pushed {
    let (value_bytes, step) = (view.header.value_bytes.get(), view.header.step.get());
    let check = table.rules.check_push(view.mode, value_bytes, step);
    let value_bytes = value_bytes as usize;
    let mut pushed = Pushed::default();
    let mut at = 0;
    for part in view.parts {
        let to = at + part.keys.get() as usize;
        let data = PartData {
            mode: view.mode,
            keys: &view.keys[at..to],
            payload: &view.payload[at * value_bytes..to * value_bytes],
            step,
        };
        at = to;
        let (shard, epoch) = (part.shard.get(), Epoch(part.epoch.get()));
        let settled = moment
            .check_lease()
            .and_then(|()| table.check_mutable())
            .and_then(|()| table.mutable(shard, epoch))
            .and_then(|mutable| {
                let mut core = mutable.core();
                core.push(
                    part,
                    check.clone(),
                    data,
                    moment.now_ms,
                    &mut scratch.effects,
                )
            });
        pushed.add(part, settled);
    }
    pushed
}

impl Pushed {
    fn add(&mut self, part: &PushPart, settled: Result<Outcome, Refusal>) {
        let mut outcome = PartOutcome {
            shard: part.shard,
            refusal: 0.into(),
            rows: 0.into(),
            ignored: 0.into(),
            index: 0.into(),
        };
        let refusal = match settled {
            Ok(Outcome::Applied {
                index,
                rows,
                ignored,
            }) => {
                outcome.rows = rows.into();
                outcome.ignored = ignored.into();
                outcome.index = index.into();
                self.rows += u64::from(rows);
                None
            }
            Ok(Outcome::Refused(refusal)) => Some(*refusal),
            Ok(Outcome::Voided) => Some(Refusal::Sequence {
                shard: ShardIndex(part.shard.get()),
                sequence: part.sequence.get(),
                why: "its session gave it up before it arrived".into(),
            }),
            Err(refusal) => Some(refusal),
        };
        if let Some(refusal) = refusal {
            self.refusals.push(refusal);
            outcome.refusal = (self.refusals.len() as u32).into();
        }
        self.outcomes.push(outcome);
    }

    /// The answer's body.
    #[must_use]
    pub fn body(&self) -> Vec<u8> {
        let refusals = refusals_archive(&self.refusals);
        let header = PushedHeader {
            parts: (self.outcomes.len() as u32).into(),
            refusals_bytes: (refusals.len() as u32).into(),
        };
        [header.as_bytes(), self.outcomes.as_bytes(), &refusals].concat()
    }
}

/// The refusals as they stand at the end of an answer: an archive of a list, nothing when there
/// are none.
#[must_use]
pub fn refusals_archive(refusals: &Vec<Refusal>) -> bytes::Bytes {
    if refusals.is_empty() {
        bytes::Bytes::new()
    } else {
        codec::encode_bytes(refusals)
    }
}
