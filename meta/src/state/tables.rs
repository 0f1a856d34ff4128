//! Tables: made, dropped, emptied, and given generations to load.

use std::collections::{BTreeMap, BTreeSet};

use mneme_proto::control::{Change, TableRef};
use mneme_proto::grant::Level;
use mneme_proto::ids::{Epoch, NodeId, TableGeneration, TableId};
use mneme_proto::map::TableState;
use mneme_proto::refusal::Refusal;
use mneme_proto::schema::{SchemaError, TableSpec};

use crate::limits::{CREATES_KEPT, LOADS_OPEN_MAX, SHARDS_TOTAL_MAX, TABLES_MAX};
use crate::state::command::{Candidate, Outcome};
use crate::state::placement::{place, shards_default};
use crate::state::record::{MUTABLE, ReplicaRecord, ShardRecord, TableRecord};
use crate::state::{Creation, State};

impl State {
    /// One command looks for the name and takes it, so of two creators one wins (B058); the
    /// winner's own retry is told of its table, not that it exists. The creator is its admin.
    pub(super) fn create_table(
        &mut self,
        creator: Option<String>,
        request: u64,
        mut spec: TableSpec,
        loading: bool,
        candidates: &[Candidate],
    ) -> Result<Outcome, Refusal> {
        let made = |c: &&Creation| c.request == request && c.creator == creator;
        if let Some(made) = self.creates.iter().rev().find(made) {
            let table = self.table(&TableRef::Id(made.table))?.id;
            return Ok(self.table_outcome(table));
        }
        spec.validate()?;
        let name = (spec.tenant.clone(), spec.name.clone());
        if self.names.contains_key(&name) {
            return Err(Refusal::TableExists { table: spec.name });
        }
        let nodes = self.placeable(candidates);
        if nodes.is_empty() {
            return Err(Refusal::NoNodes);
        }
        if spec.shards == 0 {
            spec.shards = shards_default(nodes.len());
        }
        self.check_room(&spec)?;

        self.advance();
        self.given.table.0 += 1;
        let id = self.given.table;
        let shards = place(spec.shards, &nodes)
            .into_iter()
            .map(|node| ShardRecord {
                epoch: Epoch(1),
                replicas: vec![ReplicaRecord::new(
                    node,
                    self.nodes[&node].entry.incarnation,
                )],
            })
            .collect();
        self.names.insert(name, id);
        self.tables.insert(
            id,
            TableRecord {
                id,
                spec,
                made: false,
                loading,
                generation: MUTABLE,
                previous: MUTABLE,
                allocated: MUTABLE,
                loads: BTreeSet::new(),
                shards,
                grants: creator.iter().map(|c| (c.clone(), Level::Admin)).collect(),
            },
        );
        if self.creates.len() == CREATES_KEPT {
            self.creates.pop_front();
        }
        self.creates.push_back(Creation {
            creator,
            request,
            table: id,
        });
        self.note(Change::Table(id));
        Ok(self.table_outcome(id))
    }

    /// Candidates that are registered: (shards held, bytes free) of each.
    fn placeable(&self, candidates: &[Candidate]) -> BTreeMap<NodeId, (u32, u64)> {
        let registered = candidates
            .iter()
            .filter(|c| self.nodes.contains_key(&c.node));
        let mut nodes: BTreeMap<_, _> = registered.map(|c| (c.node, (0, c.free_bytes))).collect();
        for replica in self.tables.values().flat_map(TableRecord::replicas) {
            if let Some((held, _)) = nodes.get_mut(&replica.node) {
                *held += 1;
            }
        }
        nodes
    }

    fn check_room(&self, spec: &TableSpec) -> Result<(), Refusal> {
        let shards: usize = self.tables.values().map(|t| t.shards.len()).sum();
        let limits = [
            ("tables", 1, self.tables.len(), TABLES_MAX),
            (
                "shards of all tables",
                spec.shards as usize,
                shards,
                SHARDS_TOTAL_MAX,
            ),
        ];
        for (what, asked, used, limit) in limits {
            if used + asked > limit {
                return Err(Refusal::Limit {
                    what: what.into(),
                    asked: asked as u64,
                    used: used as u64,
                    limit: limit as u64,
                });
            }
        }
        Ok(())
    }

