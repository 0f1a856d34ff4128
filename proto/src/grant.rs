//! Grants: what a principal may do with a table, and what each request to a node needs.
//!
//! A grant stands with its table in the catalogue. Nodes learn it with the table's map and check
//! it on every request; a principal without one learns nothing of the table, not even whether it
//! is there (I-13).

use rkyv::{Archive, Deserialize, Serialize};

use crate::control::NodeRequest;
use crate::frame::Missing;
use crate::ids::TableId;

/// What a grant allows. Each level includes those below it.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Archive,
    Serialize,
    Deserialize,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Its map, its rows, its figures.
    Read,
    /// Its rows: pushes, new rows of `missing = init`, loads and what is published.
    Write,
    /// The table as a whole: seal, set, reset, drop, and grants.
    Admin,
}

impl Level {
    /// All of them, the lowest first.
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Admin];

    /// Its word on the command line and in JSON.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Admin => "admin",
        }
    }

    /// What it lets a principal do, as a verb.
    #[must_use]
    pub const fn verb(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Admin => "administer",
        }
    }

    /// What a pull needs: rows that it makes are written.
    #[must_use]
    pub const fn of_pull(missing: Missing) -> Self {
        match missing {
            Missing::Default | Missing::Error => Self::Read,
            Missing::Init => Self::Write,
        }
    }
}

impl std::fmt::Display for Level {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.word())
    }
}

/// What one client principal may do with a table.
#[derive(
    Debug,
    Clone,
    PartialEq,
    Eq,
    Archive,
    Serialize,
    Deserialize,
    serde::Serialize,
    serde::Deserialize,
)]
pub struct Grant {
    /// The name in its certificate, of the role client.
    pub principal: String,
    /// What it may do.
    pub level: Level,
}

impl NodeRequest {
    /// The table that it is about.
    #[must_use]
    pub const fn table(&self) -> TableId {
        match self {
            Self::OpenSessions { table, .. }
            | Self::VoidSequence { table, .. }
            | Self::BeginLoad { table, .. }
            | Self::FinishLoad { table, .. }
            | Self::AbandonLoad { table, .. }
            | Self::SealShards { table, .. }
            | Self::Scan { table, .. }
            | Self::Describe { table } => *table,
        }
    }

    /// The grant that it needs. A seal ends a table's pushes for everybody, so it is an admin's.
    #[must_use]
    pub const fn needs(&self) -> Level {
        match self {
            Self::Scan { .. } | Self::Describe { .. } => Level::Read,
            Self::OpenSessions { .. }
            | Self::VoidSequence { .. }
            | Self::BeginLoad { .. }
            | Self::FinishLoad { .. }
            | Self::AbandonLoad { .. } => Level::Write,
            Self::SealShards { .. } => Level::Admin,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_include_those_below() {
        assert!(Level::ALL.is_sorted());
        assert!(Some(Level::Read) > None);
        assert_eq!(Level::of_pull(Missing::Init), Level::Write);
    }
}
