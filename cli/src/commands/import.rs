//! `mneme import`: a file of rows into a table.
//!
//! Everything that can be wrong with the file is found before the first row is sent; what then
//! fails leaves a sealed load unpublished and a table that was made for it dropped.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use anyhow::{Context, bail};
use bytes::Bytes;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use mneme_client::blocking::{Client, Loader, Table};
use mneme_client::{LoadAt, LoadRows, PushOptions, Values};
use mneme_proto::control::TableSummary;
use mneme_proto::frame::PushMode;
use mneme_proto::map::TableState;
use mneme_proto::schema::{Dtype, Plane, RowSchema, TableKind, TableSpec};
use serde::Serialize;

use super::Session;
use super::table::plan::{free_bytes, table_bytes};
use crate::files::{self, FileError, OnDuplicate, RowFile, Wanted, keep_mask};
use crate::limits::{FILE_CHUNK_BYTES, PIECES_AHEAD};
use crate::output::{bytes, of};

/// Bring the rows of a file into a table.
///
/// FILE is .safetensors, .npy, .npz, .parquet, a .safetensors.index.json, or a manifest .json of
/// raw rows; or a folder that holds model.safetensors, its index, a manifest.json, or HugeCTR's
/// `key` and `emb_vector`. It is checked as a whole before the first row is stored; one that is
/// refused changes nothing. Rows are moved bit for bit, never converted. A table of several planes
/// takes one tensor (or column) for each, by its name.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// The table.
    name: String,
    /// The file or folder: a 2-D array, a row of it a row of the table.
    file: PathBuf,
    /// The tensor or column that holds the rows, where there are several.
    #[arg(long, value_name = "T")]
    tensor: Option<String>,
    /// The rows' keys: a 1-D u64 or i64 .npy file. A hashed export brings its own. Negative i64
    /// are taken as their two's complement: -1 is key 18446744073709551615.
    #[arg(long, value_name = "FILE")]
    keys: Option<PathBuf>,
    /// What bytes without a type are: npy has none for bf16 (<V2) and fp8 (<V1, or |u1).
    #[arg(long, value_name = "D")]
    dtype: Option<Dtype>,
    /// Make the table: dense, or hashed where there are keys.
    #[arg(long)]
    create: bool,
    /// Load a sealed generation and publish it whole; else the rows are assigned.
    #[arg(long)]
    seal: bool,
    /// Leave the sealed generation to wait for `table publish`.
    #[arg(long, requires = "seal")]
    no_publish: bool,
    /// What to do when a key stands twice.
    #[arg(long, value_enum, value_name = "HOW", default_value = "refuse")]
    on_duplicate: OnDuplicate,
}

/// What was imported.
#[derive(Debug, Serialize)]
pub struct Imported {
    table: String,
    rows: u64,
    bytes: u64,
    state: &'static str,
    generation: u64,
}

/// The rows of a file with their keys, ready to be sent.
struct Source {
    file: RowFile,
    keys: Option<Vec<u64>>,
    /// Which positions count, where keys stand twice.
    keep: Option<Vec<bool>>,
}

impl Source {
    fn open(args: &ImportArgs, planes: Option<&[Plane]>, dense: bool) -> anyhow::Result<Self> {
        let wanted = Wanted {
            tensor: args.tensor.as_deref(),
            planes,
            dtype: args.dtype,
        };
        let mut file = files::open(&args.file, &wanted)?;
        let keys = match &args.keys {
            Some(path) => Some(files::read_keys(path)?),
            // The keys of a hashed export mean nothing to a dense table: refused further on.
            None => file.take_keys()?,
        };
        let Some(keys) = keys else {
            return Ok(Self {
                file,
                keys: None,
                keep: None,
            });
        };
        let named = args.keys.as_ref().unwrap_or(&args.file).display();
        if keys.len() as u64 != file.rows() {
            let (keys, rows) = (of(keys.len() as u64, "key"), of(file.rows(), "row"));
            bail!("{named}: {keys} for the {rows} of {}", args.file.display());
        }
        if dense {
            bail!(
                "{named}: there are keys, and table '{}' is dense",
                args.name
            );
        }
        let keep = keep_mask(&keys, args.on_duplicate).with_context(|| named.to_string())?;
        Ok(Self {
            file,
            keys: Some(keys),
            keep,
        })
    }

