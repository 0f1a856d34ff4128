//! A scripted catalogue and a bare client, over real links: what a node needs around it.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use mneme_net::{Endpoint, HostPort, Identity, Link, LinkOptions, Role, init_authority, issue};
use mneme_proto::codec::{decode, encode, encode_bytes};
use mneme_proto::control::{
    CatalogueRequest, CatalogueResponse, HeldShard, NodeRequest, NodeResponse, ShardReport,
    ShardStatus, TableRef,
};
use mneme_proto::frame::{
    FrameKind, LoadHeader, Missing, PULL_WITH_STATE, PartOutcome, PullGroup, PullHeader,
    PulledView, PushHeader, PushMode, PushPart, PushedView,
};
use mneme_proto::ids::{
    ClusterId, Epoch, Generation, Incarnation, NodeId, Revision, SessionId, TableGeneration,
    TableId,
};
use mneme_proto::map::{NodeEntry, ReplicaEntry, ReplicaRole, ShardEntry, TableMap, TableState};
use mneme_proto::refusal::Refusal;
use mneme_proto::schema::{Dtype, Initializer, Optimizer, RowSchema, TableKind, TableSpec};
use mneme_server::{Node, NodeHandle, NodeOptions};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

pub const CLUSTER: ClusterId = ClusterId(77);
pub const TABLE: TableId = TableId(9);

