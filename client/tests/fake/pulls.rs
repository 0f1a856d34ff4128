//! Pulls that go well, and what they refuse before they start.

use mneme_client::{ClientError, Missing, PullOptions, PushMode, PushOptions, Status, blocking};
use mneme_proto::refusal::Refusal;
use mneme_proto::schema::TableKind;

use crate::cluster::Cluster;

#[tokio::test]
async fn rows_come_in_request_order_from_all_nodes() {
    let cluster = Cluster::start(2).await;
    cluster.table(TableKind::Hashed, 2, 8);
    let client = cluster.client().await;
    let table = client.table("t").await.expect("there");
    let keys: Vec<u64> = (0..100).collect();
    let values: Vec<f32> = (0..200).map(|i| i as f32).collect();
    let report = table
        .push(PushMode::Assign, &keys, &values, &PushOptions::default())
        .await;
    assert_eq!(report.expect("applied").rows, 100);

    let asked = [99, 3, u64::MAX, 3, 0, 99];
    let mut out = [7.0; 12];
    let statuses = table
        .pull_f32(&asked, &mut out, &PullOptions::default())
        .await;
    let (found, default) = (Status::Found, Status::Default);
    assert_eq!(
        statuses.expect("pulled"),
        [found, found, default, found, found, found]
    );
    assert_eq!(
        out,
        [
            198.0, 199.0, 6.0, 7.0, 0.0, 0.0, 6.0, 7.0, 0.0, 1.0, 198.0, 199.0
        ]
    );

    let sent: usize = cluster
        .nodes
        .iter()
        .flat_map(|n| n.pulls())
        .map(|keys| keys.len())
        .sum();
    assert_eq!(sent, 4, "a repeated key travels once");

    // B040: missing = error names each key once.
    let error = table
        .pull_f32(&asked, &mut out, &PullOptions::missing(Missing::Error))
        .await;
    let error = error.expect_err("a key is missing");
    let expected = Refusal::MissingKeys {
        keys: vec![u64::MAX],
        total: 1,
    };
    assert_eq!(error.refusal(), Some(&expected));
}

/// B045: no keys, no frame, no error.
#[tokio::test]
async fn an_empty_pull_is_fine() {
    let cluster = Cluster::start(1).await;
    cluster.table(TableKind::Hashed, 2, 2);
    let table = cluster.client().await.table("t").await.expect("there");
    let statuses = table
        .pull(&[], &mut [], &PullOptions::default())
        .await
        .expect("fine");
    assert!(statuses.is_empty() && cluster.nodes[0].pulls().is_empty());
}

#[tokio::test]
async fn buffers_and_row_ids_are_checked_before_anything_is_sent() {
    let cluster = Cluster::start(1).await;
    cluster.table(TableKind::Dense { rows: 10 }, 2, 2);
    let table = cluster.client().await.table("t").await.expect("there");
    let options = PullOptions::default();
    for bytes in [0, 15, 17, 24] {
        let error = table.pull(&[1, 2], &mut vec![0; bytes], &options).await;
        assert!(
            matches!(error, Err(ClientError::Refused(Refusal::Shape { .. }))),
            "{error:?}"
        );
    }
    let error = table
        .pull(&[1, 10], &mut [0; 16], &options)
        .await
        .expect_err("out of range");
    assert_eq!(
        error.refusal(),
        Some(&Refusal::RowOutOfRange { row: 10, rows: 10 })
    );
    assert!(cluster.nodes[0].pulls().is_empty());
}

/// B047: a batch over the limits of a frame is split by the client; the link stays usable.
#[tokio::test]
async fn a_large_batch_is_split() {
    let cluster = Cluster::start(2).await;
    cluster.table(TableKind::Hashed, 1, 4);
    let table = cluster.client().await.table("t").await.expect("there");
    let keys: Vec<u64> = (0..150_001).collect();
    let values: Vec<f32> = keys.iter().map(|&key| key as f32).collect();
    let report = table
        .push(PushMode::Assign, &keys, &values, &PushOptions::default())
        .await;
    assert_eq!(report.expect("applied").rows, 150_001);
    let mut out = vec![0.0; keys.len()];
    table
        .pull_f32(&keys, &mut out, &PullOptions::default())
        .await
        .expect("pulled");
    assert_eq!(out, values);
    assert!(cluster.nodes[0].pulls().len() > 1);
}

#[tokio::test]
async fn unknown_tables_and_where_and_scan() {
    let cluster = Cluster::start(2).await;
    cluster.table(TableKind::Hashed, 1, 4);
    let client = cluster.client().await;
    let error = client.table("u").await.expect_err("no such table");
    assert!(
        matches!(error.refusal(), Some(Refusal::UnknownTable { .. })),
        "{error}"
    );

    let table = client.table("t").await.expect("there");
    let keys: Vec<u64> = (0..50).collect();
    let values = vec![1.0; 50];
    table
        .push(PushMode::Add, &keys, &values, &PushOptions::default())
        .await
        .expect("applied");
    let found = table.where_key(7).await.expect("placed");
    assert_eq!(found.node, format!("n{}", found.shard % 2));
    assert!(found.paths[0].chosen && found.paths[0].predicted_us > 0.0);
    assert_eq!(found.paths[0].observed_us, None, "nothing was pulled yet");
    table
        .pull_f32(&keys, &mut [0.0; 50], &PullOptions::default())
        .await
        .expect("pulled");
    let found = table.where_key(7).await.expect("placed");
    assert!(found.paths[0].observed_us.expect("pulled") > 0.0);

    let mut scan = table.scan(None).await.expect("begun");
    let mut seen = Vec::new();
    while let Some(rows) = scan.next(7).await.expect("rows") {
        assert!(rows.keys.len() <= 7 && rows.stride_bytes == 4);
        seen.extend(rows.keys);
    }
    seen.sort_unstable();
    assert_eq!(seen, keys);
    assert_eq!(table.describe().await.expect("described").rows, 40);
    client.close().await;
}

/// The blocking client makes the same calls, from any thread.
#[test]
fn blocking_calls_from_a_thread() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let cluster = runtime.block_on(Cluster::start(1));
    cluster.table(TableKind::Hashed, 1, 4);
    let config = cluster.config();
    let thread = std::thread::spawn(move || {
        let client = blocking::Client::connect(config).expect("connected");
        let table = client.table("t").expect("there");
        for turn in 1..=50 {
            let report = table.push(PushMode::Add, &[5], &[1.0], &PushOptions::default());
            assert_eq!(report.expect("applied").rows, 1);
            let mut out = [0.0];
            table
                .pull_f32(&[5], &mut out, &PullOptions::default())
                .expect("pulled");
            assert_eq!(out, [turn as f32], "B053: a client sees its own pushes");
        }
        (client, table) // they may be dropped on another thread
    });
    drop(thread.join().expect("no panic"));
}
