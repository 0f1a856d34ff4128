//! What is done to a push before anything is sent: shapes and values are checked as a whole,
//! repeated keys merged, and the rest put in order by shard and key (DESIGN 8, 16).
//!
//! Pure: what comes out depends on the push's bytes alone (I-10).

use std::borrow::Cow;
use std::ops::Range;

use bytes::Bytes;
use mneme_proto::frame::PushMode;
use mneme_proto::limits::FRAME_KEYS_MAX;
use mneme_proto::numeric::widen;
use mneme_proto::refusal::Refusal;
use mneme_proto::schema::{Dtype, Optimizer, RowSchema, TableSpec};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

use crate::error::ClientError;
use crate::limits::{CALL_KEYS_MAX, PART_BYTES_MAX};
use crate::options::Values;
use crate::router::{OutOfRange, Router};

/// A push ready to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Merged {
    /// u64 each, strictly ascending within a part.
    pub(crate) keys: Bytes,
    /// `value_bytes` per key.
    pub(crate) values: Bytes,
    pub(crate) value_bytes: usize,
    /// By shard, each with a range of keys.
    pub(crate) parts: Vec<PartKeys>,
}

/// The keys of one part: an atomic unit of a push.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PartKeys {
    pub(crate) shard: u32,
    pub(crate) keys: Range<usize>,
}

/// Checks and prepares a push.
///
/// # Errors
/// [`Refusal::Mode`], [`Refusal::Shape`], [`Refusal::RowOutOfRange`] or
/// [`ClientError::NonFinite`]; nothing was sent then.
pub(crate) fn merge(
    router: &Router,
    mode: PushMode,
    keys: &[u64],
    values: Values<'_>,
    step: u64,
) -> Result<Merged, ClientError> {
    let spec = &*router.spec;
    check_mode(spec, mode, step)?;
    let value_bytes = value_bytes(spec, mode);
    let bytes = bytes_of(spec, mode, keys.len(), values)?;
    let bytes = &*bytes;
    let sums = matches!(mode, PushMode::Gradient | PushMode::Add);
    if sums {
        check_finite(mode, keys, bytes, value_bytes)?;
    }
    let order = order(router, keys)?;
    let mut merged = Gather {
        keys: Vec::with_capacity(order.len()),
        values: Vec::with_capacity(order.len() * value_bytes),
        parts: Vec::new(),
        part_keys_max: (PART_BYTES_MAX / (8 + value_bytes)).min(FRAME_KEYS_MAX as usize),
    };
    let row = |index: u32| &bytes[index as usize * value_bytes..][..value_bytes];
    for run in order.chunk_by(|a, b| a.key == b.key) {
        let (first, last) = (run[0], run[run.len() - 1]);
        merged.key(first.shard, first.key);
        if !sums || run.len() == 1 {
            // The last one wins; for `delete` there is nothing to copy.
            merged.values.extend_from_slice(row(last.index));
            continue;
        }
        let at = merged.values.len();
        merged.values.extend_from_slice(row(first.index));
        let sum = &mut merged.values[at..];
        let finite = run[1..]
            .iter()
            .fold(true, |_, next| add(sum, row(next.index)));
        if !finite {
            let index = first.index as usize;
            return Err(ClientError::NonFinite {
                what: "the sum",
                key: first.key,
                index,
            });
        }
    }
    Ok(Merged {
        keys: Bytes::from_owner(KeyBytes(merged.keys)),
        values: merged.values.into(),
        value_bytes,
        parts: merged.parts,
    })
}

/// A key with its shard and its index in the push. Ordered by shard, key, then request order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    shard: u32,
    key: u64,
    index: u32,
}

fn order(router: &Router, keys: &[u64]) -> Result<Vec<Entry>, ClientError> {
    let entry = |(index, &key): (usize, &u64)| {
        Ok(Entry {
            shard: router.shard(key)?,
            key,
            index: index as u32,
        })
    };
    let entries: Result<Vec<Entry>, OutOfRange> = keys.iter().enumerate().map(entry).collect();
    let mut entries = entries.map_err(Refusal::from)?;
    entries.sort_unstable();
    Ok(entries)
}

struct Gather {
    keys: Vec<U64>,
    values: Vec<u8>,
    parts: Vec<PartKeys>,
    part_keys_max: usize,
}

impl Gather {
    fn key(&mut self, shard: u32, key: u64) {
        let at = self.keys.len();
        self.keys.push(key.into());
        match self.parts.last_mut() {
            Some(part) if part.shard == shard && part.keys.len() < self.part_keys_max => {
                part.keys.end += 1;
            }
            _ => self.parts.push(PartKeys {
                shard,
                keys: at..at + 1,
            }),
        }
    }
}

/// Keys as the bytes of a frame.
struct KeyBytes(Vec<U64>);

