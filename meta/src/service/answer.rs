//! Requests and their answers.
//!
//! Changes go through Raft. Reads that decide something (a heartbeat, a node's tables) wait for a
//! quorum round first; maps, lists and watches carry the revision they are of.

use std::collections::BTreeMap;
use std::sync::Arc;

use mneme_net::Principal;
use mneme_proto::codec;
use mneme_proto::control::{
    CatalogueRequest, CatalogueResponse, ClusterStatus, NodeRegistration, NodeStatus, PoolReport,
    TableRef,
};
use mneme_proto::ids::{Incarnation, NodeId, TableId};
use mneme_proto::refusal::Refusal;
use mneme_proto::schema::TableSpec;

use crate::service::access;
use crate::service::member::{Declined, Member};
use crate::state::command::{Command, Outcome};
use crate::state::nodes::check_pools;
use crate::state::record::{NodeRecord, TableRecord};

type Answer = Result<CatalogueResponse, Declined>;

/// An outcome that the command cannot have; reported, not guessed around.
fn unexpected(outcome: &Outcome) -> Declined {
    Refusal::Internal {
        why: format!("the catalogue answered {outcome:?}"),
    }
    .into()
}

impl Member {
    /// Answers one request of `peer`.
    pub(super) async fn answer(
        self: &Arc<Self>,
        peer: &Principal,
        request: CatalogueRequest,
    ) -> CatalogueResponse {
        let word = access::word(&request);
        let allowed = self.view.read(|state| access::check(peer, &request, state));
        let answer = match allowed {
            Ok(()) => self.decide(request).await,
            Err(refusal) => Err(refusal.into()),
        };
        let outcome = match &answer {
            Ok(_) => "ok",
            Err(Declined::Refused(_)) => "refused",
            Err(Declined::NotLeader(_)) => "not_leader",
        };
        self.metrics.count_request(word, outcome);
        answer.unwrap_or_else(CatalogueResponse::from)
    }

    async fn decide(&self, request: CatalogueRequest) -> Answer {
        use CatalogueRequest as Ask;
        match request {
            Ask::Hello => self.hello(),
            Ask::Register(registration) => self.register(registration).await,
            Ask::Heartbeat {
                node,
                incarnation,
                pools,
            } => self.heartbeat(node, incarnation, pools).await,
            Ask::Report {
                node,
                incarnation,
                shards,
            } => {
                let command = Command::Report {
                    node,
                    incarnation,
                    shards,
                };
                self.done(command).await
            }
            Ask::TakeGenerations {
                node,
                incarnation,
                count,
            } => self.take_generations(node, incarnation, count).await,
            Ask::NodeTables { node } => self.node_tables(node).await,
            Ask::CreateTable { request, spec } => self.create_table(request, spec).await,
            Ask::DropTable { table } => self.done(Command::DropTable { table }).await,
            Ask::ResetTable { table } => {
                let command = Command::ResetTable { table };
                self.until_served(command, false).await
            }
            Ask::BeginLoad { table } => self.begin_load(table).await,
            Ask::Publish {
                table,
                generation,
                replicas,
            } => {
                let command = Command::Publish {
                    table,
                    generation,
                    replicas,
                };
                self.done(command).await
            }
            Ask::ListTables => {
                let tables = self.view.read(|state| state.summaries());
                Ok(CatalogueResponse::Tables(tables))
            }
            Ask::Versions { table } => self.versions(&table).await,
            Ask::GetMap { table } => Ok(CatalogueResponse::Map(self.encoded_map(&table)?)),
            Ask::Watch { from, wait_ms } => Ok(self.watch(from, wait_ms).await),
            Ask::Status => self.status(),
        }
    }

    fn hello(&self) -> Answer {
        let (cluster, revision) = self.view.read(|s| (s.cluster(), s.revision()));
        let cluster = cluster.ok_or_else(|| Refusal::Unavailable {
            why: "the catalogue is not founded yet".into(),
        })?;
        Ok(CatalogueResponse::Hello {
            cluster,
            revision,
            leader: self.leader(),
        })
    }

    async fn register(&self, registration: NodeRegistration) -> Answer {
        let (name, pools) = (registration.name.clone(), registration.pools.clone());
        let outcome = self.write(Command::Register(registration)).await?;
        let Outcome::Registered {
            node,
            incarnation,
            generations,
            revision,
        } = outcome
        else {
            return Err(unexpected(&outcome));
        };
        tracing::info!(%name, %node, %incarnation, "a node registered");
        let (mut liveness, now) = self.liveness();
        liveness.hear(node, now, pools);
        Ok(CatalogueResponse::Registered {
            cluster: self.view.read(|s| s.cluster()).unwrap_or_default(),
            node,
            incarnation,
            first_generation: generations.first,
            generations: generations.count,
            revision,
        })
    }

