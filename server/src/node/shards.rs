//! Making shards: mutable ones empty, sealed ones from their files.

use std::sync::Arc;

use mneme_memory::mutable::create_filled;
use mneme_memory::{
    LoadAs, MutableKind, MutableSpec, PlaneLayout, Pool, PoolError, SealedFileError, SealedShard,
    SealedSpec,
};
use mneme_proto::ids::{ClusterId, Epoch, ShardIndex};
use mneme_proto::refusal::Refusal;
use mneme_proto::schema::TableSpec;

use super::data::SealedFile;
use super::descriptor::Names;
use crate::shard::Shard;
use crate::shard::rules::TableRules;
use crate::table::MutableShard;

/// What all shards of a table are made with.
pub(super) struct Maker<'a> {
    pub(super) cluster: ClusterId,
    pub(super) pools: &'a [Arc<Pool>],
    pub(super) spec: &'a TableSpec,
    pub(super) rules: &'a Arc<TableRules>,
}

/// The pool with the most room.
pub(super) fn roomiest(pools: &[Arc<Pool>]) -> &Arc<Pool> {
    let free = |pool: &&Arc<Pool>| pool.spec().limit_bytes.saturating_sub(pool.used_bytes());
    pools
        .iter()
        .max_by_key(free)
        .expect("a node has at least one pool")
}

impl Maker<'_> {
    /// An empty mutable shard; a dense one's rows are the initializer's.
    pub(super) fn mutable(
        &self,
        shard: ShardIndex,
        epoch: Epoch,
        names: &mut Names,
    ) -> Result<Arc<MutableShard>, PoolError> {
        let rules = self.rules;
        let (region, generation) = names.draw();
        let (state_region, _) = names.draw();
        let spec = MutableSpec {
            cluster: self.cluster,
            shard: rules.shard_id(shard.0),
            region,
            state_region,
            generation,
            kind: match &rules.dense {
                Some(layout) => MutableKind::Dense {
                    rows: layout.rows_of_shard(shard.0),
                },
                None => MutableKind::Hashed,
            },
            row_bytes: rules.row_bytes as u32,
            state_bytes: rules.state_bytes as u32,
            seed: rand::random(),
            planes: PlaneLayout::of_schema(&self.spec.schema),
        };
        let mut words = Vec::new();
        let fill = |local, row: &mut [u8], state: &mut [u8]| {
            let layout = rules
                .dense
                .as_ref()
                .expect("only a dense shard's rows are filled");
            rules.fresh(layout.row_of(shard.0, local), row, state, &mut words);
        };
        let (mut writer, _) = create_filled(roomiest(self.pools), &spec, fill)?;
        writer.set_primary_since(epoch);
        let core = Shard::new(Arc::clone(rules), shard.0, epoch, writer);
        Ok(Arc::new(MutableShard::new(core, generation)))
    }

    /// What a sealed shard of `rows` rows is made of.
    pub(super) fn sealed_spec(
        &self,
        shard: ShardIndex,
        rows: u64,
        names: &mut Names,
    ) -> SealedSpec {
        let (region, generation) = names.draw();
        SealedSpec {
            cluster: self.cluster,
            shard: self.rules.shard_id(shard.0),
            region,
            generation,
            row_bytes: self.rules.row_bytes as u32,
            rows,
            keyed: self.rules.dense.is_none(),
            seed: rand::random(),
            planes: PlaneLayout::of_schema(&self.spec.schema),
        }
    }

    /// A sealed shard from its file, whose bytes are checked.
    pub(super) fn load(
        &self,
        shard: ShardIndex,
        file: &SealedFile,
        names: &mut Names,
    ) -> Result<Arc<SealedShard>, SealedFileError> {
        let (region, generation) = names.draw();
        let load = LoadAs {
            cluster: self.cluster,
            shard: self.rules.shard_id(shard.0),
            region,
            generation,
            seed: rand::random(),
        };
        SealedShard::load(&file.path, roomiest(self.pools), &load).map(Arc::new)
    }

    /// Checks that a load names as many rows as a dense shard has.
    pub(super) fn check_rows(&self, shard: ShardIndex, rows: u64) -> Result<(), Refusal> {
        let Some(layout) = &self.rules.dense else {
            return Ok(());
        };
        let wanted = layout.rows_of_shard(shard.0);
        if rows == wanted {
            return Ok(());
        }
        Err(Refusal::Shape {
            what: format!("the load of shard {shard}"),
            found: format!("{rows} rows"),
            wanted: format!("{wanted} rows"),
        })
    }
}
