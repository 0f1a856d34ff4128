//! A member behind real links, and principals that talk to it.

// Each test binary uses its part of it; a panic here is a failed test.
#![allow(dead_code, clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mneme_meta::{Catalogue, CatalogueOptions, Clock};
use mneme_net::{Endpoint, Identity, Link, LinkOptions, Role, init_authority, issue};
use mneme_proto::codec;
use mneme_proto::control::{
    CatalogueRequest, CatalogueResponse, ShardReport, ShardStatus, TableRef,
};
use mneme_proto::frame::FrameKind;
use mneme_proto::ids::{
    Generation, Incarnation, NodeId, Revision, ShardId, ShardIndex, TableGeneration,
};
use mneme_proto::map::TableMap;
use mneme_proto::refusal::Refusal;
use tempfile::TempDir;

use crate::fixture::{region, registration};

/// Longer than anything here takes.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A directory with an authority, and certificates and members made in it.
pub struct Site {
    pub path: PathBuf,
    pub clock_ms: Arc<AtomicU64>,
    _dir: Option<TempDir>,
}

impl Site {
    /// A new one, gone with the value.
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self::make(dir.path());
        let mut site = Self::at(dir.path());
        site._dir = Some(dir);
        site
    }

    /// Makes one in `path`.
    pub fn make(path: &Path) {
        init_authority(&path.join("ca")).unwrap();
    }

    /// The one in `path`.
    pub fn at(path: &Path) -> Self {
        Self {
            path: path.to_path_buf(),
            clock_ms: Arc::new(AtomicU64::new(1_000_000)),
            _dir: None,
        }
    }

    pub fn identity(&self, role: Role, name: &str) -> Identity {
        let out = self.path.join(format!("{role}-{name}"));
        issue(&self.path.join("ca"), role, name, &out).unwrap();
        Identity::load(&out).unwrap()
    }

    pub fn data(&self) -> PathBuf {
        self.path.join("data")
    }

    pub fn options(&self, data: &Path, init: bool) -> CatalogueOptions {
        let clock_ms = self.clock_ms.clone();
        CatalogueOptions {
            id: 1,
            listen: "127.0.0.1:0".parse().unwrap(),
            data: data.to_path_buf(),
            identity: self.identity(Role::Catalogue, "m1"),
            init,
            links: LinkOptions::default(),
            http: Some("127.0.0.1:0".parse().unwrap()),
            clock: Clock::from_fn(move || Duration::from_millis(clock_ms.load(Ordering::Relaxed))),
        }
    }

    pub async fn open(&self, init: bool) -> Catalogue {
        Catalogue::open(self.options(&self.data(), init))
            .await
            .unwrap()
    }

    pub async fn dial(&self, catalogue: &Catalogue, role: Role, name: &str) -> Caller {
        let endpoint = Endpoint::dialer(self.identity(role, name), LinkOptions::default());
        let endpoint = endpoint.unwrap();
        let deadline = Instant::now() + PATIENCE;
        let addr = catalogue.local_addr();
        let link = endpoint
            .connect(addr, Role::Catalogue, deadline)
            .await
            .unwrap();
        Caller {
            link,
            _endpoint: endpoint,
        }
    }
}

/// One principal's link.
pub struct Caller {
    pub link: Link,
    _endpoint: Endpoint,
}

impl Caller {
    pub async fn ask(&self, request: CatalogueRequest) -> CatalogueResponse {
        let body = vec![codec::encode_bytes(&request)];
        let deadline = Instant::now() + PATIENCE;
        let answer = self
            .link
            .call(FrameKind::Control, 7, body, deadline)
            .await
            .unwrap();
        assert_eq!(answer.kind, FrameKind::Control);
        codec::decode(&answer.body.into_contiguous()).unwrap()
    }

    pub async fn refused(&self, request: CatalogueRequest) -> Refusal {
        match self.ask(request).await {
            CatalogueResponse::Refused(refusal) => refusal,
            other => panic!("not refused: {other:?}"),
        }
    }

