//! The rows and keys that every peer of a run gets.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// A stream of uniform keys below `rows`, the same for every peer that starts from one seed.
#[derive(Debug)]
pub struct Keys {
    rng: SmallRng,
    rows: u64,
}

impl Keys {
    /// Keys in `0..rows`.
    #[must_use]
    pub fn new(rows: u64, seed: u64) -> Self {
        Self {
            rng: SmallRng::seed_from_u64(seed),
            rows,
        }
    }

    /// Fills `keys` with the next ones.
    pub fn fill(&mut self, keys: &mut [u64]) {
        for key in keys {
            *key = self.rng.random_range(0..self.rows);
        }
    }
}

/// Writes row `key` into `row`: its bytes tell which row it is, so that a peer that answers
/// another one is caught.
pub fn fill_row(key: u64, row: &mut [u8]) {
    for (lane, byte) in row.iter_mut().enumerate() {
        *byte = (key >> (8 * (lane % 5))) as u8 ^ lane as u8;
    }
}

/// Whether `row` is row `key`.
#[must_use]
pub fn is_row(key: u64, row: &[u8]) -> bool {
    row.iter()
        .enumerate()
        .all(|(lane, &b)| b == (key >> (8 * (lane % 5))) as u8 ^ lane as u8)
}
