//! Where options come from: the command line, then `MNEME_<OPTION>`, then one TOML file.
//!
//! The file is that of `--config` (or `MNEME_CONFIG`). Its keys are the long options with `_` for
//! `-`, for every command that has them, beside the keys of a client (`catalogue`, `identity` and
//! so on). Without it, clients use the file of the last `mneme dev`.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::builder::FalseyValueParser;
use clap::{Arg, ArgAction, Command};
use mneme_client::ClientConfig;

/// Keys of the file that configure clients rather than stand for an option.
const CLIENT_KEYS: [&str; 8] = [
    "catalogue",
    "identity",
    "tenant",
    "deadline",
    "connect_timeout",
    "coalesce_us",
    "busy_poll_us",
    "segmentation_offload",
];

/// A parsed TOML file.
#[derive(Debug, Clone)]
pub struct ConfigFile {
    path: PathBuf,
    keys: toml::Table,
}

impl ConfigFile {
    /// The file that the command line or the environment names, if any.
    ///
    /// # Errors
    /// One line naming the file.
    pub fn named(arguments: &[OsString]) -> anyhow::Result<Option<Self>> {
        let path = config_argument(arguments).or_else(|| std::env::var_os("MNEME_CONFIG"));
        path.map(|path| Self::load(Path::new(&path))).transpose()
    }

    /// Reads a file.
    ///
    /// # Errors
    /// One line naming it.
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the configuration '{}'", path.display()))?;
        let keys = text
            .parse()
            .with_context(|| format!("the configuration '{}'", path.display()))?;
        Ok(Self {
            path: path.to_owned(),
            keys,
        })
    }

    /// The client's part of the file. A relative `identity` is taken from the file's directory.
    ///
    /// # Errors
    /// One line naming the file and what is wrong.
    pub fn client(&self) -> anyhow::Result<ClientConfig> {
        let keys = self.keys.iter();
        let own: toml::Table = keys
            .filter(|(key, _)| CLIENT_KEYS.contains(&key.as_str()))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        let named = || format!("'{}'", self.path.display());
        let mut config: ClientConfig = own.try_into().with_context(named)?;
        config.validate().with_context(named)?;
        if config.identity.is_relative() {
            let folder = self.path.parent().unwrap_or(Path::new(""));
            config.identity = folder.join(&config.identity);
        }
        Ok(config)
    }
}

/// The client's configuration: that of the named file, else of the last `mneme dev`.
///
/// # Errors
/// One line: which file, or how to get one.
pub fn client_config(named: Option<&ConfigFile>) -> anyhow::Result<ClientConfig> {
    if let Some(file) = named {
        return file.client();
    }
    let Some(path) = last_dev() else {
        bail!(
            "no cluster is known: give --config FILE (or MNEME_CONFIG), or start one with \
             `mneme dev`"
        );
    };
    ConfigFile::load(&path)?.client()
}

/// The directory of the user's state: `$XDG_STATE_HOME/mneme` or `~/.local/state/mneme`.
fn state_dir() -> Option<PathBuf> {
    user_dir("XDG_STATE_HOME", ".local/state")
}

/// The directory of the user's data: `$XDG_DATA_HOME/mneme` or `~/.local/share/mneme`.
#[must_use]
pub fn data_dir() -> Option<PathBuf> {
    user_dir("XDG_DATA_HOME", ".local/share")
}

fn user_dir(variable: &str, under_home: &str) -> Option<PathBuf> {
    let absolute = |name: &str| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let base = absolute(variable).or_else(|| Some(absolute("HOME")?.join(under_home)))?;
    Some(base.join("mneme"))
}

/// The `client.toml` of the last `mneme dev`, as `last-dev` in the user's state remembers it.
fn last_dev() -> Option<PathBuf> {
    let text = std::fs::read_to_string(state_dir()?.join("last-dev")).ok()?;
    Some(PathBuf::from(text.trim_end_matches('\n')))
}

/// Remembers the `client.toml` of a `mneme dev` for later clients.
///
/// # Errors
/// One line; nothing else depends on it.
pub fn remember_dev(config: &Path) -> anyhow::Result<()> {
    use std::os::unix::ffi::OsStrExt;
    let config = std::path::absolute(config).with_context(|| config.display().to_string())?;
    let dir = state_dir().context("neither XDG_STATE_HOME nor HOME names a directory")?;
    std::fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
    let path = dir.join("last-dev");
    let temporary = dir.join(format!("last-dev.{}", std::process::id()));
    let line = [config.as_os_str().as_bytes(), b"\n"].concat();
    std::fs::write(&temporary, line)
        .and_then(|()| std::fs::rename(&temporary, &path))
        .with_context(|| path.display().to_string())
}

/// The value of `--config` on a command line that is not parsed yet.
fn config_argument(arguments: &[OsString]) -> Option<OsString> {
    let mut arguments = arguments.iter().skip(1);
    while let Some(argument) = arguments.next() {
        if argument == OsStr::new("--config") {
            return arguments.next().cloned();
        }
        let inline = argument.to_str().and_then(|a| a.strip_prefix("--config="));
        if let Some(path) = inline {
            return Some(path.into());
        }
    }
    None
}

