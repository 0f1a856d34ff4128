//! Three processes by hand: `mneme meta` and two `mneme server`, certificates from `mneme cert`.

use std::time::{Duration, Instant};

use mneme_client::PullOptions;
use mneme_proto::frame::Status;
use mneme_tests::rows::{Rows, dense, sgd};
use mneme_tests::{Trio, limits, wait_until};
use serde_json::json;

#[test]
fn three_processes_serve_one_table() {
    let trio = Trio::start();
    let mneme = trio.mneme();
    mneme.ok(&[
        "table",
        "create",
        "emb",
        "--kind",
        "hashed",
        "--dtype",
        "f32",
        "--dim",
        "2",
        "--optimizer",
        "sgd",
        "--opt",
        "lr=0.5",
    ]);
    mneme.ok(&[
        "push",
        "emb",
        "--mode",
        "gradient",
        "--keys",
        "7,8",
        "--values",
        "[[1,2],[3,4]]",
    ]);
    let rows = mneme.json(&["pull", "emb", "--keys", "8,7,9"]);
    assert_eq!(rows["rows"][0]["values"], json!([-1.5, -2.0]));
    assert_eq!(rows["rows"][1]["values"], json!([-0.5, -1.0]));
    assert_eq!(rows["rows"][2]["status"], "default");
    // Both nodes hold shards.
    let nodes: std::collections::BTreeSet<String> = (0..64)
        .map(|key| mneme.json(&["where", "emb", &key.to_string()])["node"].to_string())
        .collect();
    assert_eq!(nodes.len(), 2, "{nodes:?}");
}

/// B042: present, absent and unreachable are three different answers; the deadline holds.
#[test]
fn a_dead_node_is_not_an_absent_key() {
    let mut trio = Trio::start();
    let client = trio.client();
    let rows = Rows::create(&client, dense("t", 1 << 20, 64, sgd(1.0)));
    // A dense row id per node.
    let node_of = |key: u64| rows.table.where_key(key).expect("a place").node;
    let keys: Vec<u64> = (0..64).map(|i| i << 13).collect();
    let on_n1 = *keys
        .iter()
        .find(|k| node_of(**k) == "n1")
        .expect("a row on n1");
    let on_n2 = *keys
        .iter()
        .find(|k| node_of(**k) == "n2")
        .expect("a row on n2");
    rows.assign(&[on_n1, on_n2], &[3.0; 128]);
    trio.servers[1].kill();
    let mut out = vec![0; 2 * 256];
    let deadline = Duration::from_secs(1);
    let options = PullOptions {
        deadline: Some(deadline),
        ..PullOptions::default()
    };
    let start = Instant::now();
    let partial = rows
        .table
        .pull_partial(&[on_n1, on_n2], &mut out, &options)
        .expect("a part");
    assert!(
        start.elapsed() < deadline + Duration::from_millis(500),
        "{:?}",
        start.elapsed()
    );
    assert_eq!(partial.statuses, [Some(Status::Found), None]);
    assert_eq!(partial.unavailable.len(), 1);
    assert_eq!(partial.unavailable[0].node, "n2");
    assert!(
        out[..256] == [3.0_f32; 64].map(f32::to_le_bytes).concat()[..],
        "the row of n1"
    );
    rows.table
        .pull(&[on_n1, on_n2], &mut out, &options)
        .expect_err("a whole pull fails");
}

/// I-9: with the catalogue stopped, warm pulls go on: of a mutable table while its node's lease
/// runs, and then no longer (I-3); of a sealed one for ever.
#[test]
fn warm_pulls_do_not_need_the_catalogue() {
    let trio = Trio::start();
    let client = trio.client();
    let mutable = Rows::create(&client, dense("mutable", 1000, 4, sgd(1.0)));
    mutable.assign(&[1, 999], &[2.0; 8]);
    let sealed = Rows::create(&client, dense("sealed", 1000, 4, sgd(1.0)));
    sealed.assign(&[1, 999], &[3.0; 8]);
    trio.mneme().ok(&["table", "seal", "sealed"]);
    let sealed_rows = || sealed.pull(&[1, 999]) == [3.0; 8];
    assert!(sealed_rows() && mutable.pull(&[1]) == [2.0; 4]);

    trio.meta.pause();
    let start = Instant::now();
    for _ in 0..100 {
        assert_eq!(mutable.pull(&[1, 999]), [2.0; 8]);
        assert!(sealed_rows());
    }
    assert!(
        start.elapsed() < Duration::from_secs(1),
        "{:?}",
        start.elapsed()
    );
    let options = PullOptions {
        deadline: Some(Duration::from_millis(200)),
        ..Default::default()
    };
    let mut row = [0.0; 4];
    wait_until(limits::SOON, "the end of the node's lease", || {
        mutable.table.pull_f32(&[1], &mut row, &options).is_err()
    });
    let start = Instant::now();
    for _ in 0..100 {
        assert!(sealed_rows());
    }
    assert!(
        start.elapsed() < Duration::from_secs(1),
        "{:?}",
        start.elapsed()
    );

    trio.meta.resume();
    wait_until(limits::SOON, "mutable rows again", || {
        mutable.table.pull_f32(&[1], &mut row, &options).is_ok()
    });
    assert_eq!(row, [2.0; 4]);
}

/// The catalogue's death loses no table; nodes find it again.
#[test]
fn the_catalogue_comes_back_with_its_tables() {
    let mut trio = Trio::start();
    let client = trio.client();
    let rows = Rows::create(&client, dense("t", 1000, 4, sgd(1.0)));
    rows.assign(&[5], &[1.0; 4]);
    trio.restart_meta();
    let mneme = trio.mneme();
    wait_until(limits::READY, "both nodes are heard of again", || {
        let output = mneme.run(&["status", "--json"]);
        output.code == 0 && mneme_tests::trio::alive(&output.json()) == 2
    });
    assert_eq!(
        mneme.json(&["pull", "t", "--keys", "5"])["rows"][0]["values"][0],
        1.0
    );
    let new = Rows::create(&trio.client(), dense("new", 10, 4, sgd(1.0)));
    assert_eq!(new.pull(&[9]), [0.0; 4]);
}
