//! Plans and scatter against a plain model: a node that answers what it was asked.

use std::collections::{BTreeMap, HashSet};

use bytes::Bytes;
use mneme_net::Body;
use mneme_proto::codec;
use mneme_proto::frame::{GroupOutcome, PullView, PulledHeader, Status};
use mneme_proto::ids::ShardIndex;
use mneme_proto::limits::FRAME_KEYS_MAX;
use mneme_proto::refusal::Refusal;
use mneme_proto::schema::TableKind;
use mneme_proto::views::pad_to_8;
use proptest::prelude::*;

use super::*;
use crate::scatter::{Malformed, Out, fill_duplicates, scatter};
use crate::testing::router;

const ASK: Ask = Ask {
    missing: Missing::Default,
    with_state: false,
};

fn row_of(key: u64, row_bytes: usize) -> Vec<u8> {
    (0..row_bytes as u64)
        .map(|i| (key.wrapping_mul(31) ^ i) as u8)
        .collect()
}

/// Answers a frame as a node would; shards in `refuse` are refused.
fn answer(body: &[u8], row_bytes: usize, refuse: &[u32]) -> Bytes {
    let view = PullView::parse(body).expect("a good frame");
    let (mut outcomes, mut statuses, mut rows) = (Vec::new(), Vec::new(), Vec::new());
    let mut refusals: Vec<Refusal> = Vec::new();
    let mut keys = view.keys.iter();
    for group in view.groups {
        let shard = group.shard.get();
        let refused = refuse.contains(&shard);
        if refused {
            refusals.push(Refusal::NotServed {
                shard: ShardIndex(shard),
            });
        }
        let refusal = if refused { refusals.len() as u32 } else { 0 };
        outcomes.push(GroupOutcome {
            shard: group.shard,
            refusal: refusal.into(),
        });
        for key in keys.by_ref().take(group.keys.get() as usize) {
            statuses.push(if refused { 0 } else { Status::Found as u8 });
            rows.extend(if refused {
                vec![0; row_bytes]
            } else {
                row_of(key.get(), row_bytes)
            });
        }
    }
    let refused = if refusals.is_empty() {
        Bytes::new()
    } else {
        codec::encode_bytes(&refusals)
    };
    let header = PulledHeader {
        groups: view.header.groups,
        keys: view.header.keys,
        row_bytes: (row_bytes as u32).into(),
        refusals_bytes: (refused.len() as u32).into(),
    };
    let pad = vec![0; pad_to_8(statuses.len())];
    let sections: [&[u8]; 6] = [
        header.as_bytes(),
        outcomes.as_bytes(),
        &statuses,
        &pad,
        &rows,
        &refused,
    ];
    sections.concat().into()
}

/// Plans, asks and scatters; returns rows, statuses, and the positions that were refused.
fn round(
    router: &Router,
    keys: &[u64],
    row_bytes: usize,
    refuse: &[u32],
) -> (Vec<u8>, Vec<Status>, HashSet<u32>) {
    let mut plan = Plan::default();
    plan.group(router, keys, None, row_bytes).expect("in range");
    let mut rows = vec![0xEE; keys.len() * row_bytes];
    let mut statuses = vec![Status::Missing; keys.len()];
    let mut refused = HashSet::new();
    let mut out = Out {
        rows: &mut rows,
        statuses: &mut statuses,
        row_bytes,
    };
    for cut in &plan.cuts {
        let answered = answer(&plan.body(router, cut, ASK), row_bytes, refuse);
        for group in scatter(&plan, cut, Body::from(answered), &mut out).expect("well formed") {
            refused.extend(&plan.positions[group.keys]);
        }
    }
    fill_duplicates(&plan.duplicates, &mut out);
    for &(position, first) in &plan.duplicates {
        if refused.contains(&first) {
            refused.insert(position);
        }
    }
    (rows, statuses, refused)
}

