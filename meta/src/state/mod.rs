//! The catalogue's state machine, without I/O: commands in, outcomes out.
//!
//! `apply` is a pure function of state and command: ordered maps, no clock, no randomness, so
//! every member that applies the same log holds the same state bit for bit. A refused command
//! changes nothing, and the revision moves exactly when the state does. Numbers of nodes, tables,
//! incarnations and generations only grow: none is ever given twice (I-6).

pub mod command;
pub mod events;
mod grants;
mod maps;
pub(crate) mod nodes;
pub mod placement;
mod publish;
pub mod record;
mod report;
mod stored_spec;
mod tables;

use std::collections::{BTreeMap, VecDeque};

use mneme_proto::control::{Change, TableRef};
use mneme_proto::ids::{ClusterId, Generation, Incarnation, NodeId, Revision, TableId};
use mneme_proto::refusal::Refusal;
use serde::{Deserialize, Serialize};

use crate::state::command::{Command, Outcome};
use crate::state::events::{Events, Since};
use crate::state::record::{NodeRecord, TableRecord};

/// The last number given out of each kind (I-6).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Given {
    node: NodeId,
    incarnation: Incarnation,
    table: TableId,
    generation: Generation,
}

/// A creation that its caller may repeat. Another's request of the same number is another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Creation {
    creator: Option<String>,
    request: u64,
    table: TableId,
}

/// Everything that the catalogue knows.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    cluster: Option<ClusterId>,
    revision: Revision,
    given: Given,
    nodes: BTreeMap<NodeId, NodeRecord>,
    tables: BTreeMap<TableId, TableRecord>,
    /// Tables by tenant and name.
    names: BTreeMap<(String, String), TableId>,
    /// The newest creations, oldest first.
    creates: VecDeque<Creation>,
    events: Events,
}

impl State {
    /// Applies one committed command.
    pub fn apply(&mut self, command: Command) -> Outcome {
        self.decide(command).unwrap_or_else(Outcome::Refused)
    }

    fn decide(&mut self, command: Command) -> Result<Outcome, Refusal> {
        match command {
            Command::Found { cluster } => Ok(self.found(cluster)),
            Command::Register(registration) => self.register(registration),
            Command::TakeGenerations {
                node,
                incarnation,
                count,
            } => self.take_generations(node, incarnation, count),
            Command::Report {
                node,
                incarnation,
                shards,
            } => self.report(node, incarnation, shards),
            Command::CreateTable {
                creator,
                request,
                spec,
                loading,
                candidates,
            } => self.create_table(creator, request, spec, loading, &candidates),
            Command::AbandonTable { table } => self.abandon_table(table),
            Command::DropTable { table } => self.drop_table(&table),
            Command::ResetTable { table } => self.reset_table(&table),
            Command::BeginLoad { table } => self.begin_load(&table),
            Command::Publish {
                table,
                generation,
                replicas,
            } => self.publish(table, generation, replicas),
            Command::SetTable { table, options } => self.set_table(&table, &options),
            Command::Grant {
                table,
                principal,
                level,
            } => self.grant(&table, principal, level),
        }
    }

    fn found(&mut self, cluster: ClusterId) -> Outcome {
        if self.cluster.is_none() {
            self.cluster = Some(cluster);
            self.advance();
        }
        self.done()
    }

    /// Moves to the next revision. Called once by a command that changes something.
    fn advance(&mut self) -> Revision {
        self.revision.0 += 1;
        self.revision
    }

    /// Notes a change at the current revision.
    fn note(&mut self, change: Change) {
        self.events.push(self.revision, change);
    }

    fn done(&self) -> Outcome {
        Outcome::Done {
            revision: self.revision,
        }
    }

    /// The cluster's id, once founded.
    #[must_use]
    pub fn cluster(&self) -> Option<ClusterId> {
        self.cluster
    }

    /// How many commands have changed the state.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// All nodes.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeRecord> {
        self.nodes.values()
    }

    /// A node.
    #[must_use]
    pub fn node(&self, node: NodeId) -> Option<&NodeRecord> {
        self.nodes.get(&node)
    }

    /// All tables, by id.
    pub fn tables(&self) -> impl Iterator<Item = &TableRecord> {
        self.tables.values()
    }

    /// A table.
    ///
    /// # Errors
    /// [`Refusal::UnknownTable`].
    pub fn table(&self, table: &TableRef) -> Result<&TableRecord, Refusal> {
        let id = match table {
            TableRef::Id(id) => Some(*id),
            TableRef::Name { tenant, name } => {
                self.names.get(&(tenant.clone(), name.clone())).copied()
            }
        };
        id.and_then(|id| self.tables.get(&id))
            .ok_or_else(|| Refusal::UnknownTable {
                table: table.to_string(),
            })
    }

    /// Checks that `incarnation` is the node's running one.
    ///
    /// # Errors
    /// [`Refusal::StaleIncarnation`], also for a node that is not known.
    pub fn check_incarnation(
        &self,
        node: NodeId,
        incarnation: Incarnation,
    ) -> Result<&NodeRecord, Refusal> {
        match self.nodes.get(&node) {
            Some(record) if record.entry.incarnation == incarnation => Ok(record),
            Some(record) => Err(Refusal::StaleIncarnation {
                node: record.entry.name.clone(),
            }),
            None => Err(Refusal::StaleIncarnation {
                node: format!("#{node}"),
            }),
        }
    }

    /// What changed after `from`. A revision from the future is another history's: reload.
    #[must_use]
    pub fn since(&self, from: Revision) -> Since {
        if from > self.revision {
            return Since::Compacted;
        }
        self.events.since(from)
    }
}
