//! Optimizers and their options: names, defaults, bounds, and what state each keeps per row.
//!
//! The rules themselves are the node's. Options are f64 as written; a node rounds what a formula
//! takes to f32 where the formula says so (DESIGN 16): `1 - beta2` of an f32 beta is off by
//! hundreds of ulps.

// rkyv's resolver enums repeat the fields of struct variants without their docs.
#![allow(missing_docs)]

use rkyv::{Archive, Deserialize, Serialize};

use crate::schema::SchemaError;

/// Derives what every type of a table's description has.
macro_rules! described {
    ($($(#[$meta:meta])* pub enum $name:ident { $($body:tt)* })*) => {$(
        $(#[$meta])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Archive, Serialize, Deserialize,
            serde::Serialize, serde::Deserialize,
        )]
        #[serde(rename_all = "snake_case")]
        pub enum $name { $($body)* }
    )*};
}

described! {
    /// Whose count an Adam step's number is.
    pub enum StepBy {
        /// Each row's own, kept in its state.
        Row,
        /// The caller's: it comes with the push.
        Caller,
    }

    /// Where Adam's eps stands.
    pub enum EpsForm {
        /// `lr * m^ / (sqrt(v^) + eps)`.
        Standard,
        /// `lr * sqrt(c2) / c1 * m / (sqrt(v) + eps)`, as in torch.optim.SparseAdam.
        TorchSparse,
    }

    /// What weight decay acts on.
    pub enum Decay {
        /// The gradient: `g += weight_decay * w`.
        L2,
        /// The row: `w *= 1 - lr * weight_decay`.
        Decoupled,
    }
}

/// Options of adam and adamw.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Archive,
    Serialize,
    Deserialize,
    serde::Serialize,
    serde::Deserialize,
)]
pub struct Adam {
    /// Learning rate.
    pub lr: f64,
    /// Share of the first moment that stays.
    pub beta1: f64,
    /// Share of the second moment that stays.
    pub beta2: f64,
    /// Added to the root.
    pub eps: f64,
    /// Weight decay, on rows in the push only.
    pub weight_decay: f64,
    /// Whose step number.
    pub step: StepBy,
    /// Where eps stands.
    pub eps_form: EpsForm,
}

/// The optimizer that a node runs on pushed gradients. Arithmetic is f32 (DESIGN 16).
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Archive,
    Serialize,
    Deserialize,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(rename_all = "snake_case", tag = "name")]
pub enum Optimizer {
    /// None: assign, add and delete only; a gradient is refused.
    None,
    /// Stochastic gradient descent: `g += weight_decay * w; m = momentum * m + g; w -= lr * m`
    /// (without momentum `w -= lr * g`).
    Sgd {
        /// Learning rate.
        lr: f64,
        /// Momentum; 0 keeps no state.
        momentum: f64,
        /// L2 weight decay, on rows in the push only.
        weight_decay: f64,
    },
    /// Duchi et al. 2011: `acc += g^2; w -= lr * g / (sqrt(acc) + eps)`.
    Adagrad {
        /// Learning rate.
        lr: f64,
        /// Added to the root.
        eps: f64,
        /// The accumulator of a new row.
        acc0: f64,
    },
    /// One accumulator a row: `acc += mean(g^2); w -= lr / (sqrt(acc) + eps) * g`.
    RowwiseAdagrad {
        /// Learning rate.
        lr: f64,
        /// Added to the root.
        eps: f64,
        /// The accumulator of a new row.
        acc0: f64,
        /// Weight decay, on rows in the push only.
        weight_decay: f64,
        /// What it acts on.
        decay: Decay,
    },
    /// Kingma and Ba 2015, with L2 weight decay.
    Adam(Adam),
    /// Loshchilov and Hutter 2019: adam with decoupled weight decay.
    #[serde(rename = "adamw")]
    AdamW(Adam),
    /// McMahan et al. 2013, per coordinate, with the paper's l2 and beta.
    Ftrl {
        /// Learning rate.
        lr: f64,
        /// L1 regularisation.
        l1: f64,
        /// L2 regularisation.
        l2: f64,
        /// Added to the root.
        beta: f64,
        /// The accumulator of a new row.
        n0: f64,
    },
}

/// The effective value of an option.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
#[serde(untagged)]
pub enum OptionValue {
    /// A number.
    Number(f64),
    /// One of a few words.
    Word(&'static str),
}

impl std::fmt::Display for OptionValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(value) => {
                let text = format!("{value:?}");
                f.write_str(text.strip_suffix(".0").unwrap_or(&text))
            }
            Self::Word(word) => f.write_str(word),
        }
    }
}

/// What a row's state holds, in slab order: 4 B an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatePart {
    /// Its name in JSON.
    pub name: &'static str,
    /// How many there are.
    pub elements: u32,
    /// Whether they are u32 counts instead of f32.
    pub count: bool,
}

