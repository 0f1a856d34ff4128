//! `mneme push`.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use mneme_client::{ClientError, Fate, PartFate, PushFailure, PushOptions, Values};
use mneme_proto::frame::PushMode;
use mneme_proto::schema::{Dtype, RowSchema, TableSpec};
use serde::Serialize;

use super::{Keys, Session};
use crate::files::{self, Wanted};
use crate::output::of;
use crate::values::parse_rows;

/// Change rows.
#[derive(Debug, Args)]
pub struct PushArgs {
    /// The table.
    name: String,
    /// What to do with the values.
    #[arg(long, value_enum)]
    mode: Mode,
    /// Keys (row ids of a dense table), joined by commas; repeats are merged into one step.
    #[arg(
        long,
        value_name = "K,K...",
        allow_hyphen_values = true,
        required_unless_present = "file"
    )]
    keys: Option<Keys>,
    /// One list of values per key, as JSON; not for delete.
    #[arg(long, value_name = "[[..],[..]]")]
    values: Option<String>,
    /// Keys and values from a file instead, for example an npz of `keys` and `values`. It is sent
    /// as one push.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["keys", "values"])]
    file: Option<PathBuf>,
    /// The step's number, from 1: for gradients of a table whose optimizer has step=caller.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    step: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// One step of the table's optimizer per key.
    Gradient,
    /// Add to the row.
    Add,
    /// Replace the row.
    Assign,
    /// Remove the row and its state.
    Delete,
}

impl From<Mode> for PushMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Gradient => Self::Gradient,
            Mode::Add => Self::Add,
            Mode::Assign => Self::Assign,
            Mode::Delete => Self::Delete,
        }
    }
}

#[derive(Serialize)]
struct Pushed<'a> {
    table: &'a str,
    mode: &'static str,
    rows: u64,
    ignored: u64,
    parts: u32,
}

/// What became of a push that was not applied as a whole.
#[derive(Serialize)]
struct Failed<'a> {
    table: &'a str,
    mode: &'static str,
    parts: Vec<FailedPart>,
}

#[derive(Serialize)]
struct FailedPart {
    shard: u32,
    keys: u32,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    rows: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

/// Runs the command.
///
/// # Errors
/// One line; with `--json` the parts applied and refused stand on stdout.
pub fn run(args: &PushArgs, session: &Session) -> anyhow::Result<()> {
    let (client, table) = session.table(&args.name)?;
    let batch = Batch::of(args, &table.spec())?;
    let values = match (args.mode, batch.dtype) {
        (Mode::Delete, _) => Values::None,
        (_, Some(dtype)) => Values::Of(dtype, &batch.values),
        (_, None) => Values::Rows(&batch.values),
    };
    let mode = PushMode::from(args.mode);
    let options = PushOptions {
        step: args.step.unwrap_or(0),
        ..PushOptions::default()
    };
    let pushed = table.push(mode, &batch.keys, values, &options);
    client.close();
    let report = match pushed {
        Ok(report) => report,
        Err(error) => {
            if let ClientError::PartlyRefused(failure) | ClientError::InDoubt(failure) = &error
                && session.output.json
            {
                let failed = failed(failure, mode);
                session.output.print(&failed, String::new)?;
            }
            return Err(error.into());
        }
    };
    let pushed = Pushed {
        table: &args.name,
        mode: mode.word(),
        rows: report.rows,
        ignored: report.ignored,
        parts: report.parts,
    };
    session.output.print(&pushed, || {
        let ignored = match report.ignored {
            0 => String::new(),
            n => format!(", {n} ignored (the padding key)"),
        };
        format!(
            "{} changed in {}{ignored}",
            of(report.rows, "row"),
            of(report.parts.into(), "part")
        )
    })?;
    Ok(())
}

/// Keys and what is pushed to them.
struct Batch {
    keys: Vec<u64>,
    values: Vec<u8>,
    /// Of the values, where they are not what the table wants anyway.
    dtype: Option<Dtype>,
}

impl Batch {
    fn of(args: &PushArgs, spec: &TableSpec) -> anyhow::Result<Self> {
        if let Some(path) = &args.file {
            return Self::of_file(path, args.mode, spec);
        }
        let keys = args.keys.as_ref().map_or(&[][..], |keys| &keys.0);
        Ok(Self {
            keys: keys.to_vec(),
            values: payload(args, keys.len(), spec)?,
            dtype: None,
        })
    }

