//! `mneme table`: make, look at, empty, seal, publish and remove tables.

pub mod create;
mod describe;
pub mod plan;
mod scan;

use clap::{Args, Subcommand};
use mneme_client::blocking::Client;
use mneme_proto::control::TableSummary;
use mneme_proto::schema::TableKind;
use serde::Serialize;

use super::{Session, parse_assignment};
use crate::output::{bytes, columns, count};

/// Make, look at, empty, seal, publish and remove tables.
#[derive(Debug, Args)]
pub struct TableArgs {
    #[command(subcommand)]
    command: TableCommand,
}

#[derive(Debug, Subcommand)]
enum TableCommand {
    Create(create::CreateArgs),
    /// List the tables that you may read.
    List,
    /// Show everything effective about a table, its rows and bytes.
    Describe(Named),
    /// Remove a table and its rows.
    Drop(Named),
    /// Empty a mutable or lost table.
    Reset(Named),
    /// Make a mutable table's rows, as they are now, final: pushes are refused from then on.
    Seal(Named),
    Set(SetArgs),
    /// Publish the version that `import --no-publish` left to wait, in one step for all readers.
    Publish(Named),
    /// Go back to the version before the published one; again goes forth.
    Rollback(Named),
    Scan(scan::ScanArgs),
}

/// A table by name.
#[derive(Debug, Args)]
struct Named {
    /// The table.
    name: String,
}

/// Change a table's optimizer while pushes run.
#[derive(Debug, Args)]
struct SetArgs {
    /// The table.
    name: String,
    /// The new learning rate, lr=V. Everything else is fixed when a table is made.
    #[arg(long, value_name = "K=V", num_args = 1.., value_parser = parse_assignment,
          required = true)]
    opt: Vec<(String, String)>,
}

/// A line of a list of tables.
#[derive(Debug, Serialize)]
pub struct TableLine {
    name: String,
    kind: &'static str,
    state: &'static str,
    rows: u64,
    bytes: u64,
    row_bytes: u32,
    shards: u32,
    generation: u64,
}

impl From<&TableSummary> for TableLine {
    fn from(table: &TableSummary) -> Self {
        let spec = &table.spec;
        Self {
            name: spec.name.clone(),
            kind: kind_word(&spec.kind),
            state: table.state.word(),
            rows: rows_of(&spec.kind, table.rows),
            bytes: table.bytes,
            row_bytes: spec.row_bytes(),
            shards: spec.shards,
            generation: table.generation.0,
        }
    }
}

/// Lines of tables, by name. Rows and memory are what the nodes count now; where a node does not
/// answer, what it last reported stands.
pub fn lines(client: &Client, summaries: &[TableSummary]) -> Vec<TableLine> {
    let counted = |summary: &TableSummary| {
        let mut line = TableLine::from(summary);
        let report = client
            .table(&summary.spec.name)
            .and_then(|table| table.describe());
        if let Ok(report) = report {
            line.rows = rows_of(&summary.spec.kind, report.rows);
            line.bytes = report.bytes;
        }
        line
    };
    let mut lines: Vec<TableLine> = summaries.iter().map(counted).collect();
    lines.sort_by(|a, b| a.name.cmp(&b.name));
    lines
}

/// Tables for people.
#[must_use]
pub fn list_text(tables: &[TableLine]) -> String {
    if tables.is_empty() {
        return "no tables".into();
    }
    let header = ["name", "kind", "state", "rows", "memory", "row", "shards"];
    let rows = tables.iter().map(|table| {
        [
            table.name.clone(),
            table.kind.into(),
            table.state.into(),
            count(table.rows),
            bytes(table.bytes),
            format!("{} B", table.row_bytes),
            table.shards.to_string(),
        ]
    });
    columns(&header, rows)
}

/// `hashed` or `dense`.
#[must_use]
pub const fn kind_word(kind: &TableKind) -> &'static str {
    match kind {
        TableKind::Hashed => "hashed",
        TableKind::Dense { .. } => "dense",
    }
}

/// How many rows a table has: all of a dense table's are there from creation.
const fn rows_of(kind: &TableKind, reported: u64) -> u64 {
    match kind {
        TableKind::Dense { rows } => *rows,
        TableKind::Hashed => reported,
    }
}

#[derive(Serialize)]
struct Listed {
    tables: Vec<TableLine>,
}

/// What a command did to a table.
#[derive(Serialize)]
struct Did<'a> {
    table: &'a str,
    did: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    generation: Option<u64>,
}

/// Runs the command.
///
/// # Errors
/// One line.
pub fn run(args: &TableArgs, session: &Session) -> anyhow::Result<()> {
    match &args.command {
        TableCommand::Create(args) => create::run(args, session),
        TableCommand::List => list(session),
        TableCommand::Describe(args) => describe::run(&args.name, session),
        TableCommand::Drop(args) => {
            let client = session.client()?;
            client.drop_table(&args.name)?;
            client.close();
            did(session, &args.name, "dropped", None)
        }
        TableCommand::Reset(args) => {
            let client = session.client()?;
            client.reset_table(&args.name)?;
            client.close();
            did(session, &args.name, "reset", None)
        }
        TableCommand::Seal(args) => {
            let (client, table) = session.table(&args.name)?;
            let generation = table.seal(session.step_deadline())?;
            client.close();
            did(session, &args.name, "sealed", Some(generation.0))
        }
        TableCommand::Set(args) => {
            let client = session.client()?;
            client.set_table(&args.name, &args.opt)?;
            client.close();
            did(session, &args.name, "changed", None)
        }
        TableCommand::Publish(args) => {
            let (client, table) = session.table(&args.name)?;
            let generation = table.publish(session.step_deadline())?;
            client.close();
            did(session, &args.name, "published", Some(generation.0))
        }
        TableCommand::Rollback(args) => {
            let (client, table) = session.table(&args.name)?;
            let generation = table.rollback(session.step_deadline())?;
            client.close();
            did(session, &args.name, "rolled back", Some(generation.0))
        }
        TableCommand::Scan(args) => scan::run(args, session),
    }
}

fn list(session: &Session) -> anyhow::Result<()> {
    let client = session.client()?;
    let tables = lines(&client, &client.list_tables()?);
    client.close();
    let listed = Listed { tables };
    session
        .output
        .print(&listed, || list_text(&listed.tables))?;
    Ok(())
}

fn did(
    session: &Session,
    table: &str,
    did: &'static str,
    generation: Option<u64>,
) -> anyhow::Result<()> {
    let done = Did {
        table,
        did,
        generation,
    };
    session.output.print(&done, || match generation {
        Some(generation) => format!("table '{table}' {did}, generation {generation}"),
        None => format!("table '{table}' {did}"),
    })?;
    Ok(())
}
