//! The coalescer at work: joint frames, cancelled neighbours, stream limits.

use std::collections::HashSet;
use std::time::Duration;

use mneme_client::{Client, PullOptions, PushMode, PushOptions, Table};
use mneme_net::LinkOptions;
use mneme_proto::schema::TableKind;

use crate::cluster::{Cluster, until};

async fn table_of(cluster: &Cluster, coalesce_us: u64) -> Table {
    cluster.table(TableKind::Hashed, 1, 4);
    let mut config = cluster.config();
    config.coalesce_us = coalesce_us;
    let table = Client::connect(config)
        .await
        .expect("connected")
        .table("t")
        .await
        .expect("there");
    let keys: Vec<u64> = (0..100).collect();
    let values: Vec<f32> = keys.iter().map(|&key| key as f32).collect();
    table
        .push(PushMode::Assign, &keys, &values, &PushOptions::default())
        .await
        .expect("applied");
    table
}

async fn pull(table: Table, keys: Vec<u64>) {
    let mut out = vec![0.0; keys.len()];
    table
        .pull_f32(&keys, &mut out, &PullOptions::default())
        .await
        .expect("pulled");
    let expected: Vec<f32> = keys.iter().map(|&key| key as f32).collect();
    assert_eq!(out, expected);
}

/// B117: a row that several ask for travels once and is delivered to each.
#[tokio::test]
async fn small_pulls_share_a_frame_while_the_link_is_busy() {
    let cluster = Cluster::start(1).await;
    let table = table_of(&cluster, 10_000_000).await;
    let node = &cluster.nodes[0];
    node.hold(true);
    let first = tokio::spawn(pull(table.clone(), vec![1]));
    until("the first frame", || node.pulls().len() == 1).await;
    let others: Vec<_> = (0..10u64)
        .map(|i| tokio::spawn(pull(table.clone(), vec![i, 50, i + 1, 50])))
        .collect();
    tokio::task::yield_now().await;
    node.hold(false);
    for task in others.into_iter().chain([first]) {
        task.await.expect("delivered");
    }
    let pulls = node.pulls();
    assert_eq!(pulls.len(), 2, "{pulls:?}");
    let unique: HashSet<u64> = pulls[1].iter().copied().collect();
    assert_eq!((pulls[1].len(), unique.len()), (12, 12));
}

#[tokio::test]
async fn the_bound_ends_the_wait() {
    let cluster = Cluster::start(1).await;
    let table = table_of(&cluster, 50).await;
    let node = &cluster.nodes[0];
    node.hold(true);
    let first = tokio::spawn(pull(table.clone(), vec![1]));
    until("the first frame", || node.pulls().len() == 1).await;
    let second = tokio::spawn(pull(table.clone(), vec![2]));
    // The first one is not answered, and yet the second goes out.
    until("the second frame", || node.pulls().len() == 2).await;
    node.hold(false);
    first.await.expect("delivered");
    second.await.expect("delivered");
}

/// A dropped pull disturbs neither its neighbours in a frame nor a later call on the link.
#[tokio::test]
async fn cancelled_pulls_disturb_nobody() {
    let cluster = Cluster::start(1).await;
    let table = table_of(&cluster, 10_000_000).await;
    let node = &cluster.nodes[0];
    for _ in 0..20 {
        let before = node.pulls().len();
        node.hold(true);
        let straight = tokio::spawn(pull(table.clone(), vec![1]));
        until("a frame", || node.pulls().len() == before + 1).await;
        let waiting: Vec<_> = (10..16u64)
            .map(|key| tokio::spawn(pull(table.clone(), vec![key, 20])))
            .collect();
        tokio::task::yield_now().await;
        // The straight one's end sends the others; of those, some give up before and some after.
        waiting[0].abort();
        straight.abort();
        until("the joint frame", || node.pulls().len() == before + 2).await;
        waiting[1].abort();
        node.hold(false);
        for task in waiting.into_iter().skip(2) {
            task.await.expect("delivered");
        }
    }
    pull(table, (0..100).collect()).await;
}

/// B094: with few streams and many dropped calls all others finish, and no stream leaks.
#[tokio::test]
async fn a_small_stream_limit_holds_nobody_for_ever() {
    let options = LinkOptions {
        streams_max: 4,
        ..LinkOptions::default()
    };
    let cluster = Cluster::start_with(1, options).await;
    let table = table_of(&cluster, 0).await;
    for round in 0..10u64 {
        let tasks: Vec<_> = (0..64)
            .map(|i| tokio::spawn(pull(table.clone(), vec![i, round])))
            .collect();
        tokio::task::yield_now().await;
        for (i, task) in tasks.into_iter().enumerate() {
            if i % 2 == 0 {
                task.abort();
            } else {
                task.await.expect("delivered");
            }
        }
        for key in 0..20 {
            pull(table.clone(), vec![key]).await;
        }
    }
    // Waiting for a stream obeys the deadline too.
    cluster.nodes[0].hold(true);
    let stuck: Vec<_> = (0..4)
        .map(|i| tokio::spawn(pull(table.clone(), vec![i])))
        .collect();
    let options = PullOptions {
        deadline: Some(Duration::from_millis(200)),
        ..PullOptions::default()
    };
    let error = table
        .pull_f32(&[9], &mut [0.0], &options)
        .await
        .expect_err("no stream");
    assert!(error.is_deadline(), "{error}");
    cluster.nodes[0].hold(false);
    for task in stuck {
        task.await.expect("delivered");
    }
}
