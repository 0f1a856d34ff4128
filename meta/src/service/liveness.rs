//! Who was heard from, and when: the leader's memory, never the log's.
//!
//! A node is alive until it was silent for its lease. Nodes that this leader has not heard from
//! yet count from its start: it waits a full lease before it thinks anybody dead.

use std::collections::BTreeMap;
use std::time::Duration;

use mneme_proto::control::PoolReport;
use mneme_proto::ids::NodeId;

use crate::limits::NODE_LEASE;
use crate::state::State;
use crate::state::command::Candidate;
use crate::state::record::NodeRecord;

#[derive(Debug)]
struct Heard {
    at: Duration,
    pools: Vec<PoolReport>,
}

/// The last sign of life of each node. Times are of one injected clock.
#[derive(Debug)]
pub struct Liveness {
    since: Duration,
    heard: BTreeMap<NodeId, Heard>,
}

impl Liveness {
    /// Nobody was heard yet; the leader starts at `now`.
    #[must_use]
    pub fn new(now: Duration) -> Self {
        Self {
            since: now,
            heard: BTreeMap::new(),
        }
    }

    /// A sign of life, with the node's memory as it is now.
    pub fn hear(&mut self, node: NodeId, now: Duration, pools: Vec<PoolReport>) {
        self.heard.insert(node, Heard { at: now, pools });
    }

    /// How long a node has been silent.
    #[must_use]
    pub fn silent(&self, node: NodeId, now: Duration) -> Duration {
        let last = self.heard.get(&node).map_or(self.since, |h| h.at);
        now.saturating_sub(last)
    }

    /// Whether a node was heard from within its lease.
    #[must_use]
    pub fn is_alive(&self, node: NodeId, now: Duration) -> bool {
        self.silent(node, now) < NODE_LEASE
    }

    /// A node's memory as it last said.
    #[must_use]
    pub fn pools<'a>(&'a self, node: &'a NodeRecord) -> &'a [PoolReport] {
        let heard = self.heard.get(&node.entry.node);
        heard.map_or(&node.pools, |h| &h.pools)
    }

    /// The nodes that may take shards: those alive, with what their pools have left.
    #[must_use]
    pub fn candidates(&self, state: &State, now: Duration) -> Vec<Candidate> {
        let alive = state.nodes().filter(|n| self.is_alive(n.entry.node, now));
        alive
            .map(|node| Candidate {
                node: node.entry.node,
                free_bytes: self
                    .pools(node)
                    .iter()
                    .map(|p| p.limit_bytes.saturating_sub(p.used_bytes))
                    .fold(0, u64::saturating_add),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_alive_for_a_lease_after_its_last_sign() {
        let start = Duration::from_secs(100);
        let mut liveness = Liveness::new(start);
        let node = NodeId(1);
        // A new leader gives everybody a lease.
        assert!(liveness.is_alive(node, start));
        assert!(!liveness.is_alive(node, start + NODE_LEASE));
        let later = start + Duration::from_secs(50);
        liveness.hear(node, later, vec![]);
        assert!(liveness.is_alive(node, later + NODE_LEASE / 2));
        assert!(!liveness.is_alive(node, later + NODE_LEASE));
        assert_eq!(liveness.silent(node, later), Duration::ZERO);
    }
}
