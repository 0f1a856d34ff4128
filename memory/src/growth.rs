//! The index of one shard: its current table, the spill map, and growth in small steps.
//!
//! Growth goes through three phases, a bounded step of each with every insert: *populating* the
//! next table's memory; *moving* bucket after bucket into it (an insert or delete first moves its
//! own two buckets, so that a key of a moved bucket stands in the next table only); *respilling*,
//! which tries the keys of the spill map again. Readers go through the old table until the new one
//! is published; the old one's memory is given back when its last reader has let go (I-6).

use std::mem;
use std::sync::{Arc, PoisonError, RwLock};

use arc_swap::ArcSwapOption;
use rustc_hash::FxHashMap;

use crate::index::{Lookup, Table};
use crate::limits::{
    BUCKETS_MAX, GROWTH_BUCKETS_PER_INSERT, INDEX_FILE_OFFSET, INDEX_LOAD_GROWING_PERCENT,
    INDEX_LOAD_PERCENT, PIECE_BYTES,
};
use crate::plan;
use crate::pool::{Pool, PoolError, Taken};
use crate::region::{Piece, Region};

/// What readers see of the index.
#[derive(Debug, Default)]
pub(crate) struct Index {
    /// `None` before the first row.
    table: ArcSwapOption<Table>,
    /// Keys that found no room in either bucket. Only readers of a bucket with the flag come here.
    spill: RwLock<FxHashMap<u64, u64>>,
}

impl Index {
    /// The table that lookups start from. Holding the guard keeps it and its successors alive.
    pub(crate) fn table(&self) -> arc_swap::Guard<Option<Arc<Table>>> {
        self.table.load()
    }

    /// Looks `key` up from `table` on; `check` as in [`Table::find`].
    pub(crate) fn find<T>(
        &self,
        table: &Table,
        key: u64,
        check: &mut impl FnMut(u64) -> Option<T>,
    ) -> Option<T> {
        match table.find(key, check) {
            Lookup::Hit(hit) => Some(hit),
            Lookup::Missing => None,
            Lookup::Spilled => {
                let spill = self.spill.read().unwrap_or_else(PoisonError::into_inner);
                if let Some(slot) = spill.get(&key)
                    && let Some(hit) = check(*slot)
                {
                    return Some(hit);
                }
                // It may have left the map for a table since we looked there; it does not leave
                // a table for the map.
                match table.find(key, check) {
                    Lookup::Hit(hit) => Some(hit),
                    Lookup::Missing | Lookup::Spilled => None,
                }
            }
        }
    }

    /// An index that is complete and has no writer.
    pub(crate) fn complete(table: Table, spill: FxHashMap<u64, u64>) -> Self {
        Self {
            table: ArcSwapOption::from(Some(Arc::new(table))),
            spill: RwLock::new(spill),
        }
    }
}

/// What growth asks of the slab: whose row stands in a slot that the index names.
pub(crate) trait SlotKeys {
    /// The key in a slot.
    fn key(&self, slot: u64) -> u64;

    /// Asks the processor for it.
    fn prefetch(&self, slot: u64);
}

/// The one writer of an index.
#[derive(Debug)]
pub(crate) struct IndexWriter {
    shared: Arc<Index>,
    table: Option<Arc<Table>>,
    growth: Growth,
    /// Tables that readers may still be in.
    retired: Vec<Arc<Table>>,
    seed: u64,
    entries: u64,
    next_offset: u64,
}

#[derive(Debug)]
enum Growth {
    Resting,
    Populating(Piece),
    Moving { next: Arc<Table>, cursor: u64 },
    Respilling { next: Arc<Table>, keys: Vec<u64> },
}

impl IndexWriter {
    /// An empty index without memory. `seed` makes the table's own hash.
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            shared: Arc::default(),
            table: None,
            growth: Growth::Resting,
            retired: Vec::new(),
            seed,
            entries: 0,
            next_offset: INDEX_FILE_OFFSET,
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Index> {
        &self.shared
    }

    /// Keys in the index.
    pub(crate) const fn len(&self) -> u64 {
        self.entries
    }

