//! What a caller can say with a pull or a push, and what it gets back.

use std::time::Duration;

use mneme_proto::frame::{Missing, Status};
use mneme_proto::map::{PathKind, Tier};
use mneme_proto::schema::Dtype;

use crate::error::UnavailableKeys;

/// How to pull.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PullOptions {
    /// What to do with keys that have no row.
    pub missing: Missing,
    /// Put each row's optimizer state behind it: a row of the answer then takes
    /// `row_bytes + state_bytes` (`row_bytes` of a sealed table, which has no state). See
    /// [`crate::Table::pulled_row_bytes`].
    pub with_state: bool,
    /// The call's deadline; the client's without one.
    pub deadline: Option<Duration>,
}

impl PullOptions {
    /// Default options with this policy for missing keys.
    #[must_use]
    pub fn missing(missing: Missing) -> Self {
        Self {
            missing,
            ..Self::default()
        }
    }
}

/// How to push.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PushOptions {
    /// Step number, for optimizers whose step comes with the push; else 0.
    pub step: u64,
    /// The call's deadline; the client's without one.
    pub deadline: Option<Duration>,
}

/// Values of a push, one row per key, in key order.
#[derive(Debug, Clone, Copy)]
pub enum Values<'a> {
    /// `dim` numbers per key: gradients, sums, and rows of tables of float planes, which are
    /// rounded to the planes' dtypes by nearest even.
    F32(&'a [f32]),
    /// `dim` numbers per key of this dtype, little-endian: rows of tables whose planes are all of
    /// it. f32 is as [`Values::F32`].
    Of(Dtype, &'a [u8]),
    /// `row_bytes` bytes per key, in the table's own dtypes: for `assign`, and for `gradient`
    /// and `add` as little-endian f32.
    Rows(&'a [u8]),
    /// None: for `delete`.
    None,
}

impl<'a> From<&'a [f32]> for Values<'a> {
    fn from(values: &'a [f32]) -> Self {
        Self::F32(values)
    }
}

impl<'a> From<&'a Vec<f32>> for Values<'a> {
    fn from(values: &'a Vec<f32>) -> Self {
        Self::F32(values)
    }
}

impl<'a, const N: usize> From<&'a [f32; N]> for Values<'a> {
    fn from(values: &'a [f32; N]) -> Self {
        Self::F32(values)
    }
}

impl<'a> From<&'a [u8]> for Values<'a> {
    fn from(rows: &'a [u8]) -> Self {
        Self::Rows(rows)
    }
}

impl<'a> From<&'a Vec<u8>> for Values<'a> {
    fn from(rows: &'a Vec<u8>) -> Self {
        Self::Rows(rows)
    }
}

/// What a push did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PushReport {
    /// Rows changed, inserted or removed.
    pub rows: u64,
    /// Keys ignored: the padding key.
    pub ignored: u64,
    /// Parts that it was split into, each atomic.
    pub parts: u32,
}

/// A pull that delivered what it could.
#[derive(Debug, Clone, PartialEq)]
pub struct PartialPull {
    /// One per key; `None` where the row's node did not answer, and the buffer then holds
    /// nothing of meaning.
    pub statuses: Vec<Option<Status>>,
    /// Who did not answer, and for which positions. Empty when all rows were delivered.
    pub unavailable: Vec<UnavailableKeys>,
}

/// Where a key's row is.
#[derive(Debug, Clone, PartialEq)]
pub struct WhereReport {
    /// The table.
    pub table: String,
    /// The key.
    pub key: u64,
    /// Its shard.
    pub shard: u32,
    /// Name of the node that serves it.
    pub node: String,
    /// Its region; `None` until the node has reported it.
    pub region: Option<u64>,
    /// The region's generation.
    pub generation: Option<u64>,
    /// Offset of the row within the region, where arithmetic gives it: dense tables.
    pub offset: Option<u64>,
    /// Kind of memory.
    pub tier: Option<Tier>,
    /// All paths to it.
    pub paths: Vec<PathReport>,
}

/// A path to a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PathReport {
    /// Which path.
    pub path: PathKind,
    /// Predicted time of a pull of this one row over a connected path, µs.
    pub predicted_us: f64,
    /// The same as calls of this client have shown it; `None` before the first.
    pub observed_us: Option<f64>,
    /// Whether a pull would take it now.
    pub chosen: bool,
}
