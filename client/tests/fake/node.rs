//! A fake node: rows in plain maps, sessions as the protocol wants them, faults on demand.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use mneme_net::{Endpoint, Request};
use mneme_proto::codec::{decode, encode_bytes};
use mneme_proto::control::{NodeRequest, NodeResponse, SealedReplica};
use mneme_proto::frame::{
    FrameKind, GroupOutcome, LoadView, Missing, PartOutcome, PullView, PulledHeader, PushMode,
    PushView, PushedHeader, Status,
};
use mneme_proto::ids::{
    Epoch, Generation, Incarnation, NodeId, RegionId, SessionId, ShardIndex, TableGeneration,
    TableId,
};
use mneme_proto::limits::SESSION_WINDOW;
use mneme_proto::map::{Coherence, Descriptor, Integrity, RegionState, TableMap, Tier};
use mneme_proto::mix64::shard_of_key;
use mneme_proto::refusal::Refusal;
use mneme_proto::views::pad_to_8;
use tokio::sync::watch;
use zerocopy::IntoBytes;

use crate::cluster::{World, lock};

/// What a node does with one pull or push instead of serving it.
#[derive(Debug, Clone)]
pub enum Fault {
    /// Refuses every group or part.
    Refuse(Refusal),
    /// Never answers.
    Silence,
    /// Does it, and cuts the link instead of answering.
    CutAfter,
    /// The same, and loses all sessions.
    CutAndForget,
}

/// What a node was asked.
#[derive(Debug, Clone, PartialEq)]
pub enum Seen {
    Pull(Vec<u64>),
    /// (shard, session, sequence) of each part.
    Push(Vec<(u32, u64, u64)>),
    Open(Vec<u32>),
    Void(u32, u64, u64),
}

#[derive(Default)]
struct Session {
    settled: BTreeMap<u64, PartOutcome>,
    voided: BTreeSet<u64>,
}

impl Session {
    fn lowest_open(&self) -> u64 {
        let open = |n: &u64| !self.settled.contains_key(n) && !self.voided.contains(n);
        (1..).find(open).expect("endless")
    }
}

pub struct State {
    number: usize,
    world: Arc<World>,
    rows: Mutex<HashMap<u64, Vec<f32>>>,
    /// Rows of sealed generations.
    sealed: Mutex<HashMap<(u64, u64), Vec<u8>>>,
    /// Generations that are held.
    pub held: Mutex<BTreeSet<u64>>,
    sessions: Mutex<HashMap<(u32, u64), Session>>,
    next_session: Mutex<u64>,
    pub faults: Mutex<VecDeque<Fault>>,
    pub seen: Mutex<Vec<Seen>>,
    /// Epochs as the node knows them, where they differ from the map's.
    pub epochs: Mutex<HashMap<u32, u64>>,
    /// While true, pulls and pushes wait before they are answered.
    pub hold: watch::Sender<bool>,
    /// Refuses parts of these shards for good.
    pub refuse_parts: Mutex<BTreeMap<u32, Refusal>>,
}

pub struct Node {
    pub endpoint: Endpoint,
    pub state: Arc<State>,
}

impl Node {
    pub fn start(number: usize, endpoint: Endpoint, world: Arc<World>) -> Self {
        let state = Arc::new(State {
            number,
            world,
            rows: Mutex::default(),
            sealed: Mutex::default(),
            held: Mutex::default(),
            sessions: Mutex::default(),
            next_session: Mutex::new(number as u64 * 1000),
            faults: Mutex::default(),
            seen: Mutex::default(),
            epochs: Mutex::default(),
            hold: watch::Sender::new(false),
            refuse_parts: Mutex::default(),
        });
        tokio::spawn(serve(endpoint.clone(), state.clone()));
        Self { endpoint, state }
    }

    pub fn number(&self) -> usize {
        self.state.number
    }

    pub fn fail(&self, faults: impl IntoIterator<Item = Fault>) {
        lock(&self.state.faults).extend(faults);
    }

    pub fn hold(&self, on: bool) {
        self.state.hold.send_replace(on);
    }

    pub fn row(&self, key: u64) -> Option<Vec<f32>> {
        lock(&self.state.rows).get(&key).cloned()
    }

    pub fn forget_sessions(&self) {
        lock(&self.state.sessions).clear();
    }

    pub fn seen(&self) -> Vec<Seen> {
        lock(&self.state.seen).clone()
    }

    pub fn pulls(&self) -> Vec<Vec<u64>> {
        let pulls = self.seen().into_iter();
        pulls
            .filter_map(|s| {
                if let Seen::Pull(keys) = s {
                    Some(keys)
                } else {
                    None
                }
            })
            .collect()
    }

