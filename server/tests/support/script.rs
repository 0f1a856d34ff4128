//! A catalogue that answers what the test has written down.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mneme_net::Link;
use mneme_proto::codec::{decode, encode, encode_bytes};
use mneme_proto::control::{
    CatalogueRequest, CatalogueResponse, Change, HeldShard, ShardReport, TableRef,
};
use mneme_proto::frame::FrameKind;
use mneme_proto::ids::{Generation, Incarnation, NodeId, Revision, TableId};
use mneme_proto::map::TableMap;
use mneme_proto::refusal::Refusal;

use super::{CLUSTER, TABLE};

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

/// Answers a link's requests.
pub async fn serve(link: Link, script: Arc<Mutex<Script>>) {
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
                let table = |map: &TableMap| Change::Table(map.table);
                let news = self.maps.values().filter(|m| m.revision > from);
                let mut changes: Vec<_> = news.map(table).collect();
                if self.maps.is_empty() && revision > from {
                    changes.push(Change::Dropped(TABLE));
                }
                CatalogueResponse::Changes { revision, changes }
            }
            other => panic!("a node does not ask {other:?}"),
        }
    }
}
