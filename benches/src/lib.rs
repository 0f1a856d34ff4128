//! Side-by-side measurements of mneme and its peers: same rows, same machine, one run.
//!
//! `make bench` calls the binary `peers`, which starts each peer itself, runs the workloads in
//! turns and prints one table of rows/s with ratios (`benches/RESULTS.md` keeps them, with date
//! and machine). Nothing here is a test: a slow machine makes a small figure, not a failure.
//!
//! Its own crate, so that what only a benchmark needs never burdens users.

pub mod bare_gather;
pub mod bare_quinn;
pub mod engine;
pub mod growth;
pub mod limits;
pub mod mneme;
pub mod redis;
pub mod report;
pub mod workload;
