//! What a node needs around it, over real links: a scripted catalogue and a bare client.
#![allow(
    clippy::unwrap_used,
    reason = "a test's support may panic as its tests do"
)]

mod client;
mod script;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mneme_net::{Endpoint, HostPort, Identity, LinkOptions, Role, init_authority, issue};
use mneme_proto::control::{ShardReport, ShardStatus};
use mneme_proto::grant::{Grant, Level};
use mneme_proto::ids::{ClusterId, Epoch, Incarnation, NodeId, Revision, TableGeneration, TableId};
use mneme_proto::map::{NodeEntry, ReplicaEntry, ReplicaRole, ShardEntry, TableMap, TableState};
use mneme_proto::schema::{Dtype, Optimizer, RowSchema, TableKind, TableSpec};
use mneme_server::limits::BUSY_POLL_US_DEFAULT;
use mneme_server::{Node, NodeHandle, NodeOptions};

pub use client::Client;
use script::{Script, serve};

pub const CLUSTER: ClusterId = ClusterId(77);
pub const TABLE: TableId = TableId(9);

pub struct World {
    pub dir: tempfile::TempDir,
    pub runtime: tokio::runtime::Runtime,
    pub script: Arc<Mutex<Script>>,
    pub catalogue: HostPort,
    _endpoint: Endpoint,
}

fn identity(ca: &Path, role: Role, name: &str) -> Identity {
    let out = ca.parent().unwrap().join(format!("{role}-{name}"));
    if !out.exists() {
        issue(ca, role, name, &out).unwrap();
    }
    Identity::load(&out).unwrap()
}

/// Waits for a condition, with a deadline.
pub fn until(what: &str, mut met: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !met() {
        assert!(Instant::now() < deadline, "waited too long for {what}");
        std::thread::yield_now();
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

impl World {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let ca = dir.path().join("ca");
        init_authority(&ca).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let script = Arc::new(Mutex::new(Script {
            revision: 1,
            ..Script::default()
        }));
        let endpoint = runtime.block_on(async {
            let me = identity(&ca, Role::Catalogue, "m1");
            Endpoint::bind("127.0.0.1:0".parse().unwrap(), me, LinkOptions::default()).unwrap()
        });
        let catalogue = endpoint.local_addr().to_string().parse().unwrap();
        let (accepting, shared) = (endpoint.clone(), Arc::clone(&script));
        runtime.spawn(async move {
            while let Some(link) = accepting.accept().await {
                tokio::spawn(serve(link, Arc::clone(&shared)));
            }
        });
        Self {
            dir,
            runtime,
            script,
            catalogue,
            _endpoint: endpoint,
        }
    }

    pub fn start(&self) -> NodeHandle {
        let ca = self.dir.path().join("ca");
        let node = Node::start(NodeOptions {
            listen: "127.0.0.1:0".parse().unwrap(),
            advertise: None,
            catalogue: vec![self.catalogue.clone()],
            pools: vec!["dram:64MiB".parse().unwrap()],
            data: self.dir.path().join("node"),
            identity: identity(&ca, Role::Node, "n1"),
            domain: "rack".into(),
            http: Some("127.0.0.1:0".parse().unwrap()),
            busy_poll: Duration::from_micros(BUSY_POLL_US_DEFAULT),
        });
        let node = node.unwrap();
        until("the node to be ready", || node.ready());
        node
    }

    pub fn client(&self, node: &NodeHandle) -> Client {
        self.peer(node, Role::Client, "c1")
    }

    pub fn peer(&self, node: &NodeHandle, role: Role, name: &str) -> Client {
        let ca = self.dir.path().join("ca");
        let link = self.runtime.block_on(async {
            let me = identity(&ca, role, name);
            let endpoint = Endpoint::dialer(me, LinkOptions::default()).unwrap();
            let deadline = Instant::now() + Duration::from_secs(5);
            endpoint
                .connect(node.local_addr(), Role::Node, deadline)
                .await
                .unwrap()
        });
        Client {
            link,
            handle: self.runtime.handle().clone(),
        }
    }

    /// Changes the table's map, as a command of the catalogue would.
    pub fn change(&self, change: impl FnOnce(&mut TableMap)) {
        let mut script = self.script.lock().unwrap();
        script.revision += 1;
        let revision = Revision(script.revision);
        let map = script.maps.get_mut(&TABLE).unwrap();
        change(map);
        map.revision = revision;
    }

    /// Makes a table whose shards all belong to node 1 in its present life.
    pub fn create(&self, spec: TableSpec) {
        let mut script = self.script.lock().unwrap();
        script.revision += 1;
        let incarnation = Incarnation(script.incarnation);
        let shard = ShardEntry {
            epoch: Epoch(1),
            replicas: vec![ReplicaEntry {
                node: 0,
                incarnation,
                role: ReplicaRole::Primary,
                region: None,
                lost: false,
            }],
        };
        let map = TableMap {
            cluster: CLUSTER,
            table: TABLE,
            revision: Revision(script.revision),
            state: TableState::Creating,
            generation: TableGeneration(0),
            previous: TableGeneration(0),
            nodes: vec![NodeEntry {
                node: NodeId(1),
                incarnation,
                name: "n1".into(),
                address: String::new(),
                domain: "rack".into(),
            }],
            shards: vec![shard; spec.shards as usize],
            grants: vec![Grant {
                principal: "c1".into(),
                level: Level::Admin,
            }],
            spec,
        };
        script.maps.insert(TABLE, map);
    }

    pub fn reports_of(&self, epoch: u64, generation: u64) -> usize {
        let script = self.script.lock().unwrap();
        let fits = |r: &&ShardReport| {
            r.epoch.0 == epoch
                && r.generation.0 == generation
                && matches!(r.status, ShardStatus::Serving(_))
        };
        let mut shards: Vec<_> = script
            .reports
            .iter()
            .filter(fits)
            .map(|r| r.shard.shard)
            .collect();
        shards.sort_unstable();
        shards.dedup();
        shards.len()
    }
}

/// A hashed f32 table.
pub fn spec(dim: u32, optimizer: Optimizer) -> TableSpec {
    TableSpec {
        shards: 1,
        optimizer,
        default_value: 0.5,
        tenant: "default".into(),
        ..TableSpec::new("t", TableKind::Hashed, RowSchema::single(Dtype::F32, dim))
    }
}

pub fn sgd(lr: f64) -> Optimizer {
    Optimizer::Sgd {
        lr,
        momentum: 0.0,
        weight_decay: 0.0,
    }
}

pub fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

pub fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect()
}
