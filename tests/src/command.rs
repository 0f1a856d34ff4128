//! `mneme` commands that end: what they print, and how.

use std::ffi::OsStr;
use std::fs::File;
use std::path::PathBuf;

use serde_json::Value;
use tempfile::TempDir;

use crate::limits::COMMAND;
use crate::process;
use crate::wait::wait_for;

/// Runs commands, against a cluster where one is named.
#[derive(Debug, Clone, Default)]
pub struct Mneme {
    config: Option<PathBuf>,
    folder: Option<PathBuf>,
}

/// What a command left behind.
#[derive(Debug, Clone)]
pub struct Output {
    /// The command line, for messages.
    pub line: String,
    /// Its exit code; -1 after a signal.
    pub code: i32,
    /// Everything on stdout.
    pub stdout: String,
    /// Everything on stderr.
    pub stderr: String,
}

impl Mneme {
    /// Commands without a cluster.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Commands on the cluster of this `client.toml`.
    #[must_use]
    pub fn on(config: impl Into<PathBuf>) -> Self {
        Self {
            config: Some(config.into()),
            folder: None,
        }
    }

    /// The same, run in `folder`.
    #[must_use]
    pub fn in_folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// Runs one command to its end.
    ///
    /// # Panics
    /// If it does not end.
    pub fn run<S: AsRef<OsStr>>(&self, args: &[S]) -> Output {
        let home = TempDir::new().expect("a temporary directory");
        let (out, err) = (home.path().join("stdout"), home.path().join("stderr"));
        let mut command = process::command(home.path());
        if let Some(config) = &self.config {
            command.env("MNEME_CONFIG", config);
        }
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        let words: Vec<String> = args
            .iter()
            .map(|a| a.as_ref().to_string_lossy().into_owned())
            .collect();
        let line = format!("mneme {}", words.join(" "));
        let mut child = command
            .args(args)
            .stdout(File::create(&out).expect("a new file"))
            .stderr(File::create(&err).expect("a new file"))
            .spawn()
            .expect("the binary starts");
        let status = wait_for(COMMAND, &format!("the end of `{line}`"), || {
            child.try_wait().expect("it is our child")
        });
        let text =
            |path| String::from_utf8(std::fs::read(path).expect("it was written")).expect("UTF-8");
        Output {
            line,
            code: status.code().unwrap_or(-1),
            stdout: text(out),
            stderr: text(err),
        }
    }

    /// Runs a command that must succeed.
    ///
    /// # Panics
    /// If it does not, with what it said.
    pub fn ok<S: AsRef<OsStr>>(&self, args: &[S]) -> Output {
        let output = self.run(args);
        assert_eq!(output.code, 0, "{output:#?}");
        output
    }

    /// Runs a command with `--json` that must succeed, and parses its answer.
    ///
    /// # Panics
    /// If it fails or prints anything but JSON.
    pub fn json<S: AsRef<OsStr>>(&self, args: &[S]) -> Value {
        let mut all: Vec<&OsStr> = args.iter().map(AsRef::as_ref).collect();
        all.push(OsStr::new("--json"));
        self.ok(&all).json()
    }

    /// Runs a command that must be refused with `code`: one line on stderr that holds every one
    /// of `words`, nothing on stdout.
    ///
    /// # Panics
    /// If it is not.
    pub fn refused<S: AsRef<OsStr>>(&self, code: i32, args: &[S], words: &[&str]) -> Output {
        let output = self.run(args);
        assert_eq!(output.code, code, "{output:#?}");
        assert_eq!(output.stdout, "", "{output:#?}");
        for word in words {
            assert!(
                output.stderr.contains(word),
                "'{word}' is not in {output:#?}"
            );
        }
        if code == 1 {
            assert_eq!(output.stderr.trim_end().lines().count(), 1, "{output:#?}");
        }
        output
    }
}

impl Output {
    /// Its stdout as JSON.
    ///
    /// # Panics
    /// If it is none.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e} in {self:#?}"))
    }
}
