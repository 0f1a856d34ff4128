//! `mneme dev`: a whole cluster in one process.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use mneme_memory::PoolSpec;
use mneme_net::HostPort;
use serde::Serialize;

use super::serve::{optional_addr, socket_addr, terminated};
use super::{Session, runtime};
use crate::cluster::{Cluster, ClusterOptions};
use crate::limits::{DEV_NODES_MAX, SHUTDOWN_WAIT};
use crate::settings::{data_dir, remember_dev};

/// Run a whole cluster in this process, until SIGINT or SIGTERM.
///
/// Prints `ready config=DIR/client.toml` when every shard serves; commands without --config use
/// that file from then on. Started again over the same DIR, the cluster has its tables and their
/// sealed rows; tables whose rows went with the process are shown as lost.
#[derive(Debug, Args)]
pub struct DevArgs {
    /// Directory of certificates, catalogue and nodes [default: mneme/dev in the user's data
    /// directory, which is $XDG_DATA_HOME or ~/.local/share].
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Storage nodes [default: as many as DIR has, else 1].
    #[arg(long, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(DEV_NODES_MAX)))]
    nodes: Option<u32>,
    /// Where the catalogue answers; nodes take free ports.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7400")]
    listen: HostPort,
    /// Memory of each node: `dram:SIZE[,huge=2M][,numa=N]`. It is taken as rows come.
    #[arg(long, value_name = "POOL", default_value = "dram:2GiB")]
    memory: PoolSpec,
    /// Where the catalogue serves /healthz and /metrics; nodes take free ports. The addresses
    /// are printed before `ready`.
    #[arg(long, value_name = "HOST:PORT")]
    http: Option<HostPort>,
}

#[derive(Serialize)]
struct Ready<'a> {
    ready: bool,
    config: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    http: Vec<HttpLine<'a>>,
}

#[derive(Serialize)]
struct HttpLine<'a> {
    name: &'a str,
    address: String,
}

/// Runs the command.
///
/// # Errors
/// One line.
pub fn run(args: DevArgs, session: &Session) -> anyhow::Result<()> {
    let dir = args
        .data
        .or_else(|| Some(data_dir()?.join("dev")))
        .context("no data directory: give --data DIR")?;
    let runtime = runtime()?;
    let ended = runtime.block_on(async {
        let options = ClusterOptions {
            dir,
            nodes: args.nodes,
            listen: socket_addr(&args.listen).await?,
            memory: args.memory,
            http: optional_addr(args.http.as_ref()).await?,
        };
        let terminated = terminated()?;
        tokio::pin!(terminated);
        let cluster = tokio::select! {
            () = &mut terminated => return Ok(()),
            started = Cluster::start(options) => started?,
        };
        let why = tokio::select! {
            () = terminated => None,
            error = announce(&cluster, session) => Some(error),
            why = cluster.failed() => Some(anyhow::Error::msg(why)),
        };
        cluster.shutdown().await;
        match why {
            Some(error) => Err(error),
            None => Ok(()),
        }
    });
    runtime.shutdown_timeout(SHUTDOWN_WAIT);
    ended
}

/// Prints `ready` when everything serves, then waits for ever; back with what went wrong.
async fn announce(cluster: &Cluster, session: &Session) -> anyhow::Error {
    match try_announce(cluster, session).await {
        Ok(()) => std::future::pending().await,
        Err(error) => error,
    }
}

async fn try_announce(cluster: &Cluster, session: &Session) -> anyhow::Result<()> {
    cluster.served().await?;
    if let Err(error) = remember_dev(cluster.config()) {
        tracing::warn!("later commands need --config: {error:#}");
    }
    let http = cluster.http().map(|(name, address)| HttpLine {
        name,
        address: address.to_string(),
    });
    let ready = Ready {
        ready: true,
        config: cluster.config().display().to_string(),
        http: http.collect(),
    };
    session.output.print(&ready, || {
        let http = ready.http.iter();
        let mut lines: Vec<String> = http
            .map(|h| format!("http {}={}", h.name, h.address))
            .collect();
        lines.push(format!("ready config={}", ready.config));
        lines.join("\n")
    })?;
    Ok(())
}
