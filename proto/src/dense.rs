//! Dense addressing: row id to (shard, local row), block-cyclic, pure arithmetic.
//!
//! `block = row >> k`, `shard = block & (S-1)`, `local = (block / S) << k | row & (2^k - 1)`,
//! with `2^k` rows close to 2 MiB. The few numbers here address any table, whatever its size.

use crate::limits::DENSE_BLOCK_BYTES;

/// How a dense table's rows are laid over its shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DenseLayout {
    rows: u64,
    shards: u32,
    block_shift: u32,
}

impl DenseLayout {
    /// The layout of `rows` rows of `row_bytes` bytes over `shards` shards (a power of two).
    ///
    /// # Panics
    /// If `shards` is not a power of two or `row_bytes` is 0: schemas are validated before.
    #[must_use]
    pub const fn new(rows: u64, row_bytes: u32, shards: u32) -> Self {
        assert!(shards.is_power_of_two() && row_bytes > 0);
        let per_block = DENSE_BLOCK_BYTES / row_bytes as u64;
        // The largest power of two that is <= per_block; one row where rows are that large.
        let block_shift = if per_block <= 1 {
            0
        } else {
            63 - per_block.leading_zeros()
        };
        Self {
            rows,
            shards,
            block_shift,
        }
    }

    /// The shard and the row's index within it; `None` when `row` is out of range.
    #[inline]
    #[must_use]
    pub const fn locate(&self, row: u64) -> Option<(u32, u64)> {
        if row >= self.rows {
            return None;
        }
        let block = row >> self.block_shift;
        let shard = (block & (self.shards as u64 - 1)) as u32;
        let local = ((block >> self.shards.trailing_zeros()) << self.block_shift)
            | (row & ((1 << self.block_shift) - 1));
        Some((shard, local))
    }

    /// The row id of `local` in `shard`; the inverse of [`DenseLayout::locate`].
    #[inline]
    #[must_use]
    pub const fn row_of(&self, shard: u32, local: u64) -> u64 {
        let block = (local >> self.block_shift << self.shards.trailing_zeros()) | shard as u64;
        (block << self.block_shift) | (local & ((1 << self.block_shift) - 1))
    }

    /// How many rows `shard` holds.
    #[must_use]
    pub const fn rows_of_shard(&self, shard: u32) -> u64 {
        let block_rows = 1u64 << self.block_shift;
        let blocks = self.rows >> self.block_shift; // whole blocks
        let rest = self.rows & (block_rows - 1);
        let shards = self.shards as u64;
        let whole = blocks / shards + ((shard as u64) < blocks % shards) as u64;
        let tail = if shard as u64 == blocks % shards {
            rest
        } else {
            0
        };
        whole * block_rows + tail
    }

    /// Rows per block, `2^k`.
    #[must_use]
    pub const fn block_rows(&self) -> u64 {
        1 << self.block_shift
    }

    /// Rows of the whole table.
    #[must_use]
    pub const fn rows(&self) -> u64 {
        self.rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn engram_row_counts() {
        let layout = DenseLayout::new(384_006_168, 264, 32);
        assert_eq!(layout.block_rows(), 4096);
        assert!(layout.locate(384_006_167).is_some());
        assert_eq!(layout.locate(384_006_168), None);
        assert_eq!(layout.locate(u64::MAX), None);
        let total: u64 = (0..32).map(|s| layout.rows_of_shard(s)).sum();
        assert_eq!(total, 384_006_168);
    }

    proptest! {
        #[test]
        fn locate_is_a_bijection(rows in 1u64..200_000, bytes in 1u32..9000, shift in 0u32..6) {
            let shards = 1 << shift;
            let layout = DenseLayout::new(rows, bytes, shards);
            let total: u64 = (0..shards).map(|s| layout.rows_of_shard(s)).sum();
            prop_assert_eq!(total, rows);
            for row in [0, 1, rows / 2, rows.saturating_sub(2), rows - 1] {
                if row >= rows { continue; }
                let (shard, local) = layout.locate(row).expect("in range");
                prop_assert!(shard < shards && local < layout.rows_of_shard(shard));
                prop_assert_eq!(layout.row_of(shard, local), row);
            }
        }
    }
}
