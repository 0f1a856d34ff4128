//! Versions of sealed tables: published and rolled back as a whole, under readers (I-8).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use mneme_client::blocking::{Client, Table};
use mneme_client::{LoadAt, LoadRows, PullOptions};
use mneme_proto::ids::TableGeneration;
use mneme_tests::dev::Dev;
use mneme_tests::files::{f32_bytes, write_npy};
use mneme_tests::limits::SOON;
use mneme_tests::rows::{Rows, dense, sgd};
use mneme_tests::{Mneme, wait_until};

const ROWS: u64 = 20_000;
const DIM: usize = 8;

/// Loads a version whose every element is `stamp`, and leaves it to wait.
fn stage(table: &Table, stamp: f32) -> TableGeneration {
    let rows = f32_bytes(&vec![stamp; ROWS as usize * DIM]);
    let mut loader = table.load(LoadRows::Dense, None).expect("a load begins");
    loader.put(LoadAt::Row(0), &rows).expect("rows are taken");
    loader.stage().expect("it waits")
}

/// Pulls batches over all shards until told to stop; returns how many. Every batch is of one stamp.
fn read_batches(client: &Client, stop: &AtomicBool, read: &AtomicU64) {
    let table = client.table("t").expect("the table is there");
    let keys: Vec<u64> = (0..ROWS).step_by(7).collect();
    let mut out = vec![0.0; keys.len() * DIM];
    while !stop.load(Ordering::Relaxed) {
        let pulled = table.pull_f32(&keys, &mut out, &PullOptions::default());
        pulled.expect("sealed rows are always served");
        let mixed = out.iter().position(|value| *value != out[0]);
        assert_eq!(mixed, None, "a batch mixes stamp {} with another", out[0]);
        assert!(out[0] == 1.0 || out[0] == 2.0, "stamp {}", out[0]);
        read.fetch_add(1, Ordering::Relaxed);
    }
}

/// How often the table is flipped: a hundred times, or as `MNEME_TEST_FLIPS` says.
fn flips() -> u32 {
    let set = std::env::var("MNEME_TEST_FLIPS").ok();
    set.map_or(100, |text| {
        text.parse().expect("MNEME_TEST_FLIPS: a number")
    })
}

