//! The storage node: keeps shards of tables in memory, answers pulls, orders and applies pushes.

#![forbid(unsafe_code)]

pub mod limits;
pub mod optimizer;
pub mod shard;
#[cfg(test)]
mod testing;
