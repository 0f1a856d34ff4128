//! The shell around the coalescer: a lane carries the small pulls of one kind to one node.
//!
//! A pull that goes straight is driven by its own caller. A joint frame is driven by a task of
//! its own, so that no caller who gives up takes its neighbours' rows away.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use dashmap::DashMap;
use mneme_proto::frame::Status;
use mneme_proto::ids::{Incarnation, NodeId, Revision};
use rustc_hash::FxHashMap;
use tokio::sync::oneshot;
use tokio::time::timeout_at;

use crate::coalesce::{Arrival, AskId, Coalescer};
use crate::error::NodeFault;
use crate::limits::COALESCED_FRAME_KEYS;
use crate::map::TableShared;
use crate::plan::Ask;
use crate::pull::{attempt, fill_duplicates_but};
use crate::router::Router;
use crate::scatter::Out;

/// What pulls must have in common to share a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct LaneKey {
    node: NodeId,
    incarnation: Incarnation,
    /// Of the map: all pulls of a frame were planned with the same one.
    revision: Revision,
    ask: Ask,
}

/// The lanes of one table.
#[derive(Debug)]
pub(crate) struct Lanes {
    bound: Duration,
    by_key: DashMap<LaneKey, Arc<Lane>>,
}

#[derive(Debug)]
pub(crate) struct Lane {
    router: Arc<Router>,
    ask: Ask,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    core: Coalescer,
    next: AskId,
    waiting: FxHashMap<AskId, Waiting>,
}

#[derive(Debug)]
struct Waiting {
    keys: Vec<u64>,
    until: Instant,
    reply: oneshot::Sender<Delivery>,
}

/// One pull's share of a joint frame.
#[derive(Debug)]
pub(crate) struct Delivery {
    /// Rows in the order of the keys that joined.
    pub(crate) rows: Bytes,
    pub(crate) statuses: Vec<Status>,
    /// Indices into the keys that joined, and why they were not served.
    pub(crate) failed: Vec<(Vec<u32>, NodeFault)>,
}

/// How a small pull travels.
pub(crate) enum Way {
    /// Alone: hold the flight until its answer is there.
    Straight(Flight),
    /// With others.
    Joined(Joined),
}

impl Lanes {
    /// `bound` 0 turns coalescing off.
    pub(crate) fn new(bound: Duration) -> Self {
        Self {
            bound,
            by_key: DashMap::new(),
        }
    }

    pub(crate) fn is_on(&self) -> bool {
        !self.bound.is_zero()
    }

    /// Forgets the lanes of older maps; pulls in them end as they would have.
    pub(crate) fn keep(&self, revision: Revision) {
        self.by_key.retain(|key, _| key.revision == revision);
    }

    /// The lane to `router.nodes[node]`.
    pub(crate) fn lane(&self, router: &Arc<Router>, node: u32, ask: Ask) -> Arc<Lane> {
        let route = &router.nodes[node as usize];
        let key = LaneKey {
            node: route.id,
            incarnation: route.incarnation,
            revision: router.revision,
            ask,
        };
        if let Some(found) = self.by_key.get(&key) {
            return found.clone();
        }
        let made = || {
            let core = Coalescer::new(self.bound, COALESCED_FRAME_KEYS);
            let state = State {
                core,
                next: 0,
                waiting: FxHashMap::default(),
            };
            Arc::new(Lane {
                router: router.clone(),
                ask,
                state: Mutex::new(state),
            })
        };
        self.by_key.entry(key).or_insert_with(made).clone()
    }
}

