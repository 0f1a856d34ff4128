//! The map cache: one router per table, replaced whole, refreshed by one caller for all.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use mneme_net::CatalogueError;
use mneme_proto::control::{CatalogueRequest, CatalogueResponse, Change, TableRef};
use mneme_proto::ids::Revision;
use mneme_proto::map::TableState;
use tokio::sync::Mutex;
use tokio::time::timeout_at;

use crate::client::Shared;
use crate::error::ClientError;
use crate::lanes::Lanes;
use crate::limits::{CONNECT_TIMEOUT, WATCH_PAUSE, WATCH_WAIT_MS};
use crate::router::Router;
use crate::session::Sessions;

/// What all handles to a table share.
#[derive(Debug)]
pub(crate) struct TableShared {
    pub(crate) client: Arc<Shared>,
    pub(crate) lanes: Lanes,
    pub(crate) sessions: Sessions,
    router: ArcSwap<Router>,
    /// Held while a newer map is asked for.
    refreshing: Mutex<()>,
    /// Whether a refresh beside the calls is under way.
    soon: AtomicBool,
}

impl TableShared {
    pub(crate) fn new(client: Arc<Shared>, router: Router) -> Self {
        Self {
            lanes: Lanes::new(Duration::from_micros(client.config.coalesce_us)),
            sessions: Sessions::default(),
            router: ArcSwap::from_pointee(router),
            refreshing: Mutex::new(()),
            soon: AtomicBool::new(false),
            client,
        }
    }

    /// The current router.
    pub(crate) fn router(&self) -> Arc<Router> {
        self.router.load_full()
    }

    /// A router newer than `seen`. Of many callers one asks, and all get what came.
    pub(crate) async fn refresh(
        &self,
        seen: &Arc<Router>,
        deadline: Instant,
    ) -> Result<Arc<Router>, ClientError> {
        let held = timeout_at(deadline.into(), self.refreshing.lock()).await;
        let current = self.router();
        if !Arc::ptr_eq(&current, seen) {
            return Ok(current);
        }
        let _held = held.map_err(|_| self.client.silent_catalogue("another call's map"))?;
        let table = TableRef::Id(seen.table);
        let map = self
            .client
            .ask_map(CatalogueRequest::GetMap { table }, deadline)
            .await
            .map_err(|error| error.of_table(&seen.spec.name))?;
        Ok(self.store(Router::new(&map)?))
    }

    /// Takes a map over, unless a newer one is there. Returns the router to use.
    pub(crate) fn store(&self, router: Router) -> Arc<Router> {
        let made = Arc::new(router);
        self.router.rcu(|current| {
            let newer = made.revision >= current.revision;
            if newer { made.clone() } else { current.clone() }
        });
        let current = self.router();
        self.lanes.keep(current.revision);
        current
    }

    /// Has the map looked at beside the calls, at most once at a time.
    pub(crate) fn refresh_soon(self: &Arc<Self>, seen: &Arc<Router>) {
        if self.soon.swap(true, Ordering::Relaxed) {
            return;
        }
        let (table, seen) = (self.clone(), seen.clone());
        self.client.runtime.spawn(async move {
            let deadline = Instant::now() + CONNECT_TIMEOUT;
            if let Err(error) = table.refresh(&seen, deadline).await {
                tracing::debug!(table = %seen.spec.name, %error, "no newer map");
            }
            table.soon.store(false, Ordering::Relaxed);
        });
    }

    /// Asks the catalogue about this table.
    pub(crate) async fn ask(
        &self,
        request: CatalogueRequest,
        deadline: Instant,
    ) -> Result<CatalogueResponse, ClientError> {
        let asked = self.client.ask(request, deadline).await;
        asked.map_err(|error| error.of_table(&self.router().spec.name))
    }

    /// Waits until the table's nodes have made its shards.
    pub(crate) async fn until_served(
        &self,
        mut router: Arc<Router>,
        deadline: Instant,
    ) -> Result<Arc<Router>, ClientError> {
        while router.state == TableState::Creating && Instant::now() < deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            let wait_ms = WATCH_WAIT_MS.min(left.as_millis() as u32 / 2);
            let watch = CatalogueRequest::Watch {
                from: router.revision,
                wait_ms,
            };
            // Whatever it says, the map is looked at again.
            self.client.ask(watch, deadline).await?;
            router = self.refresh(&router, deadline).await?;
        }
        Ok(router)
    }
}

/// Watches the catalogue for changes and refreshes the maps of tables in use, until the client
/// is gone. Pulls never wait for it.
pub(crate) async fn watch(client: std::sync::Weak<Shared>, mut from: Revision) {
    loop {
        let Some(catalogue) = client.upgrade().map(|shared| shared.catalogue.clone()) else {
            return;
        };
        let wait = Duration::from_millis(WATCH_WAIT_MS.into());
        let deadline = Instant::now() + wait + CONNECT_TIMEOUT;
        let request = CatalogueRequest::Watch {
            from,
            wait_ms: WATCH_WAIT_MS,
        };
        let answer = catalogue.ask(request, deadline).await;
        let Some(shared) = client.upgrade() else {
            return;
        };
        match answer {
            Ok(CatalogueResponse::Changes { revision, changes }) => {
                from = revision;
                shared.refresh_tables(|router| {
                    changes.iter().any(|change| match change {
                        Change::Table(table) | Change::Dropped(table) => *table == router.table,
                        Change::Node(node) => router.nodes.iter().any(|n| n.id == *node),
                    })
                });
            }
            Ok(CatalogueResponse::Compacted { revision }) => {
                from = revision;
                shared.refresh_tables(|_| true);
            }
            Ok(_) | Err(CatalogueError::Refused(_)) | Err(CatalogueError::Codec(_)) => {
                drop(shared);
                tokio::time::sleep(WATCH_PAUSE).await;
            }
            Err(error) => {
                tracing::debug!(%error, "the watch waits for the catalogue");
                drop(shared);
                tokio::time::sleep(WATCH_PAUSE.mul_f64(0.5 + rand::random::<f64>())).await;
            }
        }
    }
}
