//! Loads: sealed generations on their way into a node, from a client's rows or from the table's
//! own mutable shards. A load that its client forgets, or whose node restarts, is forgotten.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use mneme_memory::{SealError, SealedBuilder, SealedShard};
use mneme_proto::control::{NodeResponse, SealedReplica, ShardReport, ShardStatus};
use mneme_proto::frame::{FrameError, LoadHeader, LoadView};
use mneme_proto::ids::{ShardIndex, TableGeneration, TableId};
use mneme_proto::refusal::Refusal;
use tokio::task::block_in_place;
use zerocopy::FromBytes;

use super::shards::{Maker, roomiest};
use super::{Node, internal};
use crate::clock::now_ms;
use crate::limits::{LOAD_IDLE, LOADS_MAX, ROWS_PER_COPY};
use crate::shard::{Gate, refusal_of};
use crate::table::{MutableShard, SealedSet, Table};

/// One load. Its shards are filled side by side.
#[derive(Debug)]
struct Load {
    row_bytes: u32,
    used_ms: AtomicU64,
    shards: BTreeMap<ShardIndex, Mutex<SealedBuilder>>,
}

type Key = (TableId, TableGeneration);

/// The loads of a node, and the seals that wait to be published.
#[derive(Debug, Default)]
pub(super) struct Loads {
    open: Mutex<BTreeMap<Key, Arc<Load>>>,
    /// Seals that keep a table from taking pushes until they are published or given up, by the
    /// time they were begun. A finished load keeps nobody and waits for as long as it takes.
    seals: Mutex<BTreeMap<Key, u64>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Loads {
    /// Forgets all of a table.
    pub(super) fn forget_table(&self, table: TableId) {
        lock(&self.open).retain(|(of, _), _| *of != table);
        lock(&self.seals).retain(|(of, _), _| *of != table);
    }

    fn get(&self, key: Key) -> Result<Arc<Load>, Refusal> {
        let load = lock(&self.open).get(&key).cloned();
        let load = load.ok_or_else(|| unknown(key))?;
        load.used_ms.store(now_ms(), Ordering::Relaxed);
        Ok(load)
    }

    /// Loads that were left alone for too long, and seals that nobody published.
    fn idle(&self, now_ms: u64) -> Vec<Key> {
        let old = |used: u64| now_ms.saturating_sub(used) > LOAD_IDLE.as_millis() as u64;
        let open = lock(&self.open);
        let open = open
            .iter()
            .filter(|(_, load)| old(load.used_ms.load(Ordering::Relaxed)));
        let open: Vec<Key> = open.map(|(key, _)| *key).collect();
        let seals = lock(&self.seals);
        let seals = seals
            .iter()
            .filter(|(_, used)| old(**used))
            .map(|(key, _)| *key);
        open.into_iter().chain(seals).collect()
    }
}

/// The load that a frame is of, whatever follows.
fn key_of(body: &[u8]) -> Result<Key, Refusal> {
    let (header, _) = LoadHeader::ref_from_prefix(body).map_err(|_| Refusal::Malformed {
        why: format!("malformed load: {} B are less than its header", body.len()),
    })?;
    Ok((
        TableId(header.table.get()),
        TableGeneration(header.generation.get()),
    ))
}

/// The table that a load frame is of.
///
/// # Errors
/// [`Refusal::Malformed`] for less than a header.
pub(crate) fn table_of(body: &[u8]) -> Result<TableId, Refusal> {
    key_of(body).map(|(table, _)| table)
}

fn unknown((_, generation): Key) -> Refusal {
    Refusal::Conflict {
        what: format!("the load of generation {generation}"),
        why: "this node does not know it (it restarted, or the load was idle): load again".into(),
    }
}

impl Node {
    /// Takes the memory of a load, all of it or none.
    pub(super) async fn begin_load(
        &self,
        table: TableId,
        generation: TableGeneration,
        shards: Vec<(ShardIndex, u64)>,
    ) -> Result<NodeResponse, Refusal> {
        let table = self.table(table).await?;
        self.check_load(&table, generation)?;
        let maker = self.maker(&table);
        for (shard, rows) in &shards {
            if !table
                .places
                .get(shard.0 as usize)
                .is_some_and(|place| place.mine)
            {
                return Err(Refusal::NotServed { shard: *shard });
            }
            maker.check_rows(*shard, *rows)?;
        }
        let mut names = self.names(shards.len() as u64).await?;
        let build = |(shard, rows): (ShardIndex, u64)| {
            let spec = maker.sealed_spec(shard, rows, &mut names);
            let builder = SealedBuilder::new(roomiest(&self.pools), &spec);
            builder
                .map(|b| (shard, Mutex::new(b)))
                .map_err(|error| refusal_of(&error))
        };
        let shards = block_in_place(|| shards.into_iter().map(build).collect::<Result<_, _>>())?;
        let load = Load {
            row_bytes: table.rules.row_bytes as u32,
            used_ms: now_ms().into(),
            shards,
        };
        lock(&self.loads.open).insert((table.id, generation), Arc::new(load));
        Ok(NodeResponse::Done)
    }