impl AsRef<[u8]> for KeyBytes {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// Adds `row` to `sum`, both f32. Returns whether all sums are finite.
fn add(sum: &mut [u8], row: &[u8]) -> bool {
    let mut finite = true;
    for (to, from) in sum
        .as_chunks_mut::<4>()
        .0
        .iter_mut()
        .zip(row.as_chunks::<4>().0)
    {
        let added = f32::from_le_bytes(*to) + f32::from_le_bytes(*from);
        finite &= added.is_finite();
        *to = added.to_le_bytes();
    }
    finite
}

fn check_mode(spec: &TableSpec, mode: PushMode, step: u64) -> Result<(), Refusal> {
    let refused = |why: String| {
        Err(Refusal::Mode {
            mode: mode.word().into(),
            why,
        })
    };
    match mode {
        PushMode::Gradient | PushMode::Add if !spec.schema.is_float() => refused(format!(
            "the table has {}: i8 and u8 take assign and delete only",
            spec.schema.words()
        )),
        PushMode::Gradient if spec.optimizer == Optimizer::None => {
            refused("the table has no optimizer: create it with `--optimizer`".into())
        }
        PushMode::Gradient if spec.optimizer.wants_step() && step == 0 => refused(
            "the table's optimizer has step=caller: give the step's number (`--step N`), from 1"
                .into(),
        ),
        _ if step != 0 && !(mode == PushMode::Gradient && spec.optimizer.wants_step()) => {
            refused(format!(
                "step {step} has no place in it: a number is for gradients of a table with \
                 step=caller"
            ))
        }
        _ => Ok(()),
    }
}

fn value_bytes(spec: &TableSpec, mode: PushMode) -> usize {
    match mode {
        PushMode::Gradient | PushMode::Add => spec.schema.dim() as usize * 4,
        PushMode::Assign => spec.row_bytes() as usize,
        PushMode::Delete => 0,
    }
}

/// The values as bytes, [`value_bytes`] per key.
fn bytes_of<'a>(
    spec: &TableSpec,
    mode: PushMode,
    keys: usize,
    values: Values<'a>,
) -> Result<Cow<'a, [u8]>, ClientError> {
    let shape = |found: String, wanted: String| ClientError::shape("the push", found, wanted);
    if keys > CALL_KEYS_MAX {
        let wanted = format!("at most {CALL_KEYS_MAX} a call");
        return Err(shape(format!("{keys} keys"), wanted));
    }
    let (schema, value_bytes) = (&spec.schema, value_bytes(spec, mode));
    let dim = schema.dim() as usize;
    let (dtype, bytes) = match values {
        Values::None if mode == PushMode::Delete || keys == 0 => return Ok(Cow::Borrowed(&[])),
        Values::None => {
            let wanted = format!("{keys} x {dim} numbers");
            return Err(shape("no values".into(), wanted));
        }
        Values::Rows(rows) if rows.len() != keys * value_bytes => {
            let wanted = format!("{keys} x {value_bytes} B ({})", schema.words());
            return Err(shape(format!("{} B", rows.len()), wanted));
        }
        Values::Rows(rows) => return Ok(Cow::Borrowed(rows)),
        Values::F32(numbers) => (Dtype::F32, numbers.as_bytes()),
        Values::Of(dtype, bytes) => (dtype, bytes),
    };
    // Also for delete: values that would be ignored are a mistake of the caller's.
    let dim = if mode == PushMode::Delete { 0 } else { dim };
    if bytes.len() != keys * dim * dtype.bytes() as usize {
        let found = match bytes.len() % dtype.bytes() as usize {
            0 => format!("{} numbers", bytes.len() / dtype.bytes() as usize),
            _ => format!("{} B of {dtype}", bytes.len()),
        };
        return Err(shape(found, format!("{keys} x {dim} numbers")));
    }
    let stored = match mode {
        PushMode::Assign => schema.dtype(),
        _ => Some(Dtype::F32),
    };
    if stored == Some(dtype) || bytes.is_empty() {
        return Ok(Cow::Borrowed(bytes));
    }
    if dtype == Dtype::F32 && schema.is_float() {
        return Ok(Cow::Owned(narrowed(schema, bytes, keys)));
    }
    let wanted = match stored {
        Some(stored) => format!("{stored} numbers"),
        None => format!("rows of {value_bytes} B ({})", schema.words()),
    };
    Err(shape(format!("{dtype} numbers"), wanted))
}

/// Rows of f32 in the table's dtypes.
fn narrowed(schema: &RowSchema, bytes: &[u8], keys: usize) -> Vec<u8> {
    let (dim, row_bytes) = (schema.dim() as usize, schema.row_bytes() as usize);
    let mut rows = vec![0; keys * row_bytes];
    let mut values = vec![0.0; dim];
    for (from, row) in bytes
        .chunks_exact(dim * 4)
        .zip(rows.chunks_exact_mut(row_bytes))
    {
        widen(Dtype::F32, from, &mut values);
        schema.narrow_row(&values, row);
    }
    rows
}

/// B017: every number of the push is looked at before any of it is sent.
fn check_finite(
    mode: PushMode,
    keys: &[u64],
    bytes: &[u8],
    value_bytes: usize,
) -> Result<(), ClientError> {
    const EXPONENT: u32 = 0x7F80_0000;
    let infinite = |row: &[u8]| {
        let numbers = row.as_chunks::<4>().0;
        numbers.iter().fold(false, |found, number| {
            found | (u32::from_le_bytes(*number) & EXPONENT == EXPONENT)
        })
    };
    if !infinite(bytes) {
        return Ok(());
    }
    let index = bytes
        .chunks_exact(value_bytes)
        .position(infinite)
        .unwrap_or_default();
    let what = if mode == PushMode::Gradient {
        "the gradient"
    } else {
        "the value"
    };
    Err(ClientError::NonFinite {
        what,
        key: keys[index],
        index,
    })
}

#[cfg(test)]
mod tests;
