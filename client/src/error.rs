//! What a call can end with. One line each: what, where, what to do.

use std::fmt;

use mneme_net::{CatalogueError, CertError, NetError};
use mneme_proto::limits::ERROR_KEYS_NAMED_MAX;
use mneme_proto::refusal::Refusal;

use crate::config::ConfigError;
use crate::router::MapError;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The identity's files cannot be used.
    #[error(transparent)]
    Identity(#[from] CertError),
    /// No socket to dial from.
    #[error(transparent)]
    Socket(NetError),
    /// The catalogue did not do what was asked.
    #[error("{0}")]
    Catalogue(CatalogueError),
    /// A map that cannot be used.
    #[error("the catalogue sent {0}")]
    Map(#[from] MapError),
    /// Refused by the catalogue, by a node, or before anything was sent; nothing changed.
    #[error(transparent)]
    Refused(Refusal),
    /// Nodes did not answer in time, or cannot be reached.
    #[error(transparent)]
    Unavailable(Unavailable),
    /// A value, or a sum of values of one key, is not finite. Nothing was sent.
    #[error("{what} at index {index} (key {key}) is not finite: nothing of this push was sent")]
    NonFinite {
        /// `the gradient`, `the value` or `the sum`.
        what: &'static str,
        /// The key.
        key: u64,
        /// Its (first) index in the push.
        index: usize,
    },
    /// Some parts of a push may or may not have taken effect.
    #[error(transparent)]
    InDoubt(PushFailure),
    /// Some shards refused their part of a push; the others applied theirs.
    #[error(transparent)]
    PartlyRefused(PushFailure),
    /// A peer answered something else than was asked.
    #[error("{from} answered {what}: is it another version?")]
    Unexpected {
        /// Which peer.
        from: String,
        /// What came.
        what: String,
    },
}

impl ClientError {
    /// Whether this is because a deadline passed.
    #[must_use]
    pub fn is_deadline(&self) -> bool {
        match self {
            Self::Unavailable(all) => all.faults.iter().any(|f| f.why.is_deadline()),
            Self::Catalogue(CatalogueError::Unreachable { .. }) => true,
            Self::InDoubt(failure) => failure
                .parts
                .iter()
                .any(|p| matches!(&p.fate, Fate::InDoubt(w) if w.is_deadline())),
            _ => false,
        }
    }

    /// The refusal, where it is one.
    #[must_use]
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }

    /// The same of a table that the caller named: requests go by its id, and so do refusals.
    #[must_use]
    pub(crate) fn of_table(self, name: &str) -> Self {
        match self {
            Self::Refused(refusal) => Self::Refused(refusal.of_table(name)),
            other => other,
        }
    }

    /// A shape that does not fit the table.
    pub(crate) fn shape(what: &str, found: String, wanted: String) -> Self {
        Self::Refused(Refusal::Shape {
            what: what.into(),
            found,
            wanted,
        })
    }
}

impl From<Refusal> for ClientError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<CatalogueError> for ClientError {
    fn from(error: CatalogueError) -> Self {
        match error {
            CatalogueError::Refused(refusal) => Self::Refused(refusal),
            other => Self::Catalogue(other),
        }
    }
}

/// Why a node did not answer.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum NodeFault {
    /// The deadline passed while this was waited for.
    #[error("deadline exceeded while waiting for {0}")]
    Deadline(&'static str),
    /// It cannot be reached.
    #[error("{0}")]
    Unreachable(String),
    /// The link was lost while the call was under way.
    #[error("{0}")]
    Lost(String),
    /// It answered nonsense.
    #[error("{0}")]
    Malformed(String),
    /// It refused for a reason that a new map or a little time may cure, and they did not.
    #[error("{0}")]
    Refused(Refusal),
}

impl NodeFault {
    /// Whether a deadline passed.
    #[must_use]
    pub const fn is_deadline(&self) -> bool {
        matches!(self, Self::Deadline(_))
    }
}

/// Keys that one node did not serve.
#[derive(Debug, Clone, PartialEq)]
pub struct UnavailableKeys {
    /// The node's name.
    pub node: String,
    /// Its address.
    pub address: String,
    /// Indices into the call's keys, ascending.
    pub positions: Vec<u32>,
    /// Why.
    pub why: NodeFault,
}

/// Keys of a table that were not served.
#[derive(Debug, Clone, PartialEq)]
pub struct Unavailable {
    /// The table.
    pub table: String,
    /// By node and reason.
    pub faults: Vec<UnavailableKeys>,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "table '{}':", self.table)?;
        for (at, fault) in self.faults.iter().enumerate().take(ERROR_KEYS_NAMED_MAX) {
            let comma = if at == 0 { "" } else { ";" };
            write!(f, "{comma} node '{}' ({})", fault.node, fault.address)?;
            if !fault.positions.is_empty() {
                write!(f, ", {} keys", fault.positions.len())?;
            }
            write!(f, ": {}", fault.why)?;
        }
        Ok(())
    }
}

impl std::error::Error for Unavailable {}

/// What became of one part of a push.
#[derive(Debug, Clone, PartialEq)]
pub enum Fate {
    /// Applied; it stays applied.
    Applied {
        /// Rows changed, inserted or removed.
        rows: u32,
    },
    /// Refused; nothing of it was applied.
    Refused(Refusal),
    /// Never sent; nothing of it was applied.
    NotSent(NodeFault),
    /// Sent without an answer: it was applied once or not at all, and will not be later.
    InDoubt(NodeFault),
}

/// One part of a push: keys of one shard.
#[derive(Debug, Clone, PartialEq)]
pub struct PartFate {
    /// The shard.
    pub shard: u32,
    /// Keys in the part.
    pub keys: u32,
    /// What became of it.
    pub fate: Fate,
}

/// A push that was not applied as a whole: what became of every part.
#[derive(Debug, Clone, PartialEq)]
pub struct PushFailure {
    /// The table.
    pub table: String,
    /// In order of shards.
    pub parts: Vec<PartFate>,
}

impl fmt::Display for PushFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |of: fn(&Fate) -> bool| self.parts.iter().filter(|p| of(&p.fate)).count();
        write!(
            f,
            "push to table '{}': {} parts applied, {} refused, {} not sent, {} in doubt",
            self.table,
            count(|fate| matches!(fate, Fate::Applied { .. })),
            count(|fate| matches!(fate, Fate::Refused(_))),
            count(|fate| matches!(fate, Fate::NotSent(_))),
            count(|fate| matches!(fate, Fate::InDoubt(_))),
        )?;
        let failed = self
            .parts
            .iter()
            .filter(|p| !matches!(p.fate, Fate::Applied { .. }));
        for part in failed.take(ERROR_KEYS_NAMED_MAX) {
            let why: &dyn fmt::Display = match &part.fate {
                Fate::Refused(why) => why,
                Fate::NotSent(why) | Fate::InDoubt(why) => why,
                Fate::Applied { .. } => continue,
            };
            write!(f, "; shard {}: {why}", part.shard)?;
        }
        Ok(())
    }
}

impl std::error::Error for PushFailure {}
