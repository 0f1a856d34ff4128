//! Every bound of the storage node, with its reason.

use std::time::Duration;

use mneme_proto::limits::{CONTROL_BODY_BYTES_MAX, FRAME_BODY_BYTES_MAX};

/// Push sessions of one shard. One is some hundred bytes, some kilobytes after 64 pushes: a
/// thousand trainers and as many short-lived commands fit beside each other.
pub const SESSIONS_PER_SHARD_MAX: usize = 4096;

/// A session that was used more recently is never expired to make room: above any deadline of a
/// push and its retries.
pub const SESSION_IDLE_MS_MIN: u64 = 30_000;

/// Bytes of answers under way to clients, of all links together (I-12, B048). Accounted apart
/// from the pools, so that slow readers can never cost rows their place.
pub const REPLY_BYTES_MAX: usize = 512 << 20;

/// Answers are accounted in pieces of this size.
pub const REPLY_UNIT_BYTES: usize = 4096;

/// Bytes of idle answer buffers that are kept for the next pull.
pub const REPLY_IDLE_BYTES_MAX: usize = 64 << 20;

/// How long a pull waits for a place among the answers before it is refused.
pub const REPLY_WAIT: Duration = Duration::from_secs(2);

/// Requests of one link that are worked on at a time; more wait in their streams.
pub const REQUESTS_PER_LINK: usize = 256;

/// How long the serving thread looks for the next request before it sleeps, default. A client
/// that calls again at once is back within it, the way of a large answer included.
pub const BUSY_POLL_US_DEFAULT: u64 = 1000;

/// Links that a node serves. Each holds a few windows' worth of buffers at most.
pub const LINKS_MAX: usize = 16_384;

/// Rows of one scan answer, in bytes: half a control frame leaves room for keys and archive.
pub const SCAN_BYTES_MAX: usize = CONTROL_BODY_BYTES_MAX as usize / 2;

/// A load that gets no rows for this long is forgotten, so that a client that died does not hold
/// memory, nor keep a table from taking pushes.
pub const LOAD_IDLE: Duration = Duration::from_secs(120);

/// Rows copied at a time when a mutable shard is sealed: the shard's lock is held for well under
/// a millisecond.
pub const ROWS_PER_COPY: usize = 1024;

/// Steps of an index's growth at a time in an idle moment: a push waits for no more.
pub const INDEX_STEPS_AT_ONCE: u32 = 16;

/// Loads under way on one node.
pub const LOADS_MAX: usize = 64;

/// The node renews its lease this often (DESIGN 10).
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(500);

/// The catalogue's lease on a node (DESIGN 10). A holder stops 10 % early.
pub const NODE_LEASE: Duration = Duration::from_secs(3);

/// The same as the node counts it, from when it sent the renewal.
pub const NODE_LEASE_HELD: Duration = Duration::from_millis(2700);

/// Threads of the background runtime: one may be busy making a shard while another renews the
/// lease.
pub const BACKGROUND_THREADS: usize = 2;

/// How long a stopping node waits for its peers to hear of it.
pub const CLOSE_WAIT: Duration = Duration::from_millis(500);

/// How often figures are reported and idle loads looked for.
pub const TICK_INTERVAL: Duration = Duration::from_secs(2);

/// One question to the catalogue. Above an election of its leader.
pub const CATALOGUE_DEADLINE: Duration = Duration::from_secs(5);

/// How long the catalogue may hold a watch open.
pub const WATCH_WAIT: Duration = Duration::from_secs(10);

/// First and last pause between tries of something that failed.
pub const RETRY_PAUSE: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(2)];

/// How long a starting node tries to reach the catalogue for its registration.
pub const REGISTER_DEADLINE: Duration = Duration::from_secs(60);

/// Generations asked for at a time: several tables of the largest number of shards.
pub const GENERATIONS_PER_BLOCK: u32 = 16_384;

/// Distance between looks at the catalogue for one table: a client with a wrong map or id must
/// not turn the node into a flood.
pub const REFRESH_INTERVAL: Duration = Duration::from_millis(50);

/// Tables with series of their own on `/metrics` (B111).
pub const METRIC_TABLES_MAX: usize = 1000;

/// Largest record file read from a data directory.
pub const RECORD_BYTES_MAX: u64 = 16 << 20;

const _: () = assert!(REPLY_BYTES_MAX >= 4 * FRAME_BODY_BYTES_MAX as usize);
const _: () = assert!(REPLY_BYTES_MAX / REPLY_UNIT_BYTES <= u32::MAX as usize);
const _: () = assert!(SCAN_BYTES_MAX < CONTROL_BODY_BYTES_MAX as usize);
const _: () = assert!(NODE_LEASE_HELD.as_millis() * 10 <= NODE_LEASE.as_millis() * 9);
const _: () = assert!(HEARTBEAT_INTERVAL.as_millis() * 4 < NODE_LEASE_HELD.as_millis());