impl Lane {
    /// A pull arrives. `keys` is called only if it joins others.
    pub(crate) fn enter(
        self: &Arc<Self>,
        table: &Arc<TableShared>,
        count: usize,
        keys: impl FnOnce() -> Vec<u64>,
        until: Instant,
    ) -> Way {
        let mut state = self.state();
        let id = state.next;
        state.next += 1;
        let (full, arm) = match state.core.handle_arrival(id, count, Instant::now()) {
            Arrival::Straight => {
                let flight = Flight {
                    table: table.clone(),
                    lane: self.clone(),
                };
                return Way::Straight(flight);
            }
            Arrival::Gathered { full, arm } => (full, arm),
        };
        let (reply, receiver) = oneshot::channel();
        state.waiting.insert(
            id,
            Waiting {
                keys: keys(),
                until,
                reply,
            },
        );
        let frame = full.map(|asks| state.claim(&asks));
        drop(state);
        if let Some(frame) = frame {
            self.send(table, frame);
        }
        if let Some(at) = arm {
            table
                .client
                .runtime
                .spawn(wait_for_clock(table.clone(), self.clone(), at));
        }
        Way::Joined(Joined {
            lane: self.clone(),
            id,
            until,
            receiver,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(self: &Arc<Self>, table: &Arc<TableShared>, frame: Vec<Waiting>) {
        let flight = Flight {
            table: table.clone(),
            lane: self.clone(),
        };
        table.client.runtime.spawn(carry(flight, frame));
    }
}

impl State {
    fn claim(&mut self, asks: &[AskId]) -> Vec<Waiting> {
        asks.iter()
            .filter_map(|ask| self.waiting.remove(ask))
            .collect()
    }
}

/// A frame under way. Its end, in whatever way, is reported when this is dropped.
pub(crate) struct Flight {
    table: Arc<TableShared>,
    lane: Arc<Lane>,
}

impl Drop for Flight {
    fn drop(&mut self) {
        let mut state = self.lane.state();
        let next = state.core.handle_end();
        let frame = next.map(|asks| state.claim(&asks));
        drop(state);
        if let Some(frame) = frame {
            self.lane.send(&self.table, frame);
        }
    }
}

/// A pull that waits for its share of a joint frame. Dropped before, it takes itself out.
pub(crate) struct Joined {
    lane: Arc<Lane>,
    id: AskId,
    until: Instant,
    receiver: oneshot::Receiver<Delivery>,
}

impl Joined {
    /// Waits for the rows.
    pub(crate) async fn delivered(mut self) -> Result<Delivery, NodeFault> {
        match timeout_at(self.until.into(), &mut self.receiver).await {
            Ok(Ok(delivery)) => Ok(delivery),
            Ok(Err(_)) => Err(NodeFault::Lost("the client is shutting down".into())),
            Err(_) => Err(NodeFault::Deadline("the answer to a joint frame")),
        }
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        let mut state = self.lane.state();
        state.core.handle_cancel(self.id);
        state.waiting.remove(&self.id);
    }
}

/// Calls the coalescer when its time has come.
async fn wait_for_clock(table: Arc<TableShared>, lane: Arc<Lane>, mut at: Instant) {
    loop {
        sleep_precisely(at).await;
        let mut state = lane.state();
        let (asks, again) = state.core.handle_clock(Instant::now());
        let frame = asks.map(|asks| state.claim(&asks));
        drop(state);
        if let Some(frame) = frame {
            lane.send(&table, frame);
        }
        match again {
            Some(later) => at = later,
            None => return,
        }
    }
}

/// The runtime's timer has steps of a millisecond; what is shorter is spent yielding, so that
/// answers are still read meanwhile.
async fn sleep_precisely(at: Instant) {
    const TIMER_STEP: Duration = Duration::from_millis(2);
    let left = at.saturating_duration_since(Instant::now());
    if left > TIMER_STEP {
        tokio::time::sleep(left - TIMER_STEP).await;
    }
    while Instant::now() < at {
        tokio::task::yield_now().await;
    }
}

/// Carries a joint frame: one pull of everybody's keys, each of them once.
async fn carry(flight: Flight, mut frame: Vec<Waiting>) {
    frame.retain(|ask| !ask.reply.is_closed());
    let Some(until) = frame.iter().map(|ask| ask.until).max() else {
        return;
    };
    let (table, lane) = (&flight.table, &flight.lane);
    let keys: Vec<u64> = frame
        .iter()
        .flat_map(|ask| ask.keys.iter().copied())
        .collect();
    let row_bytes = lane.ask.row_bytes(&lane.router);
    let mut rows = vec![0; keys.len() * row_bytes];
    let mut statuses = vec![Status::Missing; keys.len()];
    let mut out = Out {
        rows: &mut rows,
        statuses: &mut statuses,
        row_bytes,
    };
    let mut plan = table.client.plan();
    if plan.group(&lane.router, &keys, None, row_bytes).is_err() {
        return; // ranges were checked when each pull was planned with the same map
    }
    let mut failed = attempt(table, &lane.router, &plan, lane.ask, &mut out, until, false).await;
    fill_duplicates_but(&plan.duplicates, &mut failed, &mut out);
    // The link is idle before the rows are handed out: who waits is sent first.
    drop(flight);

    let rows = Bytes::from(rows);
    let mut start = 0;
    for ask in frame {
        let end = start + ask.keys.len();
        let mine = |&p: &u32| (start..end).contains(&(p as usize));
        let failed = failed
            .iter()
            .map(|f| {
                let mine = f.positions.iter().copied().filter(mine);
                (
                    mine.map(|p| p - start as u32).collect::<Vec<_>>(),
                    f.why.clone(),
                )
            })
            .filter(|(positions, _)| !positions.is_empty());
        let delivery = Delivery {
            rows: rows.slice(start * row_bytes..end * row_bytes),
            statuses: statuses[start..end].to_vec(),
            failed: failed.collect(),
        };
        // Whoever gave up meanwhile does not want it.
        let _ = ask.reply.send(delivery);
        start = end;
    }
}
