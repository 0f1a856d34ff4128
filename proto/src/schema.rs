//! Tables as their creator describes them: kind, row schema, optimizer, initializer, limits.
//!
//! Everything effective is stored, defaults included, and shown by `table describe`. `validate`
//! is run by whoever makes a schema and again by the catalogue.

// rkyv's resolver enums repeat the fields of struct variants without their docs.
#![allow(missing_docs)]

use rkyv::{Archive, Deserialize, Serialize};

use crate::dense::DenseLayout;
use crate::limits::{DENSE_ROWS_MAX, NAME_BYTES_MAX, PLANES_MAX, ROW_BYTES_MAX, SHARDS_MAX};

/// Element type of a plane.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    Archive,
    Serialize,
    Deserialize,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// IEEE 754 binary32: the arithmetic type.
    F32,
    /// A byte. Takes assign and delete only.
    U8,
}

impl Dtype {
    /// All of them, in the order of the documentation.
    pub const ALL: [Self; 2] = [Self::F32, Self::U8];

    /// Bytes of one element.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        match self {
            Self::F32 => 4,
            Self::U8 => 1,
        }
    }

    /// Its word on the command line and in JSON.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::U8 => "u8",
        }
    }

    /// Whether gradients and sums make sense on it.
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32)
    }
}

impl std::str::FromStr for Dtype {
    type Err = SchemaError;

    fn from_str(word: &str) -> Result<Self, SchemaError> {
        Self::ALL
            .into_iter()
            .find(|d| d.word() == word)
            .ok_or_else(|| {
                SchemaError::new("dtype", format!("'{word}' is unknown; known: f32, u8"))
            })
    }
}

/// One column group of a row.
#[derive(
    Debug,
    Clone,
    PartialEq,
    Eq,
    Archive,
    Serialize,
    Deserialize,
    serde::Serialize,
    serde::Deserialize,
)]
pub struct Plane {
    /// Its name; `values` for a table made with `--dtype` and `--dim`.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Elements per row.
    pub width: u32,
}

/// The columns of a row.
#[derive(
    Debug,
    Clone,
    PartialEq,
    Eq,
    Archive,
    Serialize,
    Deserialize,
    serde::Serialize,
    serde::Deserialize,
)]
pub struct RowSchema {
    /// At least one plane; values are concatenated in this order.
    pub planes: Vec<Plane>,
}

impl RowSchema {
    /// A row of one plane named `values`.
    #[must_use]
    pub fn single(dtype: Dtype, dim: u32) -> Self {
        Self {
            planes: vec![Plane {
                name: "values".into(),
                dtype,
                width: dim,
            }],
        }
    }

    /// Bytes of one row as stored and sent.
    #[must_use]
    pub fn row_bytes(&self) -> u32 {
        self.planes
            .iter()
            .map(|p| p.dtype.bytes().saturating_mul(p.width))
            .sum()
    }

    /// Elements of one row: the `dim` of gradients.
    #[must_use]
    pub fn dim(&self) -> u32 {
        self.planes.iter().map(|p| p.width).sum()
    }

    /// Whether every plane takes gradients and sums.
    #[must_use]
    pub fn is_float(&self) -> bool {
        self.planes.iter().all(|p| p.dtype.is_float())
    }
}

/// How keys map to rows.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Archive,
    Serialize,
    Deserialize,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum TableKind {
    /// Any u64 key, rows made on demand.
    Hashed,
    /// Row ids `0..rows`, all there from creation.
    Dense {
        /// Number of rows.
        rows: u64,
    },
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
        lr: f32,
        /// Momentum; 0 keeps no state.
        momentum: f32,
        /// L2 weight decay, on rows in the push only.
        weight_decay: f32,
    },
    /// Duchi et al. 2011: `acc += g^2; w -= lr * g / (sqrt(acc) + eps)`.
    Adagrad {
        /// Learning rate.
        lr: f32,
        /// Added to the root.
        eps: f32,
        /// The accumulator of a new row.
        acc0: f32,
    },
}

