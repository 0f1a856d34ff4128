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
    fn locate(&self, key: u64, _local: u64) -> Option<u64> {
        self.slots.contains_key(&key).then_some(key & 0xFFFF_FFFF)
    }

    fn read(&self, slot: u64, row: &mut [u8], state: &mut [u8]) {
        let held = self
            .slots
            .iter()
            .find(|(key, _)| **key & 0xFFFF_FFFF == slot);
        let (_, (held_row, held_state)) = held.expect("a slot that locate gave");
        row.copy_from_slice(held_row);
        state.copy_from_slice(held_state);
    }

    fn reserve(&mut self, rows: u64) -> Result<(), Refusal> {
        match self.room {
            Some(room) if room < rows => Err(Refusal::Limit {
                what: "rows".into(),
                asked: rows,
                used: 0,
                limit: room,
            }),
            _ => Ok(()),
        }
    }

    fn write(&mut self, _slot: u64, key: u64, row: &[u8], state: &[u8]) {
        self.slots.insert(key, (row.to_vec(), state.to_vec()));
    }

    fn insert(&mut self, key: u64, row: &[u8], state: &[u8]) {
        let before = self.slots.insert(key, (row.to_vec(), state.to_vec()));
        assert!(before.is_none(), "key {key} had a row");
    }

    fn delete(&mut self, _slot: u64, key: u64) {
        assert!(self.slots.remove(&key).is_some(), "key {key} had no row");
    }

    fn len(&self) -> u64 {
        self.slots.len() as u64
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
