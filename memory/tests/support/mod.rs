//! What the tests of this crate share: pools, specs and rows that name their key.

use std::sync::Arc;

use mneme_memory::{MutableKind, MutableSpec, Pool, PoolSpec};
use mneme_proto::ids::{ClusterId, Generation, RegionId, ShardId, ShardIndex, TableId};

/// A pool of `bytes` bytes.
pub fn pool(bytes: u64) -> Arc<Pool> {
    Pool::open(PoolSpec::dram(bytes)).unwrap()
}

/// A shard of some table.
pub fn shard() -> ShardId {
    ShardId {
        table: TableId(9),
        shard: ShardIndex(2),
    }
}

/// A mutable shard.
#[allow(dead_code, reason = "each test binary uses its part")]
pub fn spec(kind: MutableKind, row_bytes: u32, state_bytes: u32) -> MutableSpec {
    MutableSpec {
        cluster: ClusterId(1),
        shard: shard(),
        region: RegionId(10),
        state_region: RegionId(11),
        generation: Generation(12),
        kind,
        row_bytes,
        state_bytes,
        seed: 0x1234_5678_9ABC_DEF0,
        planes: Vec::new(),
    }
}

/// A row that only `key` has.
pub fn row_of(key: u64, row_bytes: usize) -> Vec<u8> {
    let word = key.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
    word.iter().copied().cycle().take(row_bytes).collect()
}
