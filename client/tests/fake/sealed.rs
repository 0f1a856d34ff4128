//! Sealed tables: loaded, published, and read in one generation.

use mneme_client::{ClientError, LoadAt, LoadRows, PullOptions, PushMode, PushOptions, Table};
use mneme_proto::map::TableState;
use mneme_proto::refusal::Refusal;
use mneme_proto::schema::TableKind;

use crate::cluster::{Cluster, lock};

/// 2048 rows of 1 KiB make a block: five blocks over two shards, the last one cut.
const ROWS: u64 = 10_000;
const DIM: usize = 256;

fn row(row: u64, value: f32) -> [f32; DIM] {
    [row as f32 + value; DIM]
}

async fn load_all(table: &Table, value: f32) -> u64 {
    let mut loader = table.load(LoadRows::Dense, None).await.expect("begun");
    let numbers = (0..ROWS).flat_map(|id| row(id, value));
    let bytes: Vec<u8> = numbers.flat_map(f32::to_le_bytes).collect();
    let half = ROWS / 2;
    let (first, second) = bytes.split_at(half as usize * DIM * 4);
    loader.put(LoadAt::Row(0), first).await.expect("sent");
    loader.put(LoadAt::Row(half), second).await.expect("sent");
    assert!(!loader.finish().await.expect("sealed").is_empty());
    loader.publish().await.expect("published").0
}

#[tokio::test]
async fn a_dense_table_is_loaded_and_read() {
    let cluster = Cluster::start(2).await;
    cluster.table(TableKind::Dense { rows: ROWS }, DIM as u32, 2);
    let client = cluster.client().await;
    let table = client.table("t").await.expect("there");
    load_all(&table, 0.5).await;
    assert_eq!(table.state(), TableState::Sealed);
    let keys = [0, ROWS - 1, 2047, 2048, 7];
    let mut out = [0.0; 5 * DIM];
    table
        .pull_f32(&keys, &mut out, &PullOptions::default())
        .await
        .expect("pulled");
    assert_eq!(out[..], keys.map(|key| row(key, 0.5)).concat());

    let error = table
        .push(PushMode::Add, &[1], &[1.0; DIM], &PushOptions::default())
        .await;
    let error = error.expect_err("sealed");
    assert!(
        matches!(error.refusal(), Some(Refusal::TableState { .. })),
        "{error}"
    );
    let error = table
        .load(LoadRows::Keys(&[1]), None)
        .await
        .expect_err("dense");
    assert!(
        matches!(error, ClientError::Refused(Refusal::Shape { .. })),
        "{error}"
    );
}

#[tokio::test]
async fn a_hashed_table_is_loaded_and_sealed() {
    let cluster = Cluster::start(2).await;
    cluster.table(TableKind::Hashed, 1, 4);
    let table = cluster.client().await.table("t").await.expect("there");
    table
        .push(PushMode::Add, &[1, 2], &[1.0, 2.0], &PushOptions::default())
        .await
        .expect("ok");
    let sealed = table.seal(None).await.expect("sealed");
    let mut out = [0.0; 3];
    table
        .pull_f32(&[2, 1, 3], &mut out, &PullOptions::default())
        .await
        .expect("pulled");
    assert_eq!(out, [2.0, 1.0, 0.0]);

    let keys: Vec<u64> = (0..1000).map(|i| i * i).collect();
    let rows: Vec<u8> = keys
        .iter()
        .flat_map(|&key| (key as f32).to_le_bytes())
        .collect();
    let mut loader = table
        .load(LoadRows::Keys(&keys), None)
        .await
        .expect("begun");
    loader
        .put(LoadAt::Keys(&keys[..300]), &rows[..1200])
        .await
        .expect("sent");
    loader
        .put(LoadAt::Keys(&keys[300..]), &rows[1200..])
        .await
        .expect("sent");
    assert!(loader.publish().await.expect("published") > sealed);
    let mut out = vec![0.0; 1000];
    table
        .pull_f32(&keys, &mut out, &PullOptions::default())
        .await
        .expect("pulled");
    assert!(keys.iter().zip(&out).all(|(&key, &row)| row == key as f32));
}

/// I-8: a pull that meets a generation that is gone starts over; it never mixes two.
#[tokio::test]
async fn one_pull_sees_one_generation() {
    let cluster = Cluster::start(2).await;
    cluster.table(TableKind::Dense { rows: ROWS }, DIM as u32, 2);
    let writer = cluster.client().await.table("t").await.expect("there");
    let old = load_all(&writer, 0.25).await;
    let reader = cluster.client().await.table("t").await.expect("there");
    let seen = reader.map();
    load_all(&writer, 0.75).await;
    // One node still holds the old generation, the other does not.
    lock(&cluster.nodes[1].state.held).remove(&old);
    let keys: Vec<u64> = (0..ROWS).step_by(177).collect();
    let mut out = vec![0.0; keys.len() * DIM];
    reader
        .pull_f32(&keys, &mut out, &PullOptions::default())
        .await
        .expect("pulled");
    for (found, &key) in out.chunks(DIM).zip(&keys) {
        assert_eq!(found, row(key, 0.75));
    }
    assert!(reader.map().revision > seen.revision);
}
