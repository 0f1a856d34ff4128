//! Starting and stopping a node.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mneme_memory::{Pool, PoolError, PoolSpec};
use mneme_net::catalogue::{CatalogueError, CatalogueLink};
use mneme_net::{BusyPoll, Endpoint, HostPort, Identity, LinkOptions, NetError};
use mneme_proto::control::NodeRegistration;
use mneme_proto::refusal::Refusal;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{oneshot, watch};

use super::data::{DataDir, DataError};
use super::held::HeldTable;
use super::lifecycle::{cluster_of, pool_reports, register};
use super::loads::Loads;
use super::{Node, address};
use crate::engine::Engine;
use crate::limits::{BACKGROUND_THREADS, CLOSE_WAIT};
use crate::metrics::Exposed;
use crate::{http, service};

/// What a node is started with. Its name is its certificate's.
#[derive(Debug, Clone)]
pub struct NodeOptions {
    /// Where it listens; port 0 takes a free one.
    pub listen: SocketAddr,
    /// What others are told instead of the address that it listens on.
    pub advertise: Option<HostPort>,
    /// Members of the catalogue, at least one.
    pub catalogue: Vec<HostPort>,
    /// Its memory, at least one pool.
    pub pools: Vec<PoolSpec>,
    /// Its data directory.
    pub data: PathBuf,
    /// Its certificate.
    pub identity: Identity,
    /// Its failure domain.
    pub domain: String,
    /// Where `/healthz` and `/metrics` are served.
    pub http: Option<SocketAddr>,
    /// How long the serving thread looks for the next request before it sleeps ([`BusyPoll`]).
    pub busy_poll: Duration,
}

