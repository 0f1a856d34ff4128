//! Control messages: what clients and nodes ask of the catalogue, and clients of nodes.
//!
//! Each is one rkyv archive in a `Control` frame. Archives are positional: any change here
//! raises `version::WIRE_VERSION`.

// rkyv's resolver enums repeat the fields of struct variants without their docs.
#![allow(missing_docs)]

use rkyv::{Archive, Deserialize, Serialize};

use crate::grant::{Grant, Level};
use crate::ids::{
    ClusterId, Epoch, Generation, Incarnation, NodeId, Revision, SessionId, ShardId, ShardIndex,
    TableGeneration, TableId,
};
use crate::map::{Descriptor, NodeEntry, TableState, Tier};
use crate::refusal::Refusal;
use crate::schema::TableSpec;

/// A table by name (with its tenant) or by id.
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
pub enum TableRef {
    /// By name, in a tenant.
    Name { tenant: String, name: String },
    /// By id.
    Id(TableId),
}

impl std::fmt::Display for TableRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Name { name, .. } => f.write_str(name),
            Self::Id(id) => write!(f, "#{id}"),
        }
    }
}

/// A pool as its node reports it.
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
pub struct PoolReport {
    /// As given on the command line.
    pub spec: String,
    /// Kind of memory.
    pub tier: Tier,
    /// What it may hold.
    pub limit_bytes: u64,
    /// What regions hold.
    pub used_bytes: u64,
}

/// What a starting node still holds of a shard, from its data directory.
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
pub enum Held {
    /// A sealed generation, whole, with this digest.
    Sealed {
        generation: TableGeneration,
        digest: u64,
    },
    /// A mutable shard that never took a push since its last reset: nothing can be lost.
    Untouched,
}

/// What a starting node holds.
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
pub struct HeldShard {
    /// The shard.
    pub shard: ShardId,
    /// What of it.
    pub held: Held,
}

/// A node introduces itself; the answer gives it an incarnation.
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
pub struct NodeRegistration {
    /// Its name, as in its certificate.
    pub name: String,
    /// `host:port` where clients reach it.
    pub address: String,
    /// Failure domain.
    pub domain: String,
    /// Its memory.
    pub pools: Vec<PoolReport>,
    /// What survived in its data directory.
    pub held: Vec<HeldShard>,
}

/// What became of a shard on a node.
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
pub enum ShardStatus {
    /// Served; the region is the node's word on itself.
    Serving(Descriptor),
    /// It could not be made; the line says why (for example a full pool).
    Failed(String),
}

/// A node's report on one shard.
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
pub struct ShardReport {
    /// The shard.
    pub shard: ShardId,
    /// The epoch that the node follows.
    pub epoch: Epoch,
    /// The table generation that the region holds; 0 for mutable.
    pub generation: TableGeneration,
    /// What became of it.
    pub status: ShardStatus,
}

/// One replica's sealed contents, as `publish` must find them (I-8).
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
pub struct SealedReplica {
    /// Which shard.
    pub shard: ShardIndex,
    /// On which node.
    pub node: NodeId,
    /// In which of its lives.
    pub incarnation: Incarnation,
    /// Its region, with generation and digest.
    pub region: Descriptor,
}

