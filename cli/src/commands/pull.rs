//! `mneme pull`.

use anyhow::bail;
use clap::Args;
use mneme_client::PullOptions;
use mneme_proto::frame::Status;
use mneme_proto::map::TableState;
use mneme_proto::schema::TableSpec;
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use super::{Keys, MissingPolicy, Session};
use crate::output::columns;
use crate::values::{RowValues, StateValues};

/// Read rows.
#[derive(Debug, Args)]
pub struct PullArgs {
    /// The table.
    name: String,
    /// Keys (row ids of a dense table), joined by commas; repeats are answered at every place.
    #[arg(long, value_name = "K,K...", allow_hyphen_values = true)]
    keys: Keys,
    /// What to do with keys that have no row.
    #[arg(long, value_enum, default_value = "default")]
    missing: MissingPolicy,
    /// Show the optimizer's state of every row.
    #[arg(long)]
    state: bool,
    /// Show values as their bits in hex.
    #[arg(long)]
    bits: bool,
}

#[derive(Serialize)]
struct Pulled<'a> {
    table: &'a str,
    rows: Vec<PulledRow<'a>>,
}

#[derive(Serialize)]
struct PulledRow<'a> {
    key: String,
    status: &'static str,
    values: RowValues<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<State<'a>>,
}

/// The parts of a row's state by name.
struct State<'a>(Vec<StateValues<'a>>);

impl Serialize for State<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(Some(self.0.len()))?;
        for values in &self.0 {
            map.serialize_entry(values.part.name, values)?;
        }
        map.end()
    }
}

/// Runs the command.
///
/// # Errors
/// One line.
pub fn run(args: &PullArgs, session: &Session) -> anyhow::Result<()> {
    let (client, table) = session.table(&args.name)?;
    let options = PullOptions {
        missing: args.missing.into(),
        with_state: args.state,
        ..PullOptions::default()
    };
    if args.state && table.state() == TableState::Sealed {
        bail!(
            "table '{}' is sealed: it keeps no optimizer state; pull without --state",
            args.name
        );
    }
    let keys = &args.keys.0;
    let stride = table.pulled_row_bytes(&options);
    let mut rows = vec![0; keys.len() * stride];
    let statuses = table.pull(keys, &mut rows, &options)?;
    let spec = table.spec();
    client.close();
    let answered = keys.iter().zip(statuses).zip(rows.chunks_exact(stride));
    let pulled = Pulled {
        table: &args.name,
        rows: answered
            .map(|((&key, status), bytes)| pulled_row(&spec, key, status, bytes, args))
            .collect(),
    };
    session.output.print(&pulled, || text(&pulled))?;
    Ok(())
}

fn pulled_row<'a>(
    spec: &'a TableSpec,
    key: u64,
    status: Status,
    bytes: &'a [u8],
    args: &PullArgs,
) -> PulledRow<'a> {
    let (row, state) = bytes.split_at(spec.row_bytes() as usize);
    // A sealed table has no state.
    let mut rest = state;
    let parts = spec.state_parts().into_iter().map_while(|part| {
        let (bytes, after) = rest.split_at_checked(part.elements as usize * 4)?;
        rest = after;
        Some(StateValues {
            part,
            bytes,
            bits: args.bits,
        })
    });
    PulledRow {
        key: key.to_string(),
        status: status.word(),
        values: RowValues {
            schema: &spec.schema,
            bytes: row,
            bits: args.bits,
        },
        state: args.state.then(|| State(parts.collect())),
    }
}

fn text(pulled: &Pulled<'_>) -> String {
    let mut header = vec!["key", "status", "values"];
    let states = pulled.rows.iter().find_map(|row| row.state.as_ref());
    header.extend(states.iter().flat_map(|s| s.0.iter().map(|v| v.part.name)));
    let rows = pulled.rows.iter().map(|row| {
        let mut cells = vec![row.key.clone(), row.status.into(), row.values.text()];
        let states = row.state.iter().flat_map(|s| &s.0);
        cells.extend(states.map(StateValues::text));
        cells
    });
    columns(&header, rows)
}

#[cfg(test)]
mod tests {
    use mneme_proto::schema::{Dtype, Optimizer, RowSchema, TableKind};

    use super::*;

    /// The document of `CLI.md`, for every key that there is.
    #[test]
    fn json_of_a_pull() {
        let spec = TableSpec {
            shards: 1,
            optimizer: Optimizer::from_options("adagrad", &[]).expect("legal"),
            tenant: "default".into(),
            ..TableSpec::new("t", TableKind::Hashed, RowSchema::single(Dtype::F32, 2))
        };
        let bytes: Vec<u8> = [0.1f32, f32::NAN, 1.0, 2.0]
            .iter()
            .flat_map(|v| v.to_le_bytes())
            .collect();
        let mut args = PullArgs {
            name: "t".into(),
            keys: Keys(vec![u64::MAX]),
            missing: MissingPolicy::Default,
            state: true,
            bits: false,
        };
        let json = |args: &PullArgs| {
            let row = pulled_row(&spec, u64::MAX, Status::Found, &bytes, args);
            let pulled = Pulled {
                table: "t",
                rows: vec![row],
            };
            (serde_json::to_string(&pulled).expect("JSON"), text(&pulled))
        };
        let (document, table) = json(&args);
        assert_eq!(
            document,
            concat!(
                r#"{"table":"t","rows":[{"key":"18446744073709551615","status":"found","#,
                r#""values":[0.1,"NaN"],"state":{"acc":[1.0,2.0]}}]}"#
            )
        );
        assert!(
            table.ends_with("18446744073709551615  found   0.1 NaN  1 2"),
            "{table}"
        );
        (args.state, args.bits) = (false, true);
        let (document, _) = json(&args);
        assert!(
            document.ends_with(r#""values":["0x3dcccccd","0x7fc00000"]}]}"#),
            "{document}"
        );
    }
}
