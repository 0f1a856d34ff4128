//! Control requests that take long enough to be worked on in the background: loads, seals, scans,
//! descriptions.

use mneme_proto::control::{NodeRequest, NodeResponse};
use mneme_proto::ids::{ShardIndex, TableGeneration, TableId};
use mneme_proto::refusal::Refusal;
use tokio::task::block_in_place;

use super::Node;
use crate::limits::SCAN_BYTES_MAX;
use crate::shard::rules::TableRules;
use crate::table::{MutableShard, Source};
use mneme_memory::SealedShard;

/// Keys and rows of a scan, and where to go on.
#[derive(Default)]
struct Page {
    keys: Vec<u64>,
    rows: Vec<u8>,
    next: Option<u64>,
}

impl Page {
    /// Takes rows from `found` until `rows_max`; each comes with the slot after it.
    fn fill<'a>(found: impl Iterator<Item = (u64, u64, &'a [u8])>, rows_max: usize) -> Self {
        let mut page = Self::default();
        let mut cursor = 0;
        for (next, key, row) in found {
            if page.keys.len() == rows_max {
                page.next = Some(cursor);
                break;
            }
            cursor = next;
            page.keys.push(key);
            page.rows.extend_from_slice(row);
        }
        page
    }
}

impl Node {
    /// Works on a control request other than those about sessions.
    ///
    /// # Errors
    /// The request's refusal.
    pub async fn control(&self, request: NodeRequest) -> Result<NodeResponse, Refusal> {
        match request {
            NodeRequest::BeginLoad {
                table,
                generation,
                shards,
            } => self.begin_load(table, generation, shards).await,
            NodeRequest::FinishLoad { table, generation } => {
                self.finish_load(table, generation).await
            }
            NodeRequest::AbandonLoad { table, generation } => {
                self.abandon_load(table, generation).await
            }
            NodeRequest::SealShards { table, generation } => {
                self.seal_shards(table, generation).await
            }
            NodeRequest::Scan {
                table,
                shard,
                generation,
                cursor,
                rows_max,
            } => self.scan(table, shard, generation, cursor, rows_max).await,
            NodeRequest::Describe { table } => self.describe(table).await,
            NodeRequest::OpenSessions { .. } | NodeRequest::VoidSequence { .. } => {
                Err(Refusal::Internal {
                    why: "sessions belong to the serving thread".into(),
                })
            }
        }
    }

    async fn scan(
        &self,
        table: TableId,
        shard: ShardIndex,
        generation: TableGeneration,
        cursor: u64,
        rows_max: u32,
    ) -> Result<NodeResponse, Refusal> {
        let known = self
            .engine
            .tables
            .get(table)
            .filter(|t| t.knows_generation(generation));
        let table = match known {
            Some(table) => table,
            None => self.refresh(table).await?,
        };
        let rules = &*table.rules;
        let bytes = rules.row_bytes + size_of::<u64>();
        let rows_max = (rows_max as usize).clamp(1, (SCAN_BYTES_MAX / bytes).max(1));
        let epoch = table
            .places
            .get(shard.0 as usize)
            .map(|p| p.epoch)
            .unwrap_or_default();
        let page = match table.source(generation, shard.0, epoch)? {
            Source::Mutable(mutable) => {
                self.engine.moment().check_lease()?;
                block_in_place(|| scan_mutable(rules, shard, mutable, cursor, rows_max))
            }
            Source::Sealed(sealed) => scan_sealed(rules, shard, sealed, cursor, rows_max),
        };
        Ok(NodeResponse::Rows {
            keys: page.keys,
            rows: page.rows,
            next: page.next,
        })
    }

    async fn describe(&self, table: TableId) -> Result<NodeResponse, Refusal> {
        let table = self.table(table).await?;
        let medium = self.medium();
        let mutable = table
            .shards()
            .map(|(s, m)| (s, medium.mutable(m.core().rows())));
        let sealed = table
            .sealed
            .get(&table.generation)
            .into_iter()
            .flat_map(|set| set.iter());
        let sealed = sealed.map(|(shard, sealed)| (*shard, medium.sealed(sealed)));
        Ok(NodeResponse::Shards(mutable.chain(sealed).collect()))
    }
}

/// The key of a row as clients name it.
fn key_of(rules: &TableRules, shard: ShardIndex, place: u64) -> u64 {
    match &rules.dense {
        Some(layout) => layout.row_of(shard.0, place),
        None => place,
    }
}

fn scan_mutable(
    rules: &TableRules,
    shard: ShardIndex,
    mutable: &MutableShard,
    cursor: u64,
    rows_max: usize,
) -> Page {
    let core = mutable.core();
    let mut found = core.rows().iter_from(cursor);
    let next = std::iter::from_fn(|| {
        let (place, row, _) = found.next()?;
        Some((found.next_slot(), key_of(rules, shard, place), row))
    });
    Page::fill(next, rows_max)
}

fn scan_sealed(
    rules: &TableRules,
    shard: ShardIndex,
    sealed: &SealedShard,
    cursor: u64,
    rows_max: usize,
) -> Page {
    let found = sealed.iter_from(cursor).zip(cursor + 1..);
    let found = found.map(|((place, row), next)| (next, key_of(rules, shard, place), row));
    Page::fill(found, rows_max)
}
