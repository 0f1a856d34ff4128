//! The update rules: sgd and adagrad.

use mneme_proto::schema::Optimizer;
use zerocopy::little_endian::F32;

/// The gradient of one row as it stands in a frame: little-endian, at any alignment.
pub type Gradient<'a> = &'a [F32];

/// An update rule with its hyper-parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rule {
    /// Gradients are refused.
    None,
    /// `g += weight_decay * w; w -= lr * g`. No state.
    Sgd {
        /// Learning rate.
        lr: f32,
        /// L2 weight decay.
        weight_decay: f32,
    },
    /// `g += weight_decay * w; m = momentum * m + g; w -= lr * m`. State: m.
    Momentum {
        /// Learning rate.
        lr: f32,
        /// Share of the last step that stays.
        momentum: f32,
        /// L2 weight decay.
        weight_decay: f32,
    },
    /// `acc += g * g; w -= lr * g / (sqrt(acc) + eps)`. State: acc.
    Adagrad {
        /// Learning rate.
        lr: f32,
        /// Added to the root.
        eps: f32,
        /// The accumulator of a new row.
        acc0: f32,
    },
}

impl From<&Optimizer> for Rule {
    fn from(optimizer: &Optimizer) -> Self {
        match *optimizer {
            Optimizer::None => Self::None,
            Optimizer::Sgd {
                lr,
                momentum: 0.0,
                weight_decay,
            } => Self::Sgd { lr, weight_decay },
            Optimizer::Sgd {
                lr,
                momentum,
                weight_decay,
            } => Self::Momentum {
                lr,
                momentum,
                weight_decay,
            },
            Optimizer::Adagrad { lr, eps, acc0 } => Self::Adagrad { lr, eps, acc0 },
        }
    }
}

impl Rule {
    /// Every element of the state of a row that has taken no step.
    #[must_use]
    pub const fn fresh_value(&self) -> f32 {
        match self {
            Self::Adagrad { acc0, .. } => *acc0,
            Self::None | Self::Sgd { .. } | Self::Momentum { .. } => 0.0,
        }
    }

    /// One step: changes `row` and `state` (both `dim` long, `state` empty for rules without).
    pub fn step(&self, row: &mut [f32], state: &mut [f32], gradient: Gradient<'_>) {
        debug_assert_eq!(row.len(), gradient.len());
        match *self {
            Self::None => {}
            Self::Sgd { lr, weight_decay } => {
                for (w, g) in row.iter_mut().zip(gradient) {
                    let g = g.get() + weight_decay * *w;
                    *w -= lr * g;
                }
            }
            Self::Momentum {
                lr,
                momentum,
                weight_decay,
            } => {
                for ((w, m), g) in row.iter_mut().zip(state).zip(gradient) {
                    let g = g.get() + weight_decay * *w;
                    *m = momentum * *m + g;
                    *w -= lr * *m;
                }
            }
            Self::Adagrad { lr, eps, .. } => {
                for ((w, acc), g) in row.iter_mut().zip(state).zip(gradient) {
                    let g = g.get();
                    *acc += g * g;
                    *w -= lr * g / (acc.sqrt() + eps);
                }
            }
        }
    }
}

