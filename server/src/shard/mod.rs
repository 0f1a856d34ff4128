//! The core of a shard, without I/O and without a clock: pushes are ordered into the shard's log
//! as entries that carry effects, entries are committed, committed entries are applied, applied
//! ones acknowledged (DESIGN 8).
//!
//! ```text
//! push part --order--> Entry + Effects --commit--> --apply--> rows, sessions --> outcome
//! ```
//!
//! The steps are functions of their own. With a replica set of one, whatever is ordered is held
//! by every member and thus committed; replication will stand between `order_*` and
//! [`Shard::apply`]. Only `apply` changes rows and sessions, so that every replica that applies
//! the log has both, bit for bit.

pub mod effects;
pub mod entry;
mod memory_rows;
pub mod narrow;
pub mod rows;
pub mod rules;
pub mod session;

pub use memory_rows::refusal_of;

use std::sync::Arc;

use mneme_proto::frame::PushPart;
use mneme_proto::ids::{Epoch, LogIndex, SessionId, ShardIndex};
use mneme_proto::refusal::Refusal;
use zerocopy::little_endian::U64;

use effects::{Effects, PartData};
use entry::{Body, Entry};
use narrow::Salt;
use rows::Rows;
use rules::TableRules;
use session::{Outcome, Sessions, Standing};

/// Whether a shard takes pushes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Gate {
    /// It does.
    Open,
    /// Its rows are being sealed into a generation that is not published yet.
    Sealing,
    /// It was replaced: the shard is now at this epoch.
    Replaced(Epoch),
}

/// What ordering a push came to.
#[derive(Debug)]
pub enum Ordered {
    /// A new entry, whose effects stand in the [`Effects`] that were passed.
    Entry(Entry),
    /// The sequence was settled before (I-2).
    Repeat(Outcome),
}

/// One shard: its log's position, its sessions and its rows.
#[derive(Debug)]
pub struct Shard<R> {
    rules: Arc<TableRules>,
    shard: u32,
    epoch: Epoch,
    gate: Gate,
    /// The last applied entry.
    last: LogIndex,
    sessions: Sessions,
    rows: R,
}

impl<R: Rows> Shard<R> {
    /// An empty log over `rows` (which may hold a dense shard's initial rows).
    pub fn new(rules: Arc<TableRules>, shard: u32, epoch: Epoch, rows: R) -> Self {
        Self {
            rules,
            shard,
            epoch,
            gate: Gate::Open,
            last: LogIndex(0),
            sessions: Sessions::default(),
            rows,
        }
    }

    /// The epoch that it follows (I-3).
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Its rows.
    pub fn rows(&self) -> &R {
        &self.rows
    }

    /// Index of the last applied entry.
    pub fn last(&self) -> LogIndex {
        self.last
    }

    /// Follows changed rules from the next push on.
    pub fn set_rules(&mut self, rules: Arc<TableRules>) {
        self.rules = rules;
    }

    /// Opens or closes it for pushes.
    pub fn set_gate(&mut self, gate: Gate) {
        self.gate = gate;
    }

    /// Checks that a request is of the shard's epoch (I-3) and that pushes are taken.
    ///
    /// # Errors
    /// [`Refusal::WrongEpoch`] with the right one, or [`Refusal::TableState`].
    pub fn check_open(&self, asked: Epoch) -> Result<(), Refusal> {
        let current = match self.gate {
            Gate::Replaced(current) => current,
            _ => self.epoch,
        };
        if asked != current || current != self.epoch {
            return Err(Refusal::WrongEpoch {
                shard: self.index(),
                asked,
                current,
            });
        }
        if self.gate == Gate::Sealing {
            return Err(Refusal::TableState {
                table: self.rules.name.clone(),
                state: "being sealed".into(),
                remedy: "push again if the seal is given up".into(),
            });
        }
        Ok(())
    }

