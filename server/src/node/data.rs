//! The data directory: what a node knows across its lives.
//!
//! ```text
//! DIR/lock                                  held by the running process
//! DIR/cluster                               the cluster that the directory belongs to
//! DIR/tables/ID/table                       the table's spec
//! DIR/tables/ID/mutable                     mutable shards held, and which of them took pushes
//! DIR/tables/ID/sealed/GENERATION/SHARD.DIGEST   a sealed shard's rows
//! ```
//!
//! Records are small: magic, format version, CRC32C, an rkyv archive. A record is replaced as a
//! whole: written to a temporary name, fsynced, renamed, its directory fsynced, so that a crash
//! leaves the old one or the new one.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use mneme_proto::codec;
use mneme_proto::ids::{ClusterId, Epoch, ShardIndex, TableGeneration, TableId};
use mneme_proto::schema::TableSpec;
use rkyv::api::high::{HighDeserializer, HighSerializer, HighValidator};
use rkyv::bytecheck::CheckBytes;
use rkyv::rancor::Error;
use rkyv::ser::allocator::ArenaHandle;
use rkyv::util::AlignedVec;
use rkyv::{Archive, Deserialize, Serialize};

use crate::limits::RECORD_BYTES_MAX;

const MAGIC: [u8; 4] = *b"MNDR";
/// Version of the records and of the directory's layout.
const FORMAT: u32 = 1;
const HEADER_BYTES: usize = 12;
const TEMPORARY: &str = "tmp";

/// What goes wrong with a data directory.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// A file operation failed.
    #[error("{}: {source}", path.display())]
    File {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another process has it.
    #[error("{} is in use by another node: give each node a directory of its own", path.display())]
    Locked {
        /// The directory.
        path: PathBuf,
    },
    /// A record that cannot be used.
    #[error("{}: {why}", path.display())]
    Record {
        /// The record's file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The directory was made by a node of another cluster.
    #[error(
        "{} belongs to cluster {found}, the catalogue is of cluster {wanted}: use another --data",
        path.display()
    )]
    OtherCluster {
        /// The directory.
        path: PathBuf,
        /// Its cluster.
        found: ClusterId,
        /// The catalogue's.
        wanted: ClusterId,
    },
}

impl DataError {
    pub(crate) fn file(path: &Path, source: io::Error) -> Self {
        Self::File {
            path: path.to_owned(),
            source,
        }
    }

    fn record(path: &Path, why: impl Into<String>) -> Self {
        Self::Record {
            path: path.to_owned(),
            why: why.into(),
        }
    }
}

/// One mutable shard as recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct MutableRecord {
    /// The epoch in which its rows began.
    pub epoch: Epoch,
    /// Whether a push was let in: from then on, rows can be lost.
    pub touched: bool,
}

/// All mutable shards of a table on this node.
pub type MutableRecords = BTreeMap<ShardIndex, MutableRecord>;

/// A table as found in the directory.
#[derive(Debug)]
pub struct FoundTable {
    /// The table.
    pub table: TableId,
    /// What it is.
    pub spec: TableSpec,
    /// Its mutable shards.
    pub mutable: MutableRecords,
    /// Files of its sealed shards.
    pub sealed: BTreeMap<TableGeneration, BTreeMap<ShardIndex, SealedFile>>,
}

/// A sealed shard's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealedFile {
    /// Digest of its contents, from its name; its bytes are checked when they are loaded.
    pub digest: u64,
    /// Where it is.
    pub path: PathBuf,
}

/// An open, locked data directory.
#[derive(Debug)]
pub struct DataDir {
    root: PathBuf,
    _lock: File,
}

