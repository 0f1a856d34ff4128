//! Reading a mutable shard: lock-free, validated row by row (I-5), prefetched.

use std::sync::Arc;

use mneme_proto::frame::Status;
use mneme_proto::ids::Generation;

use super::{MutableKind, Shared, Slot};
use crate::header::RegionHeader;
use crate::index::{Place, Table};
use crate::keys::KeySource;
use crate::limits::{PREFETCH_ROWS, READ_SPINS_MAX};
use crate::slot::SlotRead;
use crate::words;

/// Reads a shard from any thread. Clones are cheap; each keeps the shard's memory alive (I-6).
#[derive(Debug, Clone)]
pub struct MutableReader {
    shared: Arc<Shared>,
}

/// The region died while or before it was read: what was copied does not count (I-6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("generation {generation} of the region is gone")]
pub struct Gone {
    /// The dead region's.
    pub generation: Generation,
}

/// Why a read returned no rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The region died.
    #[error(transparent)]
    Gone(#[from] Gone),
    /// A dense shard has no such row.
    #[error("local row {row} is out of range: the shard has rows 0..{rows}")]
    OutOfRange {
        /// The row asked for.
        row: u64,
        /// Rows of the shard.
        rows: u64,
    },
    /// A buffer has another size than the keys need.
    #[error("{what} has {got} bytes, {expected} are needed")]
    Buffer {
        /// Which buffer.
        what: &'static str,
        /// Its size.
        got: usize,
        /// What it must be.
        expected: usize,
    },
}

/// What a batch read came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BatchOutcome {
    /// Keys whose row was copied.
    pub found: usize,
    /// Keys that have none.
    pub missing: usize,
}

