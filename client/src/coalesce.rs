//! The coalescer: decides when small pulls to one node share a frame (DESIGN 7).
//!
//! A state machine without I/O: pulls arrive, frames end, the clock moves, callers give up;
//! it says what to send. A pull that finds the link idle goes at once; others gather until the
//! link is idle, a frame is full, or the first of them has waited for the bound.
//!
//! Whoever drives it must report the end of every frame, however it ended, exactly once.

use std::time::{Duration, Instant};

/// A pull that waits, by a number of the driver's.
pub(crate) type AskId = u64;

/// What to do with a pull that has arrived.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// Send it as a frame of its own, now.
    Straight,
    /// It waits for others.
    Gathered {
        /// The frame that it made full: send it now.
        full: Option<Vec<AskId>>,
        /// Call [`Coalescer::handle_clock`] then; no other call is armed.
        arm: Option<Instant>,
    },
}

/// One node's small pulls of one table and kind.
#[derive(Debug)]
pub(crate) struct Coalescer {
    bound: Duration,
    frame_keys: usize,
    /// Frames under way.
    in_flight: u32,
    gathered: Vec<(AskId, usize)>,
    gathered_keys: usize,
    /// When the clock is to be looked at; stays set until it was.
    armed: Option<Instant>,
    /// When the first of `gathered` has waited long enough.
    due: Option<Instant>,
}

impl Coalescer {
    /// `bound` is the longest wait, `frame_keys` makes a frame full.
    pub(crate) fn new(bound: Duration, frame_keys: usize) -> Self {
        Self {
            bound,
            frame_keys,
            in_flight: 0,
            gathered: Vec::new(),
            gathered_keys: 0,
            armed: None,
            due: None,
        }
    }

    /// A pull of `keys` keys arrives.
    pub(crate) fn handle_arrival(&mut self, ask: AskId, keys: usize, now: Instant) -> Arrival {
        if self.in_flight == 0 && self.gathered.is_empty() {
            self.in_flight = 1;
            return Arrival::Straight;
        }
        self.gathered.push((ask, keys));
        self.gathered_keys += keys;
        if self.gathered_keys >= self.frame_keys {
            return Arrival::Gathered {
                full: self.take(),
                arm: None,
            };
        }
        let due = *self.due.get_or_insert(now + self.bound);
        let arm = self.armed.is_none().then_some(due);
        self.armed = self.armed.or(arm);
        Arrival::Gathered { full: None, arm }
    }

    /// A frame ended: answered, failed or given up. Returns the frame to send next.
    pub(crate) fn handle_end(&mut self) -> Option<Vec<AskId>> {
        debug_assert!(self.in_flight > 0, "more frames ended than were sent");
        self.in_flight -= 1;
        if self.in_flight == 0 {
            self.take()
        } else {
            None
        }
    }

    /// The time that was armed has come. Returns the frame to send and when to call again.
    pub(crate) fn handle_clock(&mut self, now: Instant) -> (Option<Vec<AskId>>, Option<Instant>) {
        self.armed = None;
        match self.due {
            Some(due) if due <= now => (self.take(), None),
            due => {
                self.armed = due;
                (None, due)
            }
        }
    }

    /// The caller of a gathered pull gave up. No effect on one that was sent.
    pub(crate) fn handle_cancel(&mut self, ask: AskId) {
        if let Some(at) = self.gathered.iter().position(|(id, _)| *id == ask) {
            self.gathered_keys -= self.gathered.remove(at).1;
            if self.gathered.is_empty() {
                self.due = None;
            }
        }
    }

