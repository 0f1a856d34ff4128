//! Writing rows: under a temporary name, synced, then renamed; a failed export leaves nothing.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::rows::{KEYS, VALUES};
use super::zip::Written as Member;
use super::{Column, FileError, Format, element, npy, safetensors, zip};

/// A file of rows being written, in order.
#[derive(Debug)]
pub struct RowWriter(Writer);

#[derive(Debug)]
enum Writer {
    Placed(Box<Placed>),
    #[cfg(feature = "parquet")]
    Parquet(Box<super::parquet::Writer>),
}

/// Rows whose places in the file are known beforehand.
#[derive(Debug)]
struct Placed {
    values: Pending,
    /// The file of the keys where it is one of their own (npy).
    key_file: Option<Pending>,
    keys: Option<Slot>,
    columns: Vec<Slot>,
    rows_written: u64,
    /// Whether the arrays are members of a zip container.
    zipped: bool,
}

/// Where an array's rows go.
#[derive(Debug)]
struct Slot {
    name: String,
    /// Where its first row goes.
    start: u64,
    row_bytes: usize,
    /// Bytes of the member that it is of a zip container, its npy header included.
    member_bytes: u64,
    crc: crc32fast::Hasher,
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
    /// [`FileError`]: an unknown format, columns that the format cannot hold, or the operating
    /// system's word.
    pub fn create(
        path: &Path,
        columns: &[Column],
        rows: u64,
        keyed: bool,
    ) -> Result<Self, FileError> {
        let format = Format::of(path)?;
        if keyed && format != Format::Npy && columns.iter().any(|c| c.name == KEYS) {
            let why = "a plane named 'keys' cannot stand beside the keys: export to .npy";
            return Err(FileError::unsuitable(path, why));
        }
        let placed = match format {
            Format::Safetensors => Placed::safetensors(path, columns, rows, keyed),
            Format::Npy => Placed::npy(path, columns, rows, keyed),
            Format::Npz => Placed::npz(path, columns, rows, keyed),
            Format::Parquet => return Self::create_parquet(path, columns, keyed),
            Format::SafetensorsIndex | Format::HugeCtr | Format::Manifest => {
                let why = "rows are exported to FILE.safetensors, .npy, .npz or .parquet";
                Err(FileError::unsuitable(path, why))
            }
        };
        placed.map(|placed| Self(Writer::Placed(Box::new(placed))))
    }

    #[cfg(feature = "parquet")]
    fn create_parquet(path: &Path, columns: &[Column], keyed: bool) -> Result<Self, FileError> {
        let writer = super::parquet::Writer::create(path, columns, keyed)?;
        Ok(Self(Writer::Parquet(Box::new(writer))))
    }

    #[cfg(not(feature = "parquet"))]
    fn create_parquet(path: &Path, _: &[Column], _: bool) -> Result<Self, FileError> {
        Err(super::no_parquet(path))
    }

    /// Writes the next rows, whole ones, and their keys where the file has them.
    ///
    /// # Errors
    /// [`FileError::Io`].
    ///
    /// # Panics
    /// If keys and rows are not equally many, or not those that the file was created for.
    pub fn write(&mut self, keys: &[u64], rows: &[u8]) -> Result<(), FileError> {
        match &mut self.0 {
            Writer::Placed(placed) => placed.write(keys, rows),
            #[cfg(feature = "parquet")]
            Writer::Parquet(writer) => writer.write(keys, rows),
        }
    }

    /// Makes the file (and that of its keys) durable under its name. Returns the names.
    ///
    /// # Errors
    /// [`FileError::Io`]; the names then hold what they held before.
    pub fn finish(self) -> Result<Vec<PathBuf>, FileError> {
        match self.0 {
            Writer::Placed(placed) => placed.finish(),
            #[cfg(feature = "parquet")]
            Writer::Parquet(writer) => writer.finish(),
        }
    }
}

impl Slot {
    fn new(name: &str, start: u64, row_bytes: usize) -> Self {
        Self {
            name: name.to_owned(),
            start,
            row_bytes,
            member_bytes: 0,
            crc: crc32fast::Hasher::new(),
        }
    }

    /// Writes its part of rows, the first of them at index `first`.
    fn write(
        &mut self,
        file: &Pending,
        first: u64,
        bytes: &[u8],
        zipped: bool,
    ) -> Result<(), FileError> {
        if zipped {
            self.crc.update(bytes);
        }
        file.write(self.start + first * self.row_bytes as u64, bytes)
    }
}

impl Placed {
    fn safetensors(
        path: &Path,
        columns: &[Column],
        rows: u64,
        keyed: bool,
    ) -> Result<Self, FileError> {
        // Keys first, so that 8 B elements start at a multiple of 8.
        let keys = keyed.then(|| safetensors::Written {
            name: KEYS,
            dtype: "U64",
            shape: vec![rows],
            bytes: rows * 8,
        });
        let planes = columns.iter().map(|column| safetensors::Written {
            name: &column.name,
            dtype: element::safetensors_word(column.dtype),
            shape: vec![rows, u64::from(column.width)],
            bytes: rows * column.bytes() as u64,
        });
        let tensors: Vec<_> = keys.into_iter().chain(planes).collect();
        let (header, starts) = safetensors::write(&tensors);
        let of_columns = &starts[usize::from(keyed)..];
        let slots = of_columns
            .iter()
            .zip(columns)
            .map(|(&start, column)| Slot::new(&column.name, start, column.bytes()));
        Ok(Self {
            columns: slots.collect(),
            keys: keyed.then(|| Slot::new(KEYS, starts[0], 8)),
            ..Self::empty(Pending::create(path, &header)?)
        })
    }

