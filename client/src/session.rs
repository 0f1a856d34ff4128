//! Push sessions: sequences without gaps, at most 64 in flight per session and shard (I-2).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dashmap::DashMap;
use mneme_proto::control::NodeRequest;
use mneme_proto::ids::{SessionId, ShardIndex};
use mneme_proto::limits::SESSION_WINDOW;
use mneme_proto::refusal::Refusal;
use tokio::sync::Notify;

use crate::limits::{PAUSE_FIRST, PAUSE_MAX, VOID_WITHIN};
use crate::map::TableShared;
use crate::paths::quic::{ControlFault, control};

/// Which sequences of a session are settled. None runs more than [`SESSION_WINDOW`] ahead of the
/// lowest that is not, for the node keeps as many outcomes.
#[derive(Debug)]
pub(crate) struct Window {
    next: u64,
    /// The lowest sequence that is not settled.
    lowest: u64,
    /// Bit n: `lowest + n` is settled.
    settled: u64,
}

impl Default for Window {
    fn default() -> Self {
        Self {
            next: 1,
            lowest: 1,
            settled: 0,
        }
    }
}

impl Window {
    fn has_room(&self) -> bool {
        self.next - self.lowest < SESSION_WINDOW
    }

    /// The next sequence, if the window has room.
    pub(crate) fn take(&mut self) -> Option<u64> {
        if !self.has_room() {
            return None;
        }
        self.next += 1;
        Some(self.next - 1)
    }

    /// A sequence was applied, refused or voided. Returns whether room was made.
    pub(crate) fn settle(&mut self, sequence: u64) -> bool {
        debug_assert!((self.lowest..self.next).contains(&sequence));
        self.settled |= 1 << (sequence - self.lowest);
        let done = self.settled.trailing_ones();
        self.settled = self.settled.checked_shr(done).unwrap_or(0);
        self.lowest += u64::from(done);
        done > 0
    }

    /// Takes back a sequence that never left, if no later one was taken.
    pub(crate) fn give_back(&mut self, sequence: u64) -> bool {
        let last = self.next == sequence + 1;
        if last {
            self.next = sequence;
        }
        last
    }
}

/// A session on one shard.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: SessionId,
    window: Mutex<Window>,
    /// Told when the window gets room, and when the session ends.
    freed: Notify,
    over: AtomicBool,
}

impl Session {
    fn window(&self) -> MutexGuard<'_, Window> {
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn settle(&self, sequence: u64) {
        if self.window().settle(sequence) {
            self.freed.notify_waiters();
        }
    }

    /// Waits until the window has room or the session is over.
    pub(crate) async fn room(&self) {
        loop {
            let freed = self.freed.notified();
            if self.window().has_room() || self.over.load(Ordering::Relaxed) {
                return;
            }
            freed.await;
        }
    }
}

/// The sessions of one table, opened when their shard gets its first push.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    by_shard: DashMap<u32, Arc<Session>>,
    /// Held while sessions are opened.
    pub(crate) opening: tokio::sync::Mutex<()>,
}

impl Sessions {
    pub(crate) fn get(&self, shard: u32) -> Option<Arc<Session>> {
        self.by_shard.get(&shard).map(|session| session.clone())
    }

    pub(crate) fn opened(&self, shard: u32, id: SessionId) {
        let session = Session {
            id,
            window: Mutex::default(),
            freed: Notify::new(),
            over: AtomicBool::new(false),
        };
        self.by_shard.insert(shard, Arc::new(session));
    }

    /// The shard does not know the session any more, or it cannot be put in order.
    fn end(&self, shard: u32, session: &Arc<Session>) {
        self.by_shard
            .remove_if(&shard, |_, current| Arc::ptr_eq(current, session));
        session.over.store(true, Ordering::Relaxed);
        session.freed.notify_waiters();
    }
}

/// A sequence taken from a session. Dropped unsettled it is closed: taken back if it never
/// left, else voided in the background, so that the session has no gap.
pub(crate) struct Ticket {
    table: Arc<TableShared>,
    shard: u32,
    session: Arc<Session>,
    sequence: u64,
    sent: bool,
    settled: bool,
}

