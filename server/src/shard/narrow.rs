//! Rows of dtypes narrower than f32: widened before a push acts on them, rounded after.

use mneme_proto::ids::TableId;
use mneme_proto::numeric::{Noise, all_finite, narrow_stochastic};
use mneme_proto::schema::{Rounding, RowSchema, TableSpec};

/// How a table's narrow rows are reckoned with.
#[derive(Debug, Clone)]
pub struct Narrow {
    schema: RowSchema,
    rounding: Rounding,
    /// Whether an f32 copy of the row stands at the end of its state.
    pub master: bool,
    noise: Noise,
}

/// What a push contributes to the noise of stochastic rounding: words of its request alone
/// (I-10).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Salt(pub u64, pub u64);

impl Narrow {
    /// Of a table whose planes are floats, not all f32; none of any other.
    #[must_use]
    pub fn of(spec: &TableSpec, table: TableId) -> Option<Self> {
        (spec.schema.is_float() && !spec.schema.is_f32()).then(|| Self {
            schema: spec.schema.clone(),
            rounding: spec.rounding,
            master: spec.master,
            noise: Noise::of(&[spec.seed, table.0]),
        })
    }

    /// Loads the values that a push acts on: the master copy's, or the row's.
    pub fn load(&self, row: &[u8], master: &[f32], values: &mut [f32]) {
        if self.master {
            values.copy_from_slice(master);
        } else {
            self.schema.widen_row(row, values);
        }
    }

    /// Rounds what a push made of them into the row and the master copy. False if a value is too
    /// large for its dtype, which counts as not finite.
    pub fn store(
        &self,
        key: u64,
        salt: Salt,
        values: &[f32],
        row: &mut [u8],
        master: &mut [f32],
    ) -> bool {
        master.copy_from_slice(if self.master { values } else { &[] });
        match self.rounding {
            Rounding::Nearest => self.schema.narrow_row(values, row),
            Rounding::Stochastic => {
                let noise = self.noise.with(key).with(salt.0).with(salt.1);
                self.round_up_or_down(values, row, noise);
            }
        }
        self.is_finite(row)
    }

    /// Values of the row as they are now stored, for state that must agree with it.
    pub fn reload(&self, row: &[u8], values: &mut [f32]) {
        if !self.master {
            self.schema.widen_row(row, values);
        }
    }

    fn round_up_or_down(&self, values: &[f32], row: &mut [u8], noise: Noise) {
        let (mut first, mut row) = (0, row);
        for plane in &self.schema.planes {
            let (bytes, rest) = row.split_at_mut(plane.bytes());
            let values = &values[first..][..plane.width as usize];
            narrow_stochastic(plane.dtype, values, bytes, noise, first);
            (first, row) = (first + plane.width as usize, rest);
        }
    }

    fn is_finite(&self, row: &[u8]) -> bool {
        let mut row = row;
        self.schema.planes.iter().all(|plane| {
            let (bytes, rest) = row.split_at(plane.bytes());
            row = rest;
            all_finite(plane.dtype, bytes)
        })
    }
}
