//! Pushes: merged, numbered, applied once, or an error that says what is not known.

use std::collections::HashSet;
use std::time::Duration;

use mneme_client::{ClientError, Fate, PullOptions, PushMode, PushOptions, PushReport, Table};
use mneme_proto::ids::Epoch;
use mneme_proto::limits::SESSION_WINDOW;
use mneme_proto::refusal::Refusal;
use mneme_proto::schema::TableKind;

use crate::cluster::{Cluster, lock, until};
use crate::node::{Fault, Seen};

async fn one_shard() -> (Cluster, u64, Table) {
    let cluster = Cluster::start(1).await;
    let id = cluster.table(TableKind::Hashed, 1, 1);
    let table = cluster.client().await.table("t").await.expect("there");
    (cluster, id, table)
}

async fn add(table: &Table, key: u64, value: f32) -> Result<PushReport, ClientError> {
    table
        .push(PushMode::Add, &[key], &[value], &PushOptions::default())
        .await
}

/// B001: the gradients of a repeated key make one step.
#[tokio::test]
async fn repeated_keys_make_one_step() {
    let (cluster, _, table) = one_shard().await;
    table
        .push(PushMode::Assign, &[42], &[1.0], &PushOptions::default())
        .await
        .expect("applied");
    let gradients = [0.25, 0.5, 0.125];
    let options = PushOptions::default();
    let report = table
        .push(PushMode::Gradient, &[42; 3], &gradients, &options)
        .await;
    assert_eq!(
        report.expect("applied"),
        PushReport {
            rows: 1,
            ignored: 0,
            parts: 1
        }
    );
    assert_eq!(cluster.nodes[0].row(42), Some(vec![0.5625]));
    table
        .push(
            PushMode::Delete,
            &[42],
            mneme_client::Values::None,
            &options,
        )
        .await
        .expect("gone");
    assert_eq!(cluster.nodes[0].row(42), None);
}

/// B045, B017: an empty push and a push with a NaN send nothing at all.
#[tokio::test]
async fn what_is_empty_or_not_finite_is_not_sent() {
    let (cluster, _, table) = one_shard().await;
    let options = PushOptions::default();
    let empty: [f32; 0] = [];
    let report = table.push(PushMode::Gradient, &[], &empty, &options).await;
    assert_eq!(report.expect("fine"), PushReport::default());
    let error = table
        .push(
            PushMode::Gradient,
            &[1, 2, 3],
            &[0.5, f32::NAN, 0.5],
            &options,
        )
        .await;
    let error = error.expect_err("NaN");
    assert!(
        matches!(
            error,
            ClientError::NonFinite {
                key: 2,
                index: 1,
                ..
            }
        ),
        "{error}"
    );
    assert!(cluster.nodes[0].seen().is_empty());
}

/// I-2: an answer that was lost is asked for again under the same sequence.
#[tokio::test]
async fn a_lost_answer_is_no_second_step() {
    let (cluster, _, table) = one_shard().await;
    let node = &cluster.nodes[0];
    for turn in 1..=5 {
        node.fail([Fault::CutAfter]);
        add(&table, 7, 1.0).await.expect("applied once");
        assert_eq!(node.row(7), Some(vec![turn as f32]));
    }
    let sequences: Vec<u64> = node.pushes().iter().map(|part| part.2).collect();
    assert_eq!(sequences, [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]);
}

/// I-2: where the session is lost while an answer is out, nobody guesses.
#[tokio::test]
async fn an_unknown_session_after_a_lost_answer_is_in_doubt() {
    let (cluster, _, table) = one_shard().await;
    let node = &cluster.nodes[0];
    node.fail([Fault::CutAndForget]);
    let error = add(&table, 7, 1.0).await.expect_err("in doubt");
    let ClientError::InDoubt(failure) = &error else {
        panic!("{error}")
    };
    assert!(
        matches!(failure.parts[0].fate, Fate::InDoubt(_)),
        "{failure}"
    );
    assert_eq!(
        node.row(7),
        Some(vec![1.0]),
        "it was applied, and only once"
    );
    add(&table, 7, 1.0).await.expect("a new session");
    assert_eq!(node.row(7), Some(vec![2.0]));
}

#[tokio::test]
async fn a_session_that_expired_is_replaced() {
    let (cluster, _, table) = one_shard().await;
    add(&table, 7, 1.0).await.expect("applied");
    cluster.nodes[0].forget_sessions();
    add(&table, 7, 1.0).await.expect("applied");
    assert_eq!(cluster.nodes[0].row(7), Some(vec![2.0]));
}

/// B076: the refusal of a wrong epoch brings a new map; the sequence stays.
#[tokio::test]
async fn a_wrong_epoch_keeps_the_sequence() {
    let (cluster, id, table) = one_shard().await;
    add(&table, 7, 1.0).await.expect("applied");
    lock(&cluster.nodes[0].state.epochs).insert(0, 2);
    cluster
        .world
        .change(id, |map| map.shards[0].epoch = Epoch(2));
    add(&table, 7, 1.0).await.expect("applied");
    assert_eq!(cluster.nodes[0].row(7), Some(vec![2.0]));
    let pushes: HashSet<_> = cluster.nodes[0].pushes().into_iter().collect();
    assert_eq!(pushes.len(), 2, "one sequence for each push: {pushes:?}");
}

