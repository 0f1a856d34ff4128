//! Following the catalogue's map of a table: making, replacing and dropping what belongs here,
//! and reporting it.
//!
//! A new mutable shard serves only after the catalogue has acknowledged its report: from then on
//! the catalogue knows that there are rows that can be lost.

use std::collections::BTreeMap;
use std::sync::Arc;

use mneme_proto::control::{CatalogueRequest, CatalogueResponse, ShardReport, ShardStatus};
use mneme_proto::ids::{ShardIndex, TableGeneration, TableId};
use mneme_proto::map::{ShardEntry, TableMap, TableState};
use mneme_proto::refusal::Refusal;
use tokio::task::block_in_place;

use super::data::MutableRecord;
use super::descriptor::{Medium, Names};
use super::held::HeldTable;
use super::shards::{Maker, roomiest};
use super::{Node, internal};
use crate::access::Grants;
use crate::shard::rules::{TableRules, check_spec};
use crate::table::{Place, Table};

/// Shards that could not be made or loaded, with the line that says why.
type Failures = BTreeMap<(TableGeneration, ShardIndex), String>;

impl Node {
    /// Follows `map`, unless a newer one was followed already. Back when what it asks for is
    /// made, reported and served.
    ///
    /// # Errors
    /// [`Refusal`]; the table stays as it was, and the map may be followed again.
    pub(super) async fn follow(&self, map: TableMap) -> Result<Arc<Table>, Refusal> {
        check_spec(&map.spec)?;
        let places = self.places_of(&map)?;
        let cell = self.held(map.table);
        let mut held = cell.lock().await;
        if map.revision < held.revision
            && let Some(table) = self.engine.tables.get(map.table)
        {
            return Ok(table);
        }
        let rules = match self.engine.tables.get(map.table) {
            Some(table) if *table.spec == map.spec => Arc::clone(&table.rules),
            other => {
                held.recorded &= other.is_none();
                Arc::new(TableRules::new(map.table, &map.spec))
            }
        };
        let mut table = Table {
            id: map.table,
            spec: Arc::new(map.spec.clone()),
            rules,
            grants: Arc::new(Grants::new(&map.grants)),
            generation: map.generation,
            loading: map.state == TableState::Loading,
            previous: map.previous,
            places,
            sealed: BTreeMap::new(),
        };
        if !table.places.iter().any(|place| place.mine) {
            block_in_place(|| self.drop_held(map.table, &mut held));
            return Ok(Arc::new(table));
        }
        let names = self.names(names_needed(&table, &held)).await?;
        let failures = block_in_place(|| self.settle(&mut table, &mut held, names))?;
        self.report(&table, &mut held, &failures).await?;
        held.revision = map.revision;
        let table = Arc::new(table);
        self.engine.tables.put(Arc::clone(&table));
        Ok(table)
    }

    /// The table is gone: so are its rows and records here.
    pub(super) async fn forget(&self, table: TableId) {
        let cell = self.held(table);
        let mut held = cell.lock().await;
        block_in_place(|| self.drop_held(table, &mut held));
    }

    fn drop_held(&self, table: TableId, held: &mut HeldTable) {
        self.engine.tables.remove(table);
        self.loads.forget_table(table);
        *held = HeldTable::default();
        if let Err(error) = self.data.drop_table(table) {
            tracing::warn!(%table, %error, "a dropped table's files could not be removed");
        }
    }

    /// Where the map puts shards on this node, in this life of it. A map that speaks of another
    /// life says nothing about this one: nothing is made of it, and nothing dropped.
    fn places_of(&self, map: &TableMap) -> Result<Vec<Place>, Refusal> {
        let own = |node: u32| {
            map.nodes
                .get(node as usize)
                .is_some_and(|n| n.node == self.id.node)
        };
        let place = |shard: &ShardEntry| {
            let replica = shard.replicas.iter().find(|r| own(r.node));
            if let Some(replica) = replica.filter(|r| r.incarnation != self.id.incarnation) {
                let (found, ours) = (replica.incarnation, self.id.incarnation);
                let why = format!("a map names incarnation {found} of this node, which is {ours}");
                return Err(Refusal::Unavailable { why });
            }
            Ok(Place {
                epoch: shard.epoch,
                mine: replica.is_some(),
                lost: replica.is_some_and(|r| r.lost),
                mutable: None,
            })
        };
        map.shards.iter().map(place).collect()
    }

