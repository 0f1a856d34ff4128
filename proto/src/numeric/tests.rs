//! Every pattern of every narrow dtype, the golden conversions, and a model in f64.

use proptest::prelude::*;
use serde_json::Value;

use super::*;

const FLOATS: [(Dtype, Layout); 4] = [
    (Dtype::F16, F16),
    (Dtype::Bf16, BF16),
    (Dtype::F8e4m3, F8E4M3),
    (Dtype::F8e5m2, F8E5M2),
];

fn narrow_one(dtype: Dtype, value: f32) -> u32 {
    let mut bytes = [0; 4];
    narrow(dtype, &[value], &mut bytes[..dtype.bytes() as usize]);
    u32::from_le_bytes(bytes)
}

fn widen_one(dtype: Dtype, bits: u32) -> f32 {
    let mut value = [0.0];
    widen(
        dtype,
        &bits.to_le_bytes()[..dtype.bytes() as usize],
        &mut value,
    );
    value[0]
}

/// B020, B022, B026: the reference's conversions, bit for bit.
#[test]
fn golden_formats() {
    let golden: Value =
        serde_json::from_str(include_str!("../../golden/formats.json")).expect("golden file");
    let bits = |case: &Value, name: &str| {
        let text = case[name].as_str().expect("bits");
        u32::from_str_radix(text.trim_start_matches("0x"), 16).expect("hex")
    };
    for case in golden.as_array().expect("a list") {
        let value = f32::from_bits(bits(case, "f32"));
        for (dtype, _) in FLOATS {
            let wanted = bits(case, dtype.word());
            assert_eq!(narrow_one(dtype, value), wanted, "{value} as {dtype}");
        }
    }
}

/// All 65536 f16 and bf16 patterns and all 256 of each fp8 come back through f32; a signalling
/// NaN comes back quiet.
#[test]
fn every_pattern_comes_back() {
    for (dtype, layout) in FLOATS {
        for bits in 0..1u32 << (dtype.bytes() * 8) {
            let value = widen_one(dtype, bits);
            let magnitude = bits & ((1 << (layout.exponent + layout.mantissa)) - 1);
            let nan = magnitude > layout.overflow() || (!layout.infinity && value.is_nan());
            let quiet = if nan && layout.infinity {
                bits | 1 << (layout.mantissa - 1)
            } else {
                bits
            };
            assert_eq!(value.is_nan(), nan, "{dtype} {bits:#x}");
            assert_eq!(narrow_one(dtype, value), quiet, "{dtype} {bits:#x}");
            let stored = &bits.to_le_bytes()[..dtype.bytes() as usize];
            assert_eq!(all_finite(dtype, stored), value.is_finite());
        }
    }
}

/// The value of every finite pattern, from the format's definition in f64.
#[test]
fn values_are_those_of_the_definition() {
    for (dtype, layout) in FLOATS {
        for magnitude in 0..layout.overflow() {
            let exponent = (magnitude >> layout.mantissa) as i32;
            let fraction = f64::from(magnitude & ((1 << layout.mantissa) - 1));
            let scale = f64::from(1 << layout.mantissa);
            let bias = layout.bias() as i32;
            let wanted = match exponent {
                0 => fraction / scale * 2f64.powi(1 - bias),
                e => (1.0 + fraction / scale) * 2f64.powi(e - bias),
            };
            assert_eq!(f64::from(widen_one(dtype, magnitude)), wanted, "{dtype}");
        }
        assert_eq!(
            widen_one(dtype, layout.overflow() - 1),
            dtype.largest(),
            "{dtype}"
        );
    }
}

/// B026 and its neighbours: ties, overflow, subnormals, NaN.
#[test]
fn edges() {
    for (value, bits) in [
        (65504.0, 0x7BFF),
        (65519.996, 0x7BFF),
        (65520.0, 0x7C00),
        (3e-5, 0x01F7),
        (6e-8, 0x0001),
        (2f32.powi(-25), 0),
        (2f32.powi(-25).next_up(), 1),
        (2049.0, 0x6800),
        (2051.0, 0x6802),
        (-0.0, 0x8000),
    ] {
        assert_eq!(u32::from(f16_of(value)), bits, "{value}");
    }
    for (bits, bf16) in [
        (0x7F7F_8000, 0x7F80),
        (0x7F7F_FFFF, 0x7F80),
        (0x8000_8001, 0x8001),
    ] {
        assert_eq!(bf16_of(f32::from_bits(bits)), bf16);
    }
    assert_eq!(bf16_of(f32::from_bits(0x7F80_0001)), 0x7FC0);
    assert_eq!(f16_of(f32::from_bits(0xFF80_0001)), 0xFE00);
    assert_eq!(
        (f8e4m3_of(f32::NAN), f8e4m3_of(f32::NEG_INFINITY)),
        (0x7F, 0xFF)
    );
    assert_eq!((f8e5m2_of(f32::NAN), f8e5m2_of(61440.0)), (0x7E, 0x7C));
}