impl DataDir {
    /// Opens and locks a directory, making it where it is not there.
    ///
    /// # Errors
    /// [`DataError::Locked`], [`DataError::File`].
    pub fn open(root: &Path) -> Result<Self, DataError> {
        fs::create_dir_all(root.join("tables")).map_err(|e| DataError::file(root, e))?;
        let path = root.join("lock");
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path);
        let lock = lock.map_err(|e| DataError::file(&path, e))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self {
                root: root.to_owned(),
                _lock: lock,
            }),
            Err(TryLockError::WouldBlock) => Err(DataError::Locked {
                path: root.to_owned(),
            }),
            Err(TryLockError::Error(e)) => Err(DataError::file(&path, e)),
        }
    }

    /// Binds the directory to a cluster at its first use, and checks it at any later one.
    ///
    /// # Errors
    /// [`DataError::OtherCluster`], and those of records.
    pub fn bind_to(&self, wanted: ClusterId) -> Result<(), DataError> {
        let path = self.root.join("cluster");
        match read_record::<ClusterId>(&path)? {
            Some(found) if found == wanted => Ok(()),
            Some(found) => Err(DataError::OtherCluster {
                path: self.root.clone(),
                found,
                wanted,
            }),
            None => write_record(&path, &wanted),
        }
    }

    /// All tables in the directory. Left-overs of interrupted writes are removed.
    ///
    /// # Errors
    /// [`DataError`] of the first record that cannot be used.
    pub fn tables(&self) -> Result<Vec<FoundTable>, DataError> {
        let mut tables = Vec::new();
        for (id, path) in numbered(&self.root.join("tables"))? {
            let Some(spec) = read_record::<TableSpec>(&path.join("table"))? else {
                // Interrupted before its first record, or while it was dropped.
                remove_dir(&path)?;
                continue;
            };
            let mut sealed = BTreeMap::new();
            for (generation, dir) in numbered(&path.join("sealed"))? {
                sealed.insert(TableGeneration(generation), sealed_files(&dir)?);
            }
            let mutable = read_record::<Vec<(ShardIndex, MutableRecord)>>(&path.join("mutable"))?;
            tables.push(FoundTable {
                table: TableId(id),
                spec,
                mutable: mutable.unwrap_or_default().into_iter().collect(),
                sealed,
            });
        }
        Ok(tables)
    }

    /// Records a table's spec.
    ///
    /// # Errors
    /// [`DataError::File`].
    pub fn put_table(&self, table: TableId, spec: &TableSpec) -> Result<(), DataError> {
        let dir = self.table_dir(table);
        make_dir(&dir)?;
        write_record(&dir.join("table"), spec)
    }

    /// Records a table's mutable shards.
    ///
    /// # Errors
    /// [`DataError::File`].
    pub fn put_mutable(&self, table: TableId, records: &MutableRecords) -> Result<(), DataError> {
        let records: Vec<_> = records
            .iter()
            .map(|(shard, record)| (*shard, *record))
            .collect();
        write_record(&self.table_dir(table).join("mutable"), &records)
    }

    /// Where a sealed shard's rows belong; its directory is made.
    ///
    /// # Errors
    /// [`DataError::File`].
    pub fn sealed_path(
        &self,
        table: TableId,
        generation: TableGeneration,
        shard: ShardIndex,
        digest: u64,
    ) -> Result<PathBuf, DataError> {
        let dir = self.sealed_dir(table, generation);
        make_dir(&dir)?;
        Ok(dir.join(format!("{shard}.{digest:016x}")))
    }

    /// Forgets a sealed generation.
    ///
    /// # Errors
    /// [`DataError::File`].
    pub fn drop_sealed(
        &self,
        table: TableId,
        generation: TableGeneration,
    ) -> Result<(), DataError> {
        remove_dir(&self.sealed_dir(table, generation))
    }

    /// Forgets a table: its record first, so that a crash in between leaves nothing that would
    /// be taken for a table.
    ///
    /// # Errors
    /// [`DataError::File`].
    pub fn drop_table(&self, table: TableId) -> Result<(), DataError> {
        let dir = self.table_dir(table);
        let record = dir.join("table");
        match fs::remove_file(&record) {
            Ok(()) => sync_dir(&dir)?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(DataError::file(&record, e)),
        }
        remove_dir(&dir)
    }

    fn table_dir(&self, table: TableId) -> PathBuf {
        self.root.join("tables").join(table.to_string())
    }

    fn sealed_dir(&self, table: TableId, generation: TableGeneration) -> PathBuf {
        self.table_dir(table)
            .join("sealed")
            .join(generation.to_string())
    }
}

