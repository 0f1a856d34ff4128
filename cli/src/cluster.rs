//! A whole cluster in one process: a catalogue, nodes and certificates in one directory.
//!
//! ```text
//! DIR/lock                       held while the cluster runs
//! DIR/client.toml                for clients
//! DIR/certs/{authority,catalogue,client,node-N}
//! DIR/catalogue                  the catalogue's data
//! DIR/nodes/node-N               a node's data
//! ```

use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use mneme_client::{Client, ClientConfig};
use mneme_memory::PoolSpec;
use mneme_meta::{Catalogue, CatalogueOptions, Clock};
use mneme_net::cert::{CA_FILE, CERT_FILE};
use mneme_net::{CertError, HostPort, Identity, LinkOptions, Role, cert};
use mneme_proto::map::{TableMap, TableState};
use mneme_server::limits::BUSY_POLL_US_DEFAULT;
use mneme_server::node::{Node, NodeHandle, NodeOptions};
use rustix::fs::{FlockOperation, flock};
use tokio::task::JoinSet;

use crate::limits::{CLOSE_WAIT, LOCK_WAIT, READY_POLL};

/// What a cluster in one process is made of.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// Its directory; made where it is not there.
    pub dir: PathBuf,
    /// Storage nodes; without a number as many as the directory has, or one.
    pub nodes: Option<u32>,
    /// Where the catalogue answers; nodes take free ports of the same address.
    pub listen: SocketAddr,
    /// Memory of each node.
    pub memory: PoolSpec,
    /// Where the catalogue serves HTTP; nodes take free ports of the same address.
    pub http: Option<SocketAddr>,
}

/// A running cluster.
#[derive(Debug)]
pub struct Cluster {
    catalogue: Catalogue,
    nodes: Vec<(String, NodeHandle)>,
    config: PathBuf,
    /// Locked until the process ends or this is dropped.
    _lock: File,
}

impl Cluster {
    /// Starts everything; back when all processes listen. Within a multi-threaded runtime.
    ///
    /// # Errors
    /// One line; what was started is stopped again.
    pub async fn start(options: ClusterOptions) -> anyhow::Result<Self> {
        let dir = &options.dir;
        fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
        let lock = lock_soon(dir).await?;
        let names = node_names(dir, options.nodes)?;
        let certs = Certificates::new(dir)?;
        let catalogue = Catalogue::open(CatalogueOptions {
            id: 1,
            listen: options.listen,
            data: dir.join("catalogue"),
            identity: certs.identity(Role::Catalogue, "catalogue")?,
            init: true,
            links: LinkOptions::default(),
            http: options.http,
            clock: Clock::boot(),
        })
        .await?;
        let address = HostPort::from(catalogue.local_addr());
        let mut starting = JoinSet::new();
        for name in names {
            let free_port = |addr: SocketAddr| SocketAddr::new(addr.ip(), 0);
            let node = NodeOptions {
                listen: free_port(options.listen),
                advertise: None,
                catalogue: vec![address.clone()],
                pools: vec![options.memory.clone()],
                data: dir.join("nodes").join(&name),
                identity: certs.identity(Role::Node, &name)?,
                domain: name.clone(),
                http: options.http.map(free_port),
                busy_poll: Duration::from_micros(BUSY_POLL_US_DEFAULT),
            };
            starting.spawn_blocking(move || Node::start(node).map(|node| (name, node)));
        }
        let mut nodes = Vec::new();
        while let Some(started) = starting.join_next().await {
            nodes.push(started.context("starting a node")??);
        }
        nodes.sort_by(|a, b| a.0.cmp(&b.0));
        certs.identity(Role::Admin, "client")?;
        let config = dir.join("client.toml");
        let client = ClientConfig::new(vec![address], "certs/client");
        write_whole(&config, &client.to_toml()?)?;
        Ok(Self {
            catalogue,
            nodes,
            config,
            _lock: lock,
        })
    }

    /// The clients' configuration file, in the directory as it was named.
    #[must_use]
    pub fn config(&self) -> &Path {
        &self.config
    }

