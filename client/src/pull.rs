//! A pull: plan, send one frame per node (more where limits ask for it), scatter what comes,
//! and try again for what did not.
//!
//! A pull of a sealed table keeps one generation through its splits and tries; where that is
//! gone, or the map has moved to another, it starts over whole (I-8). It asks the catalogue only
//! after a node's refusal says that the map is old (I-9).

use std::sync::Arc;
use std::time::Instant;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use mneme_net::Body;
use mneme_proto::frame::FrameKind;
use mneme_proto::map::TableState;
use mneme_proto::refusal::Refusal;

use crate::error::{ClientError, NodeFault, UnavailableKeys};
use crate::lanes::{Delivery, Flight, Joined, Way};
use crate::limits::{COALESCE_KEYS_MAX, FRAMES_IN_FLIGHT};
use crate::links::NodeLink;
use crate::map::TableShared;
use crate::paths::quic::{Exchanged, exchange};
use crate::plan::{Ask, Cut, Plan};
use crate::retry::Tries;
use crate::router::Router;
use crate::scatter::{Out, fill_duplicates, scatter};

/// Keys that a try did not get.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Failed {
    /// Index into the router's nodes.
    pub(crate) node: u32,
    pub(crate) positions: Vec<u32>,
    pub(crate) why: NodeFault,
}

/// Pulls `keys` into `out`. Returns what could not be had because nodes did not serve it.
///
/// # Errors
/// Refusals that no retry cures.
pub(crate) async fn pull(
    table: &Arc<TableShared>,
    keys: &[u64],
    ask: Ask,
    out: &mut Out<'_>,
    deadline: Instant,
) -> Result<Vec<UnavailableKeys>, ClientError> {
    let client = &table.client;
    client.budget.earn();
    let mut tries = Tries::new(deadline);
    let mut plan = client.plan();
    let mut pending: Option<Vec<u32>> = None;
    let mut router = served(table, deadline).await?;
    loop {
        check_shape(&router, ask, out)?;
        let by = tries.begin(Instant::now());
        plan.group(&router, keys, pending.as_deref(), out.row_bytes)
            .map_err(Refusal::from)?;
        let mut failed = attempt(table, &router, &plan, ask, out, by, true).await;
        if failed.is_empty() {
            fill_duplicates(&plan.duplicates, out);
            return Ok(Vec::new());
        }
        fill_duplicates_but(&plan.duplicates, &mut failed, out);
        if let Some(refusal) = failed.iter().find_map(permanent) {
            return Err(refusal.clone().of_table(&router.spec.name).into());
        }
        let pause = tries.pause(Instant::now(), &client.budget, rand::random());
        let Some(pause) = pause else {
            return Ok(failed.into_iter().map(|f| named(&router, f)).collect());
        };
        let fresh = after_faults(table, &router, failed.iter().map(|f| &f.why), by).await?;
        tokio::time::sleep(pause).await;
        let whole = fresh.generation != router.generation || failed.iter().any(is_gone);
        pending = (!whole).then(|| {
            let mut positions: Vec<u32> = failed.into_iter().flat_map(|f| f.positions).collect();
            positions.sort_unstable();
            positions
        });
        router = fresh;
    }
}

/// The buffer was sized by an older map: a table that was sealed meanwhile has no state to send.
fn check_shape(router: &Router, ask: Ask, out: &Out<'_>) -> Result<(), ClientError> {
    let row_bytes = ask.row_bytes(router);
    if row_bytes == out.row_bytes {
        return Ok(());
    }
    let found = format!("rows of {} B", out.row_bytes);
    let wanted = format!("rows of {row_bytes} B: it is {} now", router.state.word());
    Err(ClientError::shape("the buffer", found, wanted))
}

/// A router of a table that is served; the catalogue is asked only if the one at hand is not.
pub(crate) async fn served(
    table: &Arc<TableShared>,
    deadline: Instant,
) -> Result<Arc<Router>, ClientError> {
    let router = table.router();
    if router.check_served().is_ok() {
        return Ok(router);
    }
    let fresh = match router.state {
        TableState::Creating => table.until_served(router, deadline).await?,
        _ => table.refresh(&router, deadline).await?,
    };
    fresh.check_served()?;
    Ok(fresh)
}

