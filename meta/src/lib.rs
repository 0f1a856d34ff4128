//! The catalogue.
#![forbid(unsafe_code)]
pub mod limits;
pub mod log_store;
pub mod network;
pub mod raft;
pub mod state;
pub mod state_machine;
