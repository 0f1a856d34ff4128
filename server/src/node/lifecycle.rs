//! A node's life with the catalogue: registration, heartbeats, watching, following.

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use mneme_memory::PoolError;
use mneme_net::catalogue::{CatalogueError, CatalogueLink};
use mneme_proto::codec;
use mneme_proto::control::{
    CatalogueRequest, CatalogueResponse, Change, NodeRegistration, PoolReport, TableRef,
};
use mneme_proto::ids::{ClusterId, Generation, Incarnation, NodeId, Revision, TableId};
use mneme_proto::map::{TableMap, Tier};
use mneme_proto::refusal::Refusal;
use rustc_hash::FxHashSet;
use tokio::task::block_in_place;
use tokio::time::MissedTickBehavior;

use super::descriptor::Names;
use super::reconcile::unexpected;
use super::{Node, NodeError, internal};
use crate::clock::now_ms;
use crate::limits::{
    CATALOGUE_DEADLINE, GENERATIONS_PER_BLOCK, HEARTBEAT_INTERVAL, INDEX_STEPS_AT_ONCE,
    NODE_LEASE_HELD, REFRESH_INTERVAL, REGISTER_DEADLINE, RETRY_PAUSE, TICK_INTERVAL, WATCH_WAIT,
};
use crate::table::Table;

/// A look at the catalogue for a table that a request named.
#[derive(Debug)]
pub(super) struct Look {
    begun: Instant,
    found: Result<Arc<Table>, Refusal>,
}

pub(super) type LookCell = Arc<tokio::sync::Mutex<Option<Look>>>;

impl Look {
    fn is_recent(&self) -> bool {
        self.begun.elapsed() < REFRESH_INTERVAL
    }
}

/// Who this process is in the cluster.
#[derive(Debug, Clone, Copy)]
pub(super) struct Identified {
    pub(super) cluster: ClusterId,
    pub(super) node: NodeId,
    pub(super) incarnation: Incarnation,
}

/// The cluster behind the catalogue.
pub(super) async fn cluster_of(catalogue: &CatalogueLink) -> Result<ClusterId, NodeError> {
    let deadline = Instant::now() + REGISTER_DEADLINE;
    match catalogue.ask(CatalogueRequest::Hello, deadline).await? {
        CatalogueResponse::Hello { cluster, .. } => Ok(cluster),
        other => Err(unexpected(&other).into()),
    }
}

/// Enters the cluster with a new incarnation.
pub(super) async fn register(
    catalogue: &CatalogueLink,
    registration: NodeRegistration,
) -> Result<(Identified, Names), NodeError> {
    let deadline = Instant::now() + REGISTER_DEADLINE;
    match catalogue
        .ask(CatalogueRequest::Register(registration), deadline)
        .await?
    {
        CatalogueResponse::Registered {
            cluster,
            node,
            incarnation,
            first_generation,
            generations,
            ..
        } => {
            let id = Identified {
                cluster,
                node,
                incarnation,
            };
            Ok((id, Names::new(first_generation, generations)))
        }
        other => Err(unexpected(&other).into()),
    }
}

impl Node {
    /// What the node says of its memory.
    pub(super) fn pool_reports(&self) -> Vec<PoolReport> {
        pool_reports(&self.pools)
    }

    /// Asks the catalogue, within the usual deadline.
    pub(super) async fn ask(
        &self,
        request: CatalogueRequest,
    ) -> Result<CatalogueResponse, Refusal> {
        let deadline = Instant::now() + CATALOGUE_DEADLINE;
        self.catalogue
            .ask(request, deadline)
            .await
            .map_err(|error| self.asked_in_vain(error))
    }

    fn asked_in_vain(&self, error: CatalogueError) -> Refusal {
        match error {
            CatalogueError::Refused(refusal) => {
                if matches!(refusal, Refusal::StaleIncarnation { .. }) {
                    self.stop(NodeError::Refused(refusal.clone()));
                }
                refusal
            }
            other => Refusal::Unavailable {
                why: other.to_string(),
            },
        }
    }