    fn take(&mut self) -> Option<Vec<AskId>> {
        self.due = None;
        self.gathered_keys = 0;
        if self.gathered.is_empty() {
            return None;
        }
        self.in_flight += 1;
        Some(self.gathered.drain(..).map(|(ask, _)| ask).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BOUND: Duration = Duration::from_micros(20);

    fn us(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    #[test]
    fn an_idle_link_takes_a_pull_at_once() {
        let (mut c, t) = (Coalescer::new(BOUND, 100), Instant::now());
        assert_eq!(c.handle_arrival(1, 10, t), Arrival::Straight);
        assert_eq!(c.handle_end(), None);
        assert_eq!(c.handle_arrival(2, 10, t), Arrival::Straight);
    }

    #[test]
    fn a_busy_link_gathers_until_it_is_idle() {
        let (mut c, t) = (Coalescer::new(BOUND, 100), Instant::now());
        c.handle_arrival(1, 10, t);
        let arm = Some(t + BOUND);
        assert_eq!(
            c.handle_arrival(2, 10, t),
            Arrival::Gathered { full: None, arm }
        );
        let third = c.handle_arrival(3, 10, t + us(5));
        assert_eq!(
            third,
            Arrival::Gathered {
                full: None,
                arm: None
            }
        );
        assert_eq!(c.handle_end(), Some(vec![2, 3]));
        // The clock that was armed for them finds nothing due.
        assert_eq!(c.handle_clock(t + us(20)), (None, None));
    }

    #[test]
    fn the_bound_sends_although_the_link_is_busy() {
        let (mut c, t) = (Coalescer::new(BOUND, 100), Instant::now());
        c.handle_arrival(1, 10, t);
        c.handle_arrival(2, 10, t);
        assert_eq!(c.handle_clock(t + us(19)), (None, Some(t + us(20))));
        assert_eq!(c.handle_clock(t + us(20)), (Some(vec![2]), None));
        // Two frames are under way: the link is idle after both.
        c.handle_arrival(3, 10, t + us(25));
        assert_eq!(c.handle_end(), None);
        assert_eq!(c.handle_end(), Some(vec![3]));
    }

    #[test]
    fn a_full_frame_goes_at_once() {
        let (mut c, t) = (Coalescer::new(BOUND, 100), Instant::now());
        c.handle_arrival(1, 10, t);
        c.handle_arrival(2, 60, t);
        let full = Some(vec![2, 3]);
        assert_eq!(
            c.handle_arrival(3, 40, t),
            Arrival::Gathered { full, arm: None }
        );
    }

    #[test]
    fn a_cancelled_pull_leaves_its_neighbours() {
        let (mut c, t) = (Coalescer::new(BOUND, 100), Instant::now());
        c.handle_arrival(1, 10, t);
        c.handle_arrival(2, 10, t);
        c.handle_arrival(3, 10, t);
        c.handle_cancel(2);
        c.handle_cancel(1); // under way already: no effect
        assert_eq!(c.handle_end(), Some(vec![3]));
        c.handle_cancel(3);
        assert_eq!(c.handle_end(), None);
    }

    proptest! {
        /// Every pull is sent exactly once or cancelled, and none waits longer than the bound.
        #[test]
        fn nobody_is_lost_or_late(steps in prop::collection::vec((0u8..4, 1usize..60), 1..200)) {
            let mut c = Coalescer::new(BOUND, 100);
            let mut now = Instant::now();
            let (mut waiting, mut flying, mut armed) = (Vec::<(AskId, Instant)>::new(), 0u32, None);
            let send = |frame: Option<Vec<AskId>>, waiting: &mut Vec<(AskId, Instant)>,
                            flying: &mut u32| {
                for ask in frame.iter().flatten() {
                    let at = waiting.iter().position(|(id, _)| id == ask).expect("it waited");
                    waiting.remove(at);
                }
                *flying += u32::from(frame.is_some());
            };
            for (id, (step, keys)) in steps.into_iter().enumerate() {
                let id = id as AskId;
                match step {
                    0 | 1 => match c.handle_arrival(id, keys, now) {
                        Arrival::Straight => flying += 1,
                        Arrival::Gathered { full, arm } => {
                            waiting.push((id, now));
                            send(full, &mut waiting, &mut flying);
                            if arm.is_some() { armed = arm; }
                        }
                    },
                    2 if flying > 0 => {
                        flying -= 1;
                        let frame = c.handle_end();
                        send(frame, &mut waiting, &mut flying);
                    }
                    2 => {}
                    _ => if let Some((ask, _)) = waiting.pop() { c.handle_cancel(ask) },
                }
                now += us(3);
                if armed.is_some_and(|at| at <= now) {
                    let (frame, arm) = c.handle_clock(now);
                    send(frame, &mut waiting, &mut flying);
                    armed = arm;
                }
                for (ask, since) in &waiting {
                    prop_assert!(now - *since <= BOUND + us(3), "{ask} waits for too long");
                    prop_assert!(flying > 0, "{ask} waits on an idle link");
                }
            }
        }
    }
}
