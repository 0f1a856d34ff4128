//! The update rules, one row at a time.

use mneme_proto::schema::{Decay, Optimizer};
use zerocopy::little_endian::F32;

use super::adam::{Adam, Correction};
use super::all_finite;
use super::ftrl::Ftrl;

/// The gradient of one row as it stands in a frame: little-endian, at any alignment.
pub type Gradient<'a> = &'a [F32];

/// An update rule with its hyper-parameters, rounded to f32 where the formula takes f32.
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
    /// `g += l2 * w; acc += mean(g * g); w = w * keep - lr / (sqrt(acc) + eps) * g`. State: one
    /// acc.
    RowwiseAdagrad {
        /// Learning rate.
        lr: f32,
        /// Added to the root.
        eps: f32,
        /// The accumulator of a new row.
        acc0: f32,
        /// L2 weight decay.
        l2: f32,
        /// What decoupled weight decay leaves: 1 without it.
        keep: f32,
    },
    /// Adam and adamw. State: m, v, and with `step=row` the row's step number.
    Adam(Adam),
    /// FTRL-proximal. State: n, z.
    Ftrl(Ftrl),
}

impl From<&Optimizer> for Rule {
    fn from(optimizer: &Optimizer) -> Self {
        match *optimizer {
            Optimizer::None => Self::None,
            Optimizer::Sgd {
                lr,
                momentum,
                weight_decay,
            } => {
                let (lr, weight_decay) = (lr as f32, weight_decay as f32);
                if momentum == 0.0 {
                    Self::Sgd { lr, weight_decay }
                } else {
                    Self::Momentum {
                        lr,
                        momentum: momentum as f32,
                        weight_decay,
                    }
                }
            }
            Optimizer::Adagrad { lr, eps, acc0 } => Self::Adagrad {
                lr: lr as f32,
                eps: eps as f32,
                acc0: acc0 as f32,
            },
            Optimizer::RowwiseAdagrad {
                lr,
                eps,
                acc0,
                weight_decay,
                decay,
            } => Self::RowwiseAdagrad {
                lr: lr as f32,
                eps: eps as f32,
                acc0: acc0 as f32,
                l2: l2_of(weight_decay, decay),
                keep: keep_of(lr, weight_decay, decay),
            },
            Optimizer::Adam(adam) => Self::Adam(Adam::new(&adam, Decay::L2)),
            Optimizer::AdamW(adam) => Self::Adam(Adam::new(&adam, Decay::Decoupled)),
            Optimizer::Ftrl {
                lr,
                l1,
                l2,
                beta,
                n0,
            } => Self::Ftrl(Ftrl {
                lr: lr as f32,
                l1: l1 as f32,
                l2: l2 as f32,
                beta: beta as f32,
                n0: n0 as f32,
            }),
        }
    }
}

/// What L2 weight decay adds to the gradient, per unit of the row.
pub(super) fn l2_of(weight_decay: f64, decay: Decay) -> f32 {
    match decay {
        Decay::L2 => weight_decay as f32,
        Decay::Decoupled => 0.0,
    }
}

/// What decoupled weight decay leaves of the row: exactly 1 without it.
pub(super) fn keep_of(lr: f64, weight_decay: f64, decay: Decay) -> f32 {
    match decay {
        Decay::L2 => 1.0,
        Decay::Decoupled => (1.0 - lr * weight_decay) as f32,
    }
}

/// The steps of one push: what its rows share.
#[derive(Debug)]
pub struct Steps<'r> {
    rule: &'r Rule,
    correction: Correction,
}

impl Rule {
    /// The steps of a push that brought this number (0 where rows count their own).
    #[must_use]
    pub fn steps(&self, number: u64) -> Steps<'_> {
        Steps {
            rule: self,
            correction: Correction::new(number),
        }
    }

    /// Writes the state of a row that has taken no step; `row` is what it starts with.
    pub fn fresh(&self, row: &[f32], state: &mut [f32]) {
        match self {
            Self::Adagrad { acc0, .. } | Self::RowwiseAdagrad { acc0, .. } => state.fill(*acc0),
            Self::Ftrl(ftrl) => ftrl.fresh(row, state),
            Self::None | Self::Sgd { .. } | Self::Momentum { .. } | Self::Adam(_) => {
                state.fill(0.0);
            }
        }
    }

    /// Makes state agree with a row that was set or added to from outside: of FTRL, whose row is
    /// a function of its state. Others keep theirs. False if the state is not finite then.
    pub fn agree(&self, row: &[f32], state: &mut [f32]) -> bool {
        let Self::Ftrl(ftrl) = self else {
            return true;
        };
        ftrl.agree(row, state);
        all_finite(state)
    }
}

impl Steps<'_> {
    /// One step: changes `row` (`dim` long) and `state` (the optimizer's parts, in order).
    pub fn step(&mut self, row: &mut [f32], state: &mut [f32], gradient: Gradient<'_>) {
        debug_assert_eq!(row.len(), gradient.len());
        match self.rule {
            Rule::None => {}
            &Rule::Sgd { lr, weight_decay } => {
                for (w, g) in row.iter_mut().zip(gradient) {
                    let g = g.get() + weight_decay * *w;
                    *w -= lr * g;
                }
            }
            &Rule::Momentum {
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
            &Rule::Adagrad { lr, eps, .. } => {
                for ((w, acc), g) in row.iter_mut().zip(state).zip(gradient) {
                    let g = g.get();
                    *acc += g * g;
                    *w -= lr * g / (acc.sqrt() + eps);
                }
            }
            &Rule::RowwiseAdagrad {
                lr, eps, l2, keep, ..
            } => {
                let square = |(w, g): (&f32, &F32)| {
                    let g = g.get() + l2 * *w;
                    g * g
                };
                let squares = row.iter().zip(gradient).map(square);
                let acc = &mut state[0];
                *acc += sum(squares) / gradient.len() as f32;
                let rate = lr / (acc.sqrt() + eps);
                for (w, g) in row.iter_mut().zip(gradient) {
                    let g = g.get() + l2 * *w;
                    *w = *w * keep - rate * g;
                }
            }
            Rule::Adam(adam) => adam.step(&mut self.correction, row, state, gradient),
            Rule::Ftrl(ftrl) => ftrl.step(row, state, gradient),
        }
    }
}

/// A sum of f32 in a fixed order, whatever the width of vectors (I-10): eight partial sums, by
/// the lane's number modulo eight, then these in pairs.
fn sum(values: impl Iterator<Item = f32>) -> f32 {
    let mut sums = [0.0f32; 8];
    for (lane, value) in values.enumerate() {
        sums[lane % 8] += value;
    }
    let [a, b, c, d, e, f, g, h] = sums;
    ((a + b) + (c + d)) + ((e + f) + (g + h))
}

/// `row += value`, lane by lane.
pub fn add(row: &mut [f32], value: Gradient<'_>) {
    for (w, v) in row.iter_mut().zip(value) {
        *w += v.get();
    }
}

#[cfg(test)]
mod tests;
