//! The demo's first part: a real embedding table, imported, sealed, and equal to its file.

use std::time::Instant;

use anyhow::{Context, bail};
use mneme_client::PullOptions;
use mneme_client::blocking::Client;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::{DemoArgs, Line, Timed, say};
use crate::commands::{Session, import};
use crate::files;
use crate::output::count;

/// The table's name.
pub(super) const TABLE: &str = "words";

/// Rows that are compared with the file.
const COMPARED: usize = 1000;

/// Pulls of as many rows, for the figures.
const PULLS: usize = 300;

pub(super) fn show(
    args: &DemoArgs,
    session: &Session,
    client: &Client,
) -> anyhow::Result<Vec<Line>> {
    let begin = Instant::now();
    let from = import::ImportArgs::sealed(TABLE, &args.table, &args.tensor);
    let imported = import::import(&from, session, client)?;
    let seconds = begin.elapsed().as_secs_f64();
    say(session, format!("{} in {seconds:.2} s", imported.text()));

    let wanted = files::Wanted {
        tensor: Some(&args.tensor),
        ..files::Wanted::default()
    };
    let mut file = files::open(&args.table, &wanted)?;
    let rows = file.rows();
    let table = client.table(TABLE)?;
    let row_bytes = file.row_bytes();
    let mut rng = StdRng::seed_from_u64(1);
    let mut draw = || -> Vec<u64> { (0..COMPARED).map(|_| rng.random_range(0..rows)).collect() };
    let ids = draw();
    let mut pulled = vec![0; ids.len() * row_bytes];
    let options = PullOptions::default();
    table.pull(&ids, &mut pulled, &options)?;
    let mut row = vec![0; row_bytes];
    for (&id, got) in ids.iter().zip(pulled.chunks_exact(row_bytes)) {
        file.read(id, &mut row)?;
        if row != got {
            bail!(
                "row {id} of table '{TABLE}' differs from {}",
                args.table.display()
            );
        }
    }
    let compared = count(ids.len() as u64);
    say(
        session,
        format!("{compared} random rows pulled: equal to the file bit for bit"),
    );

    let mut timed = Timed::new();
    for _ in 0..PULLS {
        let ids = draw();
        timed
            .call(|| table.pull(&ids, &mut pulled, &options))
            .context("pulling embeddings")?;
    }
    let what = format!("pull {COMPARED} embeddings of {row_bytes} B");
    Ok(vec![timed.line(what, COMPARED, row_bytes)])
}
