//! Tables as the tests want them: small specs, and rows as plain vectors of f32.

use mneme_client::blocking::{Client, Table};
use mneme_client::{ClientError, PullOptions, PushOptions, PushReport};
use mneme_proto::frame::{Missing, PushMode, Status};
use mneme_proto::schema::{Dtype, Optimizer, RowSchema, TableKind, TableSpec};

/// A hashed f32 table of the default tenant, with default shards, zeros for new rows.
#[must_use]
pub fn hashed(name: &str, dim: u32, optimizer: Optimizer) -> TableSpec {
    TableSpec {
        optimizer,
        ..TableSpec::new(name, TableKind::Hashed, RowSchema::single(Dtype::F32, dim))
    }
}

/// The same, dense.
#[must_use]
pub fn dense(name: &str, rows: u64, dim: u32, optimizer: Optimizer) -> TableSpec {
    TableSpec {
        kind: TableKind::Dense { rows },
        ..hashed(name, dim, optimizer)
    }
}

/// Plain SGD.
#[must_use]
pub const fn sgd(lr: f64) -> Optimizer {
    Optimizer::Sgd {
        lr,
        momentum: 0.0,
        weight_decay: 0.0,
    }
}

/// Adagrad.
#[must_use]
pub const fn adagrad(lr: f64, eps: f64, acc0: f64) -> Optimizer {
    Optimizer::Adagrad { lr, eps, acc0 }
}

/// Any optimizer, its options as on the command line: `lr=.1 eps=1e-8`.
///
/// # Panics
/// If there is none such.
#[must_use]
pub fn optimizer(word: &str, options: &str) -> Optimizer {
    let pair = |o: &str| {
        let (name, value) = o.split_once('=').expect("k=v");
        (name.to_owned(), value.to_owned())
    };
    let options: Vec<_> = options.split_whitespace().map(pair).collect();
    Optimizer::from_options(word, &options).unwrap_or_else(|e| panic!("{word}: {e}"))
}

/// A table of float planes, seen as f32.
pub struct Rows {
    /// The table itself.
    pub table: Table,
    dim: usize,
    state: usize,
}

impl Rows {
    /// Makes the table.
    ///
    /// # Panics
    /// If that is refused.
    #[must_use]
    pub fn create(client: &Client, spec: TableSpec) -> Self {
        let name = spec.name.clone();
        let made = client.create_table(spec);
        Self::of(made.unwrap_or_else(|e| panic!("table '{name}': {e}")))
    }

    /// Opens a table that is there.
    ///
    /// # Panics
    /// If it is not.
    #[must_use]
    pub fn open(client: &Client, name: &str) -> Self {
        Self::of(
            client
                .table(name)
                .unwrap_or_else(|e| panic!("table '{name}': {e}")),
        )
    }

    fn of(table: Table) -> Self {
        let spec = table.spec();
        let (dim, state) = (spec.schema.dim() as usize, spec.state_bytes() as usize / 4);
        Self { table, dim, state }
    }

    /// Rows of `keys`, one after the other; absent ones are the table's default.
    ///
    /// # Panics
    /// If the pull fails.
    #[must_use]
    pub fn pull(&self, keys: &[u64]) -> Vec<f32> {
        self.pull_with(keys, Missing::Default).expect("a pull").0
    }

    /// The first element of a row: all of it where dim is 1.
    ///
    /// # Panics
    /// If the pull fails.
    #[must_use]
    pub fn lane(&self, key: u64) -> f32 {
        self.pull(&[key])[0]
    }

    /// Rows and statuses, with a policy for absent keys.
    ///
    /// # Errors
    /// The client's.
    pub fn pull_with(
        &self,
        keys: &[u64],
        missing: Missing,
    ) -> Result<(Vec<f32>, Vec<Status>), ClientError> {
        let mut out = vec![f32::NAN; keys.len() * self.dim];
        let options = PullOptions {
            missing,
            ..PullOptions::default()
        };
        let statuses = self.table.pull_f32(keys, &mut out, &options)?;
        Ok((out, statuses))
    }

    /// One row and its optimizer state.
    ///
    /// # Panics
    /// If the pull fails.
    #[must_use]
    pub fn row_and_state(&self, key: u64) -> (Vec<f32>, Vec<f32>) {
        let mut out = vec![f32::NAN; self.dim + self.state];
        let options = PullOptions {
            with_state: true,
            ..PullOptions::default()
        };
        self.table
            .pull_f32(&[key], &mut out, &options)
            .expect("a pull");
        let state = out.split_off(self.dim);
        (out, state)
    }

    /// Pushes gradients: one batch, one step per key.
    ///
    /// # Panics
    /// If the push fails.
    pub fn gradient(&self, keys: &[u64], values: &[f32]) -> PushReport {
        self.push(PushMode::Gradient, keys, values).expect("a push")
    }

    /// [`Rows::gradient`] with the caller's step number.
    ///
    /// # Panics
    /// If the push fails.
    pub fn gradient_at(&self, step: u64, keys: &[u64], values: &[f32]) -> PushReport {
        let options = PushOptions {
            step,
            ..PushOptions::default()
        };
        let pushed = self.table.push(PushMode::Gradient, keys, values, &options);
        pushed.expect("a push")
    }

    /// The bytes of rows as they are stored.
    ///
    /// # Panics
    /// If the pull fails.
    #[must_use]
    pub fn stored(&self, keys: &[u64]) -> Vec<u8> {
        let row_bytes = self.table.spec().row_bytes() as usize;
        let mut out = vec![0; keys.len() * row_bytes];
        let options = PullOptions::missing(Missing::Error);
        self.table.pull(keys, &mut out, &options).expect("a pull");
        out
    }

    /// Replaces rows.
    ///
    /// # Panics
    /// If the push fails.
    pub fn assign(&self, keys: &[u64], values: &[f32]) -> PushReport {
        self.push(PushMode::Assign, keys, values).expect("a push")
    }

    /// Any push of f32 values.
    ///
    /// # Errors
    /// The client's.
    pub fn push(
        &self,
        mode: PushMode,
        keys: &[u64],
        values: &[f32],
    ) -> Result<PushReport, ClientError> {
        self.table.push(mode, keys, values, &PushOptions::default())
    }

    /// Rows held, as the nodes count them now.
    ///
    /// # Panics
    /// If a node does not answer.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.table.describe().expect("a description").rows
    }
}

/// Whether two numbers are at most `ulps` apart in f32.
#[must_use]
pub fn within_ulps(a: f32, b: f32, ulps: u32) -> bool {
    // Bits of finite floats, ordered as their values are.
    let order = |x: f32| {
        let bits = x.to_bits() as i32;
        i64::from(if bits < 0 {
            i32::MIN.wrapping_sub(bits)
        } else {
            bits
        })
    };
    a.is_finite() && b.is_finite() && order(a).abs_diff(order(b)) <= u64::from(ulps)
}

/// Bits of values, for messages and exact comparisons.
#[must_use]
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}
