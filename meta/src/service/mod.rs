//! A running catalogue member: opened over a data directory, serving links, closed in order.

mod access;
mod answer;
mod clock;
mod links;
mod liveness;
mod member;
mod wait;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mneme_net::{Endpoint, Identity, LinkOptions, NetError};
use mneme_proto::ids::{ClusterId, Revision};
use openraft::BasicNode;
use tokio::task::JoinSet;
use tokio::time::timeout_at;

use crate::http::{HttpServer, Probe};
use crate::limits::{OPEN_TIMEOUT, SHUTDOWN_TIMEOUT};
use crate::log_store::LogStore;
use crate::log_store::database::{CatalogueStore, StoreOpenError};
use crate::network::Peers;
use crate::raft::{MemberId, Raft, config};
use crate::service::member::{Declined, Member};
use crate::state::command::Command;
use crate::state_machine::StateMachine;

pub use clock::Clock;
pub use liveness::Liveness;

/// How to open a member.
#[derive(Debug)]
pub struct CatalogueOptions {
    /// Its number, for ever: the data directory remembers it.
    pub id: MemberId,
    /// Where to answer; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Its data directory.
    pub data: PathBuf,
    /// Its certificate: a catalogue principal's.
    pub identity: Identity,
    /// Found a cluster if the directory has none; harmless if it has.
    pub init: bool,
    /// Options of its links.
    pub links: LinkOptions,
    /// Where to serve `/healthz` and `/metrics`, if anywhere.
    pub http: Option<SocketAddr>,
    /// Time, for liveness of nodes.
    pub clock: Clock,
}

/// Why a member does not open.
#[derive(Debug, thiserror::Error)]
pub enum CatalogueOpenError {
    /// The directory holds no cluster, and none was to be founded.
    #[error("{path} holds no catalogue: give --init to found a cluster there")]
    NotInitialised {
        /// The data directory.
        path: PathBuf,
    },
    /// The data directory cannot be used.
    #[error(transparent)]
    Store(#[from] StoreOpenError),
    /// The address or the certificate cannot be used.
    #[error(transparent)]
    Net(#[from] NetError),
    /// The HTTP address cannot be used.
    #[error("cannot serve HTTP at {addr}: {source}")]
    Http {
        /// The address.
        addr: SocketAddr,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Raft does not start over this directory.
    #[error("the catalogue in {path} does not start: {why}")]
    Raft {
        /// The data directory.
        path: PathBuf,
        /// Its reason.
        why: String,
    },
}

/// A running member. Dropped, it stops as if killed, a moment later; nothing acknowledged is lost
/// either way.
pub struct Catalogue {
    member: Arc<Member>,
    /// The task that accepts links; aborted when dropped.
    serving: JoinSet<()>,
    http: Option<HttpServer>,
    released: Pin<Box<dyn Future<Output = ()> + Send + Sync>>,
}

impl Catalogue {
    /// Opens the member and waits until it leads and has applied its log. Within a tokio runtime.
    ///
    /// # Errors
    /// [`CatalogueOpenError`], one line each.
    pub async fn open(options: CatalogueOptions) -> Result<Self, CatalogueOpenError> {
        let path = options.data.clone();
        let not_initialised = || CatalogueOpenError::NotInitialised { path: path.clone() };
        if !options.init && !CatalogueStore::exists(&path) {
            return Err(not_initialised());
        }
        let store = CatalogueStore::open(&path, options.id)?;
        let released = Box::pin(store.released());
        let endpoint = Endpoint::bind(options.listen, options.identity, options.links)?;
        let failed = |why: String| CatalogueOpenError::Raft {
            path: path.clone(),
            why,
        };

        let machine = StateMachine::open(store.clone()).map_err(|e| failed(e.to_string()))?;
        let view = machine.view();
        let raft = Raft::new(options.id, config(), Peers, LogStore::new(store), machine)
            .await
            .map_err(|e| failed(e.to_string()))?;
        let member = Member::new(options.id, raft, view, endpoint.clone(), options.clock);
        let member = Arc::new(member);
        let started = async {
            match ensure_cluster(&member, options.init).await {
                Ok(true) => {}
                Ok(false) => return Err(not_initialised()),
                Err(why) => return Err(failed(why)),
            }
            lead(&member, OPEN_TIMEOUT).await.map_err(failed)?;
            let Some(addr) = options.http else {
                return Ok(None);
            };
            let server = HttpServer::bind(addr, member.clone()).await;
            let server = server.map_err(|source| CatalogueOpenError::Http { addr, source })?;
            Ok(Some(server))
        };
        let http = match started.await {
            Ok(http) => http,
            Err(error) => {
                // The error counts; a core that fails to stop as well adds nothing to it.
                let _ = member.raft.shutdown().await;
                return Err(error);
            }
        };
        let mut serving = JoinSet::new();
        serving.spawn(links::serve(member.clone(), endpoint));
        tracing::info!(
            id = options.id,
            addr = %member.addr(),
            revision = %member.view.revision(),
            "the catalogue serves"
        );
        Ok(Self {
            member,
            serving,
            http,
            released,
        })
    }

    /// Where it answers.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.member.addr()
    }

    /// Where `/healthz` and `/metrics` are.
    #[must_use]
    pub fn http_addr(&self) -> Option<SocketAddr> {
        self.http.as_ref().map(HttpServer::local_addr)
    }

    /// The revision applied so far.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.member.view.revision()
    }

    /// The cluster that it founded or belongs to.
    #[must_use]
    pub fn cluster(&self) -> ClusterId {
        let cluster = self.member.view.read(|state| state.cluster());
        cluster.expect("open returns once the cluster is founded")
    }

    /// Whether it serves; else a line that says why not.
    ///
    /// # Errors
    /// The line.
    pub fn health(&self) -> Result<(), String> {
        self.member.health()
    }

    /// Its metrics as Prometheus text.
    #[must_use]
    pub fn metrics(&self) -> String {
        Probe::metrics(&*self.member)
    }

    /// Resolves with the reason when the member has stopped by itself (a fault of its disk or of
    /// its core). It answers nothing any more: the process should exit and be started again.
    pub fn failed(&self) -> impl Future<Output = String> + Send + 'static {
        let mut metrics = self.member.raft.metrics();
        async move {
            let stopped = metrics.wait_for(|m| m.running_state.is_err()).await;
            match stopped {
                Ok(metrics) => match &metrics.running_state {
                    Err(error) => error.to_string(),
                    Ok(()) => "it stopped".into(),
                },
                Err(_) => "it was shut down".into(),
            }
        }
    }

