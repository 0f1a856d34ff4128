//! Filling a sealed shard, and the checks before it is sealed.

use std::sync::Arc;

use mneme_proto::ids::Epoch;
use rustc_hash::FxHashMap;

use super::{Digests, Inner, KEY_BYTES, SealedShard, SealedSpec};
use crate::growth::Index;
use crate::header::{LayoutKind, LiveHeader, RegionHeader, RegionState};
use crate::index::Table;
use crate::keys::KeySource;
use crate::limits::{INDEX_FILE_OFFSET, PREFETCH_ROWS, SLOTS_MAX};
use crate::plan;
use crate::pool::{Pool, PoolError};
use crate::region::{Piece, Region};
use crate::slab::Slab;

/// Why rows were not taken, or a shard not sealed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// Rows beyond the shard's end. None of them was written.
    #[error("rows {first}..{first}+{count} are out of range: the shard has rows 0..{rows}")]
    OutOfRange {
        /// Index of the first.
        first: u64,
        /// How many.
        count: u64,
        /// Rows of the shard.
        rows: u64,
    },
    /// Keys for a dense shard, none for a hashed one, or bytes that are no whole rows. None of
    /// the rows was written.
    #[error("{what}: {got} came, {expected} are needed")]
    Shape {
        /// What does not fit.
        what: &'static str,
        /// How much came.
        got: usize,
        /// How much is needed.
        expected: usize,
    },
    /// Rows are missing.
    #[error("{missing} of {rows} rows were not loaded, the first of them is row {first}")]
    Incomplete {
        /// How many.
        missing: u64,
        /// Rows of the shard.
        rows: u64,
        /// The lowest.
        first: u64,
    },
    /// A key came twice.
    #[error("key {key} was loaded twice: as rows {first} and {second} of the shard's load")]
    DuplicateKey {
        /// The key.
        key: u64,
        /// Where it stands first.
        first: u64,
        /// Where it stands again.
        second: u64,
    },
}

/// A shard being loaded. All its memory is taken; nobody reads it.
#[derive(Debug)]
pub struct SealedBuilder {
    inner: Inner,
    seed: u64,
    /// Memory of the index, populated; taken at first so that sealing cannot find the pool full.
    index: Option<Piece>,
    /// One bit per row that was written.
    written: Vec<u64>,
    written_rows: u64,
}

impl SealedBuilder {
    /// Takes all memory of the shard, index included (I-12).
    ///
    /// # Errors
    /// [`PoolError`]; nothing is taken then.
    ///
    /// # Panics
    /// If the spec has rows of no bytes: schemas are validated before.
    pub fn new(pool: &Arc<Pool>, spec: &SealedSpec) -> Result<Self, PoolError> {
        assert!(spec.row_bytes > 0, "a row has at least one byte");
        if spec.rows > SLOTS_MAX {
            return Err(PoolError::TooLarge {
                what: "rows of one shard",
                asked: spec.rows,
                limit: SLOTS_MAX,
            });
        }
        let stride = plan::sealed_stride(spec.row_bytes, spec.keyed);
        let slab = Slab::new(stride, Some(spec.rows));
        let mut index = None;
        let mut index_bytes = 0;
        if spec.rows > 0 {
            let slab_bytes = slab.asks(spec.rows, pool)?;
            if spec.keyed {
                index_bytes = pool.rounded(plan::sealed_index_bytes(spec.rows));
            }
            let mut taken = pool.take(slab_bytes + index_bytes)?;
            let name = format!("mneme sealed {} region {}", spec.shard, spec.region);
            let region = Region::create(pool, &name)?;
            slab.grow(&region, spec.rows, taken.split(slab_bytes))?;
            if spec.keyed {
                let mut piece = Piece::map(&region, INDEX_FILE_OFFSET, taken)?;
                piece.populate_step(u64::MAX)?;
                index = Some(piece);
            }
        }
        let inner = Inner {
            header: LiveHeader::new(header_of(spec, stride, &slab, index.as_ref())),
            row_bytes: spec.row_bytes as usize,
            stride: stride as usize,
            rows: spec.rows,
            keyed: spec.keyed,
            slab,
            index: Index::default(),
            index_bytes,
            digests: Digests::of(&[], 0, stride, spec.keyed),
        };
        inner.update_header(|_| {});
        Ok(Self {
            inner,
            seed: spec.seed,
            index,
            written: vec![0; spec.rows.div_ceil(64) as usize],
            written_rows: 0,
        })
    }

    /// Rows of the shard.
    #[must_use]
    pub const fn rows(&self) -> u64 {
        self.inner.rows
    }

    /// Rows that were written so far, each counted once.
    #[must_use]
    pub const fn written_rows(&self) -> u64 {
        self.written_rows
    }

