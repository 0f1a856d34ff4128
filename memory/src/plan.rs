//! How many bytes a shard takes, computed beforehand (DESIGN 6, *Space*).
//!
//! The stores take exactly these sums, so what `table create --dry-run` prints is what is used; an
//! index that is growing stands beside its successor for a while and is the one exception.

use crate::index::BUCKET_BYTES;
use crate::limits::{
    BUCKET_ENTRIES, EXTENT_BYTES, HEADER_PAGE_BYTES, INDEX_LOAD_PERCENT, PIECE_BYTES,
};
use crate::slot::SLOT_HEADER_BYTES;
use crate::words::padded;

/// Whole pieces up to one extent, whole extents above: what a part of a region takes, on ordinary
/// pages.
#[must_use]
pub const fn rounded(bytes: u64) -> u64 {
    if bytes > EXTENT_BYTES {
        bytes.next_multiple_of(EXTENT_BYTES)
    } else {
        bytes.next_multiple_of(PIECE_BYTES)
    }
}

/// Bytes from one slot of a mutable slab to the next: header, row, padding to a word.
#[must_use]
pub const fn mutable_stride(row_bytes: u32) -> u64 {
    (SLOT_HEADER_BYTES + padded(row_bytes as usize)) as u64
}

/// Bytes from one row of a sealed slab to the next: the key of a hashed table, the row, padding.
#[must_use]
pub const fn sealed_stride(row_bytes: u32, keyed: bool) -> u64 {
    (padded(row_bytes as usize) + if keyed { 8 } else { 0 }) as u64
}

/// Bytes of the index that a shard of `rows` hashed rows has, having grown row by row. Sizes go up
/// by half from 64 KiB, so that the load stays between 0.53 and 0.8.
#[must_use]
pub const fn index_bytes(rows: u64) -> u64 {
    let mut bytes = PIECE_BYTES;
    while rows > rows_at_load(bytes, INDEX_LOAD_PERCENT) {
        bytes = rounded(bytes / 2 * 3);
    }
    bytes
}

/// Bytes of the index of a sealed shard, whose rows are known.
#[must_use]
pub const fn sealed_index_bytes(rows: u64) -> u64 {
    let entries = rows * 100 / INDEX_LOAD_PERCENT;
    let buckets = entries.div_ceil(BUCKET_ENTRIES as u64);
    // Two buckets at least, so that a key has two places.
    rounded((if buckets < 2 { 2 } else { buckets } + 1) * BUCKET_BYTES)
}

/// Rows that an index of `bytes` holds at a load of `percent`.
pub(crate) const fn rows_at_load(bytes: u64, percent: u64) -> u64 {
    (bytes / BUCKET_BYTES - 1) * BUCKET_ENTRIES as u64 * percent / 100
}

/// Bytes of a slab of `slots` slots of `stride` bytes, header page included.
#[must_use]
pub const fn slab_bytes(slots: u64, stride: u64) -> u64 {
    rounded(HEADER_PAGE_BYTES + slots * stride)
}

/// Bytes that one mutable shard of `rows` rows takes, of a hashed or a dense table.
#[must_use]
pub const fn mutable_bytes(rows: u64, row_bytes: u32, state_bytes: u32, hashed: bool) -> u64 {
    if rows == 0 {
        return 0;
    }
    let state = if state_bytes > 0 {
        slab_bytes(rows, padded(state_bytes as usize) as u64)
    } else {
        0
    };
    let index = if hashed { index_bytes(rows) } else { 0 };
    slab_bytes(rows, mutable_stride(row_bytes)) + state + index
}

/// Bytes that one sealed shard of `rows` rows takes.
#[must_use]
pub const fn sealed_bytes(rows: u64, row_bytes: u32, keyed: bool) -> u64 {
    if rows == 0 {
        return 0;
    }
    let index = if keyed { sealed_index_bytes(rows) } else { 0 };
    slab_bytes(rows, sealed_stride(row_bytes, keyed)) + index
}

#[cfg(test)]
mod tests {
    use super::*;

    /// DESIGN 6: index plus header are at most 48 B per key at a load of 0.8.
    #[test]
    fn overhead_is_at_most_48_bytes_at_load_0_8() {
        for row_bytes in [4, 8, 12, 264, 1024] {
            let bytes = 192u64 << 20;
            let rows = rows_at_load(bytes, 80);
            let over = mutable_stride(row_bytes) - u64::from(row_bytes);
            let per_key = over as f64 + bytes as f64 / rows as f64;
            assert!(per_key <= 48.0, "{row_bytes}: {per_key}");
        }
    }

    #[test]
    fn sums_of_known_tables() {
        assert_eq!(mutable_bytes(0, 256, 256, true), 0);
        // One row: a piece each for slab, state and index.
        assert_eq!(mutable_bytes(1, 256, 256, true), 3 * PIECE_BYTES);
        assert_eq!(mutable_bytes(1, 256, 0, false), PIECE_BYTES);
        let million = mutable_bytes(1_000_000, 256, 256, true);
        assert!(million < 1_000_000 * (512 + 48), "{million}");
        assert_eq!(
            sealed_bytes(1 << 20, 264, false),
            rounded(4096 + (264 << 20))
        );
        assert_eq!(index_bytes(1), PIECE_BYTES);
        assert_eq!(index_bytes(5728), PIECE_BYTES);
        assert_eq!(index_bytes(5729), 2 * PIECE_BYTES);
    }
}
