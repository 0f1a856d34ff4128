//! The slot's header and its seqlock: how a row is written while others read it (I-5).
//!
//! One writer per slab. It makes `seq` odd, stores the rest, and makes `seq` even again; a reader
//! copies and then looks whether `seq` is still what it was. `seq` is never restarted within a
//! region, so a slot that was freed and taken again cannot pass for what it was.

use crate::sync::{AtomicU64, Ordering, fence};

/// Flag of a slot that holds a key's row. A slot of zeros holds none.
pub(crate) const LIVE: u32 = 1;

/// Flag of a slot that was written as free; its key field names the next free slot plus one.
pub(crate) const FREE: u32 = 2;

/// Bytes of the header before each row.
pub(crate) const SLOT_HEADER_BYTES: usize = 24;

/// What stands before each row of a mutable slab: 24 bytes, little-endian. `check` is the CRC32C
/// over key, seq, flags and row in its low half and the flags in its high one.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct SlotHeader {
    key: AtomicU64,
    seq: AtomicU64,
    check: AtomicU64,
}

/// What a read of a slot saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SlotRead {
    /// The asked key's row, whole.
    Whole,
    /// Another key's, or none.
    Other,
    /// It was being written: try again.
    Torn,
}

impl SlotHeader {
    /// A header of zeros, as fresh memory has it.
    #[cfg(any(loom, test))]
    pub(crate) fn zeroed() -> Self {
        Self {
            key: AtomicU64::new(0),
            seq: AtomicU64::new(0),
            check: AtomicU64::new(0),
        }
    }

    /// Runs `copy` on the row if it is `key`'s, and says whether what it copied is whole.
    #[inline(always)]
    pub(crate) fn read(&self, key: u64, copy: impl FnOnce()) -> SlotRead {
        let seq = self.seq.load(Ordering::Acquire);
        if seq & 1 == 1 {
            return SlotRead::Torn;
        }
        let own = self.key.load(Ordering::Relaxed) == key
            && flags_of(self.check.load(Ordering::Relaxed)) == LIVE;
        if own {
            copy();
        }
        // Pairs with the fence in `write`: a copy that saw any of its stores sees its odd seq.
        fence(Ordering::Acquire);
        if self.seq.load(Ordering::Relaxed) != seq {
            return SlotRead::Torn;
        }
        if own {
            SlotRead::Whole
        } else {
            SlotRead::Other
        }
    }

    /// Rewrites the slot; `copy` stores the row. `seal` is given the sequence that the slot will
    /// have, and returns the CRC over it. The one writer only.
    #[inline(always)]
    pub(crate) fn write(
        &self,
        key: u64,
        flags: u32,
        seal: impl FnOnce(u64) -> u32,
        copy: impl FnOnce(),
    ) {
        let seq = self.seq.load(Ordering::Relaxed);
        debug_assert!(seq & 1 == 0, "one writer");
        let check = u64::from(seal(seq + 2)) | u64::from(flags) << 32;
        self.seq.store(seq + 1, Ordering::Relaxed);
        // No store below may be seen before the odd seq.
        fence(Ordering::Release);
        self.key.store(key, Ordering::Relaxed);
        self.check.store(check, Ordering::Relaxed);
        copy();
        self.seq.store(seq + 2, Ordering::Release);
    }

    /// The key, as its one writer knows it.
    #[inline(always)]
    pub(crate) fn key(&self) -> u64 {
        self.key.load(Ordering::Relaxed)
    }

    /// The flags, as its one writer knows them.
    #[inline(always)]
    pub(crate) fn flags(&self) -> u32 {
        flags_of(self.check.load(Ordering::Relaxed))
    }

    /// The sequence, as its one writer knows it.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn seq(&self) -> u64 {
        self.seq.load(Ordering::Relaxed)
    }

    /// The stored CRC32C, as its one writer knows it.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn crc(&self) -> u32 {
        self.check.load(Ordering::Relaxed) as u32
    }
}

const fn flags_of(check: u64) -> u32 {
    (check >> 32) as u32
}

