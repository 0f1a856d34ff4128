//! Push sessions of one shard: what makes a push take effect exactly once (I-2).
//!
//! A session numbers its pushes to the shard 1, 2, 3, ... without gaps. They may arrive in any
//! order, since each travels on a stream of its own, but none may run more than
//! [`SESSION_WINDOW`] ahead of the lowest that is not settled. A sequence is *settled* once, by
//! an entry that applied it, refused it or voided it; the outcomes of the last
//! [`SESSION_WINDOW`] settled ones, and of all above a gap, answer repeats.
//!
//! Sans-io: time comes in as milliseconds of any clock that does not go back. Changes happen in
//! `apply` of an entry only, so that every replica has the same sessions.

use std::collections::VecDeque;

use mneme_proto::ids::SessionId;
use mneme_proto::limits::SESSION_WINDOW;
use mneme_proto::refusal::Refusal;
use rustc_hash::FxHashMap;

use crate::limits::{SESSION_IDLE_MS_MIN, SESSIONS_PER_SHARD_MAX};

/// What became of one push part.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// It was applied.
    Applied {
        /// Index of its entry in the shard's log.
        index: u64,
        /// Rows changed, inserted or removed.
        rows: u32,
        /// Keys ignored: the padding key.
        ignored: u32,
    },
    /// It was refused after it had been ordered; a repeat gets the same refusal.
    Refused(Box<Refusal>),
    /// Its session gave it up before it arrived.
    Voided,
}

/// Where a sequence stands in its session.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Standing<'a> {
    /// Not settled, within the window: it may be ordered.
    Fresh,
    /// Settled before, with this outcome.
    Settled(&'a Outcome),
    /// Settled so long ago that its outcome is no longer kept.
    Forgotten,
    /// Too far above the lowest sequence that is not settled, which is given.
    Ahead(u64),
}

#[derive(Debug, Default)]
struct Session {
    /// All sequences below are settled and their outcomes forgotten. The first is 1.
    base: u64,
    /// Outcomes of `base..`; `None` is not settled yet. Never longer than two windows.
    outcomes: VecDeque<Option<Outcome>>,
    /// Settled outcomes at the front of `outcomes`, without a gap.
    settled: usize,
    used_ms: u64,
}

impl Session {
    /// The lowest sequence that is not settled.
    fn lowest_open(&self) -> u64 {
        self.base + self.settled as u64
    }

    fn standing(&self, sequence: u64) -> Standing<'_> {
        if sequence < self.base {
            return Standing::Forgotten;
        }
        if sequence - self.base >= self.settled as u64 + SESSION_WINDOW {
            return Standing::Ahead(self.lowest_open());
        }
        match self.outcomes.get((sequence - self.base) as usize) {
            Some(Some(outcome)) => Standing::Settled(outcome),
            _ => Standing::Fresh,
        }
    }

    fn settle(&mut self, sequence: u64, outcome: Outcome) {
        let at = (sequence - self.base) as usize;
        if self.outcomes.len() <= at {
            self.outcomes.resize(at + 1, None);
        }
        self.outcomes[at] = Some(outcome);
        while matches!(self.outcomes.get(self.settled), Some(Some(_))) {
            self.settled += 1;
        }
        while self.settled as u64 > SESSION_WINDOW {
            self.outcomes.pop_front();
            self.settled -= 1;
            self.base += 1;
        }
    }
}

/// The sessions of one shard.
#[derive(Debug, Default)]
pub struct Sessions {
    by_id: FxHashMap<u64, Session>,
}

impl Sessions {
    /// How many are open.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether none is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// The session that must expire before another may be opened; `Ok(None)` while there is
    /// room. The one idle longest goes, and none that was used a moment ago.
    ///
    /// # Errors
    /// [`Refusal::Limit`] when all are in use.
    pub fn to_expire(&self, now_ms: u64) -> Result<Option<SessionId>, Refusal> {
        if self.by_id.len() < SESSIONS_PER_SHARD_MAX {
            return Ok(None);
        }
        let oldest = self.by_id.iter().min_by_key(|(id, s)| (s.used_ms, **id));
        match oldest {
            Some((id, s)) if now_ms.saturating_sub(s.used_ms) >= SESSION_IDLE_MS_MIN => {
                Ok(Some(SessionId(*id)))
            }
            _ => Err(Refusal::Limit {
                what: "push sessions of a shard".into(),
                asked: 1,
                used: self.by_id.len() as u64,
                limit: SESSIONS_PER_SHARD_MAX as u64,
            }),
        }
    }

