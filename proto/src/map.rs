//! Maps and descriptors: what the catalogue says of a table, its shards and their regions.
//!
//! A bare (address, length, device) does not say what a row costs to reach, how it is laid out
//! or how long the address is good; a [`Descriptor`] does. A map is one rkyv archive; clients
//! build their router from it in place.

use rkyv::{Archive, Deserialize, Serialize};

use crate::grant::Grant;
use crate::ids::{
    ClusterId, Epoch, Generation, Incarnation, NodeId, RegionId, Revision, TableGeneration, TableId,
};
use crate::schema::{Dtype, TableSpec};

/// What a table's rows are doing.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    Archive,
    Serialize,
    Deserialize,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum TableState {
    /// Its nodes are making its shards.
    Creating,
    /// Mutable and served.
    Mutable,
    /// A published generation is served and never changes (I-8).
    Sealed,
    /// Rows went with their node's memory; nothing is served until import or reset.
    Lost,
    /// Made without rows, to be loaded: nothing is served until a generation is published.
    Loading,
}

/// What to do about a table that is [`TableState::Loading`].
pub const LOADING_REMEDY: &str =
    "nothing is published yet: load it (import --seal), or make it mutable (table reset)";

impl TableState {
    /// Its word in JSON and tables.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Mutable => "mutable",
            Self::Sealed => "sealed",
            Self::Lost => "lost",
            Self::Loading => "loading",
        }
    }
}

/// A kind of memory.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    Archive,
    Serialize,
    Deserialize,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// The host's own DRAM.
    Dram,
    /// CXL memory.
    Cxl,
}

/// Which hosts see each other's stores.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    Archive,
    Serialize,
    Deserialize,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Coherence {
    /// Threads and processes of one host.
    Host,
    /// All hosts on the pool.
    MultiHost,
    /// None between hosts: only sealed regions may be shared.
    SealedOnly,
}

/// State of a region, as in its header page.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    Archive,
    Serialize,
    Deserialize,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum RegionState {
    /// Rows are being loaded; not readable.
    Loading,
    /// Readable, never changes.
    Sealed,
    /// Readable under the node's lease; changes.
    Mutable,
    /// No new reads.
    Draining,
    /// Released.
    Dead,
}

/// How a reader knows that a row is whole (I-5).
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    Archive,
    Serialize,
    Deserialize,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Integrity {
    /// Sealed: rows never change; a digest covers the region.
    Digest,
    /// Mutable: sequence and CRC32C in every slot.
    SlotCrc,
}

/// A way to reach rows.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    Archive,
    Serialize,
    Deserialize,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum PathKind {
    /// Load/store on mapped memory.
    Local,
    /// One-sided RDMA READ.
    Rdma,
    /// Frames over QUIC.
    Quic,
}

impl PathKind {
    /// Its word on the command line.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Rdma => "rdma",
            Self::Quic => "quic",
        }
    }
}

/// Where a cost figure comes from.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    Archive,
    Serialize,
    Deserialize,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum CostOrigin {
    /// Set by an operator or a default.
    Configured,
    /// Measured by a probe at start.
    Probed,
    /// From calls seen.
    Observed,
}

/// What a path costs: `setup_us` once, then `fixed_ns + rows * row_ns + KiB * kib_ns` a call.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    Archive,
    Serialize,
    Deserialize,
    serde::Serialize,
    serde::Deserialize,
)]
pub struct PathCost {
    /// Per call.
    pub fixed_ns: u32,
    /// Per row.
    pub row_ns: u32,
    /// Per KiB moved.
    pub kib_ns: u32,
    /// To connect, once.
    pub setup_us: u32,
    /// Where the figures come from.
    pub origin: CostOrigin,
}

impl PathCost {
    /// Predicted time of one call over a connected path, in nanoseconds.
    #[must_use]
    pub const fn predict_ns(&self, rows: u64, bytes: u64) -> u64 {
        self.fixed_ns as u64 + rows * self.row_ns as u64 + bytes * self.kib_ns as u64 / 1024
    }
}

