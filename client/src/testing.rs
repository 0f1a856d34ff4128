//! Maps for unit tests.

use mneme_proto::codec;
use mneme_proto::ids::{ClusterId, Epoch, Incarnation, NodeId, Revision, TableGeneration, TableId};
use mneme_proto::map::{NodeEntry, ReplicaEntry, ReplicaRole, ShardEntry, TableMap, TableState};
use mneme_proto::schema::{Dtype, Optimizer, RowSchema, TableKind, TableSpec};

use crate::router::Router;

/// A table of f32 rows.
pub(crate) fn spec(kind: TableKind, dim: u32, shards: u32) -> TableSpec {
    TableSpec {
        shards,
        optimizer: Optimizer::Sgd {
            lr: 0.5,
            momentum: 0.0,
            weight_decay: 0.0,
        },
        tenant: "default".into(),
        ..TableSpec::new("t", kind, RowSchema::single(Dtype::F32, dim))
    }
}

/// A map of this table over `nodes` nodes, shards dealt round.
pub(crate) fn map(spec: TableSpec, nodes: u32) -> TableMap {
    let node = |n: u32| NodeEntry {
        node: NodeId(u64::from(n) + 1),
        incarnation: Incarnation(10 + u64::from(n)),
        name: format!("n{n}"),
        address: format!("127.0.0.1:{}", 7500 + n),
        domain: String::new(),
    };
    let shard = |s: u32| ShardEntry {
        epoch: Epoch(5),
        replicas: vec![ReplicaEntry {
            node: s % nodes,
            incarnation: Incarnation(10 + u64::from(s % nodes)),
            role: ReplicaRole::Primary,
            region: None,
            lost: false,
        }],
    };
    TableMap {
        cluster: ClusterId(1),
        table: TableId(3),
        revision: Revision(7),
        state: TableState::Mutable,
        generation: TableGeneration(0),
        previous: TableGeneration(0),
        nodes: (0..nodes).map(node).collect(),
        shards: (0..spec.shards).map(shard).collect(),
        grants: Vec::new(),
        spec,
    }
}

/// The router of such a map.
pub(crate) fn router(kind: TableKind, dim: u32, shards: u32, nodes: u32) -> Router {
    Router::new(&codec::encode(&map(spec(kind, dim, shards), nodes))).expect("a good map")
}