    /// Rows that will be sent.
    fn rows(&self) -> u64 {
        match &self.keep {
            Some(keep) => keep.iter().filter(|kept| **kept).count() as u64,
            None => self.file.rows(),
        }
    }

    /// Calls `send` with pieces of the rows: the index of the first one, their keys, their bytes.
    /// The next piece is read from the file meanwhile.
    fn stream(
        &mut self,
        progress: &ProgressBar,
        mut send: impl FnMut(u64, &[u64], Bytes) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let Self { file, keys, keep } = self;
        let stride = file.row_bytes();
        thread::scope(|scope| {
            let (pieces, read) = sync_channel(PIECES_AHEAD);
            scope.spawn(move || read_ahead(file, &pieces));
            for piece in read {
                let (first, rows) = piece?;
                let end = first + (rows.len() / stride) as u64;
                let at = first as usize..end as usize;
                match (&*keys, &*keep) {
                    (None, _) => send(first, &[], rows.into())?,
                    (Some(keys), None) => send(first, &keys[at], rows.into())?,
                    (Some(keys), Some(keep)) => {
                        let (keys, rows) = kept(&keys[at.clone()], &rows, &keep[at]);
                        send(first, &keys, rows.into())?;
                    }
                }
                progress.set_position(end);
            }
            Ok(())
        })
    }

    fn schema(&self) -> RowSchema {
        let plane = |column: &files::Column| Plane {
            name: match self.file.columns().len() {
                // A tensor's own name says where it comes from, not what a row is.
                1 => "values".into(),
                _ => column.name.clone(),
            },
            dtype: column.dtype,
            width: column.width,
        };
        RowSchema {
            planes: self.file.columns().iter().map(plane).collect(),
        }
    }

