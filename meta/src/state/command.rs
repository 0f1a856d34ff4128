//! Commands and outcomes: what Raft's log carries and what applying it answers.
//!
//! A command holds everything that its outcome depends on. Where the leader knows something that
//! the state does not (which nodes are alive, how full they are), it writes it into the command,
//! so that every member decides the same. Variants are positional on disk: a change raises
//! `CATALOGUE_VERSION`.

use mneme_proto::control::{NodeRegistration, SealedReplica, ShardReport, TableRef};
use mneme_proto::grant::Level;
use mneme_proto::ids::{
    ClusterId, Generation, Incarnation, NodeId, Revision, TableGeneration, TableId,
};
use mneme_proto::refusal::Refusal;
use mneme_proto::schema::TableSpec;
use serde::{Deserialize, Serialize};

use crate::state::stored_spec;

/// A node that may take shards, as the leader saw it when the command was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    /// The node.
    pub node: NodeId,
    /// What its pools have left.
    pub free_bytes: u64,
}

/// A change of the catalogue's state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Command {
    /// Gives the cluster its id; the first one stays.
    Found {
        /// Drawn at random by whoever initialised the catalogue.
        cluster: ClusterId,
    },
    /// A node enters with a new incarnation.
    Register(NodeRegistration),
    /// A node takes a block of region generations.
    TakeGenerations {
        /// Which node.
        node: NodeId,
        /// In which of its lives.
        incarnation: Incarnation,
        /// How many.
        count: u32,
    },
    /// A node says what became of shards.
    Report {
        /// Which node.
        node: NodeId,
        /// In which of its lives.
        incarnation: Incarnation,
        /// What became of which.
        shards: Vec<ShardReport>,
    },
    /// Makes a table and places its shards.
    CreateTable {
        /// The client that will be its admin; none when a cluster's admin makes it.
        creator: Option<String>,
        /// A random number of the caller's; a repeat is answered with the same table.
        request: u64,
        /// What the table is.
        #[serde(with = "stored_spec")]
        spec: TableSpec,
        /// Whether it has no rows until a generation is published.
        loading: bool,
        /// Where its shards may go.
        candidates: Vec<Candidate>,
    },
    /// Removes a table that could not be made; harmless once it serves.
    AbandonTable {
        /// The table.
        table: TableId,
    },
    /// Removes a table and its rows.
    DropTable {
        /// The table.
        table: TableRef,
    },
    /// Empties a mutable or lost table.
    ResetTable {
        /// The table.
        table: TableRef,
    },
    /// Allocates a table generation to load, or to seal into.
    BeginLoad {
        /// The table.
        table: TableRef,
    },
    /// Flips a table to a generation whose every replica is as named (I-8).
    Publish {
        /// The table.
        table: TableId,
        /// The generation.
        generation: TableGeneration,
        /// Every replica of every shard.
        replicas: Vec<SealedReplica>,
    },
    /// Changes options of a table's optimizer.
    SetTable {
        /// The table.
        table: TableRef,
        /// Names and values.
        options: Vec<(String, String)>,
    },
    /// Says what a client may do with a table.
    Grant {
        /// The table.
        table: TableRef,
        /// The client.
        principal: String,
        /// What it may do; nothing without one.
        level: Option<Level>,
    },
}

/// What applying a command answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Outcome {
    /// To entries that are Raft's own.
    Nothing,
    /// Done, at this revision.
    Done {
        /// The state's revision.
        revision: Revision,
    },
    /// A node is in.
    Registered {
        /// Its id: the same for the same name.
        node: NodeId,
        /// Its new life.
        incarnation: Incarnation,
        /// Its first block of region generations.
        generations: GenerationBlock,
        /// The state's revision.
        revision: Revision,
    },
    /// A block of region generations.
    Generations(GenerationBlock),
    /// The table that was made or reset.
    Table {
        /// Its id.
        table: TableId,
        /// The state's revision.
        revision: Revision,
    },
    /// A load may begin.
    Load {
        /// The table.
        table: TableId,
        /// The generation to load.
        generation: TableGeneration,
        /// The state's revision.
        revision: Revision,
    },
    /// Refused; the state is what it was.
    Refused(Refusal),
}

/// Generations `first..first + count`, one node's to use and nobody's ever after (I-6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GenerationBlock {
    /// The first of them.
    pub first: Generation,
    /// How many.
    pub count: u32,
}
