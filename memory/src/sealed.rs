//! The sealed store of one shard: loaded once, verified, then read and never written (I-8).
//!
//! A dense shard is bare rows at their stride, a hashed one key and row, with an index over them.
//! [`SealedBuilder`] takes all memory first and is filled in any order; `finish` checks that every
//! row came and no key twice, and makes a [`SealedShard`] of it. Files are the subject of
//! [`mod@file`].

mod builder;
pub mod file;

use std::sync::Arc;

use mneme_proto::ids::{ClusterId, Generation, RegionId, ShardId};
use mneme_proto::limits::DIGEST_CHUNK_BYTES;
use mneme_proto::mix64::mix64;

pub use builder::{SealError, SealedBuilder};

use crate::growth::Index;
use crate::header::{LiveHeader, PlaneLayout, RegionHeader, RegionState};
use crate::index::{Place, Table};
use crate::keys::KeySource;
use crate::limits::PREFETCH_ROWS;
use crate::mutable::{BatchOutcome, Gone, ReadError, check_buffers, status_byte};
use crate::region::Region;
use crate::slab::Slab;
use crate::words;

/// Bytes of the key before a hashed row.
const KEY_BYTES: usize = 8;

/// What a sealed shard is made of.
#[derive(Debug, Clone)]
pub struct SealedSpec {
    /// The cluster.
    pub cluster: ClusterId,
    /// The table and which of its shards.
    pub shard: ShardId,
    /// The region.
    pub region: RegionId,
    /// Its generation, never reused (I-6).
    pub generation: Generation,
    /// Bytes of a row; at least 1.
    pub row_bytes: u32,
    /// Rows of this shard.
    pub rows: u64,
    /// Whether rows have keys (hashed) or are found by local row (dense).
    pub keyed: bool,
    /// Seed of the index, the table's own and drawn at random; unused when dense.
    pub seed: u64,
    /// Planes of a row.
    pub planes: Vec<PlaneLayout>,
}

/// Digests of a sealed shard's contents: what two replicas compare before they are published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Digests {
    /// CRC32C of each 64 MiB of the slab, in order.
    pub chunks: Vec<u32>,
    /// All of them and the shard's shape in one number.
    pub combined: u64,
}

impl Digests {
    /// Digests of a slab's `content`.
    fn of(content: &[u8], rows: u64, stride: u64, keyed: bool) -> Self {
        let chunks = content.chunks(DIGEST_CHUNK_BYTES as usize);
        Self::of_chunks(chunks.map(crc32c::crc32c).collect(), rows, stride, keyed)
    }

    fn of_chunks(chunks: Vec<u32>, rows: u64, stride: u64, keyed: bool) -> Self {
        let shape = mix64(mix64(rows) ^ stride << 1 ^ u64::from(keyed));
        let fold = |sum, crc: &u32| mix64(sum ^ u64::from(*crc));
        let combined = chunks.iter().fold(shape, fold);
        Self { chunks, combined }
    }
}

/// A sealed shard: cheap to clone, read from any thread. Its memory is given back when the last
/// clone goes (I-6).
#[derive(Debug, Clone)]
pub struct SealedShard {
    inner: Arc<Inner>,
}

/// Memory and shape of a sealed shard, while it is built and after.
#[derive(Debug)]
struct Inner {
    header: LiveHeader,
    row_bytes: usize,
    stride: usize,
    rows: u64,
    keyed: bool,
    slab: Slab,
    index: Index,
    index_bytes: u64,
    digests: Digests,
}

impl Inner {
    /// The address of a slot: its key when there are keys, else its row.
    #[inline(always)]
    fn slot(&self, slot: u64) -> *const u8 {
        debug_assert!(slot < self.rows);
        self.slab.address(slot)
    }

    /// Bytes before the row in each slot.
    #[inline(always)]
    const fn key_bytes(&self) -> usize {
        if self.keyed { KEY_BYTES } else { 0 }
    }

