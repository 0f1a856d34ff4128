//! Writing a mutable shard: the one writer, which also owns the private state.
//!
//! What it writes, it may read through slices: nobody else writes. Readers see each row change
//! whole (I-5).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use mneme_proto::ids::Epoch;

use super::{MutableKind, MutableReader, Shared, Slot};
use crate::growth::IndexWriter;
use crate::header::{LiveHeader, RegionHeader, RegionState};
use crate::pool::{Pool, PoolError};
use crate::region::Region;
use crate::slab::Slab;
use crate::slot::{FREE, LIVE, slot_crc};
use crate::words;

/// The private slab of optimizer state.
#[derive(Debug)]
pub(super) struct StateSlab {
    pub(super) slab: Slab,
    pub(super) bytes: usize,
    pub(super) header: LiveHeader,
}

impl StateSlab {
    pub(super) fn update_header(&self, change: impl FnOnce(&mut RegionHeader)) {
        let page = self.slab.header_page().filter(|_| self.slab.slots() > 0);
        let page = page.unwrap_or(std::ptr::null_mut());
        // SAFETY: the page is this region's, mapped and populated: the slab has slots.
        unsafe { self.header.update(page, change) };
    }
}

impl Drop for StateSlab {
    fn drop(&mut self) {
        self.update_header(|header| header.state = RegionState::Dead);
    }
}

/// The one writer of a shard. Not cloned; moved to whichever thread runs the shard.
#[derive(Debug)]
pub struct MutableWriter {
    pub(super) pool: Arc<Pool>,
    pub(super) shared: Arc<Shared>,
    pub(super) state: Option<StateSlab>,
    pub(super) index: IndexWriter,
    /// Slots with memory in both slabs.
    pub(super) slots: u64,
    /// Slots that were ever written: `0..high`.
    pub(super) high: u64,
    /// Free slots among them, chained through their key fields.
    pub(super) free: u64,
    pub(super) free_first: Option<u64>,
    pub(super) scratch: Vec<u8>,
}

impl MutableWriter {
    pub(super) fn new(
        pool: Arc<Pool>,
        shared: Arc<Shared>,
        state: Option<StateSlab>,
        index: IndexWriter,
    ) -> Self {
        let scratch = vec![0; shared.row_bytes];
        Self {
            pool,
            shared,
            state,
            index,
            slots: 0,
            high: 0,
            free: 0,
            free_first: None,
            scratch,
        }
    }

    /// A reader of this shard.
    #[must_use]
    pub fn reader(&self) -> MutableReader {
        MutableReader::new(Arc::clone(&self.shared))
    }

