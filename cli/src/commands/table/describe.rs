//! `mneme table describe`: everything effective about a table.

use std::collections::BTreeMap;

use mneme_client::blocking::{Client, Table};
use mneme_client::{ClientError, Grant, Level, TableReport};
use mneme_proto::map::Tier;
use mneme_proto::refusal::Refusal;
use mneme_proto::schema::{Initializer, Optimizer, OptionValue, Plane, Rounding};
use serde::Serialize;

use super::{kind_word, rows_of};
use crate::commands::Session;
use crate::output::{bytes, columns, count, fields};
use crate::values::number;

/// A table as `describe` prints it.
#[derive(Debug, Serialize)]
pub struct Description {
    name: String,
    tenant: String,
    id: u64,
    kind: &'static str,
    state: &'static str,
    rows: u64,
    bytes: u64,
    planes: Vec<Plane>,
    dim: u32,
    row_bytes: u32,
    state_bytes: u32,
    shards: u32,
    optimizer: OptimizerLine,
    #[serde(serialize_with = "as_text")]
    init: Initializer,
    seed: u64,
    default: f32,
    padding_key: Option<String>,
    rounding: Rounding,
    master: Option<&'static str>,
    generation: u64,
    previous_generation: u64,
    /// Of whom is told to admins alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    grants: Option<BTreeMap<String, Level>>,
    placement: Vec<ShardLine>,
}

#[derive(Debug, Serialize)]
struct OptimizerLine {
    name: &'static str,
    options: BTreeMap<&'static str, OptionValue>,
}

#[derive(Debug, Serialize)]
struct ShardLine {
    shard: u32,
    node: String,
    region: u64,
    generation: u64,
    tier: Tier,
    rows: u64,
    bytes: u64,
}

fn as_text<S: serde::Serializer>(init: &Initializer, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(init)
}

impl From<&Optimizer> for OptimizerLine {
    fn from(optimizer: &Optimizer) -> Self {
        Self {
            name: optimizer.word(),
            options: optimizer.options().into_iter().collect(),
        }
    }
}

impl Description {
    /// What the nodes and the catalogue say of a table now.
    ///
    /// # Errors
    /// As [`Table::describe`].
    pub fn of(client: &Client, table: &Table) -> Result<Self, ClientError> {
        let report = table.describe()?;
        let grants = match client.grants(&report.spec.name) {
            Ok(grants) => Some(grants),
            Err(ClientError::Refused(Refusal::NotPermitted { .. })) => None,
            Err(error) => return Err(error),
        };
        Ok(Self::new(&report, grants))
    }

    fn new(report: &TableReport, grants: Option<Vec<Grant>>) -> Self {
        let spec = &report.spec;
        let placement = report.shards.iter().map(|shard| ShardLine {
            shard: shard.shard.0,
            node: shard.node_name.clone(),
            region: shard.region.region.0,
            generation: shard.region.generation.0,
            tier: shard.region.tier,
            rows: shard.region.rows,
            bytes: shard.region.bytes,
        });
        Self {
            name: spec.name.clone(),
            tenant: spec.tenant.clone(),
            id: report.table.0,
            kind: kind_word(&spec.kind),
            state: report.state.word(),
            rows: rows_of(&spec.kind, report.rows),
            bytes: report.bytes,
            planes: spec.schema.planes.clone(),
            dim: spec.schema.dim(),
            row_bytes: spec.row_bytes(),
            state_bytes: spec.state_bytes(),
            shards: spec.shards,
            optimizer: (&spec.optimizer).into(),
            init: spec.init,
            seed: spec.seed,
            default: spec.default_value,
            padding_key: spec.padding_key.map(|key| key.to_string()),
            rounding: spec.rounding,
            master: spec.master.then_some("f32"),
            generation: report.generation.0,
            previous_generation: report.previous.0,
            grants: grants.map(|all| all.into_iter().map(|g| (g.principal, g.level)).collect()),
            placement: placement.collect(),
        }
    }

    /// The table for people; of its shards, what each node holds.
    #[must_use]
    pub fn text(&self) -> String {
        let planes: Vec<String> = self
            .planes
            .iter()
            .map(|p| format!("{}:{}:{}", p.name, p.dtype.word(), p.width))
            .collect();
        let options = self.optimizer.options.iter();
        let options: Vec<String> = options
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let optimizer = format!("{} {}", self.optimizer.name, options.join(" "));
        let padding = self.padding_key.clone().unwrap_or_else(|| "none".into());
        let mut lines = vec![
            ("name", self.name.clone()),
            ("tenant", self.tenant.clone()),
            ("kind", self.kind.into()),
            ("state", self.state.into()),
            ("rows", count(self.rows)),
            ("memory", bytes(self.bytes)),
            ("planes", planes.join(" ")),
            ("row", format!("{} B", self.row_bytes)),
            ("optimizer", optimizer.trim_end().into()),
            ("optimizer state", format!("{} B a row", self.state_bytes)),
            ("init", self.init.to_string()),
            ("seed", self.seed.to_string()),
            ("default", number(self.default)),
            ("padding key", padding),
            ("rounding", self.rounding.word().into()),
            ("master copy", self.master.unwrap_or("none").into()),
            ("shards", self.shards.to_string()),
            ("generation", self.generation.to_string()),
        ];
        if let Some(grants) = &self.grants {
            let grants: Vec<String> = grants
                .iter()
                .map(|(principal, level)| format!("{principal}:{level}"))
                .collect();
            lines.push(("grants", grants.join(" ")));
        }
        let head = fields(lines);
        if self.placement.is_empty() {
            return head;
        }
        let mut nodes: BTreeMap<&str, (u64, u64, u64)> = BTreeMap::new();
        for shard in &self.placement {
            let sums = nodes.entry(&shard.node).or_default();
            *sums = (sums.0 + 1, sums.1 + shard.rows, sums.2 + shard.bytes);
        }
        let rows = nodes.into_iter().map(|(node, (shards, rows, held))| {
            [node.into(), shards.to_string(), count(rows), bytes(held)]
        });
        format!(
            "{head}\n\n{}",
            columns(&["node", "shards", "rows", "memory"], rows)
        )
    }
}

/// Runs the command.
///
/// # Errors
/// One line.
pub fn run(name: &str, session: &Session) -> anyhow::Result<()> {
    let (client, table) = session.table(name)?;
    let description = Description::of(&client, &table)?;
    client.close();
    session.output.print(&description, || description.text())?;
    Ok(())
}
