//! The catalogue's state under Raft: applies committed commands, takes and installs snapshots.
//!
//! The state lives in memory; what is durable is the log and the newest snapshot, from which
//! openraft rebuilds it at start. Readers share it through [`StateView`], which lends it under a
//! lock held for a copy at most and tells when its revision moved.

mod view;

use openraft::storage::RaftStateMachine;
use openraft::{
    AnyError, BasicNode, Entry, EntryPayload, LogId, RaftSnapshotBuilder, Snapshot, SnapshotMeta,
    StorageError, StorageIOError, StoredMembership,
};

use crate::log_store::database::{CatalogueStore, SNAPSHOT, StoreError};
use crate::log_store::format;
use crate::raft::{MemberId, TypeConfig};
use crate::state::State;
use crate::state::command::Outcome;

pub use view::StateView;

const META: &str = "meta";
const STATE: &str = "state";

type Meta = SnapshotMeta<MemberId, BasicNode>;

/// What openraft drives: the state, how far it has come, and where snapshots go.
#[derive(Debug)]
pub struct StateMachine {
    store: CatalogueStore,
    view: StateView,
    applied: Option<LogId<MemberId>>,
    membership: StoredMembership<MemberId, BasicNode>,
}

impl StateMachine {
    /// The state of the newest snapshot in `store`, or an empty one.
    ///
    /// # Errors
    /// [`StoreError`]: the snapshot is unreadable or a newer release's.
    pub fn open(store: CatalogueStore) -> Result<Self, StoreError> {
        let meta: Option<Meta> = store.read(SNAPSHOT, META)?;
        let state: Option<State> = store.read(SNAPSHOT, STATE)?;
        let meta = meta.unwrap_or_default();
        Ok(Self {
            store,
            view: StateView::new(state.unwrap_or_default()),
            applied: meta.last_log_id,
            membership: meta.last_membership,
        })
    }

    /// A reader of the state.
    #[must_use]
    pub fn view(&self) -> StateView {
        self.view.clone()
    }

    fn apply_entry(&mut self, state: &mut State, entry: Entry<TypeConfig>) -> Outcome {
        self.applied = Some(entry.log_id);
        match entry.payload {
            EntryPayload::Blank => Outcome::Nothing,
            EntryPayload::Normal(command) => state.apply(command),
            EntryPayload::Membership(membership) => {
                self.membership = StoredMembership::new(Some(entry.log_id), membership);
                Outcome::Nothing
            }
        }
    }
}

/// Writes a snapshot: its description and its state in one commit.
fn write_snapshot(store: &CatalogueStore, meta: &Meta, state: &[u8]) -> Result<(), StoreError> {
    let meta = format::encode("a snapshot's description", meta)?;
    let write = store.database().begin_write()?;
    {
        let mut table = write.open_table(SNAPSHOT)?;
        table.insert(META, meta.as_slice())?;
        table.insert(STATE, state)?;
    }
    Ok(write.commit()?)
}

fn snapshot_failed(
    wrap: fn(
        Option<openraft::storage::SnapshotSignature<MemberId>>,
        AnyError,
    ) -> StorageIOError<MemberId>,
    meta: &Meta,
) -> impl FnOnce(StoreError) -> StorageError<MemberId> {
    let signature = meta.signature();
    move |error| StorageError::IO {
        source: wrap(Some(signature), AnyError::new(&error)),
    }
}

/// A copy of the state at one log index, to be written as a snapshot.
#[derive(Debug)]
pub struct SnapshotBuilder {
    store: CatalogueStore,
    meta: Meta,
    state: State,
}

impl RaftSnapshotBuilder<TypeConfig> for SnapshotBuilder {
    async fn build_snapshot(&mut self) -> Result<Snapshot<TypeConfig>, StorageError<MemberId>> {
        let (meta, state) = (self.meta.clone(), self.state.clone());
        let written = self
            .store
            .blocking(move |store| {
                let record = format::encode("a snapshot", &state)?;
                write_snapshot(store, &meta, &record)?;
                Ok(record)
            })
            .await;
        let record =
            written.map_err(snapshot_failed(StorageIOError::write_snapshot, &self.meta))?;
        Ok(Snapshot {
            meta: self.meta.clone(),
            snapshot: Box::new(record),
        })
    }
}

impl RaftStateMachine<TypeConfig> for StateMachine {
    type SnapshotBuilder = SnapshotBuilder;

    async fn applied_state(
        &mut self,
    ) -> Result<
        (
            Option<LogId<MemberId>>,
            StoredMembership<MemberId, BasicNode>,
        ),
        StorageError<MemberId>,
    > {
        Ok((self.applied, self.membership.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<Outcome>, StorageError<MemberId>>
    where
        I: IntoIterator<Item = Entry<TypeConfig>> + Send,
        I::IntoIter: Send,
    {
        let view = self.view.clone();
        Ok(view.change(|state| {
            entries
                .into_iter()
                .map(|entry| self.apply_entry(state, entry))
                .collect()
        }))
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder {
        // The state at one log index never differs between members, so the index names it.
        let snapshot_id = match &self.applied {
            Some(id) => format!("{}-{}", id.leader_id, id.index),
            None => "empty".into(),
        };
        SnapshotBuilder {
            store: self.store.clone(),
            meta: SnapshotMeta {
                last_log_id: self.applied,
                last_membership: self.membership.clone(),
                snapshot_id,
            },
            state: self.view.read(State::clone),
        }
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<Vec<u8>>, StorageError<MemberId>> {
        Ok(Box::default())
    }

    async fn install_snapshot(
        &mut self,
        meta: &Meta,
        snapshot: Box<Vec<u8>>,
    ) -> Result<(), StorageError<MemberId>> {
        let failed = || snapshot_failed(StorageIOError::write_snapshot, meta);
        let state: State = format::decode("a snapshot", &snapshot)
            .map_err(StoreError::from)
            .map_err(failed())?;
        let kept = meta.clone();
        self.store
            .blocking(move |store| write_snapshot(store, &kept, &snapshot))
            .await
            .map_err(failed())?;
        self.view.change(|current| *current = state);
        self.applied = meta.last_log_id;
        self.membership = meta.last_membership.clone();
        Ok(())
    }

    async fn get_current_snapshot(
        &mut self,
    ) -> Result<Option<Snapshot<TypeConfig>>, StorageError<MemberId>> {
        let read = |store: &CatalogueStore| -> Result<Option<(Meta, Vec<u8>)>, StoreError> {
            let Some(meta) = store.read(SNAPSHOT, META)? else {
                return Ok(None);
            };
            Ok(store
                .read_record(SNAPSHOT, STATE)?
                .map(|state| (meta, state)))
        };
        let found = self
            .store
            .blocking(read)
            .await
            .map_err(|error| StorageError::IO {
                source: StorageIOError::read_snapshot(None, AnyError::new(&error)),
            })?;
        Ok(found.map(|(meta, state)| Snapshot {
            meta,
            snapshot: Box::new(state),
        }))
    }
}