/// After a try that failed: the map to go on with. A refusal that a new map may cure waits for
/// it; a node that is silent only has it looked at beside (I-9).
///
/// # Errors
/// What makes further tries useless: the table is gone, or its rows are lost.
pub(crate) async fn after_faults<'a>(
    table: &Arc<TableShared>,
    router: &Arc<Router>,
    mut faults: impl Iterator<Item = &'a NodeFault>,
    by: Instant,
) -> Result<Arc<Router>, Refusal> {
    let stale = faults.any(|fault| match fault {
        NodeFault::Refused(refusal) => refusal.wants_new_map(),
        // An answer of another shape may be that of a table that was sealed meanwhile.
        NodeFault::Malformed(_) => true,
        _ => false,
    });
    let fresh = if stale {
        match table.refresh(router, by).await {
            Ok(fresh) => fresh,
            Err(ClientError::Refused(refusal)) => return Err(refusal),
            Err(error) => {
                tracing::debug!(table = %router.spec.name, %error, "no newer map");
                table.router()
            }
        }
    } else {
        table.refresh_soon(router);
        table.router()
    };
    if fresh.state == TableState::Lost {
        fresh.check_served()?;
    }
    Ok(fresh)
}

fn is_gone(failed: &Failed) -> bool {
    matches!(
        failed.why,
        NodeFault::Refused(Refusal::GenerationGone { .. })
    )
}

/// A refusal that stays, whatever is tried.
fn permanent(failed: &Failed) -> Option<&Refusal> {
    match &failed.why {
        NodeFault::Refused(r) if !r.wants_new_map() && !r.is_transient() => Some(r),
        _ => None,
    }
}

fn named(router: &Router, failed: Failed) -> UnavailableKeys {
    let node = router.nodes.get(failed.node as usize);
    UnavailableKeys {
        node: node.map_or("none".into(), |n| n.name.to_string()),
        address: node.map_or("no address".into(), |n| n.address.to_string()),
        positions: failed.positions,
        why: failed.why,
    }
}

/// Fills the repeats of keys that came, and adds those of keys that did not to `failed`.
pub(crate) fn fill_duplicates_but(
    duplicates: &[(u32, u32)],
    failed: &mut [Failed],
    out: &mut Out<'_>,
) {
    for failed in failed.iter_mut() {
        failed.positions.sort_unstable();
    }
    for duplicate in duplicates {
        let (position, first) = *duplicate;
        let missed = failed
            .iter_mut()
            .find(|f| f.positions.binary_search(&first).is_ok());
        match missed {
            Some(failed) => failed.positions.push(position),
            None => fill_duplicates(std::slice::from_ref(duplicate), out),
        }
    }
}

/// How the answer to a cut arrives.
enum Reply {
    Frame(Exchanged),
    Share(Result<Delivery, NodeFault>),
}

/// One try: all frames of the plan, several at a time, rows scattered as they come.
pub(crate) async fn attempt(
    table: &Arc<TableShared>,
    router: &Arc<Router>,
    plan: &Plan,
    ask: Ask,
    out: &mut Out<'_>,
    by: Instant,
    coalesce: bool,
) -> Vec<Failed> {
    let mut failed = Vec::new();
    let request = |cut| request(table, router, plan, cut, ask, by, coalesce);
    if let [only] = plan.cuts.as_slice() {
        let reply = request(only).await;
        receive(router, plan, only, reply, out, &mut failed);
        return failed;
    }
    let mut waiting = FuturesUnordered::new();
    let mut cuts = plan.cuts.iter();
    let tagged = |cut| async move { (cut, request(cut).await) };
    waiting.extend(cuts.by_ref().take(FRAMES_IN_FLIGHT).map(tagged));
    while let Some((cut, reply)) = waiting.next().await {
        waiting.extend(cuts.next().map(tagged));
        receive(router, plan, cut, reply, out, &mut failed);
    }
    failed
}

