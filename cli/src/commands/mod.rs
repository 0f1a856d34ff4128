//! One module per command: its arguments beside what it does.

pub mod bench;
pub mod cert;
pub mod demo;
pub mod dev;
pub mod export;
pub mod grant;
pub mod import;
pub mod pull;
pub mod push;
pub mod serve;
pub mod status;
pub mod table;
pub mod whereabouts;

use std::time::Duration;

use anyhow::Context;
use mneme_client::{ClientConfig, blocking};
use mneme_proto::frame::Missing;

use crate::limits::LONG_STEP_DEADLINE;
use crate::output::Output;
use crate::settings::{self, ConfigFile};

/// What every command is given besides its own arguments.
#[derive(Debug)]
pub struct Session {
    /// How to print.
    pub output: Output,
    /// The file that was named, if any.
    pub file: Option<ConfigFile>,
    /// Deadline of a call, if one was given.
    pub deadline: Option<Duration>,
}

impl Session {
    /// How to reach the cluster.
    ///
    /// # Errors
    /// One line: which file, or how to get one.
    pub fn client_config(&self) -> anyhow::Result<ClientConfig> {
        let mut config = settings::client_config(self.file.as_ref())?;
        if let Some(deadline) = self.deadline {
            config.deadline = deadline;
        }
        Ok(config)
    }

    /// A client of the cluster.
    ///
    /// # Errors
    /// One line that names the file or the address.
    pub fn client(&self) -> anyhow::Result<blocking::Client> {
        Ok(blocking::Client::connect(self.client_config()?)?)
    }

    /// A client and one of its tables.
    ///
    /// # Errors
    /// As [`Session::client`], or the table is not there.
    pub fn table(&self, name: &str) -> anyhow::Result<(blocking::Client, blocking::Table)> {
        let client = self.client()?;
        let table = client.table(name)?;
        Ok((client, table))
    }

    /// The deadline of a step that may copy a whole shard.
    #[must_use]
    pub fn step_deadline(&self) -> Option<Duration> {
        Some(self.deadline.unwrap_or(LONG_STEP_DEADLINE))
    }
}

/// Keys on a command line: whole numbers joined by commas, none for the empty text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keys(pub Vec<u64>);

impl std::str::FromStr for Keys {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() {
            return Ok(Self(Vec::new()));
        }
        let parse = |key: &str| parse_key(key.trim());
        text.split(',')
            .map(parse)
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

/// One key.
///
/// # Errors
/// A line that says what a key is.
pub fn parse_key(text: &str) -> Result<u64, String> {
    text.parse()
        .map_err(|_| format!("'{text}' is not a key: a whole number from 0 to 2^64 - 1"))
}

/// What a pull does with keys that have no row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum MissingPolicy {
    /// Answer the table's default row; store nothing.
    Default,
    /// Fail, naming up to ten keys.
    Error,
    /// Make the table's initial row and store it.
    Init,
}

impl From<MissingPolicy> for Missing {
    fn from(policy: MissingPolicy) -> Self {
        match policy {
            MissingPolicy::Default => Self::Default,
            MissingPolicy::Error => Self::Error,
            MissingPolicy::Init => Self::Init,
        }
    }
}

/// `k=v`.
///
/// # Errors
/// A line that says what is wanted.
pub fn parse_assignment(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => {
            Ok((name.to_owned(), value.to_owned()))
        }
        _ => Err(format!("'{text}' is not NAME=VALUE")),
    }
}

/// A runtime for commands that serve.
///
/// # Errors
/// The operating system's word.
pub fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("starting the runtime")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_all_of_u64() {
        let keys = |text: &str| text.parse::<Keys>().map(|k| k.0);
        assert_eq!(keys("18446744073709551615, 0"), Ok(vec![u64::MAX, 0]));
        assert_eq!(keys(""), Ok(vec![]));
        for bad in ["18446744073709551616", "-1", "1,,2", "1;2", "0x1", "1.0"] {
            assert!(keys(bad).expect_err(bad).contains("is not a key"), "{bad}");
        }
    }

    #[test]
    fn assignments_name_what_is_wrong() {
        assert_eq!(parse_assignment("lr=0.5"), Ok(("lr".into(), "0.5".into())));
        for bad in ["lr", "lr=", "=1"] {
            assert!(parse_assignment(bad).is_err());
        }
    }
}
