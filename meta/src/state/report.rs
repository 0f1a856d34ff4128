//! Reports: a node's word on its own regions.
//!
//! A report about a table, epoch or generation that is no longer current is not an error: the node
//! will learn of the change and report again. It is simply not recorded.

use std::collections::BTreeMap;

use mneme_proto::control::{Change, ShardReport, ShardStatus};
use mneme_proto::ids::{Incarnation, NodeId, TableGeneration};
use mneme_proto::limits::PLANES_MAX;
use mneme_proto::map::Descriptor;
use mneme_proto::refusal::Refusal;

use crate::limits::{FAILURE_BYTES_MAX, PATHS_MAX, TEXT_BYTES_MAX};
use crate::state::State;
use crate::state::command::Outcome;
use crate::state::record::{Contents, MUTABLE, NodeRecord, ReplicaRecord, TableRecord};

/// What a report changed of a table; ordered by how much.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Effect {
    /// Nothing.
    None,
    /// Only what clients do not route by: counts of rows and bytes, or an open load.
    Figures,
    /// The table's map.
    Map,
}

impl State {
    pub(super) fn report(
        &mut self,
        node: NodeId,
        incarnation: Incarnation,
        shards: Vec<ShardReport>,
    ) -> Result<Outcome, Refusal> {
        let record = self.check_incarnation(node, incarnation)?;
        for report in &shards {
            if let ShardStatus::Serving(region) = &report.status {
                check_region(record, region, self.given.generation.0)?;
            }
        }
        let mut effects = BTreeMap::new();
        for report in shards {
            let id = report.shard.table;
            if let Some(table) = self.tables.get_mut(&id) {
                let effect = table.accept(node, report);
                let total = effects.entry(id).or_insert(effect);
                *total = effect.max(*total);
            }
        }
        if effects.values().any(|e| *e != Effect::None) {
            self.advance();
        }
        for (table, effect) in effects {
            if effect == Effect::Map {
                self.note(Change::Table(table));
            }
        }
        Ok(self.done())
    }
}

impl TableRecord {
    fn accept(&mut self, node: NodeId, report: ShardReport) -> Effect {
        let generation = report.generation;
        let is_load = self.loads.contains(&generation);
        let (current, previous, made) = (self.generation, self.previous, self.made);
        let Some(shard) = self.shards.get_mut(report.shard.shard.0 as usize) else {
            return Effect::None;
        };
        let out_of_date = shard.epoch != report.epoch;
        if out_of_date || (self.loading && generation == MUTABLE) {
            return Effect::None;
        }
        let Some(replica) = shard.replica_mut(node) else {
            return Effect::None;
        };
        match report.status {
            ShardStatus::Serving(region) if is_load => replica.hold(generation, region),
            ShardStatus::Serving(region) if generation == current => {
                let effect = replica.serve(generation, region);
                if !made && current == MUTABLE {
                    let (serving, all) = self.serving();
                    self.made = serving == all;
                }
                effect
            }
            ShardStatus::Serving(region) if generation == previous => {
                match replica.contents.get(&generation) {
                    Some(kept) if kept.digest == region.digest => replica.hold(generation, region),
                    _ => {
                        self.forget_previous();
                        Effect::Map
                    }
                }
            }
            // The load has a hole from now on, so publishing it must fail (I-8).
            ShardStatus::Failed(_) if is_load => {
                self.forget_load(generation);
                Effect::Figures
            }
            ShardStatus::Failed(why) if generation == current => {
                let being_made = !made && current == MUTABLE;
                replica.fail(generation, why, being_made)
            }
            ShardStatus::Failed(_) if generation == previous => {
                self.forget_previous();
                Effect::Map
            }
            // Of a generation that is neither current, nor previous, nor being loaded.
            ShardStatus::Serving(_) | ShardStatus::Failed(_) => Effect::None,
        }
    }
}

impl ReplicaRecord {
    /// Records the region of contents that are not served by default.
    fn hold(&mut self, generation: TableGeneration, region: Descriptor) -> Effect {
        let kept = Contents {
            digest: region.digest,
            region: Some(region),
        };
        match self.contents.insert(generation, kept) {
            Some(before) if before.region == self.contents[&generation].region => Effect::None,
            _ => Effect::Figures,
        }
    }

    /// Records the region that answers readers. Sealed contents count only with the digest that
    /// was published (I-8); lost mutable rows come back by a reset or an import alone.
    fn serve(&mut self, generation: TableGeneration, region: Descriptor) -> Effect {
        if generation == MUTABLE {
            if self.lost {
                return Effect::None;
            }
        } else {
            let published = self.contents.get(&generation).map(|c| c.digest);
            if published != Some(region.digest) {
                return self.lose(generation);
            }
        }
        let (was_lost, had_failed) = (self.lost, self.failed.take().is_some());
        self.lost = false;
        let digest = if generation == MUTABLE {
            0
        } else {
            region.digest
        };
        let before = self.contents.insert(
            generation,
            Contents {
                region: Some(region),
                digest,
            },
        );
        let now = self.region(generation).expect("it was inserted above");
        match before.and_then(|b| b.region) {
            _ if was_lost || had_failed => Effect::Map,
            Some(before) if before == *now => Effect::None,
            Some(before) if same_but_for_figures(&before, now) => Effect::Figures,
            _ => Effect::Map,
        }
    }

    fn fail(&mut self, generation: TableGeneration, mut why: String, being_made: bool) -> Effect {
        if !being_made {
            return self.lose(generation);
        }
        let mut end = why.len().min(FAILURE_BYTES_MAX);
        while !why.is_char_boundary(end) {
            end -= 1;
        }
        why.truncate(end);
        let before = self.failed.replace(why);
        if before == self.failed {
            Effect::None
        } else {
            Effect::Map
        }
    }

    /// The contents are not served. What was published stays known: a later life of the node may
    /// still hold it.
    fn lose(&mut self, generation: TableGeneration) -> Effect {
        let kept = self.contents.get_mut(&generation);
        let had_region = kept.and_then(|c| c.region.take()).is_some();
        if std::mem::replace(&mut self.lost, true) && !had_region {
            Effect::None
        } else {
            Effect::Map
        }
    }
}

/// Whether two descriptors differ at most in counts of rows and bytes.
fn same_but_for_figures(a: &Descriptor, b: &Descriptor) -> bool {
    let mut b = b.clone();
    (b.rows, b.bytes) = (a.rows, a.bytes);
    *a == b
}

/// Checks what bytecheck cannot: bounds, and that the region's generation can be this life's
/// (I-6). `given` is the last region generation that the catalogue gave out.
pub(super) fn check_region(
    node: &NodeRecord,
    region: &Descriptor,
    given: u64,
) -> Result<(), Refusal> {
    let texts_fit = region
        .paths
        .iter()
        .all(|p| p.locator.len() <= TEXT_BYTES_MAX);
    if region.planes.len() > PLANES_MAX || region.paths.len() > PATHS_MAX || !texts_fit {
        return Err(Refusal::Malformed {
            why: format!("the descriptor of region {} is over a limit", region.region),
        });
    }
    let generations = node.generations_from.0..=given;
    if !generations.contains(&region.generation.0) {
        return Err(Refusal::Conflict {
            what: format!("region {} of node '{}'", region.region, node.entry.name),
            why: format!(
                "its generation {} is none of this incarnation's",
                region.generation
            ),
        });
    }
    Ok(())
}
