//! The file of one catalogue member: opening it, its tables, and reading and writing records.
//!
//! ```text
//! DIR/catalogue.redb
//!   log        index u64 -> record(Entry)
//!   facts      "format"    -> version u32 LE, read before anything else
//!              "member"    -> record(u64): whose file this is
//!              "vote"      -> record(Vote)
//!              "committed" -> record(Option<LogId>)
//!              "purged"    -> record(LogId)
//!   snapshot   "meta"      -> record(SnapshotMeta)
//!              "state"     -> record(State)
//! ```
//!
//! Every commit is one fsync. redb locks the file, so a second process is refused.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mneme_proto::version::CATALOGUE_VERSION;
use redb::{Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::limits::STORE_CACHE_BYTES;
use crate::log_store::format::{self, FormatError};

/// Raft's log by index.
pub(crate) const LOG: TableDefinition<u64, &[u8]> = TableDefinition::new("log");
/// Single records by name.
pub(crate) const FACTS: TableDefinition<&str, &[u8]> = TableDefinition::new("facts");
/// The newest snapshot.
pub(crate) const SNAPSHOT: TableDefinition<&str, &[u8]> = TableDefinition::new("snapshot");

/// Name of the file within the data directory.
const FILE_NAME: &str = "catalogue.redb";

const FORMAT: &str = "format";
const MEMBER: &str = "member";

/// Why a member's data directory cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum StoreOpenError {
    /// The directory or file cannot be made or synced.
    #[error("the catalogue's data directory {path}: {source}")]
    Directory {
        /// The path.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Another process has it open.
    #[error("{path} is in use by another process: a catalogue member runs on it already")]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// It belongs to another member.
    #[error("{path} belongs to catalogue member {found}, not to member {asked}")]
    OtherMember {
        /// The file.
        path: PathBuf,
        /// Whose it is.
        found: u64,
        /// Who asked.
        asked: u64,
    },
    /// Written by a newer release, or damaged.
    #[error("{path}: {source}")]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: FormatError,
    },
    /// The embedded store refuses.
    #[error("{path}: {source}")]
    Database {
        /// The file.
        path: PathBuf,
        /// Its reason.
        source: Box<redb::Error>,
    },
}