/// What the scripted catalogue knows.
#[derive(Default)]
pub struct Script {
    pub revision: u64,
    pub incarnation: u64,
    pub generations: u64,
    pub maps: BTreeMap<TableId, TableMap>,
    pub held: Vec<HeldShard>,
    pub reports: Vec<ShardReport>,
    /// Whether a registration finds the rows of its earlier life lost.
    pub loses: bool,
    /// Answers nothing while set.
    pub silent: bool,
    /// Refuses the heartbeats of every incarnation below.
    pub stale_below: u64,
}

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
        });
        let node = node.unwrap();
        until("the node to be ready", || node.ready());
        node
    }

    pub fn client(&self, node: &NodeHandle) -> Client {
        let ca = self.dir.path().join("ca");
        let link = self.runtime.block_on(async {
            let me = identity(&ca, Role::Client, "c1");
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

async fn serve(link: Link, script: Arc<Mutex<Script>>) {
    while let Some(mut request) = link.next().await {
        let script = Arc::clone(&script);
        tokio::spawn(async move {
            let Ok((_, FrameKind::Control, body)) = request.read().await else {
                return;
            };
            let asked: CatalogueRequest = decode(&body.into_contiguous()).unwrap();
            if let CatalogueRequest::Watch { from, .. } = asked {
                // A bounded wait for news, as the catalogue's own.
                let deadline = Instant::now() + Duration::from_millis(500);
                while script.lock().unwrap().revision <= from.0 && Instant::now() < deadline {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
            let silent = script.lock().unwrap().silent;
            if silent {
                return;
            }
            let answer = script.lock().unwrap().answer(asked);
            let _ = request
                .answer(FrameKind::Control, vec![encode_bytes(&answer)])
                .await;
        });
    }
}

impl Script {
    fn answer(&mut self, asked: CatalogueRequest) -> CatalogueResponse {
        use CatalogueRequest as Ask;
        let revision = Revision(self.revision);
        match asked {
            Ask::Hello => CatalogueResponse::Hello {
                cluster: CLUSTER,
                revision,
                leader: None,
            },
            Ask::Register(registration) => {
                self.incarnation += 1;
                self.held = registration.held;
                for map in self.maps.values_mut() {
                    self.revision += 1;
                    map.revision = Revision(self.revision);
                    map.nodes[0].incarnation = Incarnation(self.incarnation);
                    for shard in &mut map.shards {
                        shard.epoch.0 += 1;
                        shard.replicas[0].incarnation = Incarnation(self.incarnation);
                        shard.replicas[0].lost = self.loses;
                    }
                }
                let first = self.generations + 1;
                self.generations += 4;
                CatalogueResponse::Registered {
                    cluster: CLUSTER,
                    node: NodeId(1),
                    incarnation: Incarnation(self.incarnation),
                    first_generation: Generation(first),
                    generations: 4,
                    revision,
                }
            }
            Ask::Heartbeat { incarnation, .. } if incarnation.0 < self.stale_below => {
                CatalogueResponse::Refused(Refusal::StaleIncarnation { node: "n1".into() })
            }
            Ask::Heartbeat { .. } => CatalogueResponse::Alive { revision },
            Ask::Report { shards, .. } => {
                self.reports.extend(shards);
                CatalogueResponse::Done { revision }
            }
            Ask::TakeGenerations { count, .. } => {
                let first = self.generations + 1;
                self.generations += u64::from(count);
                CatalogueResponse::Generations {
                    first: Generation(first),
                    count,
                }
            }
            Ask::NodeTables { .. } => CatalogueResponse::Maps {
                revision,
                maps: self.maps.values().map(|m| encode(m).to_vec()).collect(),
            },
            Ask::GetMap {
                table: TableRef::Id(table),
            } => match self.maps.get(&table) {
                Some(map) => CatalogueResponse::Map(encode(map).to_vec()),
                None => CatalogueResponse::Refused(Refusal::UnknownTable {
                    table: table.to_string(),
                }),
            },
            Ask::Watch { from, .. } => {
                let table = |map: &TableMap| mneme_proto::control::Change::Table(map.table);
                let news = self.maps.values().filter(|m| m.revision > from);
                let mut changes: Vec<_> = news.map(table).collect();
                if self.maps.is_empty() && revision > from {
                    changes.push(mneme_proto::control::Change::Dropped(TABLE));
                }
                CatalogueResponse::Changes { revision, changes }
            }
            other => panic!("a node does not ask {other:?}"),
        }
    }
}

/// A hashed f32 table.
pub fn spec(dim: u32, optimizer: Optimizer) -> TableSpec {
    TableSpec {
        name: "t".into(),
        tenant: "default".into(),
        kind: TableKind::Hashed,
        schema: RowSchema::single(Dtype::F32, dim),
        shards: 1,
        optimizer,
        init: Initializer::Zeros,
        seed: 1,
        default_value: 0.5,
        padding_key: None,
    }
}

pub fn sgd(lr: f32) -> Optimizer {
    Optimizer::Sgd {
        lr,
        momentum: 0.0,
        weight_decay: 0.0,
    }
}

/// One pull's rows as floats, with status bytes; refusals of its one group as an error.
pub type Rows = Result<Vec<(u8, Vec<f32>)>, Refusal>;

pub struct Client {
    pub link: Link,
    handle: tokio::runtime::Handle,
}

impl Client {
    pub fn call(&self, kind: FrameKind, body: Vec<u8>) -> Result<Bytes, Refusal> {
        let deadline = Instant::now() + Duration::from_secs(20);
        let call = self.link.call(kind, 1, vec![body.into()], deadline);
        let answer = self.handle.block_on(call).unwrap();
        let body = answer.body.into_contiguous();
        if answer.kind == FrameKind::Refused {
            return Err(decode::<Refusal>(&body).unwrap());
        }
        Ok(body)
    }

    pub fn control(&self, request: NodeRequest) -> Result<NodeResponse, Refusal> {
        let body = self.call(FrameKind::Control, encode(&request).to_vec())?;
        match decode(&body).unwrap() {
            NodeResponse::Refused(refusal) => Err(refusal),
            answer => Ok(answer),
        }
    }

    pub fn open(&self, epoch: u64) -> Result<SessionId, Refusal> {
        let shards = vec![(mneme_proto::ids::ShardIndex(0), Epoch(epoch))];
        match self.control(NodeRequest::OpenSessions {
            table: TABLE,
            shards,
        })? {
            NodeResponse::Sessions(sessions) => Ok(sessions[0]),
            other => panic!("{other:?}"),
        }
    }

    /// One part to shard 0.
    pub fn push(
        &self,
        epoch: u64,
        session: SessionId,
        sequence: u64,
        mode: PushMode,
        keys: &[u64],
        payload: &[u8],
    ) -> Result<PartOutcome, Refusal> {
        let header = PushHeader {
            table: TABLE.0.into(),
            step: 0.into(),
            parts: 1.into(),
            keys: (keys.len() as u32).into(),
            value_bytes: ((payload.len() / keys.len().max(1)) as u32).into(),
            mode: mode as u8,
            reserved: [0; 3],
        };
        let part = PushPart {
            shard: 0.into(),
            keys: (keys.len() as u32).into(),
            epoch: epoch.into(),
            session: session.0.into(),
            sequence: sequence.into(),
        };
        let keys: Vec<U64> = keys.iter().map(|k| (*k).into()).collect();
        let body = [header.as_bytes(), part.as_bytes(), keys.as_bytes(), payload].concat();
        let body = self.call(FrameKind::Push, body)?;
        let view = PushedView::parse(&body).unwrap();
        let outcome = view.outcomes[0];
        match outcome.refusal.get() {
            0 => Ok(outcome),
            n => Err(decode::<Vec<Refusal>>(view.refusals)
                .unwrap()
                .remove(n as usize - 1)),
        }
    }

    pub fn pull(&self, epoch: u64, generation: u64, missing: Missing, keys: &[u64]) -> Rows {
        self.pull_with(epoch, generation, missing, keys, 0)
    }

    pub fn pull_state(&self, epoch: u64, keys: &[u64]) -> Rows {
        self.pull_with(epoch, 0, Missing::Error, keys, PULL_WITH_STATE)
    }

    fn pull_with(
        &self,
        epoch: u64,
        generation: u64,
        missing: Missing,
        keys: &[u64],
        flags: u8,
    ) -> Rows {
        let header = PullHeader {
            table: TABLE.0.into(),
            generation: generation.into(),
            groups: 1.into(),
            keys: (keys.len() as u32).into(),
            missing: missing as u8,
            flags,
            reserved: [0; 6],
        };
        let group = PullGroup {
            shard: 0.into(),
            keys: (keys.len() as u32).into(),
            epoch: epoch.into(),
        };
        let keys: Vec<U64> = keys.iter().map(|k| (*k).into()).collect();
        let body = [header.as_bytes(), group.as_bytes(), keys.as_bytes()].concat();
        let body = self.call(FrameKind::Pull, body)?;
        let view = PulledView::parse(&body).unwrap();
        let refusal = view.outcomes[0].refusal.get();
        if refusal > 0 {
            assert!(view.rows.iter().chain(view.statuses).all(|byte| *byte == 0));
            let mut refusals = decode::<Vec<Refusal>>(view.refusals).unwrap();
            return Err(refusals.remove(refusal as usize - 1));
        }
        let row_bytes = (view.header.row_bytes.get() as usize).max(1);
        let rows = view.rows.chunks_exact(row_bytes).map(floats);
        Ok(view.statuses.iter().copied().zip(rows).collect())
    }

    pub fn load(
        &self,
        generation: u64,
        first: u64,
        keys: Option<&[u64]>,
        rows: &[f32],
        count: u32,
    ) -> Result<(), Refusal> {
        let header = LoadHeader {
            table: TABLE.0.into(),
            generation: generation.into(),
            first: first.into(),
            shard: 0.into(),
            rows: count.into(),
            keyed: keys.is_some().into(),
            reserved: [0; 7],
        };
        let keys: Vec<U64> = keys
            .unwrap_or_default()
            .iter()
            .map(|k| (*k).into())
            .collect();
        let body = [header.as_bytes(), keys.as_bytes(), &bytes(rows)].concat();
        self.call(FrameKind::Load, body).map(|_| ())
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
