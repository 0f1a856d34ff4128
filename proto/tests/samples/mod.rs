//! One message of every kind that crosses a wire, with values that differ in every byte that
//! matters. Their encodings are the golden files; a field that moves shows there.

pub mod frames;

use mneme_proto::control::{
    CatalogueRequest, CatalogueResponse, Change, ClusterStatus, Held, HeldShard, NodeRegistration,
    NodeRequest, NodeResponse, NodeStatus, PoolReport, SealedReplica, SealedVersion, ShardReport,
    ShardStatus, TableRef, TableSummary, TableVersions,
};
use mneme_proto::grant::{Grant, Level};
use mneme_proto::ids::{
    ClusterId, Epoch, Generation, Incarnation, NodeId, RegionId, Revision, SessionId, ShardId,
    ShardIndex, TableGeneration, TableId,
};
use mneme_proto::map::{
    Coherence, CostOrigin, Descriptor, Integrity, NodeEntry, PathCost, PathEntry, PathKind,
    PlaneLayout, RegionState, ReplicaEntry, ReplicaRole, ShardEntry, TableMap, TableState, Tier,
};
use mneme_proto::refusal::Refusal;
use mneme_proto::schema::{Dtype, Initializer, Optimizer, Plane, RowSchema, TableKind, TableSpec};

fn text(s: &str) -> String {
    s.to_owned()
}

const TABLE: TableId = TableId(0x0102_0304_0506_0708);
const GENERATION: TableGeneration = TableGeneration(0x1112_1314_1516_1718);
const NODE: NodeId = NodeId(0x2122_2324_2526_2728);
const INCARNATION: Incarnation = Incarnation(0x3132_3334_3536_3738);
const REVISION: Revision = Revision(0x4142_4344_4546_4748);
const SHARD: ShardIndex = ShardIndex(0x5152_5354);
const EPOCH: Epoch = Epoch(0x6162_6364_6566_6768);

/// A spec that uses every field.
pub fn spec() -> TableSpec {
    let plane = |name: &str, dtype, width| Plane {
        name: text(name),
        dtype,
        width,
    };
    TableSpec {
        tenant: text("default"),
        shards: 32,
        optimizer: Optimizer::Adagrad {
            lr: 0.01,
            eps: 1e-10,
            acc0: 0.1,
        },
        init: Initializer::Uniform {
            low: -0.05,
            high: 0.05,
        },
        seed: u64::MAX - 1,
        default_value: 0.5,
        padding_key: Some(u64::MAX),
        ..TableSpec::new(
            text("engram.v41"),
            TableKind::Dense { rows: 384_006_168 },
            RowSchema {
                planes: vec![
                    plane("codes", Dtype::U8, 256),
                    plane("scale", Dtype::F32, 2),
                ],
            },
        )
    }
}

/// A descriptor that uses every field.
pub fn descriptor() -> Descriptor {
    Descriptor {
        region: RegionId(71),
        generation: Generation(72),
        state: RegionState::Sealed,
        tier: Tier::Dram,
        coherence: Coherence::Host,
        page_bytes: 4096,
        numa: -1,
        integrity: Integrity::Digest,
        rows: 73,
        bytes: 74,
        planes: vec![PlaneLayout {
            offset: 4096,
            stride: 264,
            bytes: 256,
            dtype: Dtype::U8,
        }],
        paths: vec![PathEntry {
            kind: PathKind::Quic,
            locator: text("[::1]:7401"),
            cost: PathCost {
                fixed_ns: 60_000,
                row_ns: 120,
                kib_ns: 900,
                setup_us: 1500,
                origin: CostOrigin::Configured,
            },
        }],
        digest: 0x8182_8384_8586_8788,
    }
}

fn node_entry() -> NodeEntry {
    NodeEntry {
        node: NODE,
        incarnation: INCARNATION,
        name: text("n1"),
        address: text("127.0.0.1:7401"),
        domain: text("rack-a"),
    }
}

/// A map that uses every field.
pub fn map() -> TableMap {
    let replica = |lost, region| ReplicaEntry {
        node: 0,
        incarnation: INCARNATION,
        role: if lost {
            ReplicaRole::Backup
        } else {
            ReplicaRole::Primary
        },
        region,
        lost,
    };
    TableMap {
        cluster: ClusterId(0x9192_9394_9596_9798),
        table: TABLE,
        revision: REVISION,
        spec: spec(),
        state: TableState::Sealed,
        generation: GENERATION,
        previous: TableGeneration(3),
        nodes: vec![node_entry()],
        shards: vec![ShardEntry {
            epoch: EPOCH,
            replicas: vec![replica(false, Some(descriptor())), replica(true, None)],
        }],
        grants: vec![grant()],
    }
}

