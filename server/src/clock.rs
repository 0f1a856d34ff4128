//! The node's clock and its lease. `CLOCK_BOOTTIME` runs on while the machine sleeps, so that a
//! lease that ended during a suspend is over when the node wakes (DESIGN 10).

use std::sync::atomic::{AtomicU64, Ordering};

use rustix::time::{ClockId, clock_gettime};

use crate::limits::NODE_LEASE_HELD;

/// Milliseconds since the machine started.
#[must_use]
pub fn now_ms() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    // Neither is negative: the machine started before this process.
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

/// The node's lease with the catalogue, as the node counts it: from when it sent the renewal,
/// and ten percent short.
#[derive(Debug, Default)]
pub struct Lease {
    until_ms: AtomicU64,
}

impl Lease {
    /// A renewal that was sent at `sent_ms` has been answered.
    pub fn renewed(&self, sent_ms: u64) {
        let until = sent_ms + NODE_LEASE_HELD.as_millis() as u64;
        self.until_ms.fetch_max(until, Ordering::Relaxed);
    }

    /// Whether mutable shards may be served at `now_ms` (I-3).
    #[must_use]
    pub fn is_live(&self, now_ms: u64) -> bool {
        now_ms < self.until_ms.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// I-3: counted from the sending, ended early, never shortened by a late answer.
    #[test]
    fn a_lease_ends_before_the_catalogues() {
        let lease = Lease::default();
        assert!(!lease.is_live(0));
        lease.renewed(1000);
        lease.renewed(500);
        assert!(lease.is_live(1000 + 2699));
        assert!(!lease.is_live(1000 + 2700));
        assert!(now_ms() > 0);
    }
}