    pub fn pushes(&self) -> Vec<(u32, u64, u64)> {
        let pushes = self.seen().into_iter();
        pushes
            .flat_map(|s| {
                if let Seen::Push(parts) = s {
                    parts
                } else {
                    vec![]
                }
            })
            .collect()
    }
}

async fn serve(endpoint: Endpoint, state: Arc<State>) {
    while let Some(link) = endpoint.accept().await {
        let state = state.clone();
        tokio::spawn(async move {
            while let Some(request) = link.next().await {
                tokio::spawn(state.clone().answer(request));
            }
        });
    }
}

impl State {
    async fn answer(self: Arc<Self>, mut request: Request) {
        let Ok((_, kind, body)) = request.read().await else {
            return;
        };
        let body = body.into_contiguous();
        let data = matches!(kind, FrameKind::Pull | FrameKind::Push);
        self.note(kind, &body);
        let fault = if data {
            lock(&self.faults).pop_front()
        } else {
            None
        };
        if data {
            let mut held = self.hold.subscribe();
            let _ = held.wait_for(|held| !held).await;
        }
        if matches!(fault, Some(Fault::Silence)) {
            request.given_up().await;
            return;
        }
        let refuse = match &fault {
            Some(Fault::Refuse(refusal)) => Some(refusal.clone()),
            _ => None,
        };
        let (kind, answer) = match kind {
            FrameKind::Pull => (FrameKind::Pulled, self.pull(&body, refuse)),
            FrameKind::Push => (FrameKind::Pushed, self.push(&body, refuse)),
            FrameKind::Load => (FrameKind::Control, vec![self.load(&body)]),
            FrameKind::Control => {
                let response = self.control(decode(&body).expect("a request"));
                (FrameKind::Control, vec![encode_bytes(&response)])
            }
            other => panic!("a client sent {other:?}"),
        };
        if let Some(Fault::CutAfter | Fault::CutAndForget) = fault {
            if matches!(fault, Some(Fault::CutAndForget)) {
                lock(&self.sessions).clear();
            }
            request.link().close("cut");
            return;
        }
        let _ = request.answer(kind, answer).await;
    }

    fn note(&self, kind: FrameKind, body: &[u8]) {
        let seen = match kind {
            FrameKind::Pull => {
                let view = PullView::parse(body).expect("a pull");
                Seen::Pull(view.keys.iter().map(|key| key.get()).collect())
            }
            FrameKind::Push => {
                let view = PushView::parse(body).expect("a push");
                let part = |p: &mneme_proto::frame::PushPart| {
                    (p.shard.get(), p.session.get(), p.sequence.get())
                };
                Seen::Push(view.parts.iter().map(part).collect())
            }
            _ => return,
        };
        lock(&self.seen).push(seen);
    }

    fn table(&self, table: u64) -> TableMap {
        self.world.map(table).expect("a table")
    }

    fn check_epoch(&self, map: &TableMap, shard: u32, asked: u64) -> Option<Refusal> {
        let known = map.shards[shard as usize].epoch.0;
        let current = lock(&self.epochs).get(&shard).copied().unwrap_or(known);
        (asked != current).then_some(Refusal::WrongEpoch {
            shard: ShardIndex(shard),
            asked: Epoch(asked),
            current: Epoch(current),
        })
    }

    fn pull(&self, body: &[u8], refuse: Option<Refusal>) -> Vec<Bytes> {
        let view = PullView::parse(body).expect("a pull");
        let map = self.table(view.header.table.get());
        let (row_bytes, asked) = (map.spec.row_bytes() as usize, view.header.generation.get());
        let gone = asked != 0 && !lock(&self.held).contains(&asked);
        let mut keys = view.keys.iter();
        let (mut outcomes, mut refusals) = (Vec::new(), Vec::new());
        let (mut statuses, mut rows) = (Vec::new(), Vec::new());
        for group in view.groups {
            let refusal = refuse
                .clone()
                .or_else(|| self.check_epoch(&map, group.shard.get(), group.epoch.get()));
            let refusal = refusal.or_else(|| {
                gone.then_some(Refusal::GenerationGone {
                    asked: TableGeneration(asked),
                    current: map.generation,
                })
            });
            for key in keys.by_ref().take(group.keys.get() as usize) {
                let found = match asked {
                    0 => lock(&self.rows)
                        .get(&key.get())
                        .map(|row| row.as_bytes().to_vec()),
                    _ => lock(&self.sealed).get(&(asked, key.get())).cloned(),
                };
                statuses.push(match (&refusal, &found, view.missing) {
                    (Some(_), ..) => 0,
                    (None, Some(_), _) => Status::Found as u8,
                    (None, None, Missing::Error) => Status::Missing as u8,
                    (None, None, _) => Status::Default as u8,
                });
                rows.extend(found.unwrap_or_else(|| vec![0; row_bytes]));
            }
            refusals.extend(refusal.clone());
            let number = if refusal.is_some() {
                refusals.len() as u32
            } else {
                0
            };
            outcomes.push(GroupOutcome {
                shard: group.shard,
                refusal: number.into(),
            });
        }
        let refused = if refusals.is_empty() {
            Bytes::new()
        } else {
            encode_bytes(&refusals)
        };
        let header = PulledHeader {
            groups: view.header.groups,
            keys: view.header.keys,
            row_bytes: (row_bytes as u32).into(),
            refusals_bytes: (refused.len() as u32).into(),
        };
        statuses.resize(statuses.len() + pad_to_8(statuses.len()), 0);
        let head = [header.as_bytes(), outcomes.as_bytes(), &statuses].concat();
        vec![head.into(), rows.into(), refused]
    }