/// Why a node did not start, or stopped by itself.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// Its options cannot be used.
    #[error("{0}")]
    Options(String),
    /// A pool cannot be opened.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The data directory cannot be used.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The network cannot be used.
    #[error(transparent)]
    Net(#[from] NetError),
    /// The catalogue was not reached.
    #[error(transparent)]
    Catalogue(#[from] CatalogueError),
    /// The catalogue refused the node.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The HTTP service cannot listen.
    #[error("cannot serve HTTP at {addr}: {source}")]
    Http {
        /// The address.
        addr: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// A thread or runtime could not be made.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] io::Error),
}

/// A started node. Dropped, it stops.
pub struct NodeHandle {
    node: Arc<Node>,
    local_addr: SocketAddr,
    http_addr: Option<SocketAddr>,
    /// Ends the serving thread when it is dropped or sent to.
    stop: Option<oneshot::Sender<()>>,
    serving: Option<JoinHandle<()>>,
    background: Option<Runtime>,
}

impl Node {
    /// Starts a node: back when it is registered and listens; its shards are made after. Blocks
    /// the calling thread, which may be a runtime's.
    ///
    /// # Errors
    /// [`NodeError`]; everything that was started is stopped again.
    pub fn start(options: NodeOptions) -> Result<NodeHandle, NodeError> {
        if options.pools.is_empty() || options.catalogue.is_empty() {
            let why = "a node needs at least one --memory pool and one --catalogue address";
            return Err(NodeError::Options(why.into()));
        }
        let pools = options
            .pools
            .iter()
            .cloned()
            .map(Pool::open)
            .collect::<Result<Vec<_>, _>>()?;
        let data = DataDir::open(&options.data)?;
        let background = Builder::new_multi_thread()
            .worker_threads(BACKGROUND_THREADS)
            .thread_name("mneme-background")
            .enable_all()
            .build()?;
        let (serving, bound) = Serving::spawn(&options)?;
        let (done, started) = mpsc::channel();
        background.spawn({
            let (handle, endpoint) = (background.handle().clone(), bound.clone());
            async move {
                let started = assemble(options, pools, data, handle, &endpoint).await;
                // The receiver waits below and is gone only if its thread is.
                let _ = done.send(started);
            }
        });
        let started = started.recv().unwrap_or_else(|_| {
            Err(NodeError::Options(
                "the node's background ended while it started".into(),
            ))
        });
        match started {
            Ok((node, http_addr)) => {
                let (stop, thread) = serving.serve(Arc::clone(&node));
                Ok(NodeHandle {
                    node,
                    local_addr: bound.local_addr(),
                    http_addr,
                    stop: Some(stop),
                    serving: Some(thread),
                    background: Some(background),
                })
            }
            Err(error) => {
                drop(bound);
                drop(serving);
                background.shutdown_background();
                Err(error)
            }
        }
    }
}

/// Registers the node and starts its background tasks.
async fn assemble(
    options: NodeOptions,
    pools: Vec<Arc<Pool>>,
    data: DataDir,
    background: tokio::runtime::Handle,
    endpoint: &Endpoint,
) -> Result<(Arc<Node>, Option<SocketAddr>), NodeError> {
    let address = address::advertised(endpoint.local_addr(), options.advertise.as_ref())
        .map_err(NodeError::Options)?;
    let dialer = Endpoint::dialer(options.identity.clone(), LinkOptions::default())?;
    let catalogue = CatalogueLink::new(dialer, options.catalogue);
    data.bind_to(cluster_of(&catalogue).await?)?;
    let found = data.tables()?;
    let held: Vec<_> = found
        .iter()
        .map(|t| (t.table, HeldTable::found(t)))
        .collect();
    let registration = NodeRegistration {
        name: options.identity.principal().name.clone(),
        address: address.clone(),
        domain: options.domain,
        pools: pool_reports(&pools),
        held: held
            .iter()
            .flat_map(|(table, held)| held.contents(*table))
            .collect(),
    };
    let (id, names) = register(&catalogue, registration).await?;
    tracing::info!(
        node = %id.node, incarnation = %id.incarnation, cluster = %id.cluster, %address,
        "registered"
    );
    let cells = held
        .into_iter()
        .map(|(table, held)| (table, Arc::new(held.into())));
    let node = Arc::new(Node {
        engine: Arc::new(Engine::default()),
        background,
        catalogue,
        pools,
        data,
        id,
        address,
        block: names.into(),
        held: Mutex::new(cells.collect()),
        loads: Loads::default(),
        looks: Mutex::default(),
        followed: watch::Sender::new(false),
        stopped: watch::Sender::new(None),
    });
    let http_addr = match options.http {
        Some(addr) => {
            let exposed = expose(&node, endpoint.clone());
            let bound = http::serve(addr, exposed).await;
            Some(bound.map_err(|source| NodeError::Http { addr, source })?)
        }
        None => None,
    };
    node.background.spawn(Arc::clone(&node).heartbeats());
    node.background.spawn(Arc::clone(&node).watch());
    node.background.spawn(Arc::clone(&node).ticks());
    Ok((node, http_addr))
}

fn expose(node: &Arc<Node>, endpoint: Endpoint) -> Exposed {
    let (figures, ready) = (Arc::clone(node), Arc::clone(node));
    Exposed {
        metrics: Arc::clone(&node.engine.metrics),
        figures: Arc::new(move || figures.figures(endpoint.identity().not_after_s())),
        ready: Arc::new(move || ready.is_ready()),
    }
}

/// The serving thread: bound, and waiting for its node.
struct Serving {
    node: oneshot::Sender<(Arc<Node>, oneshot::Receiver<()>)>,
    thread: JoinHandle<()>,
}

impl Serving {
    /// Starts the thread, with a runtime of its own: one thread that never hands a task over is
    /// faster than several that do.
    fn spawn(options: &NodeOptions) -> Result<(Self, Endpoint), NodeError> {
        let (listen, identity) = (options.listen, options.identity.clone());
        let busy = BusyPoll::new(options.busy_poll);
        let (bound, endpoint) = mpsc::channel();
        let (node, wanted) = oneshot::channel::<(Arc<Node>, oneshot::Receiver<()>)>();
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let thread = std::thread::Builder::new()
            .name("mneme-serving".into())
            .spawn(move || {
                let local = tokio::task::LocalSet::new();
                local.block_on(&runtime, async move {
                    let endpoint = Endpoint::bind(listen, identity, LinkOptions::default());
                    let endpoint = match endpoint {
                        Ok(endpoint) => endpoint,
                        Err(error) => {
                            // The receiver waits below and is gone only if its thread is.
                            let _ = bound.send(Err(error));
                            return;
                        }
                    };
                    let _ = bound.send(Ok(endpoint.clone()));
                    let Ok((node, stop)) = wanted.await else {
                        return;
                    };
                    let served = service::serve(endpoint.clone(), Arc::clone(&node), busy);
                    let accepting = tokio::task::spawn_local(served);
                    tokio::select! {
                        // Sent to or dropped: both mean stop.
                        _ = stop => {}
                        _ = node.failed() => {}
                    }
                    accepting.abort();
                    endpoint
                        .close("the node stops", Instant::now() + CLOSE_WAIT)
                        .await;
                });
            })?;
        let endpoint = endpoint.recv().unwrap_or_else(|_| {
            let source = io::Error::other("the serving thread ended");
            Err(NetError::Socket {
                addr: listen,
                source,
            })
        })?;
        Ok((Self { node, thread }, endpoint))
    }

    /// Hands the node over.
    fn serve(self, node: Arc<Node>) -> (oneshot::Sender<()>, JoinHandle<()>) {
        let (stop, stopped) = oneshot::channel();
        // A thread that has ended serves nobody; the node's handle then joins it.
        let _ = self.node.send((node, stopped));
        (stop, self.thread)
    }
}

impl NodeHandle {
    /// Where it listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Where it serves HTTP.
    #[must_use]
    pub fn http_addr(&self) -> Option<SocketAddr> {
        self.http_addr
    }

    /// What the catalogue and clients are told.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.node.address
    }

    /// The node.
    #[must_use]
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Whether all shards that belong here are made and the lease is live.
    #[must_use]
    pub fn ready(&self) -> bool {
        self.node.is_ready()
    }

    /// Waits until the node stops by itself, and says why.
    pub async fn failed(&self) -> Arc<NodeError> {
        self.node.failed().await
    }

    /// Stops the node: closes its links, ends its threads. Blocks for a moment.
    pub fn shutdown(mut self) {
        self.end();
    }

    fn end(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.serving.take() {
            // A panic there has been printed already.
            let _ = thread.join();
        }
        if let Some(background) = self.background.take() {
            // Waited for, so that the data directory is free when this returns; on a thread of
            // its own, since the caller's may be a runtime's, which must not wait for another.
            let ended = std::thread::spawn(move || background.shutdown_timeout(CLOSE_WAIT));
            let _ = ended.join();
        }
    }
}

impl Drop for NodeHandle {
    fn drop(&mut self) {
        self.end();
    }
}

impl std::fmt::Debug for NodeHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeHandle")
            .field("local_addr", &self.local_addr)
            .finish_non_exhaustive()
    }
}

const _: () = assert!(CLOSE_WAIT.as_millis() <= Duration::from_secs(1).as_millis());
