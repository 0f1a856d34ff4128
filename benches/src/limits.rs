//! Bounds of a benchmark run.

use std::time::Duration;

/// Uncounted time before each measurement: connections warm, memory touched, clocks up.
pub const WARM_UP: Duration = Duration::from_millis(500);

/// Rows of one push, and of one pull beside it, while a table grows.
pub const GROWTH_BATCH: usize = 1024;

/// Steps of an index's growth at a time, when nobody pushes.
pub const GROWTH_SETTLE_STEPS: u32 = 1024;

/// How long a peer's server may take to answer its first request.
pub const PEER_START: Duration = Duration::from_secs(10);

/// Calls whose latency is kept per measurement; more are counted but not kept, so that the
/// record of a fast peer does not grow without end.
pub const CALLS_KEPT_MAX: usize = 4_000_000;
