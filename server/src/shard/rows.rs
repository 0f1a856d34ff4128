//! What the shard engine needs of the memory under it. `memory`'s mutable store is the one that
//! serves; simulations and property tests put a plain map in its place.

use mneme_proto::refusal::Refusal;

/// Rows with their optimizer state, in slots that never move. One writer.
///
/// A *place* is what a row is looked up by: the key in a hashed shard, the local row in a dense
/// one, which has every row.
pub trait Rows {
    /// Where a row stands, as long as it is not deleted.
    type Slot: Copy + std::fmt::Debug;

    /// The slot of each place, in order; `slots` is cleared first.
    fn locate_each(&self, places: &[u64], slots: &mut Vec<Option<Self::Slot>>);

    /// Copies row and state of a slot that [`Rows::locate_each`] gave.
    fn read(&self, slot: Self::Slot, row: &mut [u8], state: &mut [u8]);

    /// Makes sure that `rows` inserts will find memory (I-12).
    ///
    /// # Errors
    /// [`Refusal::Limit`] with the pool's figures; nothing has changed.
    fn reserve(&mut self, rows: u64) -> Result<(), Refusal>;

    /// Rewrites the row and state of a slot, whole for every reader (I-5).
    fn write(&mut self, slot: Self::Slot, row: &[u8], state: &[u8]);

    /// Gives a place that has no row its row and state; memory was reserved.
    fn insert(&mut self, place: u64, row: &[u8], state: &[u8]);

    /// Removes a place's row and state.
    fn delete(&mut self, place: u64);
}
