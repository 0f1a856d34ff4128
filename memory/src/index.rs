//! One index table: cache-line buckets that say in which slot a key's row stands.
//!
//! A bucket is a header {version u32, odd while being written; flags moved, spilled} and seven
//! entries {16-bit fingerprint, 48-bit slot}; a key may stand in either of two buckets. One writer,
//! lock-free readers. An entry is a hint: what it leads to is checked against the key in the slot.
//! A *missing* counts only if both buckets' versions were even and did not change, and neither was
//! moved or spilled (DESIGN 6). How tables grow is the subject of `growth`.

use std::sync::{Arc, OnceLock};

use mneme_proto::mix64::mix64;

use crate::limits::BUCKET_ENTRIES;
#[cfg(not(loom))]
use crate::region::Piece;
use crate::sync::{AtomicU64, Ordering, fence, spin_loop};

/// Header bit: the bucket's keys have moved to the next table.
const MOVED: u64 = 1 << 32;
/// Header bit: a key of this bucket stands in the spill map.
const SPILLED: u64 = 1 << 33;

const SLOT_BITS: u32 = 48;
const SLOT_MASK: u64 = (1 << SLOT_BITS) - 1;

/// A cache line of the index.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Bucket {
    header: AtomicU64,
    entries: [AtomicU64; BUCKET_ENTRIES],
}

/// Bytes of a bucket.
pub(crate) const BUCKET_BYTES: u64 = 64;
const _: () = assert!(cfg!(loom) || size_of::<Bucket>() as u64 == BUCKET_BYTES);

/// Where a key may stand in a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// Its two buckets; never equal.
    pub(crate) buckets: [u64; 2],
    /// Its fingerprint in the entry's high bits; never zero, so that no entry is.
    fingerprint: u64,
}

/// What a lookup in a table came to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Lookup<T> {
    /// The key stands where the check was satisfied.
    Hit(T),
    /// The table does not hold the key.
    Missing,
    /// If anywhere, the key stands in the spill map.
    Spilled,
}

/// A table of buckets; its memory and its place never change.
#[derive(Debug)]
pub(crate) struct Table {
    buckets: *const Bucket,
    count: u64,
    seed: u64,
    next: OnceLock<Arc<Table>>,
    #[cfg_attr(loom, allow(dead_code, reason = "keeps the buckets alive"))]
    memory: Memory,
}

#[derive(Debug)]
enum Memory {
    #[cfg(not(loom))]
    Mapped(Piece),
    #[cfg(any(loom, test))]
    #[allow(dead_code, reason = "keeps the buckets alive")]
    Heap(Box<[Bucket]>),
}

// SAFETY: the pointer leads to atomics that `memory` owns and keeps at their address.
unsafe impl Send for Table {}
// SAFETY: as above; whatever is shared through it is atomic.
unsafe impl Sync for Table {}

/// First line of a table in mapped memory: whether what follows is an index at all.
#[cfg(not(loom))]
#[repr(C, align(64))]
struct TableHeader {
    magic: AtomicU64,
    buckets: AtomicU64,
    live: AtomicU64,
}

/// "mnemeidx", little-endian.
#[cfg(not(loom))]
const TABLE_MAGIC: u64 = u64::from_le_bytes(*b"mnemeidx");

impl Table {
    /// A table over populated, zeroed memory: one line of header, then buckets.
    #[cfg(not(loom))]
    pub(crate) fn mapped(piece: Piece, seed: u64) -> Self {
        let count = piece.bytes() / BUCKET_BYTES - 1;
        let table = Self {
            buckets: piece.span().base().wrapping_add(64).cast_const().cast(),
            count,
            seed,
            next: OnceLock::new(),
            memory: Memory::Mapped(piece),
        };
        if let Some(header) = table.header() {
            header.magic.store(TABLE_MAGIC, Ordering::Relaxed);
            header.buckets.store(count, Ordering::Relaxed);
            header.live.store(1, Ordering::Release);
        }
        table
    }

    /// A table on the heap, for the models that cannot map memory.
    #[cfg(any(loom, test))]
    pub(crate) fn heap(count: u64, seed: u64) -> Self {
        let bucket = |_| Bucket {
            header: AtomicU64::new(0),
            entries: std::array::from_fn(|_| AtomicU64::new(0)),
        };
        let memory: Box<[Bucket]> = (0..count).map(bucket).collect();
        Self {
            buckets: memory.as_ptr(),
            count,
            seed,
            next: OnceLock::new(),
            memory: Memory::Heap(memory),
        }
    }

