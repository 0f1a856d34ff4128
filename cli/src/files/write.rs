//! Writing rows: under a temporary name, synced, then renamed; a failed export leaves nothing.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use safetensors::Dtype as FileDtype;

use mneme_proto::schema::Dtype;

use super::read::KEYS_TENSOR;
use super::safetensors::Written;
use super::{Column, FileError, Format, npy, safetensors as st};

/// A file of rows being written. Rows may come in any order; each exactly once.
#[derive(Debug)]
pub struct RowWriter {
    values: Pending,
    /// Where the keys go, when the rows have them: the same file, or one of their own (npy).
    keys: Option<(Option<Pending>, u64)>,
    /// Where each column's first row goes and the bytes of its rows.
    parts: Vec<(u64, usize)>,
}

/// The file that keys go to when `values` is an npy file: `rows.npy` has `rows.keys.npy`.
#[must_use]
pub fn keys_path(values: &Path) -> PathBuf {
    values.with_extension("keys.npy")
}

impl RowWriter {
    /// Starts a file of `rows` rows of `columns`, with a key per row where `keyed`. The format is
    /// told by the name of `path`.
    ///
    /// # Errors
    /// [`FileError`]: an unknown format, columns of several dtypes in an npy file, or the
    /// operating system's word.
    pub fn create(
        path: &Path,
        columns: &[Column],
        rows: u64,
        keyed: bool,
    ) -> Result<Self, FileError> {
        match Format::of(path)? {
            Format::Safetensors => Self::create_safetensors(path, columns, rows, keyed),
            Format::Npy => Self::create_npy(path, columns, rows, keyed),
        }
    }

    fn create_safetensors(
        path: &Path,
        columns: &[Column],
        rows: u64,
        keyed: bool,
    ) -> Result<Self, FileError> {
        let mut tensors = Vec::new();
        if keyed {
            if columns.iter().any(|c| c.name == KEYS_TENSOR) {
                let why = "a plane named 'keys' cannot stand beside the keys: export to .npy";
                return Err(FileError::unsuitable(path, why));
            }
            // First, so that 8 B elements start at a multiple of 8.
            tensors.push(Written {
                name: KEYS_TENSOR,
                dtype: FileDtype::U64,
                shape: vec![rows],
            });
        }
        tensors.extend(columns.iter().map(|column| Written {
            name: &column.name,
            dtype: match column.dtype {
                Dtype::F32 => FileDtype::F32,
                Dtype::F16 => FileDtype::F16,
                Dtype::Bf16 => FileDtype::BF16,
                Dtype::F8e4m3 => FileDtype::F8_E4M3,
                Dtype::F8e5m2 => FileDtype::F8_E5M2,
                Dtype::I8 => FileDtype::I8,
                Dtype::U8 => FileDtype::U8,
            },
            shape: vec![rows, u64::from(column.width)],
        }));
        let (header, starts) = st::write(&tensors);
        let values = Pending::create(path, &header)?;
        let starts_of_columns = &starts[usize::from(keyed)..];
        let parts = starts_of_columns
            .iter()
            .zip(columns)
            .map(|(&start, column)| (start, column.bytes()))
            .collect();
        Ok(Self {
            values,
            keys: keyed.then(|| (None, starts[0])),
            parts,
        })
    }

    fn create_npy(
        path: &Path,
        columns: &[Column],
        rows: u64,
        keyed: bool,
    ) -> Result<Self, FileError> {
        let dtype = columns[0].dtype;
        if columns.iter().any(|c| c.dtype != dtype) {
            let why = "an npy file holds one dtype, the table's planes have several: export to \
                       .safetensors";
            return Err(FileError::unsuitable(path, why));
        }
        let descr = match dtype {
            Dtype::F32 => "<f4",
            Dtype::F16 => "<f2",
            Dtype::Bf16 => "<V2",
            Dtype::F8e4m3 | Dtype::F8e5m2 => "<V1",
            Dtype::I8 => "|i1",
            Dtype::U8 => "|u1",
        };
        let width = columns.iter().map(|c| u64::from(c.width)).sum();
        let header = npy::write(descr, &[rows, width]);
        let values = Pending::create(path, &header)?;
        let row_bytes = columns.iter().map(Column::bytes).sum();
        let keys = if keyed {
            let header = npy::write("<u8", &[rows]);
            let file = Pending::create(&keys_path(path), &header)?;
            Some((Some(file), header.len() as u64))
        } else {
            None
        };
        Ok(Self {
            values,
            keys,
            parts: vec![(header.len() as u64, row_bytes)],
        })
    }

    /// Writes whole rows, the first of them at index `first`.
    ///
    /// # Errors
    /// [`FileError::Io`].
    pub fn write(&mut self, first: u64, rows: &[u8]) -> Result<(), FileError> {
        let stride: usize = self.parts.iter().map(|(_, bytes)| bytes).sum();
        assert_eq!(rows.len() % stride, 0, "whole rows");
        if let [(start, _)] = self.parts[..] {
            return self.values.write(start + first * stride as u64, rows);
        }
        let mut at = 0;
        for &(start, bytes) in &self.parts {
            let column: Vec<u8> = rows
                .chunks_exact(stride)
                .flat_map(|row| &row[at..at + bytes])
                .copied()
                .collect();
            self.values.write(start + first * bytes as u64, &column)?;
            at += bytes;
        }
        Ok(())
    }

    /// Writes the keys of rows, the first of them at index `first`.
    ///
    /// # Errors
    /// [`FileError::Io`].
    ///
    /// # Panics
    /// If the file was created without keys.
    pub fn write_keys(&mut self, first: u64, keys: &[u64]) -> Result<(), FileError> {
        let (file, start) = self.keys.as_ref().expect("created with keys");
        let bytes: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
        let file = file.as_ref().unwrap_or(&self.values);
        file.write(start + first * 8, &bytes)
    }

    /// Makes the file (and that of its keys) durable under its name. Returns the names.
    ///
    /// # Errors
    /// [`FileError::Io`]; the names then hold what they held before.
    pub fn finish(self) -> Result<Vec<PathBuf>, FileError> {
        let mut done = Vec::new();
        // Keys first: whoever sees the new rows finds their keys.
        if let Some((Some(keys), _)) = self.keys {
            done.push(keys.finish()?);
        }
        done.push(self.values.finish()?);
        done.reverse();
        Ok(done)
    }
}

/// A file under its temporary name; removed unless finished.
#[derive(Debug)]
struct Pending {
    file: File,
    temporary: PathBuf,
    path: PathBuf,
    finished: bool,
}

impl Pending {
    fn create(path: &Path, header: &[u8]) -> Result<Self, FileError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let temporary = path.with_file_name(format!(".{name}.{}.tmp", std::process::id()));
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(&temporary)
            .map_err(FileError::io(&temporary))?;
        let pending = Self {
            file,
            temporary,
            path: path.to_owned(),
            finished: false,
        };
        pending.write(0, header)?;
        Ok(pending)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), FileError> {
        self.file
            .write_all_at(bytes, offset)
            .map_err(FileError::io(&self.temporary))
    }

    fn finish(mut self) -> Result<PathBuf, FileError> {
        let io = FileError::io;
        self.file.sync_all().map_err(io(&self.temporary))?;
        std::fs::rename(&self.temporary, &self.path).map_err(io(&self.path))?;
        self.finished = true;
        let folder = match self.path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        File::open(folder)
            .and_then(|folder| folder.sync_all())
            .map_err(io(folder))?;
        Ok(self.path.clone())
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.finished {
            // Nothing better can be done about a name that cannot be removed.
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}