    /// Rows in the shard.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self.shared.kind {
            MutableKind::Dense { rows } => rows,
            MutableKind::Hashed => self.index.len(),
        }
    }

    /// Whether it has no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of a row.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.shared.row_bytes
    }

    /// Bytes of a row's optimizer state.
    #[must_use]
    pub fn state_bytes(&self) -> usize {
        self.state.as_ref().map_or(0, |state| state.bytes)
    }

    /// Bytes that the shard has taken from its pool: rows, state and index.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let state = self.state.as_ref().map_or(0, |state| state.slab.bytes());
        self.shared.rows.bytes() + state + self.index.bytes()
    }

    /// The region of rows and index, once it has memory; the state's is never handed out.
    #[must_use]
    pub fn region(&self) -> Option<&Arc<Region>> {
        self.shared.rows.region()
    }

    /// The header of the region of rows.
    #[must_use]
    pub fn header(&self) -> RegionHeader {
        self.shared.header.get()
    }

    /// Says in both headers what the regions may be used for. Readers of a dead one get `Gone`.
    pub fn set_state(&mut self, state: RegionState) {
        self.shared.update_header(|header| header.state = state);
        if let Some(slab) = &self.state {
            slab.update_header(|header| header.state = state);
        }
    }

    /// Says in the header since which epoch this replica is primary; 0 when it is not.
    pub fn set_primary_since(&mut self, epoch: Epoch) {
        self.shared
            .update_header(|header| header.primary_since = epoch);
    }

    /// Where the key's row stands.
    #[must_use]
    pub fn locate(&self, key: u64) -> Option<Slot> {
        match self.shared.kind {
            MutableKind::Dense { rows } => (key < rows).then_some(Slot(key)),
            MutableKind::Hashed => {
                let guard = self.shared.index.table();
                let mut check = |slot| self.is_key(slot, key).then_some(Slot(slot));
                self.shared.index.find(guard.as_deref()?, key, &mut check)
            }
        }
    }

    fn is_key(&self, slot: u64, key: u64) -> bool {
        let header = self.shared.slot(slot);
        header.key() == key && header.flags() == LIVE
    }

    /// [`MutableWriter::locate`] for a batch, with index and slot headers asked for ahead; `slots`
    /// is cleared and gets one answer per key, in order. Whoever then goes through the rows calls
    /// [`MutableWriter::prefetch`] some slots ahead.
    pub fn locate_batch(&self, keys: &[u64], slots: &mut Vec<Option<Slot>>) {
        use crate::limits::PREFETCH_ROWS as AHEAD;
        slots.clear();
        let guard = self.shared.index.table();
        let (MutableKind::Hashed, Some(table)) = (self.shared.kind, guard.as_deref()) else {
            slots.extend(keys.iter().map(|key| self.locate(*key)));
            return;
        };
        for turn in 0..keys.len() + 2 * AHEAD {
            if let Some(key) = keys.get(turn) {
                table.prefetch(&table.place(*key));
            }
            let turn = turn.wrapping_sub(AHEAD);
            if let Some(key) = keys.get(turn)
                && let Some(slot) = table.guess(&table.place(*key))
            {
                words::prefetch(self.shared.rows.address(slot), 1);
            }
            if let Some(key) = keys.get(turn.wrapping_sub(AHEAD)) {
                let mut check = |slot| self.is_key(slot, *key).then_some(Slot(slot));
                slots.push(self.shared.index.find(table, *key, &mut check));
            }
        }
    }

    /// Asks the processor for a slot's row and state.
    #[inline(always)]
    pub fn prefetch(&self, slot: Slot) {
        words::prefetch(self.shared.rows.address(slot.0), self.shared.slot_bytes());
        if let Some(state) = &self.state {
            words::prefetch(state.slab.address(slot.0), state.bytes);
        }
    }

    /// A slot's row.
    #[inline(always)]
    #[must_use]
    pub fn row(&self, slot: Slot) -> &[u8] {
        self.check(slot);
        // SAFETY: the slot has memory (checked) for as long as `shared` lives. Only this writer
        // writes it, and not while it is borrowed.
        unsafe { std::slice::from_raw_parts(self.shared.row(slot.0), self.shared.row_bytes) }
    }

    /// A slot's optimizer state; empty when there is none.
    #[inline(always)]
    #[must_use]
    pub fn state(&self, slot: Slot) -> &[u8] {
        self.check(slot);
        match &self.state {
            // SAFETY: the slot has memory in the state slab too (checked), which is private to
            // this writer and not written while it is borrowed.
            Some(state) => unsafe {
                std::slice::from_raw_parts(state.slab.address(slot.0), state.bytes)
            },
            None => &[],
        }
    }

    /// Copies a slot's row and state out.
    ///
    /// # Panics
    /// If a buffer has another size.
    pub fn read_into(&self, slot: Slot, row: &mut [u8], state: &mut [u8]) {
        row.copy_from_slice(self.row(slot));
        state.copy_from_slice(self.state(slot));
    }

    /// Slots come from `locate` and `insert` of this writer; one of another shard must not become
    /// a wild access.
    #[inline(always)]
    fn check(&self, slot: Slot) {
        assert!(slot.0 < self.slots, "a slot of another shard");
    }

    /// Overwrites a slot's row and state; readers see the row before or after.
    ///
    /// # Panics
    /// If the slot is no row's, or a buffer has another size.
    #[inline]
    pub fn write(&mut self, slot: Slot, row: &[u8], state: &[u8]) {
        self.check(slot);
        let header = self.shared.slot(slot.0);
        assert!(header.flags() == LIVE, "a slot that holds no row");
        self.store(slot.0, header.key(), row, state);
    }

    /// Changes a slot's row and state in place: `change` gets copies, which are then stored.
    ///
    /// # Panics
    /// If the slot is no row's.
    #[inline]
    pub fn update(&mut self, slot: Slot, change: impl FnOnce(&mut [u8], &mut [u8])) {
        let mut row = std::mem::take(&mut self.scratch);
        row.copy_from_slice(self.row(slot));
        let header = self.shared.slot(slot.0);
        assert!(header.flags() == LIVE, "a slot that holds no row");
        let key = header.key();
        match &self.state {
            Some(state) => {
                let address = state.slab.address(slot.0);
                // SAFETY: as in `state`; `&mut self` makes this the only borrow.
                let state = unsafe { std::slice::from_raw_parts_mut(address, state.bytes) };
                change(&mut row, state);
            }
            None => change(&mut row, &mut []),
        }
        self.store_row(slot.0, key, LIVE, &row);
        self.scratch = row;
    }

    #[inline(always)]
    pub(super) fn store(&mut self, slot: u64, key: u64, row: &[u8], state: &[u8]) {
        assert_eq!(row.len(), self.shared.row_bytes, "bytes of a row");
        assert_eq!(state.len(), self.state_bytes(), "bytes of optimizer state");
        if let Some(slab) = &self.state {
            // SAFETY: the slot has memory for the state's bytes; `&mut self` makes this the only
            // access to the private slab; `state` is no part of it, since that would borrow self.
            unsafe {
                let to = slab.slab.address(slot);
                std::ptr::copy_nonoverlapping(state.as_ptr(), to, state.len());
            }
        }
        self.store_row(slot, key, LIVE, row);
    }

    #[inline(always)]
    fn store_row(&self, slot: u64, key: u64, flags: u32, row: &[u8]) {
        let target = self.shared.row(slot);
        self.shared.slot(slot).write(
            key,
            flags,
            |seq| slot_crc(key, seq, flags, row),
            // SAFETY: the slot's row has memory for its padded bytes, aligned to 8; this is its
            // one writer.
            || unsafe { words::copy_in(target, row) },
        );
    }

    /// Gives a key its row and state, in a new slot or, if it has a row, in place of that. Uses
    /// memory that [`MutableWriter::reserve`] took, or takes it.
    ///
    /// # Errors
    /// [`PoolError`], and nothing has changed; never after a `reserve` that covers it.
    ///
    /// # Panics
    /// If the shard is dense and has no such row, or a buffer has another size.
    pub fn insert(&mut self, key: u64, row: &[u8], state: &[u8]) -> Result<Slot, PoolError> {
        if let Some(slot) = self.locate(key) {
            self.write(slot, row, state);
            return Ok(slot);
        }
        assert!(
            self.shared.kind == MutableKind::Hashed,
            "a dense shard has all its rows"
        );
        self.reserve(1)?;
        let slot = match self.free_first {
            Some(slot) => {
                let next = self.shared.slot(slot).key();
                self.free_first = next.checked_sub(1);
                self.free -= 1;
                slot
            }
            None => {
                self.high += 1;
                self.high - 1
            }
        };
        // The row first, so that whoever finds the key finds the row.
        self.store(slot, key, row, state);
        let shared = &self.shared;
        self.index.insert(key, slot, &**shared);
        self.shared.len.store(self.index.len(), Ordering::Release);
        Ok(Slot(slot))
    }

    /// Takes a key's row away: its slot is rewritten as free and its bytes are zeroed before this
    /// returns. False if it has none, as of every key of a dense shard.
    pub fn delete(&mut self, key: u64) -> bool {
        if self.shared.kind != MutableKind::Hashed {
            return false;
        }
        let Some(Slot(slot)) = self.locate(key) else {
            return false;
        };
        let shared = &self.shared;
        self.index.remove(key, slot, &**shared);
        let next = self.free_first.map_or(0, |slot| slot + 1);
        let mut zeros = std::mem::take(&mut self.scratch);
        zeros.fill(0);
        self.store_row(slot, next, FREE, &zeros);
        self.scratch = zeros;
        if let Some(state) = &self.state {
            // SAFETY: as in `store`.
            unsafe { std::ptr::write_bytes(state.slab.address(slot), 0, state.bytes) };
        }
        self.free_first = Some(slot);
        self.free += 1;
        self.shared.len.store(self.index.len(), Ordering::Release);
        true
    }

    /// All rows in the order of their slots.
    #[must_use]
    pub fn iter(&self) -> Rows<'_> {
        self.iter_from(0)
    }

    /// The rows of slot number `slot` and after: a long scan goes on where it was, by
    /// [`Rows::next_slot`], without keeping the writer.
    #[must_use]
    pub const fn iter_from(&self, slot: u64) -> Rows<'_> {
        Rows {
            writer: self,
            next: slot,
        }
    }
}

impl<'a> IntoIterator for &'a MutableWriter {
    type Item = (u64, &'a [u8], &'a [u8]);
    type IntoIter = Rows<'a>;

    fn into_iter(self) -> Rows<'a> {
        self.iter()
    }
}

/// Key, row and state of each row of a shard; see [`MutableWriter::iter`].
#[derive(Debug)]
pub struct Rows<'a> {
    writer: &'a MutableWriter,
    next: u64,
}

impl Rows<'_> {
    /// The number of the slot after the last row that was given.
    #[must_use]
    pub const fn next_slot(&self) -> u64 {
        self.next
    }
}

impl<'a> Iterator for Rows<'a> {
    type Item = (u64, &'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        while self.next < self.writer.high {
            let slot = self.next;
            self.next += 1;
            if self.writer.shared.is_live(slot) {
                let key = self.writer.shared.slot(slot).key();
                return Some((
                    key,
                    self.writer.row(Slot(slot)),
                    self.writer.state(Slot(slot)),
                ));
            }
        }
        None
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.writer.high.saturating_sub(self.next) as usize))
    }
}