    /// Closes links, stops Raft and lets the data directory go, within two seconds.
    pub async fn shutdown(self) {
        let deadline = Instant::now() + SHUTDOWN_TIMEOUT;
        let Self {
            member,
            mut serving,
            http,
            released,
        } = self;
        drop(http);
        member
            .endpoint
            .close("the catalogue shuts down", deadline)
            .await;
        serving.shutdown().await;
        if let Err(error) = member.raft.shutdown().await {
            tracing::warn!(%error, "the catalogue's core had failed");
        }
        drop(member);
        // The file's lock goes with the last task of Raft that holds the store.
        if timeout_at(deadline.into(), released).await.is_err() {
            tracing::warn!("the catalogue's data directory is still in use");
        }
    }
}

impl std::fmt::Debug for Catalogue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Catalogue")
            .field("id", &self.member.id)
            .field("addr", &self.local_addr())
            .field("revision", &self.revision())
            .finish_non_exhaustive()
    }
}

/// Makes the log a cluster's if it is none's yet and `init` says so; answers whether it is one's.
async fn ensure_cluster(member: &Member, init: bool) -> Result<bool, String> {
    let known = member.raft.is_initialized().await;
    if known.map_err(|error| error.to_string())? {
        return Ok(true);
    }
    if init {
        let node = BasicNode::new(member.addr());
        let members = BTreeMap::from([(member.id, node)]);
        let initialised = member.raft.initialize(members).await;
        initialised.map_err(|error| error.to_string())?;
    }
    Ok(init)
}

/// Waits until the member leads and has applied what it acknowledged in earlier lives, then gives
/// the cluster its id if it has none: the founding may have been cut off between the two.
async fn lead(member: &Member, timeout: Duration) -> Result<(), String> {
    let led = member.raft.wait(Some(timeout));
    led.current_leader(member.id, "this member leads")
        .await
        .map_err(|error| error.to_string())?;
    let declined = |declined| match declined {
        Declined::Refused(refusal) => refusal.to_string(),
        Declined::NotLeader(leader) => format!("{leader:?} leads, not this member"),
    };
    member.linearizable().await.map_err(declined)?;
    if member.view.read(|state| state.cluster().is_none()) {
        // 0 stands for no cluster in region headers.
        let cluster = ClusterId(rand::random_range(1..=u64::MAX));
        let found = member.write(Command::Found { cluster }).await;
        found.map_err(declined)?;
    }
    Ok(())
}