impl MutableReader {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Rows in the shard.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.shared.rows_now()
    }

    /// Bytes of a row.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.shared.row_bytes
    }

    /// The region's header.
    #[must_use]
    pub fn header(&self) -> RegionHeader {
        self.shared.header.get()
    }

    /// Reads the rows of `keys` (of a dense shard: local rows) into `out`, `row_bytes` each, in
    /// the keys' order, and what became of each into `status`, one [`Status`] byte each. A missing
    /// key's part of `out` keeps what it held. A batch is not one atomic read: each row is.
    ///
    /// # Errors
    /// [`ReadError`]; `out` and `status` then hold nothing that counts.
    pub fn read_batch<K: KeySource + ?Sized>(
        &self,
        keys: &K,
        out: &mut [u8],
        status: &mut [u8],
    ) -> Result<BatchOutcome, ReadError> {
        check_buffers(keys.count(), self.shared.row_bytes, out, status)?;
        let outcome = match self.shared.kind {
            MutableKind::Hashed => self.read_hashed(keys, out, status),
            MutableKind::Dense { rows } => self.read_dense(rows, keys, out, status)?,
        };
        self.check_live()?;
        Ok(outcome)
    }

    /// Reads one row into `out`; false when the key has none.
    ///
    /// # Errors
    /// [`ReadError`]; `out` then holds nothing that counts.
    pub fn read_one(&self, key: u64, out: &mut [u8]) -> Result<bool, ReadError> {
        Ok(self.read_batch(&[key], out, &mut [0])?.found == 1)
    }

    /// Where the key's row stands: a hint that may be stale at once.
    #[must_use]
    pub fn locate(&self, key: u64) -> Option<Slot> {
        let shared = &*self.shared;
        match shared.kind {
            MutableKind::Dense { rows } => (key < rows).then_some(Slot(key)),
            MutableKind::Hashed => {
                let guard = shared.index.table();
                let table = guard.as_deref()?;
                let mut check = |slot| {
                    let whole = settle(|| shared.slot(slot).read(key, || {}));
                    whole.then_some(Slot(slot))
                };
                shared.index.find(table, key, &mut check)
            }
        }
    }

    fn check_live(&self) -> Result<(), Gone> {
        if self.shared.header.is_readable() {
            return Ok(());
        }
        Err(Gone {
            generation: self.shared.header.get().generation,
        })
    }

    /// Copies a slot's row if it is `key`'s.
    #[inline(always)]
    fn read_slot(&self, slot: u64, key: u64, out: &mut [u8]) -> bool {
        let shared = &*self.shared;
        settle(|| {
            shared.slot(slot).read(key, || {
                // SAFETY: `out` is one row; the slot's row has memory for its padded bytes as
                // long as `shared` lives, aligned to 8.
                unsafe { words::copy_out(shared.row(slot), out) };
            })
        })
    }

    fn read_dense<K: KeySource + ?Sized>(
        &self,
        rows: u64,
        keys: &K,
        out: &mut [u8],
        status: &mut [u8],
    ) -> Result<BatchOutcome, ReadError> {
        let shared = &*self.shared;
        let count = keys.count();
        let ahead = |index: usize| {
            if index < count && keys.key(index) < rows {
                words::prefetch(shared.rows.address(keys.key(index)), shared.slot_bytes());
            }
        };
        (0..PREFETCH_ROWS).for_each(ahead);
        let mut found = 0;
        for (index, out) in out.chunks_exact_mut(shared.row_bytes).enumerate() {
            ahead(index + PREFETCH_ROWS);
            let row = keys.key(index);
            if row >= rows {
                return Err(ReadError::OutOfRange { row, rows });
            }
            let hit = self.read_slot(row, row, out);
            status[index] = status_byte(hit);
            found += usize::from(hit);
        }
        Ok(BatchOutcome {
            found,
            missing: count - found,
        })
    }

    /// Three stages, each [`PREFETCH_ROWS`] keys apart: ask for the buckets, guess the slot and
    /// ask for it, copy.
    fn read_hashed<K: KeySource + ?Sized>(
        &self,
        keys: &K,
        out: &mut [u8],
        status: &mut [u8],
    ) -> BatchOutcome {
        const RING: usize = 2 * PREFETCH_ROWS;
        let shared = &*self.shared;
        let count = keys.count();
        let guard = shared.index.table();
        let Some(table) = guard.as_deref() else {
            status.fill(Status::Missing as u8);
            return BatchOutcome {
                found: 0,
                missing: count,
            };
        };
        let mut places: [Option<Place>; RING] = [None; RING];
        let mut guesses = [None; RING];
        let mut found = 0;
        for turn in 0..count + RING {
            if turn < count {
                let place = table.place(keys.key(turn));
                table.prefetch(&place);
                places[turn % RING] = Some(place);
            }
            let turn = turn.wrapping_sub(PREFETCH_ROWS);
            if turn < count
                && let Some(place) = &places[turn % RING]
            {
                let guess = table.guess(place);
                if let Some(slot) = guess {
                    words::prefetch(shared.rows.address(slot), shared.slot_bytes());
                }
                guesses[turn % RING] = guess;
            }
            let turn = turn.wrapping_sub(PREFETCH_ROWS);
            if turn < count {
                let out = &mut out[turn * shared.row_bytes..][..shared.row_bytes];
                let hit = self.read_guessed(table, keys.key(turn), guesses[turn % RING], out);
                status[turn] = status_byte(hit);
                found += usize::from(hit);
            }
        }
        BatchOutcome {
            found,
            missing: count - found,
        }
    }

    #[inline(always)]
    fn read_guessed(&self, table: &Table, key: u64, guess: Option<u64>, out: &mut [u8]) -> bool {
        if let Some(slot) = guess
            && self.read_slot(slot, key, out)
        {
            return true;
        }
        let mut check = |slot| self.read_slot(slot, key, out).then_some(());
        self.shared.index.find(table, key, &mut check).is_some()
    }
}

/// Repeats a read until the slot is not being written, and says whether it was the key's.
#[inline(always)]
fn settle(mut read: impl FnMut() -> SlotRead) -> bool {
    let mut spins = 0;
    loop {
        match read() {
            SlotRead::Whole => return true,
            SlotRead::Other => return false,
            SlotRead::Torn => {
                spins += 1;
                if spins % READ_SPINS_MAX == 0 {
                    std::thread::yield_now();
                } else {
                    std::hint::spin_loop();
                }
            }
        }
    }
}

#[inline(always)]
pub(crate) const fn status_byte(found: bool) -> u8 {
    if found {
        Status::Found as u8
    } else {
        Status::Missing as u8
    }
}

/// Sizes of a batch's buffers.
pub(crate) fn check_buffers(
    keys: usize,
    row_bytes: usize,
    out: &[u8],
    status: &[u8],
) -> Result<(), ReadError> {
    let sized = |what, got, expected| {
        if got == expected {
            return Ok(());
        }
        Err(ReadError::Buffer {
            what,
            got,
            expected,
        })
    };
    sized("the row buffer", out.len(), keys.saturating_mul(row_bytes))?;
    sized("the status buffer", status.len(), keys)
}
