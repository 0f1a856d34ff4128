//! Nodes: registration, what a new incarnation still holds, blocks of region generations.

use std::collections::BTreeMap;

use mneme_proto::control::{Change, Held, HeldShard, NodeRegistration, PoolReport};
use mneme_proto::ids::{Generation, Incarnation, NodeId, ShardId, ShardIndex, TableGeneration};
use mneme_proto::map::NodeEntry;
use mneme_proto::refusal::Refusal;
use mneme_proto::schema::validate_name;

use crate::limits::{
    GENERATIONS_AT_REGISTRATION, GENERATIONS_BLOCK_MAX, NODES_MAX, POOLS_MAX, TEXT_BYTES_MAX,
};
use crate::state::State;
use crate::state::command::{GenerationBlock, Outcome};
use crate::state::record::{MUTABLE, NodeRecord, TableRecord};

/// What a node says it holds, by shard: a sealed shard may stand in several generations.
type HeldByShard = BTreeMap<ShardId, Vec<Held>>;

impl State {
    /// The same name is the same node in a new life: the old one is fenced by its incarnation,
    /// and its shards keep what the new one still holds.
    pub(super) fn register(&mut self, node: NodeRegistration) -> Result<Outcome, Refusal> {
        check_registration(&node)?;
        let known = self.nodes.values().find(|n| n.entry.name == node.name);
        let known = known.map(|n| n.entry.node);
        if known.is_none() && self.nodes.len() == NODES_MAX {
            return Err(Refusal::Limit {
                what: "nodes".into(),
                asked: 1,
                used: NODES_MAX as u64,
                limit: NODES_MAX as u64,
            });
        }
        let revision = self.advance();
        let id = known.unwrap_or_else(|| {
            self.given.node.0 += 1;
            self.given.node
        });
        self.given.incarnation.0 += 1;
        let incarnation = self.given.incarnation;
        let generations = self.give_generations(GENERATIONS_AT_REGISTRATION);
        let held = by_shard(node.held);
        self.nodes.insert(
            id,
            NodeRecord {
                entry: NodeEntry {
                    node: id,
                    incarnation,
                    name: node.name,
                    address: node.address,
                    domain: node.domain,
                },
                pools: node.pools,
                generations_from: generations.first,
            },
        );
        self.note(Change::Node(id));
        let on_node = self.tables.values_mut().filter(|t| t.is_on(id));
        let changed: Vec<_> = on_node
            .map(|table| {
                table.rejoin(id, incarnation, &held);
                table.id
            })
            .collect();
        changed
            .into_iter()
            .for_each(|t| self.note(Change::Table(t)));
        Ok(Outcome::Registered {
            node: id,
            incarnation,
            generations,
            revision,
        })
    }

    pub(super) fn take_generations(
        &mut self,
        node: NodeId,
        incarnation: Incarnation,
        count: u32,
    ) -> Result<Outcome, Refusal> {
        self.check_incarnation(node, incarnation)?;
        if !(1..=GENERATIONS_BLOCK_MAX).contains(&count) {
            return Err(Refusal::Limit {
                what: "region generations at once".into(),
                asked: u64::from(count),
                used: 0,
                limit: u64::from(GENERATIONS_BLOCK_MAX),
            });
        }
        self.advance();
        Ok(Outcome::Generations(self.give_generations(count)))
    }

    /// The only place that hands region generations out, each once (I-6).
    fn give_generations(&mut self, count: u32) -> GenerationBlock {
        let first = Generation(self.given.generation.0 + 1);
        self.given.generation.0 += u64::from(count);
        GenerationBlock { first, count }
    }
}

impl TableRecord {
    /// Takes a node's new incarnation into the sets it was in: a change of the set, so a new epoch
    /// (I-3). Contents that the new life does not hold are lost, never served as if empty.
    fn rejoin(&mut self, node: NodeId, incarnation: Incarnation, held: &HeldByShard) {
        let (table, current, previous) = (self.id, self.generation, self.previous);
        let mut previous_held = true;
        for (index, shard) in self.shards.iter_mut().enumerate() {
            let Some(replica) = shard.replicas.iter_mut().find(|r| r.node == node) else {
                continue;
            };
            let id = ShardId {
                table,
                shard: ShardIndex(index as u32),
            };
            let held = held.get(&id).map_or(&[][..], Vec::as_slice);
            shard.epoch.0 += 1;
            replica.incarnation = incarnation;
            replica.failed = None;
            if current == MUTABLE {
                let had_rows = replica.contents.contains_key(&MUTABLE);
                replica.lost |= had_rows && !held.contains(&Held::Untouched);
                replica.contents.clear();
                continue;
            }
            let holds = |generation: TableGeneration, digest| {
                held.contains(&Held::Sealed { generation, digest })
            };
            replica.contents.retain(|generation, contents| {
                contents.region = None;
                *generation == current || *generation == previous
            });
            let digest = |generation| replica.contents.get(&generation).map(|c| c.digest);
            replica.lost = !digest(current).is_some_and(|d| holds(current, d));
            previous_held &= digest(previous).is_some_and(|d| holds(previous, d));
        }
        if !previous_held {
            self.forget_previous();
        }
    }
}

fn by_shard(held: Vec<HeldShard>) -> HeldByShard {
    let mut map = HeldByShard::new();
    for HeldShard { shard, held } in held {
        map.entry(shard).or_default().push(held);
    }
    map
}

fn check_registration(node: &NodeRegistration) -> Result<(), Refusal> {
    validate_name("node", &node.name)?;
    check_text("address", &node.address)?;
    check_text("domain", &node.domain)?;
    if node.address.is_empty() {
        return Err(Refusal::Schema {
            field: "address".into(),
            why: "it is empty".into(),
        });
    }
    check_pools(&node.pools)
}

/// Checks a node's description of its memory against the limits.
///
/// # Errors
/// [`Refusal::Limit`], [`Refusal::Schema`].
pub(crate) fn check_pools(pools: &[PoolReport]) -> Result<(), Refusal> {
    if pools.len() > POOLS_MAX {
        return Err(Refusal::Limit {
            what: "pools of one node".into(),
            asked: pools.len() as u64,
            used: 0,
            limit: POOLS_MAX as u64,
        });
    }
    pools.iter().try_for_each(|p| check_text("pool", &p.spec))
}

fn check_text(field: &str, text: &str) -> Result<(), Refusal> {
    if text.len() <= TEXT_BYTES_MAX {
        return Ok(());
    }
    Err(Refusal::Schema {
        field: field.into(),
        why: format!("{} B are over the limit of {TEXT_BYTES_MAX} B", text.len()),
    })
}