    /// Makes and drops until `held` is what `table` wants, and fills `table` with it.
    fn settle(
        &self,
        table: &mut Table,
        held: &mut HeldTable,
        mut names: Names,
    ) -> Result<Failures, Refusal> {
        if !held.recorded {
            self.data
                .put_table(table.id, &table.spec)
                .map_err(internal)?;
            held.recorded = true;
        }
        let mut failures = Failures::new();
        if table.is_mutable() {
            self.make_mutable(table, held, &mut names, &mut failures)?;
        } else {
            self.drop_mutable(table, held)?;
        }
        self.load_sealed(table, held, &mut names, &mut failures);
        self.drop_superseded(table, held);
        let read = [table.generation, table.previous];
        let readable = held
            .sealed
            .iter()
            .filter(|(generation, _)| read.contains(generation));
        table.sealed = readable
            .map(|(g, set)| (*g, Arc::new(set.clone())))
            .collect();
        Ok(failures)
    }

    fn make_mutable(
        &self,
        table: &mut Table,
        held: &mut HeldTable,
        names: &mut Names,
        failures: &mut Failures,
    ) -> Result<(), Refusal> {
        let (spec, rules) = (Arc::clone(&table.spec), Arc::clone(&table.rules));
        let maker = Maker {
            cluster: self.id.cluster,
            pools: &self.pools,
            spec: &spec,
            rules: &rules,
        };
        let before = held.records.clone();
        for (index, place) in table.places.iter_mut().enumerate() {
            let shard = ShardIndex(index as u32);
            let kept = held
                .mutable
                .get(&shard)
                .filter(|m| place.mine && m.epoch == place.epoch);
            if let Some(kept) = kept {
                kept.core().set_rules(Arc::clone(&rules));
                place.mutable = Some(Arc::clone(kept));
                continue;
            }
            // A reset, or a shard that moved away: whoever still holds the old one is told.
            if let Some(old) = held.mutable.remove(&shard) {
                old.replace(place.epoch);
            }
            if !place.mine || place.lost {
                continue;
            }
            match maker.mutable(shard, place.epoch, names) {
                Ok(made) => {
                    let record = MutableRecord {
                        epoch: place.epoch,
                        touched: false,
                    };
                    held.records.insert(shard, record);
                    held.mutable.insert(shard, Arc::clone(&made));
                    place.mutable = Some(made);
                }
                Err(error) => {
                    failures.insert((TableGeneration(0), shard), error.to_string());
                }
            }
        }
        // A shard that is neither here nor lost has no record: it must not be taken for one.
        let places = &table.places;
        held.records
            .retain(|shard, _| places.get(shard.0 as usize).is_some_and(|p| p.mine));
        if held.records != before {
            self.data
                .put_mutable(table.id, &held.records)
                .map_err(internal)?;
        }
        Ok(())
    }

    fn drop_mutable(&self, table: &Table, held: &mut HeldTable) -> Result<(), Refusal> {
        for (shard, old) in std::mem::take(&mut held.mutable) {
            old.replace(
                table
                    .places
                    .get(shard.0 as usize)
                    .map_or(old.epoch, |p| p.epoch),
            );
        }
        if !held.records.is_empty() {
            held.records.clear();
            self.data
                .put_mutable(table.id, &held.records)
                .map_err(internal)?;
        }
        Ok(())
    }

    fn load_sealed(
        &self,
        table: &Table,
        held: &mut HeldTable,
        names: &mut Names,
        failures: &mut Failures,
    ) {
        let maker = Maker {
            cluster: self.id.cluster,
            pools: &self.pools,
            spec: &table.spec,
            rules: &table.rules,
        };
        for generation in [table.generation, table.previous] {
            for (shard, file) in held.files.remove(&generation).unwrap_or_default() {
                if !table
                    .places
                    .get(shard.0 as usize)
                    .is_some_and(|place| place.mine)
                {
                    continue;
                }
                match maker.load(shard, &file, names) {
                    Ok(sealed) => held.add_sealed(generation, shard, sealed),
                    Err(error) => {
                        failures.insert((generation, shard), error.to_string());
                    }
                }
            }
        }
    }