    /// Orders a push part. Refusals of this function leave its sequence open: the same one may
    /// come again. Any other outcome, refusals included, settles it.
    ///
    /// # Errors
    /// [`Refusal::WrongEpoch`], [`Refusal::TableState`], [`Refusal::UnknownSession`],
    /// [`Refusal::Sequence`].
    pub fn order_push(
        &mut self,
        part: &PushPart,
        check: Result<(), Refusal>,
        data: PartData<'_>,
        now_ms: u64,
        effects: &mut Effects<R::Slot>,
    ) -> Result<Ordered, Refusal> {
        self.check_open(Epoch(part.epoch.get()))?;
        let (session, sequence) = (SessionId(part.session.get()), part.sequence.get());
        if let Some(outcome) = self.repeat(session, sequence)? {
            return Ok(Ordered::Repeat(outcome));
        }
        let index = self.next();
        let salt = match data.step {
            0 => Salt(session.0, sequence),
            step => Salt(0, step),
        };
        let worked = check
            .and_then(|()| effects.of_push(&self.rules, self.shard, &mut self.rows, data, salt))
            .map(|tally| Outcome::Applied {
                index: index.0,
                rows: tally.rows,
                ignored: tally.ignored,
            });
        let outcome = worked.unwrap_or_else(|refusal| {
            effects.clear();
            Outcome::Refused(Box::new(refusal))
        });
        let body = Body::Settle {
            session,
            sequence,
            outcome,
        };
        Ok(Ordered::Entry(Entry {
            index,
            time_ms: now_ms,
            body,
        }))
    }

    /// Orders the giving up of a sequence; none if it is settled already.
    ///
    /// # Errors
    /// As [`Shard::order_push`], except that a sealing shard still takes it.
    pub fn order_void(
        &self,
        session: SessionId,
        sequence: u64,
        now_ms: u64,
    ) -> Result<Option<Entry>, Refusal> {
        if self.repeat(session, sequence)?.is_some() {
            return Ok(None);
        }
        let body = Body::Settle {
            session,
            sequence,
            outcome: Outcome::Voided,
        };
        Ok(Some(Entry {
            index: self.next(),
            time_ms: now_ms,
            body,
        }))
    }

    /// Orders what must come before a new session: the expiry of an idle one, where all places
    /// are taken.
    ///
    /// # Errors
    /// [`Refusal::Limit`] when all places are in use.
    pub fn order_room(&self, now_ms: u64) -> Result<Option<Entry>, Refusal> {
        let expired = self.sessions.to_expire(now_ms)?;
        let entry = |session| Entry {
            index: self.next(),
            time_ms: now_ms,
            body: Body::Expire(session),
        };
        Ok(expired.map(entry))
    }

    /// Orders the opening of a session, which is named by the entry's index.
    pub fn order_open(&self, now_ms: u64) -> Entry {
        Entry {
            index: self.next(),
            time_ms: now_ms,
            body: Body::Open,
        }
    }

    /// Orders the insertion of initial rows for those of `keys` that have none; none if all
    /// have.
    ///
    /// # Errors
    /// As [`Shard::check_open`] and [`Effects::of_init`].
    pub fn order_init(
        &mut self,
        epoch: Epoch,
        keys: &[U64],
        now_ms: u64,
        effects: &mut Effects<R::Slot>,
    ) -> Result<Option<Entry>, Refusal> {
        self.check_open(epoch)?;
        effects.of_init(&self.rules, self.shard, &mut self.rows, keys)?;
        if effects.is_empty() {
            return Ok(None);
        }
        Ok(Some(Entry {
            index: self.next(),
            time_ms: now_ms,
            body: Body::Init,
        }))
    }

