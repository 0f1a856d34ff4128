//! Entries of a shard's log. An entry carries effects, never requests: what each key's row and
//! state become, not what was asked (DESIGN 8). Applying one again changes nothing, and all
//! replicas that apply the same entries are equal bit for bit.

use mneme_proto::ids::{LogIndex, SessionId};

use super::session::Outcome;

/// One entry. The rows it writes or deletes stand beside it, in [`super::effects::Effects`],
/// whose memory is reused.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Its place in the log, from 1, without gaps.
    pub index: LogIndex,
    /// The shard's time when it was ordered.
    pub time_ms: u64,
    /// What it does.
    pub body: Body,
}

/// What an entry does.
#[derive(Debug, Clone, PartialEq)]
pub enum Body {
    /// Opens the session that is named by the entry's index.
    Open,
    /// Ends a session to make room.
    Expire(SessionId),
    /// Settles a sequence of a session: with the outcome of a push part, whose effects stand
    /// beside it, or as given up.
    Settle {
        /// The session.
        session: SessionId,
        /// The sequence.
        sequence: u64,
        /// What a repeat is answered.
        outcome: Outcome,
    },
    /// Inserts initial rows of keys that had none.
    Init,
}