    /// Where each part serves HTTP: names and addresses.
    pub fn http(&self) -> impl Iterator<Item = (&str, SocketAddr)> {
        let nodes = self.nodes.iter();
        let nodes = nodes.filter_map(|(name, node)| Some((name.as_str(), node.http_addr()?)));
        let catalogue = self.catalogue.http_addr().map(|addr| ("catalogue", addr));
        catalogue.into_iter().chain(nodes)
    }

    /// Waits until every shard of every table serves, those apart whose rows are lost.
    ///
    /// # Errors
    /// One line, if the cluster does not answer.
    pub async fn served(&self) -> anyhow::Result<()> {
        while !self.nodes.iter().all(|(_, node)| node.ready()) {
            tokio::time::sleep(READY_POLL).await;
        }
        let client = Client::connect(ClientConfig::load(&self.config)?).await?;
        while !all_served(&client, self.nodes.len()).await? {
            tokio::time::sleep(READY_POLL).await;
        }
        client.close().await;
        Ok(())
    }

    /// Waits until a part stops by itself, and says which and why.
    pub async fn failed(&self) -> String {
        let mut nodes = JoinSet::new();
        for (name, handle) in &self.nodes {
            let (name, node) = (name.clone(), handle.node().clone());
            nodes.spawn(async move { format!("{name} stopped: {}", node.failed().await) });
        }
        tokio::select! {
            why = self.catalogue.failed() => format!("the catalogue stopped: {why}"),
            Some(Ok(why)) = nodes.join_next() => why,
        }
    }

    /// Closes everything, within two seconds.
    pub async fn shutdown(self) {
        // All at once: each waits a while for its peers to hear of it.
        let mut closing = JoinSet::new();
        for (_, node) in self.nodes {
            closing.spawn_blocking(|| node.shutdown());
        }
        closing.spawn(self.catalogue.shutdown());
        let closed = async { while closing.join_next().await.is_some() {} };
        if tokio::time::timeout(CLOSE_WAIT, closed).await.is_err() {
            tracing::warn!("not everything closed in time; nothing acknowledged is lost by that");
        }
    }
}

async fn all_served(client: &Client, nodes: usize) -> anyhow::Result<bool> {
    let status = client.status().await?;
    if status.nodes.iter().filter(|node| node.alive).count() < nodes {
        return Ok(false);
    }
    for table in &status.tables {
        let served = match table.state {
            TableState::Lost | TableState::Loading => true,
            TableState::Creating => false,
            TableState::Mutable | TableState::Sealed => {
                table.spec.tenant != client.config().tenant
                    || has_regions(&client.table(&table.spec.name).await?.map())
            }
        };
        if !served {
            return Ok(false);
        }
    }
    Ok(true)
}

fn has_regions(map: &TableMap) -> bool {
    map.shards.iter().all(|shard| {
        let primary = shard.replicas.first();
        primary.is_some_and(|replica| replica.lost || replica.region.is_some())
    })
}

/// [`lock`], with patience for a process that was killed a moment ago and is not gone yet.
async fn lock_soon(dir: &Path) -> anyhow::Result<File> {
    let until = Instant::now() + LOCK_WAIT;
    loop {
        match lock(dir) {
            Err(_) if Instant::now() < until => tokio::time::sleep(READY_POLL).await,
            done => return done,
        }
    }
}

/// Takes the directory for this process, or says who has it.
fn lock(dir: &Path) -> anyhow::Result<File> {
    let path = dir.join("lock");
    let named = || path.display().to_string();
    let mut file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .with_context(named)?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        let mut holder = String::new();
        // The number is for people; without it the refusal stands as well.
        let _ = file.read_to_string(&mut holder);
        bail!(
            "{} is in use by another mneme (process {}): stop it, or give another --data",
            dir.display(),
            holder.trim()
        );
    }
    file.set_len(0).with_context(named)?;
    file.rewind().with_context(named)?;
    writeln!(file, "{}", std::process::id()).with_context(named)?;
    Ok(file)
}

