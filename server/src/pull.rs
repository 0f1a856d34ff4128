//! Answers pulls: parses the frame, reads each group's rows straight into one reused buffer, and
//! says of every key what became of it.
//!
//! The hot path allocates nothing per row and clears nothing beforehand; every byte of the answer
//! is written, those of keys without a row and of refused groups as zeros or defaults (I-5, I-13).

use mneme_memory::{BatchOutcome, KeySource, ReadError};
use mneme_proto::frame::{
    GroupOutcome, Missing, PULL_WITH_STATE, PullGroup, PullView, PulledHeader, Status,
};
use mneme_proto::ids::{Epoch, ShardIndex, TableGeneration};
use mneme_proto::limits::FRAME_BODY_BYTES_MAX;
use mneme_proto::refusal::Refusal;
use mneme_proto::views::pad_to_8;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

use crate::shard::rows::Rows;
use crate::shard::rules::TableRules;
use crate::table::{MutableShard, Source, Table};
use crate::{Moment, Scratch};

/// Sizes of one answer's sections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of a row as sent.
    pub row_bytes: usize,
    statuses_at: usize,
    rows_at: usize,
    /// Bytes of the answer without its refusals.
    pub bytes: usize,
}

/// What an answer came to.
#[derive(Debug, Default)]
pub struct Pulled {
    /// Rows found.
    pub found: usize,
    /// Keys without a row.
    pub missing: usize,
    /// Why groups were refused.
    pub refusals: Vec<Refusal>,
}

/// The layout of the answer to `view`.
///
/// # Errors
/// [`Refusal::Limit`] when it would not fit a frame: the client splits its batch;
/// [`Refusal::TableState`] for rows to be made in a sealed table.
pub fn layout(table: &Table, view: &PullView<'_>) -> Result<Layout, Refusal> {
    if view.missing == Missing::Init {
        table.check_mutable()?;
    }
    let with_state = view.header.flags & PULL_WITH_STATE != 0 && !table.is_sealed();
    let state = if with_state {
        table.rules.state_bytes
    } else {
        0
    };
    let row_bytes = table.rules.row_bytes + state;
    let keys = view.keys.len();
    let statuses_at = size_of::<PulledHeader>() + view.groups.len() * size_of::<GroupOutcome>();
    let rows_at = statuses_at + keys + pad_to_8(keys);
    let bytes = rows_at + keys * row_bytes;
    if bytes > FRAME_BODY_BYTES_MAX as usize {
        return Err(Refusal::Limit {
            what: "bytes of a pull's answer".into(),
            asked: bytes as u64,
            used: 0,
            limit: FRAME_BODY_BYTES_MAX.into(),
        });
    }
    Ok(Layout {
        row_bytes,
        statuses_at,
        rows_at,
        bytes,
    })
}

/// Writes the answer to `view` into `reply`, which is `layout.bytes` long. The header's
/// `refusals_bytes` is left to [`finish`].
pub fn answer(
    table: &Table,
    view: &PullView<'_>,
    layout: Layout,
    moment: Moment,
    reply: &mut [u8],
    scratch: &mut Scratch,
) -> Pulled {
    let (head, rows) = reply.split_at_mut(layout.rows_at);
    let (head, statuses) = head.split_at_mut(layout.statuses_at);
    let keys = view.keys.len();
    statuses[keys..].fill(0);
    let outcomes = &mut head[size_of::<PulledHeader>()..];
    let mut pulled = Pulled::default();
    let mut at = 0;
    for (group, slot) in view.groups.iter().zip(outcomes.chunks_exact_mut(8)) {
        let to = at + group.keys.get() as usize;
        let part = Part {
            keys: &view.keys[at..to],
            rows: &mut rows[at * layout.row_bytes..to * layout.row_bytes],
            statuses: &mut statuses[at..to],
            row_bytes: layout.row_bytes,
        };
        at = to;
        let mut outcome = GroupOutcome {
            shard: group.shard,
            refusal: 0.into(),
        };
        match read_group(table, view, group, part, moment, scratch) {
            Ok(read) => {
                pulled.found += read.found;
                pulled.missing += read.missing;
            }
            Err(refusal) => {
                statuses[to - group.keys.get() as usize..to].fill(0);
                rows[(to - group.keys.get() as usize) * layout.row_bytes..to * layout.row_bytes]
                    .fill(0);
                pulled.refusals.push(refusal);
                outcome.refusal = (pulled.refusals.len() as u32).into();
            }
        }
        slot.copy_from_slice(outcome.as_bytes());
    }
    pulled
}

/// Writes the answer's header, now that the refusals are known.
pub fn finish(view: &PullView<'_>, layout: Layout, refusals_bytes: usize, reply: &mut [u8]) {
    let header = PulledHeader {
        groups: view.header.groups,
        keys: view.header.keys,
        row_bytes: (layout.row_bytes as u32).into(),
        refusals_bytes: (refusals_bytes as u32).into(),
    };
    reply[..size_of::<PulledHeader>()].copy_from_slice(header.as_bytes());
}

/// One group's keys and its places in the answer.
struct Part<'a> {
    keys: &'a [U64],
    rows: &'a mut [u8],
    statuses: &'a mut [u8],
    row_bytes: usize,
}

