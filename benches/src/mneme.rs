//! mneme as a user runs it: `mneme dev` as a process of its own, one blocking client here.

use anyhow::{Context, Result, ensure};
use mneme_client::blocking::{Client, Table};
use mneme_client::{LoadAt, LoadRows, PullOptions, PushOptions};
use mneme_proto::frame::{PushMode, Status};
use mneme_proto::schema::{Dtype, Optimizer, RowSchema, TableKind, TableSpec};
use mneme_tests::dev::Dev;

use crate::report::{Figure, measure};
use crate::workload::{Keys, fill_row, is_row};

/// Rows in one `put` while a table is loaded.
const LOAD_ROWS: u64 = 8192;

/// A cluster of one node, so that server and client have a core each, as redis and its client.
#[must_use]
pub fn start(pool: &str) -> Dev {
    Dev::start_with(&["--nodes", "1", "--memory", pool])
}

fn spec(name: &str, kind: TableKind, schema: RowSchema, optimizer: Optimizer) -> TableSpec {
    TableSpec {
        optimizer,
        tenant: "default".into(),
        ..TableSpec::new(name, kind, schema)
    }
}

/// Makes a dense table of bytes, loads it as one sealed generation and publishes it.
///
/// # Errors
/// What the cluster refuses.
pub fn sealed_table(client: &Client, rows: u64, row_bytes: usize) -> Result<Table> {
    let schema = RowSchema::single(Dtype::U8, row_bytes as u32);
    let kind = TableKind::Dense { rows };
    let table = client.create_table(spec("sealed", kind, schema, Optimizer::None))?;
    let mut loader = table.load(LoadRows::Dense, None)?;
    let mut portion = Vec::new();
    for first in (0..rows).step_by(LOAD_ROWS as usize) {
        let count = LOAD_ROWS.min(rows - first);
        portion.resize(count as usize * row_bytes, 0);
        for (key, row) in (first..).zip(portion.chunks_exact_mut(row_bytes)) {
            fill_row(key, row);
        }
        loader.put(LoadAt::Row(first), &portion)?;
    }
    loader.finish()?;
    loader.publish()?;
    Ok(client.table("sealed")?)
}

/// Times pulls of `batch` random rows.
///
/// # Errors
/// A failed pull, or a row that is not the one asked for.
pub fn run_pull(table: &Table, rows: u64, batch: usize, seconds: f64) -> Result<Figure> {
    let row_bytes = table.spec().row_bytes() as usize;
    let mut keys = Keys::new(rows, 7);
    let mut batch_keys = vec![0; batch];
    let mut out = vec![0; batch * row_bytes];
    let mut statuses = vec![Status::Missing; batch];
    let options = PullOptions::default();
    let figure = measure(batch, seconds, || {
        keys.fill(&mut batch_keys);
        table.pull_into(&batch_keys, &mut out, &mut statuses, &options)
    })?;
    let whole = batch_keys
        .iter()
        .zip(out.chunks_exact(row_bytes))
        .all(|(k, r)| is_row(*k, r));
    ensure!(whole, "mneme answered another row");
    Ok(figure)
}

/// Makes a hashed f32 table with adagrad and times gradient pushes of `batch` random keys.
///
/// # Errors
/// A failed push.
pub fn run_push(client: &Client, rows: u64, dim: u32, batch: usize, secs: f64) -> Result<Figure> {
    let name = format!("push-{batch}");
    let schema = RowSchema::single(Dtype::F32, dim);
    let optimizer = Optimizer::from_options("adagrad", &[])?;
    let table = client.create_table(spec(&name, TableKind::Hashed, schema, optimizer))?;
    let mut keys = Keys::new(rows, 7);
    let mut batch_keys = vec![0; batch];
    let gradients = vec![0.01f32; batch * dim as usize];
    let figure = measure(batch, secs, || {
        keys.fill(&mut batch_keys);
        let options = PushOptions::default();
        table
            .push(PushMode::Gradient, &batch_keys, &gradients, &options)
            .map(drop)
    });
    client.drop_table(&name)?;
    figure.context("a push failed")
}