impl Optimizer {
    /// Its word on the command line; `none` without one.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Sgd { .. } => "sgd",
            Self::Adagrad { .. } => "adagrad",
        }
    }

    /// Names of the state vectors kept per row, each of `dim` f32, in slab order.
    #[must_use]
    pub fn state_names(&self) -> &'static [&'static str] {
        match self {
            Self::Sgd { momentum, .. } if *momentum != 0.0 => &["m"],
            Self::Adagrad { .. } => &["acc"],
            _ => &[],
        }
    }

    /// Bytes of state per row of `dim` elements.
    #[must_use]
    pub fn state_bytes(&self, dim: u32) -> u32 {
        self.state_names().len() as u32 * dim * 4
    }

    /// Builds an optimizer from its word and `k=v` options over the defaults of `CLI.md`.
    ///
    /// # Errors
    /// [`SchemaError`] naming the option that is unknown or out of range.
    pub fn from_options(word: &str, options: &[(String, f32)]) -> Result<Self, SchemaError> {
        let mut made = match word {
            "none" => Self::None,
            "sgd" => Self::Sgd {
                lr: 0.01,
                momentum: 0.0,
                weight_decay: 0.0,
            },
            "adagrad" => Self::Adagrad {
                lr: 0.01,
                eps: 1e-10,
                acc0: 0.0,
            },
            other => {
                let why = format!("'{other}' is unknown; known: none, sgd, adagrad");
                return Err(SchemaError::new("optimizer", why));
            }
        };
        for (name, value) in options {
            let field = match (&mut made, name.as_str()) {
                (Self::Sgd { lr, .. } | Self::Adagrad { lr, .. }, "lr") => lr,
                (Self::Sgd { momentum, .. }, "momentum") => momentum,
                (Self::Sgd { weight_decay, .. }, "weight_decay") => weight_decay,
                (Self::Adagrad { eps, .. }, "eps") => eps,
                (Self::Adagrad { acc0, .. }, "acc0") => acc0,
                _ => {
                    let why = format!("{word} has no such option");
                    return Err(SchemaError::new(name.clone(), why));
                }
            };
            *field = *value;
        }
        made.validate()?;
        Ok(made)
    }

    /// Its options with their effective values, for `describe`.
    #[must_use]
    pub fn options(&self) -> Vec<(&'static str, f32)> {
        match *self {
            Self::None => vec![],
            Self::Sgd {
                lr,
                momentum,
                weight_decay,
            } => {
                vec![
                    ("lr", lr),
                    ("momentum", momentum),
                    ("weight_decay", weight_decay),
                ]
            }
            Self::Adagrad { lr, eps, acc0 } => vec![("lr", lr), ("eps", eps), ("acc0", acc0)],
        }
    }

    /// Checks the hyper-parameters (B014). `lr = 0` is legal: a push then changes no weight.
    ///
    /// # Errors
    /// [`SchemaError`] naming the option.
    pub fn validate(&self) -> Result<(), SchemaError> {
        for (name, value) in self.options() {
            let ok = value.is_finite() && value >= 0.0 && (name != "momentum" || value < 1.0);
            if !ok {
                let want = if name == "momentum" {
                    "in [0, 1)"
                } else {
                    "finite and >= 0"
                };
                return Err(SchemaError::new(
                    name,
                    format!("{value} is refused: it must be {want}"),
                ));
            }
        }
        Ok(())
    }
}

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
        let bad = || {
            let why =
                format!("'{text}' is none of zeros, constant:V, uniform:A:B, normal:MEAN:STD");
            SchemaError::new("init", why)
        };
        let number = |s: &str| {
            s.parse::<f32>()
                .ok()
                .filter(|v| v.is_finite())
                .ok_or_else(bad)
        };
        let parts: Vec<&str> = text.split(':').collect();
        match parts[..] {
            ["zeros"] => Ok(Self::Zeros),
            ["constant", v] => Ok(Self::Constant(number(v)?)),
            ["uniform", a, b] => {
                let (low, high) = (number(a)?, number(b)?);
                if low < high {
                    Ok(Self::Uniform { low, high })
                } else {
                    Err(bad())
                }
            }
            ["normal", m, s] => {
                let (mean, std) = (number(m)?, number(s)?);
                if std >= 0.0 {
                    Ok(Self::Normal { mean, std })
                } else {
                    Err(bad())
                }
            }
            _ => Err(bad()),
        }
    }
}

/// What a table is, everything effective included.
#[derive(
    Debug, Clone, PartialEq, Archive, Serialize, Deserialize, serde::Serialize, serde::Deserialize,
)]
pub struct TableSpec {
    /// Its name, unique within the tenant.
    pub name: String,
    /// The tenant that owns it.
    pub tenant: String,
    /// Hashed or dense.
    pub kind: TableKind,
    /// Columns.
    pub schema: RowSchema,
    /// Shards, a power of two; 0 in a create request asks for the default, stored effective.
    pub shards: u32,
    /// What gradients do.
    pub optimizer: Optimizer,
    /// How new rows are made.
    pub init: Initializer,
    /// Seed of `init` and of the index.
    pub seed: u64,
    /// Every element of the row that answers an absent hashed key.
    pub default_value: f32,
    /// A key that always reads as zeros and ignores pushes.
    pub padding_key: Option<u64>,
}

/// Why a schema is refused: the field and the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {why}")]
pub struct SchemaError {
    /// The option or field.
    pub field: String,
    /// What is wrong with it.
    pub why: String,
}

impl SchemaError {
    /// An error about `field`.
    pub fn new(field: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            why: why.into(),
        }
    }
}

/// Checks a name: 1 to 128 of letters, digits, `_`, `-`, `.`, starting with a letter or digit.
///
/// # Errors
/// [`SchemaError`] naming `field`.
pub fn validate_name(field: &str, name: &str) -> Result<(), SchemaError> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let ok = (1..=NAME_BYTES_MAX).contains(&name.len())
        && name.chars().all(legal)
        && name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if ok {
        return Ok(());
    }
    let why = format!(
        "{name:?} is not a name: 1 to {NAME_BYTES_MAX} letters, digits, '_', '-', '.', \
         starting with a letter or digit"
    );
    Err(SchemaError::new(field, why))
}