    /// All slots. Only when nothing is written any more, or by the builder.
    fn content(&self) -> &[u8] {
        if self.rows == 0 {
            return &[];
        }
        let bytes = self.rows as usize * self.stride;
        // SAFETY: a fixed slab is one segment, so `rows` slots of `stride` bytes stand in a row,
        // populated, for as long as `self` lives. Whoever writes holds `&mut Inner` (the builder);
        // after sealing nobody does (I-8).
        unsafe { std::slice::from_raw_parts(self.slab.address(0), bytes) }
    }

    /// All slots, for the builder.
    fn content_mut(&mut self) -> &mut [u8] {
        if self.rows == 0 {
            return &mut [];
        }
        let bytes = self.rows as usize * self.stride;
        // SAFETY: as in `content`; `&mut self` makes it the only borrow, and no descriptor of the
        // region has been handed out before it is sealed.
        unsafe { std::slice::from_raw_parts_mut(self.slab.address(0), bytes) }
    }

    /// The key in a slot of a keyed shard.
    #[inline(always)]
    fn key(&self, slot: u64) -> u64 {
        // SAFETY: the slot has memory, its first 8 bytes are the key, aligned; nobody writes.
        u64::from_le(unsafe { self.slot(slot).cast::<u64>().read() })
    }

    #[inline(always)]
    fn copy_row(&self, slot: u64, out: &mut [u8]) {
        let row = self.slot(slot).wrapping_add(self.key_bytes());
        // SAFETY: the slot has memory for the row's padded bytes, aligned to 8.
        unsafe { words::copy_out(row, out) };
    }

    fn update_header(&self, change: impl FnOnce(&mut RegionHeader)) {
        let page = self.slab.header_page().filter(|_| self.slab.slots() > 0);
        let page = page.unwrap_or(std::ptr::null_mut());
        // SAFETY: the page is this region's, mapped and populated: the slab has slots.
        unsafe { self.header.update(page, change) };
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Dead before its memory is given back (I-6).
        self.update_header(|header| header.state = RegionState::Dead);
    }
}

impl SealedShard {
    /// Rows in the shard.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.inner.rows
    }

    /// Bytes of a row.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.inner.row_bytes
    }

    /// Whether rows have keys.
    #[must_use]
    pub fn keyed(&self) -> bool {
        self.inner.keyed
    }

    /// Bytes that it has taken from its pool: rows and index.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.inner.slab.bytes() + self.inner.index_bytes
    }

    /// The region's header.
    #[must_use]
    pub fn header(&self) -> RegionHeader {
        self.inner.header.get()
    }

    /// The region; `None` for a shard without rows.
    #[must_use]
    pub fn region(&self) -> Option<&Arc<Region>> {
        self.inner.slab.region()
    }

    /// Digests of its contents, as computed when it was sealed.
    #[must_use]
    pub fn digests(&self) -> &Digests {
        &self.inner.digests
    }

    /// Computes the digests again and says whether they are what they were: a scrub.
    #[must_use]
    pub fn verify(&self) -> bool {
        let inner = &*self.inner;
        let now = Digests::of(
            inner.content(),
            inner.rows,
            inner.stride as u64,
            inner.keyed,
        );
        now == inner.digests
    }

    /// Says in the header what the region may be used for: draining, then dead. Readers of a dead
    /// one get [`Gone`].
    pub fn set_state(&self, state: RegionState) {
        self.inner.update_header(|header| header.state = state);
    }

    /// Reads the rows of `keys` (of a dense shard: local rows) into `out`, `row_bytes` each, in
    /// the keys' order, and what became of each into `status`, one byte of
    /// [`mneme_proto::frame::Status`] each. A missing key's part of `out` keeps what it held.
    ///
    /// # Errors
    /// [`ReadError`]; `out` and `status` then hold nothing that counts.
    pub fn read_batch<K: KeySource + ?Sized>(
        &self,
        keys: &K,
        out: &mut [u8],
        status: &mut [u8],
    ) -> Result<BatchOutcome, ReadError> {
        let inner = &*self.inner;
        check_buffers(keys.count(), inner.row_bytes, out, status)?;
        let outcome = if inner.keyed {
            inner.read_keyed(keys, out, status)
        } else {
            inner.read_dense(keys, out)?;
            status.fill(status_byte(true));
            BatchOutcome {
                found: keys.count(),
                missing: 0,
            }
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

    /// The slot of a key, which never changes while the shard lives.
    #[must_use]
    pub fn locate(&self, key: u64) -> Option<u64> {
        let inner = &*self.inner;
        if !inner.keyed {
            return (key < inner.rows).then_some(key);
        }
        let guard = inner.index.table();
        let mut check = |slot| (inner.key(slot) == key).then_some(slot);
        inner.index.find(guard.as_deref()?, key, &mut check)
    }

    fn check_live(&self) -> Result<(), Gone> {
        if self.inner.header.is_readable() {
            return Ok(());
        }
        Err(Gone {
            generation: self.header().generation,
        })
    }

    /// Key (or local row) and row of each slot, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.iter_from(0)
    }

    /// [`SealedShard::iter`] from slot `slot` on.
    pub fn iter_from(&self, slot: u64) -> impl Iterator<Item = (u64, &[u8])> {
        let inner = &*self.inner;
        let first = slot.min(inner.rows);
        let content = &inner.content()[first as usize * inner.stride..];
        content
            .chunks_exact(inner.stride)
            .zip(first..)
            .map(|(bytes, slot)| {
                let key = if inner.keyed { inner.key(slot) } else { slot };
                (key, &bytes[inner.key_bytes()..][..inner.row_bytes])
            })
    }
}

