//! What readers are shown: table maps and summaries.

use std::collections::BTreeMap;

use mneme_proto::control::TableSummary;
use mneme_proto::ids::NodeId;
use mneme_proto::map::{NodeEntry, ReplicaEntry, ReplicaRole, ShardEntry, TableMap};

use crate::state::State;
use crate::state::record::{ReplicaRecord, TableRecord};

impl State {
    /// A table's map at the current revision: its nodes, shards and current regions. Its grants are
    /// left out; only nodes are told them.
    #[must_use]
    pub fn map(&self, table: &TableRecord) -> TableMap {
        let mut nodes: Vec<NodeEntry> = Vec::new();
        let mut indexes: BTreeMap<NodeId, u32> = BTreeMap::new();
        let mut index_of = |replica: &ReplicaRecord| {
            *indexes.entry(replica.node).or_insert_with(|| {
                nodes.push(self.nodes[&replica.node].entry.clone());
                nodes.len() as u32 - 1
            })
        };
        let replica_entry = |(at, replica): (usize, &ReplicaRecord), node: u32| ReplicaEntry {
            node,
            incarnation: replica.incarnation,
            role: if at == 0 {
                ReplicaRole::Primary
            } else {
                ReplicaRole::Backup
            },
            region: if replica.lost {
                None
            } else {
                replica.region(table.generation).cloned()
            },
            lost: replica.lost,
        };
        let shards = table
            .shards
            .iter()
            .map(|shard| ShardEntry {
                epoch: shard.epoch,
                replicas: shard
                    .replicas
                    .iter()
                    .enumerate()
                    .map(|(at, replica)| replica_entry((at, replica), index_of(replica)))
                    .collect(),
            })
            .collect();
        TableMap {
            cluster: self.cluster.unwrap_or_default(),
            table: table.id,
            revision: self.revision,
            spec: table.spec.clone(),
            state: table.state(),
            generation: table.generation,
            previous: table.previous,
            nodes,
            shards,
            grants: Vec::new(),
        }
    }

    /// One line per table of those that are `shown`, by id.
    #[must_use]
    pub fn summaries(&self, shown: impl Fn(&TableRecord) -> bool) -> Vec<TableSummary> {
        self.tables
            .values()
            .filter(|table| shown(table))
            .map(|table| {
                let (rows, bytes) = table.size();
                TableSummary {
                    table: table.id,
                    spec: table.spec.clone(),
                    state: table.state(),
                    generation: table.generation,
                    rows,
                    bytes,
                }
            })
            .collect()
    }
}
