//! How new rows are made.

// rkyv's resolver enums repeat the fields of struct variants without their docs.
#![allow(missing_docs)]

use rkyv::{Archive, Deserialize, Serialize};

use crate::schema::SchemaError;

/// How a new row is made: a pure function of seed, table id and key (B041).
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
#[serde(rename_all = "lowercase")]
pub enum Initializer {
    /// All zeros.
    Zeros,
    /// Every element the same.
    Constant(f32),
    /// Uniform in `[low, high)`.
    Uniform {
        /// Lower bound.
        low: f32,
        /// Upper bound.
        high: f32,
    },
    /// Normal.
    Normal {
        /// Mean.
        mean: f32,
        /// Standard deviation.
        std: f32,
    },
}

impl std::fmt::Display for Initializer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Zeros => f.write_str("zeros"),
            Self::Constant(v) => write!(f, "constant:{v}"),
            Self::Uniform { low, high } => write!(f, "uniform:{low}:{high}"),
            Self::Normal { mean, std } => write!(f, "normal:{mean}:{std}"),
        }
    }
}

impl std::str::FromStr for Initializer {
    type Err = SchemaError;

    fn from_str(text: &str) -> Result<Self, SchemaError> {
        let bad = |why: String| SchemaError::new("init", format!("'{text}': {why}"));
        let number = |name: &str, word: &str| match word.parse::<f32>() {
            Ok(value) if value.is_finite() => Ok(value),
            Ok(value) => Err(bad(format!("{name} is {value}: it must be finite"))),
            Err(_) => Err(bad(format!("{name} is '{word}': it must be a number"))),
        };
        let parts: Vec<&str> = text.split(':').collect();
        match parts[..] {
            ["zeros"] => Ok(Self::Zeros),
            ["constant", v] => Ok(Self::Constant(number("the constant", v)?)),
            ["uniform", a, b] => {
                let (low, high) = (number("the lower bound", a)?, number("the upper bound", b)?);
                if low < high {
                    return Ok(Self::Uniform { low, high });
                }
                let why = format!("the lower bound {low} is not below the upper bound {high}");
                Err(bad(why))
            }
            ["normal", m, s] => {
                let (mean, std) = (number("the mean", m)?, number("the deviation", s)?);
                if std >= 0.0 {
                    return Ok(Self::Normal { mean, std });
                }
                Err(bad(format!("the deviation {std} is negative")))
            }
            _ => {
                let why = "it is none of zeros, constant:V, uniform:A:B, normal:MEAN:STD";
                Err(bad(why.into()))
            }
        }
    }
}

impl Initializer {
    /// Checks what cannot come from the command line.
    ///
    /// # Errors
    /// [`SchemaError`]: numbers that are not finite, bounds in the wrong order.
    pub fn validate(&self) -> Result<(), SchemaError> {
        self.to_string().parse::<Self>().map(|_| ())
    }

    /// The largest magnitude that a row made by it can have.
    #[must_use]
    pub fn magnitude(&self) -> f32 {
        /// A normal quantile of the smallest probability that is drawn, 2^-54, is below 8.3.
        const DEVIATIONS: f32 = 8.3;
        match *self {
            Self::Zeros => 0.0,
            Self::Constant(value) => value.abs(),
            Self::Uniform { low, high } => low.abs().max(high.abs()),
            Self::Normal { mean, std } => mean.abs() + DEVIATIONS * std,
        }
    }
}