    #[cfg(not(loom))]
    fn header(&self) -> Option<&TableHeader> {
        match &self.memory {
            // SAFETY: the first 64 bytes of the piece are populated, aligned, only ever touched
            // as these atomics, and live as long as `self`.
            Memory::Mapped(piece) => Some(unsafe { &*piece.span().base().cast() }),
            #[cfg(test)]
            Memory::Heap(_) => None,
        }
    }

    /// Where the table stands in its region's file, and how many bytes it takes.
    #[cfg(not(loom))]
    pub(crate) fn extent(&self) -> (u64, u64) {
        match &self.memory {
            Memory::Mapped(piece) => (piece.span().offset(), piece.bytes()),
            #[cfg(test)]
            Memory::Heap(buckets) => (0, buckets.len() as u64 * BUCKET_BYTES),
        }
    }

    /// Entries that its buckets have room for.
    pub(crate) const fn capacity(&self) -> u64 {
        self.count * BUCKET_ENTRIES as u64
    }

    /// Buckets.
    pub(crate) const fn count(&self) -> u64 {
        self.count
    }

    #[inline(always)]
    fn bucket(&self, index: u64) -> &Bucket {
        debug_assert!(index < self.count);
        // SAFETY: `index < count` (a place is reduced to it, a cursor is compared with it), and
        // `memory` holds `count` buckets, which are atomics and live as long as `self`.
        unsafe { &*self.buckets.add(index as usize) }
    }

    /// The places of `key`: two buckets and a fingerprint out of one hash with the table's seed.
    #[inline(always)]
    pub(crate) fn place(&self, key: u64) -> Place {
        let hash = mix64(key ^ self.seed);
        let reduce = |half: u64| (half * self.count) >> 32;
        let first = reduce(hash & 0xFFFF_FFFF);
        let mut second = reduce(hash >> 32);
        if second == first {
            second = if first + 1 == self.count {
                0
            } else {
                first + 1
            };
        }
        let fingerprint = hash.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> SLOT_BITS;
        Place {
            buckets: [first, second],
            fingerprint: fingerprint.max(1) << SLOT_BITS,
        }
    }

    /// Asks the processor for the buckets of a place.
    #[cfg(not(loom))]
    #[inline(always)]
    pub(crate) fn prefetch(&self, place: &Place) {
        for index in place.buckets {
            crate::words::prefetch(self.buckets.wrapping_add(index as usize).cast(), 1);
        }
    }

    /// The slot of the first entry with the place's fingerprint: a guess worth prefetching.
    #[cfg(not(loom))]
    #[inline(always)]
    pub(crate) fn guess(&self, place: &Place) -> Option<u64> {
        for index in place.buckets {
            for entry in &self.bucket(index).entries {
                let entry = entry.load(Ordering::Acquire);
                if entry & !SLOT_MASK == place.fingerprint {
                    return Some(entry & SLOT_MASK);
                }
            }
        }
        None
    }

    /// Looks `key` up from this table on, through the tables that it moved to. `check` is given
    /// each slot that may be the key's and answers `Some` if it is.
    pub(crate) fn find<T>(&self, key: u64, check: &mut impl FnMut(u64) -> Option<T>) -> Lookup<T> {
        let mut table = self;
        let mut spilled = false;
        loop {
            let place = table.place(key);
            let pair = place.buckets.map(|index| table.bucket(index));
            let before = pair.map(|bucket| bucket.header.load(Ordering::Acquire));
            for bucket in pair {
                for entry in &bucket.entries {
                    let entry = entry.load(Ordering::Acquire);
                    if entry & !SLOT_MASK == place.fingerprint
                        && let Some(hit) = check(entry & SLOT_MASK)
                    {
                        return Lookup::Hit(hit);
                    }
                }
            }
            // Pairs with the fence in `change`: entries of a change come with its odd version.
            fence(Ordering::Acquire);
            let after = pair.map(|bucket| bucket.header.load(Ordering::Relaxed));
            if before != after || (before[0] | before[1]) & 1 == 1 {
                spin_loop();
                continue;
            }
            let flags = before[0] | before[1];
            spilled |= flags & SPILLED != 0;
            if flags & MOVED == 0 {
                return if spilled {
                    Lookup::Spilled
                } else {
                    Lookup::Missing
                };
            }
            table = table
                .next
                .get()
                .expect("a bucket moves only to a table that is there");
        }
    }

