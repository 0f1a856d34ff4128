//! The floor of every in-memory read: a loop that copies rows out of one flat allocation.

use crate::report::{Figure, measure};
use crate::workload::{Keys, fill_row};

/// Makes `rows` rows of `row_bytes` in one anonymous allocation.
#[must_use]
pub fn make_rows(rows: u64, row_bytes: usize) -> Vec<u8> {
    let mut memory = vec![0; rows as usize * row_bytes];
    for (key, row) in memory.chunks_exact_mut(row_bytes).enumerate() {
        fill_row(key as u64, row);
    }
    memory
}

/// Copies `batch` random rows a call, one `memcpy` each.
///
/// # Panics
/// Never: the keys are below the number of rows.
#[must_use]
pub fn run(memory: &[u8], row_bytes: usize, batch: usize, seconds: f64) -> Figure {
    let mut keys = Keys::new((memory.len() / row_bytes) as u64, 7);
    let mut batch_keys = vec![0; batch];
    let mut out = vec![0; batch * row_bytes];
    let outcome: Result<Figure, std::convert::Infallible> = measure(batch, seconds, || {
        keys.fill(&mut batch_keys);
        for (key, row) in batch_keys.iter().zip(out.chunks_exact_mut(row_bytes)) {
            let from = *key as usize * row_bytes;
            row.copy_from_slice(&memory[from..from + row_bytes]);
        }
        std::hint::black_box(&mut out);
        Ok(())
    });
    match outcome {
        Ok(figure) => figure,
        Err(never) => match never {},
    }
}
