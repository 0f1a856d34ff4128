//! Maps that are used and maps that are refused.

use super::*;
use crate::testing::{map, router, spec};
use mneme_proto::schema::TableKind;

#[test]
fn keys_find_the_shard_that_proto_says() {
    let hashed = router(TableKind::Hashed, 4, 16, 3);
    for key in [0, 1, 42, u64::MAX] {
        assert_eq!(
            hashed.shard(key),
            Ok(mneme_proto::mix64::shard_of_key(key, 16))
        );
    }
    let one = router(TableKind::Hashed, 4, 1, 1);
    assert_eq!(one.shard(u64::MAX), Ok(0));

    let dense = router(TableKind::Dense { rows: 1_000_000 }, 4, 4, 2);
    let (shard, _) = dense
        .dense()
        .expect("dense")
        .locate(999_999)
        .expect("in range");
    assert_eq!(dense.shard(999_999), Ok(shard));
    let beyond = OutOfRange {
        row: 1_000_000,
        rows: 1_000_000,
    };
    assert_eq!(dense.shard(1_000_000), Err(beyond));
}

#[test]
fn shards_of_one_node_stand_together() {
    let router = router(TableKind::Hashed, 4, 16, 3);
    let nodes: Vec<u32> = (0..16)
        .map(|rank| router.node_of(router.shard_at(rank)))
        .collect();
    assert!(nodes.is_sorted(), "{nodes:?}");
    for shard in 0..16 {
        assert_eq!(router.shard_at(router.rank(shard)), shard);
    }
    assert_eq!(
        router
            .shards_by_node()
            .iter()
            .map(|(_, s)| s.len())
            .sum::<usize>(),
        16
    );
}

#[test]
fn a_map_that_contradicts_itself_is_refused() {
    let good = map(spec(TableKind::Hashed, 4, 4), 2);
    let of = |map: &TableMap| Router::new(&codec::encode(map));
    assert!(of(&good).is_ok());

    let mut bad = good.clone();
    bad.shards.pop();
    assert!(matches!(of(&bad), Err(MapError::Content(_))));
    bad = good.clone();
    bad.shards[1].replicas[0].node = 2;
    assert!(matches!(of(&bad), Err(MapError::Content(_))));
    bad = good.clone();
    bad.spec.shards = 0;
    bad.shards.clear();
    assert!(matches!(of(&bad), Err(MapError::Content(_))));
    assert!(matches!(Router::new(&[7; 64]), Err(MapError::Codec(_))));
}

#[test]
fn a_shard_without_a_replica_has_no_node() {
    let mut bare = map(spec(TableKind::Hashed, 4, 4), 2);
    bare.shards[2].replicas.clear();
    let router = Router::new(&codec::encode(&bare)).expect("a good map");
    assert_eq!(router.node_of(2), NO_NODE);
    assert!(router.node(2).is_none() && router.node(1).is_some());
}