/// `node-1`, `node-2` and so on. A node that has data is never left out: its shards would be
/// missed.
fn node_names(dir: &Path, asked: Option<u32>) -> anyhow::Result<Vec<String>> {
    let name = |at: u32| format!("node-{at}");
    let has_data = |at: &u32| dir.join("nodes").join(name(*at)).exists();
    let existing = (1..).take_while(has_data).last().unwrap_or(0);
    let nodes = asked.unwrap_or(existing.max(1));
    if nodes < existing {
        bail!(
            "{} holds {existing} nodes with shards: give --nodes {existing} or more",
            dir.display()
        );
    }
    Ok((1..=nodes).map(name).collect())
}

/// The certificates of a cluster in one process, made as they are missed.
struct Certificates {
    dir: PathBuf,
}

impl Certificates {
    fn new(dir: &Path) -> anyhow::Result<Self> {
        let certs = Self {
            dir: dir.join("certs"),
        };
        let authority = certs.authority();
        if !authority.join(CA_FILE).exists() {
            cert::init_authority(&authority)?;
        }
        Ok(certs)
    }

    fn authority(&self) -> PathBuf {
        self.dir.join("authority")
    }

    /// The identity of a part; issued at its first start, and anew when it has expired or is of
    /// another role.
    fn identity(&self, role: Role, name: &str) -> Result<Identity, CertError> {
        let dir = self.dir.join(name);
        let there = dir.join(CERT_FILE).exists();
        match there.then(|| Identity::load(&dir)) {
            Some(Ok(loaded)) if loaded.principal().role == role => Ok(loaded),
            Some(Err(error)) if !matches!(error, CertError::Expired { .. }) => Err(error),
            Some(_) | None => {
                cert::issue(&self.authority(), role, name, &dir)?;
                Identity::load(&dir)
            }
        }
    }
}

/// Writes a small file whole: a reader sees the old one or the new one.
fn write_whole(path: &Path, text: &str) -> anyhow::Result<()> {
    let temporary = path.with_extension("toml.tmp");
    fs::write(&temporary, text)
        .and_then(|()| fs::rename(&temporary, path))
        .with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_taken_once() {
        let dir = tempfile::tempdir().expect("a folder");
        let held = lock(dir.path()).expect("free");
        let error = lock(dir.path()).expect_err("taken").to_string();
        let line = format!("in use by another mneme (process {})", std::process::id());
        assert!(error.contains(&line), "{error}");
        drop(held);
        lock(dir.path()).expect("free again");
    }

    #[test]
    fn nodes_with_data_are_not_left_out() {
        let dir = tempfile::tempdir().expect("a folder");
        assert_eq!(node_names(dir.path(), None).expect("one"), ["node-1"]);
        for name in ["node-1", "node-2"] {
            fs::create_dir_all(dir.path().join("nodes").join(name)).expect("made");
        }
        assert_eq!(
            node_names(dir.path(), None).expect("two"),
            ["node-1", "node-2"]
        );
        assert_eq!(node_names(dir.path(), Some(3)).expect("three").len(), 3);
        let error = node_names(dir.path(), Some(1))
            .expect_err("fewer")
            .to_string();
        assert!(error.contains("holds 2 nodes"), "{error}");
    }

    #[test]
    fn certificates_are_made_once() {
        let dir = tempfile::tempdir().expect("a folder");
        let read = || fs::read(dir.path().join("certs/node-1/cert.pem")).expect("a certificate");
        let identity = || {
            let certs = Certificates::new(dir.path()).expect("an authority");
            certs.identity(Role::Node, "node-1").expect("an identity")
        };
        assert_eq!(identity().principal().name, "node-1");
        let first = read();
        identity();
        assert_eq!(read(), first);
        let certs = Certificates::new(dir.path()).expect("an authority");
        let other = certs.identity(Role::Admin, "node-1").expect("an identity");
        assert_eq!(other.principal().role, Role::Admin);
    }
}
