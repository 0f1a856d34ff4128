//! Room for rows: taking memory before it is promised (I-12), and growing rows, state and index
//! together.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{MutableKind, MutableWriter};
use crate::limits::SLOTS_MAX;
use crate::pool::PoolError;
use crate::region::Region;

impl MutableWriter {
    /// Makes sure that `new_rows` more rows can be inserted: memory of a push is taken before the
    /// push is acknowledged (I-12).
    ///
    /// # Errors
    /// [`PoolError`]; nothing has changed then.
    pub fn reserve(&mut self, new_rows: u64) -> Result<(), PoolError> {
        if matches!(self.shared.kind, MutableKind::Dense { .. }) || new_rows == 0 {
            return Ok(());
        }
        let fresh = new_rows.saturating_sub(self.free);
        let slots = self.high.checked_add(fresh).ok_or(PoolError::TooLarge {
            what: "slots of one slab",
            asked: u64::MAX,
            limit: SLOTS_MAX,
        })?;
        self.take(slots, new_rows)
    }

    /// Takes memory for `slots` slots and `more` keys, all of it or none.
    fn take(&mut self, slots: u64, more: u64) -> Result<(), PoolError> {
        let (pool, shared) = (&self.pool, &self.shared);
        let for_rows = if slots > self.slots {
            shared.rows.asks(slots, pool)?
        } else {
            0
        };
        let for_state = match &self.state {
            Some(state) if slots > self.slots => state.slab.asks(slots, pool)?,
            _ => 0,
        };
        let for_index = if more > 0 {
            self.index.asks(more, pool)?
        } else {
            0
        };
        if slots <= self.slots && for_index == 0 {
            return Ok(());
        }
        let mut taken = pool.take(for_rows + for_state + for_index)?;
        let region = match shared.rows.region() {
            Some(region) => Arc::clone(region),
            None => Region::create(pool, &shared.region_name("rows"))?,
        };
        if slots > self.slots {
            if let Some(state) = &self.state {
                let region = match state.slab.region() {
                    Some(region) => Arc::clone(region),
                    None => Region::create_private(pool, &shared.region_name("state of")),
                };
                state.slab.grow(&region, slots, taken.split(for_state))?;
            }
            shared.rows.grow(&region, slots, taken.split(for_rows))?;
            let in_state = self
                .state
                .as_ref()
                .map_or(u64::MAX, |state| state.slab.slots());
            self.slots = shared.rows.slots().min(in_state);
        }
        if for_index > 0 {
            self.index.grow(&region, taken, &**shared)?;
        }
        self.publish_header();
        Ok(())
    }

    pub(super) fn publish_header(&self) {
        let (index_offset, index_bytes) = self.index.extent();
        let (slots, rows) = (self.slots, self.len());
        self.shared.update_header(|header| {
            header.slots = slots;
            header.rows = rows;
            header.index_offset = index_offset;
            header.index_bytes = index_bytes;
        });
        if let Some(state) = &self.state {
            state.update_header(|header| {
                header.slots = slots;
                header.rows = rows;
            });
        }
    }

    /// Goes on with the growth of the index, if any, by `steps` bounded steps; false when there is
    /// none left. For idle moments: inserts drive it too, but after the last one two indexes would
    /// stand.
    ///
    /// # Errors
    /// [`PoolError::System`]; growth stands where it was.
    pub fn settle(&mut self, steps: u32) -> Result<bool, PoolError> {
        for _ in 0..steps {
            if !self.index.is_growing() {
                break;
            }
            self.index.step(&*self.shared)?;
        }
        let more = self.index.is_growing();
        if !more && self.index.extent().0 != self.header().index_offset {
            self.publish_header();
        }
        Ok(more)
    }

    /// Takes the memory of a dense shard and writes every row.
    pub(super) fn fill_dense(
        &mut self,
        rows: u64,
        mut fill: impl FnMut(u64, &mut [u8], &mut [u8]),
    ) -> Result<(), PoolError> {
        self.take(rows, 0)?;
        let mut row = vec![0; self.shared.row_bytes];
        let mut state = vec![0; self.state_bytes()];
        for local in 0..rows {
            row.fill(0);
            state.fill(0);
            fill(local, &mut row, &mut state);
            self.store(local, local, &row, &state);
        }
        self.high = rows;
        self.shared.len.store(rows, Ordering::Release);
        self.publish_header();
        Ok(())
    }
}
