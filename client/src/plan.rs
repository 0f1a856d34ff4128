//! The plan of a pull: its keys without duplicates, grouped by shard and node, cut into frames.
//!
//! Pure and reusable: the vectors of a [`Plan`] are kept from call to call, so that grouping
//! allocates nothing per row. Positions are those of the caller's keys.

use std::ops::Range;

use bytes::Bytes;
use mneme_proto::frame::{Missing, PULL_WITH_STATE, PullGroup, PullHeader};
use mneme_proto::map::TableState;
use mneme_proto::mix64::mix64;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

use crate::limits::{PLAN_KEYS_KEPT, pull_frame_keys};
use crate::router::{OutOfRange, Router};

/// What all frames of a pull say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Ask {
    pub(crate) missing: Missing,
    pub(crate) with_state: bool,
}

impl Ask {
    /// Bytes of a row as answered: a sealed table has no optimizer state.
    pub(crate) fn row_bytes(self, router: &Router) -> usize {
        let state = if self.with_state && router.state != TableState::Sealed {
            router.spec.state_bytes()
        } else {
            0
        };
        router.spec.row_bytes() as usize + state as usize
    }
}

/// The keys of one shard: `plan.keys[keys]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) shard: u32,
    /// The node's index in the router.
    pub(crate) node: u32,
    pub(crate) keys: Range<usize>,
}

/// One frame: some keys of some groups of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) node: u32,
    /// Which groups; the first and the last may be cut by `keys`.
    pub(crate) groups: Range<usize>,
    pub(crate) keys: Range<usize>,
}

/// A pull's keys in frame order.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Keys without duplicates, by node, then shard, then request order.
    pub(crate) keys: Vec<U64>,
    /// Where each of `keys` stands in the request.
    pub(crate) positions: Vec<u32>,
    /// Positions that repeat an earlier one: `(position, the first position of its key)`.
    pub(crate) duplicates: Vec<(u32, u32)>,
    pub(crate) groups: Vec<Group>,
    pub(crate) cuts: Vec<Cut>,
    /// Open addressing over keys: position + 1 of a key's first occurrence, 0 is free.
    firsts: Vec<u32>,
    /// Rank of the shard, per wanted key; [`DUPLICATE`] for those that are not sent.
    ranks: Vec<u32>,
    /// Per rank: first its number of keys, then where its next one goes.
    counts: Vec<u32>,
}

const DUPLICATE: u32 = u32::MAX;

impl Plan {
    /// Plans a pull of `keys`, or of those at `pending` only.
    ///
    /// # Errors
    /// The first row id that a dense table does not have; nothing is to be sent then.
    pub(crate) fn group(
        &mut self,
        router: &Router,
        keys: &[u64],
        pending: Option<&[u32]>,
        row_bytes: usize,
    ) -> Result<(), OutOfRange> {
        let wanted = pending.map_or(keys.len(), <[u32]>::len);
        let slots = (wanted * 2).next_power_of_two();
        self.duplicates.clear();
        self.ranks.clear();
        self.ranks.reserve(wanted);
        self.firsts.clear();
        self.firsts.resize(slots, 0);
        self.counts.clear();
        self.counts.resize(router.shards() as usize, 0);
        match pending {
            None => self.rank_all(router, keys, 0..keys.len() as u32)?,
            Some(positions) => self.rank_all(router, keys, positions.iter().copied())?,
        }
        self.lay_groups(router);
        match pending {
            None => self.place(keys, 0..keys.len() as u32),
            Some(positions) => self.place(keys, positions.iter().copied()),
        }
        self.cut(pull_frame_keys(row_bytes));
        Ok(())
    }

    /// First pass: finds each key's shard, and the repeats.
    fn rank_all(
        &mut self,
        router: &Router,
        keys: &[u64],
        positions: impl Iterator<Item = u32>,
    ) -> Result<(), OutOfRange> {
        let mask = self.firsts.len() - 1;
        for position in positions {
            let key = keys[position as usize];
            let mixed = mix64(key);
            let mut slot = mixed as usize & mask;
            let rank = loop {
                match self.firsts[slot] {
                    0 => {
                        self.firsts[slot] = position + 1;
                        break router.rank(router.shard_of(key, mixed)?);
                    }
                    first if keys[first as usize - 1] == key => {
                        self.duplicates.push((position, first - 1));
                        break DUPLICATE;
                    }
                    _ => slot = (slot + 1) & mask,
                }
            };
            if rank != DUPLICATE {
                self.counts[rank as usize] += 1;
            }
            self.ranks.push(rank);
        }
        Ok(())
    }

