//! A push: sessions where there are none yet, a sequence for every part, frames to the nodes,
//! and the same sequence again where an answer stayed out (I-2).
//!
//! A part whose answer never came is reported as in doubt and its sequence voided: it took
//! effect once or not at all, and will not later. It is never sent under a second sequence.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use mneme_proto::control::{NodeRequest, NodeResponse};
use mneme_proto::frame::{FrameKind, PushHeader, PushMode, PushPart};
use mneme_proto::ids::{Epoch, ShardIndex};
use mneme_proto::limits::FRAME_KEYS_MAX;
use mneme_proto::map::TableState;
use mneme_proto::refusal::Refusal;
use tokio::time::timeout_at;
use zerocopy::IntoBytes;

use crate::error::{ClientError, NodeFault};
use crate::limits::{FRAMES_IN_FLIGHT, PART_BYTES_MAX, PUSH_FRAME_BYTES};
use crate::map::TableShared;
use crate::merge::Merged;
use crate::options::PushReport;
use crate::parts::{Part, is_final, receive, report};
use crate::paths::quic::{ControlFault, Exchanged, control, exchange};
use crate::pull::{after_faults, served};
use crate::retry::Tries;
use crate::router::{NO_NODE, Router};
use crate::session::Ticket;

/// What all frames of a push say.
struct Push<'a> {
    table: &'a Arc<TableShared>,
    merged: &'a Merged,
    mode: PushMode,
    step: u64,
}

/// Sends a prepared push.
///
/// # Errors
/// [`ClientError::Refused`] and [`ClientError::Unavailable`] if nothing was applied;
/// [`ClientError::PartlyRefused`]; [`ClientError::InDoubt`].
pub(crate) async fn push(
    table: &Arc<TableShared>,
    merged: &Merged,
    mode: PushMode,
    step: u64,
    deadline: Instant,
) -> Result<PushReport, ClientError> {
    let push = Push {
        table,
        merged,
        mode,
        step,
    };
    let client = &table.client;
    client.budget.earn();
    let mut parts: Vec<Part<'_>> = merged.parts.iter().map(Part::new).collect();
    let mut tries = Tries::new(deadline);
    let mut router = served(table, deadline).await?;
    if router.state == TableState::Sealed {
        // The map at hand may be old: nothing is refused on its word alone.
        router = table.refresh(&router, deadline).await?;
        check_mutable(&router)?;
    }
    loop {
        let by = tries.begin(Instant::now());
        push.attempt(&router, &mut parts, by).await;
        if !parts.iter().any(Part::is_open) {
            break;
        }
        let Some(pause) = tries.pause(Instant::now(), &client.budget, rand::random()) else {
            break;
        };
        let faults = parts.iter().filter_map(|part| part.problem.as_ref());
        let fresh = after_faults(table, &router, faults, by).await;
        match fresh.and_then(|fresh| check_mutable(&fresh).map(|()| fresh)) {
            Ok(fresh) => router = fresh,
            Err(refusal) => {
                for part in parts.iter_mut().filter(|part| part.is_open()) {
                    part.problem = Some(NodeFault::Refused(refusal.clone()));
                }
                break;
            }
        }
        tokio::time::sleep(pause).await;
    }
    for part in parts.iter_mut().filter(|part| part.is_open()) {
        part.give_up();
    }
    report(&router, parts)
}

/// A sealed table takes no push.
fn check_mutable(router: &Router) -> Result<(), Refusal> {
    if router.state != TableState::Sealed {
        return Ok(());
    }
    Err(Refusal::TableState {
        table: router.spec.name.clone(),
        state: router.state.word().into(),
        remedy: "a sealed table never changes; `mneme import --seal` publishes a new version"
            .into(),
    })
}

