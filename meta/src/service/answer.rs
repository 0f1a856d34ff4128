//! Requests and their answers.
//!
//! Changes go through Raft. Reads that decide something (a heartbeat, a node's tables) wait for a
//! quorum round first; maps, lists and watches carry the revision they are of.

use std::collections::BTreeMap;
use std::sync::Arc;

use mneme_net::{Principal, Role};
use mneme_proto::codec;
use mneme_proto::control::{
    CatalogueRequest, CatalogueResponse, ClusterStatus, NodeRegistration, NodeStatus, PoolReport,
    TableRef,
};
use mneme_proto::grant::Level;
use mneme_proto::ids::{Incarnation, NodeId, TableId};
use mneme_proto::map::TableMap;
use mneme_proto::refusal::Refusal;
use mneme_proto::schema::TableSpec;

use crate::service::access;
use crate::service::member::{Declined, Member};
use crate::state::State;
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

/// A table's map with its grants, which its nodes check.
fn node_map(state: &State, table: &TableRecord) -> TableMap {
    TableMap {
        grants: table.grants(),
        ..state.map(table)
    }
}

impl Member {
    /// Answers one request of `peer`.
    pub(super) async fn answer(
        self: &Arc<Self>,
        peer: &Principal,
        mut request: CatalogueRequest,
    ) -> CatalogueResponse {
        let word = access::word(&request);
        let allowed = self
            .view
            .read(|state| access::check(peer, &mut request, state));
        let answer = match allowed {
            Ok(()) => self.decide(peer, request).await,
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

    async fn decide(&self, peer: &Principal, request: CatalogueRequest) -> Answer {
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
            Ask::CreateTable {
                request,
                spec,
                loading,
            } => self.create_table(peer, request, spec, loading).await,
            Ask::DropTable { table } => self.done(Command::DropTable { table }).await,
            Ask::ResetTable { table } => {
                let command = Command::ResetTable { table };
                self.until_served(peer, command, false).await
            }
            Ask::BeginLoad { table } => self.begin_load(peer, table).await,
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
            Ask::ListTables => Ok(self.list_tables(peer)),
            Ask::SetTable { table, options } => {
                self.done(Command::SetTable { table, options }).await
            }
            Ask::Versions { table } => self.versions(&table).await,
            Ask::GetMap { table } => Ok(CatalogueResponse::Map(self.encoded_map(peer, &table)?)),
            Ask::Watch { from, wait_ms } => Ok(self.watch(peer, from, wait_ms).await),
            Ask::Status => self.status(peer),
            Ask::Grant {
                table,
                principal,
                level,
            } => self.grant(table, principal, level).await,
            Ask::Grants { table } => self.grants(&table).await,
        }
    }

    fn list_tables(&self, peer: &Principal) -> CatalogueResponse {
        let shown = |table: &TableRecord| access::may_read(peer, table);
        CatalogueResponse::Tables(self.view.read(|state| state.summaries(shown)))
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
    async fn create_table(
        &self,
        peer: &Principal,
        request: u64,
        spec: TableSpec,
        loading: bool,
    ) -> Answer {
        let candidates = {
            let (liveness, now) = self.liveness();
            self.view.read(|state| liveness.candidates(state, now))
        };
        let command = Command::CreateTable {
            creator: (peer.role == Role::Client).then(|| peer.name.clone()),
            request,
            spec,
            loading,
            candidates,
        };
        self.until_served(peer, command, true).await
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
                .map(|table| codec::encode(&node_map(state, table)).to_vec())
                .collect(),
        }))
    }

    async fn begin_load(&self, peer: &Principal, table: TableRef) -> Answer {
        match self.write(Command::BeginLoad { table }).await? {
            Outcome::Load {
                table, generation, ..
            } => Ok(CatalogueResponse::Load {
                generation,
                map: self.encoded_map(peer, &TableRef::Id(table))?,
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

    async fn grant(&self, table: TableRef, principal: String, level: Option<Level>) -> Answer {
        let command = Command::Grant {
            table,
            principal,
            level,
        };
        self.done(command).await
    }

    /// Decides what is granted next, so it is not older than the question.
    async fn grants(&self, table: &TableRef) -> Answer {
        self.linearizable().await?;
        let grants = self
            .view
            .read(|state| state.table(table).map(TableRecord::grants))?;
        Ok(CatalogueResponse::Grants(grants))
    }

    /// A command whose answer is that it is done.
    pub(super) async fn done(&self, command: Command) -> Answer {
        match self.write(command).await? {
            Outcome::Done { revision } => Ok(CatalogueResponse::Done { revision }),
            other => Err(unexpected(&other)),
        }
    }

    /// A command that makes a table's shards; the answer waits for its nodes.
    async fn until_served(&self, peer: &Principal, command: Command, created: bool) -> Answer {
        let table: TableId = match self.write(command).await? {
            Outcome::Table { table, .. } => table,
            other => return Err(unexpected(&other)),
        };
        self.wait_until_served(table, created).await?;
        let map = self.encoded_map(peer, &TableRef::Id(table))?;
        Ok(CatalogueResponse::Map(map))
    }

    fn encoded_map(&self, peer: &Principal, table: &TableRef) -> Result<Vec<u8>, Refusal> {
        let map_of = if peer.role == Role::Node {
            node_map
        } else {
            State::map
        };
        let map = self
            .view
            .read(|state| state.table(table).map(|record| map_of(state, record)))?;
        Ok(codec::encode(&map).to_vec())
    }

    /// Members, nodes and how full they are is everybody's to know who may make tables; of the
    /// tables, those that the principal may read.
    fn status(&self, peer: &Principal) -> Answer {
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
                tables: state.summaries(|table| access::may_read(peer, table)),
            }
        });
        Ok(CatalogueResponse::Status(status))
    }
}