    /// Enters a key's slot; false if both buckets are full. The one writer only.
    pub(crate) fn put(&self, place: &Place, slot: u64) -> bool {
        debug_assert!(slot <= SLOT_MASK);
        let free = place.buckets.map(|index| self.bucket(index).free_entries());
        let (choice, free_first) = if free[0].1 >= free[1].1 {
            (0, free[0].0)
        } else {
            (1, free[1].0)
        };
        let Some(entry) = free_first else {
            return false;
        };
        let bucket = self.bucket(place.buckets[choice]);
        bucket.change(|| bucket.entries[entry].store(place.fingerprint | slot, Ordering::Release));
        true
    }

    /// Takes a key's entry out; false if it has none here. The one writer only.
    pub(crate) fn remove(&self, place: &Place, slot: u64) -> bool {
        let wanted = place.fingerprint | slot;
        for index in place.buckets {
            let bucket = self.bucket(index);
            for entry in &bucket.entries {
                if entry.load(Ordering::Relaxed) == wanted {
                    bucket.change(|| entry.store(0, Ordering::Release));
                    return true;
                }
            }
        }
        false
    }

    /// Makes readers of a place look into the spill map too. The one writer only.
    pub(crate) fn mark_spilled(&self, place: &Place) {
        // One bucket would do, but a reader may have passed it.
        for index in place.buckets {
            self.bucket(index).flag(SPILLED);
        }
    }

    /// Slots in a bucket. The one writer only.
    pub(crate) fn slots_of(&self, index: u64) -> impl Iterator<Item = u64> {
        let entries = &self.bucket(index).entries;
        entries
            .iter()
            .map(|entry| entry.load(Ordering::Relaxed))
            .filter(|entry| *entry != 0)
            .map(|entry| entry & SLOT_MASK)
    }

    /// Names the table that this one's buckets move to. Once.
    pub(crate) fn set_next(&self, next: Arc<Self>) {
        let fresh = self.next.set(next).is_ok();
        debug_assert!(fresh, "a table grows once");
    }

    /// Whether a bucket's keys have moved. The one writer only.
    pub(crate) fn is_moved(&self, index: u64) -> bool {
        self.bucket(index).header.load(Ordering::Relaxed) & MOVED != 0
    }

    /// Sends a bucket's readers on. Its keys stand in the next table already; its entries stay,
    /// for readers that are in it now. The one writer only.
    pub(crate) fn mark_moved(&self, index: u64) {
        self.bucket(index).flag(MOVED);
    }
}

#[cfg(not(loom))]
impl Drop for Table {
    fn drop(&mut self) {
        // Dead before its memory is given back (I-6).
        if let Some(header) = self.header() {
            header.live.store(0, Ordering::Release);
        }
    }
}

impl Bucket {
    /// Its first free entry and how many are free.
    fn free_entries(&self) -> (Option<usize>, usize) {
        let mut first = None;
        let mut count = 0;
        for (i, entry) in self.entries.iter().enumerate() {
            if entry.load(Ordering::Relaxed) == 0 {
                first = first.or(Some(i));
                count += 1;
            }
        }
        (first, count)
    }

    /// Runs a change of the entries under an odd version.
    fn change(&self, change: impl FnOnce()) {
        let header = self.header.load(Ordering::Relaxed);
        let flags = header & !0xFFFF_FFFF;
        let version = header as u32;
        self.header.store(
            flags | u64::from(version.wrapping_add(1)),
            Ordering::Relaxed,
        );
        fence(Ordering::Release);
        change();
        self.header.store(
            flags | u64::from(version.wrapping_add(2)),
            Ordering::Release,
        );
    }

