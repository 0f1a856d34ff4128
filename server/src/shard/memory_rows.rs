//! The shard engine over `memory`'s mutable store.

use mneme_memory::{MutableWriter, PoolError, Slot};
use mneme_proto::refusal::Refusal;

use super::Shard;
use super::rows::Rows;

impl Shard<MutableWriter> {
    /// Goes on with the growth of the index by `steps` bounded steps; false when there is none
    /// left. Nothing that a reader or a push sees changes, so it is no entry.
    ///
    /// # Errors
    /// [`PoolError::System`]; growth stands where it was.
    pub fn settle_index(&mut self, steps: u32) -> Result<bool, PoolError> {
        self.rows.settle(steps)
    }
}

impl Rows for MutableWriter {
    type Slot = Slot;

    fn locate_each(&self, places: &[u64], slots: &mut Vec<Option<Slot>>) {
        self.locate_batch(places, slots);
    }

    fn read(&self, slot: Slot, row: &mut [u8], state: &mut [u8]) {
        self.read_into(slot, row, state);
    }

    fn reserve(&mut self, rows: u64) -> Result<(), Refusal> {
        Self::reserve(self, rows).map_err(|error| refusal_of(&error))
    }

    fn write(&mut self, slot: Slot, row: &[u8], state: &[u8]) {
        Self::write(self, slot, row, state);
    }

    fn insert(&mut self, place: u64, row: &[u8], state: &[u8]) {
        Self::insert(self, place, row, state).expect("memory was reserved when it was ordered");
    }

    fn delete(&mut self, place: u64) {
        Self::delete(self, place);
    }
}

/// What a peer is told of memory that was not given.
#[must_use]
pub fn refusal_of(error: &PoolError) -> Refusal {
    match error {
        PoolError::Full { asked, used, limit } => Refusal::Limit {
            what: "bytes of the node's pool".into(),
            asked: *asked,
            used: *used,
            limit: *limit,
        },
        PoolError::TooLarge { what, asked, limit } => Refusal::Limit {
            what: (*what).into(),
            asked: *asked,
            used: 0,
            limit: *limit,
        },
        other => Refusal::Internal {
            why: other.to_string(),
        },
    }
}
