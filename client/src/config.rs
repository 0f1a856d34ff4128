//! A client's configuration: one small TOML file, as `mneme dev` writes it.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mneme_net::HostPort;
use mneme_net::addr::AddrError;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::limits::{
    BUSY_POLL_US_DEFAULT, COALESCE_US_DEFAULT, CONFIG_BYTES_MAX, CONNECT_TIMEOUT, DEADLINE_DEFAULT,
};

/// Names the configuration file.
pub const CONFIG_VARIABLE: &str = "MNEME_CONFIG";

/// The tenant of clients that name none.
pub const TENANT_DEFAULT: &str = "default";

/// Everything that a client needs to know. In TOML:
///
/// ```toml
/// catalogue = ["127.0.0.1:7400"]   # members, any of them
/// identity = "certs/client"        # ca.pem, cert.pem, key.pem; relative to this file
/// # all below have these defaults
/// tenant = "default"
/// deadline = "5s"                  # of a call that names none
/// connect_timeout = "3s"
/// coalesce_us = 20                 # 0 turns the coalescer off
/// busy_poll_us = 1000              # 0: a blocking call sleeps while it waits
/// segmentation_offload = true      # false for network cards that lose such packets
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientConfig {
    /// Members of the catalogue; at least one. They are never forgotten.
    #[serde(with = "addresses")]
    pub catalogue: Vec<HostPort>,
    /// Directory with `ca.pem`, `cert.pem` and `key.pem`.
    pub identity: PathBuf,
    /// The tenant whose tables are meant by name.
    #[serde(default = "tenant_default")]
    pub tenant: String,
    /// Deadline of a call whose options name none.
    #[serde(default = "deadline_default", with = "duration")]
    pub deadline: Duration,
    /// Longest attempt to reach a node.
    #[serde(default = "connect_default", with = "duration")]
    pub connect_timeout: Duration,
    /// How long a small pull may wait for others to share its frame, µs; 0 turns it off.
    #[serde(default = "coalesce_default")]
    pub coalesce_us: u64,
    /// How long a blocking client looks for an answer before it sleeps, µs; 0 turns that off. It
    /// does so only while answers come within that time.
    #[serde(default = "busy_poll_default")]
    pub busy_poll_us: u64,
    /// Send several packets with one system call (GSO).
    #[serde(default = "yes")]
    pub segmentation_offload: bool,
}

/// Why there is no usable configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// No file was named.
    #[error("no configuration: set {CONFIG_VARIABLE} to a client.toml (`mneme dev` writes one)")]
    NotNamed,
    /// The file cannot be read.
    #[error("cannot read '{path}': {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file's contents are wrong; unknown keys are refused by name.
    #[error("'{path}': {why}")]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong, with the line.
        why: String,
    },
    /// A value that cannot be used.
    #[error("{field}: {why}")]
    Value {
        /// Which field.
        field: &'static str,
        /// What is wrong with it.
        why: String,
    },
}

impl ClientConfig {
    /// A configuration with all defaults.
    #[must_use]
    pub fn new(catalogue: Vec<HostPort>, identity: impl Into<PathBuf>) -> Self {
        Self {
            catalogue,
            identity: identity.into(),
            tenant: tenant_default(),
            deadline: DEADLINE_DEFAULT,
            connect_timeout: CONNECT_TIMEOUT,
            coalesce_us: COALESCE_US_DEFAULT,
            busy_poll_us: BUSY_POLL_US_DEFAULT,
            segmentation_offload: true,
        }
    }

    /// Reads a TOML file. A relative `identity` is taken from the file's directory.
    ///
    /// # Errors
    /// [`ConfigError`] naming the file and the line.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let read = |source| ConfigError::Read {
            path: path.to_owned(),
            source,
        };
        let bytes = fs::metadata(path).map_err(read)?.len();
        if bytes > CONFIG_BYTES_MAX {
            let why = format!("{bytes} B are over the limit of {CONFIG_BYTES_MAX} B");
            return Err(ConfigError::Content {
                path: path.to_owned(),
                why,
            });
        }
        let text = fs::read_to_string(path).map_err(read)?;
        let content = |why: String| ConfigError::Content {
            path: path.to_owned(),
            why,
        };
        let mut config: Self =
            toml::from_str(&text).map_err(|e| content(e.to_string().trim_end().to_owned()))?;
        config.validate().map_err(|e| content(e.to_string()))?;
        if config.identity.is_relative() {
            let folder = path.parent().unwrap_or(Path::new(""));
            config.identity = folder.join(&config.identity);
        }
        Ok(config)
    }

    /// Reads the file that `MNEME_CONFIG` names.
    ///
    /// # Errors
    /// [`ConfigError::NotNamed`], or as [`ClientConfig::load`].
    pub fn from_env() -> Result<Self, ConfigError> {
        let path = std::env::var_os(CONFIG_VARIABLE).ok_or(ConfigError::NotNamed)?;
        Self::load(Path::new(&path))
    }

    /// The TOML text that [`ClientConfig::load`] reads back.
    ///
    /// # Errors
    /// [`ConfigError::Value`] for an identity path that is not UTF-8.
    pub fn to_toml(&self) -> Result<String, ConfigError> {
        toml::to_string(self).map_err(|e| ConfigError::Value {
            field: "identity",
            why: e.to_string(),
        })
    }

    /// Checks what types cannot.
    ///
    /// # Errors
    /// [`ConfigError::Value`] naming the field.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let wrong = |field, why: &str| {
            Err(ConfigError::Value {
                field,
                why: why.into(),
            })
        };
        if self.catalogue.is_empty() {
            return wrong("catalogue", "at least one HOST:PORT is needed");
        }
        if self.deadline.is_zero() {
            return wrong("deadline", "it must be longer than 0");
        }
        if self.connect_timeout.is_zero() {
            return wrong("connect_timeout", "it must be longer than 0");
        }
        mneme_proto::schema::validate_name("tenant", &self.tenant).map_err(|e| ConfigError::Value {
            field: "tenant",
            why: e.why,
        })
    }
}

