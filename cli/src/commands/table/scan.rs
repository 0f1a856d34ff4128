//! `mneme table scan`: a look at a table's rows.

use clap::Args;
use serde::Serialize;

use crate::commands::Session;
use crate::output::columns;
use crate::values::RowValues;

/// Show the first rows that a table holds, in order of shards.
#[derive(Debug, Args)]
pub struct ScanArgs {
    /// The table.
    name: String,
    /// How many rows to show.
    #[arg(long, value_name = "N", default_value_t = 10)]
    limit: u32,
}

#[derive(Serialize)]
struct Scanned<'a> {
    table: &'a str,
    rows: Vec<ScannedRow<'a>>,
}

#[derive(Serialize)]
struct ScannedRow<'a> {
    key: String,
    values: RowValues<'a>,
}

/// Runs the command.
///
/// # Errors
/// One line.
pub fn run(args: &ScanArgs, session: &Session) -> anyhow::Result<()> {
    let (client, table) = session.table(&args.name)?;
    let mut scan = table.scan(session.deadline)?;
    let mut left = args.limit;
    let mut pieces = Vec::new();
    while left > 0 {
        let Some(piece) = scan.next(left)? else { break };
        left = left.saturating_sub(piece.keys.len() as u32);
        pieces.push(piece);
    }
    client.close();
    let spec = table.spec();
    let rows = pieces.iter().flat_map(|piece| {
        let rows = piece.rows.chunks_exact(piece.stride_bytes);
        piece.keys.iter().zip(rows).map(|(key, bytes)| ScannedRow {
            key: key.to_string(),
            values: RowValues {
                schema: &spec.schema,
                bytes: &bytes[..spec.row_bytes() as usize],
                bits: false,
            },
        })
    });
    let scanned = Scanned {
        table: &args.name,
        rows: rows.take(args.limit as usize).collect(),
    };
    session.output.print(&scanned, || {
        let rows = scanned.rows.iter();
        columns(
            &["key", "values"],
            rows.map(|r| [r.key.clone(), r.values.text()]),
        )
    })?;
    Ok(())
}
