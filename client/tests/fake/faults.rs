//! Stale maps, silent nodes, lost links, a catalogue that is off.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mneme_client::{ClientError, NodeFault, PullOptions, PushMode, PushOptions, Status};
use mneme_proto::ids::Epoch;
use mneme_proto::refusal::Refusal;
use mneme_proto::schema::TableKind;

use crate::cluster::{Cluster, lock, until};
use crate::node::Fault;

fn within(ms: u64) -> PullOptions {
    PullOptions {
        deadline: Some(Duration::from_millis(ms)),
        ..PullOptions::default()
    }
}

/// A stale map costs one question to the catalogue, however many calls meet it.
#[tokio::test]
async fn a_wrong_epoch_is_cured_by_one_refresh() {
    let cluster = Cluster::start(1).await;
    let id = cluster.table(TableKind::Hashed, 1, 1);
    let table = cluster.client().await.table("t").await.expect("there");
    // The node is ahead of the catalogue's map until the map changes.
    lock(&cluster.nodes[0].state.epochs).insert(0, 2);
    cluster
        .world
        .change(id, |map| map.shards[0].epoch = Epoch(2));
    let asked = cluster.world.maps_asked.load(Ordering::SeqCst);
    let pulls = (0..16u64).map(|key| {
        let table = table.clone();
        async move {
            let mut out = [0.0];
            table
                .pull_f32(&[key], &mut out, &PullOptions::default())
                .await
                .expect("pulled")
        }
    });
    futures::future::join_all(pulls).await;
    let more = cluster.world.maps_asked.load(Ordering::SeqCst) - asked;
    assert!(
        more <= 2,
        "{more} questions (the watch may ask once beside)"
    );
}

/// The watch brings new maps without any pull meeting a refusal.
#[tokio::test]
async fn the_watch_refreshes_maps() {
    let cluster = Cluster::start(1).await;
    let id = cluster.table(TableKind::Hashed, 1, 1);
    let table = cluster.client().await.table("t").await.expect("there");
    let before = table.map().revision;
    cluster
        .world
        .change(id, |map| map.shards[0].epoch = Epoch(2));
    until("a newer map", || table.map().revision > before).await;
}

/// I-9: with the catalogue off warm pulls go on, also over a link that has to be made anew.
#[tokio::test]
async fn warm_pulls_outlive_the_catalogue() {
    let cluster = Cluster::start(1).await;
    cluster.table(TableKind::Hashed, 1, 4);
    let table = cluster.client().await.table("t").await.expect("there");
    let mut out = [0.0; 3];
    table
        .pull_f32(&[1, 2, 3], &mut out, &PullOptions::default())
        .await
        .expect("warm");
    cluster.stop_catalogue().await;
    for _ in 0..3 {
        table
            .pull_f32(&[1, 2, 3], &mut out, &within(2000))
            .await
            .expect("off the path");
        cluster.nodes[0].fail([Fault::CutAfter]);
    }
}

/// B096: a silent node costs the deadline and no more, also after one reconnect; then calls
/// work again.
#[tokio::test]
async fn silence_ends_at_the_deadline() {
    let cluster = Cluster::start(1).await;
    cluster.table(TableKind::Hashed, 1, 1);
    let table = cluster.client().await.table("t").await.expect("there");
    for _ in 0..2 {
        cluster.nodes[0].fail(vec![Fault::Silence; 3]);
        let begun = Instant::now();
        let error = table
            .pull_f32(&[1], &mut [0.0], &within(500))
            .await
            .expect_err("silent");
        let took = begun.elapsed();
        assert!((450..900).contains(&(took.as_millis() as u64)), "{took:?}");
        assert!(error.is_deadline(), "{error}");
        let text = error.to_string();
        assert!(
            text.contains("'n0'") && text.contains("waiting for the answer"),
            "{text}"
        );
        lock(&cluster.nodes[0].state.faults).clear();
        table
            .pull_f32(&[1], &mut [0.0], &PullOptions::default())
            .await
            .expect("works again");
    }
}

