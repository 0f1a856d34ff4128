//! A cluster by hand: an authority, a catalogue member and two nodes, each a process of its own,
//! started with the commands that the README shows.

use std::net::UdpSocket;
use std::path::{Path, PathBuf};

use mneme_client::ClientConfig;
use mneme_client::blocking::Client;
use tempfile::TempDir;

use crate::command::Mneme;
use crate::limits::READY;
use crate::process::Process;
use crate::wait::wait_until;

/// `mneme meta` and two `mneme server`.
pub struct Trio {
    /// The catalogue.
    pub meta: Process,
    /// The nodes `n1` and `n2`.
    pub servers: Vec<Process>,
    addresses: Vec<String>,
    config: PathBuf,
    folder: TempDir,
}

/// A UDP port that was free a moment ago.
fn free_port() -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    socket.local_addr().expect("it is bound").port()
}

impl Trio {
    /// Makes certificates, starts the three, and waits until both nodes are known.
    ///
    /// # Panics
    /// If anything of it fails.
    #[must_use]
    pub fn start() -> Self {
        let folder = TempDir::new().expect("a temporary directory");
        let mneme = Mneme::new().in_folder(folder.path());
        mneme.ok(&["cert", "init", "ca"]);
        for (role, name) in [
            ("catalogue", "m1"),
            ("node", "n1"),
            ("node", "n2"),
            ("admin", "admin"),
        ] {
            let out = format!("certs/{name}");
            mneme.ok(&[
                "cert",
                "issue",
                name,
                "--authority",
                "ca",
                "--role",
                role,
                "--out",
                &out,
            ]);
        }
        let catalogue = format!("127.0.0.1:{}", free_port());
        let meta = Self::meta(folder.path(), &catalogue, &["--init"]);
        let config = folder.path().join("client.toml");
        let text = format!("catalogue = [\"{catalogue}\"]\nidentity = \"certs/admin\"\n");
        std::fs::write(&config, text).expect("writable");
        let addresses: Vec<String> = (0..2)
            .map(|_| format!("127.0.0.1:{}", free_port()))
            .collect();
        let mut trio = Self {
            meta,
            servers: Vec::new(),
            addresses: std::iter::once(catalogue).chain(addresses).collect(),
            config,
            folder,
        };
        for index in 0..2 {
            let server = trio.server(index);
            trio.servers.push(server);
        }
        let mneme = trio.mneme();
        wait_until(READY, "two nodes that are alive", || {
            let output = mneme.run(&["status", "--json"]);
            output.code == 0 && alive(&output.json()) == 2
        });
        trio
    }

    fn meta(folder: &Path, listen: &str, extra: &[&str]) -> Process {
        let base = [
            "meta", "--id", "1", "--listen", listen, "--data", "meta", "--cert", "certs/m1",
        ];
        let args = Self::in_folder(folder, &[&base, extra].concat());
        let mut process = Process::start("mneme meta", args);
        process.line("ready");
        process
    }

    /// Kills the catalogue (`kill -9`) and starts it again.
    ///
    /// # Panics
    /// If it does not become ready.
    pub fn restart_meta(&mut self) {
        self.meta.kill();
        self.meta = Self::meta(self.folder.path(), &self.addresses[0], &[]);
    }

    /// Starts node `index` (0 or 1), the first time or again.
    ///
    /// # Panics
    /// If it does not become ready.
    #[must_use]
    pub fn server(&self, index: usize) -> Process {
        let name = format!("n{}", index + 1);
        let (cert, listen) = (format!("certs/{name}"), &self.addresses[index + 1]);
        let args = Self::in_folder(
            self.folder.path(),
            &[
                "server",
                "--catalogue",
                &self.addresses[0],
                "--listen",
                listen,
                "--memory",
                "dram:256MiB",
                "--data",
                &name,
                "--cert",
                &cert,
            ],
        );
        let mut process = Process::start(&format!("mneme server {name}"), args);
        process.line("ready");
        process
    }

    /// Arguments with the paths among them made absolute.
    fn in_folder(folder: &Path, args: &[&str]) -> Vec<String> {
        let mut absolute = Vec::new();
        let mut is_path = false;
        for &arg in args {
            let path = folder.join(arg).to_str().expect("UTF-8").to_owned();
            absolute.push(if is_path { path } else { arg.to_owned() });
            is_path = matches!(arg, "--data" | "--cert");
        }
        absolute
    }

    /// Runs commands as the client `admin`.
    #[must_use]
    pub fn mneme(&self) -> Mneme {
        Mneme::on(&self.config)
    }

    /// Issues a certificate of the role client; the path of a `client.toml` that uses it.
    ///
    /// # Panics
    /// If that fails.
    #[must_use]
    pub fn principal(&self, name: &str) -> PathBuf {
        let folder = self.folder.path();
        let out = format!("certs/{name}");
        Mneme::new().in_folder(folder).ok(&[
            "cert",
            "issue",
            name,
            "--authority",
            "ca",
            "--role",
            "client",
            "--out",
            &out,
        ]);
        let config = folder.join(format!("{name}.toml"));
        let text = format!(
            "catalogue = [\"{}\"]\nidentity = \"{out}\"\n",
            self.catalogue()
        );
        std::fs::write(&config, text).expect("writable");
        config
    }

    /// A new client.
    ///
    /// # Panics
    /// If it cannot connect.
    #[must_use]
    pub fn client(&self) -> Client {
        let config = ClientConfig::load(&self.config).expect("a valid client.toml");
        Client::connect(config).expect("the catalogue answers")
    }

    /// The address of the catalogue.
    #[must_use]
    pub fn catalogue(&self) -> &str {
        &self.addresses[0]
    }

    /// The address of node `index`.
    #[must_use]
    pub fn address(&self, index: usize) -> &str {
        &self.addresses[index + 1]
    }

    /// The folder of all its files; `certs/NAME` and `ca` are in it.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

/// Nodes that `status --json` calls alive.
#[must_use]
pub fn alive(status: &serde_json::Value) -> usize {
    let nodes = status["nodes"].as_array().map_or(&[][..], Vec::as_slice);
    nodes.iter().filter(|node| node["alive"] == true).count()
}
