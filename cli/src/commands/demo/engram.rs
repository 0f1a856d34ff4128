//! The demo's second part: n-gram rows of a language model, 48 of them for every token.

use std::time::Instant;

use anyhow::bail;
use mneme_client::blocking::{Client, Table};
use mneme_client::{LoadAt, LoadRows, PullOptions};
use mneme_proto::mix64::mix64;
use mneme_proto::schema::{Dtype, Plane, RowSchema, TableKind, TableSpec};

use super::{Line, Timed, say};
use crate::commands::Session;
use crate::output::{bytes, count};

const TABLE: &str = "ngrams";

/// Rows of the table: 50 MiB.
const ROWS: u64 = 200_000;

/// 256 codes and 8 scales, stored together.
const ROW_BYTES: usize = 264;

/// Rows of a load's piece.
const PIECE_ROWS: u64 = 20_000;

/// Rows that one token needs.
const TOKEN_ROWS: usize = 48;

/// Tokens that are served one by one.
const TOKENS: u64 = 5000;

/// Tokens of one batch of a prefill, and how many batches.
const BATCH_TOKENS: usize = 64;
const BATCHES: u64 = 200;

pub(super) fn show(session: &Session, client: &Client) -> anyhow::Result<Vec<Line>> {
    let begin = Instant::now();
    let table = client.create_table(spec(&client.config().tenant))?;
    let mut loader = table.load(LoadRows::Dense, session.step_deadline())?;
    for first in (0..ROWS).step_by(PIECE_ROWS as usize) {
        let ids = first..(first + PIECE_ROWS).min(ROWS);
        let rows: Vec<u8> = ids.flat_map(row).collect();
        loader.put(LoadAt::Row(first), &rows)?;
    }
    loader.publish()?;
    let (rows, size) = (count(ROWS), bytes(ROWS * ROW_BYTES as u64));
    let seconds = begin.elapsed().as_secs_f64();
    say(
        session,
        format!("table '{TABLE}': {rows} rows of 264 B, {size}, sealed in {seconds:.2} s"),
    );

    let tokens = serve(&table, TOKEN_ROWS, TOKENS)?;
    let batch_rows = TOKEN_ROWS * BATCH_TOKENS;
    let batches = serve(&table, batch_rows, BATCHES)?;
    Ok(vec![
        tokens.line(
            format!("pull {TOKEN_ROWS} rows of 264 B, a token"),
            TOKEN_ROWS,
            ROW_BYTES,
        ),
        batches.line(
            format!("the same for {BATCH_TOKENS} tokens"),
            batch_rows,
            ROW_BYTES,
        ),
    ])
}

fn spec(tenant: &str) -> TableSpec {
    let plane = |name: &str, width| Plane {
        name: name.into(),
        dtype: Dtype::U8,
        width,
    };
    TableSpec {
        tenant: tenant.into(),
        ..TableSpec::new(
            TABLE,
            TableKind::Dense { rows: ROWS },
            RowSchema {
                planes: vec![plane("codes", 256), plane("scales", 8)],
            },
        )
    }
}

/// The bytes of a row: a function of its id, so that any row can be checked.
fn row(id: u64) -> [u8; ROW_BYTES] {
    let mut row = [0; ROW_BYTES];
    for (at, word) in row.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&mix64(id * 64 + at as u64).to_le_bytes());
    }
    row
}

/// Pulls `rows` rows `calls` times; every one is checked outside the measured time.
fn serve(table: &Table, rows: usize, calls: u64) -> anyhow::Result<Timed> {
    let mut pulled = vec![0; rows * ROW_BYTES];
    let options = PullOptions::default();
    let mut timed = Timed::new();
    for call in 0..calls {
        let id = |at: usize| mix64(call * 1_000_003 + at as u64) % ROWS;
        let ids: Vec<u64> = (0..rows).map(id).collect();
        timed.call(|| table.pull(&ids, &mut pulled, &options))?;
        for (&id, got) in ids.iter().zip(pulled.chunks_exact(ROW_BYTES)) {
            if got != row(id) {
                bail!("row {id} of table '{TABLE}' is not the row that was loaded");
            }
        }
    }
    Ok(timed)
}
