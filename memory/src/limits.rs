//! Every bound of this crate, with its reason.

/// A region's header page, and what stands before the first slot (DESIGN 6).
pub const HEADER_PAGE_BYTES: u64 = 4096;

/// What a region takes at a time once it is that large: one huge page, and few enough calls that
/// populating costs little more than zeroing.
pub const EXTENT_BYTES: u64 = 2 << 20;

/// What a region takes at a time below one extent, so that a table with few rows stays small.
pub const PIECE_BYTES: u64 = 64 << 10;

/// Addresses reserved for the first segment of a slab. Costs no memory. Each further segment
/// doubles the slab, so that a shard of a terabyte has fifteen mappings and a node with thousands
/// of shards stays below the kernel's limit of 65530.
pub const FIRST_SEGMENT_BYTES: u64 = 64 << 20;

/// Segments of a slab: the first and then doublings up to 48-bit slots.
pub const SEGMENTS_MAX: usize = 48;

/// Slots are 48 bits in an index entry.
pub const SLOTS_MAX: u64 = 1 << 48;

/// Where the index tables of a region start in its file; the slab grows below. Files are sparse.
pub const INDEX_FILE_OFFSET: u64 = 1 << 46;

/// Entries of one index bucket: a cache line less its header.
pub const BUCKET_ENTRIES: usize = 7;

/// Index entries in use, in percent of all, at which the next index is begun. Two-choice hashing
/// without displacement leaves well under one key in a hundred without room at this load.
pub const INDEX_LOAD_PERCENT: u64 = 80;

/// Load up to which a push may fill the next index while the growth into it still goes on.
pub const INDEX_LOAD_GROWING_PERCENT: u64 = 92;

/// Buckets of one index: bucket choice uses 32 bits of the hash, some of which must be to spare.
pub const BUCKETS_MAX: u64 = 1 << 30;

/// Old buckets moved, per insert, while the index grows: enough that growth ends long before the
/// next index is full, few enough that no push feels it (B059).
pub const GROWTH_BUCKETS_PER_INSERT: usize = 4;

/// Rows that a batch read prefetches ahead of its copies (DEPENDENCIES: the measured optimum).
pub const PREFETCH_ROWS: usize = 8;

/// Tries of a read before the thread lets others run: a writer is within its few hundred
/// nanoseconds, or was descheduled there.
pub const READ_SPINS_MAX: u32 = 128;

const _: () = assert!(EXTENT_BYTES.is_multiple_of(PIECE_BYTES));
const _: () = assert!(PIECE_BYTES.is_multiple_of(HEADER_PAGE_BYTES));
const _: () = assert!(FIRST_SEGMENT_BYTES.is_multiple_of(EXTENT_BYTES));
const _: () = assert!(INDEX_LOAD_PERCENT < INDEX_LOAD_GROWING_PERCENT);
const _: () = assert!(PREFETCH_ROWS.is_power_of_two());
const _: () = assert!(mneme_proto::limits::DENSE_ROWS_MAX <= SLOTS_MAX);
