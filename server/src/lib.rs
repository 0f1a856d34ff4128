//! The storage node: keeps shards of tables in memory, answers pulls, orders and applies pushes.
//!
//! *How it is built.* [`shard`] is the core of one shard, sans-io: pushes become entries that
//! carry effects, entries are applied, outcomes kept (I-1, I-2, I-10). [`optimizer`] is the
//! arithmetic. [`table`] is what a request finds: immutable snapshots of tables, their mutable
//! shards and sealed generations. [`pull`] and [`push`] turn frames into answers over a table,
//! [`engine`] puts them together with counters and buffers; none of these waits for anything.
//! Around them stand two threads' worth of shell: the service, one thread with a runtime of its
//! own that reads frames and sends answers, and [`node`], the background: registration, lease,
//! maps, shards made and dropped, loads, seals, scans and the data directory. [`access`] says who
//! may ask what; the service asks it before it does anything else with a frame.
//!
//! *Who calls it.* `cli` starts nodes ([`Node::start`](node::Node::start)); `benches` drives
//! [`shard`] and [`engine`] in process. It imports `proto`, `memory` and `net`, never `meta`: the
//! catalogue is a peer on a link.
//!
//! *What it promises.*
//!
//! * A push part takes effect once, whole or not at all, and the same bytes over the same log
//!   give the same rows on any machine (I-2, I-10).
//! * Mutable rows are served under a live lease and the shard's epoch alone (I-3); a pull reads
//!   one sealed generation or is refused (I-8); an answer holds bytes of the asked rows, of the
//!   table's default row, or zeros (I-5, I-13).
//! * Rows that were lost with an earlier life of the process are never served as if empty.
//! * A frame is answered as the grants of its table allow, and without one as if there were no
//!   such table (I-13).
//! * Requests are checked against limits before anything is allocated for them; answers have a
//!   memory of their own (I-12).

#![forbid(unsafe_code)]

pub mod access;
pub mod clock;
pub mod engine;
mod http;
pub mod limits;
pub mod metrics;
pub mod node;
pub mod optimizer;
pub mod pull;
pub mod push;
pub mod replies;
mod service;
pub mod shard;
pub mod table;
#[cfg(test)]
mod testing;

pub use engine::{Engine, Moment, Scratch};
pub use node::{Node, NodeError, NodeHandle, NodeOptions};