    fn push(&self, body: &[u8], refuse: Option<Refusal>) -> Vec<Bytes> {
        let view = PushView::parse(body).expect("a push");
        let map = self.table(view.header.table.get());
        let width = view.header.value_bytes.get() as usize;
        let (mut outcomes, mut refusals, mut at) = (Vec::new(), Vec::new(), 0);
        for part in view.parts {
            let range = at..at + part.keys.get() as usize;
            at = range.end;
            let keys: Vec<u64> = view.keys[range.clone()].iter().map(|k| k.get()).collect();
            assert!(keys.is_sorted_by(|a, b| a < b), "keys ascend strictly");
            let values = &view.payload[range.start * width..range.end * width];
            let done = match &refuse {
                Some(refusal) => Err(refusal.clone()),
                None => self.part(&map, part, view.mode, &keys, values),
            };
            outcomes.push(done.unwrap_or_else(|refusal| {
                refusals.push(refusal);
                PartOutcome {
                    shard: part.shard,
                    refusal: (refusals.len() as u32).into(),
                    rows: 0.into(),
                    ignored: 0.into(),
                    index: 0.into(),
                }
            }));
        }
        let refused = if refusals.is_empty() {
            Bytes::new()
        } else {
            encode_bytes(&refusals)
        };
        let header = PushedHeader {
            parts: view.header.parts,
            refusals_bytes: (refused.len() as u32).into(),
        };
        let head = [header.as_bytes(), outcomes.as_bytes()].concat();
        vec![head.into(), refused]
    }

    fn part(
        &self,
        map: &TableMap,
        part: &mneme_proto::frame::PushPart,
        mode: PushMode,
        keys: &[u64],
        values: &[u8],
    ) -> Result<PartOutcome, Refusal> {
        let (shard, sequence) = (part.shard.get(), part.sequence.get());
        if let Some(refusal) = self.check_epoch(map, shard, part.epoch.get()) {
            return Err(refusal);
        }
        let mut sessions = lock(&self.sessions);
        let session =
            sessions
                .get_mut(&(shard, part.session.get()))
                .ok_or(Refusal::UnknownSession {
                    shard: ShardIndex(shard),
                })?;
        let refused = |why: &str| {
            Err(Refusal::Sequence {
                shard: ShardIndex(shard),
                sequence,
                why: why.into(),
            })
        };
        if let Some(outcome) = session.settled.get(&sequence) {
            return Ok(*outcome);
        }
        if session.voided.contains(&sequence) {
            return refused("it was voided");
        }
        if sequence >= session.lowest_open() + SESSION_WINDOW {
            return refused("too far ahead");
        }
        if let Some(refusal) = lock(&self.refuse_parts).get(&shard) {
            session.voided.insert(sequence);
            return Err(refusal.clone());
        }
        let mut rows = lock(&self.rows);
        let dim = map.spec.schema.dim() as usize;
        let numbers: Vec<f32> = values
            .as_chunks::<4>()
            .0
            .iter()
            .map(|b| f32::from_le_bytes(*b))
            .collect();
        for (i, &key) in keys.iter().enumerate() {
            if mode == PushMode::Delete {
                rows.remove(&key);
                continue;
            }
            let row = rows.entry(key).or_insert_with(|| vec![0.0; dim]);
            for (w, v) in row.iter_mut().zip(&numbers[i * dim..]) {
                *w = match mode {
                    PushMode::Gradient => *w - 0.5 * v,
                    PushMode::Add => *w + v,
                    _ => *v,
                };
            }
        }
        let outcome = PartOutcome {
            shard: part.shard,
            refusal: 0.into(),
            rows: (keys.len() as u32).into(),
            ignored: 0.into(),
            index: sequence.into(),
        };
        session.settled.insert(sequence, outcome);
        Ok(outcome)
    }

