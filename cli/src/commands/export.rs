//! `mneme export`: a table's rows into a file.
//!
//! The rows of a dense table stand in order of their ids, those of a hashed one in order of
//! their keys: two exports of the same rows are the same bytes. Of a mutable table every row is
//! as it was when it was read.

use std::path::PathBuf;

use clap::Args;
use mneme_client::PullOptions;
use mneme_client::blocking::Table;
use mneme_proto::frame::Missing;
use mneme_proto::schema::TableKind;
use serde::Serialize;

use super::Session;
use super::import::progress;
use crate::files::{Column, Format, RowWriter};
use crate::limits::FILE_CHUNK_BYTES;
use crate::output::{bytes, of};

/// Write a table's rows to a file: .safetensors, .npy, .npz or .parquet.
///
/// The file holds a tensor (or column) for every plane, named as it is, and `keys` where the table
/// is hashed. Of a hashed table FILE.npy holds the rows, their planes one after the other, and
/// FILE.keys.npy the keys. npy and npz have no names for bf16 and fp8: `import --dtype` says them.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// The table.
    name: String,
    /// The file; what is there is replaced once the new one is complete.
    file: PathBuf,
}

#[derive(Serialize)]
struct Exported<'a> {
    table: &'a str,
    rows: u64,
    bytes: u64,
    files: Vec<PathBuf>,
}

/// Runs the command.
///
/// # Errors
/// One line; the file then is what it was before.
pub fn run(args: &ExportArgs, session: &Session) -> anyhow::Result<()> {
    let (client, table) = session.table(&args.name)?;
    let spec = table.spec();
    let column = |plane: &mneme_proto::schema::Plane| Column {
        name: plane.name.clone(),
        dtype: plane.dtype,
        width: plane.width,
    };
    let columns: Vec<Column> = spec.schema.planes.iter().map(column).collect();
    // An unknown format is told before the table is read through.
    Format::of(&args.file)?;
    let (rows, keys) = match spec.kind {
        TableKind::Dense { rows } => (rows, None),
        TableKind::Hashed => {
            let keys = sorted_keys(&table, session)?;
            (keys.len() as u64, Some(keys))
        }
    };
    let mut writer = RowWriter::create(&args.file, &columns, rows, keys.is_some())?;
    write_rows(&mut writer, &table, rows, keys.as_deref(), session)?;
    let files = writer.finish()?;
    client.close();
    let exported = Exported {
        table: &args.name,
        rows,
        bytes: rows * u64::from(spec.row_bytes()),
        files,
    };
    session.output.print(&exported, || {
        let files: Vec<String> = exported
            .files
            .iter()
            .map(|f| f.display().to_string())
            .collect();
        let (rows, size) = (of(rows, "row"), bytes(exported.bytes));
        format!(
            "table '{}': {rows}, {size} in {}",
            args.name,
            files.join(", ")
        )
    })?;
    Ok(())
}

/// All keys, 8 B each in memory, ascending.
fn sorted_keys(table: &Table, session: &Session) -> anyhow::Result<Vec<u64>> {
    let mut scan = table.scan(session.step_deadline())?;
    let mut keys = Vec::new();
    while let Some(rows) = scan.next(u32::MAX)? {
        keys.extend(rows.keys);
    }
    keys.sort_unstable();
    // A key of a mutable table that was removed and made again may have been seen twice.
    keys.dedup();
    Ok(keys)
}

fn write_rows(
    writer: &mut RowWriter,
    table: &Table,
    rows: u64,
    keys: Option<&[u64]>,
    session: &Session,
) -> anyhow::Result<()> {
    let options = PullOptions {
        // A key that went since the scan is an error, not a row of zeros.
        missing: Missing::Error,
        with_state: false,
        deadline: session.step_deadline(),
    };
    let stride = table.pulled_row_bytes(&options);
    let chunk_rows = (FILE_CHUNK_BYTES / stride).max(1) as u64;
    let progress = progress(session, rows);
    let mut piece = Vec::new();
    let mut first = 0;
    while first < rows {
        let count = chunk_rows.min(rows - first);
        piece.resize(count as usize * stride, 0);
        let ids: Vec<u64>;
        let wanted = match keys {
            Some(keys) => &keys[first as usize..(first + count) as usize],
            None => {
                ids = (first..first + count).collect();
                &ids
            }
        };
        table.pull(wanted, &mut piece, &options)?;
        writer.write(if keys.is_some() { wanted } else { &[] }, &piece)?;
        first += count;
        progress.set_position(first);
    }
    progress.finish_and_clear();
    Ok(())
}