impl Inner {
    fn read_dense<K: KeySource + ?Sized>(&self, keys: &K, out: &mut [u8]) -> Result<(), ReadError> {
        let count = keys.count();
        let ahead = |index: usize| {
            if index < count && keys.key(index) < self.rows {
                words::prefetch(self.slot(keys.key(index)), self.row_bytes);
            }
        };
        (0..PREFETCH_ROWS).for_each(ahead);
        for (index, out) in out.chunks_exact_mut(self.row_bytes).enumerate() {
            ahead(index + PREFETCH_ROWS);
            let row = keys.key(index);
            if row >= self.rows {
                return Err(ReadError::OutOfRange {
                    row,
                    rows: self.rows,
                });
            }
            self.copy_row(row, out);
        }
        Ok(())
    }

    /// Three stages, each [`PREFETCH_ROWS`] keys apart: ask for the buckets, guess the slot and
    /// ask for it, copy.
    fn read_keyed<K: KeySource + ?Sized>(
        &self,
        keys: &K,
        out: &mut [u8],
        status: &mut [u8],
    ) -> BatchOutcome {
        const RING: usize = 2 * PREFETCH_ROWS;
        let count = keys.count();
        let guard = self.index.table();
        let Some(table) = guard.as_deref() else {
            status.fill(status_byte(false));
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
                    words::prefetch(self.slot(slot), KEY_BYTES + self.row_bytes);
                }
                guesses[turn % RING] = guess;
            }
            let turn = turn.wrapping_sub(PREFETCH_ROWS);
            if turn < count {
                let out = &mut out[turn * self.row_bytes..][..self.row_bytes];
                let slot = self.find(table, keys.key(turn), guesses[turn % RING]);
                if let Some(slot) = slot {
                    self.copy_row(slot, out);
                    found += 1;
                }
                status[turn] = status_byte(slot.is_some());
            }
        }
        BatchOutcome {
            found,
            missing: count - found,
        }
    }

    #[inline(always)]
    fn find(&self, table: &Table, key: u64, guess: Option<u64>) -> Option<u64> {
        if let Some(slot) = guess
            && self.key(slot) == key
        {
            return Some(slot);
        }
        let mut check = |slot| (self.key(slot) == key).then_some(slot);
        self.index.find(table, key, &mut check)
    }
}
