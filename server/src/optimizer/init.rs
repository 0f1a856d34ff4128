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
//! Sums of integers are modulo 2^64. `G` is added because `mix64(0)` is 0. Floating-point work is f64 with additions, multiplications, divisions
//! and square roots alone, which IEEE 754 rounds the same everywhere; a libm's `ln` does not.
//! `quantile` is algorithm AS 241 (PPND16) of Wichura, 1988, Applied Statistics 37(3).

use mneme_proto::ids::TableId;
use mneme_proto::mix64::mix64;
use mneme_proto::schema::{Dtype, Initializer, TableSpec};

/// 2^64 divided by the golden ratio, made odd: the increment of a Weyl sequence.
const WEYL: u64 = 0x9E37_79B9_7F4A_7C15;

/// Makes the initial rows of one table.
#[derive(Debug, Clone)]
pub struct RowInit {
    init: Initializer,
    stem: u64,
    /// `(is f32, width)` per plane: bytes planes take constants only (checked by the schema).
    planes: Box<[(bool, u32)]>,
}

impl RowInit {
    /// The initializer of table `table` as its spec describes it.
    #[must_use]
    pub fn new(spec: &TableSpec, table: TableId) -> Self {
        let seeded = mix64(spec.seed.wrapping_add(WEYL));
        let planes = spec.schema.planes.iter();
        Self {
            init: spec.init,
            stem: mix64(seeded ^ table.0.wrapping_add(WEYL)),
            planes: planes.map(|p| (p.dtype == Dtype::F32, p.width)).collect(),
        }
    }