    fn check_load(&self, table: &Table, generation: TableGeneration) -> Result<(), Refusal> {
        if generation.0 == 0 || table.sealed.contains_key(&generation) {
            return Err(Refusal::Conflict {
                what: format!("the load of generation {generation}"),
                why: "it is published: ask the catalogue for another".into(),
            });
        }
        let open = lock(&self.loads.open);
        if open.len() >= LOADS_MAX && !open.contains_key(&(table.id, generation)) {
            return Err(Refusal::Limit {
                what: "loads under way on the node".into(),
                asked: 1,
                used: open.len() as u64,
                limit: LOADS_MAX as u64,
            });
        }
        Ok(())
    }

    /// Puts the rows of a load frame where they belong.
    ///
    /// # Errors
    /// [`Refusal::Malformed`], [`Refusal::Conflict`] for a load that is not known,
    /// [`Refusal::Shape`]; none of the frame's rows is taken.
    pub async fn load_rows(&self, body: Bytes) -> Result<(), Refusal> {
        let malformed = |error: &FrameError| Refusal::Malformed {
            why: error.to_string(),
        };
        let load = self.loads.get(key_of(&body)?)?;
        let view = LoadView::parse(&body, load.row_bytes).map_err(|e| malformed(&e))?;
        let shard = ShardIndex(view.header.shard.get());
        let builder = load
            .shards
            .get(&shard)
            .ok_or(Refusal::NotServed { shard })?;
        block_in_place(|| lock(builder).put(view.header.first.get(), view.keys, view.rows))
            .map_err(|error| seal_refused(&error))
    }

    /// Checks, seals and persists a load.
    pub(super) async fn finish_load(
        &self,
        table: TableId,
        generation: TableGeneration,
    ) -> Result<NodeResponse, Refusal> {
        let table = self.table(table).await?;
        let key = (table.id, generation);
        if let Some(again) = self.finished_replicas(&table, generation).await {
            return Ok(NodeResponse::Sealed(again));
        }
        let load = self.loads.get(key)?;
        for builder in load.shards.values() {
            // Asked first, so that a load that misses rows can go on.
            lock(builder)
                .check_complete()
                .map_err(|error| seal_refused(&error))?;
        }
        drop(load);
        let load = lock(&self.loads.open)
            .remove(&key)
            .ok_or_else(|| unknown(key))?;
        let load = Arc::try_unwrap(load).map_err(|_| Refusal::Conflict {
            what: format!("the load of generation {generation}"),
            why: "rows were still arriving when it was finished: load again".into(),
        })?;
        let finish = |(shard, builder): (ShardIndex, Mutex<SealedBuilder>)| {
            let builder = builder.into_inner().unwrap_or_else(PoisonError::into_inner);
            let sealed = builder.finish().map_err(|error| seal_refused(&error))?;
            Ok::<_, Refusal>((shard, Arc::new(sealed)))
        };
        let sealed = block_in_place(|| {
            load.shards
                .into_iter()
                .map(finish)
                .collect::<Result<_, _>>()
        })?;
        self.stage(&table, generation, sealed).await
    }

