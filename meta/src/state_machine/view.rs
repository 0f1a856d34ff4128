//! Shared sight of the state: one writer (Raft's apply), many readers.

use std::sync::{Arc, RwLock};

use mneme_proto::ids::Revision;
use tokio::sync::watch;

use crate::state::State;

/// The state as applied so far. Clones share it.
#[derive(Debug, Clone)]
pub struct StateView {
    state: Arc<RwLock<State>>,
    revision: watch::Sender<Revision>,
}

impl StateView {
    pub(super) fn new(state: State) -> Self {
        let (revision, _) = watch::channel(state.revision());
        Self {
            state: Arc::new(RwLock::new(state)),
            revision,
        }
    }

    /// Lends the state; copy out what is needed and return, for commands wait meanwhile.
    pub fn read<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(
            &self
                .state
                .read()
                .expect("no reader or writer panics while holding the lock"),
        )
    }

    /// Changes the state, then wakes whoever waits for a newer revision.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self
            .state
            .write()
            .expect("no reader or writer panics while holding the lock");
        let answer = change(&mut state);
        let now = state.revision();
        drop(state);
        self.revision.send_if_modified(|last| {
            let moved = *last != now;
            *last = now;
            moved
        });
        answer
    }

    /// The revision applied so far.
    #[must_use]
    pub fn revision(&self) -> Revision {
        *self.revision.borrow()
    }

    /// Wakes at every new revision.
    #[must_use]
    pub fn revisions(&self) -> watch::Receiver<Revision> {
        self.revision.subscribe()
    }
}