/// One path to a region.
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
pub struct PathEntry {
    /// Which path.
    pub kind: PathKind,
    /// Where: `host:port` (quic), a socket's path (local), device and key (rdma).
    pub locator: String,
    /// Predicted cost.
    pub cost: PathCost,
}

/// One plane of a region's slots.
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
pub struct PlaneLayout {
    /// Offset of the plane's first element within the region.
    pub offset: u64,
    /// Distance between rows.
    pub stride: u32,
    /// Bytes of one row's part.
    pub bytes: u32,
    /// Element type.
    pub dtype: Dtype,
}

/// What the catalogue says of a region: where, what it is made of, how it is laid out, and
/// every path to it with its cost.
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
pub struct Descriptor {
    /// The region.
    pub region: RegionId,
    /// Its generation (I-6).
    pub generation: Generation,
    /// Its state when reported.
    pub state: RegionState,
    /// Kind of memory.
    pub tier: Tier,
    /// Who sees whose stores.
    pub coherence: Coherence,
    /// Page size of the mapping.
    pub page_bytes: u32,
    /// NUMA node; -1 is unknown.
    pub numa: i16,
    /// How rows are checked.
    pub integrity: Integrity,
    /// Rows held when reported.
    pub rows: u64,
    /// Bytes held when reported, header and index included.
    pub bytes: u64,
    /// Planes of a slot.
    pub planes: Vec<PlaneLayout>,
    /// Paths, in the node's order of preference.
    pub paths: Vec<PathEntry>,
    /// Digest of the contents; 0 for mutable regions.
    pub digest: u64,
}

/// A storage node as a map names it.
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
pub struct NodeEntry {
    /// The node.
    pub node: NodeId,
    /// Its running process.
    pub incarnation: Incarnation,
    /// Its name.
    pub name: String,
    /// `host:port` of its QUIC endpoint.
    pub address: String,
    /// Failure domain.
    pub domain: String,
}

/// What a member of a replica set is.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    Archive,
    Serialize,
    Deserialize,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum ReplicaRole {
    /// Orders pushes and serves reads.
    Primary,
    /// Holds the log.
    Backup,
}

/// A replica of a shard.
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
pub struct ReplicaEntry {
    /// Index into [`TableMap::nodes`].
    pub node: u32,
    /// The life of the node that is a member of the set.
    pub incarnation: Incarnation,
    /// Its role.
    pub role: ReplicaRole,
    /// Its region, once reported.
    pub region: Option<Descriptor>,
    /// The contents went with an earlier incarnation's memory.
    pub lost: bool,
}

/// A shard with its replicas.
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
pub struct ShardEntry {
    /// Epoch of the replica set (I-3).
    pub epoch: Epoch,
    /// Primary first.
    pub replicas: Vec<ReplicaEntry>,
}

/// Everything that a client needs to reach a table's rows.
#[derive(
    Debug, Clone, PartialEq, Archive, Serialize, Deserialize, serde::Serialize, serde::Deserialize,
)]
pub struct TableMap {
    /// The cluster.
    pub cluster: ClusterId,
    /// The table.
    pub table: TableId,
    /// The catalogue's revision when the map was made.
    pub revision: Revision,
    /// What the table is.
    pub spec: TableSpec,
    /// What its rows are doing.
    pub state: TableState,
    /// The published generation; 0 while mutable.
    pub generation: TableGeneration,
    /// The generation that `rollback` goes back to; 0 when there is none.
    pub previous: TableGeneration,
    /// Nodes that hold replicas.
    pub nodes: Vec<NodeEntry>,
    /// One entry per shard, in index order.
    pub shards: Vec<ShardEntry>,
    /// Who may do what, by principal; told to nodes alone, which check it.
    pub grants: Vec<Grant>,
}
