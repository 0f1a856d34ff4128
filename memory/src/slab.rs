//! Slabs: slots of one stride in a region, which never move.
//!
//! In the file slot `n` stands at `4096 + n * stride`: one formula for every reader. In this
//! process the slab is mapped in segments, each of which doubles it, so that growth moves nothing
//! and an access takes no lock. Addresses are cheap; memory is taken in pieces as slots are needed.

use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::limits::{
    EXTENT_BYTES, FIRST_SEGMENT_BYTES, HEADER_PAGE_BYTES, SEGMENTS_MAX, SLOTS_MAX,
};
use crate::pool::{Pool, PoolError, Taken};
use crate::region::{Region, Span};

/// A slab that grows. Its memory is given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Slab {
    stride: u64,
    /// Log2 of the first segment's slots.
    first_shift: u32,
    /// Slots that there will ever be.
    slots_max: u64,
    /// Where each segment's slot 0 would stand, so that an address is one multiply and add.
    bases: [AtomicPtr<u8>; SEGMENTS_MAX],
    region: OnceLock<Arc<Region>>,
    grown: Mutex<Grown>,
}

/// What growth keeps; readers never come here.
#[derive(Debug, Default)]
struct Grown {
    segments: Vec<Segment>,
    taken: Option<Taken>,
    slots: u64,
}

#[derive(Debug)]
struct Segment {
    span: Span,
    /// From where to where in the file the span is populated.
    populated_from: u64,
    populated_to: u64,
}

impl Slab {
    /// A slab without memory. A `fixed` number of slots is one segment, else it grows.
    pub(crate) fn new(stride: u64, fixed: Option<u64>) -> Self {
        debug_assert!(stride > 0 && stride.is_multiple_of(8));
        let first_shift = match fixed {
            Some(slots) => slots.max(1).next_power_of_two().trailing_zeros(),
            None => (FIRST_SEGMENT_BYTES / stride).max(1).ilog2(),
        };
        Self {
            stride,
            first_shift,
            slots_max: fixed.unwrap_or(SLOTS_MAX),
            bases: std::array::from_fn(|_| AtomicPtr::new(std::ptr::null_mut())),
            region: OnceLock::new(),
            grown: Mutex::default(),
        }
    }

    /// Its region, once it has memory.
    pub(crate) fn region(&self) -> Option<&Arc<Region>> {
        self.region.get()
    }

    /// Slots that have memory.
    pub(crate) fn slots(&self) -> u64 {
        self.grown().slots
    }

    /// Bytes taken.
    pub(crate) fn bytes(&self) -> u64 {
        self.grown().taken.as_ref().map_or(0, Taken::bytes)
    }

    /// Bytes that must be taken before it can have `slots` slots.
    pub(crate) fn asks(&self, slots: u64, pool: &Pool) -> Result<u64, PoolError> {
        let grown = self.grown();
        if slots <= grown.slots {
            return Ok(0);
        }
        if slots > self.slots_max {
            return Err(PoolError::TooLarge {
                what: "slots of one slab",
                asked: slots,
                limit: self.slots_max,
            });
        }
        let bytes = slots
            .checked_mul(self.stride)
            .and_then(|bytes| bytes.checked_add(HEADER_PAGE_BYTES))
            .ok_or(PoolError::TooLarge {
                what: "bytes of one slab",
                asked: u64::MAX,
                limit: crate::limits::INDEX_FILE_OFFSET,
            })?;
        let has = grown.taken.as_ref().map_or(0, Taken::bytes);
        Ok(pool.rounded(bytes).saturating_sub(has))
    }

    /// Gives it memory for `slots` slots: `taken` is what [`Slab::asks`] asked for. A failure
    /// leaves the slots that it had.
    pub(crate) fn grow(
        &self,
        region: &Arc<Region>,
        slots: u64,
        taken: Taken,
    ) -> Result<(), PoolError> {
        let mut grown = self.grown();
        let region = self.region.get_or_init(|| Arc::clone(region));
        match &mut grown.taken {
            Some(sum) => sum.join(taken),
            empty => *empty = Some(taken),
        }
        let taken_bytes = grown.taken.as_ref().map_or(0, Taken::bytes);
        // Not more slots than asked for where more fit: those come when somebody asks.
        let fit = (taken_bytes.saturating_sub(HEADER_PAGE_BYTES) / self.stride).min(self.slots_max);
        debug_assert!(slots <= fit);
        while self.segment_end(grown.segments.len()) < slots || grown.segments.is_empty() {
            let segment = self.map_segment(region, grown.segments.len())?;
            grown.segments.push(segment);
        }
        for segment in &mut grown.segments {
            let end = segment.span.offset() + segment.span.bytes();
            let to = end.min(taken_bytes);
            if segment.populated_to < to {
                let offset = segment.span.offset();
                segment
                    .span
                    .populate(segment.populated_to - offset, to - offset)?;
                segment.populated_to = to;
            }
        }
        grown.slots = fit.min(self.segment_end(grown.segments.len()));
        Ok(())
    }

    /// The first slot after `segments` segments.
    const fn segment_end(&self, segments: usize) -> u64 {
        match segments {
            0 => 0,
            n => 1 << (self.first_shift as usize + n - 1),
        }
    }

