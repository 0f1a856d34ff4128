//! The parts of a push: what became of each, and what the caller is told of them together.

use mneme_net::Body;
use mneme_proto::codec;
use mneme_proto::frame::PushedView;
use mneme_proto::refusal::Refusal;

use crate::error::{
    ClientError, Fate, NodeFault, PartFate, PushFailure, Unavailable, UnavailableKeys,
};
use crate::merge::PartKeys;
use crate::options::PushReport;
use crate::paths::quic::Exchanged;
use crate::router::Router;
use crate::session::Ticket;

/// One part on its way.
pub(crate) struct Part<'a> {
    pub(crate) keys: &'a PartKeys,
    pub(crate) ticket: Option<Ticket>,
    /// It went out and no answer came: it may have taken effect.
    pub(crate) doubt: Option<NodeFault>,
    /// Why it is not done yet.
    pub(crate) problem: Option<NodeFault>,
    pub(crate) fate: Option<Fate>,
    pub(crate) ignored: u32,
}

impl<'a> Part<'a> {
    pub(crate) fn new(keys: &'a PartKeys) -> Self {
        Self {
            keys,
            ticket: None,
            doubt: None,
            problem: None,
            fate: None,
            ignored: 0,
        }
    }

    pub(crate) fn shard(&self) -> u32 {
        self.keys.shard
    }

    pub(crate) fn is_open(&self) -> bool {
        self.fate.is_none()
    }

    /// What it is if nothing more is tried. Its ticket is dropped, and thereby closed.
    pub(crate) fn give_up(&mut self) {
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

/// Whether no retry will change it.
pub(crate) fn is_final(refusal: &Refusal) -> bool {
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
pub(crate) fn receive(parts: &mut [Part<'_>], frame: &[usize], exchanged: Exchanged) {
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
pub(crate) fn report(router: &Router, parts: Vec<Part<'_>>) -> Result<PushReport, ClientError> {
    let mut report = PushReport {
        parts: parts.len() as u32,
        ..PushReport::default()
    };
    let mut fates = Vec::with_capacity(parts.len());
    for (at, part) in parts.into_iter().enumerate() {
        let fate = match part.fate {
            Some(Fate::Refused(refusal)) => Fate::Refused(refusal.of_table(&router.spec.name)),
            Some(fate) => fate,
            None => Fate::NotSent(NodeFault::Deadline("its turn")),
        };
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
