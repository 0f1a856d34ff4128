//! A `mneme dev` over a directory of its own, with free ports.

use std::path::{Path, PathBuf};

use mneme_client::ClientConfig;
use mneme_client::blocking::Client;
use tempfile::TempDir;

use crate::command::Mneme;
use crate::process::{Process, Signal};
use crate::{http, limits};

/// A running embedded cluster.
pub struct Dev {
    process: Process,
    config: PathBuf,
    data: TempDir,
    options: Vec<String>,
}

impl Dev {
    /// A cluster of two nodes, ready to serve.
    ///
    /// # Panics
    /// If it does not become ready.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(&["--nodes", "2", "--memory", "dram:1GiB"])
    }

    /// A cluster with these options of `mneme dev`.
    ///
    /// # Panics
    /// If it does not become ready.
    #[must_use]
    pub fn start_with(options: &[&str]) -> Self {
        let data = TempDir::new().expect("a temporary directory");
        let options: Vec<String> = options.iter().map(|&o| o.to_owned()).collect();
        let (process, config) = Self::launch(data.path(), &options);
        Self {
            process,
            config,
            data,
            options,
        }
    }

    fn launch(data: &Path, options: &[String]) -> (Process, PathBuf) {
        let mut process = Process::start("mneme dev", Self::arguments(data, options));
        let config = PathBuf::from(process.line("ready config="));
        (process, config)
    }

    /// The arguments of a `mneme dev` over `data`; ports are free ones unless `options` say.
    #[must_use]
    pub fn arguments(data: &Path, options: &[String]) -> Vec<String> {
        let data = data
            .to_str()
            .expect("temporary directories are UTF-8")
            .to_owned();
        let mut args = vec!["dev".to_owned(), "--data".into(), data];
        args.extend(options.iter().cloned());
        for option in ["--listen", "--http"] {
            if !options.iter().any(|o| o == option) {
                args.extend([option.to_owned(), "127.0.0.1:0".into()]);
            }
        }
        args
    }

    /// The same directory, started again. The process must have ended.
    ///
    /// # Panics
    /// If it does not become ready.
    pub fn restart(&mut self) {
        assert!(
            self.process.ended().is_some(),
            "end it before it is started again"
        );
        (self.process, self.config) = Self::launch(self.data.path(), &self.options);
    }

    /// The process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Its data directory.
    #[must_use]
    pub fn data(&self) -> &Path {
        self.data.path()
    }

    /// Its `client.toml`.
    #[must_use]
    pub fn config(&self) -> &Path {
        &self.config
    }

    /// Runs commands on it.
    #[must_use]
    pub fn mneme(&self) -> Mneme {
        Mneme::on(&self.config)
    }

    /// A new client of it, with caches and connections of its own.
    ///
    /// # Panics
    /// If it cannot connect.
    #[must_use]
    pub fn client(&self) -> Client {
        let config = ClientConfig::load(&self.config).expect("dev wrote a valid client.toml");
        Client::connect(config).expect("dev is ready")
    }

    /// Ports that answer `/healthz`, ascending.
    ///
    /// # Panics
    /// If none does.
    #[must_use]
    pub fn http_ports(&self) -> Vec<u16> {
        let ports = self.process.tcp_ports();
        let answers = |port: &u16| http::get(*port, "/healthz").is_some_and(|r| r.status == 200);
        let found: Vec<u16> = ports.iter().copied().filter(answers).collect();
        assert!(
            !found.is_empty(),
            "none of the ports {ports:?} answers /healthz"
        );
        found
    }

    /// SIGTERM; checks that it ends in time with code 0.
    ///
    /// # Panics
    /// If it does not.
    pub fn stop(&mut self) {
        self.process.signal(Signal::TERM);
        let status = self.process.wait(limits::CLEAN_END);
        assert_eq!(status.code(), Some(0), "a clean end has code 0");
    }
}
