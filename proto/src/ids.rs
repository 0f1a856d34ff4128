//! Identifiers: one newtype per thing, so that a shard index cannot be passed for a node.
//!
//! All are plain integers with stable little-endian encodings. `Generation` and `Incarnation`
//! are never reused (I-6); `Epoch`, `Revision` and `LogIndex` only grow.

use rkyv::{Archive, Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default,
            Archive, Serialize, Deserialize, serde::Serialize, serde::Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }

        impl From<$inner> for $name {
            fn from(value: $inner) -> Self {
                Self(value)
            }
        }
    };
}

id! {
    /// A cluster, drawn at random when its catalogue is initialised.
    ClusterId(u64)
}
id! {
    /// A table; never reused, not even after a drop.
    TableId(u64)
}
id! {
    /// A storage node. Stable over restarts of its process; its `Incarnation` is not.
    NodeId(u64)
}
id! {
    /// One life of a node's process. Never reused in a cluster (I-6).
    Incarnation(u64)
}
id! {
    /// One contiguous range of a node's memory, belonging to exactly one replica.
    RegionId(u64)
}
id! {
    /// The generation of a region; taken from the catalogue in blocks, never reused (I-6).
    Generation(u64)
}
id! {
    /// The version of a sealed table's contents that a map names. 0 for mutable tables.
    TableGeneration(u64)
}
id! {
    /// The epoch of one shard's replica set (I-3).
    Epoch(u64)
}
id! {
    /// The revision of the catalogue's state: one per applied command.
    Revision(u64)
}
id! {
    /// An index into one shard's log, from 1.
    LogIndex(u64)
}
id! {
    /// A push session: the log index of the entry that opened it on this shard (I-2).
    SessionId(u64)
}
id! {
    /// The number of a push within its session and shard, from 1 and without gaps (I-2).
    Sequence(u64)
}
id! {
    /// A shard's index within its table, `0..shards`.
    ShardIndex(u32)
}

/// A shard of a table: the unit of placement.
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
pub struct ShardId {
    /// The table.
    pub table: TableId,
    /// Which of its shards.
    pub shard: ShardIndex,
}

impl std::fmt::Display for ShardId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.table, self.shard)
    }
}