    /// Drops sealed generations that are neither read, nor kept for a rollback, nor waiting to be
    /// published.
    fn drop_superseded(&self, table: &Table, held: &mut HeldTable) {
        let kept = [table.generation, table.previous];
        held.staged.retain(|generation| !kept.contains(generation));
        let in_memory = held.sealed.keys().chain(held.files.keys());
        let gone: Vec<_> = in_memory
            .filter(|g| !kept.contains(g) && !held.staged.contains(g))
            .copied()
            .collect();
        for generation in gone {
            held.sealed.remove(&generation);
            held.files.remove(&generation);
            self.drop_sealed_files(table.id, generation);
        }
    }

    /// Removes a sealed generation's files.
    pub(super) fn drop_sealed_files(&self, table: TableId, generation: TableGeneration) {
        if let Err(error) = self.data.drop_sealed(table, generation) {
            tracing::warn!(%table, %generation, %error, "old sealed files could not be removed");
        }
    }

    /// Tells the catalogue what is here, if that is news.
    async fn report(
        &self,
        table: &Table,
        held: &mut HeldTable,
        failures: &Failures,
    ) -> Result<(), Refusal> {
        let mut reports = self.reports(table, held);
        for ((generation, shard), why) in failures {
            tracing::warn!(table = %table.spec.name, %shard, %why, "a shard could not be made");
            let Some(place) = table.places.get(shard.0 as usize) else {
                continue;
            };
            reports.push(ShardReport {
                shard: table.rules.shard_id(shard.0),
                epoch: place.epoch,
                generation: *generation,
                status: ShardStatus::Failed(why.clone()),
            });
        }
        if reports == held.reported || reports.is_empty() {
            return Ok(());
        }
        self.send_reports(reports.clone()).await?;
        held.reported = reports;
        Ok(())
    }

    /// Reports again where rows or bytes have changed: figures for `table list`.
    pub(super) async fn report_figures(&self, table: &Table) -> Result<(), Refusal> {
        let cell = self.held(table.id);
        let mut held = cell.lock().await;
        let has_failures = held
            .reported
            .iter()
            .any(|r| matches!(r.status, ShardStatus::Failed(_)));
        if !table.is_mutable() || has_failures {
            return Ok(());
        }
        self.report(table, &mut held, &Failures::new()).await
    }

    /// Sends a report, whatever was sent before.
    pub(super) async fn send_reports(&self, shards: Vec<ShardReport>) -> Result<(), Refusal> {
        let (node, incarnation) = (self.id.node, self.id.incarnation);
        let request = CatalogueRequest::Report {
            node,
            incarnation,
            shards,
        };
        match self.ask(request).await? {
            CatalogueResponse::Done { .. } => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    fn reports(&self, table: &Table, held: &HeldTable) -> Vec<ShardReport> {
        let medium = self.medium();
        let report = |shard: ShardIndex, generation, region| ShardReport {
            shard: table.rules.shard_id(shard.0),
            epoch: table.places[shard.0 as usize].epoch,
            generation,
            status: ShardStatus::Serving(region),
        };
        let mutable = table.shards().map(|(shard, mutable)| {
            report(
                shard,
                TableGeneration(0),
                medium.mutable(mutable.core().rows()),
            )
        });
        let sets = held.sealed.iter();
        let sets = sets.filter(|(g, _)| [table.generation, table.previous].contains(g));
        let sealed = sets.flat_map(|(generation, set)| {
            set.iter()
                .map(|(shard, s)| report(*shard, *generation, medium.sealed(s)))
        });
        mutable.chain(sealed).collect()
    }

    /// What regions of this node have in common.
    pub(super) fn medium(&self) -> Medium {
        Medium::new(roomiest(&self.pools), &self.address)
    }
}

/// An answer of the catalogue that does not fit the question.
pub(super) fn unexpected(answer: &CatalogueResponse) -> Refusal {
    let text = format!("{answer:?}");
    let word = text.split([' ', '(', '{']).next().unwrap_or_default();
    Refusal::Internal {
        why: format!("the catalogue answered with {word}"),
    }
}

/// Names that making and loading may take: two for each shard, one for each file.
fn names_needed(table: &Table, held: &HeldTable) -> u64 {
    let shards = table.places.iter().filter(|place| place.mine).count();
    let mutable = if table.is_mutable() {
        shards - held.mutable.len().min(shards)
    } else {
        0
    };
    let replaced = held.mutable.iter().filter(|(shard, mutable)| {
        table
            .places
            .get(shard.0 as usize)
            .is_some_and(|p| p.epoch != mutable.epoch)
    });
    let files: usize = held.files.values().map(BTreeMap::len).sum();
    (2 * (mutable + replaced.count()) + files) as u64
}