/// Sends one frame's keys: alone, or with other small pulls of the same kind.
async fn request(
    table: &Arc<TableShared>,
    router: &Arc<Router>,
    plan: &Plan,
    cut: &Cut,
    ask: Ask,
    by: Instant,
    coalesce: bool,
) -> Reply {
    let Some(route) = router.nodes.get(cut.node as usize) else {
        let why = "its shard has no replica at present".into();
        return Reply::Frame(Exchanged::Refused(Refusal::Unavailable { why }));
    };
    let mut flight: Option<Flight> = None;
    if coalesce && table.lanes.is_on() && plan.keys.len() <= COALESCE_KEYS_MAX {
        let keys = || {
            plan.keys[cut.keys.clone()]
                .iter()
                .map(|key| key.get())
                .collect()
        };
        let lane = table.lanes.lane(router, cut.node, ask);
        match lane.enter(table, cut.keys.len(), keys, by) {
            Way::Straight(alone) => flight = Some(alone),
            Way::Joined(joined) => return Reply::Share(Joined::delivered(joined).await),
        }
    }
    let to = table.client.links.to(route);
    // A call that dials first says nothing of the path's own cost.
    let begun = to.is_connected().then(Instant::now);
    let body = vec![plan.body(router, cut, ask)];
    let (send, want) = (FrameKind::Pull, FrameKind::Pulled);
    let exchanged = exchange(&table.client.links, &to, send, want, body, by).await;
    drop(flight);
    if let (Exchanged::Answered(body), Some(begun)) = (&exchanged, begun) {
        record(&to, cut, body, begun);
    }
    Reply::Frame(exchanged)
}

fn record(to: &NodeLink, cut: &Cut, body: &Body, begun: Instant) {
    let took_ns = begun.elapsed().as_nanos() as u64;
    to.observed.record(
        &to.route.cost,
        cut.keys.len() as u64,
        body.len() as u64,
        took_ns,
    );
}

/// Takes in what came for one cut.
fn receive(
    router: &Router,
    plan: &Plan,
    cut: &Cut,
    reply: Reply,
    out: &mut Out<'_>,
    failed: &mut Vec<Failed>,
) {
    let mut fail = |keys: std::ops::Range<usize>, why: NodeFault| {
        let positions = plan.positions[keys].to_vec();
        failed.push(Failed {
            node: cut.node,
            positions,
            why,
        });
    };
    match reply {
        Reply::Frame(Exchanged::Answered(body)) => match scatter(plan, cut, body, out) {
            Ok(refused) => {
                for group in refused {
                    fail(group.keys, NodeFault::Refused(group.refusal));
                }
            }
            Err(error) => {
                let node = &router.nodes[cut.node as usize].name;
                tracing::warn!(%node, %error, "a pull was answered with something else");
                fail(cut.keys.clone(), NodeFault::Malformed(error.to_string()));
            }
        },
        Reply::Frame(Exchanged::Refused(refusal)) => {
            fail(cut.keys.clone(), NodeFault::Refused(refusal));
        }
        Reply::Frame(Exchanged::NotSent(why) | Exchanged::InDoubt(why))
        | Reply::Share(Err(why)) => fail(cut.keys.clone(), why),
        Reply::Share(Ok(delivery)) => take_share(plan, cut, &delivery, out, failed),
    }
}

/// Copies a share of a joint frame to its positions.
fn take_share(
    plan: &Plan,
    cut: &Cut,
    delivery: &Delivery,
    out: &mut Out<'_>,
    failed: &mut Vec<Failed>,
) {
    let positions = &plan.positions[cut.keys.clone()];
    let rows = delivery.rows.chunks_exact(out.row_bytes);
    for ((&position, row), &status) in positions.iter().zip(rows).zip(&delivery.statuses) {
        let at = position as usize * out.row_bytes;
        out.rows[at..at + out.row_bytes].copy_from_slice(row);
        out.statuses[position as usize] = status;
    }
    for (indices, why) in &delivery.failed {
        let positions = indices.iter().map(|&i| positions[i as usize]).collect();
        failed.push(Failed {
            node: cut.node,
            positions,
            why: why.clone(),
        });
    }
}
