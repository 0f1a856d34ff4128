//! Raft's messages between members.
//!
//! The catalogue has one member in this release, so nothing is ever sent: a client made here
//! answers `Unreachable` and says so. A membership that names a second member therefore never
//! gains a quorum through it, which is the safe answer.

use std::future::Future;

use openraft::error::{Fatal, RPCError, RaftError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::{BasicNode, Snapshot, Vote};

use crate::raft::{MemberId, TypeConfig};

/// Makes a [`Peer`] for each other member.
#[derive(Debug, Clone, Copy, Default)]
pub struct Peers;

/// Another member, which this release cannot reach.
#[derive(Debug, Clone, Copy)]
pub struct Peer {
    member: MemberId,
}

/// Why nothing reaches another member.
#[derive(Debug, thiserror::Error)]
#[error("catalogue member {member} is out of reach: this release runs a catalogue of one member")]
pub struct OneMemberOnly {
    member: MemberId,
}

type RpcError = RPCError<MemberId, BasicNode, RaftError<MemberId>>;

impl Peer {
    fn unreachable(&self) -> Unreachable {
        Unreachable::new(&OneMemberOnly {
            member: self.member,
        })
    }
}

impl RaftNetworkFactory<TypeConfig> for Peers {
    type Network = Peer;

    async fn new_client(&mut self, target: MemberId, _node: &BasicNode) -> Peer {
        Peer { member: target }
    }
}

impl RaftNetwork<TypeConfig> for Peer {
    async fn append_entries(
        &mut self,
        _rpc: AppendEntriesRequest<TypeConfig>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<MemberId>, RpcError> {
        Err(self.unreachable().into())
    }

    async fn vote(
        &mut self,
        _rpc: VoteRequest<MemberId>,
        _option: RPCOption,
    ) -> Result<VoteResponse<MemberId>, RpcError> {
        Err(self.unreachable().into())
    }

    async fn full_snapshot(
        &mut self,
        _vote: Vote<MemberId>,
        _snapshot: Snapshot<TypeConfig>,
        _cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<MemberId>, StreamingError<TypeConfig, Fatal<MemberId>>> {
        Err(self.unreachable().into())
    }
}
