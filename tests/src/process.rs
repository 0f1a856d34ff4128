//! One child process: where the binary is, its output kept in files, signals, and an end in any
//! case.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

pub use rustix::process::Signal;
use tempfile::TempDir;

use crate::limits::{READY, SOON};
use crate::wait::{wait_for, wait_until};

/// The `mneme` binary of this build: it stands beside a benchmark's binary, and beside the
/// folder of the test binaries.
///
/// # Panics
/// If it is not built, with the command that builds it.
#[must_use]
pub fn binary() -> PathBuf {
    built("mneme")
}

/// A program of an `examples` folder.
///
/// # Panics
/// If it is not built, with the command that builds it.
#[must_use]
pub fn example(name: &str) -> PathBuf {
    built(&format!("examples/{name}"))
}

fn built(what: &str) -> PathBuf {
    let this = std::env::current_exe().expect("a running program has a path");
    let beside = this
        .ancestors()
        .skip(1)
        .take(2)
        .map(|folder| folder.join(what));
    let found = beside.clone().find(|path| path.is_file());
    found.unwrap_or_else(|| {
        let tried: Vec<String> = beside.map(|path| path.display().to_string()).collect();
        panic!(
            "no {}: run `cargo build --workspace --bins --examples` (in this profile) first",
            tried.join(", ")
        )
    })
}

/// A command of the binary whose environment is free of the user's: no `MNEME_*`, a home of its
/// own.
#[must_use]
pub fn command(home: &Path) -> Command {
    let mut command = Command::new(binary());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("MNEME_") {
            command.env_remove(&name);
        }
    }
    for name in [
        "HOME",
        "XDG_STATE_HOME",
        "XDG_CONFIG_HOME",
        "XDG_DATA_HOME",
        "XDG_CACHE_HOME",
    ] {
        command.env(name, home);
    }
    command.env_remove("XDG_RUNTIME_DIR");
    command.stdin(Stdio::null());
    command
}

/// A running `mneme`. Killed when dropped; what it wrote is printed if the test failed.
pub struct Process {
    name: String,
    child: Child,
    out: PathBuf,
    err: PathBuf,
    _home: TempDir,
}

impl Process {
    /// Starts `mneme` with `args`.
    ///
    /// # Panics
    /// If the binary is not built or does not start.
    pub fn start<I, S>(name: &str, args: I) -> Self
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        let home = TempDir::new().expect("a temporary directory");
        let (out, err) = (home.path().join("stdout"), home.path().join("stderr"));
        let child = command(home.path())
            .args(args)
            .stdout(File::create(&out).expect("a new file"))
            .stderr(File::create(&err).expect("a new file"))
            .spawn()
            .unwrap_or_else(|e| panic!("{name} does not start: {e}"));
        Self {
            name: name.to_owned(),
            child,
            out,
            err,
            _home: home,
        }
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has written to stdout.
    #[must_use]
    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.out).unwrap_or_default()).into_owned()
    }

    /// What it has written to stderr.
    #[must_use]
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.err).unwrap_or_default()).into_owned()
    }

    /// Waits for a whole line on stdout that starts with `prefix`, and returns what follows it.
    ///
    /// # Panics
    /// If the process ends, or the line does not come in time; its stderr is printed then.
    pub fn line(&mut self, prefix: &str) -> String {
        wait_for(READY, &format!("'{prefix}' of {}", self.name), || {
            let stdout = self.stdout();
            let whole = stdout.rsplit_once('\n').map_or("", |(whole, _)| whole);
            let found = whole.lines().find_map(|line| line.strip_prefix(prefix));
            if found.is_none()
                && let Some(status) = self.ended()
            {
                panic!(
                    "{} ended with {status} before it said '{prefix}'",
                    self.name
                );
            }
            found.map(str::to_owned)
        })
    }

    /// The exit status, if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("it is our child")
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// If it goes on beyond `within`.
    pub fn wait(&mut self, within: Duration) -> ExitStatus {
        wait_for(within, &format!("the end of {}", self.name), || {
            self.child.try_wait().expect("it is our child")
        })
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("it is our child");
    }

    /// `kill -9`, and waits until it is gone.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.wait(SOON);
    }

    /// Stops it (SIGSTOP) and waits until the kernel says so.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
        wait_until(SOON, "a stopped process", || self.stat_field(2) == "T");
    }

    /// Lets a stopped process go on.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Resident memory, in bytes: `VmRSS` of its status.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        let path = format!("/proc/{}/status", self.pid());
        let status = std::fs::read_to_string(path).expect("a live process");
        let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
        let kib = line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok());
        kib.expect("a process has a VmRSS line") * 1024
    }

    /// Its open file descriptors.
    #[must_use]
    pub fn descriptors(&self) -> usize {
        let path = format!("/proc/{}/fd", self.pid());
        std::fs::read_dir(path).expect("a live process").count()
    }

    /// TCP ports on which it listens, ascending.
    #[must_use]
    pub fn tcp_ports(&self) -> Vec<u16> {
        let folder = format!("/proc/{}/fd", self.pid());
        let links = std::fs::read_dir(folder).expect("a live process");
        let names = links
            .flatten()
            .filter_map(|e| std::fs::read_link(e.path()).ok());
        let sockets: Vec<String> = names.map(|n| n.to_string_lossy().into_owned()).collect();
        let mut ports = Vec::new();
        for file in ["tcp", "tcp6"] {
            let path = format!("/proc/{}/net/{file}", self.pid());
            let table = std::fs::read_to_string(path).unwrap_or_default();
            ports.extend(table.lines().skip(1).filter_map(|line| {
                let fields: Vec<&str> = line.split_whitespace().collect();
                let listens = *fields.get(3)? == "0A";
                let ours = sockets.contains(&format!("socket:[{}]", fields.get(9)?));
                let port = fields[1].rsplit_once(':')?.1;
                (listens && ours).then(|| u16::from_str_radix(port, 16).ok())?
            }));
        }
        ports.sort_unstable();
        ports.dedup();
        ports
    }

    /// Field `index` (from 0) of `/proc/PID/stat`; names with spaces do not occur here.
    fn stat_field(&self, index: usize) -> String {
        let path = format!("/proc/{}/stat", self.pid());
        let stat = std::fs::read_to_string(path).expect("a live process");
        stat.split_whitespace()
            .nth(index)
            .unwrap_or_default()
            .to_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already; then there is nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let (out, err) = (self.stdout(), self.stderr());
            eprintln!(
                "--- {} stdout\n{out}--- {} stderr\n{err}---",
                self.name, self.name
            );
        }
    }
}
