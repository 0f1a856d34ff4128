//! The catalogue: a Raft-replicated record of where every row of every table lives.
//!
//! * [`state`]: the state machine, without I/O: nodes and their incarnations, tables, shards with
//!   their replica sets, regions as their nodes reported them, and the changes that watchers
//!   follow. Commands in, outcomes out.
//! * [`raft`], [`log_store`], [`state_machine`], [`network`]: openraft over one redb file, with an
//!   fsync per commit.
//! * [`service`]: the async shell: links in, requests to commands or reads, answers out.
//! * [`http`], [`metrics`]: `/healthz` and `/metrics`.
//!
//! Called by `cli` (`mneme meta`, `mneme dev`) and asked by `server` and `client` over links, in
//! the messages of `mneme_proto::control`. It is never on the way to a row (I-9).
//!
//! What it promises: an answered change is on disk and comes back after `kill -9`; a refused one
//! changed nothing; numbers of tables, nodes, incarnations and generations are given once (I-6); a
//! sealed generation is published whole or not at all (I-8); a watcher is told of every change
//! after its revision, or that it must reload.
//!
//! A catalogue has one member in this release. The log, snapshots and membership are those of a
//! group, but [`network`] reaches nobody yet.

#![forbid(unsafe_code)]

pub mod http;
pub mod limits;
pub mod log_store;
pub mod metrics;
pub mod network;
pub mod raft;
pub mod service;
pub mod state;
pub mod state_machine;

pub use service::{Catalogue, CatalogueOpenError, CatalogueOptions, Clock};
