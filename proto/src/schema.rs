//! Tables as their creator describes them: kind, row schema, optimizer, initializer, rounding.
//!
//! Everything effective is stored, defaults included, and shown by `table describe`. `validate`
//! is run by whoever makes a schema and again by the catalogue.

// rkyv's resolver enums repeat the fields of struct variants without their docs.
#![allow(missing_docs)]

use rkyv::{Archive, Deserialize, Serialize};

use crate::dense::DenseLayout;
pub use crate::dtype::Dtype;
pub use crate::init::Initializer;
use crate::limits::{DENSE_ROWS_MAX, NAME_BYTES_MAX, PLANES_MAX, ROW_BYTES_MAX, SHARDS_MAX};
use crate::numeric::narrow;
pub use crate::optimizer::{Adam, Decay, EpsForm, Optimizer, OptionValue, StatePart, StepBy};

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

    /// The one dtype of all planes, if they have one.
    #[must_use]
    pub fn dtype(&self) -> Option<Dtype> {
        let first = self.planes.first()?.dtype;
        let same = self.planes.iter().all(|p| p.dtype == first);
        same.then_some(first)
    }

    /// Whether every plane is f32: rows are then stored as they are reckoned with.
    #[must_use]
    pub fn is_f32(&self) -> bool {
        self.dtype() == Some(Dtype::F32)
    }

    /// The planes for people: `codes:u8:256 scale:f32:2`.
    #[must_use]
    pub fn words(&self) -> String {
        let word = |p: &Plane| format!("{}:{}:{}", p.name, p.dtype, p.width);
        self.planes.iter().map(word).collect::<Vec<_>>().join(" ")
    }

    /// A row's bytes as f32, planes concatenated: exact.
    ///
    /// # Panics
    /// If `row` is not `row_bytes` long or `to` not `dim`.
    pub fn widen_row(&self, row: &[u8], to: &mut [f32]) {
        let (mut row, mut to) = (row, to);
        for plane in &self.planes {
            let (bytes, row_rest) = row.split_at(plane.bytes());
            let (values, to_rest) = to.split_at_mut(plane.width as usize);
            crate::numeric::widen(plane.dtype, bytes, values);
            (row, to) = (row_rest, to_rest);
        }
    }

    /// f32 as a row's bytes, by nearest even.
    ///
    /// # Panics
    /// As [`RowSchema::widen_row`].
    pub fn narrow_row(&self, from: &[f32], row: &mut [u8]) {
        let (mut from, mut row) = (from, row);
        for plane in &self.planes {
            let (values, from_rest) = from.split_at(plane.width as usize);
            let (bytes, row_rest) = row.split_at_mut(plane.bytes());
            narrow(plane.dtype, values, bytes);
            (from, row) = (from_rest, row_rest);
        }
    }
}

impl Plane {
    /// Bytes of it in one row.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.dtype.bytes() as usize * self.width as usize
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

/// How what gradients and sums make is rounded to a dtype narrower than f32.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Default,
    Archive,
    Serialize,
    Deserialize,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Rounding {
    /// To nearest, ties to even. Updates of less than half a unit in the last place are lost.
    #[default]
    Nearest,
    /// To one of the two neighbours, the nearer the likelier: right on average. A pure function
    /// of seed, table, key, push and element.
    Stochastic,
}

impl Rounding {
    /// Its word on the command line and in JSON.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Nearest => "nearest",
            Self::Stochastic => "stochastic",
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
    /// The tenant that owns it; empty in a client's request for its own.
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
    /// How results are rounded to the planes' dtypes.
    pub rounding: Rounding,
    /// Whether an f32 copy of each row is kept beside its state: gradients and sums act on it,
    /// and the row is what it rounds to.
    pub master: bool,
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
    /// A table with default shards, zeros for new and absent rows, and no optimizer. Its tenant
    /// is left open: a client that creates it fills in its own.
    #[must_use]
    pub fn new(name: impl Into<String>, kind: TableKind, schema: RowSchema) -> Self {
        Self {
            name: name.into(),
            tenant: String::new(),
            kind,
            schema,
            shards: 0,
            optimizer: Optimizer::None,
            init: Initializer::Zeros,
            seed: 1,
            default_value: 0.0,
            padding_key: None,
            rounding: Rounding::Nearest,
            master: false,
        }
    }

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
        self.validate_arithmetic()?;
        self.validate_values()
    }

