//! The command line as a whole: global options, commands, and how one is run.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use mneme_client::Span;
use tracing_subscriber::EnvFilter;

use crate::commands::{
    Session, bench, cert, demo, dev, export, grant, import, pull, push, serve, status, table,
    whereabouts,
};
use crate::failure::{FAILED, USAGE, line, usage_line};
use crate::output::Output;
use crate::settings::{ConfigFile, with_environment, with_file};

/// The heading of options that every command has.
const EVERYWHERE: &str = "Options of every command";

/// A memory service for rows: embedding rows, n-gram rows, parameters in training.
///
/// Every option can also be given as an environment variable `MNEME_<OPTION>` or as a key of the
/// TOML file that --config names.
#[derive(Debug, Parser)]
#[command(
    name = "mneme",
    version,
    propagate_version = false,
    max_term_width = 100
)]
struct Cli {
    /// TOML file with a client's keys and with options [default: that of the last `mneme dev`].
    #[arg(long, value_name = "FILE", global = true, help_heading = EVERYWHERE)]
    config: Option<std::path::PathBuf>,
    /// Deadline of each call, such as 500ms or 5s.
    #[arg(long, value_name = "TIME", global = true, help_heading = EVERYWHERE)]
    deadline: Option<Span>,
    /// Print JSON.
    #[arg(long, global = true, help_heading = EVERYWHERE)]
    json: bool,
    /// What to log to stderr, such as info or mneme_server=debug [default: warn; info for meta
    /// and server].
    #[arg(long, value_name = "FILTER", global = true, help_heading = EVERYWHERE)]
    log: Option<String>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Dev(dev::DevArgs),
    Meta(serve::MetaArgs),
    Server(serve::ServerArgs),
    Cert(cert::CertArgs),
    /// Show the cluster: members, nodes, tables.
    Status,
    Table(table::TableArgs),
    Grant(grant::GrantArgs),
    Push(push::PushArgs),
    Pull(pull::PullArgs),
    Where(whereabouts::WhereArgs),
    Import(import::ImportArgs),
    Export(export::ExportArgs),
    Bench(bench::BenchArgs),
    Demo(demo::DemoArgs),
}

/// Parses and runs; prints at most one line of error.
pub fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let (cli, file) = match parse(&arguments) {
        Ok(parsed) => parsed,
        Err(code) => return code,
    };
    if let Err(why) = start_log(&cli) {
        eprintln!("error: --log: {why}");
        return USAGE.into();
    }
    let session = Session {
        output: Output { json: cli.json },
        file,
        deadline: cli.deadline.map(|span| span.0),
    };
    match run(cli.command, &session) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", line(&error));
            FAILED.into()
        }
    }
}

/// The arguments with what the environment and the file add, or the code to exit with.
fn parse(arguments: &[OsString]) -> Result<(Cli, Option<ConfigFile>), ExitCode> {
    let fail = |error: anyhow::Error| {
        eprintln!("error: {}", line(&error));
        ExitCode::from(FAILED)
    };
    let file = ConfigFile::named(arguments).map_err(fail)?;
    let mut command = with_environment(Cli::command());
    if let Some(file) = &file {
        command = with_file(command, file).map_err(fail)?;
    }
    let parsed = command
        .try_get_matches_from(arguments)
        .and_then(|matches| Cli::from_arg_matches(&matches));
    match parsed {
        Ok(cli) => Ok((cli, file)),
        Err(error) if error.use_stderr() => {
            if error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
                eprintln!("error: which command? see --help");
            } else {
                eprintln!("error: {}", usage_line(&error));
            }
            Err(USAGE.into())
        }
        Err(help) => {
            // Help and version; a reader that went away is no error.
            let _ = help.print();
            Err(ExitCode::SUCCESS)
        }
    }
}

fn start_log(cli: &Cli) -> Result<(), String> {
    let quiet = !matches!(cli.command, Command::Meta(_) | Command::Server(_));
    let filter = match (&cli.log, quiet) {
        (Some(filter), _) => filter.as_str(),
        (None, true) => "warn",
        (None, false) => "info,openraft=warn",
    };
    let filter = EnvFilter::try_new(filter).map_err(|e| format!("'{filter}': {e}"))?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
    Ok(())
}

fn run(command: Command, session: &Session) -> anyhow::Result<()> {
    match command {
        Command::Dev(args) => dev::run(args, session),
        Command::Meta(args) => serve::meta(args, session),
        Command::Server(args) => serve::server(args, session),
        Command::Cert(args) => cert::run(&args, session),
        Command::Status => status::run(session),
        Command::Table(args) => table::run(&args, session),
        Command::Grant(args) => grant::run(&args, session),
        Command::Push(args) => push::run(&args, session),
        Command::Pull(args) => pull::run(&args, session),
        Command::Where(args) => whereabouts::run(&args, session),
        Command::Import(args) => import::run(&args, session),
        Command::Export(args) => export::run(&args, session),
        Command::Bench(args) => bench::run(&args, session),
        Command::Demo(args) => demo::run(&args, session),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        with_environment(Cli::command()).debug_assert();
    }

    /// Every option says what it does, so that help is complete.
    #[test]
    fn every_option_and_command_has_help() {
        fn check(command: &clap::Command, path: &str) {
            assert!(command.get_about().is_some(), "{path} has no help");
            for argument in command.get_arguments() {
                let named = argument.get_help().is_some() || argument.get_id() == "help";
                assert!(named, "{path} {} has no help", argument.get_id());
            }
            for sub in command.get_subcommands() {
                check(sub, &format!("{path} {}", sub.get_name()));
            }
        }
        check(&Cli::command(), "mneme");
    }
}