proptest! {
    /// I-5: every position gets its own key's row, repeats included.
    #[test]
    fn rows_come_back_in_request_order(
        keys in prop::collection::vec(prop_oneof![0u64..40, any::<u64>()], 1..300),
        dim in 1u32..70,
        shift in 0u32..6,
        nodes in 1u32..4,
    ) {
        let router = router(TableKind::Hashed, dim, 1 << shift, nodes);
        let row_bytes = dim as usize * 4;
        let (rows, statuses, _) = round(&router, &keys, row_bytes, &[]);
        for (row, &key) in rows.chunks(row_bytes).zip(&keys) {
            prop_assert_eq!(row, &row_of(key, row_bytes)[..], "key {}", key);
        }
        prop_assert!(statuses.iter().all(|s| *s == Status::Found));
    }

    /// A refused shard takes nothing from the others.
    #[test]
    fn refused_shards_leave_the_rest(
        keys in prop::collection::vec(0u64..500, 1..200),
        refuse in prop::collection::vec(0u32..8, 0..8),
    ) {
        let router = router(TableKind::Hashed, 3, 8, 2);
        let (rows, _, refused) = round(&router, &keys, 12, &refuse);
        for (position, (row, &key)) in rows.chunks(12).zip(&keys).enumerate() {
            let shard = router.shard(key).expect("hashed");
            prop_assert_eq!(refused.contains(&(position as u32)), refuse.contains(&shard));
            if !refuse.contains(&shard) {
                prop_assert_eq!(row, &row_of(key, 12)[..]);
            }
        }
    }

    /// Frames hold each key once, one group per shard, one node, and keep within the limits.
    #[test]
    fn frames_are_what_the_protocol_wants(
        keys in prop::collection::vec(0u64..5000, 1..2000),
        pending in any::<bool>(),
        row_bytes in prop_oneof![Just(8usize), Just(4096), Just(65_536)],
    ) {
        let router = router(TableKind::Dense { rows: 5000 }, 2, 16, 3);
        let positions: Vec<u32> = (0..keys.len() as u32).step_by(3).collect();
        let pending = pending.then_some(positions.as_slice());
        let mut plan = Plan::default();
        plan.group(&router, &keys, pending, row_bytes).expect("in range");
        let wanted: HashSet<u64> = match pending {
            None => keys.iter().copied().collect(),
            Some(positions) => positions.iter().map(|&p| keys[p as usize]).collect(),
        };
        let mut seen = BTreeMap::new();
        for cut in &plan.cuts {
            let body = plan.body(&router, cut, ASK);
            let view = PullView::parse(&body).expect("a good frame");
            prop_assert!(view.keys.len() <= pull_frame_keys(row_bytes));
            let shards: HashSet<u32> = view.groups.iter().map(|g| g.shard.get()).collect();
            prop_assert_eq!(shards.len(), view.groups.len(), "a shard twice in a frame");
            let mut keys = view.keys.iter();
            for group in view.groups {
                prop_assert_eq!(router.node_of(group.shard.get()), cut.node);
                prop_assert!(group.keys.get() > 0 && group.epoch.get() == 5);
                for key in keys.by_ref().take(group.keys.get() as usize) {
                    prop_assert_eq!(router.shard(key.get()), Ok(group.shard.get()));
                    *seen.entry(key.get()).or_insert(0) += 1;
                }
            }
        }
        prop_assert!(seen.values().all(|&times| times == 1), "a key travelled twice");
        prop_assert_eq!(seen.keys().copied().collect::<HashSet<_>>(), wanted);
    }
}

/// B047: a batch just over a frame's limit is split.
#[test]
fn batches_around_the_limit_of_a_frame() {
    let router = router(TableKind::Hashed, 1, 1, 1);
    for (count, frames) in [
        (1, 1),
        (FRAME_KEYS_MAX - 1, 1),
        (FRAME_KEYS_MAX, 1),
        (FRAME_KEYS_MAX + 1, 2),
    ] {
        let keys: Vec<u64> = (0..u64::from(count)).collect();
        let mut plan = Plan::default();
        // Rows of one byte: the limit of keys is reached before that of bytes.
        plan.group(&router, &keys, None, 1).expect("hashed");
        assert_eq!(plan.cuts.len(), frames, "{count} keys");
        assert_eq!(
            plan.cuts.iter().map(|cut| cut.keys.len()).sum::<usize>(),
            count as usize
        );
    }
}

#[test]
fn nodes_take_turns() {
    let router = router(TableKind::Hashed, 1, 8, 2);
    let keys: Vec<u64> = (0..4000).collect();
    let mut plan = Plan::default();
    plan.group(&router, &keys, None, 4096).expect("hashed");
    let nodes: Vec<u32> = plan.cuts.iter().map(|cut| cut.node).collect();
    assert_eq!(&nodes[..4], &[0, 1, 0, 1]);
}

/// B114: a row beyond the end is an error that names both numbers.
#[test]
fn rows_out_of_range_stop_the_whole_plan() {
    let router = router(TableKind::Dense { rows: 100 }, 1, 4, 1);
    let mut plan = Plan::default();
    for bad in [100, u64::MAX] {
        let error = plan
            .group(&router, &[5, bad, 6], None, 4)
            .expect_err("out of range");
        assert_eq!(
            error,
            OutOfRange {
                row: bad,
                rows: 100
            }
        );
    }
    assert!(plan.group(&router, &[99], None, 4).is_ok());
}

#[test]
fn answers_that_are_none_are_refused() {
    let router = router(TableKind::Hashed, 2, 4, 1);
    let keys = [1u64, 2, 3];
    let mut plan = Plan::default();
    plan.group(&router, &keys, None, 8).expect("hashed");
    let cut = plan.cuts[0].clone();
    let good = answer(&plan.body(&router, &cut, ASK), 8, &[]);
    let try_with = |bytes: Vec<u8>| {
        let (mut rows, mut statuses) = (vec![0; 24], vec![Status::Missing; 3]);
        let mut out = Out {
            rows: &mut rows,
            statuses: &mut statuses,
            row_bytes: 8,
        };
        scatter(&plan, &cut, Body::from(Bytes::from(bytes)), &mut out)
    };
    assert_eq!(try_with(good.to_vec()), Ok(vec![]));
    for length in 0..good.len() {
        assert!(try_with(good[..length].to_vec()).is_err(), "{length} B");
    }
    for at in 0..size_of::<PulledHeader>() {
        let mut bad = good.to_vec();
        bad[at] ^= 0x40;
        assert!(matches!(try_with(bad), Err(Malformed(_))), "byte {at}");
    }
    let mut status = good.to_vec();
    status[size_of::<PulledHeader>() + 8 * cut.groups.len()] = 9;
    assert!(try_with(status).is_err());
}
