//! Waiting for a condition, with a deadline and a name for what did not come to be.

use std::time::{Duration, Instant};

use crate::limits::POLL;

/// Looks at `condition` every few milliseconds until it holds.
///
/// # Panics
/// After `within`, naming `what`.
pub fn wait_until(within: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    wait_for(within, what, || condition().then_some(()));
}

/// The same, for a condition that yields something.
///
/// # Panics
/// After `within`, naming `what`.
pub fn wait_for<T>(within: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + within;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(
            Instant::now() < deadline,
            "did not come to be within {within:?}: {what}"
        );
        std::thread::park_timeout(POLL);
    }
}
