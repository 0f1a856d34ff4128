//! A bare client: one call, one frame.

use std::time::{Duration, Instant};

use bytes::Bytes;
use mneme_net::Link;
use mneme_proto::codec::{decode, encode};
use mneme_proto::control::{NodeRequest, NodeResponse};
use mneme_proto::frame::{
    FrameKind, LoadHeader, Missing, PULL_WITH_STATE, PartOutcome, PullGroup, PullHeader,
    PulledView, PushHeader, PushMode, PushPart, PushedView,
};
use mneme_proto::ids::{Epoch, SessionId};
use mneme_proto::refusal::Refusal;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

use super::{TABLE, bytes, floats};

/// One pull's rows as floats, with status bytes; refusals of its one group as an error.
pub type Rows = Result<Vec<(u8, Vec<f32>)>, Refusal>;

pub struct Client {
    pub link: Link,
    pub handle: tokio::runtime::Handle,
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
