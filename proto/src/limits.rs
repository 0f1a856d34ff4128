//! Every bound of the protocol, with its reason. A peer that goes over one gets a typed error
//! before anything is allocated (I-12).

/// The largest body of one frame. Batches above it are split by the client. Large enough that a
/// frame's fixed costs vanish, small enough that a few of them fit any node's reply budget.
pub const FRAME_BODY_BYTES_MAX: u32 = 16 << 20;

/// Keys in one frame: with the 264 B rows of an Engram table an answer then fills one frame.
pub const FRAME_KEYS_MAX: u32 = 65_536;

/// Shard groups in one frame: a frame may touch every shard of a table once.
pub const FRAME_GROUPS_MAX: u32 = SHARDS_MAX;

/// The largest control message; a map of 4096 shards is well below it.
pub const CONTROL_BODY_BYTES_MAX: u32 = 8 << 20;

/// Shards of one table (DESIGN 5).
pub const SHARDS_MAX: u32 = 4096;

/// Shards per node that a table gets when its creator names no number (DESIGN 5).
pub const SHARDS_PER_NODE_DEFAULT: u32 = 16;

/// Bytes of one row. A row must fit a frame many times over.
pub const ROW_BYTES_MAX: u32 = 64 << 10;

/// Planes of one row.
pub const PLANES_MAX: usize = 16;

/// Rows of a dense table: local rows stay below the 48-bit slots of the index.
pub const DENSE_ROWS_MAX: u64 = 1 << 48;

/// Length of a table's, tenant's, plane's or node's name.
pub const NAME_BYTES_MAX: usize = 128;

/// A dense block holds the power of two of rows that comes closest to this from below.
pub const DENSE_BLOCK_BYTES: u64 = 2 << 20;

/// Pushes of one session and shard in flight; the outcomes of as many are kept (DESIGN 8).
pub const SESSION_WINDOW: u64 = 64;

/// Digest granularity of a sealed region.
pub const DIGEST_CHUNK_BYTES: u64 = 64 << 20;

/// Keys that an error message names before it says "and N more".
pub const ERROR_KEYS_NAMED_MAX: usize = 10;

// A full pull answer of the largest rows must be splittable: one row always fits a frame.
const _: () = assert!(ROW_BYTES_MAX < FRAME_BODY_BYTES_MAX / 4);
// Keys of a full frame fit its body.
const _: () = assert!((FRAME_KEYS_MAX as u64) * 8 < FRAME_BODY_BYTES_MAX as u64);
const _: () = assert!(SHARDS_MAX.is_power_of_two());