    /// Bytes of its tables, those that are growing or not yet let go of included.
    pub(crate) fn bytes(&self) -> u64 {
        let table = |t: &Arc<Table>| t.extent().1;
        let growing = match &self.growth {
            Growth::Resting => 0,
            Growth::Populating(piece) => piece.bytes(),
            Growth::Moving { next, .. } | Growth::Respilling { next, .. } => table(next),
        };
        growing
            + self
                .table
                .iter()
                .chain(&self.retired)
                .map(table)
                .sum::<u64>()
    }

    /// Whether a growth is under way or a table that grew is still held by readers.
    pub(crate) fn is_growing(&self) -> bool {
        !matches!(self.growth, Growth::Resting) || !self.retired.is_empty()
    }

    /// Where the current table stands in the region's file, and its bytes.
    pub(crate) fn extent(&self) -> (u64, u64) {
        self.table.as_ref().map_or((0, 0), |table| table.extent())
    }

    /// Bytes that must be taken before `more` keys can be inserted; 0 if there is room.
    pub(crate) fn asks(&self, more: u64, pool: &Pool) -> Result<u64, PoolError> {
        let need = self.entries + more;
        let room = match (&self.table, &self.growth) {
            (None, _) => 0,
            (Some(table), Growth::Resting) => table.capacity() * INDEX_LOAD_PERCENT / 100,
            (_, Growth::Populating(piece)) => {
                plan::rows_at_load(piece.bytes(), INDEX_LOAD_GROWING_PERCENT)
            }
            (_, Growth::Moving { next, .. } | Growth::Respilling { next, .. }) => {
                next.capacity() * INDEX_LOAD_GROWING_PERCENT / 100
            }
        };
        if need <= room {
            return Ok(0);
        }
        let limit = plan::rows_at_load(BUCKETS_MAX * 64, INDEX_LOAD_PERCENT);
        if need > limit {
            return Err(PoolError::TooLarge {
                what: "keys in one shard",
                asked: need,
                limit,
            });
        }
        Ok(pool.rounded(plan::index_bytes(need)))
    }

    /// Begins to grow into memory that [`IndexWriter::asks`] asked for. `keys` names the keys in
    /// the slots.
    pub(crate) fn grow(
        &mut self,
        region: &Arc<Region>,
        taken: Taken,
        keys: &impl SlotKeys,
    ) -> Result<(), PoolError> {
        // A push that is large against the table may come while it still grows: then it waits
        // for the rest of a move that is as small as the table.
        while !matches!(self.growth, Growth::Resting) {
            self.step(keys)?;
        }
        let bytes = taken.bytes();
        let mut piece = Piece::map(region, self.next_offset, taken)?;
        self.next_offset += bytes;
        if self.table.is_none() {
            piece.populate_step(u64::MAX)?;
            let table = Arc::new(Table::mapped(piece, self.seed));
            self.shared.table.store(Some(Arc::clone(&table)));
            self.table = Some(table);
        } else {
            self.growth = Growth::Populating(piece);
        }
        Ok(())
    }

    /// One bounded step of growth, if there is any.
    pub(crate) fn step(&mut self, keys: &impl SlotKeys) -> Result<(), PoolError> {
        if !self.retired.is_empty() {
            self.retired.retain(|table| Arc::strong_count(table) > 1);
        }
        match &mut self.growth {
            Growth::Resting => return Ok(()),
            Growth::Populating(piece) => {
                let step = PIECE_BYTES.max(piece.span().page_bytes());
                if !piece.populate_step(step)? {
                    return Ok(());
                }
            }
            Growth::Moving { cursor, .. } => {
                let from = *cursor;
                let table = self.table.as_ref().expect("a table that grows is there");
                let to = (from + GROWTH_BUCKETS_PER_INSERT as u64).min(table.count());
                *cursor = to;
                let end = to == table.count();
                let ahead = (to + GROWTH_BUCKETS_PER_INSERT as u64).min(table.count());
                (to..ahead)
                    .flat_map(|bucket| table.slots_of(bucket))
                    .for_each(|s| keys.prefetch(s));
                for bucket in from..to {
                    self.move_bucket(bucket, keys);
                }
                if !end {
                    return Ok(());
                }
            }
            Growth::Respilling { next, keys: left } => {
                let next = Arc::clone(next);
                let at = left.len().saturating_sub(GROWTH_BUCKETS_PER_INSERT);
                for key in left.split_off(at) {
                    self.respill(&next, key);
                }
                if at > 0 {
                    return Ok(());
                }
            }
        }
        self.next_phase();
        Ok(())
    }