/// An option that can be set.
enum Field<'a> {
    Number(&'a mut f64),
    Step(&'a mut StepBy),
    EpsForm(&'a mut EpsForm),
    Decay(&'a mut Decay),
}

const ADAM: Adam = Adam {
    lr: 0.01,
    beta1: 0.9,
    beta2: 0.999,
    eps: 1e-8,
    weight_decay: 0.0,
    step: StepBy::Row,
    eps_form: EpsForm::Standard,
};

impl Optimizer {
    /// All of them with the defaults of `CLI.md`.
    pub const DEFAULTS: [Self; 7] = [
        Self::None,
        Self::Sgd {
            lr: 0.01,
            momentum: 0.0,
            weight_decay: 0.0,
        },
        Self::Adagrad {
            lr: 0.01,
            eps: 1e-10,
            acc0: 0.0,
        },
        Self::RowwiseAdagrad {
            lr: 0.01,
            eps: 1e-8,
            acc0: 0.0,
            weight_decay: 0.0,
            decay: Decay::L2,
        },
        Self::Adam(ADAM),
        Self::AdamW(ADAM),
        Self::Ftrl {
            lr: 0.01,
            l1: 0.0,
            l2: 0.0,
            beta: 1.0,
            n0: 0.0,
        },
    ];

    /// Its word on the command line; `none` without one.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Sgd { .. } => "sgd",
            Self::Adagrad { .. } => "adagrad",
            Self::RowwiseAdagrad { .. } => "rowwise_adagrad",
            Self::Adam(_) => "adam",
            Self::AdamW(_) => "adamw",
            Self::Ftrl { .. } => "ftrl",
        }
    }

    /// What it keeps per row of `dim` elements.
    #[must_use]
    pub fn state_parts(&self, dim: u32) -> Vec<StatePart> {
        let part = |name, elements, count| StatePart {
            name,
            elements,
            count,
        };
        match self {
            Self::Sgd { momentum, .. } if *momentum != 0.0 => vec![part("m", dim, false)],
            Self::Adagrad { .. } => vec![part("acc", dim, false)],
            Self::RowwiseAdagrad { .. } => vec![part("acc", 1, false)],
            Self::Adam(adam) | Self::AdamW(adam) => {
                let mut parts = vec![part("m", dim, false), part("v", dim, false)];
                if adam.step == StepBy::Row {
                    parts.push(part("step", 1, true));
                }
                parts
            }
            Self::Ftrl { .. } => vec![part("n", dim, false), part("z", dim, false)],
            Self::None | Self::Sgd { .. } => vec![],
        }
    }

    /// Whether the step number comes with the push.
    #[must_use]
    pub fn wants_step(&self) -> bool {
        matches!(self, Self::Adam(a) | Self::AdamW(a) if a.step == StepBy::Caller)
    }

    /// Builds an optimizer from its word and `k=v` options over the defaults of `CLI.md`.
    ///
    /// # Errors
    /// [`SchemaError`] naming the option that is unknown, given twice or out of range.
    pub fn from_options(word: &str, options: &[(String, String)]) -> Result<Self, SchemaError> {
        let found = Self::DEFAULTS.into_iter().find(|o| o.word() == word);
        let mut made = found.ok_or_else(|| {
            let known: Vec<&str> = Self::DEFAULTS.iter().map(Self::word).collect();
            let why = format!("'{word}' is unknown; known: {}", known.join(", "));
            SchemaError::new("optimizer", why)
        })?;
        for (at, (name, value)) in options.iter().enumerate() {
            if options[..at].iter().any(|(earlier, _)| earlier == name) {
                return Err(SchemaError::new(name.clone(), "it is given twice"));
            }
            made.set(name, value)?;
        }
        made.validate()?;
        Ok(made)
    }

    /// Sets one option. What it may be is checked by [`Optimizer::validate`].
    ///
    /// # Errors
    /// [`SchemaError`] naming the option: there is none of this name, or the value is no number
    /// or word of it.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), SchemaError> {
        let word = self.word();
        let known = self.options();
        let refused = |why: String| Err(SchemaError::new(name, why));
        let wanted =
            |one: &str, other: &str| format!("'{value}' is unknown; known: {one}, {other}");
        match self.field(name) {
            None => {
                let known: Vec<&str> = known.into_iter().map(|(name, _)| name).collect();
                refused(match known.is_empty() {
                    true => format!("{word} has no such option, nor any other"),
                    false => format!("{word} has no such option; it has: {}", known.join(", ")),
                })
            }
            Some(Field::Number(to)) => match value.parse() {
                Ok(number) => {
                    *to = number;
                    Ok(())
                }
                Err(_) => refused(format!("'{value}' is not a number")),
            },
            Some(Field::Step(to)) => match value {
                "row" => set_to(to, StepBy::Row),
                "caller" => set_to(to, StepBy::Caller),
                _ => refused(wanted("row", "caller")),
            },
            Some(Field::EpsForm(to)) => match value {
                "standard" => set_to(to, EpsForm::Standard),
                "torch_sparse" => set_to(to, EpsForm::TorchSparse),
                _ => refused(wanted("standard", "torch_sparse")),
            },
            Some(Field::Decay(to)) => match value {
                "l2" => set_to(to, Decay::L2),
                "decoupled" => set_to(to, Decay::Decoupled),
                _ => refused(wanted("l2", "decoupled")),
            },
        }
    }

    fn field(&mut self, name: &str) -> Option<Field<'_>> {
        let number = match (self, name) {
            (Self::Adam(adam) | Self::AdamW(adam), _) => return adam.field(name),
            (Self::RowwiseAdagrad { decay, .. }, "decay") => return Some(Field::Decay(decay)),
            (
                Self::Sgd { lr, .. }
                | Self::Adagrad { lr, .. }
                | Self::RowwiseAdagrad { lr, .. }
                | Self::Ftrl { lr, .. },
                "lr",
            ) => lr,
            (Self::Sgd { momentum, .. }, "momentum") => momentum,
            (
                Self::Sgd { weight_decay, .. } | Self::RowwiseAdagrad { weight_decay, .. },
                "weight_decay",
            ) => weight_decay,
            (Self::Adagrad { eps, .. } | Self::RowwiseAdagrad { eps, .. }, "eps") => eps,
            (Self::Adagrad { acc0, .. } | Self::RowwiseAdagrad { acc0, .. }, "acc0") => acc0,
            (Self::Ftrl { l1, .. }, "l1") => l1,
            (Self::Ftrl { l2, .. }, "l2") => l2,
            (Self::Ftrl { beta, .. }, "beta") => beta,
            (Self::Ftrl { n0, .. }, "n0") => n0,
            _ => return None,
        };
        Some(Field::Number(number))
    }

    /// Its options with their effective values, for `describe`.
    #[must_use]
    pub fn options(&self) -> Vec<(&'static str, OptionValue)> {
        /// Every option that any optimizer has, in the order of the documentation.
        const NAMES: [&str; 14] = [
            "lr",
            "momentum",
            "beta1",
            "beta2",
            "eps",
            "acc0",
            "l1",
            "l2",
            "beta",
            "n0",
            "weight_decay",
            "decay",
            "step",
            "eps_form",
        ];
        let mut own = *self;
        let mut options = Vec::new();
        for name in NAMES {
            let value = match own.field(name) {
                None => continue,
                Some(Field::Number(value)) => OptionValue::Number(*value),
                Some(Field::Step(StepBy::Row)) => OptionValue::Word("row"),
                Some(Field::Step(StepBy::Caller)) => OptionValue::Word("caller"),
                Some(Field::EpsForm(EpsForm::Standard)) => OptionValue::Word("standard"),
                Some(Field::EpsForm(EpsForm::TorchSparse)) => OptionValue::Word("torch_sparse"),
                Some(Field::Decay(Decay::L2)) => OptionValue::Word("l2"),
                Some(Field::Decay(Decay::Decoupled)) => OptionValue::Word("decoupled"),
            };
            options.push((name, value));
        }
        options
    }

    /// Checks the hyper-parameters (B014). `lr = 0` is legal except for ftrl, which divides by
    /// it: a push then changes no weight.
    ///
    /// # Errors
    /// [`SchemaError`] naming the option.
    pub fn validate(&self) -> Result<(), SchemaError> {
        for (name, value) in self.options() {
            let OptionValue::Number(value) = value else {
                continue;
            };
            // Formulas take f32: what is checked is what they will see.
            let seen = value as f32;
            let below_one = matches!(name, "momentum" | "beta1" | "beta2");
            let positive = name == "lr" && matches!(self, Self::Ftrl { .. });
            let wanted = match (below_one, positive) {
                (true, _) => "in [0, 1)",
                (_, true) => "finite and > 0",
                _ => "finite and >= 0",
            };
            let legal = seen.is_finite()
                && value >= 0.0
                && (!below_one || seen < 1.0)
                && (!positive || seen > 0.0);
            if !legal {
                let why = format!("{value} is refused: it must be {wanted}");
                return Err(SchemaError::new(name, why));
            }
        }
        Ok(())
    }
}

impl Adam {
    fn field(&mut self, name: &str) -> Option<Field<'_>> {
        Some(match name {
            "lr" => Field::Number(&mut self.lr),
            "beta1" => Field::Number(&mut self.beta1),
            "beta2" => Field::Number(&mut self.beta2),
            "eps" => Field::Number(&mut self.eps),
            "weight_decay" => Field::Number(&mut self.weight_decay),
            "step" => Field::Step(&mut self.step),
            "eps_form" => Field::EpsForm(&mut self.eps_form),
            _ => return None,
        })
    }
}

fn set_to<T>(to: &mut T, value: T) -> Result<(), SchemaError> {
    *to = value;
    Ok(())
}

#[cfg(test)]
mod tests;