    /// Turns counts into groups, and `counts` into the place of each rank's next key.
    fn lay_groups(&mut self, router: &Router) {
        self.groups.clear();
        let mut next = 0;
        for (rank, count) in self.counts.iter_mut().enumerate() {
            let keys = next..next + *count as usize;
            *count = next as u32;
            next = keys.end;
            if !keys.is_empty() {
                let shard = router.shard_at(rank as u32);
                self.groups.push(Group {
                    shard,
                    node: router.node_of(shard),
                    keys,
                });
            }
        }
        self.keys.clear();
        self.keys.resize(next, U64::ZERO);
        self.positions.clear();
        self.positions.resize(next, 0);
    }

    /// Second pass: puts keys and positions into frame order.
    fn place(&mut self, keys: &[u64], positions: impl Iterator<Item = u32>) {
        for (position, &rank) in positions.zip(&self.ranks) {
            if rank == DUPLICATE {
                continue;
            }
            let next = &mut self.counts[rank as usize];
            self.keys[*next as usize] = keys[position as usize].into();
            self.positions[*next as usize] = position;
            *next += 1;
        }
    }

    /// Cuts the groups into frames of at most `keys_max` keys, one node each. Frames of
    /// different nodes take turns, so that all nodes work from the start.
    fn cut(&mut self, keys_max: usize) {
        self.cuts.clear();
        let mut at = 0;
        while at < self.groups.len() {
            let node = self.groups[at].node;
            let more = self.groups[at..]
                .iter()
                .take_while(|g| g.node == node)
                .count();
            let (first, last) = (at, at + more);
            let (mut start, end) = (
                self.groups[first].keys.start,
                self.groups[last - 1].keys.end,
            );
            let mut group = first;
            while start < end {
                let stop = end.min(start + keys_max);
                let from = group;
                while self.groups[group].keys.end < stop {
                    group += 1;
                }
                self.cuts.push(Cut {
                    node,
                    groups: from..group + 1,
                    keys: start..stop,
                });
                if self.groups[group].keys.end == stop {
                    group += 1;
                }
                start = stop;
            }
            at = last;
        }
        if self.cuts.len() > 2 {
            interleave(&mut self.cuts);
        }
    }

    /// The groups of a frame as they stand in it.
    pub(crate) fn groups_of<'a>(&'a self, cut: &'a Cut) -> impl Iterator<Item = Group> + 'a {
        self.groups[cut.groups.clone()].iter().map(|group| Group {
            keys: group.keys.start.max(cut.keys.start)..group.keys.end.min(cut.keys.end),
            ..group.clone()
        })
    }

    /// The body of a frame.
    pub(crate) fn body(&self, router: &Router, cut: &Cut, ask: Ask) -> Bytes {
        let (groups, keys) = (cut.groups.len(), cut.keys.len());
        let bytes = size_of::<PullHeader>() + groups * size_of::<PullGroup>() + keys * 8;
        let mut body = Vec::with_capacity(bytes);
        let header = PullHeader {
            table: router.table.0.into(),
            generation: router.generation.0.into(),
            groups: (groups as u32).into(),
            keys: (keys as u32).into(),
            missing: ask.missing as u8,
            flags: if ask.with_state { PULL_WITH_STATE } else { 0 },
            reserved: [0; 6],
        };
        body.extend_from_slice(header.as_bytes());
        for group in self.groups_of(cut) {
            let group = PullGroup {
                shard: group.shard.into(),
                keys: (group.keys.len() as u32).into(),
                epoch: router.epoch(group.shard).into(),
            };
            body.extend_from_slice(group.as_bytes());
        }
        body.extend_from_slice(self.keys[cut.keys.clone()].as_bytes());
        body.into()
    }

    /// Whether it has grown so large that it should not be kept.
    pub(crate) fn is_oversized(&self) -> bool {
        self.keys.capacity() > PLAN_KEYS_KEPT || self.firsts.capacity() > 4 * PLAN_KEYS_KEPT
    }
}

/// Orders frames by their turn within their node.
fn interleave(cuts: &mut Vec<Cut>) {
    let mut turns: Vec<(usize, Cut)> = Vec::with_capacity(cuts.len());
    for cut in cuts.drain(..) {
        let turn = match turns.last() {
            Some((turn, before)) if before.node == cut.node => turn + 1,
            _ => 0,
        };
        turns.push((turn, cut));
    }
    turns.sort_by_key(|(turn, _)| *turn); // stable: nodes keep their order within a turn
    cuts.extend(turns.into_iter().map(|(_, cut)| cut));
}

#[cfg(test)]
mod tests;
