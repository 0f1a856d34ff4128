//! Where the shards of a new table go: a pure function of the command and the state.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use mneme_proto::ids::NodeId;
use mneme_proto::limits::{SHARDS_MAX, SHARDS_PER_NODE_DEFAULT};

/// A node's claim to the next shard: the smallest goes first. Shards of this table come first,
/// so that every table is spread over all nodes; then those of all tables; then free memory.
type Claim = (u32, u32, Reverse<u64>, NodeId);

/// Shards that a table gets whose creator names no number: 16 per node, a power of two.
#[must_use]
pub fn shards_default(nodes: usize) -> u32 {
    let wanted = (nodes as u64).saturating_mul(u64::from(SHARDS_PER_NODE_DEFAULT));
    wanted.min(u64::from(SHARDS_MAX)).next_power_of_two() as u32
}

/// Chooses a node for each of `shards`. `nodes` maps each candidate to (shards it holds now,
/// bytes free) and must not be empty.
#[must_use]
pub fn place(shards: u32, nodes: &BTreeMap<NodeId, (u32, u64)>) -> Vec<NodeId> {
    let mut claims: BTreeSet<Claim> = nodes
        .iter()
        .map(|(node, (held, free))| (0, *held, Reverse(*free), *node))
        .collect();
    (0..shards)
        .map(|_| {
            let (mine, held, free, node) = claims.pop_first().expect("there is a candidate");
            claims.insert((mine + 1, held + 1, free, node));
            node
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(placed: &[NodeId]) -> BTreeMap<NodeId, u32> {
        let mut counts = BTreeMap::new();
        for node in placed {
            *counts.entry(*node).or_default() += 1;
        }
        counts
    }

    #[test]
    fn defaults_follow_the_design() {
        assert_eq!(shards_default(1), 16);
        assert_eq!(shards_default(2), 32);
        assert_eq!(shards_default(3), 64);
        assert_eq!(shards_default(256), 4096);
        assert_eq!(shards_default(100_000), 4096);
    }

    #[test]
    fn a_table_is_spread_evenly_whatever_nodes_hold() {
        let nodes = BTreeMap::from([
            (NodeId(1), (500, 10)),
            (NodeId(2), (0, 10)),
            (NodeId(3), (7, 99)),
        ]);
        let placed = place(64, &nodes);
        let counts = counts(&placed);
        assert!(counts.values().all(|c| (21..=22).contains(c)), "{counts:?}");
        // The one over goes to the node that holds least.
        assert_eq!(counts[&NodeId(2)], 22);
    }

    #[test]
    fn ties_go_to_free_memory_then_to_the_lower_id() {
        let nodes = BTreeMap::from([
            (NodeId(1), (0, 10)),
            (NodeId(2), (0, 20)),
            (NodeId(3), (0, 20)),
        ]);
        assert_eq!(place(3, &nodes), [NodeId(2), NodeId(3), NodeId(1)]);
    }
}