impl Push<'_> {
    /// One try of all parts that are open. Parts wait for room in their session's window, but
    /// never with a sequence in hand that is not on its way: two pushes cannot block each other.
    async fn attempt(&self, router: &Arc<Router>, parts: &mut [Part<'_>], by: Instant) {
        for part in parts.iter_mut() {
            part.problem = None;
        }
        loop {
            let waiting = |p: &Part<'_>| p.is_open() && p.problem.is_none();
            self.open_sessions(router, parts, by).await;
            let mut ready = Vec::new();
            for (at, part) in parts.iter_mut().enumerate().filter(|(_, p)| waiting(p)) {
                if part.ticket.is_none() {
                    part.ticket = Ticket::take(self.table, part.shard());
                }
                if part.ticket.is_some() {
                    ready.push(at);
                }
            }
            if !ready.is_empty() {
                self.send(router, parts, ready, by).await;
                continue;
            }
            let Some(shard) = parts.iter().find(|p| waiting(p)).map(Part::shard) else {
                return;
            };
            let Some(session) = self.table.sessions.get(shard) else {
                continue; // it ended a moment ago
            };
            if timeout_at(by.into(), session.room()).await.is_err() {
                for part in parts.iter_mut().filter(|p| waiting(p)) {
                    part.problem = Some(NodeFault::Deadline("room in the push session"));
                }
            }
        }
    }

    /// Opens sessions on the shards of waiting parts that have none, one request per node.
    async fn open_sessions(&self, router: &Arc<Router>, parts: &mut [Part<'_>], by: Instant) {
        let sessions = &self.table.sessions;
        let lacks = |p: &Part<'_>| {
            p.is_open()
                && p.problem.is_none()
                && p.ticket.is_none()
                && sessions.get(p.shard()).is_none()
        };
        if !parts.iter().any(lacks) {
            return;
        }
        let Ok(_held) = timeout_at(by.into(), sessions.opening.lock()).await else {
            for part in parts.iter_mut().filter(|p| lacks(p)) {
                part.problem = Some(NodeFault::Deadline("a push session"));
            }
            return;
        };
        let mut shards: Vec<u32> = parts.iter().filter(|p| lacks(p)).map(Part::shard).collect();
        shards.dedup();
        shards.sort_by_key(|&shard| router.rank(shard));
        let runs = shards.chunk_by(|&a, &b| router.node_of(a) == router.node_of(b));
        let opening: FuturesUnordered<_> = runs
            .map(|run| async move { (run, self.open_on_node(router, run, by).await) })
            .collect();
        let opened: Vec<_> = opening.collect().await;
        for (run, fault) in opened
            .into_iter()
            .filter_map(|(run, done)| Some((run, done.err()?)))
        {
            for part in parts
                .iter_mut()
                .filter(|p| run.contains(&p.shard()) && lacks(p))
            {
                part.problem = Some(fault.clone());
                // What stays refused is decided at once.
                if matches!(&fault, NodeFault::Refused(r) if is_final(r)) {
                    part.give_up();
                }
            }
        }
    }

    async fn open_on_node(
        &self,
        router: &Router,
        shards: &[u32],
        by: Instant,
    ) -> Result<(), NodeFault> {
        let Some(route) = router.node(shards[0]) else {
            return Err(no_replica(shards[0]));
        };
        let wanted = |&shard: &u32| (ShardIndex(shard), Epoch(router.epoch(shard)));
        let request = NodeRequest::OpenSessions {
            table: router.table,
            shards: shards.iter().map(wanted).collect(),
        };
        let links = &self.table.client.links;
        match control(links, &links.to(route), &request, by).await {
            Ok(NodeResponse::Sessions(ids)) if ids.len() == shards.len() => {
                for (&shard, id) in shards.iter().zip(ids) {
                    self.table.sessions.opened(shard, id);
                }
                Ok(())
            }
            Ok(_) => Err(NodeFault::Malformed(
                "it opened other sessions than were asked".into(),
            )),
            Err(ControlFault::Refused(refusal)) => Err(NodeFault::Refused(refusal)),
            Err(ControlFault::Node(fault)) => Err(fault),
        }
    }

    /// Sends the parts that have tickets, packed into frames by node, several at a time.
    async fn send(
        &self,
        router: &Arc<Router>,
        parts: &mut [Part<'_>],
        mut ready: Vec<usize>,
        by: Instant,
    ) {
        ready.sort_by_key(|&at| router.rank(parts[at].shard()));
        let frames = self.pack(router, parts, &ready);
        let request = |frame: Vec<usize>, body: Vec<Bytes>| async move {
            let shard = self.merged.parts[frame[0]].shard;
            (frame, self.request(router, shard, body, by).await)
        };
        let mut bodies = Vec::with_capacity(frames.len());
        for frame in frames {
            let body = self.body(router, parts, &frame);
            for &at in &frame {
                if let Some(ticket) = &mut parts[at].ticket {
                    ticket.sent();
                }
            }
            bodies.push((frame, body));
        }
        let mut bodies = bodies.into_iter();
        let mut waiting = FuturesUnordered::new();
        waiting.extend(
            bodies
                .by_ref()
                .take(FRAMES_IN_FLIGHT)
                .map(|(f, b)| request(f, b)),
        );
        while let Some((frame, exchanged)) = waiting.next().await {
            waiting.extend(bodies.next().map(|(f, b)| request(f, b)));
            receive(parts, &frame, exchanged);
        }
    }

    /// Which parts share a frame.
    fn pack(&self, router: &Router, parts: &[Part<'_>], ready: &[usize]) -> Vec<Vec<usize>> {
        let mut frames: Vec<Vec<usize>> = Vec::new();
        let (mut node, mut bytes, mut keys) = (NO_NODE, 0, 0);
        for &at in ready {
            let part = parts[at].keys;
            let part_bytes =
                size_of::<PushPart>() + part.keys.len() * (8 + self.merged.value_bytes);
            let joins = router.node_of(part.shard) == node
                && bytes < PUSH_FRAME_BYTES
                && bytes + part_bytes <= PART_BYTES_MAX
                && keys + part.keys.len() <= FRAME_KEYS_MAX as usize;
            match frames.last_mut() {
                Some(frame) if joins => frame.push(at),
                _ => {
                    node = router.node_of(part.shard);
                    (bytes, keys) = (0, 0);
                    frames.push(vec![at]);
                }
            }
            bytes += part_bytes;
            keys += part.keys.len();
        }
        frames
    }

    /// The body of a frame: its head is made, keys and values are lent.
    fn body(&self, router: &Router, parts: &[Part<'_>], frame: &[usize]) -> Vec<Bytes> {
        let keys: usize = frame.iter().map(|&at| parts[at].keys.keys.len()).sum();
        let header = PushHeader {
            table: router.table.0.into(),
            step: self.step.into(),
            parts: (frame.len() as u32).into(),
            keys: (keys as u32).into(),
            value_bytes: (self.merged.value_bytes as u32).into(),
            mode: self.mode as u8,
            reserved: [0; 3],
        };
        let mut head = header.as_bytes().to_vec();
        let mut body = Vec::with_capacity(1 + 2 * frame.len());
        for &at in frame {
            let part = &parts[at];
            let ticket = part
                .ticket
                .as_ref()
                .expect("only parts with tickets are sent");
            let part = PushPart {
                shard: part.shard().into(),
                keys: (part.keys.keys.len() as u32).into(),
                epoch: router.epoch(part.shard()).into(),
                session: ticket.session().0.into(),
                sequence: ticket.sequence().into(),
            };
            head.extend_from_slice(part.as_bytes());
        }
        body.push(head.into());
        let lend = |bytes: &Bytes, width: usize, at: usize| {
            let keys = &parts[at].keys.keys;
            bytes.slice(keys.start * width..keys.end * width)
        };
        body.extend(frame.iter().map(|&at| lend(&self.merged.keys, 8, at)));
        let width = self.merged.value_bytes;
        body.extend(frame.iter().map(|&at| lend(&self.merged.values, width, at)));
        body
    }

    async fn request(
        &self,
        router: &Router,
        shard: u32,
        body: Vec<Bytes>,
        by: Instant,
    ) -> Exchanged {
        let Some(route) = router.node(shard) else {
            return Exchanged::NotSent(no_replica(shard));
        };
        let links = &self.table.client.links;
        let to = links.to(route);
        exchange(links, &to, FrameKind::Push, FrameKind::Pushed, body, by).await
    }
}

fn no_replica(shard: u32) -> NodeFault {
    let why = format!("shard {shard} has no replica at present");
    NodeFault::Refused(Refusal::Unavailable { why })
}
