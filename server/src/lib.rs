//! The storage node: keeps shards of tables in memory, answers pulls, orders and applies pushes.

#![forbid(unsafe_code)]

pub mod clock;
pub mod http;
pub mod limits;
pub mod metrics;
pub mod node;
pub mod optimizer;
pub mod replies;
pub mod shard;
#[cfg(test)]
mod testing;
