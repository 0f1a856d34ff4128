//! Initial rows: a pure function of (seed, table id, key, lane), so that a row is the same on
//! any node, after any restart and when it is made again (B041, I-10).
//!
//! ```text
//! stream(seed, table, key) = mix64(mix64(mix64(seed + G) ^ (table + G)) ^ (key + G))
//! word(lane)               = mix64(stream + (lane + 1) * G)          G = 2^64 / golden ratio
//! u(lane)                  = (word >> 11 + 1/2) / 2^53               in (0, 1)
//! uniform(low, high)       = f32(low + (high - low) * u), below high
//! normal(mean, std)        = f32(mean + std * quantile(u))
//! ```
//!
//! Sums of integers are modulo 2^64. `G` is added because `mix64(0)` is 0. Floating-point work is
//! f64; `quantile` is algorithm AS 241 (PPND16) of Wichura, 1988, Applied Statistics 37(3).

use mneme_proto::ids::TableId;
use mneme_proto::mix64::mix64;
use mneme_proto::schema::{Initializer, TableSpec};

use super::quantile::quantile;

/// 2^64 divided by the golden ratio, made odd: the increment of a Weyl sequence.
const WEYL: u64 = 0x9E37_79B9_7F4A_7C15;

/// Makes the initial rows of one table.
#[derive(Debug, Clone)]
pub struct RowInit {
    init: Initializer,
    stem: u64,
}

impl RowInit {
    /// The initializer of table `table` as its spec describes it.
    #[must_use]
    pub fn new(spec: &TableSpec, table: TableId) -> Self {
        let seeded = mix64(spec.seed.wrapping_add(WEYL));
        Self {
            init: spec.init,
            stem: mix64(seeded ^ table.0.wrapping_add(WEYL)),
        }
    }

    /// Writes the initial values of `key`'s row, before they are rounded to the planes' dtypes.
    pub fn fill(&self, key: u64, values: &mut [f32]) {
        let stream = mix64(self.stem ^ key.wrapping_add(WEYL));
        for (lane, value) in values.iter_mut().enumerate() {
            *value = self.value(stream, lane as u64);
        }
    }

    fn value(&self, stream: u64, lane: u64) -> f32 {
        match self.init {
            Initializer::Zeros => 0.0,
            Initializer::Constant(value) => value,
            Initializer::Uniform { low, high } => {
                let (a, b) = (f64::from(low), f64::from(high));
                let value = (a + (b - a) * unit(stream, lane)) as f32;
                // Rounding to f32 may reach the bound, which is not part of the interval.
                if value < high {
                    value
                } else {
                    high.next_down()
                }
            }
            Initializer::Normal { mean, std } => {
                (f64::from(mean) + f64::from(std) * quantile(unit(stream, lane))) as f32
            }
        }
    }
}

/// A number in (0, 1), never either bound.
fn unit(stream: u64, lane: u64) -> f64 {
    let word = mix64(stream.wrapping_add(lane.wrapping_add(1).wrapping_mul(WEYL)));
    ((word >> 11) as f64 + 0.5) * (1.0 / (1u64 << 53) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::spec;
    use mneme_proto::schema::{Dtype, RowSchema};

    fn rows(init: Initializer, seed: u64, table: u64, keys: u64, dim: u32) -> Vec<f32> {
        let mut spec = spec("t");
        spec.schema = RowSchema::single(Dtype::F32, dim);
        spec.init = init;
        spec.seed = seed;
        let init = RowInit::new(&spec, TableId(table));
        let mut row = vec![0.0; dim as usize];
        let mut values = Vec::new();
        for key in 0..keys {
            init.fill(key, &mut row);
            values.extend_from_slice(&row);
        }
        values
    }

    /// B041: the same arguments give the same bits, in any order and number of calls; any other
    /// seed, table, key or lane gives others.
    #[test]
    fn rows_depend_on_seed_table_and_key_alone() {
        let uniform = Initializer::Uniform {
            low: -0.05,
            high: 0.05,
        };
        let base = rows(uniform, 1, 7, 100, 8);
        assert_eq!(base, rows(uniform, 1, 7, 100, 8));
        assert_ne!(base, rows(uniform, 2, 7, 100, 8));
        assert_ne!(base, rows(uniform, 1, 8, 100, 8));
        assert!(base.iter().all(|v| (-0.05..0.05).contains(v)));
        let mut sorted: Vec<u32> = base.iter().map(|v| v.to_bits()).collect();
        sorted.sort_unstable();
        sorted.dedup();
        assert!(sorted.len() > 795, "lanes repeat: {}", sorted.len());
    }

    /// Bits of an independent implementation of the formula. They are part of the contract: a
    /// changed formula would change every table.
    #[test]
    fn pinned_bits() {
        let uniform = Initializer::Uniform {
            low: -0.05,
            high: 0.05,
        };
        let normal = Initializer::Normal {
            mean: 0.0,
            std: 1.0,
        };
        let bits = |v: Vec<f32>| v.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        assert_eq!(bits(rows(uniform, 1, 1, 2, 2)), PINNED_UNIFORM);
        assert_eq!(bits(rows(normal, 1, 1, 2, 2)), PINNED_NORMAL);
    }
    const PINNED_UNIFORM: [u32; 4] = [0x3C7D_D95A, 0xBCF0_1FAC, 0xBC32_5A8A, 0xBC32_1D23];
    const PINNED_NORMAL: [u32; 4] = [0x3ECC_2060, 0xBF51_3A2D, 0xBE8D_7D17, 0xBE8D_4B1F];

    #[test]
    fn a_uniform_interval_of_one_step_stays_below_its_bound() {
        let low = 1.0f32;
        let uniform = Initializer::Uniform {
            low,
            high: low.next_up(),
        };
        assert!(rows(uniform, 1, 1, 1000, 4).into_iter().all(|v| v == low));
    }

    #[test]
    fn normal_has_its_moments() {
        let values = rows(
            Initializer::Normal {
                mean: 2.0,
                std: 0.5,
            },
            3,
            1,
            20_000,
            4,
        );
        let n = values.len() as f64;
        let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
        let variance = values
            .iter()
            .map(|&v| (f64::from(v) - mean).powi(2))
            .sum::<f64>()
            / n;
        assert!(
            (mean - 2.0).abs() < 0.01 && (variance - 0.25).abs() < 0.01,
            "{mean} {variance}"
        );
    }
}
