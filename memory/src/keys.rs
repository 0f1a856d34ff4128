//! Where a batch read takes its keys from: native integers, or a frame's little-endian ones in
//! place, so that nothing is copied between the wire and the lookup.

use zerocopy::little_endian::U64;

/// A batch of keys (hashed tables) or local rows (dense ones).
pub trait KeySource {
    /// How many.
    fn count(&self) -> usize;

    /// The key at `index < count()`.
    fn key(&self, index: usize) -> u64;
}

impl KeySource for [u64] {
    #[inline(always)]
    fn count(&self) -> usize {
        self.len()
    }

    #[inline(always)]
    fn key(&self, index: usize) -> u64 {
        self[index]
    }
}

impl KeySource for [U64] {
    #[inline(always)]
    fn count(&self) -> usize {
        self.len()
    }

    #[inline(always)]
    fn key(&self, index: usize) -> u64 {
        self[index].get()
    }
}

impl<const N: usize> KeySource for [u64; N] {
    #[inline(always)]
    fn count(&self) -> usize {
        N
    }

    #[inline(always)]
    fn key(&self, index: usize) -> u64 {
        self[index]
    }
}

impl KeySource for Vec<u64> {
    #[inline(always)]
    fn count(&self) -> usize {
        self.len()
    }

    #[inline(always)]
    fn key(&self, index: usize) -> u64 {
        self[index]
    }
}