    /// Copies the mutable shards of this node into a sealed generation. Pushes are refused until
    /// it is published or given up.
    pub(super) async fn seal_shards(
        &self,
        table: TableId,
        generation: TableGeneration,
    ) -> Result<NodeResponse, Refusal> {
        let table = self.table(table).await?;
        if let Some(again) = self.finished_replicas(&table, generation).await {
            return Ok(NodeResponse::Sealed(again));
        }
        self.check_load(&table, generation)?;
        table.check_mutable()?;
        if table.places.iter().any(|place| place.lost) {
            return Err(table.lost());
        }
        let mut names = self.names(table.places.len() as u64).await?;
        lock(&self.loads.seals).insert((table.id, generation), now_ms());
        table
            .shards()
            .for_each(|(_, shard)| shard.core().set_gate(Gate::Sealing));
        let maker = self.maker(&table);
        let sealed = block_in_place(|| {
            let seal = |(index, shard): (ShardIndex, &Arc<MutableShard>)| {
                let rows = shard.core().rows().len();
                let spec = maker.sealed_spec(index, rows, &mut names);
                let mut builder = SealedBuilder::new(roomiest(&self.pools), &spec)
                    .map_err(|error| refusal_of(&error))?;
                copy_rows(shard, spec.keyed, &mut builder)?;
                let sealed = builder.finish().map_err(|error| seal_refused(&error))?;
                Ok::<_, Refusal>((index, Arc::new(sealed)))
            };
            table
                .shards()
                .map(seal)
                .collect::<Result<BTreeMap<_, _>, Refusal>>()
        });
        let staged = match sealed {
            Ok(sealed) => self.stage(&table, generation, sealed).await,
            Err(refusal) => Err(refusal),
        };
        if staged.is_err() {
            self.abandon_load(table.id, generation).await?;
        }
        staged
    }

    /// Persists a finished generation, reports it and answers what `publish` needs.
    async fn stage(
        &self,
        table: &Table,
        generation: TableGeneration,
        sealed: BTreeMap<ShardIndex, Arc<SealedShard>>,
    ) -> Result<NodeResponse, Refusal> {
        let cell = self.held(table.id);
        let mut held = cell.lock().await;
        let saved = block_in_place(|| {
            sealed.iter().try_for_each(|(shard, sealed)| {
                let digest = sealed.digests().combined;
                let path = self.data.sealed_path(table.id, generation, *shard, digest);
                sealed.save(&path.map_err(internal)?).map_err(internal)
            })
        });
        if let Err(refusal) = saved {
            self.drop_sealed_files(table.id, generation);
            return Err(refusal);
        }
        held.staged.insert(generation);
        held.sealed.insert(generation, sealed);
        let replicas = self.replicas(&held.sealed[&generation]);
        let report = |replica: &SealedReplica| ShardReport {
            shard: table.rules.shard_id(replica.shard.0),
            epoch: table.places[replica.shard.0 as usize].epoch,
            generation,
            status: ShardStatus::Serving(replica.region.clone()),
        };
        self.send_reports(replicas.iter().map(report).collect())
            .await?;
        Ok(NodeResponse::Sealed(replicas))
    }

    /// The replicas of a generation that was finished before: a repeat is answered the same.
    async fn finished_replicas(
        &self,
        table: &Table,
        generation: TableGeneration,
    ) -> Option<Vec<SealedReplica>> {
        let cell = self.held(table.id);
        let held = cell.lock().await;
        held.sealed.get(&generation).map(|set| self.replicas(set))
    }

    fn replicas(&self, set: &SealedSet) -> Vec<SealedReplica> {
        let medium = self.medium();
        let replica = |(shard, sealed): (&ShardIndex, &Arc<SealedShard>)| SealedReplica {
            shard: *shard,
            node: self.id.node,
            incarnation: self.id.incarnation,
            region: medium.sealed(sealed),
        };
        set.iter().map(replica).collect()
    }