/// B042: present, absent and unavailable are three things.
#[tokio::test]
async fn a_node_that_is_down_takes_only_its_own_keys() {
    let cluster = Cluster::start(2).await;
    cluster.table(TableKind::Hashed, 1, 2);
    let mut config = cluster.config();
    config.connect_timeout = Duration::from_millis(300);
    let client = mneme_client::Client::connect(config)
        .await
        .expect("connected");
    let table = client.table("t").await.expect("there");
    let shard = |key: &u64| mneme_proto::mix64::shard_of_key(*key, 2);
    let here: Vec<u64> = (0..).filter(|k| shard(k) == 0).take(2).collect();
    let there = (0..).find(|k| shard(k) == 1).expect("some");
    table
        .push(PushMode::Add, &here[..1], &[4.0], &PushOptions::default())
        .await
        .expect("applied");
    cluster.nodes[1]
        .endpoint
        .close("down", Instant::now() + Duration::from_secs(1))
        .await;

    let keys = [here[0], here[1], there];
    let mut out = [0u8; 12];
    let partial = table
        .pull_partial(&keys, &mut out, &within(1000))
        .await
        .expect("partial");
    assert_eq!(
        partial.statuses,
        [Some(Status::Found), Some(Status::Default), None]
    );
    assert_eq!(out[..4], 4.0f32.to_le_bytes());
    assert_eq!(partial.unavailable.len(), 1);
    assert_eq!(partial.unavailable[0].positions, [2]);
    assert_eq!(partial.unavailable[0].node, "n1");
    assert!(
        matches!(partial.unavailable[0].why, NodeFault::Unreachable(_)),
        "{partial:?}"
    );

    let error = table
        .pull(&keys, &mut out, &within(700))
        .await
        .expect_err("not whole");
    let ClientError::Unavailable(all) = &error else {
        panic!("{error}")
    };
    assert_eq!(all.faults[0].positions, [2]);
    // Pushes to the live node go on; those to the other were never sent.
    let push = PushOptions {
        deadline: Some(Duration::from_millis(700)),
        ..Default::default()
    };
    table
        .push(PushMode::Add, &here[..1], &[1.0], &push)
        .await
        .expect("applied");
    let error = table
        .push(PushMode::Add, &[there], &[1.0], &push)
        .await
        .expect_err("down");
    assert!(matches!(error, ClientError::Unavailable(_)), "{error}");
}

/// B077: refusals that stay are not repeated, passing ones at most twice.
#[tokio::test]
async fn three_tries_and_no_more() {
    let cluster = Cluster::start(1).await;
    cluster.table(TableKind::Hashed, 1, 1);
    let table = cluster.client().await.table("t").await.expect("there");
    let node = &cluster.nodes[0];
    let denied = Refusal::PermissionDenied {
        principal: "c".into(),
        action: "read".into(),
    };
    node.fail([Fault::Refuse(denied.clone())]);
    let error = table
        .pull_f32(&[1], &mut [0.0], &PullOptions::default())
        .await;
    assert_eq!(error.expect_err("denied").refusal(), Some(&denied));
    assert_eq!(node.pulls().len(), 1);

    let busy = Refusal::Unavailable {
        why: "starting".into(),
    };
    node.fail(vec![Fault::Refuse(busy); 5]);
    let error = table
        .pull_f32(&[1], &mut [0.0], &PullOptions::default())
        .await;
    assert!(
        matches!(error, Err(ClientError::Unavailable(_))),
        "{error:?}"
    );
    assert_eq!(node.pulls().len(), 1 + 3);
}

/// B092: nobody there is an error within the timeout, and says what was tried.
#[tokio::test]
async fn connecting_to_nobody_fails_in_time() {
    let cluster = Cluster::start(1).await;
    let mut config = cluster.config();
    config.catalogue = vec!["127.0.0.1:9".parse().expect("an address")];
    config.connect_timeout = Duration::from_millis(700);
    let begun = Instant::now();
    let error = mneme_client::Client::connect(config)
        .await
        .expect_err("nobody");
    assert!(
        begun.elapsed() < Duration::from_millis(1500),
        "{:?}",
        begun.elapsed()
    );
    assert!(error.to_string().contains("127.0.0.1:9"), "{error}");
}
