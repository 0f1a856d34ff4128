//! `mneme demo`: the main job end to end on a real table, against a cluster that it starts
//! itself. It fails when any row differs from its source.

mod embeddings;
mod engram;
mod training;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use hdrhistogram::Histogram;
use mneme_client::blocking::Client;
use mneme_memory::PoolSpec;
use serde::Serialize;

use super::bench::{Figures, record};
use super::whereabouts::Whereabouts;
use super::{Session, runtime};
use crate::cluster::{Cluster, ClusterOptions};
use crate::output::{bytes, columns, count};
use crate::settings::ConfigFile;

/// Nodes of the demo's cluster.
const NODES: u32 = 2;

/// Memory of each of them: the demo's tables take about 100 MiB together.
const NODE_BYTES: u64 = 1 << 30;

/// Show the main job on a real table: import, seal, pull, train.
///
/// Starts a cluster of two nodes in a temporary directory, imports and seals the tensor, pulls
/// random rows of it and compares them with the file bit for bit; fills a dense table of 264 B
/// rows and pulls 48 of them for every token; trains a small hashed table with adagrad.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// A safetensors file with an embedding table.
    #[arg(long, value_name = "FILE")]
    table: PathBuf,
    /// Its tensor.
    #[arg(long, value_name = "NAME")]
    tensor: String,
}

/// A line of the table at the end.
#[derive(Debug, Serialize)]
struct Line {
    what: String,
    #[serde(flatten)]
    figures: Figures,
}

/// Times of calls of one size; what happens between them does not count.
struct Timed {
    times: Histogram<u64>,
    busy: Duration,
}

impl Timed {
    fn new() -> Self {
        Self {
            times: Histogram::new(3).expect("three digits are legal"),
            busy: Duration::ZERO,
        }
    }

    fn call<T, E>(&mut self, call: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let sent = Instant::now();
        let answer = call()?;
        let time = sent.elapsed();
        record(&mut self.times, time);
        self.busy += time;
        Ok(answer)
    }

    /// The line of these calls, each of `rows` rows of `row_bytes`.
    fn line(&self, what: impl Into<String>, rows: usize, row_bytes: usize) -> Line {
        let (rows, row_bytes) = (rows as u64, row_bytes as u64);
        Line {
            what: what.into(),
            figures: Figures::of(&self.times, 0, rows, row_bytes, self.busy, "quic"),
        }
    }
}

/// A directory that goes when the demo ends, however it ends.
struct Temporary(PathBuf);

impl Temporary {
    fn new() -> anyhow::Result<Self> {
        let dir = std::env::temp_dir().join(format!("mneme-demo-{}", std::process::id()));
        std::fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        Ok(Self(dir))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // What cannot be removed is left to the system's cleaning of its temporary directory.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[derive(Serialize)]
struct Report {
    loss_first: f64,
    loss_last: f64,
    lines: Vec<Line>,
    #[serde(rename = "where")]
    found: Whereabouts,
}

/// Runs the command.
///
/// # Errors
/// One line, also when a row differs or training does not learn.
pub fn run(args: &DemoArgs, session: &Session) -> anyhow::Result<()> {
    let dir = Temporary::new()?;
    let runtime = runtime()?;
    let cluster = runtime.block_on(async {
        let cluster = Cluster::start(ClusterOptions {
            dir: dir.0.clone(),
            nodes: Some(NODES),
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            memory: PoolSpec::dram(NODE_BYTES),
            http: None,
        })
        .await?;
        cluster.served().await?;
        anyhow::Ok(cluster)
    })?;
    say(
        session,
        format!("a cluster of {NODES} nodes in {}", dir.0.display()),
    );
    let config = cluster.config().to_owned();
    let shown = tour(args, session, &config);
    runtime.block_on(cluster.shutdown());
    let report = shown?;
    session.output.print(&report, || {
        let header = ["", "rows/s", "bytes/s", "p50", "p99", "calls"];
        let lines = report.lines.iter().map(|line| {
            let figures = &line.figures;
            [
                line.what.clone(),
                count(figures.rows_per_s as u64),
                bytes(figures.bytes_per_s as u64),
                format!("{:.0} us", figures.p50_us),
                format!("{:.0} us", figures.p99_us),
                count(figures.calls),
            ]
        });
        format!("\n{}\n\n{}", columns(&header, lines), report.found.text())
    })?;
    Ok(())
}

fn tour(args: &DemoArgs, session: &Session, config: &std::path::Path) -> anyhow::Result<Report> {
    let file = ConfigFile::load(config)?;
    let client = Client::connect(file.client()?)?;
    let mut lines = Vec::new();
    let inside = Session {
        output: session.output,
        file: Some(file),
        deadline: session.deadline,
    };
    lines.extend(embeddings::show(args, &inside, &client)?);
    lines.extend(engram::show(&inside, &client)?);
    let trained = training::show(&inside, &client)?;
    lines.push(trained.line);
    let found = Whereabouts::of(&client.table(embeddings::TABLE)?, 1)?;
    client.close();
    Ok(Report {
        loss_first: trained.loss_first,
        loss_last: trained.loss_last,
        lines,
        found,
    })
}

/// Tells people how it goes; with `--json` only the report is printed.
fn say(session: &Session, line: String) {
    if !session.output.json {
        println!("{line}");
    }
}
