//! What the tests of this crate share: specs, a plain model of rows.

use std::collections::BTreeMap;

use mneme_proto::refusal::Refusal;
use mneme_proto::schema::{Dtype, Initializer, Optimizer, RowSchema, TableKind, TableSpec};

use crate::shard::rows::Rows;

/// A hashed f32 table of dim 1 and one shard, without an optimizer.
pub fn spec(name: &str) -> TableSpec {
    TableSpec {
        name: name.into(),
        tenant: "default".into(),
        kind: TableKind::Hashed,
        schema: RowSchema::single(Dtype::F32, 1),
        shards: 1,
        optimizer: Optimizer::None,
        init: Initializer::Zeros,
        seed: 1,
        default_value: 0.0,
        padding_key: None,
    }
}

/// Rows in a map: the plain store that the memory crate's is compared with.
#[derive(Debug, Default)]
pub struct PlainRows {
    slots: BTreeMap<u64, (Vec<u8>, Vec<u8>)>,
    /// Inserts that still find memory.
    pub room: Option<u64>,
}

impl PlainRows {
    /// Row and state of a key.
    pub fn get(&self, key: u64) -> Option<(Vec<f32>, Vec<f32>)> {
        self.slots
            .get(&key)
            .map(|(row, state)| (floats(row), floats(state)))
    }

    /// Everything.
    pub fn all(&self) -> &BTreeMap<u64, (Vec<u8>, Vec<u8>)> {
        &self.slots
    }
}

impl Rows for PlainRows {
    type Slot = u64;

    fn locate_each(&self, places: &[u64], slots: &mut Vec<Option<u64>>) {
        let slot = |place: &u64| self.slots.contains_key(place).then_some(*place);
        slots.clear();
        slots.extend(places.iter().map(slot));
    }

    fn read(&self, slot: u64, row: &mut [u8], state: &mut [u8]) {
        let (held_row, held_state) = &self.slots[&slot];
        row.copy_from_slice(held_row);
        state.copy_from_slice(held_state);
    }

    fn reserve(&mut self, rows: u64) -> Result<(), Refusal> {
        match self.room {
            Some(limit) if limit < rows => Err(Refusal::Limit {
                what: "rows".into(),
                asked: rows,
                used: 0,
                limit,
            }),
            _ => Ok(()),
        }
    }

    fn write(&mut self, slot: u64, row: &[u8], state: &[u8]) {
        self.slots.insert(slot, (row.to_vec(), state.to_vec()));
    }

    fn insert(&mut self, place: u64, row: &[u8], state: &[u8]) {
        let before = self.slots.insert(place, (row.to_vec(), state.to_vec()));
        assert!(before.is_none(), "{place} had a row");
    }

    fn delete(&mut self, place: u64) {
        assert!(self.slots.remove(&place).is_some(), "{place} had no row");
    }
}

/// Bytes of f32 values.
pub fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// f32 values of bytes.
pub fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect()
}
