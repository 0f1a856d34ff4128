//! A storage node: one process's memory, shards and life in a cluster.
//!
//! Two threads' worth of runtime: the serving thread reads frames and answers them; the
//! background follows the catalogue, makes and drops shards, takes loads and writes files, so
//! that no pull ever waits for any of it.

mod address;
mod control;
pub mod data;
mod descriptor;
mod held;
mod lifecycle;
pub(crate) mod loads;
mod reconcile;
mod shards;
mod start;

use std::sync::{Arc, Mutex, PoisonError};

use mneme_memory::Pool;
use mneme_net::catalogue::CatalogueLink;
use mneme_proto::ids::{ShardIndex, TableId};
use mneme_proto::refusal::Refusal;
use rustc_hash::FxHashMap;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::block_in_place;

use crate::engine::Engine;
use crate::metrics::{Figures, PoolFigures, TableFigures};
use crate::table::Table;
use data::DataDir;
use descriptor::Names;
use held::HeldTable;
use lifecycle::{Identified, LookCell};
use loads::Loads;

pub use start::{NodeError, NodeHandle, NodeOptions};

type HeldCell = Arc<tokio::sync::Mutex<HeldTable>>;

/// A running node. Its methods are the background's; the serving thread calls them through the
/// background runtime.
pub struct Node {
    engine: Arc<Engine>,
    background: Handle,
    catalogue: CatalogueLink,
    pools: Vec<Arc<Pool>>,
    data: DataDir,
    id: Identified,
    /// What clients and the catalogue are told.
    address: String,
    block: tokio::sync::Mutex<Names>,
    held: Mutex<FxHashMap<TableId, HeldCell>>,
    loads: Loads,
    looks: Mutex<FxHashMap<TableId, LookCell>>,
    /// Whether all tables' maps were followed once.
    followed: watch::Sender<bool>,
    stopped: watch::Sender<Option<Arc<NodeError>>>,
}

impl Node {
    /// What requests work on.
    #[must_use]
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// The background runtime.
    #[must_use]
    pub fn background(&self) -> &Handle {
        &self.background
    }

    /// Whether all shards that belong here are made and the lease is live.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        *self.followed.borrow() && self.engine.moment().lease_live
    }

    /// Records durably that pushes are let in to these shards, before the first one is: from then
    /// on a new life of the node knows that rows were lost with this one.
    ///
    /// # Errors
    /// [`Refusal::Internal`] when the data directory cannot be written.
    pub async fn touch(&self, table: &Table, shards: Vec<ShardIndex>) -> Result<(), Refusal> {
        let cell = self.held(table.id);
        let mut held = cell.lock().await;
        let mut records = held.records.clone();
        for shard in &shards {
            if let Some(record) = records.get_mut(shard) {
                record.touched = true;
            }
        }
        if records != held.records {
            block_in_place(|| self.data.put_mutable(table.id, &records)).map_err(internal)?;
            held.records = records;
        }
        for shard in shards {
            let recorded = held.records.get(&shard).filter(|record| record.touched);
            let mutable = held.mutable.get(&shard);
            if let (Some(record), Some(mutable)) = (recorded, mutable)
                && record.epoch == mutable.epoch
            {
                mutable.set_touched();
            }
        }
        Ok(())
    }

    /// Ends the node; the first reason counts.
    fn stop(&self, error: NodeError) {
        self.stopped.send_if_modified(|stopped| {
            if stopped.is_some() {
                return false;
            }
            tracing::error!(%error, "the node stops");
            *stopped = Some(Arc::new(error));
            true
        });
    }

    /// Waits until the node stops by itself, and says why.
    pub async fn failed(&self) -> Arc<NodeError> {
        let mut stopped = self.stopped.subscribe();
        let stop = stopped
            .wait_for(Option::is_some)
            .await
            .map(|stop| stop.clone());
        match stop {
            Ok(Some(error)) => error,
            // The node holds the sender: it cannot be gone while its method runs.
            Ok(None) | Err(_) => std::future::pending().await,
        }
    }

    fn held(&self, table: TableId) -> HeldCell {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(held.entry(table).or_default())
    }

    fn held_tables(&self) -> Vec<TableId> {
        self.held
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .keys()
            .copied()
            .collect()
    }

    /// Gauges as of now.
    fn figures(&self, cert_not_after_s: u64) -> Figures {
        let mut tables = self.engine.tables.all();
        tables.sort_unstable_by_key(|table| table.id);
        let table = |table: &Arc<Table>| TableFigures {
            tenant: table.spec.tenant.clone(),
            table: table.spec.name.clone(),
            rows: table.rows(),
            bytes: table.bytes(),
        };
        let pool = |(at, pool): (usize, &Arc<Pool>)| {
            let usage = pool.usage();
            PoolFigures {
                pool: format!("{at}:{}", pool.spec()),
                limit_bytes: usage.limit_bytes,
                used_bytes: usage.used_bytes,
                resident_bytes: usage.resident_bytes,
            }
        };
        Figures {
            tables: tables.iter().map(table).collect(),
            pools: self.pools.iter().enumerate().map(pool).collect(),
            reply_bytes: self.engine.replies.used_bytes() as u64,
            cert_not_after_s,
            lease_live: self.engine.moment().lease_live,
        }
    }
}

/// The refusal for something that should not happen.
fn internal(error: impl std::fmt::Display) -> Refusal {
    Refusal::Internal {
        why: error.to_string(),
    }
}
