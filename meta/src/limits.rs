//! Bounds of the catalogue, each with its reason.

use std::time::Duration;

/// Page cache of the embedded store. The log between two snapshots and one snapshot fit; the
/// state itself is in memory anyway.
pub const STORE_CACHE_BYTES: usize = 16 << 20;

/// Raft heartbeat. openraft's 50 ms is too tight beside an fsync.
pub const HEARTBEAT_MS: u64 = 100;

/// Shortest election time-out: four heartbeats, so that one slow fsync costs no leader.
pub const ELECTION_MIN_MS: u64 = 400;

/// Longest election time-out; the spread keeps members from splitting the vote.
pub const ELECTION_MAX_MS: u64 = 800;

/// Time to send and install a whole snapshot: openraft's 200 ms is too short for a megabyte that
/// must be synced.
pub const INSTALL_SNAPSHOT_MS: u64 = 30_000;

/// Log entries between snapshots: replaying as many takes well under a second.
pub const SNAPSHOT_EVERY_ENTRIES: u64 = 2_000;

/// Entries kept behind a snapshot, so that a member that was away briefly needs no snapshot.
pub const ENTRIES_KEPT: u64 = 500;

const _: () = assert!(ELECTION_MIN_MS >= 4 * HEARTBEAT_MS);
const _: () = assert!(ELECTION_MIN_MS < ELECTION_MAX_MS);
const _: () = assert!(ENTRIES_KEPT < SNAPSHOT_EVERY_ENTRIES);

/// How long `open` waits for this member to lead and to have applied its own log.
pub const OPEN_TIMEOUT: Duration = Duration::from_secs(30);

/// Changes kept for watchers. A watcher that is further behind reloads, which costs it one list
/// and its maps; at a few changes a second this covers a quarter of an hour.
pub const EVENTS_KEPT: usize = 4096;

/// Answers of `create table` kept for retries: a client retries within its deadline, so this many
/// creations in between would have to happen in seconds.
pub const CREATES_KEPT: usize = 1024;

/// Storage nodes of a cluster.
pub const NODES_MAX: usize = 4096;

/// Pools of one node: one per NUMA node and tier, with room.
pub const POOLS_MAX: usize = 64;

/// Tables of a cluster.
pub const TABLES_MAX: usize = 16_384;

/// Grants of one table: they travel with its map to its nodes, and so many are 150 KB of it.
pub const GRANTS_MAX: usize = 1024;

/// Shards of all tables: at about 400 B each in memory and in a snapshot, 100 MB.
pub const SHARDS_TOTAL_MAX: usize = 262_144;

/// Open loads of one table. A loader that died leaves one behind; the oldest gives way.
pub const LOADS_OPEN_MAX: usize = 4;

/// Paths of one region: each kind once per network, with room.
pub const PATHS_MAX: usize = 8;

/// Length of an address, a failure domain, a pool's specification or a path's locator.
pub const TEXT_BYTES_MAX: usize = 256;

/// Length kept of a node's line about a shard that failed.
pub const FAILURE_BYTES_MAX: usize = 512;

/// Region generations that a registration brings along: enough for a node's first tables.
pub const GENERATIONS_AT_REGISTRATION: u32 = 1024;

/// Region generations taken at once, at most: 2^64 of them last for ever at this size.
pub const GENERATIONS_BLOCK_MAX: u32 = 65_536;

const _: () = assert!(GENERATIONS_AT_REGISTRATION <= GENERATIONS_BLOCK_MAX);
const _: () = assert!(SHARDS_TOTAL_MAX >= mneme_proto::limits::SHARDS_MAX as usize);

/// Longest wait of one watch; watchers ask again, and a dead one is noticed by its link.
pub const WATCH_WAIT: Duration = Duration::from_secs(30);

/// How long a creation or reset waits for the nodes. Longer than a node takes for a table that
/// fits, shorter than anybody stares at a prompt; the same request may be repeated.
pub const SERVE_WAIT: Duration = Duration::from_secs(10);

/// A node's lease (DESIGN 10): silent for as long, it is not given new shards.
pub const NODE_LEASE: Duration = Duration::from_secs(3);

/// Time given to links and files to close.
pub const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

const _: () = assert!(ELECTION_MAX_MS < NODE_LEASE.as_millis() as u64);
