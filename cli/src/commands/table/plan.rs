//! What a table would take: `mneme table create --dry-run`.

use mneme_memory::plan::{mutable_bytes, sealed_bytes};
use mneme_proto::control::ClusterStatus;
use mneme_proto::limits::{SHARDS_MAX, SHARDS_PER_NODE_DEFAULT};
use mneme_proto::schema::{TableKind, TableSpec};
use serde::Serialize;

use super::kind_word;
use crate::output::{bytes, count, fields};

/// The memory of a table that does not exist yet.
#[derive(Debug, Serialize)]
pub struct Plan {
    name: String,
    kind: &'static str,
    rows: u64,
    row_bytes: u32,
    state_bytes: u32,
    shards: u32,
    mutable_bytes: u64,
    sealed_bytes: u64,
    free_bytes: u64,
}

impl Plan {
    /// Plans `spec`; a hashed table for `rows` keys (none when not told).
    #[must_use]
    pub fn of(mut spec: TableSpec, rows: Option<u64>, cluster: &ClusterStatus) -> Self {
        if spec.shards == 0 {
            let nodes = cluster
                .nodes
                .iter()
                .filter(|node| node.alive)
                .count()
                .max(1);
            let wanted = u32::try_from(nodes)
                .unwrap_or(SHARDS_MAX)
                .saturating_mul(SHARDS_PER_NODE_DEFAULT);
            spec.shards = wanted.min(SHARDS_MAX).next_power_of_two();
        }
        let rows = match spec.kind {
            TableKind::Dense { rows } => rows,
            TableKind::Hashed => rows.unwrap_or(0),
        };
        Self {
            kind: kind_word(&spec.kind),
            rows,
            row_bytes: spec.row_bytes(),
            state_bytes: spec.state_bytes(),
            shards: spec.shards,
            mutable_bytes: table_bytes(&spec, rows, false),
            sealed_bytes: table_bytes(&spec, rows, true),
            free_bytes: free_bytes(cluster),
            name: spec.name,
        }
    }

    /// The plan for people.
    #[must_use]
    pub fn text(&self) -> String {
        fields([
            ("name", self.name.clone()),
            ("kind", self.kind.into()),
            ("rows", count(self.rows)),
            ("row", format!("{} B", self.row_bytes)),
            ("state", format!("{} B a row", self.state_bytes)),
            ("shards", self.shards.to_string()),
            ("memory while mutable", bytes(self.mutable_bytes)),
            ("memory when sealed", bytes(self.sealed_bytes)),
            ("free in the cluster", bytes(self.free_bytes)),
        ])
    }
}

/// Bytes of all shards of a table (`shards` effective) that holds `rows` rows. Hashed keys
/// spread evenly.
#[must_use]
pub fn table_bytes(spec: &TableSpec, rows: u64, sealed: bool) -> u64 {
    let hashed = spec.kind == TableKind::Hashed;
    let layout = spec.dense_layout();
    (0..spec.shards)
        .map(|shard| match layout {
            Some(layout) => layout.rows_of_shard(shard),
            None => {
                let (each, rest) = (rows / u64::from(spec.shards), rows % u64::from(spec.shards));
                each + u64::from(u64::from(shard) < rest)
            }
        })
        .map(|shard_rows| match sealed {
            true => sealed_bytes(shard_rows, spec.row_bytes(), hashed),
            false => mutable_bytes(shard_rows, spec.row_bytes(), spec.state_bytes(), hashed),
        })
        .fold(0, u64::saturating_add)
}

/// What the pools of all nodes that are alive have left.
#[must_use]
pub fn free_bytes(cluster: &ClusterStatus) -> u64 {
    let alive = cluster.nodes.iter().filter(|node| node.alive);
    alive
        .flat_map(|node| &node.pools)
        .map(|pool| pool.limit_bytes.saturating_sub(pool.used_bytes))
        .fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use mneme_proto::schema::{Dtype, RowSchema};

    use super::*;

    fn spec(kind: TableKind) -> TableSpec {
        TableSpec {
            shards: 32,
            tenant: "default".into(),
            ..TableSpec::new("t", kind, RowSchema::single(Dtype::U8, 264))
        }
    }

    /// Within a tenth of the bare rows for large tables of large rows.
    #[test]
    fn large_tables_take_little_more_than_their_rows() {
        let rows = 10_000_000;
        let dense = spec(TableKind::Dense { rows });
        let bare = rows * 264;
        let sealed = table_bytes(&dense, rows, true);
        assert!(sealed >= bare && sealed < bare + bare / 10, "{sealed}");
        let hashed = spec(TableKind::Hashed);
        let mutable = table_bytes(&hashed, rows, false);
        assert!(mutable >= bare && mutable < bare + rows * 50, "{mutable}");
        assert_eq!(table_bytes(&hashed, 0, false), 0);
    }
}
