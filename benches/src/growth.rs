//! A hashed table that grows from nothing under readers: what a push waits for at most, and what
//! memory it takes against the plan that `table create --dry-run` prints.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use mneme_memory::{MutableReader, plan};
use mneme_proto::frame::PushMode;
use mneme_proto::schema::TableSpec;
use mneme_server::shard::Shard;
use mneme_server::shard::rules::TableRules;

use crate::engine::{self, Pusher};
use crate::limits::{GROWTH_BATCH, GROWTH_SETTLE_STEPS};
use crate::workload::{Keys, fill_row, is_row};

/// What was seen of one step: rows pushed, or deleted.
#[derive(Debug)]
pub struct Step {
    /// What was done.
    pub name: &'static str,
    /// Rows in the table afterwards.
    pub rows: u64,
    /// Rows per second of the one writer, readers beside it.
    pub rows_per_s: f64,
    /// Half of the pushes took at most this.
    pub p50: Duration,
    /// All but one in a thousand.
    pub p999: Duration,
    /// The longest.
    pub longest: Duration,
    /// Rows that readers found and compared meanwhile.
    pub reads: u64,
    /// Bytes that the table has taken, rows, state and index.
    pub bytes: u64,
    /// Bytes that the plan says for these rows.
    pub planned: u64,
    /// Bytes per key beyond its row and its state.
    pub overhead: f64,
}

/// Grows a table of `dim` f32 with adagrad state from nothing to `rows` keys in one shard, deletes
/// half of them and inserts as many others, with `readers` threads that pull keys that are there.
///
/// # Errors
/// When a push is refused, or a reader misses a row that is there or finds another one.
pub fn run(rows: u64, dim: u32, readers: usize) -> Result<Vec<Step>> {
    let spec = engine::spec("adagrad", dim)?;
    let writer = engine::empty(&spec, rows)?;
    let rules = Arc::new(TableRules::new(engine::TABLE, &spec));
    let reader = writer.reader();
    let mut growth = Growth {
        pusher: Pusher::new(Shard::new(rules, 0, engine::EPOCH, writer))?,
        spec,
    };
    // Readers pull keys of `standing.0..standing.1`.
    let standing = [AtomicU64::new(0), AtomicU64::new(0)];
    let (reads, stop) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let reading: Vec<_> = (0..readers)
            .map(|seed| {
                let (reader, standing, reads, stop) = (reader.clone(), &standing, &reads, &stop);
                scope.spawn(move || read(&reader, standing, reads, stop, seed as u64))
            })
            .collect();
        let half = rows / 2;
        let steps = [
            ("insert all", PushMode::Assign, 0..rows),
            ("delete half", PushMode::Delete, 0..half),
            ("insert half", PushMode::Assign, rows..rows + half),
        ]
        .into_iter()
        .map(|(name, mode, keys)| growth.step(name, mode, keys, &standing, &reads))
        .collect();
        stop.store(1, Ordering::Release);
        for reader in reading {
            reader.join().map_err(|_| anyhow!("a reader panicked"))??;
        }
        steps
    })
}

struct Growth {
    pusher: Pusher,
    spec: TableSpec,
}

impl Growth {
    fn step(
        &mut self,
        name: &'static str,
        mode: PushMode,
        keys: std::ops::Range<u64>,
        standing: &[AtomicU64; 2],
        reads: &AtomicU64,
    ) -> Result<Step> {
        let row_bytes = self.spec.row_bytes() as usize;
        let before = reads.load(Ordering::Relaxed);
        if mode == PushMode::Delete {
            standing[0].store(keys.end, Ordering::SeqCst);
        }
        let (mut took, mut values) = (Vec::new(), Vec::new());
        let count = keys.end - keys.start;
        let start = Instant::now();
        for first in keys.clone().step_by(GROWTH_BATCH) {
            let batch: Vec<u64> = (first..keys.end.min(first + GROWTH_BATCH as u64)).collect();
            values.clear();
            if mode == PushMode::Assign {
                values.resize(batch.len() * row_bytes, 0);
                for (key, row) in batch.iter().zip(values.chunks_exact_mut(row_bytes)) {
                    fill_row(*key, row);
                }
            }
            let pushed = Instant::now();
            self.pusher.push(mode, &batch, &values)?;
            took.push(pushed.elapsed());
            if mode == PushMode::Assign {
                standing[1].store(first + batch.len() as u64, Ordering::Release);
            }
        }
        let elapsed = start.elapsed();
        took.sort_unstable();
        let at = |q: f64| took[((took.len() - 1) as f64 * q) as usize];
        while self.pusher.settle(GROWTH_SETTLE_STEPS)? {}
        let writer = self.pusher.rows();
        let (rows, bytes) = (writer.len(), writer.bytes());
        let state_bytes = self.spec.state_bytes();
        let payload = rows * (row_bytes as u64 + u64::from(state_bytes));
        Ok(Step {
            name,
            rows,
            rows_per_s: count as f64 / elapsed.as_secs_f64(),
            p50: at(0.5),
            p999: at(0.999),
            longest: at(1.0),
            reads: reads.load(Ordering::Relaxed) - before,
            bytes,
            planned: plan::mutable_bytes(rows, row_bytes as u32, state_bytes, true),
            overhead: (bytes as f64 - payload as f64) / rows as f64,
        })
    }
}

/// Pulls keys that stand until told to stop.
fn read(
    reader: &MutableReader,
    standing: &[AtomicU64; 2],
    reads: &AtomicU64,
    stop: &AtomicU64,
    seed: u64,
) -> Result<()> {
    let row_bytes = reader.row_bytes();
    let mut keys = vec![0; GROWTH_BATCH];
    let (mut out, mut status) = (vec![0; GROWTH_BATCH * row_bytes], vec![0; GROWTH_BATCH]);
    let mut draws = Keys::new(u64::MAX, seed);
    while stop.load(Ordering::Acquire) == 0 {
        let [from, to] = standing.each_ref().map(|s| s.load(Ordering::SeqCst));
        if from == to {
            std::thread::yield_now();
            continue;
        }
        draws.fill(&mut keys);
        keys.iter_mut()
            .for_each(|key| *key = from + *key % (to - from));
        let outcome = reader.read_batch(&keys, &mut out, &mut status)?;
        // A delete that has begun meanwhile may have taken them.
        if standing[0].load(Ordering::SeqCst) != from {
            continue;
        }
        ensure!(
            outcome.missing == 0,
            "{} keys that are there were missed",
            outcome.missing
        );
        for (key, row) in keys.iter().zip(out.chunks_exact(row_bytes)) {
            ensure!(is_row(*key, row), "key {key} was answered with another row");
        }
        reads.fetch_add(keys.len() as u64, Ordering::Relaxed);
    }
    Ok(())
}
