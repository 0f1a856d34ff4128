//! Time as liveness counts it: since boot, suspended time included, never set back.

use std::sync::Arc;
use std::time::Duration;

/// A clock that only goes forward; injected, so that tests choose the time.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Duration + Send + Sync>);

impl Clock {
    /// CLOCK_BOOTTIME: a host that slept has been silent.
    #[must_use]
    pub fn boot() -> Self {
        Self::from_fn(|| {
            let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
            let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
            let nanos = u32::try_from(now.tv_nsec).unwrap_or(0);
            Duration::new(seconds, nanos)
        })
    }

    /// A clock that reads `now`.
    pub fn from_fn(now: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// Time since some fixed moment.
    #[must_use]
    pub fn now(&self) -> Duration {
        (self.0)()
    }
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Clock({:?})", self.now())
    }
}
