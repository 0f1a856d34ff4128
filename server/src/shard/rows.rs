//! What the shard engine needs of the memory under it. `memory`'s mutable store is the one that
//! serves; simulations and property tests put a plain map in its place.

use mneme_proto::refusal::Refusal;

/// Rows with their optimizer state, in slots that never move. One writer.
pub trait Rows {
    /// The slot of `key`, if it has a row. `local` is its local row in a dense shard, else 0.
    fn locate(&self, key: u64, local: u64) -> Option<u64>;

    /// Copies row and state of a slot that [`Rows::locate`] gave.
    fn read(&self, slot: u64, row: &mut [u8], state: &mut [u8]);

    /// Makes sure that `rows` inserts will find memory (I-12).
    ///
    /// # Errors
    /// [`Refusal::Limit`] with the pool's figures; nothing has changed.
    fn reserve(&mut self, rows: u64) -> Result<(), Refusal>;

    /// Rewrites the row and state of a slot, whole for every reader (I-5).
    fn write(&mut self, slot: u64, key: u64, row: &[u8], state: &[u8]);

    /// Inserts a key that has no row; memory was reserved.
    fn insert(&mut self, key: u64, row: &[u8], state: &[u8]);

    /// Removes a key's row and state.
    fn delete(&mut self, slot: u64, key: u64);

    /// Rows held.
    fn len(&self) -> u64;

    /// Whether no row is held.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
