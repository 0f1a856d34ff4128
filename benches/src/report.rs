//! Figures of one measurement and the table that compares them.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use crate::limits::{CALLS_KEPT_MAX, WARM_UP};

/// What one peer did in one workload.
#[derive(Debug, Clone)]
pub struct Figure {
    /// Rows per second over the counted time.
    pub rows_per_s: f64,
    /// Median time of a call, in microseconds.
    pub p50_us: f64,
    /// 99th percentile of a call, in microseconds.
    pub p99_us: f64,
    /// Calls counted.
    pub calls: usize,
}

/// Calls `call` (which moves `rows` rows) for `seconds` after a warm-up and takes the figure.
///
/// # Errors
/// The first error of a call ends the measurement.
pub fn measure<E>(
    rows: usize,
    seconds: f64,
    mut call: impl FnMut() -> Result<(), E>,
) -> Result<Figure, E> {
    let warm = Instant::now();
    while warm.elapsed() < WARM_UP {
        call()?;
    }
    let mut took_ns: Vec<u64> = Vec::with_capacity(65_536);
    let limit = Duration::from_secs_f64(seconds);
    let start = Instant::now();
    let mut calls = 0;
    let mut before = start;
    while before.duration_since(start) < limit {
        call()?;
        let now = Instant::now();
        if took_ns.len() < CALLS_KEPT_MAX {
            took_ns.push(now.duration_since(before).as_nanos() as u64);
        }
        calls += 1;
        before = now;
    }
    let elapsed = before.duration_since(start).as_secs_f64();
    took_ns.sort_unstable();
    let at = |q: f64| took_ns[((took_ns.len() - 1) as f64 * q) as usize] as f64 / 1e3;
    Ok(Figure {
        rows_per_s: (calls * rows) as f64 / elapsed,
        p50_us: at(0.5),
        p99_us: at(0.99),
        calls,
    })
}

/// A table of figures: one line per (workload, peer), ratios against a named peer.
#[derive(Debug, Default)]
pub struct Table {
    lines: Vec<(String, String, Figure)>,
}

impl Table {
    /// Adds a figure and prints it, so that a long run shows where it is.
    pub fn add(&mut self, workload: &str, peer: &str, figure: Figure) {
        eprintln!(
            "{workload:<28} {peer:<14} {:>12.0} rows/s  p50 {:>9.1} us  p99 {:>9.1} us",
            figure.rows_per_s, figure.p50_us, figure.p99_us
        );
        self.lines.push((workload.into(), peer.into(), figure));
    }

    /// The best of several figures of one peer and workload, if there is one.
    #[must_use]
    pub fn rows_per_s(&self, workload: &str, peer: &str) -> Option<f64> {
        let of = self
            .lines
            .iter()
            .filter(|(w, p, _)| w == workload && p == peer);
        of.map(|(_, _, f)| f.rows_per_s).max_by(f64::total_cmp)
    }

    /// Markdown: rows/s, latencies, and the ratio to every peer of `against` in the workload.
    #[must_use]
    pub fn markdown(&self, against: &[&str]) -> String {
        let mut text = String::from("| workload | peer | M rows/s | p50 us | p99 us |");
        for peer in against {
            write!(text, " x {peer} |").expect("a String takes writes");
        }
        text.push_str("\n|---|---|---:|---:|---:|");
        text.push_str(&"---:|".repeat(against.len()));
        text.push('\n');
        for (workload, peer, figure) in &self.lines {
            write!(
                text,
                "| {workload} | {peer} | {:.3} | {:.1} | {:.1} |",
                figure.rows_per_s / 1e6,
                figure.p50_us,
                figure.p99_us
            )
            .expect("a String takes writes");
            for other in against {
                let ratio = self
                    .rows_per_s(workload, other)
                    .map(|o| figure.rows_per_s / o);
                let cell = ratio.map_or_else(|| " |".into(), |r| format!(" {r:.2} |"));
                text.push_str(&cell);
            }
            text.push('\n');
        }
        text
    }
}
