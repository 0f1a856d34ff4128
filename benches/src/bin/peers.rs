//! Runs mneme and its peers in turns over the same rows and prints one Markdown table.
//!
//! Several rounds, every peer once a round, the best figure of each counts: the machine's noise
//! then falls on all of them alike.

use anyhow::Result;
use clap::{Parser, ValueEnum};
use mneme_benches::report::Table;
use mneme_benches::{bare_gather, bare_quinn, engine, growth, mneme, redis};

/// For all clients alike; the one of the `mneme` binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Compares mneme with redis, a bare quinn transfer and a bare gather loop.
#[derive(Debug, Parser)]
struct Options {
    /// Rows of the pulled table.
    #[arg(long, default_value_t = 1_000_000)]
    rows: u64,
    /// Bytes of a pulled row: an Engram row of DeepSeek-V4.1.
    #[arg(long, default_value_t = 264)]
    row_bytes: usize,
    /// Batch sizes.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 48, 1024, 16384])]
    batch: Vec<usize>,
    /// Seconds counted per figure.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Rounds over all peers.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// What is measured.
    #[arg(long, value_delimiter = ',', default_values = ["engine", "pull", "push"])]
    only: Vec<Part>,
}

/// A part of the measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The engine in process, against a bare loop.
    Engine,
    /// Pulls by `quic`, against redis MGET and a bare transfer.
    Pull,
    /// Pushes by `quic`, against redis MSET.
    Push,
    /// A table that grows from nothing under readers; only when asked for.
    Growth,
}

/// Keys of the table that grows.
const GROWTH_ROWS: u64 = 5_000_000;
/// Threads that read it meanwhile.
const GROWTH_READERS: usize = 4;

/// Elements of a pushed row.
const PUSH_DIM: u32 = 64;
/// Keys of the pushed tables.
const PUSH_ROWS: u64 = 262_144;

fn main() -> Result<()> {
    let options = Options::parse();
    let mut table = Table::default();
    if options.only.contains(&Part::Engine) {
        engine_figures(&options, &mut table)?;
    }
    if options.only.contains(&Part::Pull) {
        pull_figures(&options, &mut table)?;
    }
    if options.only.contains(&Part::Push) {
        push_figures(&options, &mut table)?;
    }
    if options.only.contains(&Part::Growth) {
        growth_figures()?;
    }
    println!(
        "{}",
        table.markdown(&["redis", "bare quinn", "bare gather"])
    );
    Ok(())
}

/// The engine in process against the bare loop, then pushes through the shard's core.
fn engine_figures(options: &Options, table: &mut Table) -> Result<()> {
    let (rows, row_bytes) = (options.rows, options.row_bytes);
    let flat = bare_gather::make_rows(rows, row_bytes);
    let sealed = engine::sealed(rows, row_bytes)?;
    let dense = engine::mutable(rows, row_bytes, false)?;
    let hashed = engine::mutable(rows, row_bytes, true)?;
    for _ in 0..options.rounds {
        let name = format!("engine pull {row_bytes} B x 1024");
        let seconds = options.seconds;
        table.add(
            &name,
            "bare gather",
            bare_gather::run(&flat, row_bytes, 1024, seconds),
        );
        table.add(
            &name,
            "sealed dense",
            engine::pull_sealed(&sealed, 1024, seconds)?,
        );
        table.add(
            &name,
            "mutable dense",
            engine::pull_mutable(&dense.reader(), 1024, seconds)?,
        );
        table.add(
            &name,
            "mutable hashed",
            engine::pull_mutable(&hashed.reader(), 1024, seconds)?,
        );
    }
    drop((flat, sealed, dense, hashed));
    for optimizer in ["sgd", "adagrad"] {
        let name = format!("engine push {optimizer} f32 x {PUSH_DIM} x 1024");
        let figure = engine::push(optimizer, PUSH_ROWS, PUSH_DIM, 1024, options.seconds)?;
        table.add(&name, "mneme", figure);
    }
    Ok(())
}

/// A table from nothing to its full size, then half of it replaced.
fn growth_figures() -> Result<()> {
    println!(
        "| step | rows | M rows/s | push p50 us | p99.9 us | longest us | M reads | bytes | x plan \
         | B per key over row and state |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
    for step in growth::run(GROWTH_ROWS, PUSH_DIM, GROWTH_READERS)? {
        println!(
            "| {} | {} | {:.3} | {} | {} | {} | {:.1} | {} | {:.3} | {:.1} |",
            step.name,
            step.rows,
            step.rows_per_s / 1e6,
            step.p50.as_micros(),
            step.p999.as_micros(),
            step.longest.as_micros(),
            step.reads as f64 / 1e6,
            step.bytes,
            step.bytes as f64 / step.planned as f64,
            step.overhead
        );
    }
    Ok(())
}

/// Pulls by `quic` against redis and the bare transfer.
fn pull_figures(options: &Options, table: &mut Table) -> Result<()> {
    let (rows, row_bytes) = (options.rows, options.row_bytes);
    let mut redis = redis::Redis::start()?;
    for first in (0..rows).step_by(4096) {
        let keys: Vec<u64> = (first..rows.min(first + 4096)).collect();
        redis.mset(&keys, row_bytes)?;
    }
    let dev = mneme::start("dram:4GiB");
    let client = dev.client();
    let sealed = mneme::sealed_table(&client, rows, row_bytes)?;
    for _ in 0..options.rounds {
        for &batch in &options.batch {
            let name = format!("pull {row_bytes} B x {batch}");
            let seconds = options.seconds;
            let figure = redis::run_mget(&mut redis, rows, row_bytes, batch, seconds)?;
            table.add(&name, "redis", figure);
            table.add(
                &name,
                "bare quinn",
                bare_quinn::run(row_bytes, batch, seconds)?,
            );
            table.add(
                &name,
                "mneme quic",
                mneme::run_pull(&sealed, rows, batch, seconds)?,
            );
        }
    }
    Ok(())
}

/// Pushes by `quic` against redis.
fn push_figures(options: &Options, table: &mut Table) -> Result<()> {
    let mut redis = redis::Redis::start()?;
    let dev = mneme::start("dram:4GiB");
    let client = dev.client();
    for &batch in options.batch.iter().filter(|&&b| b >= 1024) {
        let name = format!("push f32 x {PUSH_DIM} x {batch}");
        let bytes = PUSH_DIM as usize * 4;
        for _ in 0..options.rounds {
            let seconds = options.seconds;
            let figure = redis::run_mset(&mut redis, PUSH_ROWS, bytes, batch, seconds)?;
            table.add(&name, "redis", figure);
            let figure = mneme::run_push(&client, PUSH_ROWS, PUSH_DIM, batch, seconds)?;
            table.add(&name, "mneme quic", figure);
        }
    }
    Ok(())
}
