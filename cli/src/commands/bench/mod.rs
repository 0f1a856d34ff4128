//! `mneme bench`: how fast a table's rows are pulled and pushed from here.

mod draw;
mod run;

use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use hdrhistogram::Histogram;
use mneme_proto::schema::TableKind;
use serde::Serialize;

use super::Session;
use crate::limits::{BENCH_BATCH_MAX, BENCH_KEYS_MAX, BENCH_NEW_KEYS, BENCH_THREADS_MAX};
use crate::output::{bytes, count, fields, of};
pub use draw::Distribution;
use draw::KeySpace;
use run::{Job, Work};

/// Measure how fast a table's rows are pulled and pushed.
#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    command: BenchCommand,
}

#[derive(Debug, Subcommand)]
enum BenchCommand {
    /// Pull rows.
    Pull(Load),
    /// Push rows: this CHANGES the table, so use one made for it.
    ///
    /// Pushes small gradients, or assigns zeros where the table has no optimizer.
    Push(Load),
}

/// What is asked of the table.
#[derive(Debug, Args)]
struct Load {
    /// The table.
    name: String,
    /// Keys of each call.
    #[arg(long, value_name = "KEYS", default_value_t = 1024,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(BENCH_BATCH_MAX)))]
    batch: u32,
    /// Threads, each with a client of its own.
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(BENCH_THREADS_MAX)))]
    threads: u32,
    /// How long to measure, after a warm-up of 1 s.
    #[arg(long, value_name = "S", default_value_t = 5,
          value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// How keys are drawn: uniform, or zipf:S with an exponent like 1.05. Of a hashed table from
    /// the keys that it has, or from 0 to 999,999 where it has none.
    #[arg(long, value_name = "HOW", default_value = "uniform")]
    keys: Distribution,
}

/// Adds the time of a call to `times`, in ns.
pub fn record(times: &mut Histogram<u64>, time: Duration) {
    let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    times
        .record(ns)
        .expect("a histogram that resizes itself takes every value");
}

/// The figures of a bench.
#[derive(Debug, Serialize)]
pub struct Figures {
    /// Rows a second, all threads together.
    pub rows_per_s: f64,
    /// Bytes of rows (or of values pushed) a second.
    pub bytes_per_s: f64,
    /// Median time of a call, µs.
    pub p50_us: f64,
    /// Its 99th percentile, µs.
    pub p99_us: f64,
    /// Calls that did what they should.
    pub calls: u64,
    /// Calls that failed; they count for nothing else.
    pub errors: u64,
    /// The path that was taken.
    pub path: String,
}

impl Figures {
    /// Sums up calls of `batch` rows of `row_bytes`, whose times in ns are in `times`.
    #[must_use]
    pub fn of(
        times: &Histogram<u64>,
        errors: u64,
        batch: u64,
        row_bytes: u64,
        elapsed: Duration,
        path: &str,
    ) -> Self {
        let us = |quantile| times.value_at_quantile(quantile) as f64 / 1000.0;
        let rows_per_s = (times.len() * batch) as f64 / elapsed.as_secs_f64();
        Self {
            rows_per_s,
            bytes_per_s: rows_per_s * row_bytes as f64,
            p50_us: us(0.5),
            p99_us: us(0.99),
            calls: times.len(),
            errors,
            path: path.to_owned(),
        }
    }

    fn text(&self) -> String {
        fields([
            ("rows/s", count(self.rows_per_s as u64)),
            ("bytes/s", bytes(self.bytes_per_s as u64)),
            ("p50", format!("{:.1} us", self.p50_us)),
            ("p99", format!("{:.1} us", self.p99_us)),
            ("calls", count(self.calls)),
            ("errors", count(self.errors)),
            ("path", self.path.clone()),
        ])
    }
}

/// Runs the command.
///
/// # Errors
/// One line, also when no call succeeded.
pub fn run(args: &BenchArgs, session: &Session) -> anyhow::Result<()> {
    let (load, pushes) = match &args.command {
        BenchCommand::Pull(load) => (load, false),
        BenchCommand::Push(load) => (load, true),
    };
    let (client, table) = session.table(&load.name)?;
    let spec = table.spec();
    let space = match spec.kind {
        TableKind::Dense { rows: 0 } => bail!("table '{}' has no rows to measure with", load.name),
        TableKind::Dense { rows } => KeySpace::Below(rows),
        TableKind::Hashed => {
            let mut keys = Vec::new();
            let mut scan = table.scan(session.step_deadline())?;
            while keys.len() < BENCH_KEYS_MAX
                && let Some(rows) = scan.next(u32::MAX)?
            {
                keys.extend(rows.keys);
            }
            match keys.len() {
                0 => KeySpace::Below(BENCH_NEW_KEYS),
                _ => KeySpace::These(keys),
            }
        }
    };
    let path = table.where_key(space.key(0))?;
    let path = path.paths.iter().find(|path| path.chosen);
    let path = path.map_or("none", |path| path.path.word());
    client.close();
    let job = Job {
        config: session.client_config()?,
        table: load.name.clone(),
        work: match pushes {
            true => Work::push_to(&spec),
            false => Work::Pull,
        },
        batch: load.batch as usize,
        threads: load.threads as usize,
        time: Duration::from_secs(load.seconds),
    };
    let value_bytes = u64::from(job.work.value_bytes(&spec));
    let measured = job.run(&space, load.keys)?;
    if measured.times.is_empty() {
        let why = measured
            .error
            .map_or_else(|| "no call ended in time".into(), |e| e.to_string());
        bail!("bench of table '{}': {why}", load.name);
    }
    let batch = u64::from(load.batch);
    let times = &measured.times;
    let figures = Figures::of(times, measured.errors, batch, value_bytes, job.time, path);
    let printed = session.output.print(&figures, || figures.text());
    printed.context("printing")?;
    match &measured.error {
        Some(error) => bail!(
            "{} failed, the first one: {error}",
            of(measured.errors, "call")
        ),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_known_calls() {
        let mut times = Histogram::new(3).expect("legal");
        for us in 1..=100 {
            record(&mut times, Duration::from_micros(us));
        }
        let figures = Figures::of(&times, 2, 1000, 264, Duration::from_secs(2), "quic");
        assert_eq!((figures.calls, figures.errors), (100, 2));
        assert_eq!(
            (figures.rows_per_s, figures.bytes_per_s),
            (50_000.0, 13_200_000.0)
        );
        assert!((figures.p50_us - 50.0).abs() < 0.1, "{}", figures.p50_us);
        assert!((figures.p99_us - 99.0).abs() < 0.1, "{}", figures.p99_us);
        let json = serde_json::to_value(&figures).expect("JSON");
        for name in [
            "rows_per_s",
            "bytes_per_s",
            "p50_us",
            "p99_us",
            "calls",
            "errors",
            "path",
        ] {
            assert!(json.get(name).is_some(), "{name}");
        }
    }
}