fn read_group(
    table: &Table,
    view: &PullView<'_>,
    group: &PullGroup,
    mut part: Part<'_>,
    moment: Moment,
    scratch: &mut Scratch,
) -> Result<BatchOutcome, Refusal> {
    let (shard, epoch) = (group.shard.get(), Epoch(group.epoch.get()));
    let generation = TableGeneration(view.header.generation.get());
    let source = table.source(generation, shard, epoch)?;
    let rules = &*table.rules;
    let places = places(rules, shard, part.keys, &mut scratch.places)?;
    let mut read = match source {
        Source::Sealed(sealed) => match places {
            Some(locals) => sealed.read_batch(locals, part.rows, part.statuses),
            None => sealed.read_batch(part.keys, part.rows, part.statuses),
        }
        .map_err(|error| read_refused(&error, shard))?,
        Source::Mutable(mutable) => {
            moment.check_lease()?;
            if part.row_bytes > rules.row_bytes {
                read_with_state(rules, mutable, &mut part, &mut scratch.slots, places)
            } else {
                match places {
                    Some(locals) => mutable.reader.read_batch(locals, part.rows, part.statuses),
                    None => mutable
                        .reader
                        .read_batch(part.keys, part.rows, part.statuses),
                }
                .map_err(|error| read_refused(&error, shard))?
            }
        }
    };
    if read.missing > 0 {
        if view.missing == Missing::Init
            && let Source::Mutable(mutable) = source
        {
            init_missing(mutable, &mut part, moment, scratch)?;
            return read_group_again(table, view, group, part, moment, scratch);
        }
        fill_missing(rules, view.missing, &mut part);
    }
    if let Some(padding) = rules.padding_key {
        read = pad(padding, &mut part, read);
    }
    Ok(read)
}

/// The second reading of a group whose missing keys were just inserted. Another push may have
/// deleted one since: it is then answered as missing.
fn read_group_again(
    table: &Table,
    view: &PullView<'_>,
    group: &PullGroup,
    part: Part<'_>,
    moment: Moment,
    scratch: &mut Scratch,
) -> Result<BatchOutcome, Refusal> {
    let again = PullView {
        missing: Missing::Error,
        ..*view
    };
    read_group(table, &again, group, part, moment, scratch)
}

/// Checks that the keys are the shard's; `Some` local rows for a dense table.
fn places<'a>(
    rules: &TableRules,
    shard: u32,
    keys: &[U64],
    locals: &'a mut Vec<u64>,
) -> Result<Option<&'a Vec<u64>>, Refusal> {
    locals.clear();
    if rules.dense.is_none() {
        return keys
            .iter()
            .try_for_each(|key| rules.place(key.get(), shard).map(|_| ()))
            .map(|()| None);
    }
    for key in keys {
        locals.push(rules.place(key.get(), shard)?);
    }
    Ok(Some(locals))
}

/// Row and state of each key: through the writer, which alone may look at state.
fn read_with_state(
    rules: &TableRules,
    shard: &MutableShard,
    part: &mut Part<'_>,
    slots: &mut Vec<Option<mneme_memory::Slot>>,
    locals: Option<&Vec<u64>>,
) -> BatchOutcome {
    let keys;
    let places = match locals {
        Some(locals) => locals,
        None => {
            keys = part.keys.iter().map(|key| key.get()).collect();
            &keys
        }
    };
    let core = shard.core();
    core.rows().locate_each(places, slots);
    let mut read = BatchOutcome::default();
    let rows = part.rows.chunks_exact_mut(part.row_bytes);
    for ((slot, out), status) in slots.iter().zip(rows).zip(part.statuses.iter_mut()) {
        match slot {
            Some(slot) => {
                let (row, state) = out.split_at_mut(rules.row_bytes);
                core.rows().read(*slot, row, state);
                *status = Status::Found as u8;
                read.found += 1;
            }
            None => {
                *status = Status::Missing as u8;
                read.missing += 1;
            }
        }
    }
    read
}

fn init_missing(
    shard: &MutableShard,
    part: &mut Part<'_>,
    moment: Moment,
    scratch: &mut Scratch,
) -> Result<(), Refusal> {
    let missing = part.keys.iter().zip(part.statuses.iter());
    let missing = missing.filter(|(_, status)| **status == Status::Missing as u8);
    let keys: Vec<U64> = missing.map(|(key, _)| *key).collect();
    shard
        .core()
        .init(shard.epoch, &keys, moment.now_ms, &mut scratch.effects)
}

/// Answers keys without a row: the default row, or zeros.
fn fill_missing(rules: &TableRules, missing: Missing, part: &mut Part<'_>) {
    let rows = part.rows.chunks_exact_mut(part.row_bytes);
    for (row, status) in rows.zip(part.statuses.iter_mut()) {
        if *status != Status::Missing as u8 {
            continue;
        }
        row.fill(0);
        if missing == Missing::Default {
            row[..rules.row_bytes].copy_from_slice(&rules.default_row);
            *status = Status::Default as u8;
        }
    }
}

/// The padding key reads as zeros and is found (B037).
fn pad(padding: u64, part: &mut Part<'_>, mut read: BatchOutcome) -> BatchOutcome {
    let rows = part.rows.chunks_exact_mut(part.row_bytes);
    for ((key, row), status) in part.keys.iter().zip(rows).zip(part.statuses.iter_mut()) {
        if key.get() == padding {
            row.fill(0);
            if *status != Status::Found as u8 {
                *status = Status::Found as u8;
                read.found += 1;
                read.missing -= 1;
            }
        }
    }
    read
}

fn read_refused(error: &ReadError, shard: u32) -> Refusal {
    match error {
        // Its region was dropped meanwhile: the table has changed.
        ReadError::Gone(_) => Refusal::NotServed {
            shard: ShardIndex(shard),
        },
        other => Refusal::Internal {
            why: other.to_string(),
        },
    }
}

// A batch of local rows is read as keys are.
const _: fn(&Vec<u64>) -> usize = <Vec<u64> as KeySource>::count;