/// Asked of the catalogue.
#[derive(Debug, Clone, PartialEq, Archive, Serialize, Deserialize)]
pub enum CatalogueRequest {
    /// Which cluster is this?
    Hello,
    /// Node only: enter the cluster with a new incarnation.
    Register(NodeRegistration),
    /// Node only: still alive.
    Heartbeat {
        node: NodeId,
        incarnation: Incarnation,
        pools: Vec<PoolReport>,
    },
    /// Node only: shards made, sealed or failed.
    Report {
        node: NodeId,
        incarnation: Incarnation,
        shards: Vec<ShardReport>,
    },
    /// Node only: a block of region generations.
    TakeGenerations {
        node: NodeId,
        incarnation: Incarnation,
        count: u32,
    },
    /// Node only: maps of all tables with a replica on this node.
    NodeTables { node: NodeId },
    /// Make a table. `request` makes a retry harmless: a random number of the caller's. With
    /// `loading` it has no rows until a generation is published.
    CreateTable {
        request: u64,
        spec: TableSpec,
        loading: bool,
    },
    /// Remove a table and its rows.
    DropTable { table: TableRef },
    /// Empty a mutable or lost table: a new epoch, no rows.
    ResetTable { table: TableRef },
    /// Allocate a generation to load, or to seal a mutable table into.
    BeginLoad { table: TableRef },
    /// Flip the table to a generation whose every replica is as named (I-8).
    Publish {
        table: TableId,
        generation: TableGeneration,
        replicas: Vec<SealedReplica>,
    },
    /// All tables that the principal may read.
    ListTables,
    /// A table's map.
    GetMap { table: TableRef },
    /// What changed after `from`, of what the principal may read; waits up to `wait_ms` for
    /// something to.
    Watch { from: Revision, wait_ms: u32 },
    /// The state of the cluster.
    Status,
    /// A table's sealed generations beside the published one.
    Versions { table: TableRef },
    /// Change options of a table's optimizer, by name, for the pushes to come.
    SetTable {
        table: TableRef,
        options: Vec<(String, String)>,
    },
    /// Say what a client principal may do with a table; nothing without a level.
    Grant {
        table: TableRef,
        principal: String,
        level: Option<Level>,
    },
    /// A table's grants.
    Grants { table: TableRef },
}

/// A table's sealed generations.
#[derive(Debug, Clone, PartialEq, Archive, Serialize, Deserialize)]
pub struct TableVersions {
    /// The table.
    pub table: TableId,
    /// Published; 0 while mutable.
    pub published: TableGeneration,
    /// What a rollback goes back to; none when there is none or a node lost its part of it.
    pub previous: Option<SealedVersion>,
    /// Loaded whole and not published, oldest first.
    pub staged: Vec<SealedVersion>,
}

/// A sealed generation of which every replica stands.
#[derive(Debug, Clone, PartialEq, Archive, Serialize, Deserialize)]
pub struct SealedVersion {
    /// Which.
    pub generation: TableGeneration,
    /// What `Publish` names.
    pub replicas: Vec<SealedReplica>,
}

/// A table in a list.
#[derive(Debug, Clone, PartialEq, Archive, Serialize, Deserialize)]
pub struct TableSummary {
    /// Its id.
    pub table: TableId,
    /// What it is.
    pub spec: TableSpec,
    /// What its rows are doing.
    pub state: TableState,
    /// Published generation; 0 while mutable.
    pub generation: TableGeneration,
    /// Rows as last reported.
    pub rows: u64,
    /// Bytes as last reported.
    pub bytes: u64,
}

/// What changed.
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
pub enum Change {
    /// A table was made, or its map changed.
    Table(TableId),
    /// A table is gone.
    Dropped(TableId),
    /// A node registered.
    Node(NodeId),
}

/// A node in the cluster's status.
#[derive(Debug, Clone, PartialEq, Archive, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Id, incarnation, name, address, domain.
    pub entry: NodeEntry,
    /// Heard from within its lease.
    pub alive: bool,
    /// Milliseconds since its last heartbeat, as the leader counts.
    pub silent_ms: u64,
    /// Its memory.
    pub pools: Vec<PoolReport>,
    /// Shards placed on it.
    pub shards: u32,
}

/// The cluster's status.
#[derive(Debug, Clone, PartialEq, Archive, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// The cluster.
    pub cluster: ClusterId,
    /// Revision of the catalogue.
    pub revision: Revision,
    /// The leading member.
    pub leader: u64,
    /// All members: id and address.
    pub members: Vec<(u64, String)>,
    /// All nodes.
    pub nodes: Vec<NodeStatus>,
    /// All tables that the principal may read.
    pub tables: Vec<TableSummary>,
}

