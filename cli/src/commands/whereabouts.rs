//! `mneme where`: where a row is and what every path to it costs.

use clap::Args;
use mneme_client::{PullOptions, WhereReport, blocking};
use serde::Serialize;

use super::{Session, parse_key};
use crate::output::{columns, fields};

/// Pulls of the key that are made to observe what its path costs; the first one connects.
const PROBES: usize = 8;

/// Say where a key's row is, and what every path to it costs.
#[derive(Debug, Args)]
pub struct WhereArgs {
    /// The table.
    name: String,
    /// The key (row id of a dense table).
    #[arg(value_parser = parse_key, allow_negative_numbers = true)]
    key: u64,
}

/// A [`WhereReport`] as it is printed.
#[derive(Debug, Serialize)]
pub struct Whereabouts {
    table: String,
    key: String,
    shard: u32,
    node: String,
    region: Option<u64>,
    generation: Option<u64>,
    offset: Option<u64>,
    tier: Option<mneme_proto::map::Tier>,
    paths: Vec<PathLine>,
}

#[derive(Debug, Serialize)]
struct PathLine {
    name: &'static str,
    predicted_us: f64,
    observed_us: Option<f64>,
    chosen: bool,
}

impl Whereabouts {
    /// Asks for a key, after a few pulls of it so that its path has been observed.
    ///
    /// # Errors
    /// One line.
    pub fn of(table: &blocking::Table, key: u64) -> anyhow::Result<Self> {
        let options = PullOptions::default();
        let mut row = vec![0; table.pulled_row_bytes(&options)];
        for _ in 0..PROBES {
            // A pull that fails leaves the path unobserved; where the row is can be told still.
            if table.pull(&[key], &mut row, &options).is_err() {
                break;
            }
        }
        Ok(table.where_key(key)?.into())
    }

    /// The report for people.
    #[must_use]
    pub fn text(&self) -> String {
        let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".into());
        let number = |value: Option<u64>| or_dash(value.map(|v| v.to_string()));
        let tier = self.tier.map(|tier| format!("{tier:?}").to_lowercase());
        let head = fields([
            ("table", self.table.clone()),
            ("key", self.key.clone()),
            ("shard", self.shard.to_string()),
            ("node", self.node.clone()),
            ("region", number(self.region)),
            ("generation", number(self.generation)),
            ("offset", number(self.offset)),
            ("tier", or_dash(tier)),
        ]);
        let us = |value: f64| format!("{value:.1}");
        let paths = self.paths.iter().map(|path| {
            let chosen = if path.chosen { "yes" } else { "no" };
            [
                path.name.into(),
                us(path.predicted_us),
                or_dash(path.observed_us.map(us)),
                chosen.into(),
            ]
        });
        let header = ["path", "predicted us", "observed us", "chosen"];
        format!("{head}\n\n{}", columns(&header, paths))
    }
}

impl From<WhereReport> for Whereabouts {
    fn from(report: WhereReport) -> Self {
        let path = |path: mneme_client::PathReport| PathLine {
            name: path.path.word(),
            predicted_us: path.predicted_us,
            observed_us: path.observed_us,
            chosen: path.chosen,
        };
        Self {
            table: report.table,
            key: report.key.to_string(),
            shard: report.shard,
            node: report.node,
            region: report.region,
            generation: report.generation,
            offset: report.offset,
            tier: report.tier,
            paths: report.paths.into_iter().map(path).collect(),
        }
    }
}

/// Runs the command.
///
/// # Errors
/// One line.
pub fn run(args: &WhereArgs, session: &Session) -> anyhow::Result<()> {
    let (client, table) = session.table(&args.name)?;
    let found = Whereabouts::of(&table, args.key)?;
    client.close();
    session.output.print(&found, || found.text())?;
    Ok(())
}
