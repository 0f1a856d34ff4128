//! The threads of a bench: each with its own client, all measuring over the same time.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use mneme_client::blocking::{Client, Table};
use mneme_client::{ClientConfig, ClientError, PullOptions, PushOptions, Values};
use mneme_proto::frame::{PushMode, Status};
use mneme_proto::schema::{Optimizer, TableSpec};
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::draw::{Distribution, KeySpace};
use super::record;
use crate::limits::{BENCH_KEYS_DRAWN, BENCH_WARM_UP};

/// What each call does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Pulls.
    Pull,
    /// Pushes gradients.
    Gradient,
    /// Assigns rows.
    Assign,
}

impl Work {
    /// The push that a table takes.
    #[must_use]
    pub fn push_to(spec: &TableSpec) -> Self {
        match spec.optimizer {
            Optimizer::None => Self::Assign,
            _ => Self::Gradient,
        }
    }

    /// Bytes moved for each key.
    #[must_use]
    pub fn value_bytes(self, spec: &TableSpec) -> u32 {
        match self {
            Self::Pull | Self::Assign => spec.row_bytes(),
            Self::Gradient => spec.schema.dim() * 4,
        }
    }
}

/// A bench.
#[derive(Debug)]
pub struct Job {
    /// How threads reach the cluster.
    pub config: ClientConfig,
    /// The table.
    pub table: String,
    /// What each call does.
    pub work: Work,
    /// Keys of a call.
    pub batch: usize,
    /// Threads.
    pub threads: usize,
    /// How long to measure.
    pub time: Duration,
}

/// What the threads saw.
#[derive(Debug)]
pub struct Measured {
    /// Times of calls that succeeded, ns.
    pub times: Histogram<u64>,
    /// Calls that failed.
    pub errors: u64,
    /// The first of their errors.
    pub error: Option<ClientError>,
}

impl Measured {
    fn new() -> Self {
        Self {
            times: Histogram::new(3).expect("three digits are legal"),
            errors: 0,
            error: None,
        }
    }

    fn merge(&mut self, other: Self) {
        self.times
            .add(other.times)
            .expect("histograms that resize themselves can be added");
        self.errors += other.errors;
        self.error = self.error.take().or(other.error);
    }
}

impl Job {
    /// Runs all threads and sums up.
    ///
    /// # Errors
    /// A client that does not connect.
    pub fn run(&self, space: &KeySpace, keys: Distribution) -> anyhow::Result<Measured> {
        let start = Barrier::new(self.threads);
        let results: Vec<Result<Measured, ClientError>> = std::thread::scope(|scope| {
            let thread = |seed: usize| {
                let start = &start;
                scope.spawn(move || {
                    let mut rng = StdRng::seed_from_u64(seed as u64);
                    let drawn = BENCH_KEYS_DRAWN.next_multiple_of(self.batch);
                    let keys = keys.draw(space, drawn, &mut rng);
                    let opened = Client::connect(self.config.clone())
                        .and_then(|client| client.table(&self.table).map(|table| (client, table)));
                    // All wait here, also those that failed: nobody waits for them for ever.
                    start.wait();
                    let (client, table) = opened?;
                    let measured = self.measure(&table, &keys);
                    client.close();
                    Ok(measured)
                })
            };
            let threads: Vec<_> = (0..self.threads).map(thread).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().map(join).collect()
        });
        let mut all = Measured::new();
        for result in results {
            all.merge(result?);
        }
        Ok(all)
    }

    fn measure(&self, table: &Table, keys: &[u64]) -> Measured {
        let mut call = Call::new(self.work, table, self.batch);
        let mut batches = keys.chunks_exact(self.batch).cycle();
        let mut next = || batches.next().expect("at least one batch was drawn");
        let warm = Instant::now();
        while warm.elapsed() < BENCH_WARM_UP {
            // An error here comes again below, where it counts.
            let _ = call.run(table, next());
        }
        let mut measured = Measured::new();
        let begin = Instant::now();
        while begin.elapsed() < self.time {
            let sent = Instant::now();
            match call.run(table, next()) {
                Ok(()) => record(&mut measured.times, sent.elapsed()),
                Err(error) => {
                    measured.errors += 1;
                    measured.error.get_or_insert(error);
                }
            }
        }
        measured
    }
}

/// One thread's calls, with the buffers that they share.
struct Call {
    work: Work,
    bytes: Vec<u8>,
    statuses: Vec<Status>,
}

impl Call {
    fn new(work: Work, table: &Table, batch: usize) -> Self {
        let spec = table.spec();
        let bytes = work.value_bytes(&spec) as usize * batch;
        let bytes = match work {
            // Small enough that rows stay finite however long it runs.
            Work::Gradient => 1e-6f32.to_le_bytes().repeat(bytes / 4),
            Work::Pull | Work::Assign => vec![0; bytes],
        };
        Self {
            work,
            bytes,
            statuses: vec![Status::Missing; batch],
        }
    }

    fn run(&mut self, table: &Table, keys: &[u64]) -> Result<(), ClientError> {
        let push = |mode, bytes: &[u8]| {
            let wants_step = mode == PushMode::Gradient && table.spec().optimizer.wants_step();
            let options = PushOptions {
                step: u64::from(wants_step),
                ..PushOptions::default()
            };
            table
                .push(mode, keys, Values::Rows(bytes), &options)
                .map(drop)
        };
        match self.work {
            Work::Pull => {
                let options = PullOptions::default();
                table.pull_into(keys, &mut self.bytes, &mut self.statuses, &options)
            }
            Work::Gradient => push(PushMode::Gradient, &self.bytes),
            Work::Assign => push(PushMode::Assign, &self.bytes),
        }
    }
}