/// Why reading or writing an open store failed. The member must stop: its disk is not to be
/// trusted.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A record is not readable.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The embedded store fails.
    #[error(transparent)]
    Database(#[from] redb::Error),
    /// The thread that waited for the disk did not come back.
    #[error("the store's task ended: {0}")]
    Task(#[from] tokio::task::JoinError),
}

macro_rules! from_redb {
    ($($error:ident),*) => {$(
        impl From<redb::$error> for StoreError {
            fn from(error: redb::$error) -> Self {
                Self::Database(error.into())
            }
        }
    )*};
}
from_redb!(TransactionError, TableError, StorageError, CommitError);

/// An open store; clones share it, and the file's lock goes with the last of them.
#[derive(Debug, Clone)]
pub struct CatalogueStore {
    file: Arc<OpenFile>,
}

#[derive(Debug)]
struct OpenFile {
    // Fields are dropped in this order: whoever waits for `released` finds the lock gone.
    database: Database,
    released: watch::Sender<()>,
}

impl CatalogueStore {
    /// Whether `dir` holds a member's file, of whatever content.
    #[must_use]
    pub fn exists(dir: &Path) -> bool {
        dir.join(FILE_NAME).exists()
    }

    /// Opens the store of `member` in `dir`, making both if absent.
    ///
    /// # Errors
    /// [`StoreOpenError`]; nothing was changed if the file is another process's, another member's
    /// or a newer release's.
    pub fn open(dir: &Path, member: u64) -> Result<Self, StoreOpenError> {
        let path = dir.join(FILE_NAME);
        let directory_error = |source| StoreOpenError::Directory {
            path: dir.to_path_buf(),
            source,
        };
        std::fs::create_dir_all(dir).map_err(directory_error)?;
        let database = Database::builder()
            .set_cache_size(STORE_CACHE_BYTES)
            .create(&path)
            .map_err(|error| match error {
                DatabaseError::DatabaseAlreadyOpen => StoreOpenError::InUse { path: path.clone() },
                other => StoreOpenError::Database {
                    path: path.clone(),
                    source: Box::new(other.into()),
                },
            })?;
        // The file's name must survive a power cut as surely as its contents.
        std::fs::File::open(dir)
            .and_then(|dir| dir.sync_all())
            .map_err(directory_error)?;
        let (released, _) = watch::channel(());
        let store = Self {
            file: Arc::new(OpenFile { database, released }),
        };
        let found = store.claim(member).map_err(|error| match error {
            StoreError::Format(source) => StoreOpenError::Format {
                path: path.clone(),
                source,
            },
            StoreError::Database(source) => StoreOpenError::Database {
                path: path.clone(),
                source: Box::new(source),
            },
            StoreError::Task(_) => unreachable!("claim runs on this thread"),
        })?;
        if found != member {
            return Err(StoreOpenError::OtherMember {
                path,
                found,
                asked: member,
            });
        }
        Ok(store)
    }

    /// Resolves when the last clone is gone and the file is closed.
    pub fn released(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut released = self.file.released.subscribe();
        async move {
            // Nothing is ever sent: this ends when the sender is dropped.
            while released.changed().await.is_ok() {}
        }
    }

    pub(crate) fn database(&self) -> &Database {
        &self.file.database
    }

    /// Checks the file's version, then answers whose it is, writing both if it is new.
    fn claim(&self, member: u64) -> Result<u64, StoreError> {
        let write = self.database().begin_write()?;
        let owner = {
            let mut facts = write.open_table(FACTS)?;
            let version = facts.get(FORMAT)?.map(|v| v.value().to_vec());
            if let Some(version) = version {
                check_version(&version)?;
            } else {
                facts.insert(FORMAT, CATALOGUE_VERSION.to_le_bytes().as_slice())?;
            }
            let owner = facts.get(MEMBER)?.map(|v| v.value().to_vec());
            match owner {
                Some(record) => format::decode("the member's number", &record)?,
                None => {
                    let record = format::encode("the member's number", &member)?;
                    facts.insert(MEMBER, record.as_slice())?;
                    member
                }
            }
        };
        write.open_table(LOG)?;
        write.open_table(SNAPSHOT)?;
        write.commit()?;
        Ok(owner)
    }

    /// Reads one record of `table`.
    pub(crate) fn read<T: DeserializeOwned>(
        &self,
        table: TableDefinition<&str, &[u8]>,
        name: &'static str,
    ) -> Result<Option<T>, StoreError> {
        let table = self.database().begin_read()?.open_table(table)?;
        let record = table.get(name)?;
        Ok(record
            .map(|r| format::decode(name, r.value()))
            .transpose()?)
    }

    /// Copies one record of `table` as it stands.
    pub(crate) fn read_record(
        &self,
        table: TableDefinition<&str, &[u8]>,
        name: &str,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let table = self.database().begin_read()?.open_table(table)?;
        Ok(table.get(name)?.map(|record| record.value().to_vec()))
    }

    /// Writes one fact and syncs it.
    pub(crate) fn write_fact<T: Serialize>(
        &self,
        name: &'static str,
        value: &T,
    ) -> Result<(), StoreError> {
        let record = format::encode(name, value)?;
        let write = self.database().begin_write()?;
        write.open_table(FACTS)?.insert(name, record.as_slice())?;
        write.commit()?;
        Ok(())
    }

    /// Runs `work` on a thread that may block: a commit waits for the disk.
    pub(crate) async fn blocking<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Self) -> Result<T, StoreError> + Send + 'static,
    {
        let store = self.clone();
        tokio::task::spawn_blocking(move || work(&store)).await?
    }
}

/// Refuses a file of a newer release before any of its records is looked at.
fn check_version(bytes: &[u8]) -> Result<(), FormatError> {
    let what = "the store";
    let version = bytes.try_into().map(u32::from_le_bytes).unwrap_or(0);
    match version {
        CATALOGUE_VERSION => Ok(()),
        found if found > CATALOGUE_VERSION => Err(FormatError::Newer { what, found }),
        found => Err(FormatError::Unknown {
            what,
            bytes: bytes.len(),
            found,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_has_one_user_and_one_member() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!CatalogueStore::exists(dir.path()));
        let store = CatalogueStore::open(dir.path(), 1).unwrap();
        assert!(CatalogueStore::exists(dir.path()));
        let second = CatalogueStore::open(dir.path(), 1).unwrap_err();
        assert!(matches!(second, StoreOpenError::InUse { .. }), "{second}");
        drop(store);
        let other = CatalogueStore::open(dir.path(), 2).unwrap_err();
        let text = other.to_string();
        assert!(
            text.contains("belongs to catalogue member 1, not to member 2"),
            "{text}"
        );
        CatalogueStore::open(dir.path(), 1).unwrap();
    }

    #[test]
    fn a_newer_store_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let store = CatalogueStore::open(dir.path(), 1).unwrap();
        let write = store.database().begin_write().unwrap();
        let newer = (CATALOGUE_VERSION + 1).to_le_bytes();
        write
            .open_table(FACTS)
            .unwrap()
            .insert(FORMAT, newer.as_slice())
            .unwrap();
        write.commit().unwrap();
        drop(store);
        let error = CatalogueStore::open(dir.path(), 1).unwrap_err();
        assert!(
            error.to_string().contains("of catalogue format 2"),
            "{error}"
        );
    }
}
