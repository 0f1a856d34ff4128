//! A fake cluster over real links: a catalogue of one member and nodes that answer frames from
//! plain maps, misbehave when told to, and remember what they were asked.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use mneme_client::{Client, ClientConfig};
use mneme_net::{Endpoint, HostPort, Identity, LinkOptions, Request, Role, init_authority, issue};
use mneme_proto::codec::{decode, encode, encode_bytes};
use mneme_proto::control::{CatalogueRequest, CatalogueResponse, Change, TableRef};
use mneme_proto::frame::FrameKind;
use mneme_proto::ids::{ClusterId, Epoch, Incarnation, NodeId, Revision, TableGeneration, TableId};
use mneme_proto::map::{NodeEntry, ReplicaEntry, ReplicaRole, ShardEntry, TableMap, TableState};
use mneme_proto::refusal::Refusal;
use mneme_proto::schema::{Dtype, Optimizer, RowSchema, TableKind, TableSpec};
use tempfile::TempDir;
use tokio::sync::Notify;

use crate::node::Node;

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no test panics with a lock held")
}

/// Waits for a condition, with a deadline.
pub async fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        tokio::task::yield_now().await;
    }
}

/// What catalogue and nodes know of the tables.
#[derive(Default)]
pub struct World {
    maps: Mutex<Vec<TableMap>>,
    revision: AtomicU64,
    changed: Notify,
    /// How often a map was asked for.
    pub maps_asked: AtomicU64,
    generations: AtomicU64,
}

impl World {
    pub fn map(&self, table: u64) -> Option<TableMap> {
        lock(&self.maps)
            .iter()
            .find(|map| map.table.0 == table)
            .cloned()
    }

    /// Changes a table's map, as a command of the catalogue would.
    pub fn change(&self, table: u64, edit: impl FnOnce(&mut TableMap)) {
        let mut maps = lock(&self.maps);
        let map = maps
            .iter_mut()
            .find(|map| map.table.0 == table)
            .expect("there");
        map.revision = Revision(self.revision.fetch_add(1, Ordering::SeqCst) + 1);
        edit(map);
        drop(maps);
        self.changed.notify_waiters();
    }

    fn find(&self, table: &TableRef) -> Option<TableMap> {
        let is = |map: &&TableMap| match table {
            TableRef::Id(id) => map.table == *id,
            TableRef::Name { tenant, name } => map.spec.name == *name && map.spec.tenant == *tenant,
        };
        lock(&self.maps).iter().find(is).cloned()
    }

    async fn answer(&self, request: CatalogueRequest) -> CatalogueResponse {
        let revision = || Revision(self.revision.load(Ordering::SeqCst));
        let unknown = |table: &TableRef| {
            CatalogueResponse::Refused(Refusal::UnknownTable {
                table: table.to_string(),
            })
        };
        match request {
            CatalogueRequest::Hello => CatalogueResponse::Hello {
                cluster: ClusterId(1),
                revision: revision(),
                leader: None,
            },
            CatalogueRequest::GetMap { table } => {
                self.maps_asked.fetch_add(1, Ordering::SeqCst);
                match self.find(&table) {
                    Some(map) => CatalogueResponse::Map(encode(&map).to_vec()),
                    None => unknown(&table),
                }
            }
            CatalogueRequest::Watch { from, wait_ms } => {
                let changed = self.changed.notified();
                if revision() <= from {
                    let wait = Duration::from_millis(wait_ms.into());
                    let _ = tokio::time::timeout(wait, changed).await;
                }
                let newer = |map: &&TableMap| map.revision > from;
                let maps = lock(&self.maps);
                let changes = maps
                    .iter()
                    .filter(newer)
                    .map(|map| Change::Table(map.table));
                CatalogueResponse::Changes {
                    revision: revision(),
                    changes: changes.collect(),
                }
            }
            CatalogueRequest::BeginLoad { table } => match self.find(&table) {
                Some(map) => CatalogueResponse::Load {
                    generation: TableGeneration(
                        self.generations.fetch_add(1, Ordering::SeqCst) + 1,
                    ),
                    map: encode(&map).to_vec(),
                },
                None => unknown(&table),
            },
            CatalogueRequest::Publish {
                table,
                generation,
                replicas,
            } => {
                let map = self.map(table.0).expect("a table being loaded");
                assert_eq!(replicas.len(), map.shards.len(), "every replica is named");
                self.change(table.0, |map| {
                    map.state = TableState::Sealed;
                    map.previous = map.generation;
                    map.generation = generation;
                });
                CatalogueResponse::Done {
                    revision: revision(),
                }
            }
            other => CatalogueResponse::Refused(Refusal::Internal {
                why: format!("{other:?}"),
            }),
        }
    }
}

