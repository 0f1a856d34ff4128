//! From an answer's chunks into the caller's buffer, in request order, with one copy per row.

use std::ops::Range;

use bytes::Buf;
use mneme_net::Body;
use mneme_proto::codec;
use mneme_proto::frame::{GroupOutcome, PulledHeader, Status};
use mneme_proto::refusal::Refusal;
use mneme_proto::views::pad_to_8;
use zerocopy::FromBytes;

use crate::plan::{Cut, Plan};

/// Why an answer is not one to the frame that was sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("its answer is malformed: {0}")]
pub(crate) struct Malformed(pub(crate) String);

/// A group that the node refused: `plan.keys[keys]` were not answered.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RefusedGroup {
    pub(crate) keys: Range<usize>,
    pub(crate) refusal: Refusal,
}

/// The caller's buffers: `row_bytes` and one status per position.
#[derive(Debug)]
pub(crate) struct Out<'a> {
    pub(crate) rows: &'a mut [u8],
    pub(crate) statuses: &'a mut [Status],
    pub(crate) row_bytes: usize,
}

/// Checks an answer against its frame and copies what it brings. Rows of refused groups are
/// left as they are.
///
/// # Errors
/// [`Malformed`]; some rows may have been written.
pub(crate) fn scatter(
    plan: &Plan,
    cut: &Cut,
    mut body: Body,
    out: &mut Out<'_>,
) -> Result<Vec<RefusedGroup>, Malformed> {
    let (groups, keys) = (cut.groups.len(), cut.keys.len());
    let refusals_bytes = check_header(&mut body, groups, keys, out.row_bytes)?;
    let mut head = vec![0; groups * size_of::<GroupOutcome>() + keys + pad_to_8(keys)];
    body.copy_to_slice(&mut head);
    let (outcomes, rest) = <[GroupOutcome]>::ref_from_prefix_with_elems(&head, groups)
        .map_err(|e| Malformed(e.to_string()))?;
    let statuses = &rest[..keys];

    if refusals_bytes == 0 {
        if let Some(bad) = outcomes.iter().find(|o| o.refusal.get() != 0) {
            return Err(Malformed(format!(
                "shard {} is refused without a reason",
                bad.shard
            )));
        }
        take(plan, cut.keys.clone(), statuses, &mut body, out)?;
        return Ok(Vec::new());
    }
    let row_section = keys * out.row_bytes;
    let mut tail = body.clone();
    tail.advance(row_section);
    let refusals: Vec<Refusal> =
        codec::decode(&tail.copy_to_bytes(refusals_bytes)).map_err(|e| Malformed(e.to_string()))?;
    let mut refused = Vec::new();
    for (group, outcome) in plan.groups_of(cut).zip(outcomes) {
        let within = group.keys.start - cut.keys.start..group.keys.end - cut.keys.start;
        match outcome.refusal.get() {
            0 => take(plan, group.keys, &statuses[within], &mut body, out)?,
            number => {
                body.advance(within.len() * out.row_bytes);
                let refusal = refusals
                    .get(number as usize - 1)
                    .cloned()
                    .ok_or_else(|| Malformed(format!("refusal {number} of {}", refusals.len())))?;
                refused.push(RefusedGroup {
                    keys: group.keys,
                    refusal,
                });
            }
        }
    }
    Ok(refused)
}

/// Takes the fixed start off `body`; returns the bytes of refusals at its end.
fn check_header(
    body: &mut Body,
    groups: usize,
    keys: usize,
    row_bytes: usize,
) -> Result<usize, Malformed> {
    let mut bytes = [0; size_of::<PulledHeader>()];
    if body.try_copy_to_slice(&mut bytes).is_err() {
        return Err(Malformed(format!("it has {} B", body.len())));
    }
    let header = PulledHeader::read_from_bytes(&bytes).expect("the array has the header's size");
    let (g, k, r) = (
        header.groups.get(),
        header.keys.get(),
        header.row_bytes.get(),
    );
    if (g as usize, k as usize, r as usize) != (groups, keys, row_bytes) {
        let why = format!(
            "{g} groups, {k} keys, rows of {r} B; {groups}, {keys}, {row_bytes} B were asked for"
        );
        return Err(Malformed(why));
    }
    let refusals_bytes = header.refusals_bytes.get() as usize;
    let sections = groups * size_of::<GroupOutcome>() + keys + pad_to_8(keys) + keys * row_bytes;
    if body.len() != sections + refusals_bytes {
        let why = format!(
            "its sections take {} B, it has {}",
            sections + refusals_bytes,
            body.len()
        );
        return Err(Malformed(why));
    }
    Ok(refusals_bytes)
}

/// Copies the rows of `plan.keys[keys]` from the front of `body` to their positions.
fn take(
    plan: &Plan,
    keys: Range<usize>,
    statuses: &[u8],
    body: &mut Body,
    out: &mut Out<'_>,
) -> Result<(), Malformed> {
    let positions = &plan.positions[keys];
    for (&position, &byte) in positions.iter().zip(statuses) {
        out.statuses[position as usize] = Status::from_byte(byte)
            .ok_or_else(|| Malformed(format!("status {byte} of a served key")))?;
    }
    let row_bytes = out.row_bytes;
    let mut left = positions;
    while let Some((&position, after)) = left.split_first() {
        let chunk = body.chunk();
        let whole = (chunk.len() / row_bytes).min(left.len());
        if whole == 0 {
            // The row lies across two chunks.
            let at = position as usize * row_bytes;
            body.copy_to_slice(&mut out.rows[at..at + row_bytes]);
            left = after;
            continue;
        }
        let (here, later) = left.split_at(whole);
        for (&position, row) in here.iter().zip(chunk.chunks_exact(row_bytes)) {
            let at = position as usize * row_bytes;
            out.rows[at..at + row_bytes].copy_from_slice(row);
        }
        body.advance(whole * row_bytes);
        left = later;
    }
    Ok(())
}

/// Fills the positions that repeat an earlier one.
pub(crate) fn fill_duplicates(duplicates: &[(u32, u32)], out: &mut Out<'_>) {
    for &(position, first) in duplicates {
        let from = first as usize * out.row_bytes;
        out.rows.copy_within(
            from..from + out.row_bytes,
            position as usize * out.row_bytes,
        );
        out.statuses[position as usize] = out.statuses[first as usize];
    }
}
