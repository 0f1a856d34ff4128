//! Serves Engram rows: a dense table of 264 B rows, 48 rows a token.
//!
//! ```text
//! MNEME_CONFIG=data/client.toml cargo run --release -p mneme-client --example engram_rows
//! ```

use std::time::{Duration, Instant};

use mneme_client::blocking::{Client, Table};
use mneme_client::{ClientConfig, ClientError, LoadAt, LoadRows, PullOptions, Status};
use mneme_proto::map::TableState;
use mneme_proto::refusal::Refusal;
use mneme_proto::schema::{Dtype, RowSchema, TableKind, TableSpec};

const ROWS: u64 = 100_000;
const ROW_BYTES: usize = 264;
const ROWS_PER_TOKEN: usize = 48;
const TOKENS: usize = 2000;

fn main() {
    if let Err(error) = run() {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn run() -> Result<(), ClientError> {
    let client = Client::connect(ClientConfig::from_env()?)?;
    let table = open(&client)?;
    let mut out = vec![0; ROWS_PER_TOKEN * ROW_BYTES];
    let mut statuses = vec![Status::Missing; ROWS_PER_TOKEN];
    let options = PullOptions::default();
    let mut took_us = Vec::with_capacity(TOKENS);
    for token in 0..TOKENS as u64 {
        // Where a model hashes its last tokens, this spreads numbers over the table.
        let ids: Vec<u64> = (0..ROWS_PER_TOKEN as u64)
            .map(|head| mneme_proto::mix64::mix64(token << 8 | head) % ROWS)
            .collect();
        let begun = Instant::now();
        table.pull_into(&ids, &mut out, &mut statuses, &options)?;
        took_us.push(begun.elapsed().as_secs_f64() * 1e6);
        assert_eq!(
            out[..8],
            ids[0].to_le_bytes(),
            "the row of the id that was asked for"
        );
    }
    took_us.sort_by(f64::total_cmp);
    let at = |share: f64| took_us[(TOKENS as f64 * share) as usize];
    println!(
        "{ROWS_PER_TOKEN} rows a token: p50 {:.0} us, p99 {:.0} us",
        at(0.5),
        at(0.99)
    );
    client.close();
    Ok(())
}

/// The table of an earlier run, or a new one that is loaded and published.
fn open(client: &Client) -> Result<Table, ClientError> {
    let spec = TableSpec::new(
        "example-engram",
        TableKind::Dense { rows: ROWS },
        RowSchema::single(Dtype::U8, ROW_BYTES as u32),
    );
    let table = match client.create_table(spec) {
        Err(ClientError::Refused(Refusal::TableExists { table })) => client.table(&table)?,
        other => other?,
    };
    if table.state() == TableState::Sealed {
        return Ok(table);
    }
    let mut loader = table.load(LoadRows::Dense, Some(Duration::from_secs(30)))?;
    for first in (0..ROWS).step_by(10_000) {
        let rows: Vec<u8> = (first..ROWS.min(first + 10_000)).flat_map(row).collect();
        loader.put(LoadAt::Row(first), &rows)?;
    }
    loader.publish()?;
    Ok(table)
}

/// A row that begins with its id.
fn row(id: u64) -> [u8; ROW_BYTES] {
    let mut row = [id as u8; ROW_BYTES];
    row[..8].copy_from_slice(&id.to_le_bytes());
    row
}