fn tenant_default() -> String {
    TENANT_DEFAULT.into()
}

fn deadline_default() -> Duration {
    DEADLINE_DEFAULT
}

fn connect_default() -> Duration {
    CONNECT_TIMEOUT
}

fn coalesce_default() -> u64 {
    COALESCE_US_DEFAULT
}

fn busy_poll_default() -> u64 {
    BUSY_POLL_US_DEFAULT
}

fn yes() -> bool {
    true
}

/// `HOST:PORT` strings.
mod addresses {
    use super::{AddrError, Deserialize, Deserializer, HostPort, Serialize, Serializer};
    use serde::de::Error;

    pub(super) fn serialize<S: Serializer>(all: &[HostPort], to: S) -> Result<S::Ok, S::Error> {
        let texts: Vec<String> = all.iter().map(ToString::to_string).collect();
        texts.serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<HostPort>, D::Error> {
        let texts = Vec::<String>::deserialize(from)?;
        let parsed = texts.iter().map(|text| text.parse());
        parsed
            .collect::<Result<_, AddrError>>()
            .map_err(D::Error::custom)
    }
}

/// Durations as people write them.
mod duration {
    use super::{Deserialize, Deserializer, Duration, Serializer, Span};
    use serde::de::Error;

    pub(super) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&Span(*time))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let text = String::deserialize(from)?;
        text.parse::<Span>()
            .map(|span| span.0)
            .map_err(D::Error::custom)
    }
}

/// A duration that parses and displays as `250us`, `500ms`, `5s` or `2m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span(pub Duration);

impl std::str::FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("'{text}' is not a duration: write 250us, 500ms, 5s or 2m");
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let number: u64 = text[..digits].parse().map_err(|_| bad())?;
        let time = match &text[digits..] {
            "us" => Duration::from_micros(number),
            "ms" => Duration::from_millis(number),
            "s" => Duration::from_secs(number),
            "m" => Duration::from_secs(number.checked_mul(60).ok_or_else(bad)?),
            _ => return Err(bad()),
        };
        Ok(Self(time))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = self.0.as_micros();
        match us {
            0 => f.write_str("0s"),
            us if us % 1_000_000 == 0 => write!(f, "{}s", us / 1_000_000),
            us if us % 1000 == 0 => write!(f, "{}ms", us / 1000),
            us => write!(f, "{us}us"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<ClientConfig, ConfigError> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("client.toml");
        fs::write(&path, text).expect("written");
        ClientConfig::load(&path)
    }

    #[test]
    fn defaults_and_round_trip() {
        let config = load("catalogue = ['[::1]:7400']\nidentity = 'certs'\n").expect("valid");
        assert_eq!(config.deadline, Duration::from_secs(5));
        assert_eq!(
            (config.tenant.as_str(), config.coalesce_us),
            ("default", 20)
        );
        assert!(config.identity.is_absolute());
        assert_eq!(
            load(&config.to_toml().expect("text")).expect("valid"),
            config
        );
    }

    #[test]
    fn unknown_keys_and_bad_values_are_named() {
        let base = "catalogue = ['a:1']\nidentity = 'certs'\n";
        for (line, word) in [
            ("dedline = '5s'", "dedline"),
            ("deadline = '5'", "'5' is not a duration"),
            ("deadline = '0s'", "deadline"),
            ("tenant = ''", "tenant"),
        ] {
            let error = load(&format!("{base}{line}\n"))
                .expect_err(line)
                .to_string();
            assert!(error.contains(word), "{error}");
        }
        let error = load("catalogue = ['::1:7400']\nidentity = 'c'").expect_err("bare IPv6");
        assert!(error.to_string().contains("ambiguous"), "{error}");
        assert!(load("catalogue = []\nidentity = 'c'").is_err());
    }

    #[test]
    fn spans() {
        for text in ["250us", "500ms", "5s"] {
            assert_eq!(text.parse::<Span>().expect("valid").to_string(), text);
        }
        assert_eq!(
            "2m".parse::<Span>().expect("valid").0,
            Duration::from_secs(120)
        );
        for bad in ["", "5", "s", "-1s", "5 s", "1h", "99999999999999999999s"] {
            assert!(bad.parse::<Span>().is_err(), "{bad}");
        }
    }
}
