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
use mneme_net::Body;
use mneme_proto::codec;
use mneme_proto::control::{NodeRequest, NodeResponse};
use mneme_proto::frame::{FrameKind, PushHeader, PushMode, PushPart, PushedView};
use mneme_proto::ids::{Epoch, ShardIndex};
use mneme_proto::limits::FRAME_KEYS_MAX;
use mneme_proto::map::TableState;
use mneme_proto::refusal::Refusal;
use tokio::time::timeout_at;
use zerocopy::IntoBytes;

use crate::error::{
    ClientError, Fate, NodeFault, PartFate, PushFailure, Unavailable, UnavailableKeys,
};
use crate::limits::{FRAMES_IN_FLIGHT, PART_BYTES_MAX, PUSH_FRAME_BYTES};
use crate::map::TableShared;
use crate::merge::{Merged, PartKeys};
use crate::options::PushReport;
use crate::paths::quic::{ControlFault, Exchanged, control, exchange};
use crate::pull::{after_faults, served};
use crate::retry::Tries;
use crate::router::{NO_NODE, Router};
use crate::session::Ticket;

/// One part on its way.
struct Part<'a> {
    keys: &'a PartKeys,
    ticket: Option<Ticket>,
    /// It went out and no answer came: it may have taken effect.
    doubt: Option<NodeFault>,
    /// Why it is not done yet.
    problem: Option<NodeFault>,
    fate: Option<Fate>,
    ignored: u32,
}

impl Part<'_> {
    fn shard(&self) -> u32 {
        self.keys.shard
    }

    fn is_open(&self) -> bool {
        self.fate.is_none()
    }

    /// What it is if nothing more is tried. Its ticket is dropped, and thereby closed.
    fn give_up(&mut self) {
        let problem = self.problem.take();
        let problem = problem.unwrap_or(NodeFault::Deadline("its turn"));
        self.fate = Some(match (self.doubt.take(), problem) {
            (Some(doubt), _) => Fate::InDoubt(doubt),
            (None, NodeFault::Refused(refusal)) => Fate::Refused(refusal),
            (None, fault) => Fate::NotSent(fault),
        });
        self.ticket = None;
    }
}

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
    let part = |keys| Part {
        keys,
        ticket: None,
        doubt: None,
        problem: None,
        fate: None,
        ignored: 0,
    };
    let mut parts: Vec<Part<'_>> = merged.parts.iter().map(part).collect();
    let mut tries = Tries::new(deadline);
    let mut router = served(table, deadline).await?;
    loop {
        check_mutable(&mut router, table, deadline).await?;
        let by = tries.begin(Instant::now());
        push.attempt(&router, &mut parts, by).await;
        if !parts.iter().any(Part::is_open) {
            break;
        }
        let Some(pause) = tries.pause(Instant::now(), &client.budget, rand::random()) else {
            break;
        };
        let faults = parts.iter().filter_map(|part| part.problem.as_ref());
        router = after_faults(table, &router, faults, by).await;
        tokio::time::sleep(pause).await;
    }
    for part in parts.iter_mut().filter(|part| part.is_open()) {
        part.give_up();
    }
    report(&router, parts)
}

