//! What a node holds of one table: its shards, its records, what it told the catalogue. Changed
//! on the background only, one change of a table at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mneme_memory::SealedShard;
use mneme_proto::control::{Held as HeldContents, HeldShard, ShardReport};
use mneme_proto::ids::{Revision, ShardId, ShardIndex, TableGeneration, TableId};

use super::data::{FoundTable, MutableRecords, SealedFile};
use crate::table::{MutableShard, SealedSet};

/// One table on this node.
#[derive(Debug, Default)]
pub(super) struct HeldTable {
    /// Revision of the newest map that was followed.
    pub(super) revision: Revision,
    /// Whether its spec stands in the data directory.
    pub(super) recorded: bool,
    /// Its mutable shards as recorded.
    pub(super) records: MutableRecords,
    /// Its mutable shards.
    pub(super) mutable: BTreeMap<ShardIndex, Arc<MutableShard>>,
    /// Sealed files found at start that are not in memory yet.
    pub(super) files: BTreeMap<TableGeneration, BTreeMap<ShardIndex, SealedFile>>,
    /// Sealed generations in memory, published or not.
    pub(super) sealed: BTreeMap<TableGeneration, SealedSet>,
    /// Sealed generations that wait to be published.
    pub(super) staged: BTreeSet<TableGeneration>,
    /// What the catalogue last acknowledged.
    pub(super) reported: Vec<ShardReport>,
}

impl HeldTable {
    /// A table as an earlier life left it.
    pub(super) fn found(found: &FoundTable) -> Self {
        Self {
            recorded: true,
            records: found.mutable.clone(),
            files: found.sealed.clone(),
            ..Self::default()
        }
    }

    /// What a registration says of it.
    pub(super) fn contents(&self, table: TableId) -> Vec<HeldShard> {
        let shard = |shard: &ShardIndex| ShardId {
            table,
            shard: *shard,
        };
        let untouched = self.records.iter().filter(|(_, record)| !record.touched);
        let untouched = untouched.map(|(s, _)| HeldShard {
            shard: shard(s),
            held: HeldContents::Untouched,
        });
        let sealed = self.files.iter().flat_map(|(generation, files)| {
            files.iter().map(move |(s, file)| HeldShard {
                shard: shard(s),
                held: HeldContents::Sealed {
                    generation: *generation,
                    digest: file.digest,
                },
            })
        });
        untouched.chain(sealed).collect()
    }

    /// Puts a sealed shard beside the others of its generation.
    pub(super) fn add_sealed(
        &mut self,
        generation: TableGeneration,
        shard: ShardIndex,
        sealed: Arc<SealedShard>,
    ) {
        self.sealed
            .entry(generation)
            .or_default()
            .insert(shard, sealed);
    }
}