    fn table_outcome(&self, table: TableId) -> Outcome {
        Outcome::Table {
            table,
            revision: self.revision,
        }
    }

    /// Undoes a creation whose shards could not be made; its request number may be tried again.
    pub(super) fn abandon_table(&mut self, table: TableId) -> Result<Outcome, Refusal> {
        let record = self.tables.get(&table);
        if record.is_some_and(|t| t.state() == TableState::Creating) {
            self.creates.retain(|made| made.table != table);
            self.remove_table(table);
        }
        Ok(self.done())
    }

    pub(super) fn drop_table(&mut self, table: &TableRef) -> Result<Outcome, Refusal> {
        let id = self.table(table)?.id;
        self.remove_table(id);
        Ok(self.done())
    }

    fn remove_table(&mut self, id: TableId) {
        self.advance();
        if let Some(table) = self.tables.remove(&id) {
            self.names.remove(&(table.spec.tenant, table.spec.name));
        }
        self.note(Change::Dropped(id));
    }

    /// A new epoch without rows. The epoch tells nodes to make the shards anew and fences pushes
    /// that were meant for the old rows. A table that is being made is empty already: a retry of a
    /// reset must not send its nodes back to the start.
    pub(super) fn reset_table(&mut self, table: &TableRef) -> Result<Outcome, Refusal> {
        let record = self.table(table)?;
        if record.state() == TableState::Sealed {
            return Err(Refusal::TableState {
                table: record.spec.name.clone(),
                state: TableState::Sealed.word().into(),
                remedy: "its rows never change; import a new version, or drop it".into(),
            });
        }
        let id = record.id;
        if record.state() == TableState::Creating {
            return Ok(self.table_outcome(id));
        }
        self.advance();
        let record = self.tables.get_mut(&id).expect("it was found above");
        (record.made, record.loading) = (false, false);
        (record.generation, record.previous) = (MUTABLE, MUTABLE);
        record.loads.clear();
        for shard in &mut record.shards {
            shard.epoch.0 += 1;
            for replica in &mut shard.replicas {
                *replica = ReplicaRecord::new(replica.node, replica.incarnation);
            }
        }
        self.note(Change::Table(id));
        Ok(self.table_outcome(id))
    }

    /// Changes the learning rate. Everything else of an optimizer is fixed: rows and state were
    /// made by it.
    pub(super) fn set_table(
        &mut self,
        table: &TableRef,
        options: &[(String, String)],
    ) -> Result<Outcome, Refusal> {
        let record = self.table(table)?;
        let mut optimizer = record.spec.optimizer;
        for (name, value) in options {
            optimizer.set(name, value)?;
            if name != "lr" {
                let why = "it is fixed since the table was made; only lr can be changed";
                return Err(SchemaError::new(name, why).into());
            }
        }
        optimizer.validate()?;
        let id = record.id;
        if optimizer != record.spec.optimizer {
            self.advance();
            let record = self.tables.get_mut(&id).expect("it was found above");
            record.spec.optimizer = optimizer;
            self.note(Change::Table(id));
        }
        Ok(self.done())
    }

    /// Allocates a table generation, never one that was used before (I-6). A loader that died
    /// leaves its load open, so the oldest gives way when there are too many.
    pub(super) fn begin_load(&mut self, table: &TableRef) -> Result<Outcome, Refusal> {
        let record = self.table(table)?;
        if record.state() == TableState::Creating {
            return Err(Refusal::TableState {
                table: record.spec.name.clone(),
                state: TableState::Creating.word().into(),
                remedy: "try again when its nodes have made its shards".into(),
            });
        }
        let id = record.id;
        let revision = self.advance();
        let record = self.tables.get_mut(&id).expect("it was found above");
        if record.loads.len() == LOADS_OPEN_MAX
            && let Some(oldest) = record.loads.first().copied()
        {
            record.forget_load(oldest);
        }
        record.allocated = TableGeneration(record.allocated.0 + 1);
        record.loads.insert(record.allocated);
        Ok(Outcome::Load {
            table: id,
            generation: record.allocated,
            revision,
        })
    }
}