    fn load(&self, body: &[u8]) -> Bytes {
        let table = self.table(u64::from_le_bytes(body[..8].try_into().expect("8 B")));
        let row_bytes = table.spec.row_bytes();
        let view = LoadView::parse(body, row_bytes).expect("a load");
        let mut sealed = lock(&self.sealed);
        for (i, row) in view.rows.chunks_exact(row_bytes as usize).enumerate() {
            let key = match table.spec.dense_layout() {
                Some(layout) => {
                    layout.row_of(view.header.shard.get(), view.header.first.get() + i as u64)
                }
                None => view.keys[i].get(),
            };
            sealed.insert((view.header.generation.get(), key), row.to_vec());
        }
        encode_bytes(&NodeResponse::Done)
    }

    fn control(&self, request: NodeRequest) -> NodeResponse {
        match request {
            NodeRequest::OpenSessions { shards, .. } => {
                let mut next = lock(&self.next_session);
                let mut opened = Vec::new();
                for (shard, _) in &shards {
                    *next += 1;
                    opened.push(SessionId(*next));
                    lock(&self.sessions).insert((shard.0, *next), Session::default());
                }
                let shards = shards.iter().map(|(shard, _)| shard.0).collect();
                lock(&self.seen).push(Seen::Open(shards));
                NodeResponse::Sessions(opened)
            }
            NodeRequest::VoidSequence {
                shard,
                session,
                sequence,
                ..
            } => {
                lock(&self.seen).push(Seen::Void(shard.0, session.0, sequence));
                match lock(&self.sessions).get_mut(&(shard.0, session.0)) {
                    Some(found) => {
                        if !found.settled.contains_key(&sequence) {
                            found.voided.insert(sequence);
                        }
                        NodeResponse::Done
                    }
                    None => NodeResponse::Refused(Refusal::UnknownSession { shard }),
                }
            }
            NodeRequest::BeginLoad { .. } | NodeRequest::AbandonLoad { .. } => NodeResponse::Done,
            NodeRequest::FinishLoad { table, generation } => {
                lock(&self.held).insert(generation.0);
                NodeResponse::Sealed(self.replicas(table, generation))
            }
            NodeRequest::SealShards { table, generation } => {
                for (key, row) in lock(&self.rows).iter() {
                    let row = row.as_bytes().to_vec();
                    lock(&self.sealed).insert((generation.0, *key), row);
                }
                lock(&self.held).insert(generation.0);
                NodeResponse::Sealed(self.replicas(table, generation))
            }
            NodeRequest::Scan {
                table,
                shard,
                cursor,
                rows_max,
                ..
            } => {
                let shards = self.table(table.0).spec.shards;
                let rows = lock(&self.rows);
                let mut keys: Vec<u64> = rows
                    .keys()
                    .copied()
                    .filter(|k| shard_of_key(*k, shards) == shard.0)
                    .collect();
                keys.sort_unstable();
                let all = keys.len() as u64;
                keys = keys.split_off(cursor as usize);
                keys.truncate(rows_max as usize);
                let bytes = keys
                    .iter()
                    .flat_map(|k| rows[k].as_bytes().to_vec())
                    .collect();
                let next = cursor + keys.len() as u64;
                NodeResponse::Rows {
                    keys,
                    rows: bytes,
                    next: (next < all).then_some(next),
                }
            }
            NodeRequest::Describe { table } => {
                let mine = self.replicas(table, TableGeneration(0)).into_iter();
                NodeResponse::Shards(
                    mine.map(|replica| (replica.shard, replica.region))
                        .collect(),
                )
            }
        }
    }

    fn replicas(&self, table: TableId, generation: TableGeneration) -> Vec<SealedReplica> {
        let map = self.table(table.0);
        let mine = |(_, shard): &(usize, &mneme_proto::map::ShardEntry)| {
            shard.replicas[0].node as usize == self.number
        };
        let replica = |(at, _): (usize, &mneme_proto::map::ShardEntry)| SealedReplica {
            shard: ShardIndex(at as u32),
            node: NodeId(self.number as u64 + 1),
            incarnation: Incarnation(1),
            region: Descriptor {
                region: RegionId(at as u64),
                generation: Generation(generation.0),
                state: RegionState::Sealed,
                tier: Tier::Dram,
                coherence: Coherence::Host,
                page_bytes: 4096,
                numa: -1,
                integrity: Integrity::Digest,
                rows: 10,
                bytes: 100,
                planes: Vec::new(),
                paths: Vec::new(),
                digest: 1,
            },
        };
        map.shards
            .iter()
            .enumerate()
            .filter(mine)
            .map(replica)
            .collect()
    }
}
