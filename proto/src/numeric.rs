//! Numbers of the stored dtypes and f32, both ways, the same bits on every machine.
//!
//! To f32 is exact. From f32 is rounded to nearest even, subnormals kept, a NaN quieted with its
//! sign and the upper bits of its payload, and what is too large becomes an infinity, or NaN in
//! f8e4m3, which has none (DESIGN 16). Stochastic rounding is by choice of the table. Integer
//! arithmetic alone: neither the rounding mode nor flush-to-zero of a caller's thread matters.
//!
//! ```text
//!          sign exponent mantissa  bias  overflow
//! f16        1      5       10      15   infinity
//! bf16       1      8        7     127   infinity
//! f8e4m3     1      4        3       7   NaN (0x7F, 0xFF)
//! f8e5m2     1      5        2      15   infinity
//! ```

use crate::dtype::Dtype;
use crate::mix64::mix64;

/// The increment of a Weyl sequence: 2^64 divided by the golden ratio, made odd.
const WEYL: u64 = 0x9E37_79B9_7F4A_7C15;

const F32_MANTISSA: u32 = 23;
const F32_BIAS: u32 = 127;
const F32_INFINITY: u32 = 0x7F80_0000;

/// The layout of a narrow float.
#[derive(Debug, Clone, Copy)]
struct Layout {
    exponent: u32,
    mantissa: u32,
    /// Whether all ones in the exponent stand for infinity and NaN.
    infinity: bool,
}

const F16: Layout = Layout {
    exponent: 5,
    mantissa: 10,
    infinity: true,
};
const BF16: Layout = Layout {
    exponent: 8,
    mantissa: 7,
    infinity: true,
};
const F8E4M3: Layout = Layout {
    exponent: 4,
    mantissa: 3,
    infinity: false,
};
const F8E5M2: Layout = Layout {
    exponent: 5,
    mantissa: 2,
    infinity: true,
};

impl Layout {
    const fn bias(self) -> u32 {
        (1 << (self.exponent - 1)) - 1
    }

    const fn sign(self, bits: u32) -> u32 {
        bits >> 31 << (self.exponent + self.mantissa)
    }

    /// The magnitude of the first value that is not finite.
    const fn overflow(self) -> u32 {
        if self.infinity {
            ((1 << self.exponent) - 1) << self.mantissa
        } else {
            (1 << (self.exponent + self.mantissa)) - 1
        }
    }

    const fn nan(self, bits: u32) -> u32 {
        if self.infinity {
            let payload = (bits & 0x007F_FFFF) >> (F32_MANTISSA - self.mantissa);
            self.overflow() | 1 << (self.mantissa - 1) | payload
        } else {
            self.overflow()
        }
    }

    /// The significand of a finite f32 magnitude, how many of its low bits are dropped, and what
    /// to add to the rest: the exponent without the implicit bit.
    #[inline(always)]
    const fn split(self, magnitude: u32) -> (u64, u32, u32) {
        let exponent = magnitude >> F32_MANTISSA;
        let (significand, exponent) = if exponent == 0 {
            (magnitude, 1)
        } else {
            (magnitude & 0x007F_FFFF | 1 << F32_MANTISSA, exponent)
        };
        let drop = F32_MANTISSA - self.mantissa;
        // The exponent that this layout's subnormals and its smallest normals share.
        let lowest = F32_BIAS + 1 - self.bias();
        if exponent >= lowest {
            (
                significand as u64,
                drop,
                (exponent - lowest) << self.mantissa,
            )
        } else {
            (significand as u64, drop + (lowest - exponent), 0)
        }
    }

    /// The nearest value, ties to even.
    #[inline(always)]
    const fn nearest(self, bits: u32) -> u32 {
        let (sign, magnitude) = (self.sign(bits), bits & 0x7FFF_FFFF);
        if magnitude > F32_INFINITY {
            return sign | self.nan(bits);
        }
        if magnitude == F32_INFINITY {
            return sign | self.overflow();
        }
        let (significand, drop, base) = self.split(magnitude);
        if drop > F32_MANTISSA + 2 {
            return sign; // less than half of the smallest subnormal
        }
        let odd = significand >> drop & 1;
        let half = (1u64 << drop) >> 1;
        let rounded = if drop == 0 {
            significand
        } else {
            (significand + half - 1 + odd) >> drop
        };
        let magnitude = base + rounded as u32;
        let overflow = self.overflow();
        sign | if magnitude < overflow {
            magnitude
        } else {
            overflow
        }
    }

