//! Parquet files: rows as a list column, or as one column per element; keys as a column `keys`.
//!
//! Parquet has f32, f16 and bytes. What it has no type for (bf16, fp8) is written as one
//! fixed-length binary value per row, and the file's metadata say what it is ([`PLANES`]).
//!
//! A file is decoded once as a whole when it is opened: nulls, lists of several lengths and
//! damaged pages are found before the first row is stored.

mod guard;
mod leaf;
mod read;
mod schema;
mod write;

pub(super) use read::{Cursor, open};
pub(super) use write::Writer;

use super::FileError;
use parquet::errors::ParquetError;
use std::path::Path;

/// The key of a file's metadata whose value lists the planes of its rows, as JSON.
const PLANES: &str = "mneme.planes";

/// A plane as [`PLANES`] has it.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
struct PlaneNote {
    name: String,
    dtype: mneme_proto::schema::Dtype,
    dim: u32,
}

/// An error of the decoder about a file.
fn damaged(path: &Path) -> impl FnOnce(ParquetError) -> FileError + '_ {
    move |error| FileError::malformed(path, "parquet", error.to_string())
}