/// A sealed table takes no push. The map at hand may be old, so a newer one is asked first.
async fn check_mutable(
    router: &mut Arc<Router>,
    table: &Arc<TableShared>,
    deadline: Instant,
) -> Result<(), ClientError> {
    if router.state != TableState::Sealed {
        return Ok(());
    }
    *router = table.refresh(router, deadline).await?;
    if router.state != TableState::Sealed {
        return Ok(());
    }
    Err(ClientError::Refused(Refusal::TableState {
        table: router.spec.name.clone(),
        state: router.state.word().into(),
        remedy: "a sealed table never changes; `mneme import --seal` publishes a new version"
            .into(),
    }))
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

/// Whether no retry will change it.
fn is_final(refusal: &Refusal) -> bool {
    let again = refusal.wants_new_map() || refusal.is_transient();
    !again && !matches!(refusal, Refusal::UnknownSession { .. })
}

/// Whether the shard leaves the sequence of a part that it refused like this open. All other
/// refusals of a part settle it.
fn leaves_open(refusal: &Refusal) -> bool {
    !is_final(refusal)
        || matches!(
            refusal,
            Refusal::Sequence { .. }
                | Refusal::TableLost { .. }
                | Refusal::PermissionDenied { .. }
                | Refusal::Internal { .. }
        )
}

/// Takes in what came for one frame.
fn receive(parts: &mut [Part<'_>], frame: &[usize], exchanged: Exchanged) {
    let answered = match exchanged {
        Exchanged::Answered(body) => take_outcomes(parts, frame, body),
        Exchanged::Refused(refusal) => {
            // Refused before any part was looked at: all sequences are open.
            for &at in frame {
                refused(&mut parts[at], refusal.clone(), true);
            }
            Ok(())
        }
        Exchanged::NotSent(fault) => {
            for &at in frame {
                parts[at].problem = Some(fault.clone());
            }
            Ok(())
        }
        Exchanged::InDoubt(fault) => Err(fault),
    };
    if let Err(fault) = answered {
        for &at in frame {
            parts[at].doubt = Some(fault.clone());
            parts[at].problem = Some(fault.clone());
        }
    }
}

fn take_outcomes(parts: &mut [Part<'_>], frame: &[usize], body: Body) -> Result<(), NodeFault> {
    let malformed = |why: String| NodeFault::Malformed(why);
    let body = body.into_contiguous();
    let view = PushedView::parse(&body).map_err(|e| malformed(e.to_string()))?;
    let shards = view.outcomes.iter().map(|outcome| outcome.shard.get());
    if !shards.eq(frame.iter().map(|&at| parts[at].shard())) {
        return Err(malformed("it answered other parts than were sent".into()));
    }
    let refusals: Vec<Refusal> = if view.refusals.is_empty() {
        Vec::new()
    } else {
        codec::decode(view.refusals).map_err(|e| malformed(e.to_string()))?
    };
    let named = |number: u32| number as usize <= refusals.len();
    if !view
        .outcomes
        .iter()
        .all(|outcome| named(outcome.refusal.get()))
    {
        return Err(malformed("it refused a part without a reason".into()));
    }
    for (&at, outcome) in frame.iter().zip(view.outcomes) {
        let part = &mut parts[at];
        match outcome.refusal.get() {
            0 => {
                part.ignored = outcome.ignored.get();
                part.fate = Some(Fate::Applied {
                    rows: outcome.rows.get(),
                });
                if let Some(ticket) = part.ticket.take() {
                    ticket.settle();
                }
            }
            number => {
                let refusal = refusals[number as usize - 1].clone();
                let open = leaves_open(&refusal);
                refused(part, refusal, open);
            }
        }
    }
    Ok(())
}

/// A part was refused. `open`: its sequence was not settled by that.
fn refused(part: &mut Part<'_>, refusal: Refusal, open: bool) {
    if !open {
        if let Some(ticket) = part.ticket.take() {
            ticket.settle();
        }
        part.doubt = None;
        part.fate = Some(Fate::Refused(refusal));
        return;
    }
    if matches!(refusal, Refusal::UnknownSession { .. })
        && let Some(ticket) = part.ticket.take()
    {
        ticket.session_unknown();
        if let Some(doubt) = part.doubt.take() {
            // An earlier send may have taken effect: a second sequence could apply it twice.
            part.fate = Some(Fate::InDoubt(doubt));
            return;
        }
    }
    let last = is_final(&refusal);
    part.problem = Some(NodeFault::Refused(refusal));
    if last {
        part.give_up();
    }
}

/// What the caller is told.
fn report(router: &Router, parts: Vec<Part<'_>>) -> Result<PushReport, ClientError> {
    let mut report = PushReport {
        parts: parts.len() as u32,
        ..PushReport::default()
    };
    let mut fates = Vec::with_capacity(parts.len());
    for (at, part) in parts.into_iter().enumerate() {
        let fate = part
            .fate
            .unwrap_or(Fate::NotSent(NodeFault::Deadline("its turn")));
        if let Fate::Applied { rows } = fate {
            report.rows += u64::from(rows);
            report.ignored += u64::from(part.ignored);
        }
        let keys = part.keys.keys.len() as u32;
        fates.push((
            at,
            PartFate {
                shard: part.keys.shard,
                keys,
                fate,
            },
        ));
    }
    let any = |of: fn(&Fate) -> bool| fates.iter().any(|(_, part)| of(&part.fate));
    let (applied, doubt, refused, unsent) = (
        any(|f| matches!(f, Fate::Applied { .. })),
        any(|f| matches!(f, Fate::InDoubt(_))),
        any(|f| matches!(f, Fate::Refused(_))),
        any(|f| matches!(f, Fate::NotSent(_))),
    );
    let table = router.spec.name.clone();
    let all = |fates: Vec<(usize, PartFate)>| fates.into_iter().map(|(_, part)| part).collect();
    match (applied, doubt, refused, unsent) {
        (_, false, false, false) => Ok(report),
        (_, true, ..) => Err(ClientError::InDoubt(PushFailure {
            table,
            parts: all(fates),
        })),
        (false, _, true, false) => Err(first_refusal(fates)),
        (false, _, false, true) => Err(ClientError::Unavailable(unsent_parts(router, fates))),
        _ => Err(ClientError::PartlyRefused(PushFailure {
            table,
            parts: all(fates),
        })),
    }
}

fn first_refusal(fates: Vec<(usize, PartFate)>) -> ClientError {
    let mut refusals = fates.into_iter().filter_map(|(_, part)| match part.fate {
        Fate::Refused(refusal) => Some(refusal),
        _ => None,
    });
    let first = refusals.next();
    ClientError::Refused(first.expect("the caller found a refused part"))
}

fn unsent_parts(router: &Router, fates: Vec<(usize, PartFate)>) -> Unavailable {
    let mut faults: Vec<UnavailableKeys> = Vec::new();
    for (_, part) in fates {
        let Fate::NotSent(why) = part.fate else {
            continue;
        };
        let node = router.node(part.shard);
        let name = node.map_or("none".into(), |n| n.name.to_string());
        if faults.iter().any(|f| f.node == name && f.why == why) {
            continue;
        }
        let address = node.map_or("no address".into(), |n| n.address.to_string());
        faults.push(UnavailableKeys {
            node: name,
            address,
            positions: Vec::new(),
            why,
        });
    }
    Unavailable {
        table: router.spec.name.clone(),
        faults,
    }
}