    fn next_phase(&mut self) {
        self.growth = match mem::replace(&mut self.growth, Growth::Resting) {
            Growth::Resting => Growth::Resting,
            Growth::Populating(piece) => {
                let next = Arc::new(Table::mapped(piece, self.seed));
                let table = self.table.as_ref().expect("a table that grows is there");
                table.set_next(Arc::clone(&next));
                Growth::Moving { next, cursor: 0 }
            }
            Growth::Moving { next, .. } => {
                let spill = self
                    .shared
                    .spill
                    .read()
                    .unwrap_or_else(PoisonError::into_inner);
                let keys = spill.keys().copied().collect();
                Growth::Respilling { next, keys }
            }
            Growth::Respilling { next, .. } => {
                // Every key stands in the next table or is flagged there.
                self.shared.table.store(Some(Arc::clone(&next)));
                self.retired.extend(self.table.replace(next));
                self.retired.retain(|table| Arc::strong_count(table) > 1);
                Growth::Resting
            }
        };
    }

    /// Moves the keys of an old bucket into the next table, then sends its readers on.
    fn move_bucket(&self, bucket: u64, keys: &impl SlotKeys) {
        let (Some(table), Growth::Moving { next, .. }) = (&self.table, &self.growth) else {
            return;
        };
        if table.is_moved(bucket) {
            return;
        }
        for slot in table.slots_of(bucket) {
            self.put(next, keys.key(slot), slot);
        }
        table.mark_moved(bucket);
    }

    /// Tries a spilled key again in the table that will be current.
    fn respill(&self, next: &Table, key: u64) {
        let mut spill = self
            .shared
            .spill
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let Some(slot) = spill.get(&key).copied() else {
            return;
        };
        let place = next.place(key);
        if next.put(&place, slot) {
            // Entered before it is taken out, so that no reader finds it in neither.
            spill.remove(&key);
        } else {
            next.mark_spilled(&place);
        }
    }

    /// Enters a key into a table, or into the spill map.
    fn put(&self, table: &Table, key: u64, slot: u64) {
        let place = table.place(key);
        if !table.put(&place, slot) {
            let mut spill = self
                .shared
                .spill
                .write()
                .unwrap_or_else(PoisonError::into_inner);
            spill.insert(key, slot);
            table.mark_spilled(&place);
        }
    }

    /// The table that holds `key` from now on, its buckets having been moved if they must.
    fn home(&self, key: u64, keys: &impl SlotKeys) -> Option<Arc<Table>> {
        let table = self.table.as_ref()?;
        match &self.growth {
            Growth::Resting | Growth::Populating(_) => Some(Arc::clone(table)),
            Growth::Moving { next, .. } => {
                for bucket in table.place(key).buckets {
                    self.move_bucket(bucket, keys);
                }
                Some(Arc::clone(next))
            }
            Growth::Respilling { next, .. } => Some(Arc::clone(next)),
        }
    }

    /// Enters a key that is not in the index, with one step of growth. Room was asked for.
    pub(crate) fn insert(&mut self, key: u64, slot: u64, keys: &impl SlotKeys) {
        // A step that fails leaves the growth where it was, to be tried again: the table that is
        // there takes the key, or the spill map does, since the push may be acknowledged already.
        let _ = self.step(keys);
        let home = self
            .home(key, keys)
            .expect("room was asked for, so there is a table");
        self.put(&home, key, slot);
        self.entries += 1;
    }

    /// Takes a key out of the index; it stands there with `slot`.
    pub(crate) fn remove(&mut self, key: u64, slot: u64, keys: &impl SlotKeys) {
        let Some(home) = self.home(key, keys) else {
            return;
        };
        if !home.remove(&home.place(key), slot) {
            let mut spill = self
                .shared
                .spill
                .write()
                .unwrap_or_else(PoisonError::into_inner);
            spill.remove(&key);
        }
        self.entries -= 1;
    }
}