    /// Where `sequence` stands; `None` when the session is not known.
    #[must_use]
    pub fn standing(&self, session: SessionId, sequence: u64) -> Option<Standing<'_>> {
        self.by_id.get(&session.0).map(|s| s.standing(sequence))
    }

    /// Applies the entry that opened `session`.
    pub fn open(&mut self, session: SessionId, now_ms: u64) {
        let opened = Session {
            base: 1,
            used_ms: now_ms,
            ..Session::default()
        };
        self.by_id.insert(session.0, opened);
    }

    /// Applies the entry that expired `session`.
    pub fn expire(&mut self, session: SessionId) {
        self.by_id.remove(&session.0);
    }

    /// Applies the entry that settled `sequence`. The entry was ordered while the sequence was
    /// fresh.
    pub fn settle(&mut self, session: SessionId, sequence: u64, outcome: Outcome, now_ms: u64) {
        if let Some(s) = self.by_id.get_mut(&session.0) {
            debug_assert_eq!(s.standing(sequence), Standing::Fresh);
            s.used_ms = s.used_ms.max(now_ms);
            s.settle(sequence, outcome);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ID: SessionId = SessionId(1);

    fn applied(index: u64) -> Outcome {
        Outcome::Applied {
            index,
            rows: 1,
            ignored: 0,
        }
    }

    fn opened() -> Sessions {
        let mut sessions = Sessions::default();
        sessions.open(ID, 0);
        sessions
    }

    #[test]
    fn sequence_zero_and_unknown_sessions_are_never_fresh() {
        let sessions = opened();
        assert_eq!(sessions.standing(ID, 0), Some(Standing::Forgotten));
        assert_eq!(sessions.standing(SessionId(2), 1), None);
    }

    #[test]
    fn the_window_stands_on_the_lowest_open_sequence() {
        let mut sessions = opened();
        assert_eq!(sessions.standing(ID, SESSION_WINDOW), Some(Standing::Fresh));
        assert_eq!(
            sessions.standing(ID, SESSION_WINDOW + 1),
            Some(Standing::Ahead(1))
        );
        for sequence in 2..=SESSION_WINDOW {
            sessions.settle(ID, sequence, applied(sequence), 0);
        }
        assert_eq!(
            sessions.standing(ID, SESSION_WINDOW + 1),
            Some(Standing::Ahead(1))
        );
        sessions.settle(ID, 1, Outcome::Voided, 0);
        assert_eq!(
            sessions.standing(ID, 2 * SESSION_WINDOW),
            Some(Standing::Fresh)
        );
        assert_eq!(
            sessions.standing(ID, 1),
            Some(Standing::Settled(&Outcome::Voided))
        );
        sessions.settle(ID, SESSION_WINDOW + 1, applied(9), 0);
        assert_eq!(sessions.standing(ID, 1), Some(Standing::Forgotten));
        assert_eq!(
            sessions.standing(ID, 2),
            Some(Standing::Settled(&applied(2)))
        );
    }

    #[test]
    fn a_full_shard_expires_the_session_that_is_idle_longest() {
        let mut sessions = Sessions::default();
        for id in 1..=SESSIONS_PER_SHARD_MAX as u64 {
            assert_eq!(sessions.to_expire(id).expect("room"), None);
            sessions.open(SessionId(id), id);
        }
        assert!(matches!(
            sessions.to_expire(10_000),
            Err(Refusal::Limit { .. })
        ));
        let late = SESSION_IDLE_MS_MIN + 2;
        assert_eq!(sessions.to_expire(late).expect("idle"), Some(SessionId(1)));
        sessions.settle(SessionId(1), 1, applied(1), late);
        assert_eq!(sessions.to_expire(late).expect("idle"), Some(SessionId(2)));
        sessions.expire(SessionId(2));
        assert_eq!(sessions.to_expire(late).expect("room"), None);
    }

    proptest! {
        /// I-2: whatever arrives in whatever order and however often, a sequence is fresh until
        /// it is settled and never again, against a model that forgets nothing.
        #[test]
        fn a_sequence_is_settled_at_most_once(
            arrivals in prop::collection::vec(0u64..300, 0..900),
        ) {
            let mut sessions = opened();
            let mut model = std::collections::BTreeMap::new();
            for (index, sequence) in arrivals.into_iter().enumerate() {
                let lowest = (1..).find(|s| !model.contains_key(s)).expect("endless");
                match sessions.standing(ID, sequence).expect("open") {
                    Standing::Fresh => {
                        prop_assert!(sequence >= 1 && sequence < lowest + SESSION_WINDOW);
                        prop_assert!(model.insert(sequence, index as u64).is_none());
                        sessions.settle(ID, sequence, applied(index as u64), 0);
                    }
                    Standing::Settled(outcome) => {
                        prop_assert_eq!(outcome, &applied(model[&sequence]));
                    }
                    Standing::Forgotten => {
                        prop_assert!(sequence == 0 || sequence + SESSION_WINDOW < lowest);
                    },
                    Standing::Ahead(open) => {
                        prop_assert_eq!(open, lowest);
                        prop_assert!(sequence >= lowest + SESSION_WINDOW);
                    }
                }
                let kept = sessions.by_id[&ID.0].outcomes.len() as u64;
                prop_assert!(kept <= 2 * SESSION_WINDOW);
            }
        }
    }
}
