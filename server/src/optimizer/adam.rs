//! Adam and adamw: Kingma and Ba 2015, Loshchilov and Hutter 2019, torch.optim.SparseAdam.
//!
//! ```text
//! g += l2 * w                           (adam: l2 = weight_decay)
//! m  = beta1 * m + (1 - beta1) * g
//! v  = beta2 * v + (1 - beta2) * g * g
//! w *= 1 - lr * weight_decay            (adamw)
//! w -= lr * (m / c1) / (sqrt(v / c2) + eps)                    eps_form=standard
//! w -= lr * sqrt(c2) / c1 * m / (sqrt(v) + eps)                eps_form=torch_sparse
//! c1 = 1 - beta1^t, c2 = 1 - beta2^t
//! ```
//!
//! `1 - beta`, `c1` and `c2` are worked out in f64 from the betas as written, then rounded.

use mneme_proto::schema::{self, Decay, EpsForm, StepBy};

use super::rule::{Gradient, keep_of, l2_of};

/// A row's step number stops here: as f32 bits it is still finite, and every beta's power is 0
/// long before.
const STEP_MAX: u32 = 0x7F7F_FFFF;

/// The hyper-parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Adam {
    lr: f32,
    beta1: f32,
    beta2: f32,
    rest1: f32,
    rest2: f32,
    eps: f32,
    l2: f32,
    keep: f32,
    written: schema::Adam,
}

/// The bias corrections of a step number, kept from row to row: rows of one push often have the
/// same.
#[derive(Debug, Clone, Copy)]
pub(super) struct Correction {
    /// The number that came with the push.
    number: u64,
    /// The number that the rest is for.
    of: u64,
    c1: f32,
    c2: f32,
    /// `lr * sqrt(c2) / c1`.
    rate: f32,
}

impl Correction {
    pub(super) const fn new(number: u64) -> Self {
        Self {
            number,
            of: 0,
            c1: 0.0,
            c2: 0.0,
            rate: 0.0,
        }
    }
}

impl Adam {
    pub(super) fn new(written: &schema::Adam, decay: Decay) -> Self {
        Self {
            lr: written.lr as f32,
            beta1: written.beta1 as f32,
            beta2: written.beta2 as f32,
            rest1: (1.0 - written.beta1) as f32,
            rest2: (1.0 - written.beta2) as f32,
            eps: written.eps as f32,
            l2: l2_of(written.weight_decay, decay),
            keep: keep_of(written.lr, written.weight_decay, decay),
            written: *written,
        }
    }

    pub(super) fn step(
        &self,
        correction: &mut Correction,
        row: &mut [f32],
        state: &mut [f32],
        gradient: Gradient<'_>,
    ) {
        let (m, rest) = state.split_at_mut(row.len());
        let (v, own) = rest.split_at_mut(row.len());
        let number = match (self.written.step, own.first_mut()) {
            (StepBy::Row, Some(own)) => {
                let number = own.to_bits().saturating_add(1).min(STEP_MAX);
                *own = f32::from_bits(number);
                u64::from(number)
            }
            _ => correction.number,
        };
        self.correct(correction, number);
        let Correction { c1, c2, rate, .. } = *correction;
        let lanes = row.iter_mut().zip(m).zip(v).zip(gradient);
        let moments = |w: f32, m: &mut f32, v: &mut f32, g: f32| {
            let g = g + self.l2 * w;
            *m = self.beta1 * *m + self.rest1 * g;
            *v = self.beta2 * *v + self.rest2 * g * g;
        };
        match self.written.eps_form {
            EpsForm::Standard => {
                for (((w, m), v), g) in lanes {
                    moments(*w, m, v, g.get());
                    let kept = *w * self.keep;
                    *w = kept - self.lr * (*m / c1) / ((*v / c2).sqrt() + self.eps);
                }
            }
            EpsForm::TorchSparse => {
                for (((w, m), v), g) in lanes {
                    moments(*w, m, v, g.get());
                    let kept = *w * self.keep;
                    *w = kept - rate * *m / (v.sqrt() + self.eps);
                }
            }
        }
    }

    fn correct(&self, correction: &mut Correction, number: u64) {
        if correction.of == number {
            return;
        }
        let c1 = 1.0 - power(self.written.beta1, number);
        let c2 = 1.0 - power(self.written.beta2, number);
        *correction = Correction {
            number: correction.number,
            of: number,
            c1: c1 as f32,
            c2: c2 as f32,
            rate: (self.written.lr * c2.sqrt() / c1) as f32,
        };
    }
}

/// `base^exponent` from multiplications alone, the same bits on every machine; a libm's `pow`
/// promises nothing of the kind.
fn power(base: f64, exponent: u64) -> f64 {
    let (mut base, mut exponent, mut result) = (base, exponent, 1.0);
    while exponent > 0 {
        if exponent & 1 == 1 {
            result *= base;
        }
        base *= base;
        exponent >>= 1;
    }
    result
}