    /// Forgets a load or a seal that was not published. The catalogue hears of it first, so that
    /// it can no longer be published when its rows go, or when pushes are let in again (I-8).
    pub(super) async fn abandon_load(
        &self,
        table: TableId,
        generation: TableGeneration,
    ) -> Result<NodeResponse, Refusal> {
        let key = (table, generation);
        lock(&self.loads.open).remove(&key);
        let table = self.refresh(table).await?;
        let cell = self.held(table.id);
        let mut held = cell.lock().await;
        if table.sealed.contains_key(&generation) {
            return Ok(NodeResponse::Done);
        }
        let staged = held.sealed.get(&generation);
        let shards: Vec<ShardIndex> = staged
            .into_iter()
            .flat_map(|set| set.keys().copied())
            .collect();
        let report = |shard: ShardIndex| ShardReport {
            shard: table.rules.shard_id(shard.0),
            epoch: table.places[shard.0 as usize].epoch,
            generation,
            status: ShardStatus::Failed("its load was given up".into()),
        };
        if !shards.is_empty() {
            self.send_reports(shards.into_iter().map(report).collect())
                .await?;
        }
        if held.staged.remove(&generation) {
            held.sealed.remove(&generation);
            block_in_place(|| self.drop_sealed_files(table.id, generation));
        }
        if lock(&self.loads.seals).remove(&key).is_some() {
            held.mutable
                .values()
                .for_each(|shard| shard.core().set_gate(Gate::Open));
        }
        Ok(NodeResponse::Done)
    }

    /// Forgets what was left alone for too long. What was published meanwhile is only taken off
    /// the list.
    pub(super) async fn forget_idle_loads(&self) {
        for (table, generation) in self.loads.idle(now_ms()) {
            let published = self
                .engine
                .tables
                .get(table)
                .is_some_and(|t| t.sealed.contains_key(&generation));
            if published {
                lock(&self.loads.seals).remove(&(table, generation));
                continue;
            }
            tracing::warn!(%table, %generation, "an idle load is forgotten");
            if let Err(refusal) = self.abandon_load(table, generation).await {
                tracing::warn!(%table, %generation, %refusal, "an idle load could not be dropped");
            }
        }
    }

    fn maker<'a>(&'a self, table: &'a Table) -> Maker<'a> {
        Maker {
            cluster: self.id.cluster,
            pools: &self.pools,
            spec: &table.spec,
            rules: &table.rules,
        }
    }
}

/// Copies a shard that takes no pushes any more, a piece at a time, so that nobody waits long for
/// its lock.
fn copy_rows(
    shard: &MutableShard,
    keyed: bool,
    builder: &mut SealedBuilder,
) -> Result<(), Refusal> {
    let (mut cursor, mut first) = (0, 0);
    loop {
        let core = shard.core();
        let mut rows = core.rows().iter_from(cursor);
        let (mut keys, mut bytes) = (Vec::new(), Vec::new());
        for (key, row, _) in rows.by_ref().take(ROWS_PER_COPY) {
            keys.push(key);
            bytes.extend_from_slice(row);
        }
        cursor = rows.next_slot();
        drop(core);
        let count = keys.len() as u64;
        if count == 0 {
            return Ok(());
        }
        let keys = if keyed { keys } else { Vec::new() };
        builder
            .put(first, &keys, &bytes)
            .map_err(|error| seal_refused(&error))?;
        first += count;
    }
}

fn seal_refused(error: &SealError) -> Refusal {
    match error {
        SealError::OutOfRange { .. } | SealError::Shape { .. } => Refusal::Malformed {
            why: error.to_string(),
        },
        SealError::Incomplete { .. } | SealError::DuplicateKey { .. } => Refusal::Conflict {
            what: "the load".into(),
            why: error.to_string(),
        },
    }
}