    /// Sets a flag; a new version tells readers.
    fn flag(&self, flag: u64) {
        let header = self.header.load(Ordering::Relaxed);
        if header & flag != 0 {
            return;
        }
        let version = (header as u32).wrapping_add(2);
        let flags = header & !0xFFFF_FFFF | flag;
        self.header
            .store(flags | u64::from(version), Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn find(table: &Table, key: u64, keys: &[u64]) -> Lookup<u64> {
        table.find(key, &mut |slot| {
            (keys[slot as usize] == key).then_some(slot)
        })
    }

    #[test]
    fn holds_keys_up_to_its_load_and_takes_them_out() {
        let table = Table::heap(64, 0x5EED);
        let keys: Vec<u64> = (0..358).map(|i| mix64(i) & !7).collect();
        let mut full = 0;
        for (slot, key) in keys.iter().enumerate() {
            let place = table.place(*key);
            assert_ne!(place.buckets[0], place.buckets[1]);
            if !table.put(&place, slot as u64) {
                table.mark_spilled(&place);
                full += 1;
            }
        }
        assert!(
            full < 8,
            "{full} of 358 keys found no room at a load of 0.8"
        );
        for (slot, key) in keys.iter().enumerate() {
            match find(&table, *key, &keys) {
                Lookup::Hit(found) => assert_eq!(found, slot as u64),
                other => assert_eq!(other, Lookup::Spilled),
            }
            table.remove(&table.place(*key), slot as u64);
            assert!(!matches!(find(&table, *key, &keys), Lookup::Hit(_)));
        }
    }

    #[test]
    fn every_key_has_a_fingerprint_even_of_an_empty_table() {
        let table = Table::heap(2, 0);
        for key in [0, 1, u64::MAX, 1 << 63] {
            assert_ne!(table.place(key).fingerprint, 0);
            assert_eq!(find(&table, key, &[]), Lookup::Missing);
        }
    }

    #[test]
    fn moved_sends_readers_on_and_spilled_is_remembered_on_the_way() {
        let (old, next) = (Table::heap(2, 1), Arc::new(Table::heap(4, 1)));
        let keys = [10, 11];
        old.put(&old.place(10), 0);
        old.mark_spilled(&old.place(11));
        old.set_next(Arc::clone(&next));
        next.put(&next.place(10), 0);
        for index in 0..2 {
            old.mark_moved(index);
            assert!(old.is_moved(index));
        }
        assert_eq!(find(&old, 10, &keys), Lookup::Hit(0));
        assert_eq!(find(&old, 11, &keys), Lookup::Spilled);
        assert_eq!(find(&next, 11, &keys), Lookup::Missing);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::thread;

    /// The key in each slot, constant here: reuse of slots is the seqlock's model.
    fn find(table: &Table, key: u64) -> Lookup<u64> {
        table.find(key, &mut |slot| (slot + 100 == key).then_some(slot))
    }

    /// A key that stands in the table all the time is found, whatever is put and removed beside.
    #[test]
    fn loom_standing_key_is_never_missed() {
        loom::model(|| {
            let table = Arc::new(Table::heap(2, 0));
            table.put(&table.place(100), 0);
            let writer = {
                let table = Arc::clone(&table);
                thread::spawn(move || {
                    table.put(&table.place(101), 1);
                    table.remove(&table.place(101), 1);
                })
            };
            assert_eq!(find(&table, 100), Lookup::Hit(0));
            writer.join().expect("writer");
            assert_eq!(find(&table, 101), Lookup::Missing);
        });
    }

    /// Growth: a key that stood before is found at every moment of the move, and a key that was
    /// put while the tables grow is found by whoever knows that it was put.
    #[test]
    fn loom_growth_misses_nothing() {
        loom::model(|| {
            let old = Arc::new(Table::heap(2, 0));
            old.put(&old.place(100), 0);
            let put = Arc::new(AtomicU64::new(0));
            let writer = {
                let (old, put) = (Arc::clone(&old), Arc::clone(&put));
                thread::spawn(move || {
                    let next = Arc::new(Table::heap(3, 0));
                    old.set_next(Arc::clone(&next));
                    for index in 0..2 {
                        for slot in old.slots_of(index) {
                            next.put(&next.place(slot + 100), slot);
                        }
                        old.mark_moved(index);
                    }
                    next.put(&next.place(101), 1);
                    put.store(1, Ordering::Release);
                })
            };
            let known = put.load(Ordering::Acquire) == 1;
            if known {
                assert_eq!(find(&old, 101), Lookup::Hit(1));
            }
            assert_eq!(find(&old, 100), Lookup::Hit(0));
            writer.join().expect("writer");
            assert_eq!(find(&old, 100), Lookup::Hit(0));
            assert_eq!(find(&old, 101), Lookup::Hit(1));
        });
    }
}