/// A running fake cluster.
pub struct Cluster {
    folder: TempDir,
    pub world: Arc<World>,
    catalogue: Endpoint,
    pub nodes: Vec<Node>,
}

const LOOPBACK: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

impl Cluster {
    pub async fn start(nodes: usize) -> Self {
        Self::start_with(nodes, LinkOptions::default()).await
    }

    pub async fn start_with(nodes: usize, options: LinkOptions) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        init_authority(folder.path()).expect("an authority");
        let world = Arc::new(World::default());
        let identity = |role, name: &str| {
            let out = folder.path().join(name);
            issue(folder.path(), role, name, &out).expect("a certificate");
            Identity::load(&out).expect("an identity")
        };
        let member = identity(Role::Catalogue, "m1");
        let catalogue = Endpoint::bind(LOOPBACK, member, LinkOptions::default()).expect("a port");
        tokio::spawn(serve_catalogue(catalogue.clone(), world.clone()));
        let nodes = (0..nodes).map(|n| {
            let identity = identity(Role::Node, &format!("n{n}"));
            let endpoint = Endpoint::bind(LOOPBACK, identity, options.clone()).expect("a port");
            Node::start(n, endpoint, world.clone())
        });
        let nodes = nodes.collect();
        identity(Role::Client, "client");
        Self {
            folder,
            world,
            catalogue,
            nodes,
        }
    }

    pub fn config(&self) -> ClientConfig {
        let seed: HostPort = self
            .catalogue
            .local_addr()
            .to_string()
            .parse()
            .expect("an address");
        ClientConfig::new(vec![seed], self.folder.path().join("client"))
    }

    pub async fn client(&self) -> Client {
        Client::connect(self.config()).await.expect("connected")
    }

    /// A table `t` of f32 rows with sgd at rate 0.5, shards dealt over all nodes.
    pub fn table(&self, kind: TableKind, dim: u32, shards: u32) -> u64 {
        let nodes = self.nodes.iter().map(|node| NodeEntry {
            node: NodeId(node.number() as u64 + 1),
            incarnation: Incarnation(1),
            name: format!("n{}", node.number()),
            address: node.endpoint.local_addr().to_string(),
            domain: String::new(),
        });
        let replica = |shard: u32| ReplicaEntry {
            node: shard % self.nodes.len() as u32,
            incarnation: Incarnation(1),
            role: ReplicaRole::Primary,
            region: None,
            lost: false,
        };
        let shards_made = (0..shards).map(|s| ShardEntry {
            epoch: Epoch(1),
            replicas: vec![replica(s)],
        });
        let mut maps = lock(&self.world.maps);
        let table = maps.len() as u64 + 1;
        maps.push(TableMap {
            cluster: ClusterId(1),
            table: TableId(table),
            revision: Revision(self.world.revision.load(Ordering::SeqCst)),
            spec: TableSpec {
                shards,
                optimizer: Optimizer::Sgd {
                    lr: 0.5,
                    momentum: 0.0,
                    weight_decay: 0.0,
                },
                tenant: "default".into(),
                ..TableSpec::new("t", kind, RowSchema::single(Dtype::F32, dim))
            },
            state: TableState::Mutable,
            generation: TableGeneration(0),
            previous: TableGeneration(0),
            nodes: nodes.collect(),
            shards: shards_made.collect(),
            grants: Vec::new(),
        });
        table
    }

    pub async fn stop_catalogue(&self) {
        self.catalogue
            .close("off", Instant::now() + Duration::from_secs(1))
            .await;
    }
}

async fn serve_catalogue(endpoint: Endpoint, world: Arc<World>) {
    while let Some(link) = endpoint.accept().await {
        let world = world.clone();
        tokio::spawn(async move {
            while let Some(request) = link.next().await {
                tokio::spawn(answer(request, world.clone()));
            }
        });
    }
}

async fn answer(mut request: Request, world: Arc<World>) {
    let Ok((_, _, body)) = request.read().await else {
        return;
    };
    let asked = decode(&body.into_contiguous()).expect("a request");
    let response = world.answer(asked).await;
    let _ = request
        .answer(FrameKind::Control, vec![encode_bytes(&response)])
        .await;
}