/// I-8: rollbacks back and forth, publishes between them, and no batch of any reader mixes two
/// versions.
#[test]
fn readers_never_see_a_mixture() {
    let dev = Dev::start();
    let client = dev.client();
    let table = Rows::create(&client, dense("t", ROWS, DIM as u32, sgd(1.0))).table;
    stage(&table, 1.0);
    table.publish(None).expect("published");
    let (stop, read) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| read_batches(&dev.client(), &stop, &read));
        }
        for flip in 0..flips() {
            // Every tenth flip is a new load, published over the version that is read.
            if flip % 10 == 0 {
                let next = if stamp_of(&client) == 1.0 { 2.0 } else { 1.0 };
                let staged = stage(&table, next);
                assert_eq!(table.publish(None).expect("published"), staged);
            } else {
                let before = table.versions().expect("known").published;
                let back = table.rollback(None).expect("a version to go back to");
                assert_ne!(back, before);
            }
            let seen = read.load(Ordering::Relaxed);
            while read.load(Ordering::Relaxed) < seen + 2 {
                std::thread::yield_now();
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    println!("{} batches read", read.load(Ordering::Relaxed));
}

fn stamp_of(client: &Client) -> f32 {
    Rows::open(client, "t").lane(3)
}

/// What waits is not read, a newer one takes its place, and nothing is published twice.
#[test]
fn staged_versions_wait_and_replace_each_other() {
    let dev = Dev::start();
    let client = dev.client();
    let table = Rows::create(&client, dense("t", ROWS, DIM as u32, sgd(1.0))).table;
    let error = table.publish(None).expect_err("nothing waits").to_string();
    assert!(error.contains("it has no version to publish"), "{error}");
    let error = table
        .rollback(None)
        .expect_err("nothing before")
        .to_string();
    assert!(error.contains("it has no version to go back to"), "{error}");

    let first = stage(&table, 1.0);
    let second = stage(&table, 2.0);
    let versions = table.versions().expect("known");
    assert_eq!(versions.published, TableGeneration(0));
    let staged: Vec<_> = versions.staged.iter().map(|v| v.generation).collect();
    assert_eq!(staged, [second], "{first} was replaced");
    assert_eq!(stamp_of(&client), 0.0, "what waits is not read");

    assert_eq!(table.publish(None).expect("published"), second);
    assert_eq!(stamp_of(&client), 2.0);
    assert!(table.publish(None).is_err(), "it no longer waits");
    let error = table
        .rollback(None)
        .expect_err("mutable rows are gone")
        .to_string();
    assert!(error.contains("it has no version to go back to"), "{error}");
}

/// The same by hand: import beside the live version, publish, go back, go forth.
#[test]
fn by_the_command_line() {
    let dev = Dev::start();
    let mneme = dev.mneme();
    let file = |name: &str, stamp: f32| {
        let path = dev.data().join(name);
        write_npy(&path, "<f4", &[100, 2], &f32_bytes(&[stamp; 200]));
        path.to_str().expect("UTF-8").to_owned()
    };
    let (one, two) = (file("one.npy", 1.0), file("two.npy", 2.0));
    let value = || mneme.json(&["pull", "t", "--keys", "99"])["rows"][0]["values"][0].clone();
    mneme.ok(&["import", "t", &one, "--create", "--seal"]);
    mneme.refused(
        1,
        &["table", "rollback", "t"],
        &["no version to go back to"],
    );
    mneme.ok(&["import", "t", &two, "--seal", "--no-publish"]);
    assert_eq!(value(), 1.0);
    mneme.ok(&["table", "publish", "t"]);
    assert_eq!(value(), 2.0);
    mneme.refused(1, &["table", "publish", "t"], &["no version to publish"]);
    mneme.ok(&["table", "rollback", "t"]);
    assert_eq!(value(), 1.0);
    mneme.ok(&["table", "rollback", "t"]);
    assert_eq!(value(), 2.0);
    mneme.refused(2, &["import", "t", &two, "--no-publish"], &["--seal"]);
}

/// A table that an import makes to seal holds its rows once, serves nothing before it is published
/// and says so, over a restart too.
#[test]
fn a_table_made_to_be_loaded() {
    let mut dev = Dev::start_with(&["--nodes", "2", "--memory", "dram:96MiB"]);
    let mneme = dev.mneme();
    // 80 MiB: twice that is more than the nodes have.
    let (rows, dim) = (20 << 10, 1 << 10);
    let path = dev.data().join("rows.npy");
    write_npy(
        &path,
        "<f4",
        &[rows, dim],
        &f32_bytes(&vec![3.0; rows * dim]),
    );
    let file = path.to_str().expect("UTF-8");
    mneme.ok(&["import", "t", file, "--create", "--seal", "--no-publish"]);
    let state = |mneme: &Mneme| mneme.json(&["table", "list"])["tables"][0]["state"].clone();
    assert_eq!(state(&mneme), "loading");
    let why = ["'t' is loading", "table reset"];
    mneme.refused(1, &["pull", "t", "--keys", "9"], &why);
    let row = serde_json::to_string(&[vec![1.0; dim]]).expect("JSON");
    let push = ["push", "t", "--mode", "assign", "--keys", "9", "--values"];
    mneme.refused(1, &[&push[..], &[&row]].concat(), &why);
    mneme.ok(&["table", "publish", "t"]);
    assert_eq!(state(&mneme), "sealed");
    let pulled = mneme.json(&["pull", "t", "--keys", "20479"]);
    assert_eq!(pulled["rows"][0]["values"][dim - 1], 3.0);

    mneme.ok(&["table", "drop", "t"]);
    wait_until(SOON, "the memory of a dropped table to be free", || {
        let nodes = mneme.json(&["status"])["nodes"].clone();
        let mut nodes = nodes.as_array().expect("nodes").iter();
        nodes.all(|node| node["pools"][0]["used_bytes"] == 0)
    });
    mneme.ok(&["import", "t", file, "--create", "--seal", "--no-publish"]);
    dev.stop();
    dev.restart();
    let mneme = dev.mneme();
    assert_eq!(state(&mneme), "loading");
    mneme.ok(&["table", "reset", "t"]);
    assert_eq!(state(&mneme), "mutable");
    let pulled = mneme.json(&["pull", "t", "--keys", "20479"]);
    assert_eq!(pulled["rows"][0]["values"][dim - 1], 0.0);
}