/// Entries of a directory whose names are numbers, in order; one that is not there has none.
fn numbered(dir: &Path) -> Result<BTreeMap<u64, PathBuf>, DataError> {
    let entries = entries(dir)?.into_iter();
    Ok(entries
        .filter_map(|(name, path)| Some((name.parse().ok()?, path)))
        .collect())
}

/// Sealed shards of one generation. Interrupted writes have other names and are removed.
fn sealed_files(dir: &Path) -> Result<BTreeMap<ShardIndex, SealedFile>, DataError> {
    let mut files = BTreeMap::new();
    for (name, path) in entries(dir)? {
        let parsed = name.split_once('.').and_then(|(shard, digest)| {
            Some((shard.parse().ok()?, u64::from_str_radix(digest, 16).ok()?))
        });
        match parsed {
            Some((shard, digest)) => {
                files.insert(ShardIndex(shard), SealedFile { digest, path });
            }
            None => fs::remove_file(&path).map_err(|e| DataError::file(&path, e))?,
        }
    }
    Ok(files)
}

fn entries(dir: &Path) -> Result<Vec<(String, PathBuf)>, DataError> {
    let read = match fs::read_dir(dir) {
        Ok(read) => read,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(DataError::file(dir, e)),
    };
    let entry = |entry: io::Result<fs::DirEntry>| {
        let entry = entry.map_err(|e| DataError::file(dir, e))?;
        Ok((
            entry.file_name().to_string_lossy().into_owned(),
            entry.path(),
        ))
    };
    read.map(entry).collect()
}

fn write_record<T>(path: &Path, value: &T) -> Result<(), DataError>
where
    T: for<'a> Serialize<HighSerializer<AlignedVec, ArenaHandle<'a>, Error>>,
{
    let body = codec::encode(value);
    replace(path, |file| {
        file.write_all(&MAGIC)?;
        file.write_all(&FORMAT.to_le_bytes())?;
        file.write_all(&crc32c::crc32c(&body).to_le_bytes())?;
        file.write_all(&body)
    })
}

fn read_record<T>(path: &Path) -> Result<Option<T>, DataError>
where
    T: Archive,
    T::Archived:
        for<'a> CheckBytes<HighValidator<'a, Error>> + Deserialize<T, HighDeserializer<Error>>,
{
    let bytes = match fs::metadata(path) {
        Ok(meta) if meta.len() > RECORD_BYTES_MAX => {
            let why = format!(
                "{} B are over the limit of {RECORD_BYTES_MAX} B",
                meta.len()
            );
            return Err(DataError::record(path, why));
        }
        Ok(_) => fs::read(path).map_err(|e| DataError::file(path, e))?,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(DataError::file(path, e)),
    };
    let Some((header, body)) = bytes.split_at_checked(HEADER_BYTES) else {
        return Err(DataError::record(
            path,
            format!("{} B are no record", bytes.len()),
        ));
    };
    let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| header[at + i]));
    if header[..4] != MAGIC {
        return Err(DataError::record(path, "it is not a record of a node"));
    }
    if word(4) != FORMAT {
        let why = format!(
            "it was made by format {}, this version has {FORMAT}",
            word(4)
        );
        return Err(DataError::record(path, why));
    }
    let (found, expected) = (crc32c::crc32c(body), word(8));
    if found != expected {
        let why = format!("it is damaged: CRC32C {found:08x}, expected {expected:08x}");
        return Err(DataError::record(path, why));
    }
    codec::decode(body)
        .map(Some)
        .map_err(|e| DataError::record(path, e.to_string()))
}

