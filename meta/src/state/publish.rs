//! Publishing: one command flips a table to a sealed generation, whole or not at all (I-8).

use std::collections::BTreeMap;

use mneme_proto::control::{Change, SealedReplica, SealedVersion, TableVersions};
use mneme_proto::ids::{NodeId, ShardIndex, TableGeneration, TableId};
use mneme_proto::map::{RegionState, TableState};
use mneme_proto::refusal::Refusal;

use crate::state::State;
use crate::state::command::Outcome;
use crate::state::record::{Contents, MUTABLE, ReplicaRecord, TableRecord};
use crate::state::report::check_region;

type Named = BTreeMap<(ShardIndex, NodeId), SealedReplica>;

fn conflict(what: String, why: impl Into<String>) -> Refusal {
    Refusal::Conflict {
        what,
        why: why.into(),
    }
}

impl State {
    /// Checks every replica, then flips; no check follows the first change. A repeat of what is
    /// published already is answered as done. Publishing the previous generation rolls back.
    pub(super) fn publish(
        &mut self,
        table: TableId,
        generation: TableGeneration,
        replicas: Vec<SealedReplica>,
    ) -> Result<Outcome, Refusal> {
        let named = by_replica(replicas)?;
        let record = self
            .tables
            .get(&table)
            .ok_or_else(|| Refusal::UnknownTable {
                table: format!("#{table}"),
            })?;
        record.check_publishable(generation)?;
        for ((_, node), replica) in &named {
            let node = self.check_incarnation(*node, replica.incarnation)?;
            check_region(node, &replica.region, self.given.generation.0)?;
        }
        record.check_named(generation, &named)?;
        if record.generation == generation {
            return Ok(self.done());
        }

        self.advance();
        let record = self.tables.get_mut(&table).expect("it was found above");
        record.flip(generation, named);
        self.note(Change::Table(table));
        Ok(self.done())
    }
}

fn by_replica(replicas: Vec<SealedReplica>) -> Result<Named, Refusal> {
    let mut named = Named::new();
    for replica in replicas {
        let key = (replica.shard, replica.node);
        if named.insert(key, replica).is_some() {
            let (shard, node) = key;
            return Err(Refusal::Malformed {
                why: format!("shard {shard} on node {node} is named twice"),
            });
        }
    }
    Ok(named)
}

impl TableRecord {
    /// Its sealed generations, those that stand whole.
    #[must_use]
    pub fn versions(&self) -> TableVersions {
        let staged = self.loads.iter().filter_map(|load| self.version(*load));
        TableVersions {
            table: self.id,
            published: self.generation,
            previous: Some(self.previous)
                .filter(|previous| *previous != MUTABLE)
                .and_then(|previous| self.version(previous)),
            staged: staged.collect(),
        }
    }

    /// A generation as `Publish` names it; none if a replica of it is not reported.
    fn version(&self, generation: TableGeneration) -> Option<SealedVersion> {
        let mut replicas = Vec::new();
        for (shard, index) in self.shards.iter().zip(0..) {
            for replica in &shard.replicas {
                replicas.push(SealedReplica {
                    shard: ShardIndex(index),
                    node: replica.node,
                    incarnation: replica.incarnation,
                    region: replica.region(generation)?.clone(),
                });
            }
        }
        Some(SealedVersion {
            generation,
            replicas,
        })
    }

    fn check_publishable(&self, generation: TableGeneration) -> Result<(), Refusal> {
        let known = self.loads.contains(&generation)
            || generation == self.generation
            || generation == self.previous;
        if generation != MUTABLE && known {
            return Ok(());
        }
        let what = format!("generation {generation} of table '{}'", self.spec.name);
        Err(conflict(what, "its load was given up; load it again"))
    }

    /// Every replica of the table is named, and none changed since.
    fn check_named(&self, generation: TableGeneration, named: &Named) -> Result<(), Refusal> {
        let mut replicas = 0;
        for (shard, index) in self.shards.iter().zip(0..) {
            for replica in &shard.replicas {
                replicas += 1;
                let what = || format!("shard {index} on node {}", replica.node);
                let sealed = named
                    .get(&(ShardIndex(index), replica.node))
                    .ok_or_else(|| conflict(what(), "it is not named"))?;
                replica
                    .check_sealed(generation, sealed)
                    .map_err(|why| conflict(what(), why))?;
            }
        }
        if replicas == named.len() {
            return Ok(());
        }
        let why = format!("{} replicas are named, it has {replicas}", named.len());
        Err(conflict(format!("table '{}'", self.spec.name), why))
    }

    fn flip(&mut self, generation: TableGeneration, named: Named) {
        let whole = self.state() == TableState::Sealed;
        self.previous = if whole { self.generation } else { MUTABLE };
        self.generation = generation;
        self.loading = false;
        self.loads.remove(&generation);
        let (previous, loads) = (self.previous, self.loads.clone());
        for ((shard, node), sealed) in named {
            let shard = &mut self.shards[shard.0 as usize];
            let replica = shard
                .replica_mut(node)
                .expect("check_named found every named replica");
            replica.lost = false;
            replica.failed = None;
            replica.contents.retain(|held, _| {
                loads.contains(held) || (*held == previous && previous != MUTABLE)
            });
            replica.contents.insert(
                generation,
                Contents {
                    digest: sealed.region.digest,
                    region: Some(sealed.region),
                },
            );
        }
    }
}

impl ReplicaRecord {
    /// What was reported or published of this generation must be what is named now. A region that
    /// its node has not reported stands on the node's word in the command; one that it withdrew
    /// has ended the load.
    fn check_sealed(
        &self,
        generation: TableGeneration,
        named: &SealedReplica,
    ) -> Result<(), String> {
        if named.incarnation != self.incarnation {
            let (now, asked) = (self.incarnation, named.incarnation);
            return Err(format!("its node is in incarnation {now}, not {asked}"));
        }
        if named.region.state != RegionState::Sealed {
            return Err("its region is not sealed".into());
        }
        let Some(known) = self.contents.get(&generation) else {
            return Ok(());
        };
        if known.digest != named.region.digest {
            let (found, asked) = (known.digest, named.region.digest);
            return Err(format!("its digest is {found:016x}, not {asked:016x}"));
        }
        match &known.region {
            Some(region) if region.generation != named.region.generation => {
                let (found, asked) = (region.generation, named.region.generation);
                Err(format!("its region is of generation {found}, not {asked}"))
            }
            _ => Ok(()),
        }
    }
}