/// The value that is nearest by definition: found among neighbours in f64.
fn model(dtype: Dtype, layout: Layout, value: f32) -> u32 {
    let sign = u32::from(value.is_sign_negative()) << (layout.exponent + layout.mantissa);
    let wide = f64::from(value.abs());
    let distance = |m: u32| (f64::from(widen_one(dtype, m)) - wide).abs();
    // The largest magnitude that is not above the value, by halves.
    let (mut low, mut high) = (0, layout.overflow());
    while high - low > 1 {
        let middle = (low + high) / 2;
        if f64::from(widen_one(dtype, middle)) <= wide {
            low = middle;
        } else {
            high = middle;
        }
    }
    if high == layout.overflow() {
        // One step above the largest value stands where the exponents would go on.
        let largest = f64::from(widen_one(dtype, low));
        let step = largest - f64::from(widen_one(dtype, low - 1));
        let even_wins = low % 2 == 1;
        let half = largest + step / 2.0;
        let over = wide > half || (wide == half && even_wins);
        return sign | if over { high } else { low };
    }
    let (down, up) = (distance(low), distance(high));
    sign | if up < down || (up == down && low % 2 == 1) {
        high
    } else {
        low
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    /// Any f32 becomes the nearest value, the even one of two.
    #[test]
    fn any_value_becomes_the_nearest(bits in any::<u32>(), small in -30i32..20) {
        let scaled = f32::from_bits(bits & 0x807F_FFFF | ((127 + small) as u32) << 23);
        for value in [f32::from_bits(bits), scaled] {
            if !value.is_finite() {
                continue;
            }
            for (dtype, layout) in FLOATS {
                let wanted = model(dtype, layout, value);
                prop_assert_eq!(narrow_one(dtype, value), wanted, "{} as {}", value, dtype);
            }
        }
    }

    /// Stochastic rounding gives one of the two neighbours, and keeps what is representable.
    #[test]
    fn stochastic_is_a_neighbour(bits in any::<u32>(), seed in any::<u64>()) {
        let value = f32::from_bits(bits);
        for (dtype, layout) in FLOATS {
            let size = dtype.bytes() as usize;
            let mut bytes = [0; 4];
            narrow_stochastic(dtype, &[value], &mut bytes[..size], Noise::of(&[seed]), 0);
            let rounded = u32::from_le_bytes(bytes);
            let nearest = narrow_one(dtype, value);
            let back = widen_one(dtype, nearest);
            let stored = &nearest.to_le_bytes()[..size];
            if value.is_nan() || back == value || !all_finite(dtype, stored) {
                prop_assert_eq!(rounded, nearest);
                continue;
            }
            let mask = (1u32 << (layout.exponent + layout.mantissa)) - 1;
            prop_assert!((rounded & mask).abs_diff(nearest & mask) <= 1);
            let other = widen_one(dtype, rounded);
            let (low, high) = (back.min(other), back.max(other));
            prop_assert!(rounded == nearest || (low <= value && value <= high));
        }
    }
}

/// B024: 65,536 rows at `1 - 1e-3` in bf16: up to 1 with probability .744003.
#[test]
fn stochastic_means_are_right() {
    let value = f32::from_bits(0x3F7F_BE77);
    let mut sum = 0.0;
    let mut rounded = vec![0; 8 * 2];
    let mut differ = 0;
    for key in 0..65_536u64 / 8 {
        let noise = Noise::of(&[1, 7, key, 1]);
        narrow_stochastic(Dtype::Bf16, &[value; 8], &mut rounded, noise, 0);
        let lanes = rounded.as_chunks::<2>().0;
        differ += usize::from(lanes.iter().any(|lane| lane != &lanes[0]));
        sum += lanes
            .iter()
            .map(|l| f64::from(of_bf16(u16::from_le_bytes(*l))))
            .sum::<f64>();
        let mut again = vec![0; 16];
        narrow_stochastic(Dtype::Bf16, &[value; 8], &mut again, noise, 0);
        assert_eq!(again, rounded);
    }
    let mean = sum / 65_536.0;
    assert!((mean - 0.999).abs() < 2.7e-5, "{mean}");
    assert!(
        differ > 7000,
        "lanes of a row are rounded the same way: {differ}"
    );
}

#[test]
fn whole_numbers() {
    let mut bytes = [0; 4];
    narrow(Dtype::I8, &[-128.0, 127.0, -1.0, 2.5], &mut bytes);
    assert_eq!(bytes, [0x80, 0x7F, 0xFF, 2]);
    let mut values = [0.0; 4];
    widen(Dtype::I8, &bytes, &mut values);
    assert_eq!(values, [-128.0, 127.0, -1.0, 2.0]);
    widen(Dtype::U8, &bytes, &mut values);
    assert_eq!(values, [128.0, 127.0, 255.0, 2.0]);
}