    /// Checks that the rows are the table's, element for element.
    fn fits(&self, args: &ImportArgs, spec: &TableSpec) -> anyhow::Result<()> {
        let elements = |of: &RowSchema| {
            let of = of.planes.iter();
            // Neighbours of one dtype count as one: an npy file knows no planes.
            let mut merged: Vec<(&'static str, u64)> = Vec::new();
            for plane in of {
                match merged.last_mut() {
                    Some((word, width)) if *word == plane.dtype.word() => {
                        *width += u64::from(plane.width);
                    }
                    _ => merged.push((plane.dtype.word(), u64::from(plane.width))),
                }
            }
            let words = merged
                .into_iter()
                .map(|(word, width)| format!("{width} x {word}"));
            words.collect::<Vec<_>>().join(" + ")
        };
        let (found, wanted) = (elements(&self.schema()), elements(&spec.schema));
        if found != wanted {
            let file = args.file.display();
            bail!(
                "{file} has rows of {found}, table '{}' of {wanted}",
                spec.name
            );
        }
        match spec.kind {
            TableKind::Dense { rows } if rows != self.file.rows() => {
                let (file, found) = (args.file.display(), of(self.file.rows(), "row"));
                bail!("{file} has {found}, table '{}' has {rows}", spec.name)
            }
            TableKind::Hashed if self.keys.is_none() => bail!(
                "table '{}' is hashed and {} has no keys: give --keys FILE.npy",
                spec.name,
                args.file.display()
            ),
            _ => Ok(()),
        }
    }
}

/// Reads a file in pieces until all are taken, or nobody takes them any more.
fn read_ahead(file: &mut RowFile, pieces: &SyncSender<Result<(u64, Vec<u8>), FileError>>) {
    let stride = file.row_bytes();
    let piece_rows = (FILE_CHUNK_BYTES / stride).max(1) as u64;
    let mut first = 0;
    while first < file.rows() {
        let count = piece_rows.min(file.rows() - first);
        let mut rows = vec![0; count as usize * stride];
        let read = file.read(first, &mut rows).map(|()| (first, rows));
        let failed = read.is_err();
        if pieces.send(read).is_err() || failed {
            return;
        }
        first += count;
    }
}

fn kept(keys: &[u64], rows: &[u8], keep: &[bool]) -> (Vec<u64>, Vec<u8>) {
    let stride = rows.len() / keys.len();
    let mut kept = (Vec::new(), Vec::new());
    for ((key, row), _) in keys
        .iter()
        .zip(rows.chunks_exact(stride))
        .zip(keep)
        .filter(|(_, keep)| **keep)
    {
        kept.0.push(*key);
        kept.1.extend_from_slice(row);
    }
    kept
}

impl ImportArgs {
    /// A new sealed table of one tensor.
    #[must_use]
    pub fn sealed(name: &str, file: &Path, tensor: &str) -> Self {
        Self {
            name: name.into(),
            file: file.to_owned(),
            tensor: Some(tensor.into()),
            keys: None,
            dtype: None,
            create: true,
            seal: true,
            no_publish: false,
            on_duplicate: OnDuplicate::Refuse,
        }
    }
}

impl Imported {
    /// What was imported, for people.
    #[must_use]
    pub fn text(&self) -> String {
        let (rows, size) = (of(self.rows, "row"), bytes(self.bytes));
        let how = match self.generation {
            0 => self.state.to_owned(),
            generation => format!("{} as generation {generation}", self.state),
        };
        format!("table '{}': {rows}, {size}, {how}", self.table)
    }
}

/// Runs the command.
///
/// # Errors
/// One line; nothing is stored when the file, its keys or the room are at fault.
pub fn run(args: &ImportArgs, session: &Session) -> anyhow::Result<()> {
    let client = session.client()?;
    let imported = import(args, session, &client)?;
    client.close();
    session.output.print(&imported, || imported.text())?;
    Ok(())
}

/// Imports through this client.
///
/// # Errors
/// One line; nothing is stored when the file, its keys or the room are at fault.
pub fn import(args: &ImportArgs, session: &Session, client: &Client) -> anyhow::Result<Imported> {
    let existing = existing(args, client)?;
    let spec = existing.as_ref().map(|table| &table.spec);
    let planes = spec
        .filter(|s| s.schema.planes.len() > 1)
        .map(|s| &s.schema.planes[..]);
    let dense = spec.is_some_and(|s| matches!(s.kind, TableKind::Dense { .. }));
    let mut source = Source::open(args, planes, dense)?;
    let table = match &existing {
        Some(found) => {
            source.fits(args, &found.spec)?;
            has_room(client, &source, found.spec.clone(), args)?;
            if matches!(found.state, TableState::Lost | TableState::Loading) && !args.seal {
                // What is lost is gone; assigning rows needs a table that takes pushes.
                client.reset_table(&args.name)?
            } else {
                client.table(&args.name)?
            }
        }
        None => {
            let spec = new_spec(args, client, &source);
            spec.validate()
                .with_context(|| args.file.display().to_string())?;
            has_room(client, &source, spec.clone(), args)?;
            if args.seal {
                client.create_table_to_load(spec)?
            } else {
                client.create_table(spec)?
            }
        }
    };
    let done = store(args, session, &mut source, &table);
    if done.is_err() && args.create {
        // Best effort: the error that is reported is the one that counts.
        let _ = client.drop_table(&args.name);
    }
    Ok(Imported {
        table: args.name.clone(),
        rows: source.rows(),
        bytes: source.rows() * source.file.row_bytes() as u64,
        state: match (args.seal, args.no_publish) {
            (true, true) => "waiting",
            (true, false) => "sealed",
            (false, _) => "mutable",
        },
        generation: done?,
    })
}

/// The table that is there already; an error where there should be one, or none.
fn existing(args: &ImportArgs, client: &Client) -> anyhow::Result<Option<TableSummary>> {
    let tenant = &client.config().tenant;
    let mut tables = client.list_tables()?.into_iter();
    let found = tables.find(|t| t.spec.name == args.name && t.spec.tenant == *tenant);
    let name = &args.name;
    match &found {
        Some(_) if args.create => {
            bail!("table '{name}' exists already: leave --create out, or drop it")
        }
        Some(table) if table.state == TableState::Sealed && !args.seal => {
            bail!("table '{name}' is sealed: --seal publishes a new version of it")
        }
        None if !args.create => {
            bail!("no table '{name}': give --create, or see `mneme table list`")
        }
        _ => Ok(found),
    }
}

fn new_spec(args: &ImportArgs, client: &Client, source: &Source) -> TableSpec {
    TableSpec {
        tenant: client.config().tenant.clone(),
        ..TableSpec::new(
            args.name.clone(),
            match source.keys {
                Some(_) => TableKind::Hashed,
                None => TableKind::Dense {
                    rows: source.file.rows(),
                },
            },
            source.schema(),
        )
    }
}

/// Refuses more bytes than there is room for. The nodes check again; this check comes before
/// anything is made.
fn has_room(
    client: &Client,
    source: &Source,
    mut spec: TableSpec,
    args: &ImportArgs,
) -> anyhow::Result<()> {
    // One shard is the least that any number of shards takes.
    spec.shards = 1;
    let wanted = table_bytes(&spec, source.rows(), args.seal);
    let free = free_bytes(&client.status()?);
    if wanted > free {
        bail!(
            "{}: the memory that {} would take is {wanted} B, the cluster has {free} B free: add a \
             node or larger pools",
            args.file.display(),
            of(source.rows(), "row")
        );
    }
    Ok(())
}

/// Sends all rows; the generation they are in, 0 while mutable.
fn store(
    args: &ImportArgs,
    session: &Session,
    source: &mut Source,
    table: &Table,
) -> anyhow::Result<u64> {
    let progress = progress(session, source.file.rows());
    let generation = if args.seal {
        load(args, session, source, table, &progress)?
    } else {
        let options = PushOptions {
            deadline: session.step_deadline(),
            ..PushOptions::default()
        };
        let (keyed, stride) = (source.keys.is_some(), source.file.row_bytes());
        source.stream(&progress, |first, keys, rows| {
            let ids: Vec<u64>;
            let keys = if keyed {
                keys
            } else {
                let count = (rows.len() / stride) as u64;
                ids = (first..first + count).collect();
                &ids
            };
            table.push(PushMode::Assign, keys, Values::Rows(&rows), &options)?;
            Ok(())
        })?;
        0
    };
    progress.finish_and_clear();
    Ok(generation)
}

fn load(
    args: &ImportArgs,
    session: &Session,
    source: &mut Source,
    table: &Table,
    progress: &ProgressBar,
) -> anyhow::Result<u64> {
    let counts;
    let rows = match (&source.keys, &source.keep) {
        (None, _) => LoadRows::Dense,
        (Some(keys), None) => LoadRows::Keys(keys),
        (Some(keys), Some(keep)) => {
            let kept = keys.iter().zip(keep).filter(|(_, keep)| **keep);
            counts = table.rows_per_shard(kept.map(|(key, _)| key))?;
            LoadRows::PerShard(&counts)
        }
    };
    let mut loader = table.load(rows, session.step_deadline())?;
    match put_all(source, &mut loader, progress) {
        Ok(()) if args.no_publish => Ok(loader.stage()?.0),
        Ok(()) => Ok(loader.publish()?.0),
        Err(error) => {
            loader.abandon();
            Err(error)
        }
    }
}

fn put_all(source: &mut Source, loader: &mut Loader, progress: &ProgressBar) -> anyhow::Result<()> {
    let keyed = source.keys.is_some();
    source.stream(progress, |first, keys, rows| {
        let at = match keyed {
            true => LoadAt::Keys(keys),
            false => LoadAt::Row(first),
        };
        Ok(loader.put_bytes(at, rows)?)
    })?;
    loader.finish()?;
    Ok(())
}

/// A bar on a terminal's stderr, nothing elsewhere.
pub fn progress(session: &Session, rows: u64) -> ProgressBar {
    if session.output.json || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:40} {human_pos}/{human_len} rows {per_sec}");
    let bar = ProgressBar::new(rows);
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