/// Puts a file in place whole or not at all.
fn replace(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> Result<(), DataError> {
    let temporary = path.with_extension(TEMPORARY);
    let written = File::create(&temporary).and_then(|mut file| {
        write(&mut file)?;
        file.sync_all()
    });
    if let Err(e) = written {
        // The fault of the write counts; a left-over is overwritten by the next one.
        let _ = fs::remove_file(&temporary);
        return Err(DataError::file(path, e));
    }
    fs::rename(&temporary, path).map_err(|e| DataError::file(path, e))?;
    sync_dir(path.parent().unwrap_or(Path::new(".")))
}

fn make_dir(dir: &Path) -> Result<(), DataError> {
    if dir.is_dir() {
        return Ok(());
    }
    let parent = dir.parent().unwrap_or(Path::new("."));
    make_dir(parent)?;
    match fs::create_dir(dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(DataError::file(dir, e)),
        _ => {}
    }
    sync_dir(parent)
}

fn remove_dir(dir: &Path) -> Result<(), DataError> {
    match fs::remove_dir_all(dir) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(DataError::file(dir, e)),
        _ => Ok(()),
    }
}

fn sync_dir(dir: &Path) -> Result<(), DataError> {
    File::open(dir)
        .and_then(|d| d.sync_all())
        .map_err(|e| DataError::file(dir, e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::spec;

    const TABLE: TableId = TableId(7);

    #[test]
    fn what_was_put_is_found_and_what_was_dropped_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open(dir.path()).unwrap();
        assert!(matches!(
            DataDir::open(dir.path()),
            Err(DataError::Locked { .. })
        ));
        data.put_table(TABLE, &spec("t")).unwrap();
        let record = MutableRecord {
            epoch: Epoch(2),
            touched: true,
        };
        data.put_mutable(TABLE, &[(ShardIndex(3), record)].into())
            .unwrap();
        for generation in [1, 2] {
            let generation = TableGeneration(generation);
            let path = data
                .sealed_path(TABLE, generation, ShardIndex(0), 0xF00D)
                .unwrap();
            fs::write(&path, b"rows").unwrap();
            fs::write(path.with_extension("f00d.partial"), b"ro").unwrap();
        }
        data.drop_sealed(TABLE, TableGeneration(1)).unwrap();
        drop(data);

        let data = DataDir::open(dir.path()).unwrap();
        let found = data.tables().unwrap().remove(0);
        assert_eq!((found.table, found.spec), (TABLE, spec("t")));
        assert_eq!(found.mutable[&ShardIndex(3)], record);
        let sealed = &found.sealed[&TableGeneration(2)];
        assert_eq!((found.sealed.len(), sealed.len()), (1, 1));
        assert_eq!(sealed[&ShardIndex(0)].digest, 0xF00D);
        data.drop_table(TABLE).unwrap();
        data.drop_table(TABLE).unwrap();
        assert!(data.tables().unwrap().is_empty());
    }

    #[test]
    fn damage_other_versions_and_other_clusters_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open(dir.path()).unwrap();
        data.bind_to(ClusterId(5)).unwrap();
        data.bind_to(ClusterId(5)).unwrap();
        let error = data.bind_to(ClusterId(6)).unwrap_err().to_string();
        assert!(
            error.contains("cluster 5") && error.contains("cluster 6"),
            "{error}"
        );

        data.put_table(TABLE, &spec("t")).unwrap();
        let path = dir.path().join("tables/7/table");
        let whole = fs::read(&path).unwrap();
        let mut flipped = whole.clone();
        *flipped.last_mut().unwrap() ^= 1;
        let mut newer = whole.clone();
        newer[4] = 9;
        for (bytes, part) in [
            (&flipped[..], "damaged"),
            (&newer[..], "format 9"),
            (&whole[..whole.len() - 1], "damaged"),
            (&whole[..7], "no record"),
            (b"something else", "not a record"),
        ] {
            fs::write(&path, bytes).unwrap();
            let error = data.tables().unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
