//! The client: rows by key, over the cheapest path there is, with the catalogue off the way.
//!
//! ```no_run
//! use mneme_client::{ClientConfig, PullOptions, PushMode, PushOptions, blocking::Client};
//!
//! # fn main() -> Result<(), mneme_client::ClientError> {
//! let client = Client::connect(ClientConfig::from_env()?)?; // MNEME_CONFIG names a client.toml
//! let items = client.table("items")?;
//! let keys = [7, 42, 7];
//! let mut rows = vec![0.0; keys.len() * items.spec().schema.dim() as usize];
//! let statuses = items.pull_f32(&keys, &mut rows, &PullOptions::default())?;
//! println!("{statuses:?}"); // in request order; a repeated key fills every position
//!
//! let gradients = vec![0.1; rows.len()];
//! items.push(PushMode::Gradient, &keys, &gradients, &PushOptions::default())?; // one step a key
//! # Ok(())
//! # }
//! ```
//!
//! [`Client`] and [`Table`] are async and cheap to clone; [`blocking`] has the same calls for
//! threads. Called by `cli`, `python` and users' programs.
//!
//! What it promises:
//!
//! * A warm pull asks nothing of the catalogue; a node's refusal, or the catalogue's watch, makes
//!   the map be refreshed (I-9). A pull of a sealed table sees one generation (I-8).
//! * A push is checked whole before anything is sent, and takes effect exactly once, whatever is
//!   retried (I-2). Where that cannot be known any more the error says so.
//! * Every call has a deadline; an error says what was waited for, and where. Futures may be
//!   dropped at any time: no other call notices, and no session keeps a gap.
//!
//! How it is built: [`Table::pull`] plans its keys by shard and node with the map's router
//! (`router`, `plan`), small ones share frames (`coalesce`, `lanes`), answers are copied once
//! (`scatter`). [`Table::push`] merges (`merge`), numbers (`session`) and sends (`push`).
//! The state machines (`plan`, `coalesce`, `session::Window`, `merge`, `retry`) do no I/O.

#![forbid(unsafe_code)]

#[cfg(target_endian = "big")]
compile_error!("rows and frames are little-endian and are lent to callers in place");

pub mod blocking;
mod client;
mod coalesce;
mod config;
mod cost;
mod error;
mod lanes;
pub mod limits;
mod links;
mod load;
mod map;
mod merge;
mod options;
mod parts;
mod paths;
mod plan;
mod pull;
mod push;
mod retry;
mod router;
mod scan;
mod scatter;
mod seal;
mod session;
mod table;
#[cfg(test)]
mod testing;
mod versions;

pub use client::Client;
pub use config::{CONFIG_VARIABLE, ClientConfig, ConfigError, Span, TENANT_DEFAULT};
pub use error::{
    ClientError, Fate, NodeFault, PartFate, PushFailure, Unavailable, UnavailableKeys,
};
pub use load::{LoadAt, LoadRows, Loader};
pub use mneme_proto::frame::{Missing, PushMode, Status};
pub use mneme_proto::grant::{Grant, Level};
pub use options::{
    PartialPull, PathReport, PullOptions, PushOptions, PushReport, Values, WhereReport,
};
pub use router::MapError;
pub use scan::{Scan, ScanRows};
pub use table::{ShardReport, Table, TableReport};