    /// Bytes that it has taken from its pool: rows and index.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.inner.slab.bytes() + self.inner.index_bytes
    }

    /// Writes rows `first..` of the load, in any order; the same index again overwrites. `rows` is
    /// whole rows of `row_bytes`;
    /// `keys` has one key per row of a hashed shard, none of a dense one.
    ///
    /// # Errors
    /// [`SealError::OutOfRange`] or [`SealError::Shape`], and nothing was written.
    pub fn put<K: KeySource + ?Sized>(
        &mut self,
        first: u64,
        keys: &K,
        rows: &[u8],
    ) -> Result<(), SealError> {
        let row_bytes = self.inner.row_bytes;
        let count = rows.len() / row_bytes;
        let sized = |what, got, expected| {
            if got == expected {
                return Ok(());
            }
            Err(SealError::Shape {
                what,
                got,
                expected,
            })
        };
        sized("bytes of whole rows", rows.len(), count * row_bytes)?;
        sized(
            "keys",
            keys.count(),
            if self.inner.keyed { count } else { 0 },
        )?;
        let end = first
            .checked_add(count as u64)
            .filter(|end| *end <= self.inner.rows);
        let Some(end) = end else {
            return Err(SealError::OutOfRange {
                first,
                count: count as u64,
                rows: self.inner.rows,
            });
        };
        let (stride, keyed) = (self.inner.stride, self.inner.keyed);
        let content = &mut self.inner.content_mut()[first as usize * stride..];
        for (index, row) in rows.chunks_exact(row_bytes).enumerate() {
            let mut slot = &mut content[index * stride..][..stride];
            if keyed {
                let (key, rest) = slot.split_at_mut(KEY_BYTES);
                key.copy_from_slice(&keys.key(index).to_le_bytes());
                slot = rest;
            }
            slot[..row_bytes].copy_from_slice(row);
        }
        self.mark_written(first, end);
        Ok(())
    }

    fn mark_written(&mut self, first: u64, end: u64) {
        for row in first..end {
            let word = &mut self.written[row as usize / 64];
            let bit = 1 << (row % 64);
            self.written_rows += u64::from(*word & bit == 0);
            *word |= bit;
        }
    }

    /// The whole slab, for a file that holds one; the caller fills all of it.
    pub(super) fn content_mut(&mut self) -> &mut [u8] {
        self.mark_written(0, self.inner.rows);
        self.inner.content_mut()
    }

    /// Whether every row was written.
    ///
    /// # Errors
    /// [`SealError::Incomplete`].
    pub fn check_complete(&self) -> Result<(), SealError> {
        if self.written_rows == self.inner.rows {
            return Ok(());
        }
        let first = self
            .written
            .iter()
            .position(|word| *word != u64::MAX)
            .unwrap_or(0);
        Err(SealError::Incomplete {
            missing: self.inner.rows - self.written_rows,
            rows: self.inner.rows,
            first: first as u64 * 64 + u64::from(self.written[first].trailing_ones()),
        })
    }

    /// Seals the shard: checks that it is complete, builds the index, computes the digests. From
    /// then on it never changes (I-8).
    ///
    /// # Errors
    /// [`SealError::Incomplete`] or [`SealError::DuplicateKey`]; the shard's memory is given back
    /// ([`SealedBuilder::check_complete`] asks without that).
    pub fn finish(mut self) -> Result<SealedShard, SealError> {
        self.check_complete()?;
        if let Some(piece) = self.index.take() {
            self.inner.index = build_index(&self.inner, Table::mapped(piece, self.seed))?;
        }
        let inner = &mut self.inner;
        let content = inner.content();
        inner.digests = Digests::of(content, inner.rows, inner.stride as u64, inner.keyed);
        inner.update_header(|header| {
            header.state = RegionState::Sealed;
            header.rows = header.slots;
        });
        Ok(SealedShard {
            inner: Arc::new(self.inner),
        })
    }
}

fn header_of(spec: &SealedSpec, stride: u64, slab: &Slab, index: Option<&Piece>) -> RegionHeader {
    RegionHeader {
        cluster: spec.cluster,
        shard: spec.shard,
        region: spec.region,
        generation: spec.generation,
        state: RegionState::Loading,
        primary_since: Epoch(0),
        kind: if spec.keyed {
            LayoutKind::SealedHashed
        } else {
            LayoutKind::SealedDense
        },
        slots: slab.slots(),
        rows: 0,
        stride_bytes: stride,
        index_offset: index.map_or(0, |piece| piece.span().offset()),
        index_bytes: index.map_or(0, Piece::bytes),
        index_seed: if spec.keyed { spec.seed } else { 0 },
        planes: spec.planes.clone(),
    }
}

/// Enters every key of a loaded shard into `table`.
fn build_index(inner: &Inner, table: Table) -> Result<Index, SealError> {
    let mut spill = FxHashMap::default();
    for slot in 0..inner.rows {
        let ahead = slot + PREFETCH_ROWS as u64;
        if ahead < inner.rows {
            table.prefetch(&table.place(inner.key(ahead)));
        }
        let key = inner.key(slot);
        let mut check = |slot| (inner.key(slot) == key).then_some(slot);
        let before = match table.find(key, &mut check) {
            crate::index::Lookup::Hit(before) => Some(before),
            crate::index::Lookup::Missing => None,
            crate::index::Lookup::Spilled => spill.get(&key).copied(),
        };
        if let Some(first) = before {
            return Err(SealError::DuplicateKey {
                key,
                first,
                second: slot,
            });
        }
        let place = table.place(key);
        if !table.put(&place, slot) {
            spill.insert(key, slot);
            table.mark_spilled(&place);
        }
    }
    Ok(Index::complete(table, spill))
}