fn grant() -> Grant {
    Grant {
        principal: text("ann"),
        level: Level::Write,
    }
}

fn pool() -> PoolReport {
    PoolReport {
        spec: text("dram:8GiB"),
        tier: Tier::Dram,
        limit_bytes: 8 << 30,
        used_bytes: 5,
    }
}

fn summary() -> TableSummary {
    TableSummary {
        table: TABLE,
        spec: spec(),
        state: TableState::Lost,
        generation: GENERATION,
        rows: 6,
        bytes: 7,
    }
}

fn sealed() -> SealedReplica {
    SealedReplica {
        shard: SHARD,
        node: NODE,
        incarnation: INCARNATION,
        region: descriptor(),
    }
}

/// Every request to the catalogue.
pub fn catalogue_requests() -> Vec<CatalogueRequest> {
    let shard = ShardId {
        table: TABLE,
        shard: SHARD,
    };
    let by_name = || TableRef::Name {
        tenant: text("default"),
        name: text("emb"),
    };
    let report = |status| ShardReport {
        shard,
        epoch: EPOCH,
        generation: GENERATION,
        status,
    };
    let held = |held| HeldShard { shard, held };
    let whole = Held::Sealed {
        generation: GENERATION,
        digest: 9,
    };
    vec![
        CatalogueRequest::Hello,
        CatalogueRequest::Register(NodeRegistration {
            name: text("n1"),
            address: text("127.0.0.1:7401"),
            domain: text("rack-a"),
            pools: vec![pool()],
            held: vec![held(whole), held(Held::Untouched)],
        }),
        CatalogueRequest::Heartbeat {
            node: NODE,
            incarnation: INCARNATION,
            pools: vec![pool()],
        },
        CatalogueRequest::Report {
            node: NODE,
            incarnation: INCARNATION,
            shards: vec![
                report(ShardStatus::Serving(descriptor())),
                report(ShardStatus::Failed(text("no room"))),
            ],
        },
        CatalogueRequest::TakeGenerations {
            node: NODE,
            incarnation: INCARNATION,
            count: 1024,
        },
        CatalogueRequest::NodeTables { node: NODE },
        CatalogueRequest::CreateTable {
            request: 11,
            spec: spec(),
            loading: true,
        },
        CatalogueRequest::DropTable { table: by_name() },
        CatalogueRequest::ResetTable {
            table: TableRef::Id(TABLE),
        },
        CatalogueRequest::BeginLoad { table: by_name() },
        CatalogueRequest::Publish {
            table: TABLE,
            generation: GENERATION,
            replicas: vec![sealed()],
        },
        CatalogueRequest::ListTables,
        CatalogueRequest::GetMap { table: by_name() },
        CatalogueRequest::Watch {
            from: REVISION,
            wait_ms: 10_000,
        },
        CatalogueRequest::Status,
        CatalogueRequest::Versions { table: by_name() },
        CatalogueRequest::SetTable {
            table: by_name(),
            options: vec![("lr".into(), "0.5".into())],
        },
        CatalogueRequest::Grant {
            table: by_name(),
            principal: text("ann"),
            level: Some(Level::Admin),
        },
        CatalogueRequest::Grants { table: by_name() },
    ]
}

fn status() -> ClusterStatus {
    ClusterStatus {
        cluster: ClusterId(12),
        revision: REVISION,
        leader: 1,
        members: vec![(1, text("127.0.0.1:7400"))],
        nodes: vec![NodeStatus {
            entry: node_entry(),
            alive: true,
            silent_ms: 13,
            pools: vec![pool()],
            shards: 14,
        }],
        tables: vec![summary()],
    }
}

/// Every answer of the catalogue.
pub fn catalogue_responses() -> Vec<CatalogueResponse> {
    let cluster = ClusterId(12);
    let leader = || Some((1, text("127.0.0.1:7400")));
    vec![
        CatalogueResponse::Hello {
            cluster,
            revision: REVISION,
            leader: leader(),
        },
        CatalogueResponse::Registered {
            cluster,
            node: NODE,
            incarnation: INCARNATION,
            first_generation: Generation(15),
            generations: 1024,
            revision: REVISION,
        },
        CatalogueResponse::Alive { revision: REVISION },
        CatalogueResponse::Done { revision: REVISION },
        CatalogueResponse::Generations {
            first: Generation(16),
            count: 17,
        },
        CatalogueResponse::Map(vec![1, 2, 3]),
        CatalogueResponse::Maps {
            revision: REVISION,
            maps: vec![vec![4], vec![5, 6]],
        },
        CatalogueResponse::Load {
            generation: GENERATION,
            map: vec![7],
        },
        CatalogueResponse::Tables(vec![summary()]),
        CatalogueResponse::Changes {
            revision: REVISION,
            changes: vec![
                Change::Table(TABLE),
                Change::Dropped(TABLE),
                Change::Node(NODE),
            ],
        },
        CatalogueResponse::Compacted { revision: REVISION },
        CatalogueResponse::Status(status()),
        CatalogueResponse::NotLeader { leader: leader() },
        CatalogueResponse::Refused(Refusal::NoNodes),
        CatalogueResponse::Versions(TableVersions {
            table: TABLE,
            published: GENERATION,
            previous: None,
            staged: vec![SealedVersion {
                generation: GENERATION,
                replicas: vec![sealed()],
            }],
        }),
        CatalogueResponse::Grants(vec![grant()]),
    ]
}

