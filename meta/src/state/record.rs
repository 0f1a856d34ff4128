//! What the catalogue remembers: nodes, tables, shards, replicas and their contents.
//!
//! Plain data with the questions it can answer by itself; what changes it is in `nodes`,
//! `tables`, `report` and `publish`.

use std::collections::{BTreeMap, BTreeSet};

use mneme_proto::control::PoolReport;
use mneme_proto::grant::{Grant, Level};
use mneme_proto::ids::{Epoch, Generation, Incarnation, NodeId, TableGeneration, TableId};
use mneme_proto::map::{Descriptor, NodeEntry, TableState};
use mneme_proto::schema::TableSpec;
use serde::{Deserialize, Serialize};

use crate::state::stored_spec;

/// The generation under which a mutable table's contents stand.
pub(super) const MUTABLE: TableGeneration = TableGeneration(0);

/// A storage node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Id, incarnation, name (which is also its principal), address, domain.
    pub entry: NodeEntry,
    /// Its memory as it registered it.
    pub pools: Vec<PoolReport>,
    /// The first region generation that may be this incarnation's: older ones were given to
    /// others, or to earlier lives (I-6).
    pub generations_from: Generation,
}

/// What one replica holds of one table generation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Contents {
    /// The region as its node last reported it; none between a node's restart and its report.
    pub region: Option<Descriptor>,
    /// The digest that was published; 0 for mutable contents.
    pub digest: u64,
}

/// A shard's copy on one node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReplicaRecord {
    /// The node.
    pub node: NodeId,
    /// The life of the node that is a member of the set.
    pub incarnation: Incarnation,
    /// The table's contents went with an earlier incarnation, or cannot be served.
    pub lost: bool,
    /// Why the node could not make the shard of a table being created.
    pub failed: Option<String>,
    /// By table generation: 0 for mutable rows, the published one, the one before, and loads.
    pub contents: BTreeMap<TableGeneration, Contents>,
}

/// A shard with its replica set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShardRecord {
    /// Epoch of the set (I-3).
    pub epoch: Epoch,
    /// Primary first.
    pub replicas: Vec<ReplicaRecord>,
}

/// A table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TableRecord {
    /// Its id.
    pub id: TableId,
    /// What it is, everything effective.
    #[serde(with = "stored_spec")]
    pub spec: TableSpec,
    /// Every shard of the mutable table has served once since creation or reset.
    pub made: bool,
    /// Made without rows: it serves nothing until a generation is published, or it is reset.
    pub loading: bool,
    /// The published generation; 0 while mutable.
    pub generation: TableGeneration,
    /// The generation before, if all of it is still held; else 0.
    pub previous: TableGeneration,
    /// The last table generation allocated; never goes back (I-6).
    pub allocated: TableGeneration,
    /// Allocated, neither published nor given up.
    pub loads: BTreeSet<TableGeneration>,
    /// By index.
    pub shards: Vec<ShardRecord>,
    /// What clients may do with it, by their names. They go with the table.
    pub grants: BTreeMap<String, Level>,
}

impl ReplicaRecord {
    pub(super) fn new(node: NodeId, incarnation: Incarnation) -> Self {
        Self {
            node,
            incarnation,
            lost: false,
            failed: None,
            contents: BTreeMap::new(),
        }
    }

    /// The region of a generation, if its node reported it.
    #[must_use]
    pub fn region(&self, generation: TableGeneration) -> Option<&Descriptor> {
        self.contents.get(&generation)?.region.as_ref()
    }
}

impl ShardRecord {
    pub(super) fn replica_mut(&mut self, node: NodeId) -> Option<&mut ReplicaRecord> {
        self.replicas.iter_mut().find(|r| r.node == node)
    }
}

impl TableRecord {
    /// What its rows are doing.
    #[must_use]
    pub fn state(&self) -> TableState {
        if self.replicas().any(|r| r.lost) {
            TableState::Lost
        } else if self.generation != MUTABLE {
            TableState::Sealed
        } else if self.loading {
            TableState::Loading
        } else if self.made {
            TableState::Mutable
        } else {
            TableState::Creating
        }
    }

    /// Its grants, by principal.
    #[must_use]
    pub fn grants(&self) -> Vec<Grant> {
        let grant = |(principal, level): (&String, &Level)| Grant {
            principal: principal.clone(),
            level: *level,
        };
        self.grants.iter().map(grant).collect()
    }

    /// All replicas of all shards.
    pub fn replicas(&self) -> impl Iterator<Item = &ReplicaRecord> {
        self.shards.iter().flat_map(|s| &s.replicas)
    }

    pub(super) fn replicas_mut(&mut self) -> impl Iterator<Item = &mut ReplicaRecord> {
        self.shards.iter_mut().flat_map(|s| &mut s.replicas)
    }

    /// Whether a replica of it is on `node`.
    #[must_use]
    pub fn is_on(&self, node: NodeId) -> bool {
        self.replicas().any(|r| r.node == node)
    }

    /// Replicas whose current region is reported, and all replicas.
    #[must_use]
    pub fn serving(&self) -> (usize, usize) {
        self.replicas().fold((0, 0), |(serving, all), replica| {
            let serves = !replica.lost && replica.region(self.generation).is_some();
            (serving + usize::from(serves), all + 1)
        })
    }

    /// The first shard that its node could not make: index, node, reason.
    #[must_use]
    pub fn failure(&self) -> Option<(u32, NodeId, &str)> {
        self.shards.iter().zip(0..).find_map(|(shard, index)| {
            shard.replicas.iter().find_map(|replica| {
                let why = replica.failed.as_deref()?;
                Some((index, replica.node, why))
            })
        })
    }

    /// Rows and bytes as last reported, of primaries.
    #[must_use]
    pub fn size(&self) -> (u64, u64) {
        let primaries = self.shards.iter().filter_map(|s| s.replicas.first());
        primaries
            .filter_map(|r| r.region(self.generation))
            .fold((0, 0), |(rows, bytes), region| {
                (rows + region.rows, bytes + region.bytes)
            })
    }

    /// Forgets the generation that `rollback` would go back to.
    pub(super) fn forget_previous(&mut self) {
        let previous = std::mem::take(&mut self.previous);
        if previous != MUTABLE {
            self.replicas_mut().for_each(|r| {
                r.contents.remove(&previous);
            });
        }
    }

    /// Gives a load up: it can no longer be published.
    pub(super) fn forget_load(&mut self, generation: TableGeneration) {
        self.loads.remove(&generation);
        self.replicas_mut().for_each(|r| {
            r.contents.remove(&generation);
        });
    }
}