    async fn take_generations(&self, node: NodeId, incarnation: Incarnation, count: u32) -> Answer {
        let command = Command::TakeGenerations {
            node,
            incarnation,
            count,
        };
        match self.write(command).await? {
            Outcome::Generations(block) => Ok(CatalogueResponse::Generations {
                first: block.first,
                count: block.count,
            }),
            other => Err(unexpected(&other)),
        }
    }

    /// The nodes that may take shards are the leader's to know, so they travel in the command.
    async fn create_table(&self, request: u64, spec: TableSpec) -> Answer {
        let candidates = {
            let (liveness, now) = self.liveness();
            self.view.read(|state| liveness.candidates(state, now))
        };
        let command = Command::CreateTable {
            request,
            spec,
            candidates,
        };
        self.until_served(command, true).await
    }

    /// A renewal is answered only after a quorum round begun after it arrived (DESIGN 10), so a
    /// deposed leader renews nobody.
    async fn heartbeat(
        &self,
        node: NodeId,
        incarnation: Incarnation,
        pools: Vec<PoolReport>,
    ) -> Answer {
        check_pools(&pools)?;
        self.linearizable().await?;
        let revision = self.view.read(|state| {
            state.check_incarnation(node, incarnation)?;
            Ok::<_, Refusal>(state.revision())
        })?;
        let (mut liveness, now) = self.liveness();
        liveness.hear(node, now, pools);
        Ok(CatalogueResponse::Alive { revision })
    }

    async fn node_tables(&self, node: NodeId) -> Answer {
        self.linearizable().await?;
        Ok(self.view.read(|state| CatalogueResponse::Maps {
            revision: state.revision(),
            maps: state
                .tables()
                .filter(|table| table.is_on(node))
                .map(|table| codec::encode(&state.map(table)).to_vec())
                .collect(),
        }))
    }

    async fn begin_load(&self, table: TableRef) -> Answer {
        match self.write(Command::BeginLoad { table }).await? {
            Outcome::Load {
                table, generation, ..
            } => Ok(CatalogueResponse::Load {
                generation,
                map: self.encoded_map(&TableRef::Id(table))?,
            }),
            other => Err(unexpected(&other)),
        }
    }

    /// Decides what is published next, so it is not older than the question.
    async fn versions(&self, table: &TableRef) -> Answer {
        self.linearizable().await?;
        let versions = self
            .view
            .read(|state| state.table(table).map(TableRecord::versions))?;
        Ok(CatalogueResponse::Versions(versions))
    }

    /// A command whose answer is that it is done.
    pub(super) async fn done(&self, command: Command) -> Answer {
        match self.write(command).await? {
            Outcome::Done { revision } => Ok(CatalogueResponse::Done { revision }),
            other => Err(unexpected(&other)),
        }
    }

    /// A command that makes a table's shards; the answer waits for its nodes.
    async fn until_served(&self, command: Command, created: bool) -> Answer {
        let table: TableId = match self.write(command).await? {
            Outcome::Table { table, .. } => table,
            other => return Err(unexpected(&other)),
        };
        self.wait_until_served(table, created).await?;
        let map = self.encoded_map(&TableRef::Id(table))?;
        Ok(CatalogueResponse::Map(map))
    }

    fn encoded_map(&self, table: &TableRef) -> Result<Vec<u8>, Refusal> {
        let map = self
            .view
            .read(|state| state.table(table).map(|record| state.map(record)))?;
        Ok(codec::encode(&map).to_vec())
    }

    fn status(&self) -> Answer {
        let (liveness, now) = self.liveness();
        let status = self.view.read(|state| {
            let mut shards = BTreeMap::<NodeId, u32>::new();
            for replica in state.tables().flat_map(|t| t.replicas()) {
                *shards.entry(replica.node).or_default() += 1;
            }
            let node_status = |node: &NodeRecord| {
                let id = node.entry.node;
                NodeStatus {
                    entry: node.entry.clone(),
                    alive: liveness.is_alive(id, now),
                    silent_ms: liveness.silent(id, now).as_millis() as u64,
                    pools: liveness.pools(node).to_vec(),
                    shards: shards.get(&id).copied().unwrap_or(0),
                }
            };
            ClusterStatus {
                cluster: state.cluster().unwrap_or_default(),
                revision: state.revision(),
                leader: self.leader().map_or(0, |(id, _)| id),
                members: self.members(),
                nodes: state.nodes().map(node_status).collect(),
                tables: state.summaries(),
            }
        });
        Ok(CatalogueResponse::Status(status))
    }
}
