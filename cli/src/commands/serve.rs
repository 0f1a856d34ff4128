//! `mneme meta` and `mneme server`: one process of a cluster each, until it is told to end.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use mneme_memory::PoolSpec;
use mneme_meta::{Catalogue, CatalogueOptions, Clock};
use mneme_net::{HostPort, Identity, LinkOptions};
use mneme_server::limits::BUSY_POLL_US_DEFAULT;
use mneme_server::node::{Node, NodeHandle, NodeOptions};
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;

use super::{Session, runtime};
use crate::limits::{CLOSE_WAIT, READY_POLL, SHUTDOWN_WAIT};

/// Run a member of the catalogue.
#[derive(Debug, Args)]
pub struct MetaArgs {
    /// Its number, for ever: the data directory remembers it.
    #[arg(long, value_name = "N")]
    id: u64,
    /// Where it answers.
    #[arg(long, value_name = "HOST:PORT")]
    listen: HostPort,
    /// Its data directory.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Its certificate, as `cert issue` made it for the role catalogue.
    #[arg(long, value_name = "DIR")]
    cert: PathBuf,
    /// Found a cluster if the data directory holds none.
    #[arg(long)]
    init: bool,
    /// Where to serve /healthz and /metrics.
    #[arg(long, value_name = "HOST:PORT")]
    http: Option<HostPort>,
}

/// Run a storage node. Its name is that of its certificate.
#[derive(Debug, Args)]
pub struct ServerArgs {
    /// Members of the catalogue, joined by commas.
    #[arg(
        long,
        value_name = "HOST:PORT,...",
        value_delimiter = ',',
        required = true
    )]
    catalogue: Vec<HostPort>,
    /// Where it answers.
    #[arg(long, value_name = "HOST:PORT")]
    listen: HostPort,
    /// What others are told instead of the address that it listens on.
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<HostPort>,
    /// Its memory: `dram:SIZE[,huge=2M][,numa=N]`; may be given several times.
    #[arg(long, value_name = "POOL", num_args = 1.., required = true)]
    memory: Vec<PoolSpec>,
    /// Its data directory.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Its certificate, as `cert issue` made it for the role node.
    #[arg(long, value_name = "DIR")]
    cert: PathBuf,
    /// Its failure domain.
    #[arg(long, value_name = "RACK", default_value = "default")]
    domain: String,
    /// Where to serve /healthz and /metrics.
    #[arg(long, value_name = "HOST:PORT")]
    http: Option<HostPort>,
    /// How long it looks for the next request before it sleeps, in microseconds; 0 sleeps at once.
    #[arg(long, value_name = "US", default_value_t = BUSY_POLL_US_DEFAULT)]
    busy_poll_us: u64,
}

/// Says that a process serves, and where.
#[derive(Serialize)]
struct Ready {
    ready: bool,
    listen: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    http: Option<String>,
}

impl Ready {
    fn print(
        session: &Session,
        listen: SocketAddr,
        http: Option<SocketAddr>,
    ) -> anyhow::Result<()> {
        let ready = Self {
            ready: true,
            listen: listen.to_string(),
            http: http.map(|addr| addr.to_string()),
        };
        session.output.print(&ready, || {
            let http = ready.http.iter().map(|addr| format!(" http={addr}"));
            format!("ready listen={}{}", ready.listen, http.collect::<String>())
        })?;
        Ok(())
    }
}

/// Runs a member until SIGINT or SIGTERM.
///
/// # Errors
/// One line.
pub fn meta(args: MetaArgs, session: &Session) -> anyhow::Result<()> {
    let runtime = runtime()?;
    let ended = runtime.block_on(async {
        let identity = Identity::load(&args.cert)?;
        let options = CatalogueOptions {
            id: args.id,
            listen: socket_addr(&args.listen).await?,
            data: args.data,
            identity,
            init: args.init,
            links: LinkOptions::default(),
            http: optional_addr(args.http.as_ref()).await?,
            clock: Clock::boot(),
        };
        let terminated = terminated()?;
        let catalogue = Catalogue::open(options).await?;
        Ready::print(session, catalogue.local_addr(), catalogue.http_addr())?;
        let why = tokio::select! {
            () = terminated => None,
            why = catalogue.failed() => Some(why),
        };
        if timeout(CLOSE_WAIT, catalogue.shutdown()).await.is_err() {
            tracing::warn!("not everything closed in time; nothing acknowledged is lost by that");
        }
        match why {
            Some(why) => bail!("the catalogue stopped: {why}"),
            None => Ok(()),
        }
    });
    runtime.shutdown_timeout(SHUTDOWN_WAIT);
    ended
}

/// Runs a node until SIGINT or SIGTERM.
///
/// # Errors
/// One line.
pub fn server(args: ServerArgs, session: &Session) -> anyhow::Result<()> {
    let runtime = runtime()?;
    let ended = runtime.block_on(async {
        let identity = Identity::load(&args.cert)?;
        let options = NodeOptions {
            listen: socket_addr(&args.listen).await?,
            advertise: args.advertise,
            catalogue: args.catalogue,
            pools: args.memory,
            data: args.data,
            identity,
            domain: args.domain,
            http: optional_addr(args.http.as_ref()).await?,
            busy_poll: Duration::from_micros(args.busy_poll_us),
        };
        let terminated = terminated()?;
        tokio::pin!(terminated);
        let starting = tokio::task::spawn_blocking(|| Node::start(options));
        let node = tokio::select! {
            // A node that waits for its catalogue is abandoned: it has promised nothing yet.
            () = &mut terminated => return Ok(()),
            node = starting => node.context("starting the node")??,
        };
        let why = tokio::select! {
            () = terminated => None,
            error = announce(&node, session) => Some(error),
            why = node.failed() => Some(anyhow::anyhow!("the node stopped: {why}")),
        };
        tokio::task::spawn_blocking(|| node.shutdown())
            .await
            .context("stopping the node")?;
        why.map_or(Ok(()), Err)
    });
    runtime.shutdown_timeout(SHUTDOWN_WAIT);
    ended
}

/// Prints `ready` when the node serves, then waits for ever; back with what went wrong.
async fn announce(node: &NodeHandle, session: &Session) -> anyhow::Error {
    while !node.ready() {
        tokio::time::sleep(READY_POLL).await;
    }
    match Ready::print(session, node.local_addr(), node.http_addr()) {
        Ok(()) => std::future::pending().await,
        Err(error) => error,
    }
}

/// Resolves on SIGINT or SIGTERM. Both are taken over at once.
///
/// # Errors
/// The operating system's word.
pub fn terminated() -> anyhow::Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM")?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// The first address of a name.
///
/// # Errors
/// One line naming the address.
pub async fn socket_addr(addr: &HostPort) -> anyhow::Result<SocketAddr> {
    let found = addr.resolve().await.with_context(|| addr.to_string())?;
    found
        .first()
        .copied()
        .with_context(|| format!("{addr}: the name has no address"))
}

/// The same for an address that may be left out.
///
/// # Errors
/// One line naming the address.
pub async fn optional_addr(addr: Option<&HostPort>) -> anyhow::Result<Option<SocketAddr>> {
    match addr {
        Some(addr) => socket_addr(addr).await.map(Some),
        None => Ok(None),
    }
}
