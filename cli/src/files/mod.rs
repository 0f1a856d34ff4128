//! Files of rows: safetensors and npy, read and written in bounded pieces.
//!
//! A file is checked as a whole (header, shapes, dtypes, sizes, overlaps, holes) when it is
//! opened, before anybody has stored a row of it; after that its rows are streamed. This module
//! knows nothing of clusters. It never holds more than a chunk of rows in memory.

mod keys;
mod npy;
mod read;
mod safetensors;
mod write;

use std::path::{Path, PathBuf};

use mneme_proto::schema::Dtype;

pub use keys::{OnDuplicate, keep_mask};
pub use read::{RowFile, open, read_keys};
pub use write::RowWriter;

/// Why a file is not read or written. One line: which file, what, what to do.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The operating system's word.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// Not a file of its format, or a damaged one.
    #[error("{} is no valid {format} file: {why}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The format that it was taken for.
        format: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// A valid file that holds something else than rows that a table takes.
    #[error("{}: {why}", path.display())]
    Unsuitable {
        /// The file.
        path: PathBuf,
        /// What was found, what is wanted.
        why: String,
    },
}

impl FileError {
    fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self + '_ {
        move |source| Self::Io {
            path: path.to_owned(),
            source,
        }
    }

    fn malformed(path: &Path, format: &'static str, why: impl Into<String>) -> Self {
        Self::Malformed {
            path: path.to_owned(),
            format,
            why: why.into(),
        }
    }

    fn unsuitable(path: &Path, why: impl Into<String>) -> Self {
        Self::Unsuitable {
            path: path.to_owned(),
            why: why.into(),
        }
    }
}

/// A file format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// <https://huggingface.co/docs/safetensors>
    Safetensors,
    /// <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>
    Npy,
}

impl Format {
    /// The format that a file's name stands for.
    ///
    /// # Errors
    /// [`FileError::Unsuitable`] naming the formats there are.
    pub fn of(path: &Path) -> Result<Self, FileError> {
        match path.extension().and_then(|e| e.to_str()) {
            Some("safetensors") => Ok(Self::Safetensors),
            Some("npy") => Ok(Self::Npy),
            _ => {
                let why = "its name tells no known format: use FILE.safetensors or FILE.npy";
                Err(FileError::unsuitable(path, why))
            }
        }
    }
}

/// A column group of a file's rows, or of rows to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// The tensor's or plane's name.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Elements per row.
    pub width: u32,
}

impl Column {
    /// Bytes of one row's part.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.dtype.bytes() as usize * self.width as usize
    }
}

/// The first names of a list and how many more there are, for error lines.
fn listed<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    let rest = names.len().saturating_sub(crate::limits::NAMES_LISTED_MAX);
    let first: Vec<&str> = names.take(crate::limits::NAMES_LISTED_MAX).collect();
    let more = if rest > 0 {
        format!(" and {rest} more")
    } else {
        String::new()
    };
    format!("{}{more}", first.join(", "))
}

#[cfg(test)]
mod tests;