impl TableSpec {
    /// Checks everything that does not need the cluster.
    ///
    /// # Errors
    /// [`SchemaError`] naming the first field that is wrong.
    pub fn validate(&self) -> Result<(), SchemaError> {
        validate_name("name", &self.name)?;
        validate_name("tenant", &self.tenant)?;
        self.validate_schema()?;
        if self.shards != 0 && !(self.shards.is_power_of_two() && self.shards <= SHARDS_MAX) {
            let why = format!("{} is not a power of two up to {SHARDS_MAX}", self.shards);
            return Err(SchemaError::new("shards", why));
        }
        self.optimizer.validate()?;
        if self.optimizer != Optimizer::None && !self.schema.is_float() {
            let why = format!(
                "{} needs float planes, this table has u8",
                self.optimizer.word()
            );
            return Err(SchemaError::new("optimizer", why));
        }
        if !self.default_value.is_finite() {
            return Err(SchemaError::new("default", "it must be finite"));
        }
        let dense = matches!(self.kind, TableKind::Dense { .. });
        if dense && self.default_value.to_bits() != 0 {
            let why = "a dense table has every row from creation: use init";
            return Err(SchemaError::new("default", why));
        }
        self.validate_bytes_values()
    }

    fn validate_schema(&self) -> Result<(), SchemaError> {
        let planes = &self.schema.planes;
        if planes.is_empty() || planes.len() > PLANES_MAX {
            let why = format!("{} planes; 1 to {PLANES_MAX} are allowed", planes.len());
            return Err(SchemaError::new("plane", why));
        }
        for (i, plane) in planes.iter().enumerate() {
            validate_name("plane", &plane.name)?;
            if plane.width == 0 {
                let why = format!("plane '{}' has width 0", plane.name);
                return Err(SchemaError::new("dim", why));
            }
            if planes[..i].iter().any(|p| p.name == plane.name) {
                return Err(SchemaError::new(
                    "plane",
                    format!("'{}' appears twice", plane.name),
                ));
            }
        }
        let bytes: u64 = planes
            .iter()
            .map(|p| u64::from(p.dtype.bytes()) * u64::from(p.width))
            .sum();
        if bytes > u64::from(ROW_BYTES_MAX) {
            let why = format!("a row of {bytes} B is over the limit of {ROW_BYTES_MAX} B");
            return Err(SchemaError::new("dim", why));
        }
        match self.kind {
            TableKind::Dense { rows: 0 } => Err(SchemaError::new("rows", "it must be at least 1")),
            TableKind::Dense { rows } if rows > DENSE_ROWS_MAX => {
                let why = format!("{rows} is over the limit of {DENSE_ROWS_MAX}");
                Err(SchemaError::new("rows", why))
            }
            _ => Ok(()),
        }
    }

    /// Byte planes take only values that are bytes: nothing is rounded in silence.
    fn validate_bytes_values(&self) -> Result<(), SchemaError> {
        if self.schema.planes.iter().all(|p| p.dtype.is_float()) {
            return Ok(());
        }
        let is_byte = |v: f32| v.fract() == 0.0 && (0.0..=255.0).contains(&v);
        if !is_byte(self.default_value) {
            let why = format!("{} does not fit u8", self.default_value);
            return Err(SchemaError::new("default", why));
        }
        match self.init {
            Initializer::Zeros => Ok(()),
            Initializer::Constant(v) if is_byte(v) => Ok(()),
            other => Err(SchemaError::new(
                "init",
                format!("{other} does not fit u8 planes"),
            )),
        }
    }

    /// Bytes of one row.
    #[must_use]
    pub fn row_bytes(&self) -> u32 {
        self.schema.row_bytes()
    }

    /// Bytes of optimizer state per row.
    #[must_use]
    pub fn state_bytes(&self) -> u32 {
        self.optimizer.state_bytes(self.schema.dim())
    }

    /// Where rows of a dense table are; `None` for a hashed one.
    #[must_use]
    pub fn dense_layout(&self) -> Option<DenseLayout> {
        match self.kind {
            TableKind::Dense { rows } => {
                Some(DenseLayout::new(rows, self.row_bytes(), self.shards))
            }
            TableKind::Hashed => None,
        }
    }

    /// The row that answers an absent key: `default_value` in every element.
    #[must_use]
    pub fn default_row(&self) -> Vec<u8> {
        let mut row = Vec::with_capacity(self.row_bytes() as usize);
        for plane in &self.schema.planes {
            for _ in 0..plane.width {
                match plane.dtype {
                    Dtype::F32 => row.extend_from_slice(&self.default_value.to_le_bytes()),
                    Dtype::U8 => row.push(self.default_value as u8),
                }
            }
        }
        row
    }
}
