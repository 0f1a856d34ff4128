//! Refusals: why a catalogue or a node did not do what was asked. They cross the wire whole,
//! so that the user sees the same one line wherever the check stands.

// rkyv's resolver enums repeat the fields of struct variants without their docs.
#![allow(missing_docs)]

use rkyv::{Archive, Deserialize, Serialize};

use crate::grant::Level;
use crate::ids::{Epoch, ShardIndex, TableGeneration};
use crate::limits::ERROR_KEYS_NAMED_MAX;
use crate::schema::SchemaError;

/// Why a request was refused. A refused request, or refused part of one, changed nothing.
#[derive(
    Debug,
    Clone,
    PartialEq,
    Archive,
    Serialize,
    Deserialize,
    serde::Serialize,
    serde::Deserialize,
    thiserror::Error,
)]
pub enum Refusal {
    /// The peers' protocol versions differ.
    #[error(
        "the client speaks protocol version {theirs}, the server {ours}: upgrade the older one"
    )]
    Version { theirs: u16, ours: u16 },
    /// Bytes that are no valid request.
    #[error("malformed request: {why}")]
    Malformed { why: String },
    /// The principal may not do this.
    #[error("permission denied: {principal} may not {action}")]
    PermissionDenied { principal: String, action: String },
    /// A schema or option is wrong.
    #[error("{field}: {why}")]
    Schema { field: String, why: String },
    /// No table of this name or id.
    #[error("no table '{table}': see `mneme table list`")]
    UnknownTable { table: String },
    /// The name is taken.
    #[error("table '{table}' exists already: drop it or choose another name")]
    TableExists { table: String },
    /// The table is not in a state that allows this.
    #[error("table '{table}' is {state}: {remedy}")]
    TableState {
        table: String,
        state: String,
        remedy: String,
    },
    /// Rows were lost with their node's memory.
    #[error(
        "the rows of table '{table}' are lost (its node restarted): `mneme import` them again, \
         or `mneme table reset {table}`"
    )]
    TableLost { table: String },
    /// No node can hold a shard.
    #[error("no storage node is available: start one with `mneme server`")]
    NoNodes,
    /// The shard is not served here (any more).
    #[error("this node does not serve shard {shard}")]
    NotServed { shard: ShardIndex },
    /// The request's epoch is not the shard's; `current` is (I-3).
    #[error("shard {shard} is at epoch {current}, the request at {asked}")]
    WrongEpoch {
        shard: ShardIndex,
        asked: Epoch,
        current: Epoch,
    },
    /// The sealed generation is not, or no longer, held: restart the pull whole (I-8).
    #[error("generation {asked} is gone, the table is at {current}")]
    GenerationGone {
        asked: TableGeneration,
        current: TableGeneration,
    },
    /// A dense row id out of range.
    #[error("row {row} is out of range: the table has {rows} rows")]
    RowOutOfRange { row: u64, rows: u64 },
    /// Keys without a row, asked for with `missing = error`; up to ten are named.
    #[error("{}", missing_keys_line(keys, *total))]
    MissingKeys { keys: Vec<u64>, total: u64 },
    /// The push mode does not fit the table.
    #[error("{mode} is refused: {why}")]
    Mode { mode: String, why: String },
    /// Shapes differ.
    #[error("{what} has {found}, the table wants {wanted}")]
    Shape {
        what: String,
        found: String,
        wanted: String,
    },
    /// A gradient, sum or resulting row is not finite.
    #[error("{what} of key {key} is not finite: nothing of this part was applied")]
    NonFinite { what: String, key: u64 },
    /// The session is not known on this shard (it expired, or the shard's log is new).
    #[error("the push session is not known to shard {shard}: open a new one")]
    UnknownSession { shard: ShardIndex },
    /// A sequence that skips one, or is beyond the window (I-2).
    #[error("push sequence {sequence} of shard {shard} is out of order: {why}")]
    Sequence {
        shard: ShardIndex,
        sequence: u64,
        why: String,
    },
    /// A limit was reached.
    #[error("{what}: {asked} asked, {used} of {limit} used")]
    Limit {
        what: String,
        asked: u64,
        used: u64,
        limit: u64,
    },
    /// A compare-and-swap in the catalogue failed.
    #[error("{what} changed meanwhile: {why}")]
    Conflict { what: String, why: String },
    /// The node's process was replaced by a newer one of the same name.
    #[error("node '{node}' was registered again by another process: this one must stop")]
    StaleIncarnation { node: String },
    /// The catalogue has no leader, or the node is not ready; worth a retry.
    #[error("unavailable: {why}")]
    Unavailable { why: String },
    /// Something that should not happen; the peer's log says more.
    #[error("internal error: {why}")]
    Internal { why: String },
    /// A node could not make a shard of a new table; the table was not made.
    #[error("table '{table}' was not made: node '{node}' cannot hold shard {shard}: {why}")]
    ShardFailed {
        table: String,
        shard: ShardIndex,
        node: String,
        why: String,
    },
    /// The principal has no grant that allows this. Without any grant on a table it is answered
    /// the same whether the table is there or not, so that names do not leak (I-13).
    #[error("{}", not_permitted_line(principal, table, *needs, *has))]
    NotPermitted {
        /// A client's name.
        principal: String,
        /// As the request named it.
        table: String,
        needs: Level,
        has: Option<Level>,
    },
}

impl Refusal {
    /// The same of a table that the caller knows by name: a request that names a table by its id
    /// is refused by its id.
    #[must_use]
    pub fn of_table(self, name: &str) -> Self {
        match self {
            Self::NotPermitted {
                principal,
                table,
                needs,
                has,
            } if table.starts_with('#') => Self::NotPermitted {
                principal,
                table: name.to_owned(),
                needs,
                has,
            },
            other => other,
        }
    }

    /// Whether a fresh map may cure it.
    #[must_use]
    pub const fn wants_new_map(&self) -> bool {
        matches!(
            self,
            Self::NotServed { .. }
                | Self::WrongEpoch { .. }
                | Self::GenerationGone { .. }
                | Self::UnknownTable { .. }
                | Self::TableState { .. }
        )
    }

    /// Whether the same request may succeed a little later.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }
}

impl From<SchemaError> for Refusal {
    fn from(error: SchemaError) -> Self {
        Self::Schema {
            field: error.field,
            why: error.why,
        }
    }
}

fn missing_keys_line(keys: &[u64], total: u64) -> String {
    let named: Vec<String> = keys
        .iter()
        .take(ERROR_KEYS_NAMED_MAX)
        .map(u64::to_string)
        .collect();
    let rest = total.saturating_sub(named.len() as u64);
    let more = if rest > 0 {
        format!(" and {rest} more")
    } else {
        String::new()
    };
    format!("{total} keys have no row: {}{more}", named.join(", "))
}

fn not_permitted_line(principal: &str, table: &str, needs: Level, has: Option<Level>) -> String {
    let command = format!("`mneme grant {table} {principal} {needs}`");
    match has {
        Some(has) => format!(
            "permission denied: client '{principal}' may {} table '{table}', not {} it: an admin \
             of it can run {command}",
            has.verb(),
            needs.verb()
        ),
        None => format!(
            "permission denied: there is no table '{table}' that client '{principal}' may {}; if \
             there is one, an admin of it can run {command}",
            needs.verb()
        ),
    }
}
