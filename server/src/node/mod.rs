//! node
pub mod data;
