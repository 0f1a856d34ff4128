//! Files of rows: every format is read and written here, in bounded pieces.
//!
//! | format | read | written |
//! |---|---|---|
//! | safetensors, one file or several with an index | `safetensors`, `sharded` | `write` |
//! | npy, npz | `npy`, `npz` in a `zip` container | `write` |
//! | parquet (cargo feature) | `parquet` | `parquet` |
//! | HugeCTR's folders | `hugectr` | |
//! | raw rows with a manifest | `raw` | |
//!
//! Most formats are arrays (`array`) of elements (`element`) at known places; `rows` chooses
//! those that make up the rows. A file is checked as a whole (header, shapes, dtypes, sizes,
//! overlaps, holes, checksums) when it is opened, before anybody has stored a row of it; after
//! that its rows are streamed. This module knows nothing of clusters. It never holds more than a
//! chunk of rows in memory, beside the keys.

mod array;
mod duplicates;
mod element;
pub mod fuzz;
mod hugectr;
mod npy;
mod npz;
#[cfg(feature = "parquet")]
mod parquet;
mod raw;
mod rows;
mod safetensors;
mod sharded;
mod write;
mod zip;

use std::path::{Path, PathBuf};

use mneme_proto::schema::Dtype;

pub use duplicates::{DuplicateKeys, OnDuplicate, keep_mask};
pub use rows::{RowFile, Wanted};
pub use write::RowWriter;

use array::Source;

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
    /// Several of them with an index.
    SafetensorsIndex,
    /// <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>
    Npy,
    /// <https://numpy.org/doc/stable/reference/generated/numpy.savez.html>
    Npz,
    /// Apache Parquet.
    Parquet,
    /// A folder of HugeCTR.
    HugeCtr,
    /// A manifest beside raw rows.
    Manifest,
}

/// The manifest of a folder of raw rows.
const MANIFEST: &str = "manifest.json";

/// The index of a folder of safetensors files.
const INDEX: &str = "model.safetensors.index.json";

/// The only safetensors file of a folder.
const MODEL: &str = "model.safetensors";

impl Format {
    /// The format that a file's name stands for.
    ///
    /// # Errors
    /// [`FileError::Unsuitable`] naming the formats there are.
    pub fn of(path: &Path) -> Result<Self, FileError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let of_name = [
            (".safetensors", Self::Safetensors),
            (".safetensors.index.json", Self::SafetensorsIndex),
            (".npy", Self::Npy),
            (".npz", Self::Npz),
            (".parquet", Self::Parquet),
            (".json", Self::Manifest),
        ];
        let found = of_name.into_iter().find(|(end, _)| name.ends_with(end));
        found.map(|(_, format)| format).ok_or_else(|| {
            let why = "its name tells no known format: use FILE.safetensors, .npy, .npz, \
                       .parquet, or to import also a .safetensors.index.json, a manifest \
                       FILE.json or a folder";
            FileError::unsuitable(path, why)
        })
    }

    /// The format of a file or folder that is there, and the file to open.
    fn of_existing(path: &Path) -> Result<(Self, PathBuf), FileError> {
        let about = std::fs::metadata(path).map_err(FileError::io(path))?;
        if !about.is_dir() {
            return Ok((Self::of(path)?, path.to_owned()));
        }
        let inside = [
            (INDEX, Self::SafetensorsIndex),
            (MODEL, Self::Safetensors),
            (MANIFEST, Self::Manifest),
        ];
        for (name, format) in inside {
            let file = path.join(name);
            if file.is_file() {
                return Ok((format, file));
            }
        }
        if path.join(hugectr::KEY_FILE).is_file() {
            return Ok((Self::HugeCtr, path.to_owned()));
        }
        let why = format!("the folder has none of {INDEX}, {MODEL}, {MANIFEST} and HugeCTR's key");
        Err(FileError::unsuitable(path, why))
    }
}

/// Opens a file or folder, checks it as a whole, and chooses what makes up its rows.
///
/// # Errors
/// [`FileError`] when the file is damaged, or does not hold the rows that are wanted.
pub fn open(path: &Path, wanted: &Wanted<'_>) -> Result<RowFile, FileError> {
    let (format, file) = Format::of_existing(path)?;
    let alone = |word: &str| match wanted.tensor {
        Some(_) => {
            let why = format!("{word} has no names to choose by: leave --tensor out");
            Err(FileError::unsuitable(path, why))
        }
        None => Ok(()),
    };
    let named = |arrays: Vec<array::Array>| RowFile::of_arrays(path, &arrays, wanted);
    let typed = |opened: RowFile| opened.of_dtype(wanted.dtype);
    match format {
        Format::Safetensors => named(safetensors::arrays(&file)?),
        Format::SafetensorsIndex => named(sharded::arrays(&file)?),
        Format::Npz => named(npz::arrays(&file)?),
        Format::Npy => {
            alone("an npy file")?;
            named(vec![npy_array(&file)?])
        }
        Format::Parquet => open_parquet(&file, wanted),
        Format::HugeCtr => {
            alone("a HugeCTR folder")?;
            typed(hugectr::open(&file)?)
        }
        Format::Manifest => {
            alone("a manifest")?;
            typed(raw::open(&file)?)
        }
    }
}

#[cfg(feature = "parquet")]
fn open_parquet(path: &Path, wanted: &Wanted<'_>) -> Result<RowFile, FileError> {
    parquet::open(path, wanted)
}

#[cfg(not(feature = "parquet"))]
fn open_parquet(path: &Path, _: &Wanted<'_>) -> Result<RowFile, FileError> {
    Err(no_parquet(path))
}

#[cfg(not(feature = "parquet"))]
fn no_parquet(path: &Path) -> FileError {
    let why = "this mneme was built without parquet: build it with --features parquet";
    FileError::unsuitable(path, why)
}

fn npy_array(path: &Path) -> Result<array::Array, FileError> {
    let source = Source::open(path)?;
    npy::array(&source, 0, source.bytes)
}

/// Reads the keys of an npy file: 1-D u64, or i64 taken as its two's complement.
///
/// # Errors
/// [`FileError`] when the file is damaged or holds something else.
pub fn read_keys(path: &Path) -> Result<Vec<u64>, FileError> {
    if Format::of(path)? != Format::Npy {
        return Err(FileError::unsuitable(path, "keys come as FILE.npy"));
    }
    npy_array(path)?.read_keys()
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
