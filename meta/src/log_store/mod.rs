//! Raft's log and vote on redb: what openraft's `RaftLogStorage` asks for.
//!
//! Upholds its rules: no holes; writes in one order, because openraft calls these methods through
//! `&mut self` and each waits for its commit; entries are readable and on disk before `append`
//! calls back; the last purged id and the committed id are kept, so that a single member comes
//! back with everything it acknowledged.

pub mod database;
pub mod format;

use std::fmt::Debug;
use std::io;
use std::ops::RangeBounds;

use openraft::storage::{LogFlushed, LogState, RaftLogStorage};
use openraft::{AnyError, Entry, LogId, RaftLogReader, StorageError, StorageIOError, Vote};
use redb::{ReadableDatabase, ReadableTable};

use crate::log_store::database::{CatalogueStore, FACTS, LOG, StoreError};
use crate::raft::{MemberId, TypeConfig};

const VOTE: &str = "vote";
const COMMITTED: &str = "committed";
const PURGED: &str = "purged";

/// The log of one member.
#[derive(Debug, Clone)]
pub struct LogStore {
    store: CatalogueStore,
}

impl LogStore {
    /// The log kept in `store`.
    #[must_use]
    pub fn new(store: CatalogueStore) -> Self {
        Self { store }
    }

    fn state(store: &CatalogueStore) -> Result<LogState<TypeConfig>, StoreError> {
        let last_purged_log_id = store.read(FACTS, PURGED)?;
        let log = store.database().begin_read()?.open_table(LOG)?;
        let last = match log.last()? {
            Some((_, record)) => Some(decode_entry(record.value())?.log_id),
            None => last_purged_log_id,
        };
        Ok(LogState {
            last_purged_log_id,
            last_log_id: last,
        })
    }

    fn read_range<R: RangeBounds<u64>>(
        store: &CatalogueStore,
        range: R,
    ) -> Result<Vec<Entry<TypeConfig>>, StoreError> {
        let log = store.database().begin_read()?.open_table(LOG)?;
        log.range(range)?
            .map(|item| decode_entry(item?.1.value()))
            .collect()
    }

    fn write_entries(
        store: &CatalogueStore,
        entries: &[Entry<TypeConfig>],
    ) -> Result<(), StoreError> {
        let write = store.database().begin_write()?;
        {
            let mut log = write.open_table(LOG)?;
            for entry in entries {
                let record = format::encode("a log entry", entry)?;
                log.insert(entry.log_id.index, record.as_slice())?;
            }
        }
        Ok(write.commit()?)
    }

    fn remove_from(store: &CatalogueStore, index: u64) -> Result<(), StoreError> {
        let write = store.database().begin_write()?;
        write.open_table(LOG)?.retain_in(index.., |_, _| false)?;
        Ok(write.commit()?)
    }

    /// The purged id and the removal are one commit: never a log that starts nowhere.
    fn remove_through(store: &CatalogueStore, id: LogId<MemberId>) -> Result<(), StoreError> {
        let record = format::encode(PURGED, &id)?;
        let write = store.database().begin_write()?;
        write.open_table(FACTS)?.insert(PURGED, record.as_slice())?;
        write
            .open_table(LOG)?
            .retain_in(..=id.index, |_, _| false)?;
        Ok(write.commit()?)
    }
}

fn decode_entry(record: &[u8]) -> Result<Entry<TypeConfig>, StoreError> {
    Ok(format::decode("a log entry", record)?)
}

/// Wraps a failure the way openraft reports it; the member stops on it.
fn failed(
    wrap: fn(AnyError) -> StorageIOError<MemberId>,
) -> impl FnOnce(StoreError) -> StorageError<MemberId> {
    move |error| StorageError::IO {
        source: wrap(AnyError::new(&error)),
    }
}

impl RaftLogReader<TypeConfig> for LogStore {
    // Reads run in place: recent entries are in the store's page cache.
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + Send>(
        &mut self,
        range: R,
    ) -> Result<Vec<Entry<TypeConfig>>, StorageError<MemberId>> {
        Self::read_range(&self.store, range).map_err(failed(StorageIOError::read_logs))
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<TypeConfig>, StorageError<MemberId>> {
        Self::state(&self.store).map_err(failed(StorageIOError::read_logs))
    }

    async fn get_log_reader(&mut self) -> Self::LogReader {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<MemberId>) -> Result<(), StorageError<MemberId>> {
        let vote = *vote;
        self.store
            .blocking(move |store| store.write_fact(VOTE, &vote))
            .await
            .map_err(failed(StorageIOError::write_vote))
    }

    async fn read_vote(&mut self) -> Result<Option<Vote<MemberId>>, StorageError<MemberId>> {
        self.store
            .read(FACTS, VOTE)
            .map_err(failed(StorageIOError::read_vote))
    }

    async fn save_committed(
        &mut self,
        committed: Option<LogId<MemberId>>,
    ) -> Result<(), StorageError<MemberId>> {
        self.store
            .blocking(move |store| store.write_fact(COMMITTED, &committed))
            .await
            .map_err(failed(StorageIOError::write))
    }

    async fn read_committed(&mut self) -> Result<Option<LogId<MemberId>>, StorageError<MemberId>> {
        let committed = self.store.read::<Option<LogId<MemberId>>>(FACTS, COMMITTED);
        Ok(committed.map_err(failed(StorageIOError::read))?.flatten())
    }

    async fn append<I>(
        &mut self,
        entries: I,
        callback: LogFlushed<TypeConfig>,
    ) -> Result<(), StorageError<MemberId>>
    where
        I: IntoIterator<Item = Entry<TypeConfig>> + Send,
        I::IntoIter: Send,
    {
        let entries: Vec<_> = entries.into_iter().collect();
        let written = self
            .store
            .blocking(move |store| Self::write_entries(store, &entries))
            .await;
        match written {
            Ok(()) => {
                callback.log_io_completed(Ok(()));
                Ok(())
            }
            Err(error) => {
                callback.log_io_completed(Err(io::Error::other(error.to_string())));
                Err(failed(StorageIOError::write_logs)(error))
            }
        }
    }

    async fn truncate(&mut self, log_id: LogId<MemberId>) -> Result<(), StorageError<MemberId>> {
        self.store
            .blocking(move |store| Self::remove_from(store, log_id.index))
            .await
            .map_err(failed(StorageIOError::write_logs))
    }

    async fn purge(&mut self, log_id: LogId<MemberId>) -> Result<(), StorageError<MemberId>> {
        self.store
            .blocking(move |store| Self::remove_through(store, log_id))
            .await
            .map_err(failed(StorageIOError::write_logs))
    }
}
