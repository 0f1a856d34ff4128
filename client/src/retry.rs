//! Retries: at most three tries, jittered, inside the deadline, from a budget of 10 % of traffic
//! (DESIGN 11). Time and randomness are handed in.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::limits::{
    PAUSE_FIRST, PAUSE_MAX, RETRY_FLOOR_PER_S, RETRY_RESERVE, RETRY_SHARE, TRIES_MAX,
};

/// Retries that all calls of a client share, so that an outage does not multiply its load (B077).
#[derive(Debug)]
pub(crate) struct Budget(Mutex<Purse>);

#[derive(Debug)]
struct Purse {
    tokens: f64,
    seen: Instant,
}

impl Budget {
    pub(crate) fn new(now: Instant) -> Self {
        Self(Mutex::new(Purse {
            tokens: RETRY_RESERVE,
            seen: now,
        }))
    }

    /// A call earns its share.
    pub(crate) fn earn(&self) {
        let mut purse = self.purse();
        purse.tokens = (purse.tokens + RETRY_SHARE).min(RETRY_RESERVE);
    }

    /// Whether a retry may be made; takes it from the budget.
    pub(crate) fn spend(&self, now: Instant) -> bool {
        let mut purse = self.purse();
        let idle_s = now.saturating_duration_since(purse.seen).as_secs_f64();
        purse.seen = now;
        purse.tokens = (purse.tokens + idle_s * RETRY_FLOOR_PER_S).min(RETRY_RESERVE);
        if purse.tokens < 1.0 {
            return false;
        }
        purse.tokens -= 1.0;
        true
    }

    fn purse(&self) -> std::sync::MutexGuard<'_, Purse> {
        self.0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// The tries of one call.
#[derive(Debug)]
pub(crate) struct Tries {
    made: u32,
    deadline: Instant,
}

impl Tries {
    pub(crate) fn new(deadline: Instant) -> Self {
        Self { made: 0, deadline }
    }

    /// Begins a try and says until when it may take: half of what is left while others may
    /// follow, so that a peer that fell silent does not use up the whole deadline.
    pub(crate) fn begin(&mut self, now: Instant) -> Instant {
        self.made += 1;
        if self.made >= TRIES_MAX {
            return self.deadline;
        }
        now + self.deadline.saturating_duration_since(now) / 2
    }

    /// The pause before the next try, or `None` if there shall be none. `chance` is uniform in
    /// `[0, 1)`.
    pub(crate) fn pause(&self, now: Instant, budget: &Budget, chance: f64) -> Option<Duration> {
        let full = PAUSE_FIRST
            .saturating_mul(1 << self.made.min(16))
            .min(PAUSE_MAX);
        // Half fixed, half jitter: tries spread, and none comes at once.
        let pause = full.mul_f64(0.5 + 0.5 * chance.clamp(0.0, 1.0));
        let inside = now + pause < self.deadline;
        (self.made < TRIES_MAX && inside && budget.spend(now)).then_some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_tries_inside_the_deadline() {
        let start = Instant::now();
        let budget = Budget::new(start);
        let mut tries = Tries::new(start + Duration::from_secs(4));
        assert_eq!(tries.begin(start), start + Duration::from_secs(2));
        assert!(tries.pause(start, &budget, 0.5).is_some());
        tries.begin(start);
        assert!(tries.pause(start, &budget, 0.5).is_some());
        assert_eq!(tries.begin(start), start + Duration::from_secs(4));
        assert!(tries.pause(start, &budget, 0.5).is_none());
    }

    #[test]
    fn no_pause_crosses_the_deadline() {
        let start = Instant::now();
        let budget = Budget::new(start);
        let mut tries = Tries::new(start + Duration::from_millis(1));
        tries.begin(start);
        assert!(tries.pause(start, &budget, 0.0).is_none());
    }

    /// B077: under a total outage retries are a tenth of the calls.
    #[test]
    fn retries_stay_within_a_tenth_of_traffic() {
        let start = Instant::now();
        let budget = Budget::new(start);
        let mut retries = 0;
        for _ in 0..10_000 {
            budget.earn();
            while budget.spend(start) {
                retries += 1;
            }
        }
        assert!(retries <= 1000 + RETRY_RESERVE as u32, "{retries}");
        // An idle client may retry again after a while.
        assert!(budget.spend(start + Duration::from_secs(1)));
    }

    #[test]
    fn pauses_are_jittered_and_grow() {
        let start = Instant::now();
        let budget = Budget::new(start);
        let mut tries = Tries::new(start + Duration::from_secs(60));
        tries.begin(start);
        let low = tries.pause(start, &budget, 0.0).expect("first retry");
        let high = tries.pause(start, &budget, 0.999).expect("first retry");
        assert!(low < high && high < PAUSE_MAX);
        tries.begin(start);
        assert!(tries.pause(start, &budget, 0.0).expect("second retry") > low);
    }
}