/// Every control request to a node.
pub fn node_requests() -> Vec<NodeRequest> {
    vec![
        NodeRequest::OpenSessions {
            table: TABLE,
            shards: vec![(SHARD, EPOCH)],
        },
        NodeRequest::VoidSequence {
            table: TABLE,
            shard: SHARD,
            session: SessionId(18),
            sequence: 19,
        },
        NodeRequest::BeginLoad {
            table: TABLE,
            generation: GENERATION,
            shards: vec![(SHARD, 20)],
        },
        NodeRequest::FinishLoad {
            table: TABLE,
            generation: GENERATION,
        },
        NodeRequest::AbandonLoad {
            table: TABLE,
            generation: GENERATION,
        },
        NodeRequest::SealShards {
            table: TABLE,
            generation: GENERATION,
        },
        NodeRequest::Scan {
            table: TABLE,
            shard: SHARD,
            generation: GENERATION,
            cursor: 21,
            rows_max: 22,
        },
        NodeRequest::Describe { table: TABLE },
    ]
}

/// Every control answer of a node.
pub fn node_responses() -> Vec<NodeResponse> {
    vec![
        NodeResponse::Sessions(vec![SessionId(23)]),
        NodeResponse::Done,
        NodeResponse::Sealed(vec![sealed()]),
        NodeResponse::Rows {
            keys: vec![u64::MAX, 24],
            rows: vec![25, 26],
            next: Some(27),
        },
        NodeResponse::Shards(vec![(SHARD, descriptor())]),
        NodeResponse::Refused(Refusal::UnknownTable { table: text("emb") }),
    ]
}

/// Every refusal.
pub fn refusals() -> Vec<Refusal> {
    [refusals_of_requests(), refusals_of_shards()].concat()
}

fn refusals_of_requests() -> Vec<Refusal> {
    let table = || text("emb");
    vec![
        Refusal::Version { theirs: 2, ours: 1 },
        Refusal::Malformed { why: text("short") },
        Refusal::PermissionDenied {
            principal: text("client:ann"),
            action: text("push"),
        },
        Refusal::Schema {
            field: text("lr"),
            why: text("it must be finite"),
        },
        Refusal::UnknownTable { table: table() },
        Refusal::TableExists { table: table() },
        Refusal::TableState {
            table: table(),
            state: text("sealed"),
            remedy: text("import a new version"),
        },
        Refusal::TableLost { table: table() },
        Refusal::NoNodes,
    ]
}

fn refusals_of_shards() -> Vec<Refusal> {
    let table = || text("emb");
    let shard = ShardIndex(28);
    vec![
        Refusal::NotServed { shard },
        Refusal::WrongEpoch {
            shard,
            asked: Epoch(29),
            current: Epoch(30),
        },
        Refusal::GenerationGone {
            asked: TableGeneration(31),
            current: TableGeneration(32),
        },
        Refusal::RowOutOfRange { row: 33, rows: 33 },
        Refusal::MissingKeys {
            keys: vec![34, u64::MAX],
            total: 35,
        },
        Refusal::Mode {
            mode: text("gradient"),
            why: text("the table has no optimizer"),
        },
        Refusal::Shape {
            what: text("values"),
            found: text("12"),
            wanted: text("16"),
        },
        Refusal::NonFinite {
            what: text("gradient"),
            key: 36,
        },
        Refusal::UnknownSession { shard },
        Refusal::Sequence {
            shard,
            sequence: 37,
            why: text("it skips one"),
        },
        Refusal::Limit {
            what: text("pool dram:8GiB"),
            asked: 38,
            used: 39,
            limit: 40,
        },
        Refusal::Conflict {
            what: text("table"),
            why: text("another publish"),
        },
        Refusal::StaleIncarnation { node: text("n1") },
        Refusal::Unavailable {
            why: text("no leader"),
        },
        Refusal::Internal { why: text("bug") },
        Refusal::ShardFailed {
            table: table(),
            shard,
            node: text("n1"),
            why: text("no room"),
        },
        Refusal::NotPermitted {
            principal: text("ann"),
            table: table(),
            needs: Level::Write,
            has: Some(Level::Read),
        },
    ]
}
