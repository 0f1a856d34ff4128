//! Every bound of the command line, with its reason.

use std::time::Duration;

/// Bytes of rows that an import or export holds at once: large enough that a chunk spreads over
/// many shards, small enough to be nothing beside the table.
pub const FILE_CHUNK_BYTES: usize = 8 << 20;

/// The longest header of a `.npy` file that is read. NumPy itself refuses to parse more than
/// 10,000 bytes; some writers pad generously.
pub const NPY_HEADER_BYTES_MAX: u32 = 64 << 10;

/// The longest header of a `.safetensors` file: the format's own limit.
pub const SAFETENSORS_HEADER_BYTES_MAX: u64 = 100_000_000;

/// The longest manifest of raw rows: a few lines of JSON.
pub const MANIFEST_BYTES_MAX: u64 = 1 << 20;

/// The most members of a `.npz` file: each has a name in an error line's memory.
pub const ZIP_MEMBERS_MAX: u64 = 1 << 16;

/// The longest directory of a `.npz` file that is read.
pub const ZIP_DIRECTORY_BYTES_MAX: u64 = 16 << 20;

/// Bytes that deflate makes of one byte at most: 258 B for two bits, and a little is lost.
pub const DEFLATE_RATIO_MAX: u64 = 1032;

/// Rows of a parquet file that are decoded at once, by their bytes.
pub const PARQUET_PIECE_BYTES: usize = 1 << 20;

/// Bytes of a row group of an exported parquet file, before encoding; held in memory.
pub const PARQUET_GROUP_BYTES: usize = 64 << 20;

/// Pieces of a file that are read ahead of the one that is being sent.
pub const PIECES_AHEAD: usize = 1;

/// Names (of tensors, of keys) that an error line lists before it says "and N more".
pub const NAMES_LISTED_MAX: usize = 10;

/// Values of a row that are shown to people; `--json` has them all.
pub const VALUES_SHOWN_MAX: usize = 8;

/// Deadline of one step of an import, export or seal when none is given: a step may copy or
/// sync gigabytes.
pub const LONG_STEP_DEADLINE: Duration = Duration::from_secs(600);

/// How often a starting process looks whether it serves.
pub const READY_POLL: Duration = Duration::from_millis(10);

/// How long a start waits for a directory that another process holds: one that was killed with
/// gigabytes of memory takes a moment to go.
pub const LOCK_WAIT: Duration = Duration::from_secs(1);

/// What is left of the 2 s of a clean end for tasks that do not end by themselves.
pub const SHUTDOWN_WAIT: Duration = Duration::from_millis(200);

/// How long an ending process waits for its links and files to close. Everything acknowledged is
/// on disk already, so that ending without them loses nothing.
pub const CLOSE_WAIT: Duration = Duration::from_millis(1200);

/// Nodes of one `mneme dev`: all of them share one process and its memory.
pub const DEV_NODES_MAX: u32 = 64;

/// Threads of `mneme bench`.
pub const BENCH_THREADS_MAX: u32 = 1024;

/// Keys of one bench call; the client splits larger batches into frames anyway.
pub const BENCH_BATCH_MAX: u32 = 1 << 20;

/// Keys of a hashed table that a bench draws from at most: 8 B each, read before it starts.
pub const BENCH_KEYS_MAX: usize = 4_000_000;

/// Keys that a bench draws from where a hashed table has no rows yet.
pub const BENCH_NEW_KEYS: u64 = 1_000_000;

/// Keys drawn beforehand for each thread of a bench, so that drawing is not measured.
pub const BENCH_KEYS_DRAWN: usize = 1 << 18;

/// Calls of a bench that are not counted: connections open, caches fill.
pub const BENCH_WARM_UP: Duration = Duration::from_secs(1);

// A clean end takes 2 s at most.
const _: () = assert!(CLOSE_WAIT.as_millis() + SHUTDOWN_WAIT.as_millis() < 2000);
// One row of any table fits a chunk many times over.
const _: () = assert!(mneme_proto::limits::ROW_BYTES_MAX as usize * 64 <= FILE_CHUNK_BYTES);
