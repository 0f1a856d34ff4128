//! Busy polling: a thread that expects the next packet soon looks for it instead of sleeping.
//!
//! Waking a sleeping thread takes tens of microseconds, most of all on virtual machines, as long
//! as a small exchange itself. So a thread that will wait looks again and again, up to a bound,
//! while its waits have lately been shorter than that bound; between two looks it lets other
//! threads run. Where waits grow longer, also because the processors are taken, it sleeps at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// The busy polling of one runtime that runs on one thread.
#[derive(Debug)]
pub struct BusyPoll {
    waits: Waits,
    begun: Notify,
    origin: Instant,
}

/// When to poll: waits, in nanoseconds of any clock.
#[derive(Debug, Default)]
struct Waits {
    bound_ns: u64,
    /// A moving average.
    usual_ns: AtomicU64,
    /// When the wait began; [`NOT_WAITING`].
    began_ns: AtomicU64,
}

const NOT_WAITING: u64 = u64::MAX;

impl BusyPoll {
    /// Polls for waits of up to `bound`; 0 never polls.
    #[must_use]
    pub fn new(bound: Duration) -> Arc<Self> {
        Arc::new(Self {
            waits: Waits::new(bound.as_nanos() as u64),
            begun: Notify::new(),
            origin: Instant::now(),
        })
    }

    /// The thread's runtime has something to wait for.
    pub fn begin(&self) {
        self.waits.begin(self.now_ns());
        if self.waits.is_short() {
            self.begun.notify_one();
        }
    }

    /// What it waited for came.
    pub fn end(&self) {
        self.waits.end(self.now_ns());
    }

    /// Polls during waits; runs on the thread's runtime for as long as that lives.
    pub async fn run(self: Arc<Self>) {
        loop {
            self.begun.notified().await;
            while self.waits.is_short() && self.waits.is_polling(self.now_ns()) {
                std::thread::yield_now();
                // With nothing else to do the runtime asks the system for events, without sleep.
                tokio::task::yield_now().await;
            }
        }
    }

    fn now_ns(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
    }
}

impl Waits {
    fn new(bound_ns: u64) -> Self {
        Self {
            bound_ns,
            usual_ns: AtomicU64::new(0),
            began_ns: AtomicU64::new(NOT_WAITING),
        }
    }

    fn begin(&self, now_ns: u64) {
        self.began_ns.store(now_ns, Ordering::Relaxed);
    }

    fn end(&self, now_ns: u64) {
        let began = self.began_ns.swap(NOT_WAITING, Ordering::Relaxed);
        if began == NOT_WAITING {
            return;
        }
        // A long sleep says no more than that it was long: the average comes back soon.
        let waited = now_ns.saturating_sub(began).min(4 * self.bound_ns);
        let usual = self.usual_ns.load(Ordering::Relaxed);
        self.usual_ns
            .store(usual - usual / 8 + waited / 8, Ordering::Relaxed);
    }

    /// Whether waits have lately been worth polling for.
    fn is_short(&self) -> bool {
        self.usual_ns.load(Ordering::Relaxed) < self.bound_ns
    }

    fn is_polling(&self, now_ns: u64) -> bool {
        let began = self.began_ns.load(Ordering::Relaxed);
        began != NOT_WAITING && now_ns.saturating_sub(began) < self.bound_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Short waits are polled for, up to the bound; long ones turn it off, short ones on again.
    #[test]
    fn polls_while_waits_are_short() {
        let waits = Waits::new(1000);
        let mut now = 0;
        let mut wait = |ns: u64| {
            waits.begin(now);
            let polled = waits.is_short();
            assert_eq!(waits.is_polling(now + 999), ns > 0);
            assert!(!waits.is_polling(now + 1000));
            now += ns;
            waits.end(now);
            assert!(!waits.is_polling(now));
            polled
        };
        assert!(wait(500));
        assert!(wait(1_000_000));
        let off = (0..20).position(|_| !wait(100_000)).expect("turned off");
        assert!(off <= 2, "{off}");
        let on = (0..100).position(|_| wait(100)).expect("turned on");
        assert!(on <= 20, "{on}");
    }

    #[test]
    fn a_bound_of_nothing_never_polls() {
        let waits = Waits::new(0);
        waits.begin(5);
        assert!(!waits.is_short() && !waits.is_polling(5));
        waits.end(6);
        waits.end(7);
        assert!(!waits.is_short());
    }

    /// The task itself: it gives the thread back after the bound, and when the wait ends.
    #[test]
    fn a_runtime_polls_and_ends() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime");
        let poll = BusyPoll::new(Duration::from_secs(3600));
        let polling = runtime.spawn(Arc::clone(&poll).run());
        poll.begin();
        runtime.block_on(async {
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
        });
        poll.end();
        runtime.block_on(tokio::task::yield_now());
        assert!(!poll.waits.is_polling(poll.now_ns()));
        polling.abort();
    }
}