    fn of_file(path: &Path, mode: Mode, spec: &TableSpec) -> anyhow::Result<Self> {
        let planes = &spec.schema.planes;
        let wanted = Wanted {
            tensor: None,
            planes: (mode == Mode::Assign && planes.len() > 1).then_some(planes),
            dtype: match mode {
                Mode::Assign => planes.first().map(|plane| plane.dtype),
                _ => None,
            },
        };
        let mut file = files::open(path, &wanted)?;
        let Some(keys) = file.take_keys()? else {
            bail!("{}: it has no `keys`", path.display());
        };
        let rows = usize::try_from(file.rows()).context("more rows than this machine addresses")?;
        if keys.len() != rows {
            let (keys, rows) = (of(keys.len() as u64, "key"), of(rows as u64, "row"));
            bail!("{}: {keys} for {rows}", path.display());
        }
        let dtype = match file.columns() {
            [only] => Some(only.dtype),
            _ => None,
        };
        let mut values = Vec::new();
        if mode != Mode::Delete {
            values.resize(rows * file.row_bytes(), 0);
            file.read(0, &mut values)?;
        }
        Ok(Self {
            keys,
            values,
            dtype,
        })
    }
}

/// The rows to send: of the table's dtypes for assign, of f32 for gradients and sums.
fn payload(args: &PushArgs, keys: usize, spec: &TableSpec) -> anyhow::Result<Vec<u8>> {
    let Some(json) = &args.values else {
        if args.mode == Mode::Delete || keys == 0 {
            return Ok(Vec::new());
        }
        bail!("--values is missing: give one list of values per key, as '[[..],[..]]'");
    };
    if args.mode == Mode::Delete {
        bail!("--values has no place in a delete: leave it out");
    }
    let floats = RowSchema::single(Dtype::F32, spec.schema.dim());
    let schema = match args.mode {
        Mode::Assign => &spec.schema,
        _ => &floats,
    };
    let rows = parse_rows(json, schema)
        .map_err(anyhow::Error::msg)
        .context("--values")?;
    if rows.len() != keys {
        bail!("--values has {} rows for {keys} keys", rows.len());
    }
    Ok(rows.concat())
}

fn failed(failure: &PushFailure, mode: PushMode) -> Failed<'_> {
    let part = |part: &PartFate| {
        let (outcome, rows, why) = match &part.fate {
            Fate::Applied { rows } => ("applied", Some(*rows), None),
            Fate::Refused(why) => ("refused", None, Some(why.to_string())),
            Fate::NotSent(why) => ("not sent", None, Some(why.to_string())),
            Fate::InDoubt(why) => ("in doubt", None, Some(why.to_string())),
        };
        FailedPart {
            shard: part.shard,
            keys: part.keys,
            outcome,
            rows,
            why,
        }
    };
    Failed {
        table: &failure.table,
        mode: mode.word(),
        parts: failure.parts.iter().map(part).collect(),
    }
}

#[cfg(test)]
mod tests {
    use mneme_proto::refusal::Refusal;

    use super::*;

    #[test]
    fn parts_of_a_failed_push() {
        let failure = PushFailure {
            table: "t".into(),
            parts: vec![
                PartFate {
                    shard: 0,
                    keys: 2,
                    fate: Fate::Applied { rows: 2 },
                },
                PartFate {
                    shard: 3,
                    keys: 1,
                    fate: Fate::Refused(Refusal::NonFinite {
                        what: "the row".into(),
                        key: 7,
                    }),
                },
            ],
        };
        let json = serde_json::to_value(failed(&failure, PushMode::Gradient)).expect("JSON");
        let want = serde_json::json!({
            "table": "t",
            "mode": "gradient",
            "parts": [
                {"shard": 0, "keys": 2, "outcome": "applied", "rows": 2},
                {"shard": 3, "keys": 1, "outcome": "refused",
                 "why": "the row of key 7 is not finite: nothing of this part was applied"},
            ],
        });
        assert_eq!(json, want);
    }
}
