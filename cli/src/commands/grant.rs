//! `mneme grant`: what another client may do with a table.

use clap::{Args, ValueEnum};
use mneme_client::Level;
use serde::Serialize;

use super::Session;

/// Let a client read, write or administer a table, or take its grant away.
///
/// Allowed to admins of the table, which its creator is, and to principals whose certificate has
/// the role admin. It holds from the next request on. `table describe` lists a table's grants.
#[derive(Debug, Args)]
pub struct GrantArgs {
    /// The table.
    table: String,
    /// The client, by the name in its certificate.
    principal: String,
    /// What it may do.
    #[arg(value_enum)]
    level: LevelWord,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LevelWord {
    /// Pull, scan, export, look at.
    Read,
    /// Also push, make rows, import, publish, roll back.
    Write,
    /// Also seal, set, reset, drop, grant.
    Admin,
    /// Nothing, not even know that the table is there.
    None,
}

impl LevelWord {
    const fn level(self) -> Option<Level> {
        match self {
            Self::Read => Some(Level::Read),
            Self::Write => Some(Level::Write),
            Self::Admin => Some(Level::Admin),
            Self::None => None,
        }
    }
}

#[derive(Serialize)]
struct Granted<'a> {
    table: &'a str,
    principal: &'a str,
    level: &'static str,
}

/// Runs the command.
///
/// # Errors
/// One line.
pub fn run(args: &GrantArgs, session: &Session) -> anyhow::Result<()> {
    let level = args.level.level();
    let client = session.client()?;
    client.grant(&args.table, &args.principal, level)?;
    client.close();
    let granted = Granted {
        table: &args.table,
        principal: &args.principal,
        level: level.map_or("none", Level::word),
    };
    session.output.print(&granted, || match level {
        Some(level) => format!(
            "client '{}' may {} table '{}'",
            args.principal,
            level.verb(),
            args.table
        ),
        None => format!(
            "client '{}' has no grant on table '{}'",
            args.principal, args.table
        ),
    })?;
    Ok(())
}