    pub async fn map(&self, request: CatalogueRequest) -> TableMap {
        match self.ask(request).await {
            CatalogueResponse::Map(map) => codec::decode(&map).unwrap(),
            other => panic!("no map: {other:?}"),
        }
    }

    pub async fn table(&self, name: &str) -> TableMap {
        self.map(CatalogueRequest::GetMap { table: named(name) })
            .await
    }

    pub async fn revision(&self) -> Revision {
        match self.ask(CatalogueRequest::Hello).await {
            CatalogueResponse::Hello { revision, .. } => revision,
            other => panic!("no greeting: {other:?}"),
        }
    }
}

pub fn named(name: &str) -> TableRef {
    TableRef::Name {
        tenant: "default".into(),
        name: name.into(),
    }
}

/// A node that serves whatever it is told to, as the server crate's does.
pub struct TestNode {
    pub caller: Caller,
    pub node: NodeId,
    pub incarnation: Incarnation,
    pub next: u64,
}

impl TestNode {
    pub async fn enter(site: &Site, catalogue: &Catalogue, name: &str) -> Self {
        let caller = site.dial(catalogue, Role::Node, name).await;
        match caller
            .ask(CatalogueRequest::Register(registration(name, vec![])))
            .await
        {
            CatalogueResponse::Registered {
                node,
                incarnation,
                first_generation,
                ..
            } => Self {
                caller,
                node,
                incarnation,
                next: first_generation.0,
            },
            other => panic!("not registered: {other:?}"),
        }
    }

    pub async fn maps(&self) -> Vec<TableMap> {
        let request = CatalogueRequest::NodeTables { node: self.node };
        match self.caller.ask(request).await {
            CatalogueResponse::Maps { maps, .. } => {
                maps.iter().map(|m| codec::decode(m).unwrap()).collect()
            }
            other => panic!("no maps: {other:?}"),
        }
    }

    /// Reports every shard of this node that has no region yet; `fail` says it cannot.
    pub async fn work(&mut self, fail: bool) {
        let mut shards = Vec::new();
        for map in self.maps().await {
            for (shard, index) in map.shards.iter().zip(0..) {
                let replica = &shard.replicas[0];
                let mine = map.nodes[replica.node as usize].node == self.node;
                if !mine || replica.region.is_some() || replica.lost {
                    continue;
                }
                let status = if fail {
                    ShardStatus::Failed("pool dram:1MiB is full".into())
                } else {
                    self.next += 1;
                    ShardStatus::Serving(region(Generation(self.next - 1), 0))
                };
                shards.push(ShardReport {
                    shard: ShardId {
                        table: map.table,
                        shard: ShardIndex(index),
                    },
                    epoch: shard.epoch,
                    generation: TableGeneration(0),
                    status,
                });
            }
        }
        let request = CatalogueRequest::Report {
            node: self.node,
            incarnation: self.incarnation,
            shards,
        };
        let answer = self.caller.ask(request).await;
        assert!(
            matches!(answer, CatalogueResponse::Done { .. }),
            "{answer:?}"
        );
    }

    /// Follows the catalogue for ever, as a node does.
    pub async fn run(mut self, fail: bool) {
        let mut from = Revision(0);
        loop {
            let watch = CatalogueRequest::Watch {
                from,
                wait_ms: 10_000,
            };
            match self.caller.ask(watch).await {
                CatalogueResponse::Changes { revision, .. }
                | CatalogueResponse::Compacted { revision } => from = revision,
                other => panic!("not a watch's answer: {other:?}"),
            }
            self.work(fail).await;
        }
    }

    pub fn heartbeat(&self) -> CatalogueRequest {
        CatalogueRequest::Heartbeat {
            node: self.node,
            incarnation: self.incarnation,
            pools: vec![],
        }
    }
}
