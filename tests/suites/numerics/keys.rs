//! Keys: all 2^64 of them, spread evenly, few or many.

use std::time::{Duration, Instant};

use mneme_proto::frame::{Missing, Status};
use mneme_proto::schema::Optimizer;
use mneme_tests::Dev;
use mneme_tests::rows::{Rows, hashed, sgd};

/// No key is reserved: the ends of the range and the shards' borders are rows like others.
#[test]
fn every_key_is_a_key() {
    let dev = Dev::start();
    let rows = Rows::create(&dev.client(), hashed("t", 1, sgd(1.0)));
    let keys = [
        0,
        1,
        (1 << 53) + 1,
        i64::MAX as u64,
        1 << 63,
        u64::MAX - 1,
        u64::MAX,
    ];
    let values: Vec<f32> = (0..keys.len()).map(|i| i as f32 + 1.0).collect();
    rows.assign(&keys, &values);
    let (pulled, statuses) = rows
        .pull_with(&keys, Missing::Error)
        .expect("all are there");
    assert_eq!(pulled, values);
    assert_eq!(statuses, [Status::Found; 7]);
    assert_eq!(rows.count(), 7);
}

/// B033: one key on eight nodes is served at once, and common key patterns load nodes evenly.
#[test]
fn few_keys_and_patterns_spread_over_eight_nodes() {
    let dev = Dev::start_with(&["--nodes", "8", "--memory", "dram:512MiB"]);
    let client = dev.client();
    let one = Rows::create(&client, hashed("one", 1, sgd(1.0)));
    let start = Instant::now();
    one.gradient(&[1], &[1.0]);
    assert_eq!(one.pull(&[1, 1, 1]), [-1.0; 3]);
    assert!(
        start.elapsed() < Duration::from_secs(1),
        "{:?}",
        start.elapsed()
    );

    type Pattern = fn(u64) -> u64;
    let patterns: [(&str, Pattern); 3] = [
        ("ascending", |i| i),
        ("strided", |i| i * 64),
        ("high", |i| i << 40),
    ];
    for (name, key_of) in patterns {
        let rows = Rows::create(&client, hashed(name, 1, Optimizer::None));
        let keys: Vec<u64> = (0..100_000).map(key_of).collect();
        rows.assign(&keys, &vec![1.0; keys.len()]);
        let report = rows.table.describe().expect("a description");
        let mut loads = std::collections::BTreeMap::<u64, u64>::new();
        for shard in &report.shards {
            *loads.entry(shard.node.0).or_default() += shard.region.rows;
        }
        assert_eq!(loads.len(), 8, "{name}");
        let most = loads.values().max().expect("eight nodes");
        let mean = keys.len() as f64 / 8.0;
        assert!(*most as f64 / mean <= 1.1, "{name}: {loads:?}");
    }
}