    fn npy(path: &Path, columns: &[Column], rows: u64, keyed: bool) -> Result<Self, FileError> {
        let dtype = columns[0].dtype;
        if columns.iter().any(|c| c.dtype != dtype) {
            let why = "an npy file holds one dtype, the table's planes have several: export to \
                       .safetensors";
            return Err(FileError::unsuitable(path, why));
        }
        let width = columns.iter().map(|c| u64::from(c.width)).sum();
        let header = npy::write(element::npy_descr(dtype), &[rows, width]);
        let row_bytes = columns.iter().map(Column::bytes).sum();
        let mut placed = Self::empty(Pending::create(path, &header)?);
        placed.columns = vec![Slot::new(VALUES, header.len() as u64, row_bytes)];
        if keyed {
            let header = npy::write("<u8", &[rows]);
            placed.key_file = Some(Pending::create(&keys_path(path), &header)?);
            placed.keys = Some(Slot::new(KEYS, header.len() as u64, 8));
        }
        Ok(placed)
    }

    fn npz(path: &Path, columns: &[Column], rows: u64, keyed: bool) -> Result<Self, FileError> {
        let mut placed = Self::empty(Pending::create(path, &[])?);
        placed.zipped = true;
        let mut end = 0;
        let mut slot = |name: &str, header: Vec<u8>, row_bytes: usize| {
            let member_bytes = header.len() as u64 + rows * row_bytes as u64;
            let mut slot = Slot::new(name, 0, row_bytes);
            slot.member_bytes = member_bytes;
            slot.crc.update(&header);
            let start = end + slot.member().header_bytes();
            placed.values.write(start, &header)?;
            slot.start = start + header.len() as u64;
            end = start + member_bytes;
            Ok(slot)
        };
        if keyed {
            placed.keys = Some(slot(KEYS, npy::write("<u8", &[rows]), 8)?);
        }
        for column in columns {
            let shape = [rows, u64::from(column.width)];
            let header = npy::write(element::npy_descr(column.dtype), &shape);
            placed
                .columns
                .push(slot(&column.name, header, column.bytes())?);
        }
        Ok(placed)
    }

    fn empty(values: Pending) -> Self {
        Self {
            values,
            key_file: None,
            keys: None,
            columns: Vec::new(),
            rows_written: 0,
            zipped: false,
        }
    }

    fn write(&mut self, keys: &[u64], rows: &[u8]) -> Result<(), FileError> {
        let stride: usize = self.columns.iter().map(|slot| slot.row_bytes).sum();
        let (count, first) = (rows.len() / stride, self.rows_written);
        assert_eq!(rows.len() % stride, 0, "whole rows");
        let keyed = if self.keys.is_some() { count } else { 0 };
        assert_eq!(keys.len(), keyed, "a key for every row that has one");
        if let Some(slot) = &mut self.keys {
            let bytes: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
            let file = self.key_file.as_ref().unwrap_or(&self.values);
            slot.write(file, first, &bytes, self.zipped)?;
        }
        if let [slot] = &mut self.columns[..] {
            slot.write(&self.values, first, rows, self.zipped)?;
        } else {
            let mut at = 0;
            for slot in &mut self.columns {
                let column: Vec<u8> = rows
                    .chunks_exact(stride)
                    .flat_map(|row| &row[at..at + slot.row_bytes])
                    .copied()
                    .collect();
                slot.write(&self.values, first, &column, self.zipped)?;
                at += slot.row_bytes;
            }
        }
        self.rows_written += count as u64;
        Ok(())
    }

    fn finish(self) -> Result<Vec<PathBuf>, FileError> {
        if self.zipped {
            let mut members = Vec::new();
            let mut end = 0;
            for slot in self.keys.iter().chain(&self.columns) {
                let member = slot.member();
                self.values.write(end, &member.header())?;
                end += member.header_bytes() + member.bytes;
                members.push(member);
            }
            self.values.write(end, &zip::end(&members, end))?;
        }
        let mut done = Vec::new();
        // Keys first: whoever sees the new rows finds their keys.
        if let Some(keys) = self.key_file {
            done.push(keys.finish()?);
        }
        done.push(self.values.finish()?);
        done.reverse();
        Ok(done)
    }
}

impl Slot {
    /// Itself as a member of a zip container, complete once all rows are written.
    fn member(&self) -> Member {
        Member {
            name: format!("{}.npy", self.name),
            bytes: self.member_bytes,
            crc: self.crc.clone().finalize(),
        }
    }
}

/// A file under its temporary name; removed unless finished. Errors name the file that was asked
/// for: the other name means nothing to anybody.
#[derive(Debug)]
pub(super) struct Pending {
    file: File,
    temporary: PathBuf,
    path: PathBuf,
    finished: bool,
}

impl Pending {
    /// Begins a file.
    pub fn create(path: &Path, header: &[u8]) -> Result<Self, FileError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let temporary = path.with_file_name(format!(".{name}.{}.tmp", std::process::id()));
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(&temporary)
            .map_err(FileError::io(path))?;
        let pending = Self {
            file,
            temporary,
            path: path.to_owned(),
            finished: false,
        };
        pending.write(0, header)?;
        Ok(pending)
    }

    /// A second handle to the same file.
    #[cfg(feature = "parquet")]
    pub fn handle(&self) -> Result<File, FileError> {
        self.file.try_clone().map_err(FileError::io(&self.path))
    }

    /// The name that was asked for.
    #[cfg(feature = "parquet")]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), FileError> {
        self.file
            .write_all_at(bytes, offset)
            .map_err(FileError::io(&self.path))
    }

    /// Makes it durable under its name.
    pub fn finish(mut self) -> Result<PathBuf, FileError> {
        let io = FileError::io;
        self.file.sync_all().map_err(io(&self.path))?;
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
