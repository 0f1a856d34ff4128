//! What a path costs: the map's prediction, and what calls took in fact.

use std::sync::atomic::{AtomicU64, Ordering};

use mneme_proto::map::PathCost;

/// Weight of a new call in the moving average.
const WEIGHT: f64 = 0.125;

/// How calls over one path to one node compare with their prediction: a moving average of
/// observed over predicted time. A ratio, because calls differ in size.
#[derive(Debug, Default)]
pub(crate) struct Observed {
    /// Bits of an f64; 0 until the first call.
    ratio: AtomicU64,
}

impl Observed {
    /// Takes a call of `rows` rows and `bytes` bytes that took `took_ns`.
    pub(crate) fn record(&self, cost: &PathCost, rows: u64, bytes: u64, took_ns: u64) {
        let predicted = cost.predict_ns(rows, bytes).max(1);
        let ratio = took_ns as f64 / predicted as f64;
        let before = f64::from_bits(self.ratio.load(Ordering::Relaxed));
        let after = if before == 0.0 {
            ratio
        } else {
            before + WEIGHT * (ratio - before)
        };
        // Of two calls that end at once one may be lost: it is an average.
        self.ratio.store(after.to_bits(), Ordering::Relaxed);
    }

    /// What a call of this size would take by what was seen; `None` before the first call.
    pub(crate) fn estimate_ns(&self, cost: &PathCost, rows: u64, bytes: u64) -> Option<u64> {
        let ratio = f64::from_bits(self.ratio.load(Ordering::Relaxed));
        (ratio != 0.0).then(|| (cost.predict_ns(rows, bytes) as f64 * ratio) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mneme_proto::map::CostOrigin;

    const COST: PathCost = PathCost {
        fixed_ns: 50_000,
        row_ns: 100,
        kib_ns: 500,
        setup_us: 2000,
        origin: CostOrigin::Configured,
    };

    #[test]
    fn follows_what_calls_take() {
        let observed = Observed::default();
        assert_eq!(observed.estimate_ns(&COST, 1, 264), None);
        for _ in 0..100 {
            let predicted = COST.predict_ns(1024, 1024 * 264);
            observed.record(&COST, 1024, 1024 * 264, predicted * 2);
        }
        let one = COST.predict_ns(1, 264);
        let estimate = observed
            .estimate_ns(&COST, 1, 264)
            .expect("calls were seen");
        assert!(estimate.abs_diff(one * 2) <= 2, "{estimate}");
        observed.record(&COST, 1, 264, one * 10);
        let later = observed
            .estimate_ns(&COST, 1, 264)
            .expect("calls were seen");
        assert!(later > estimate && later < one * 10);
    }
}