    /// Whether every initial row is all zero bytes.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        match self.init {
            Initializer::Zeros => true,
            Initializer::Constant(v) => v.to_bits() == 0,
            _ => false,
        }
    }

    /// Writes the initial row of `key` to `row` (`row_bytes` of the schema).
    pub fn fill(&self, key: u64, row: &mut [u8]) {
        let stream = mix64(self.stem ^ key.wrapping_add(WEYL));
        let mut lane = 0u64;
        let mut rest = row;
        for &(float, width) in &self.planes {
            let bytes = width as usize * if float { 4 } else { 1 };
            let (plane, after) = rest.split_at_mut(bytes);
            if float {
                for slot in plane.chunks_exact_mut(4) {
                    slot.copy_from_slice(&self.value(stream, lane).to_le_bytes());
                    lane += 1;
                }
            } else {
                plane.fill(self.value(stream, lane) as u8);
                lane += u64::from(width);
            }
            rest = after;
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

/// Natural logarithm of a positive normal number from the four operations alone:
/// `ln(m 2^e) = e ln 2 + 2 atanh((m - 1) / (m + 1))`, m in [0.7, 1.42), to about 1e-16.
fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let mut exponent = (bits >> 52) as i64 - 1023;
    let mut m = f64::from_bits(bits & ((1 << 52) - 1) | 1023 << 52);
    if m > std::f64::consts::SQRT_2 {
        m *= 0.5;
        exponent += 1;
    }
    let s = (m - 1.0) / (m + 1.0);
    let square = s * s;
    let series = (0..=12)
        .rev()
        .fold(0.0, |sum, k| sum * square + 1.0 / f64::from(2 * k + 1));
    exponent as f64 * std::f64::consts::LN_2 + 2.0 * s * series
}

fn polynomial(coefficients: &[f64; 8], x: f64) -> f64 {
    coefficients.iter().rev().fold(0.0, |sum, c| sum * x + c)
}

/// The standard normal quantile of `p` in (0, 1): AS 241, PPND16.
fn quantile(p: f64) -> f64 {
    let q = p - 0.5;
    if q.abs() <= 0.425 {
        let r = 0.180_625 - q * q;
        return q * polynomial(&CENTRE_A, r) / polynomial(&CENTRE_B, r);
    }
    let tail = if q < 0.0 { p } else { 1.0 - p };
    let r = (-ln(tail)).sqrt();
    let size = if r <= 5.0 {
        polynomial(&NEAR_C, r - 1.6) / polynomial(&NEAR_D, r - 1.6)
    } else {
        polynomial(&FAR_E, r - 5.0) / polynomial(&FAR_F, r - 5.0)
    };
    if q < 0.0 { -size } else { size }
}

// Coefficients as printed in the paper, lowest power first.
const CENTRE_A: [f64; 8] = [
    3.387_132_872_796_366_608,
    1.331_416_678_917_843_774_5e2,
    1.971_590_950_306_551_442_7e3,
    1.373_169_376_550_946_112_5e4,
    4.592_195_393_154_987_145_7e4,
    6.726_577_092_700_870_085_3e4,
    3.343_057_558_358_812_810_5e4,
    2.509_080_928_730_122_672_7e3,
];
const CENTRE_B: [f64; 8] = [
    1.0,
    4.231_333_070_160_091_125_2e1,
    6.871_870_074_920_579_083e2,
    5.394_196_021_424_751_107_7e3,
    2.121_379_430_158_659_586_7e4,
    3.930_789_580_009_271_061e4,
    2.872_908_573_572_194_267_4e4,
    5.226_495_278_852_854_561e3,
];
const NEAR_C: [f64; 8] = [
    1.423_437_110_749_683_577_34,
    4.630_337_846_156_545_295_9,
    5.769_497_221_460_691_405_5,
    3.647_848_324_763_204_605_04,
    1.270_458_252_452_368_382_58,
    2.417_807_251_774_506_117_7e-1,
    2.272_384_498_926_918_458_33e-2,
    7.745_450_142_783_414_076_4e-4,
];
const NEAR_D: [f64; 8] = [
    1.0,
    2.053_191_626_637_758_821_87,
    1.676_384_830_183_803_849_4,
    6.897_673_349_851_000_045_5e-1,
    1.481_039_764_274_800_745_9e-1,
    1.519_866_656_361_645_719_66e-2,
    5.475_938_084_995_344_946e-4,
    1.050_750_071_644_416_843_24e-9,
];
const FAR_E: [f64; 8] = [
    6.657_904_643_501_103_777_2,
    5.463_784_911_164_114_369_9,
    1.784_826_539_917_291_335_8,
    2.965_605_718_285_048_912_3e-1,
    2.653_218_952_657_612_309_3e-2,
    1.242_660_947_388_078_438_6e-3,
    2.711_555_568_743_487_578_15e-5,
    2.010_334_399_292_288_132_65e-7,
];
const FAR_F: [f64; 8] = [
    1.0,
    5.998_322_065_558_879_376_9e-1,
    1.369_298_809_227_358_053_1e-1,
    1.487_536_129_085_061_485_25e-2,
    7.868_691_311_456_132_591e-4,
    1.846_318_317_510_054_681_8e-5,
    1.421_511_758_316_445_888_7e-7,
    2.044_263_103_389_939_785_64e-15,
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::spec;
    use mneme_proto::schema::RowSchema;

    fn rows(init: Initializer, seed: u64, table: u64, keys: u64, dim: u32) -> Vec<f32> {
        let mut spec = spec("t");
        spec.schema = RowSchema::single(Dtype::F32, dim);
        spec.init = init;
        spec.seed = seed;
        let init = RowInit::new(&spec, TableId(table));
        let mut row = vec![0; dim as usize * 4];
        let mut values = Vec::new();
        for key in 0..keys {
            init.fill(key, &mut row);
            let lanes = row.chunks_exact(4);
            values.extend(lanes.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])));
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

    /// Values of an independent implementation (Python's `statistics.NormalDist().inv_cdf`).
    #[test]
    fn quantile_matches_an_independent_one() {
        for (p, want) in [
            (0.5, 0.0),
            (0.975, 1.959_963_984_540_054),
            (0.001, -3.090_232_306_167_813_3),
            (1e-12, -7.034_483_825_301_131),
            (0.08, -1.405_071_560_309_632_6),
        ] {
            let got = quantile(p);
            assert!(
                (got - want).abs() <= 1e-14 * f64::max(1.0, want.abs()),
                "{p}: {got} {want}"
            );
        }
    }
}