    /// Maps a segment, whole pages around it, and publishes its base.
    fn map_segment(&self, region: &Arc<Region>, index: usize) -> Result<Segment, PoolError> {
        let page = region.pool().page_bytes();
        let first = self.segment_end(index);
        let last = self.segment_end(index + 1).min(self.slots_max);
        let used_from = match index {
            0 => 0,
            _ => HEADER_PAGE_BYTES + first * self.stride,
        };
        // Extents of the slab are whole extents of the mapping, so that they can be huge pages.
        let from = used_from - used_from % EXTENT_BYTES;
        // All that the last slots take, so that what is counted is populated.
        let to = region
            .pool()
            .rounded(HEADER_PAGE_BYTES + last * self.stride);
        let span = region.map(from, to - from)?;
        let base = span
            .base()
            .wrapping_sub(from as usize)
            .wrapping_add(HEADER_PAGE_BYTES as usize);
        self.bases[index].store(base, Ordering::Release);
        Ok(Segment {
            span,
            populated_from: used_from - used_from % page,
            populated_to: used_from - used_from % page,
        })
    }

    /// The address of a slot that has memory. It never changes.
    #[inline(always)]
    pub(crate) fn address(&self, slot: u64) -> *mut u8 {
        let segment = (64 - (slot >> self.first_shift).leading_zeros()) as usize;
        let base = self.bases[segment].load(Ordering::Acquire);
        base.wrapping_add((slot * self.stride) as usize)
    }

    /// The address of the header page, once there is memory.
    pub(crate) fn header_page(&self) -> Option<*mut u8> {
        let base = self.bases[0].load(Ordering::Acquire);
        (!base.is_null()).then(|| base.wrapping_sub(HEADER_PAGE_BYTES as usize))
    }

    fn grown(&self) -> std::sync::MutexGuard<'_, Grown> {
        self.grown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // Given back before it is uncounted: `taken` is dropped after this.
        let grown = self.grown.get_mut().unwrap_or_else(PoisonError::into_inner);
        for segment in &grown.segments {
            let offset = segment.span.offset();
            let (from, to) = (
                segment.populated_from - offset,
                segment.populated_to - offset,
            );
            // The region's own drop tries again.
            let _ = segment.span.give_back(from, to);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::PoolSpec;
    use crate::words::{copy_in, copy_out};

    fn grow(slab: &Slab, pool: &Arc<Pool>, slots: u64) -> Result<(), PoolError> {
        let region = match slab.region() {
            Some(region) => Arc::clone(region),
            None => Region::create(pool, "slab")?,
        };
        let taken = pool.take(slab.asks(slots, pool)?)?;
        slab.grow(&region, slots, taken)
    }

    /// Slots keep their address and contents while the slab grows over segments, and straddle
    /// their borders unharmed.
    #[test]
    fn slots_never_move() {
        let pool = Pool::open(PoolSpec::dram(1 << 30)).unwrap();
        let stride = 4120;
        let slab = Slab::new(stride, None);
        let first_segment = 1u64 << (FIRST_SEGMENT_BYTES / stride).ilog2();
        let mut addresses = Vec::new();
        for slots in [
            1,
            100,
            first_segment - 1,
            first_segment + 1,
            first_segment * 3,
        ] {
            grow(&slab, &pool, slots).unwrap();
            assert!(slab.slots() >= slots);
            let slot = slots - 1;
            let row = vec![slots as u8; stride as usize];
            // SAFETY: the slot has memory, and this thread is alone.
            unsafe { copy_in(slab.address(slot), &row) };
            addresses.push((slot, slab.address(slot), row));
        }
        for (slot, address, row) in &addresses {
            assert_eq!(slab.address(*slot), *address);
            let mut seen = vec![0; stride as usize];
            // SAFETY: as above.
            unsafe { copy_out(slab.address(*slot), &mut seen) };
            assert_eq!(&seen, row, "slot {slot}");
        }
        let usage = pool.usage();
        assert_eq!(usage.used_bytes, slab.bytes());
        assert!(usage.resident_bytes <= usage.used_bytes);
        assert!(usage.resident_bytes + (2 << 20) >= usage.used_bytes);
        drop(slab);
        assert_eq!(
            (pool.usage().used_bytes, pool.usage().resident_bytes),
            (0, 0)
        );
    }

    /// I-12: refused growth leaves the slab as it was.
    #[test]
    fn full_pool_leaves_the_slab() {
        let pool = Pool::open(PoolSpec::dram(2 << 20)).unwrap();
        let slab = Slab::new(1024, None);
        grow(&slab, &pool, 10).unwrap();
        let before = (slab.slots(), slab.bytes(), pool.usage());
        assert!(matches!(
            grow(&slab, &pool, 4000),
            Err(PoolError::Full { .. })
        ));
        assert_eq!((slab.slots(), slab.bytes(), pool.usage()), before);
        assert!(matches!(
            slab.asks(u64::MAX / 2, &pool),
            Err(PoolError::TooLarge { .. })
        ));
    }

    #[test]
    fn fixed_slab_is_one_segment() {
        let pool = Pool::open(PoolSpec::dram(8 << 20)).unwrap();
        let slab = Slab::new(264, Some(10_000));
        grow(&slab, &pool, 10_000).unwrap();
        assert_eq!(slab.slots(), 10_000);
        assert_eq!(
            slab.address(9_999) as usize - slab.address(0) as usize,
            9_999 * 264
        );
        assert!(slab.asks(10_001, &pool).is_err());
    }
}
