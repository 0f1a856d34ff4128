//! One member at work: its Raft, its view of the state, and who it heard from.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mneme_net::Endpoint;
use mneme_proto::control::CatalogueResponse;
use mneme_proto::map::TableState;
use mneme_proto::refusal::Refusal;
use openraft::error::{CheckIsLeaderError, ClientWriteError, ForwardToLeader, RaftError};
use openraft::{BasicNode, ServerState};

use crate::http::Probe;
use crate::metrics::{Gauges, Metrics};
use crate::raft::{MemberId, Raft};
use crate::service::clock::Clock;
use crate::service::liveness::Liveness;
use crate::state::command::{Command, Outcome};
use crate::state_machine::StateView;

/// What requests are answered from.
pub(super) struct Member {
    pub id: MemberId,
    pub raft: Raft,
    pub view: StateView,
    pub endpoint: Endpoint,
    pub metrics: Metrics,
    pub clock: Clock,
    liveness: Mutex<Liveness>,
}

/// Why a request has no answer of its own kind.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Declined {
    /// It is refused.
    Refused(Refusal),
    /// Another member leads.
    NotLeader(Option<(MemberId, String)>),
}

impl From<Refusal> for Declined {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Declined> for CatalogueResponse {
    fn from(declined: Declined) -> Self {
        match declined {
            Declined::Refused(refusal) => Self::Refused(refusal),
            Declined::NotLeader(leader) => Self::NotLeader { leader },
        }
    }
}

impl Member {
    pub fn new(
        id: MemberId,
        raft: Raft,
        view: StateView,
        endpoint: Endpoint,
        clock: Clock,
    ) -> Self {
        let liveness = Mutex::new(Liveness::new(clock.now()));
        Self {
            id,
            raft,
            view,
            endpoint,
            metrics: Metrics::default(),
            clock,
            liveness,
        }
    }

    pub fn addr(&self) -> SocketAddr {
        self.endpoint.local_addr()
    }

    /// Who was heard from, and the time. Held for a look, never across an await.
    pub fn liveness(&self) -> (MutexGuard<'_, Liveness>, Duration) {
        let liveness = self.liveness.lock().unwrap_or_else(PoisonError::into_inner);
        (liveness, self.clock.now())
    }

    /// Puts a command through Raft; back when it is on a quorum's disks and applied.
    pub async fn write(&self, command: Command) -> Result<Outcome, Declined> {
        match self.raft.client_write(command).await {
            Ok(written) => match written.data {
                Outcome::Refused(refusal) => Err(refusal.into()),
                outcome => Ok(outcome),
            },
            Err(RaftError::APIError(ClientWriteError::ForwardToLeader(forward))) => {
                Err(self.not_leader(forward))
            }
            Err(error) => Err(stopped(&error)),
        }
    }

    /// Waits until what this member shows is at least what any member had acknowledged when this
    /// was called: one quorum round.
    pub async fn linearizable(&self) -> Result<(), Declined> {
        match self.raft.ensure_linearizable().await {
            Ok(_) => Ok(()),
            Err(RaftError::APIError(CheckIsLeaderError::ForwardToLeader(forward))) => {
                Err(self.not_leader(forward))
            }
            Err(RaftError::APIError(CheckIsLeaderError::QuorumNotEnough(error))) => {
                Err(Refusal::Unavailable {
                    why: format!("no quorum of the catalogue answers: {error}"),
                }
                .into())
            }
            Err(error @ RaftError::Fatal(_)) => Err(stopped(&error)),
        }
    }

    fn not_leader(&self, forward: ForwardToLeader<MemberId, BasicNode>) -> Declined {
        match (forward.leader_id, forward.leader_node) {
            // Between elections: the same member may lead in a moment.
            (None, _) => Refusal::Unavailable {
                why: "the catalogue has no leader at the moment".into(),
            }
            .into(),
            (Some(id), node) => {
                let addr = node.map_or_else(String::new, |n| n.addr);
                Declined::NotLeader(Some((id, addr)))
            }
        }
    }

    /// The leader as this member knows it: id and address.
    pub fn leader(&self) -> Option<(MemberId, String)> {
        let metrics = self.raft.metrics().borrow().clone();
        let id = metrics.current_leader?;
        // A member's own address is the one it is bound to now, whatever it once joined with.
        if id == self.id {
            return Some((id, self.addr().to_string()));
        }
        let membership = metrics.membership_config.membership();
        let addr = membership.get_node(&id).map(|node| node.addr.clone());
        Some((id, addr.unwrap_or_default()))
    }

    /// All members: id and address.
    pub fn members(&self) -> Vec<(MemberId, String)> {
        let membership = self.raft.metrics().borrow().membership_config.clone();
        let nodes = membership.membership().nodes();
        nodes
            .map(|(id, node)| {
                let own = *id == self.id;
                let addr = if own {
                    self.addr().to_string()
                } else {
                    node.addr.clone()
                };
                (*id, addr)
            })
            .collect()
    }
}

/// After a fault of its storage or its core a member answers nothing any more.
fn stopped(error: &dyn std::error::Error) -> Declined {
    Refusal::Unavailable {
        why: format!("this catalogue member has stopped: {error}; restart it"),
    }
    .into()
}

impl Probe for Member {
    fn health(&self) -> Result<(), String> {
        let metrics = self.raft.metrics().borrow().clone();
        if let Err(error) = metrics.running_state {
            return Err(format!("stopped: {error}"));
        }
        if metrics.current_leader.is_none() {
            return Err("no leader is known".into());
        }
        if self.view.read(|state| state.cluster().is_none()) {
            return Err("the log is not applied yet".into());
        }
        Ok(())
    }

    fn metrics(&self) -> String {
        let raft = self.raft.metrics().borrow().clone();
        let states = [
            TableState::Creating,
            TableState::Mutable,
            TableState::Sealed,
            TableState::Lost,
            TableState::Loading,
        ];
        let (liveness, now) = self.liveness();
        let (revision, alive, nodes, tables) = self.view.read(|state| {
            let alive = state
                .nodes()
                .filter(|n| liveness.is_alive(n.entry.node, now));
            let count = |wanted| state.tables().filter(|t| t.state() == wanted).count();
            let tables = states.map(|wanted| (wanted.word(), count(wanted)));
            (
                state.revision(),
                alive.count(),
                state.nodes().count(),
                tables,
            )
        });
        drop(liveness);
        self.metrics.text(&Gauges {
            revision: revision.0,
            leads: raft.state == ServerState::Leader,
            term: raft.current_term,
            applied_index: raft.last_applied.map_or(0, |id| id.index),
            log_index: raft.last_log_index.unwrap_or(0),
            links: self.endpoint.stats().links,
            nodes: (alive, nodes - alive),
            tables: tables.to_vec(),
        })
    }
}