    /// One of the two neighbours, the nearer the likelier: up where the dropped bits plus `noise`
    /// carry. What nearest even brings into range stays there.
    #[inline(always)]
    const fn stochastic(self, bits: u32, noise: u64) -> u32 {
        let nearest = self.nearest(bits);
        let magnitude = bits & 0x7FFF_FFFF;
        let sign = self.sign(bits);
        let overflow = self.overflow();
        if magnitude >= F32_INFINITY || nearest ^ sign >= overflow {
            return nearest;
        }
        let (significand, drop, base) = self.split(magnitude);
        let drop = if drop < 63 { drop } else { 63 };
        let rounded = (significand + (noise & ((1 << drop) - 1))) >> drop;
        let magnitude = base + rounded as u32;
        sign | if magnitude < overflow {
            magnitude
        } else {
            overflow - 1
        }
    }

    /// The same value as f32.
    #[inline(always)]
    const fn widen(self, bits: u32) -> u32 {
        let sign = bits >> (self.exponent + self.mantissa) << 31;
        let magnitude = bits & ((1 << (self.exponent + self.mantissa)) - 1);
        let shift = F32_MANTISSA - self.mantissa;
        if magnitude >= self.overflow() {
            let payload = match self.infinity {
                true => (magnitude & ((1 << self.mantissa) - 1)) << shift,
                false => 1 << (F32_MANTISSA - 1),
            };
            return sign | F32_INFINITY | payload;
        }
        let rebias = F32_BIAS - self.bias();
        if magnitude >> self.mantissa != 0 {
            return sign | ((magnitude << shift) + (rebias << F32_MANTISSA));
        }
        if magnitude == 0 || rebias == 0 {
            return sign | magnitude << shift;
        }
        // A subnormal, normal as f32.
        let lead = 31 - magnitude.leading_zeros();
        let exponent = rebias + 1 + lead - self.mantissa;
        sign | exponent << F32_MANTISSA | (magnitude << (F32_MANTISSA - lead) & 0x007F_FFFF)
    }
}

/// All values of an 8-bit float as f32.
const fn table(layout: Layout) -> [f32; 256] {
    let mut values = [0.0; 256];
    let mut bits = 0;
    while bits < 256 {
        values[bits] = f32::from_bits(layout.widen(bits as u32));
        bits += 1;
    }
    values
}

static E4M3: [f32; 256] = table(F8E4M3);
static E5M2: [f32; 256] = table(F8E5M2);

/// The nearest f16, as its bits.
#[must_use]
pub const fn f16_of(value: f32) -> u16 {
    F16.nearest(value.to_bits()) as u16
}

/// The nearest bf16, as its bits.
#[must_use]
#[inline]
pub const fn bf16_of(value: f32) -> u16 {
    let bits = value.to_bits();
    // An f32 without its lower half: no exponent to change, no subnormals of its own.
    let rounded = bits.wrapping_add(0x7FFF + (bits >> 16 & 1)) >> 16;
    let nan = bits >> 16 | 0x40;
    (if bits & 0x7FFF_FFFF > F32_INFINITY {
        nan
    } else {
        rounded
    }) as u16
}

/// The nearest f8e4m3, as its bits.
#[must_use]
pub const fn f8e4m3_of(value: f32) -> u8 {
    F8E4M3.nearest(value.to_bits()) as u8
}

/// The nearest f8e5m2, as its bits.
#[must_use]
pub const fn f8e5m2_of(value: f32) -> u8 {
    F8E5M2.nearest(value.to_bits()) as u8
}

/// The value of an f16.
#[must_use]
pub const fn of_f16(bits: u16) -> f32 {
    f32::from_bits(F16.widen(bits as u32))
}