    /// Applies a committed entry, the next of the log, with the effects beside it.
    pub fn apply(&mut self, entry: &Entry, effects: &Effects<R::Slot>) {
        debug_assert_eq!(entry.index, self.next(), "entries are applied in order");
        self.last = entry.index;
        match &entry.body {
            Body::Open => self.sessions.open(SessionId(entry.index.0), entry.time_ms),
            Body::Expire(session) => self.sessions.expire(*session),
            Body::Settle {
                session,
                sequence,
                outcome,
            } => {
                if matches!(outcome, Outcome::Applied { .. }) {
                    effects.apply(&mut self.rows);
                }
                self.sessions
                    .settle(*session, *sequence, outcome.clone(), entry.time_ms);
            }
            Body::Init => effects.apply(&mut self.rows),
        }
    }

    /// A push part from order to acknowledgement, in a replica set of one. `check` is what the
    /// table says of the push as a whole: a refusal there settles the sequence like any other.
    ///
    /// # Errors
    /// As [`Shard::order_push`].
    pub fn push(
        &mut self,
        part: &PushPart,
        check: Result<(), Refusal>,
        data: PartData<'_>,
        now_ms: u64,
        effects: &mut Effects<R::Slot>,
    ) -> Result<Outcome, Refusal> {
        match self.order_push(part, check, data, now_ms, effects)? {
            Ordered::Repeat(outcome) => Ok(outcome),
            Ordered::Entry(entry) => {
                self.apply(&entry, effects);
                match entry.body {
                    Body::Settle { outcome, .. } => Ok(outcome),
                    _ => unreachable!("a push is ordered as a settling entry"),
                }
            }
        }
    }

    /// Opens a session, in a replica set of one.
    ///
    /// # Errors
    /// As [`Shard::check_open`] and [`Shard::order_room`].
    pub fn open_session(&mut self, epoch: Epoch, now_ms: u64) -> Result<SessionId, Refusal> {
        self.check_open(epoch)?;
        let none = Effects::default();
        if let Some(entry) = self.order_room(now_ms)? {
            self.apply(&entry, &none);
        }
        let entry = self.order_open(now_ms);
        self.apply(&entry, &none);
        Ok(SessionId(entry.index.0))
    }

    /// Gives a sequence up, in a replica set of one.
    ///
    /// # Errors
    /// As [`Shard::order_void`].
    pub fn void(&mut self, session: SessionId, sequence: u64, now_ms: u64) -> Result<(), Refusal> {
        if let Some(entry) = self.order_void(session, sequence, now_ms)? {
            self.apply(&entry, &Effects::default());
        }
        Ok(())
    }

    /// Inserts initial rows, in a replica set of one.
    ///
    /// # Errors
    /// As [`Shard::order_init`].
    pub fn init(
        &mut self,
        epoch: Epoch,
        keys: &[U64],
        now_ms: u64,
        effects: &mut Effects<R::Slot>,
    ) -> Result<(), Refusal> {
        if let Some(entry) = self.order_init(epoch, keys, now_ms, effects)? {
            self.apply(&entry, effects);
        }
        Ok(())
    }

    fn index(&self) -> ShardIndex {
        ShardIndex(self.shard)
    }

    fn next(&self) -> LogIndex {
        LogIndex(self.last.0 + 1)
    }

    /// The outcome of a settled sequence; none if it is fresh.
    fn repeat(&self, session: SessionId, sequence: u64) -> Result<Option<Outcome>, Refusal> {
        let shard = self.index();
        let refused = |why: String| {
            Err(Refusal::Sequence {
                shard,
                sequence,
                why,
            })
        };
        match self.sessions.standing(session, sequence) {
            None => Err(Refusal::UnknownSession { shard }),
            Some(Standing::Fresh) => Ok(None),
            Some(Standing::Settled(outcome)) => Ok(Some(outcome.clone())),
            Some(Standing::Forgotten) if sequence == 0 => refused("they start at 1".into()),
            Some(Standing::Forgotten) => refused("its outcome is no longer kept".into()),
            Some(Standing::Ahead(open)) => refused(format!(
                "sequence {open} was neither pushed nor given up yet"
            )),
        }
    }
}

#[cfg(test)]
mod tests;