    /// `count` names for regions, from the block or a new one.
    pub(super) async fn names(&self, count: u64) -> Result<Names, Refusal> {
        let mut block = self.block.lock().await;
        if block.left() < count {
            let ask = u32::try_from(count)
                .map_err(internal)?
                .max(GENERATIONS_PER_BLOCK);
            let (node, incarnation) = (self.id.node, self.id.incarnation);
            let request = CatalogueRequest::TakeGenerations {
                node,
                incarnation,
                count: ask,
            };
            match self.ask(request).await? {
                CatalogueResponse::Generations {
                    first: Generation(first),
                    count,
                } => {
                    *block = Names::new(Generation(first), count);
                }
                other => return Err(unexpected(&other)),
            }
            if block.left() < count {
                let why = format!(
                    "{count} region generations were asked, {} came",
                    block.left()
                );
                return Err(Refusal::Internal { why });
            }
        }
        Ok(block.split(count))
    }

    /// Renews the lease until the node stops (DESIGN 10).
    pub(super) async fn heartbeats(self: Arc<Self>) {
        let mut tick = tokio::time::interval(HEARTBEAT_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while self.stopped.borrow().is_none() {
            tick.tick().await;
            let sent_ms = now_ms();
            let beat = CatalogueRequest::Heartbeat {
                node: self.id.node,
                incarnation: self.id.incarnation,
                pools: self.pool_reports(),
            };
            let deadline = Instant::now() + NODE_LEASE_HELD;
            match self.catalogue.ask(beat, deadline).await {
                Ok(CatalogueResponse::Alive { .. }) => self.engine.lease.renewed(sent_ms),
                Ok(other) => tracing::warn!(refusal = %unexpected(&other), "no lease renewal"),
                Err(error) => {
                    let refusal = self.asked_in_vain(error);
                    tracing::warn!(%refusal, "the lease was not renewed");
                }
            }
        }
    }

    /// Follows all tables, then every change, until the node stops. What fails is tried again.
    pub(super) async fn watch(self: Arc<Self>) {
        let mut pause = RETRY_PAUSE[0];
        while self.stopped.borrow().is_none() {
            let from = match self.follow_all().await {
                Ok(revision) => revision,
                Err(refusal) => {
                    tracing::warn!(%refusal, "the catalogue's maps could not be followed yet");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(RETRY_PAUSE[1]);
                    continue;
                }
            };
            self.followed.send_replace(true);
            match self.watch_from(from).await {
                Ok(()) => pause = RETRY_PAUSE[0],
                Err(refusal) => {
                    tracing::warn!(%refusal, "watching the catalogue was interrupted");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(RETRY_PAUSE[1]);
                }
            }
        }
    }

    /// Follows the maps of all tables with a replica here and drops what is not among them.
    async fn follow_all(&self) -> Result<Revision, Refusal> {
        let request = CatalogueRequest::NodeTables { node: self.id.node };
        let (revision, maps) = match self.ask(request).await? {
            CatalogueResponse::Maps { revision, maps } => (revision, maps),
            other => return Err(unexpected(&other)),
        };
        let mut known = FxHashSet::default();
        let mut first_fault = None;
        for map in maps {
            let map: TableMap = codec::decode(&map).map_err(internal)?;
            known.insert(map.table);
            let name = map.spec.name.clone();
            if let Err(refusal) = self.follow(map).await {
                tracing::warn!(table = %name, %refusal, "a table's map could not be followed");
                first_fault.get_or_insert(refusal);
            }
        }
        for table in self.held_tables() {
            if !known.contains(&table) {
                self.forget(table).await;
            }
        }
        first_fault.map_or(Ok(revision), Err)
    }

    /// Follows changes from `from` on; back when the catalogue no longer keeps them.
    async fn watch_from(&self, mut from: Revision) -> Result<(), Refusal> {
        loop {
            let wait_ms = WATCH_WAIT.as_millis() as u32;
            let deadline = Instant::now() + WATCH_WAIT + CATALOGUE_DEADLINE;
            let watch = self
                .catalogue
                .ask(CatalogueRequest::Watch { from, wait_ms }, deadline);
            match watch.await.map_err(|error| self.asked_in_vain(error))? {
                CatalogueResponse::Changes { revision, changes } => {
                    self.follow_changes(&changes).await?;
                    from = revision;
                }
                CatalogueResponse::Compacted { .. } => return Ok(()),
                other => return Err(unexpected(&other)),
            }
        }
    }

    async fn follow_changes(&self, changes: &[Change]) -> Result<(), Refusal> {
        let mut seen = FxHashSet::default();
        for change in changes {
            match change {
                Change::Table(table) if seen.insert(*table) => {
                    match self.fetch(*table).await {
                        // Dropped meanwhile: its own change says so.
                        Ok(_) | Err(Refusal::UnknownTable { .. }) => {}
                        Err(refusal) => return Err(refusal),
                    }
                }
                Change::Dropped(table) => self.forget(*table).await,
                Change::Table(_) | Change::Node(_) => {}
            }
        }
        Ok(())
    }

    /// Fetches a table's map and follows it.
    async fn fetch(&self, table: TableId) -> Result<Arc<Table>, Refusal> {
        let request = CatalogueRequest::GetMap {
            table: TableRef::Id(table),
        };
        match self.ask(request).await {
            Ok(CatalogueResponse::Map(map)) => {
                self.follow(codec::decode(&map).map_err(internal)?).await
            }
            Ok(other) => Err(unexpected(&other)),
            Err(refusal @ Refusal::UnknownTable { .. }) => {
                self.forget(table).await;
                Err(refusal)
            }
            Err(refusal) => Err(refusal),
        }
    }

    /// The table after a look at the catalogue that began after this was asked. Callers share a
    /// look, and looks at one table keep a distance, so that a client with a wrong map or id does
    /// not flood the catalogue.
    ///
    /// # Errors
    /// [`Refusal::UnknownTable`], or the catalogue's silence.
    pub async fn refresh(&self, table: TableId) -> Result<Arc<Table>, Refusal> {
        let asked = Instant::now();
        let cell = self.look_at(table);
        let mut look = cell.lock().await;
        if let Some(look) = &*look {
            if look.begun > asked {
                return look.found.clone();
            }
            let due = look.begun + REFRESH_INTERVAL;
            tokio::time::sleep_until(due.into()).await;
        }
        let begun = Instant::now();
        let found = self.fetch(table).await;
        *look = Some(Look {
            begun,
            found: found.clone(),
        });
        found
    }

    /// The last look at a table. Old ones are dropped, so that ids which do not exist leave
    /// nothing behind (I-12).
    fn look_at(&self, table: TableId) -> LookCell {
        let mut looks = self.looks.lock().unwrap_or_else(PoisonError::into_inner);
        looks.retain(|_, cell| {
            let recent = cell
                .try_lock()
                .map(|look| look.as_ref().is_some_and(Look::is_recent));
            Arc::strong_count(cell) > 1 || recent.unwrap_or(true)
        });
        Arc::clone(looks.entry(table).or_default())
    }

    /// The table as the node knows it, else as the catalogue does.
    pub(super) async fn table(&self, table: TableId) -> Result<Arc<Table>, Refusal> {
        match self.engine.tables.get(table) {
            Some(table) => Ok(table),
            None => self.refresh(table).await,
        }
    }

    /// Every little while: figures for the catalogue, loads that nobody goes on with.
    pub(super) async fn ticks(self: Arc<Self>) {
        let mut tick = tokio::time::interval(TICK_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            self.forget_idle_loads().await;
            for table in self.engine.tables.all() {
                settle_indexes(&table);
                if let Err(refusal) = self.report_figures(&table).await {
                    tracing::debug!(table = %table.spec.name, %refusal, "figures not reported");
                }
            }
        }
    }
}

/// Ends the growth of indexes whose last push is over: two of them would stand until the next.
fn settle_indexes(table: &Table) {
    for (shard, mutable) in table.shards() {
        let settled = block_in_place(|| {
            while mutable.core().settle_index(INDEX_STEPS_AT_ONCE)? {}
            Ok::<_, PoolError>(())
        });
        if let Err(error) = settled {
            let table = &table.spec.name;
            tracing::warn!(%table, %shard, %error, "an index could not end its growth");
        }
    }
}

/// What a node says of its memory.
pub(super) fn pool_reports(pools: &[Arc<mneme_memory::Pool>]) -> Vec<PoolReport> {
    let report = |pool: &Arc<mneme_memory::Pool>| PoolReport {
        spec: pool.spec().to_string(),
        tier: Tier::Dram,
        limit_bytes: pool.spec().limit_bytes,
        used_bytes: pool.used_bytes(),
    };
    pools.iter().map(report).collect()
}