/// CRC32C over key, seq, flags and row, in this order and little-endian: what proves a row that an
/// RDMA READ brought, whose bytes may come in any order (DESIGN 6).
#[cfg(not(loom))]
#[inline]
pub(crate) fn slot_crc(key: u64, seq: u64, flags: u32, row: &[u8]) -> u32 {
    let mut head = [0; 20];
    head[..8].copy_from_slice(&key.to_le_bytes());
    head[8..16].copy_from_slice(&seq.to_le_bytes());
    head[16..].copy_from_slice(&flags.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c(&head), row)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const _: () = assert!(size_of::<SlotHeader>() == SLOT_HEADER_BYTES);

    #[test]
    fn zeros_are_no_row() {
        let slot = SlotHeader::zeroed();
        assert_eq!(slot.read(0, || panic!("copied")), SlotRead::Other);
    }

    #[test]
    fn a_read_during_a_write_is_torn() {
        let slot = SlotHeader::zeroed();
        slot.write(7, LIVE, |_| 0, || {});
        assert_eq!(slot.read(7, || {}), SlotRead::Whole);
        assert_eq!(slot.read(8, || panic!("copied")), SlotRead::Other);
        slot.write(
            7,
            LIVE,
            |_| 0,
            || assert_eq!(slot.read(7, || {}), SlotRead::Torn),
        );
        let torn = slot.read(7, || slot.write(7, LIVE, |_| 0, || {}));
        assert_eq!(torn, SlotRead::Torn);
        slot.write(0, FREE, |_| 0, || {});
        assert_eq!(slot.read(7, || panic!("copied")), SlotRead::Other);
        assert_eq!((slot.seq(), slot.flags(), slot.crc()), (8, FREE, 0));
    }

    /// The CRC's bytes are part of the layout: these values were computed by a bytewise CRC32C.
    #[test]
    fn crc_covers_key_seq_flags_and_row() {
        let mut bytes = Vec::new();
        bytes.extend(0x0102_0304_0506_0708u64.to_le_bytes());
        bytes.extend(6u64.to_le_bytes());
        bytes.extend(LIVE.to_le_bytes());
        bytes.extend(b"row of bytes");
        let mut crc = !0u32;
        for byte in &bytes {
            crc ^= u32::from(*byte);
            for _ in 0..8 {
                crc = if crc & 1 == 1 {
                    crc >> 1 ^ 0x82F6_3B78
                } else {
                    crc >> 1
                };
            }
        }
        assert_eq!(
            slot_crc(0x0102_0304_0506_0708, 6, LIVE, b"row of bytes"),
            !crc
        );
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    struct Cell {
        slot: SlotHeader,
        row: [AtomicU64; 2],
    }

    impl Cell {
        fn write(&self, key: u64, flags: u32, value: u64) {
            self.slot.write(
                key,
                flags,
                |_| 0,
                || {
                    for word in &self.row {
                        word.store(value, Ordering::Relaxed);
                    }
                },
            );
        }

        fn read(&self, key: u64) -> Option<u64> {
            let mut seen = [0; 2];
            let read = self.slot.read(key, || {
                for (out, word) in seen.iter_mut().zip(&self.row) {
                    *out = word.load(Ordering::Relaxed);
                }
            });
            if read != SlotRead::Whole {
                return None;
            }
            assert_eq!(seen[0], seen[1], "a torn row passed (I-5)");
            Some(seen[0])
        }
    }

    fn cell() -> Arc<Cell> {
        Arc::new(Cell {
            slot: SlotHeader::zeroed(),
            row: [AtomicU64::new(0), AtomicU64::new(0)],
        })
    }

    /// Exhaustive up to three preemptions: beyond that the models take hours and, as loom's
    /// authors found, show nothing new.
    fn check(model: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(model);
    }

    /// I-5: whatever the interleaving, a row that passes is one that was written whole.
    #[test]
    fn loom_row_is_never_torn() {
        check(|| {
            let cell = cell();
            cell.write(7, LIVE, 1);
            let writer = {
                let cell = Arc::clone(&cell);
                thread::spawn(move || cell.write(7, LIVE, 2))
            };
            let first = cell.read(7);
            let second = cell.read(7);
            if let (Some(first), Some(second)) = (first, second) {
                assert!(first <= second, "a read went back");
            }
            writer.join().expect("writer");
            assert_eq!(cell.read(7), Some(2));
        });
    }

    /// I-5, B055: a slot that is freed and taken by another key never answers for the first.
    #[test]
    fn loom_reused_slot_never_answers_for_its_old_key() {
        check(|| {
            let cell = cell();
            cell.write(7, LIVE, 7);
            let writer = {
                let cell = Arc::clone(&cell);
                thread::spawn(move || {
                    cell.write(0, FREE, 0);
                    cell.write(8, LIVE, 8);
                })
            };
            if let Some(value) = cell.read(7) {
                assert_eq!(value, 7);
            }
            writer.join().expect("writer");
            assert_eq!((cell.read(7), cell.read(8)), (None, Some(8)));
        });
    }
}