impl Ticket {
    /// A ticket from the shard's session, if that has room.
    pub(crate) fn take(table: &Arc<TableShared>, shard: u32) -> Option<Self> {
        let session = table.sessions.get(shard)?;
        let sequence = session.window().take()?;
        let table = table.clone();
        Some(Self {
            table,
            shard,
            session,
            sequence,
            sent: false,
            settled: false,
        })
    }

    pub(crate) fn session(&self) -> SessionId {
        self.session.id
    }

    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// It goes out now.
    pub(crate) fn sent(&mut self) {
        self.sent = true;
    }

    /// The shard has decided on it.
    pub(crate) fn settle(mut self) {
        self.settled = true;
        self.session.settle(self.sequence);
    }

    /// The shard does not know its session.
    pub(crate) fn session_unknown(mut self) {
        self.settled = true;
        self.table.sessions.end(self.shard, &self.session);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.settled || (!self.sent && self.session.window().give_back(self.sequence)) {
            return;
        }
        let (table, session) = (self.table.clone(), self.session.clone());
        let closing = close(table, self.shard, session, self.sequence);
        self.table.client.runtime.spawn(closing);
    }
}

/// Closes a sequence that was given up: once it is voided it can no longer take effect.
async fn close(table: Arc<TableShared>, shard: u32, session: Arc<Session>, sequence: u64) {
    let until = Instant::now() + VOID_WITHIN;
    let mut pause = PAUSE_FIRST;
    loop {
        match void(&table, shard, session.id, sequence, until).await {
            Ok(()) => return session.settle(sequence),
            Err(ControlFault::Refused(Refusal::UnknownSession { .. })) => break,
            Err(fault) if !fault.may_pass() || Instant::now() + pause >= until => break,
            Err(_) => {}
        }
        tokio::time::sleep(pause.mul_f64(0.5 + 0.5 * rand::random::<f64>())).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
    // Nobody can number pushes behind a gap: the next push opens a new session.
    table.sessions.end(shard, &session);
}

async fn void(
    table: &Arc<TableShared>,
    shard: u32,
    session: SessionId,
    sequence: u64,
    until: Instant,
) -> Result<(), ControlFault> {
    let router = table.router();
    let Some(route) = router.node(shard) else {
        let why = format!("shard {shard} has no replica at present");
        return Err(ControlFault::Refused(Refusal::Unavailable { why }));
    };
    let (id, shard) = (router.table, ShardIndex(shard));
    let request = NodeRequest::VoidSequence {
        table: id,
        shard,
        session,
        sequence,
    };
    let deadline = until.min(Instant::now() + Duration::from_secs(3));
    let links = &table.client.links;
    let answer = control(links, &links.to(route), &request, deadline).await;
    if matches!(&answer, Err(ControlFault::Refused(r)) if r.wants_new_map()) {
        table.refresh_soon(&router);
    }
    answer.map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sixty_four_in_flight_then_wait() {
        let mut window = Window::default();
        let taken: Vec<u64> = std::iter::from_fn(|| window.take()).collect();
        assert_eq!(taken, (1..=SESSION_WINDOW).collect::<Vec<_>>());
        assert!(!window.settle(2), "the lowest holds the window");
        assert_eq!(window.take(), None);
        assert!(window.settle(1));
        assert_eq!(
            (window.take(), window.take(), window.take()),
            (Some(65), Some(66), None)
        );
    }

    #[test]
    fn only_the_last_sequence_can_be_given_back() {
        let mut window = Window::default();
        let (first, second) = (window.take().expect("room"), window.take().expect("room"));
        assert!(!window.give_back(first));
        assert!(window.give_back(second));
        assert_eq!(window.take(), Some(second));
    }

    proptest! {
        /// I-2: sequences have no gaps and never run further ahead than outcomes are kept.
        #[test]
        fn no_gap_and_never_too_far_ahead(picks in prop::collection::vec(any::<u16>(), 1..600)) {
            let mut window = Window::default();
            let (mut open, mut expected) = (Vec::new(), 1);
            for pick in picks {
                if pick % 3 == 0 && !open.is_empty() {
                    window.settle(open.remove(pick as usize % open.len()));
                } else if let Some(sequence) = window.take() {
                    prop_assert_eq!(sequence, expected);
                    expected += 1;
                    open.push(sequence);
                }
                if let Some(lowest) = open.iter().min() {
                    prop_assert!(expected - lowest <= SESSION_WINDOW);
                }
            }
        }
    }
}