/// `row += value`, lane by lane.
pub fn add(row: &mut [f32], value: Gradient<'_>) {
    for (w, v) in row.iter_mut().zip(value) {
        *w += v.get();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn golden() -> Value {
        serde_json::from_str(include_str!("../../golden/optimizers.json")).expect("golden file")
    }

    /// Runs one golden vector over `dim` equal lanes and wants the reference's bits in each.
    fn check(vector: &str, dim: usize) {
        let golden = golden();
        let case = &golden[vector];
        let word = vector.split('_').next().expect("a word");
        let hyper = case["hyper"].as_object().expect("hyper");
        let options: Vec<(String, f32)> = hyper
            .iter()
            .map(|(k, v)| (k.clone(), v.as_f64().expect("number") as f32))
            .collect();
        let optimizer = Optimizer::from_options(word, &options).expect("valid");
        let rule = Rule::from(&optimizer);
        let mut row = vec![case["w0"].as_f64().expect("w0") as f32; dim];
        let mut state = vec![rule.fresh_value(); optimizer.state_names().len() * dim];
        let steps = case["steps"].as_array().expect("steps");
        let after = case["after"].as_array().expect("after");
        for (step, want) in steps.iter().zip(after) {
            if let Some(g) = step.as_f64() {
                rule.step(&mut row, &mut state, &vec![F32::new(g as f32); dim]);
            }
            let bits = want["bits"]
                .as_str()
                .expect("bits")
                .trim_start_matches("0x");
            let bits = u32::from_str_radix(bits, 16).expect("hex");
            assert!(
                row.iter().all(|w| w.to_bits() == bits),
                "{vector}: {row:?} want {want}"
            );
            for name in optimizer.state_names() {
                let want = want["state"][name].as_f64().unwrap_or(0.0) as f32;
                assert!(
                    state.iter().all(|s| *s == want),
                    "{vector} {name}: {state:?} {want}"
                );
            }
        }
    }

    /// I-10, B019: the reference's bits in every lane, whatever the dim.
    #[test]
    fn golden_vectors_are_met_bit_for_bit() {
        for vector in ["sgd", "sgd_momentum", "adagrad"] {
            for dim in [1, 8, 12, 20, 128] {
                check(vector, dim);
            }
        }
    }

    fn adagrad_once(lr: f32, eps: f32, acc: f32, w: f32, g: f32) -> (f32, f32) {
        let rule = Rule::Adagrad { lr, eps, acc0: acc };
        let (mut row, mut state) = ([w], [acc]);
        rule.step(&mut row, &mut state, &[F32::new(g)]);
        (row[0], state[0])
    }

    /// B005: where eps stands and what acc0 is.
    #[test]
    fn adagrad_forms() {
        let close = |got: f32, want: f64| (f64::from(got) - want).abs() < 2e-7;
        assert!(close(
            adagrad_once(0.01, 1e-10, 0.0, 1.0, 1e-8).0,
            0.990_099_01
        ));
        assert!(close(adagrad_once(0.01, 1e-8, 0.0, 1.0, 1e-8).0, 0.995));
        assert!(close(adagrad_once(0.01, 1e-10, 0.0, 1.0, 1.0).0, 0.99));
        assert!(close(
            adagrad_once(0.01, 1e-7, 0.1, 1.0, 1.0).0,
            0.990_465_37
        ));
    }

    /// B002 after the client's sum; B004 in both orders.
    #[test]
    fn adagrad_sums_and_orders() {
        let close = |got: f32, want: f64| (f64::from(got) - want).abs() < 2e-7;
        let (w, acc) = adagrad_once(0.1, 1e-10, 7.0, 1.0, 3.0);
        assert!(close(w, 0.925) && acc == 16.0, "{w} {acc}");
        for (first, second, want) in [(1.0, 2.0, 0.906_909_63), (2.0, 1.0, 0.910_830_22)] {
            let (w, acc) = adagrad_once(0.1, 1e-10, 7.0, 1.0, first);
            let (w, acc) = adagrad_once(0.1, 1e-10, acc, w, second);
            assert!(close(w, want) && acc == 12.0, "{w} {acc}");
        }
    }

    #[test]
    fn infinities_and_nan_are_seen() {
        use crate::optimizer::{all_finite, all_finite_le};
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(!all_finite(&[0.0, bad, 1.0]));
            assert!(!all_finite_le(&[F32::new(0.0), F32::new(bad)]));
        }
        assert!(all_finite(&[
            f32::MAX,
            f32::MIN,
            -0.0,
            f32::MIN_POSITIVE / 2.0
        ]));
        assert!(all_finite(&[]));
    }
}