/// The value of a bf16.
#[must_use]
pub const fn of_bf16(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

/// The value of an f8e4m3.
#[must_use]
pub fn of_f8e4m3(bits: u8) -> f32 {
    E4M3[bits as usize]
}

/// The value of an f8e5m2.
#[must_use]
pub fn of_f8e5m2(bits: u8) -> f32 {
    E5M2[bits as usize]
}

/// Values of `dtype`, little-endian, as f32: exact.
///
/// # Panics
/// If `from` does not have `to.len()` elements.
pub fn widen(dtype: Dtype, from: &[u8], to: &mut [f32]) {
    assert_eq!(from.len(), to.len() * dtype.bytes() as usize, "elements");
    match dtype {
        Dtype::F32 => each(from, to, f32::from_le_bytes),
        Dtype::F16 => each(from, to, |b| of_f16(u16::from_le_bytes(b))),
        Dtype::Bf16 => each(from, to, |b| of_bf16(u16::from_le_bytes(b))),
        Dtype::F8e4m3 => each(from, to, |[b]| of_f8e4m3(b)),
        Dtype::F8e5m2 => each(from, to, |[b]| of_f8e5m2(b)),
        Dtype::I8 => each(from, to, |[b]| f32::from(b as i8)),
        Dtype::U8 => each(from, to, |[b]| f32::from(b)),
    }
}

fn each<const N: usize>(from: &[u8], to: &mut [f32], value: impl Fn([u8; N]) -> f32) {
    for (to, from) in to.iter_mut().zip(from.as_chunks::<N>().0) {
        *to = value(*from);
    }
}

/// f32 as values of `dtype`, little-endian, by nearest even. For i8 and u8 the nearest whole
/// number in range (NaN is 0); callers that must not round check before.
///
/// # Panics
/// If `to` does not have `from.len()` elements.
pub fn narrow(dtype: Dtype, from: &[f32], to: &mut [u8]) {
    assert_eq!(to.len(), from.len() * dtype.bytes() as usize, "elements");
    match dtype {
        Dtype::F32 => fill(from, to, |_, v| v.to_le_bytes()),
        Dtype::F16 => fill(from, to, |_, v| f16_of(v).to_le_bytes()),
        Dtype::Bf16 => fill(from, to, |_, v| bf16_of(v).to_le_bytes()),
        Dtype::F8e4m3 => fill(from, to, |_, v| [f8e4m3_of(v)]),
        Dtype::F8e5m2 => fill(from, to, |_, v| [f8e5m2_of(v)]),
        Dtype::I8 => fill(from, to, |_, v| [(v.round_ties_even() as i8) as u8]),
        Dtype::U8 => fill(from, to, |_, v| [v.round_ties_even() as u8]),
    }
}

fn fill<const N: usize>(from: &[f32], to: &mut [u8], bytes: impl Fn(usize, f32) -> [u8; N]) {
    let to = to.as_chunks_mut::<N>().0.iter_mut();
    for (lane, (to, from)) in to.zip(from).enumerate() {
        *to = bytes(lane, *from);
    }
}

/// Noise for stochastic rounding: a pure function of what it was made of and of the lane, so that
/// replicas and repeats agree (I-10), and lanes of a row are not all rounded the same way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Noise(u64);

impl Noise {
    /// The noise of these words, in this order.
    #[must_use]
    pub fn of(words: &[u64]) -> Self {
        let mix = |stream: u64, word: &u64| mix64(stream ^ word.wrapping_add(WEYL));
        Self(words.iter().fold(WEYL, mix))
    }

    /// The noise of this and one word more.
    #[must_use]
    pub fn with(self, word: u64) -> Self {
        Self(mix64(self.0 ^ word.wrapping_add(WEYL)))
    }

    /// 64 bits for one lane.
    #[must_use]
    #[inline]
    pub fn lane(self, lane: usize) -> u64 {
        mix64(self.0.wrapping_add((lane as u64 + 1).wrapping_mul(WEYL)))
    }
}

/// As [`narrow`] with stochastic rounding of the float dtypes: a value between two neighbours
/// becomes the upper one with the probability of its distance from the lower. Representable
/// values, infinities and NaN are as in [`narrow`]. `first` is the lane of `from[0]`.
///
/// # Panics
/// As [`narrow`].
pub fn narrow_stochastic(dtype: Dtype, from: &[f32], to: &mut [u8], noise: Noise, first: usize) {
    assert_eq!(to.len(), from.len() * dtype.bytes() as usize, "elements");
    let rounded = |layout: Layout, lane: usize, value: f32| {
        layout.stochastic(value.to_bits(), noise.lane(first + lane))
    };
    match dtype {
        Dtype::F16 => fill(from, to, |l, v| (rounded(F16, l, v) as u16).to_le_bytes()),
        Dtype::Bf16 => fill(from, to, |l, v| (rounded(BF16, l, v) as u16).to_le_bytes()),
        Dtype::F8e4m3 => fill(from, to, |l, v| [rounded(F8E4M3, l, v) as u8]),
        Dtype::F8e5m2 => fill(from, to, |l, v| [rounded(F8E5M2, l, v) as u8]),
        Dtype::F32 | Dtype::I8 | Dtype::U8 => narrow(dtype, from, to),
    }
}

/// Whether every value is finite.
#[must_use]
pub fn all_finite(dtype: Dtype, bytes: &[u8]) -> bool {
    let finite = |layout: Layout, bits: u32| {
        bits & ((1 << (layout.exponent + layout.mantissa)) - 1) < layout.overflow()
    };
    let pairs = |layout| {
        let pairs = bytes.as_chunks::<2>().0.iter();
        pairs.fold(true, |all, b| {
            all & finite(layout, u16::from_le_bytes(*b).into())
        })
    };
    let single = |layout| {
        bytes
            .iter()
            .fold(true, |all, b| all & finite(layout, (*b).into()))
    };
    match dtype {
        Dtype::F32 => {
            let words = bytes.as_chunks::<4>().0.iter();
            words.fold(true, |all, b| all & f32::from_le_bytes(*b).is_finite())
        }
        Dtype::F16 => pairs(F16),
        Dtype::Bf16 => pairs(BF16),
        Dtype::F8e4m3 => single(F8E4M3),
        Dtype::F8e5m2 => single(F8E5M2),
        Dtype::I8 | Dtype::U8 => true,
    }
}

#[cfg(test)]
mod tests;