    /// Optimizer, rounding and master copy against the planes.
    fn validate_arithmetic(&self) -> Result<(), SchemaError> {
        self.optimizer.validate()?;
        self.init.validate()?;
        let planes = self.schema.words();
        if self.optimizer != Optimizer::None && !self.schema.is_float() {
            let why = format!(
                "{} needs float planes, this table has {planes}: i8 and u8 take assign and \
                 delete only",
                self.optimizer.word()
            );
            return Err(SchemaError::new("optimizer", why));
        }
        let narrow = self.schema.is_float() && !self.schema.is_f32();
        for (field, asked) in [
            ("rounding", self.rounding == Rounding::Stochastic),
            ("master", self.master),
        ] {
            if asked && !narrow {
                let why =
                    format!("it is for f16, bf16, f8e4m3 and f8e5m2 rows, this table has {planes}");
                return Err(SchemaError::new(field, why));
            }
        }
        Ok(())
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
            TableKind::Dense { rows } if rows > DENSE_ROWS_MAX => {
                let why = format!("{rows} is over the limit of {DENSE_ROWS_MAX}");
                Err(SchemaError::new("rows", why))
            }
            TableKind::Dense { rows } if self.padding_key.is_some_and(|key| key >= rows) => {
                let key = self.padding_key.unwrap_or_default();
                let why = format!("{key} is no row: the table has {rows} of them, from 0 on");
                Err(SchemaError::new("padding-key", why))
            }
            _ => Ok(()),
        }
    }

    /// Default and initial rows must be values of every plane: whole numbers in range for i8 and
    /// u8, where nothing is rounded in silence, and finite ones for floats.
    fn validate_values(&self) -> Result<(), SchemaError> {
        if !self.default_value.is_finite() {
            return Err(SchemaError::new("default", "it must be finite"));
        }
        let dense = matches!(self.kind, TableKind::Dense { .. });
        if dense && self.default_value.to_bits() != 0 {
            let why = "a dense table has every row from creation: use init";
            return Err(SchemaError::new("default", why));
        }
        for dtype in self.schema.planes.iter().map(|p| p.dtype) {
            let misfit = |what: String| {
                let range = match dtype {
                    Dtype::I8 => "whole numbers from -128 to 127".to_owned(),
                    Dtype::U8 => "whole numbers from 0 to 255".to_owned(),
                    _ => format!("magnitudes up to {:?}", dtype.largest()),
                };
                format!("{what} does not fit {dtype}, which holds {range}")
            };
            let fits = |value: f32| {
                let mut bytes = [0; 4];
                let bytes = &mut bytes[..dtype.bytes() as usize];
                narrow(dtype, &[value], bytes);
                let mut back = [0.0];
                crate::numeric::widen(dtype, bytes, &mut back);
                match dtype.is_float() {
                    true => back[0].is_finite(),
                    false => back[0] == value,
                }
            };
            if !fits(self.default_value) {
                let why = misfit(self.default_value.to_string());
                return Err(SchemaError::new("default", why));
            }
            let constant = matches!(self.init, Initializer::Zeros | Initializer::Constant(_));
            let made = match self.init {
                Initializer::Constant(value) => value,
                other => other.magnitude(),
            };
            if !fits(made) || !(constant || dtype.is_float()) {
                return Err(SchemaError::new("init", misfit(self.init.to_string())));
            }
        }
        Ok(())
    }

    /// Bytes of one row.
    #[must_use]
    pub fn row_bytes(&self) -> u32 {
        self.schema.row_bytes()
    }

    /// What stands behind a row: the optimizer's state, then the master copy.
    #[must_use]
    pub fn state_parts(&self) -> Vec<StatePart> {
        let dim = self.schema.dim();
        let mut parts = self.optimizer.state_parts(dim);
        if self.master {
            parts.push(StatePart {
                name: "master",
                elements: dim,
                count: false,
            });
        }
        parts
    }

    /// Bytes of state per row.
    #[must_use]
    pub fn state_bytes(&self) -> u32 {
        self.state_parts()
            .iter()
            .map(|part| part.elements * 4)
            .sum()
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
        let mut row = vec![0; self.row_bytes() as usize];
        let values = vec![self.default_value; self.schema.dim() as usize];
        self.schema.narrow_row(&values, &mut row);
        row
    }
}