/// Answered by the catalogue.
#[derive(Debug, Clone, PartialEq, Archive, Serialize, Deserialize)]
pub enum CatalogueResponse {
    /// To `Hello`.
    Hello {
        cluster: ClusterId,
        revision: Revision,
        leader: Option<(u64, String)>,
    },
    /// To `Register`: generations `first..first + count` are this incarnation's to use.
    Registered {
        cluster: ClusterId,
        node: NodeId,
        incarnation: Incarnation,
        first_generation: Generation,
        generations: u32,
        revision: Revision,
    },
    /// To `Heartbeat`.
    Alive { revision: Revision },
    /// To `Report`, `DropTable`, `Publish`, `SetTable`, `Grant`: done at this revision.
    Done { revision: Revision },
    /// To `TakeGenerations`.
    Generations { first: Generation, count: u32 },
    /// To `CreateTable`, `ResetTable`, `GetMap`: an archived `TableMap`.
    Map(Vec<u8>),
    /// To `NodeTables`: archived `TableMap`s at this revision.
    Maps {
        revision: Revision,
        maps: Vec<Vec<u8>>,
    },
    /// To `BeginLoad`: the generation to load and an archived `TableMap`.
    Load {
        generation: TableGeneration,
        map: Vec<u8>,
    },
    /// To `ListTables`.
    Tables(Vec<TableSummary>),
    /// To `Watch`: changes up to `revision`, oldest first.
    Changes {
        revision: Revision,
        changes: Vec<Change>,
    },
    /// To `Watch`: `from` is no longer kept; reload everything, then watch from `revision`.
    Compacted { revision: Revision },
    /// To `Status`.
    Status(ClusterStatus),
    /// This member does not lead; ask the one that does.
    NotLeader { leader: Option<(u64, String)> },
    /// Refused.
    Refused(Refusal),
    /// To `Versions`.
    Versions(TableVersions),
    /// To `Grants`: by principal.
    Grants(Vec<Grant>),
}

/// Asked of a node. Pulls, pushes and loads are data frames, not these.
#[derive(Debug, Clone, PartialEq, Archive, Serialize, Deserialize)]
pub enum NodeRequest {
    /// Open push sessions on shards of a table, all or none (I-2).
    OpenSessions {
        table: TableId,
        shards: Vec<(ShardIndex, Epoch)>,
    },
    /// Give a pushed sequence up: if it was not applied yet, it never will be.
    VoidSequence {
        table: TableId,
        shard: ShardIndex,
        session: SessionId,
        sequence: u64,
    },
    /// Make room for a generation: rows to come per shard of this node.
    BeginLoad {
        table: TableId,
        generation: TableGeneration,
        shards: Vec<(ShardIndex, u64)>,
    },
    /// All rows were sent: check, seal and persist the shards of this node.
    FinishLoad {
        table: TableId,
        generation: TableGeneration,
    },
    /// Forget a load that will not be published.
    AbandonLoad {
        table: TableId,
        generation: TableGeneration,
    },
    /// Copy the mutable shards of this node into a sealed generation; pushes are refused from
    /// now on until it is published or abandoned.
    SealShards {
        table: TableId,
        generation: TableGeneration,
    },
    /// Rows of one shard from `cursor` on, for export: key, row (and state) in slot order.
    Scan {
        table: TableId,
        shard: ShardIndex,
        generation: TableGeneration,
        cursor: u64,
        rows_max: u32,
    },
    /// Rows and bytes of the table's shards on this node, now.
    Describe { table: TableId },
}

/// Answered by a node.
#[derive(Debug, Clone, PartialEq, Archive, Serialize, Deserialize)]
pub enum NodeResponse {
    /// To `OpenSessions`, in request order.
    Sessions(Vec<SessionId>),
    /// Done.
    Done,
    /// To `FinishLoad` and `SealShards`: this node's replicas, for `Publish`.
    Sealed(Vec<SealedReplica>),
    /// To `Scan`: keys and rows from `cursor`; `next` is the cursor to go on from, or none.
    Rows {
        keys: Vec<u64>,
        rows: Vec<u8>,
        next: Option<u64>,
    },
    /// To `Describe`: shard, region, rows and bytes.
    Shards(Vec<(ShardIndex, Descriptor)>),
    /// Refused.
    Refused(Refusal),
}
