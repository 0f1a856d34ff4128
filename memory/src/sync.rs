//! The atomics that the lock-free cores use: the standard ones, or loom's under `cfg(loom)`.

#[cfg(not(loom))]
pub(crate) use std::hint::spin_loop;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};

/// Under loom a spinning thread must let others run, else the model never ends.
#[cfg(loom)]
pub(crate) fn spin_loop() {
    loom::thread::yield_now();
}