/// Lets every long option of every command come from `MNEME_<OPTION>` too.
pub fn with_environment(command: Command) -> Command {
    on_every_option(command, &|option, name| {
        let variable = format!("MNEME_{}", name.to_uppercase());
        let option = option.env(variable).hide_env(true);
        if matches!(option.get_action(), ArgAction::SetTrue) {
            // `MNEME_JSON=1` means yes, `0` and `false` mean no.
            option.value_parser(FalseyValueParser::new())
        } else {
            option
        }
    })
}

/// Lets the keys of a file stand for options that are given neither on the command line nor in
/// the environment.
///
/// # Errors
/// A key that no command has, or whose value is no option's, by name.
pub fn with_file(command: Command, file: &ConfigFile) -> anyhow::Result<Command> {
    let mut values = Vec::new();
    for (key, value) in &file.keys {
        let known = CLIENT_KEYS.contains(&key.as_str()) || has_option(&command, key);
        let words = match value {
            _ if !known => None,
            toml::Value::Array(all) => all.iter().map(word).collect(),
            one => word(one).map(|word| vec![word]),
        };
        let Some(words) = words else {
            let what = if known {
                "cannot be a table"
            } else {
                "is no option of mneme"
            };
            bail!("'{}': '{key}' {what}", file.path.display());
        };
        values.push((key.clone(), words));
    }
    Ok(on_every_option(command, &|option, name| {
        let found = values.iter().find(|(key, _)| key == name);
        match found {
            Some((_, words)) => option.required(false).default_values(words.clone()),
            None => option,
        }
    }))
}

fn word(value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Table(_) | toml::Value::Array(_) => None,
        other => Some(other.to_string()),
    }
}

/// The name of an option in files: `on_duplicate` for `--on-duplicate`.
fn key_of(option: &Arg) -> Option<String> {
    let long = option.get_long()?;
    (!matches!(long, "help" | "version")).then(|| long.replace('-', "_"))
}

fn has_option(command: &Command, key: &str) -> bool {
    let own = command.get_arguments().filter_map(key_of).any(|k| k == key);
    own || command.get_subcommands().any(|sub| has_option(sub, key))
}

fn on_every_option(command: Command, change: &dyn Fn(Arg, &str) -> Arg) -> Command {
    command
        .mut_args(|option| match key_of(&option) {
            Some(key) => change(option, &key),
            None => option,
        })
        .mut_subcommands(|sub| on_every_option(sub, change))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command() -> Command {
        Command::new("mneme")
            .arg(Arg::new("config").long("config").global(true))
            .arg(
                Arg::new("json")
                    .long("json")
                    .global(true)
                    .action(ArgAction::SetTrue),
            )
            .subcommand(
                Command::new("bench")
                    .arg(Arg::new("batch").long("batch").required(true))
                    .arg(Arg::new("on").long("on-x").action(ArgAction::Append)),
            )
    }

    fn file(text: &str) -> ConfigFile {
        ConfigFile {
            path: "/etc/mneme.toml".into(),
            keys: text.parse().expect("TOML"),
        }
    }

    #[test]
    fn file_keys_stand_in_for_options() {
        let file = file("batch = 64\non_x = ['a', 'b']\njson = true\ntenant = 'red'");
        let command = with_file(command(), &file).expect("known keys");
        let parse = |words: &[&str]| {
            let matches = command.clone().try_get_matches_from(words).expect("legal");
            let json = matches.get_flag("json");
            let bench = matches.subcommand_matches("bench").expect("bench");
            let batch = bench.get_one::<String>("batch").expect("given").clone();
            let on: Vec<String> = bench.get_many("on").expect("given").cloned().collect();
            (batch, on, json)
        };
        let both = vec!["a".to_owned(), "b".to_owned()];
        assert_eq!(parse(&["mneme", "bench"]), ("64".into(), both, true));
        let given = parse(&["mneme", "bench", "--batch", "7", "--on-x", "c"]);
        assert_eq!(given, ("7".into(), vec!["c".to_owned()], true));
    }

    #[test]
    fn unknown_keys_are_refused_by_name() {
        let error = with_file(command(), &file("bath = 64")).expect_err("unknown");
        assert_eq!(
            error.to_string(),
            "'/etc/mneme.toml': 'bath' is no option of mneme"
        );
        let error = with_file(command(), &file("[batch]\nx = 1")).expect_err("a table");
        assert!(error.to_string().contains("'batch' cannot be a table"));
    }

    #[test]
    fn every_option_has_its_variable() {
        let command = with_environment(command());
        let bench = command.find_subcommand("bench").expect("bench");
        let variables: Vec<_> = bench.get_arguments().filter_map(Arg::get_env).collect();
        assert_eq!(variables, ["MNEME_BATCH", "MNEME_ON_X"]);
    }

    #[test]
    fn the_client_part_of_a_file() {
        let text = "catalogue = ['127.0.0.1:7400']\nidentity = 'certs/client'\nbatch = 64";
        let config = file(text).client().expect("a client's");
        assert_eq!(config.identity, Path::new("/etc/certs/client"));
        let error = file("batch = 64").client().expect_err("no catalogue");
        assert!(format!("{error:#}").contains("catalogue"), "{error:#}");
    }

    #[test]
    fn config_is_found_before_parsing() {
        let find = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            config_argument(&words)
        };
        assert_eq!(find(&["mneme", "status"]), None);
        assert_eq!(find(&["mneme", "--config", "a", "x"]), Some("a".into()));
        assert_eq!(find(&["mneme", "x", "--config=b"]), Some("b".into()));
        assert_eq!(find(&["mneme", "--config"]), None);
    }
}