/// Dropped pushes leave no gap: more of them than the window holds, and pushes still go.
#[tokio::test]
async fn dropped_pushes_leave_no_gap() {
    let (cluster, _, table) = one_shard().await;
    let node = &cluster.nodes[0];
    add(&table, 1, 1.0).await.expect("applied");
    for round in 0..SESSION_WINDOW + 10 {
        node.fail([Fault::Silence]);
        let sent = node.pushes().len();
        let pushing = table.clone();
        let task = tokio::spawn(async move { add(&pushing, 2, 1.0).await });
        until("the push to be there", || node.pushes().len() > sent).await;
        task.abort();
        let voids = || {
            node.seen()
                .iter()
                .filter(|s| matches!(s, Seen::Void(..)))
                .count() as u64
        };
        until("its sequence to be voided", || voids() > round).await;
    }
    add(&table, 1, 1.0).await.expect("applied");
    assert_eq!(node.row(1), Some(vec![2.0]));
    assert_eq!(node.row(2), None);
    let opened = node
        .seen()
        .iter()
        .filter(|s| matches!(s, Seen::Open(_)))
        .count();
    assert_eq!(opened, 1, "the session lived on");
}

/// A push that times out is in doubt, and can no longer take effect afterwards.
#[tokio::test]
async fn a_push_that_times_out_is_closed() {
    let (cluster, _, table) = one_shard().await;
    let node = &cluster.nodes[0];
    add(&table, 1, 1.0).await.expect("applied");
    node.fail(vec![Fault::Silence; 3]);
    let options = PushOptions {
        deadline: Some(Duration::from_millis(300)),
        ..PushOptions::default()
    };
    let error = table
        .push(PushMode::Add, &[2], &[1.0], &options)
        .await
        .expect_err("silent");
    assert!(
        matches!(error, ClientError::InDoubt(_)) && error.is_deadline(),
        "{error}"
    );
    until("its sequence to be voided", || {
        node.seen()
            .iter()
            .any(|seen| matches!(seen, Seen::Void(..)))
    })
    .await;
    lock(&node.state.faults).clear();
    add(&table, 2, 1.0).await.expect("applied");
    assert_eq!(node.row(2), Some(vec![1.0]));
}

/// At most 64 in flight; the rest wait and are applied, each once.
#[tokio::test]
async fn the_window_holds_back_and_lets_go() {
    let (cluster, _, table) = one_shard().await;
    let node = &cluster.nodes[0];
    add(&table, 1, 1.0).await.expect("applied");
    node.hold(true);
    let tasks: Vec<_> = (0..200)
        .map(|_| {
            let table = table.clone();
            tokio::spawn(async move { add(&table, 1, 1.0).await })
        })
        .collect();
    until("a full window", || {
        node.pushes().len() as u64 == 1 + SESSION_WINDOW
    })
    .await;
    // Who waits for the window obeys the deadline; nothing of it was sent.
    let options = PushOptions {
        deadline: Some(Duration::from_millis(100)),
        ..PushOptions::default()
    };
    let error = table
        .push(PushMode::Add, &[9], &[1.0], &options)
        .await
        .expect_err("no room");
    assert!(
        matches!(error, ClientError::Unavailable(_)) && error.is_deadline(),
        "{error}"
    );
    assert_eq!(node.pushes().len() as u64, 1 + SESSION_WINDOW);
    node.hold(false);
    for task in tasks {
        task.await.expect("no panic").expect("applied");
    }
    assert_eq!(node.row(1), Some(vec![201.0]));
    let mut out = [0.0];
    table
        .pull_f32(&[9], &mut out, &PullOptions::default())
        .await
        .expect("pulled");
    assert_eq!(out, [0.0]);
}

/// Shards are independent: what one refuses the others have applied, and the error lists both.
#[tokio::test]
async fn a_refused_part_is_told_apart() {
    let cluster = Cluster::start(2).await;
    cluster.table(TableKind::Hashed, 1, 4);
    let table = cluster.client().await.table("t").await.expect("there");
    let refusal = Refusal::NonFinite {
        what: "the row".into(),
        key: 1,
    };
    lock(&cluster.nodes[1].state.refuse_parts).insert(3, refusal.clone());
    let keys: Vec<u64> = (0..100).collect();
    let values = vec![1.0; 100];
    let options = PushOptions::default();
    let error = table
        .push(PushMode::Add, &keys, &values, &options)
        .await
        .expect_err("refused");
    let ClientError::PartlyRefused(failure) = &error else {
        panic!("{error}")
    };
    let fates: Vec<(u32, bool)> = failure
        .parts
        .iter()
        .map(|part| (part.shard, part.fate == Fate::Refused(refusal.clone())))
        .collect();
    assert_eq!(fates, [(0, false), (1, false), (2, false), (3, true)]);
    assert!(
        error.to_string().contains("3 parts applied, 1 refused"),
        "{error}"
    );
}
