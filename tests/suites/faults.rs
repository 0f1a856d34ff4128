//! kill -9 and what is there afterwards.

use mneme_client::ClientError;
use mneme_proto::frame::PushMode;
use mneme_tests::files::{Tensor, write_safetensors};
use mneme_tests::rows::{Rows, bits, hashed, sgd};
use mneme_tests::{Dev, limits, wait_until};
use serde_json::Value;

/// The state of a table in `table list --json`.
fn state(dev: &Dev, name: &str) -> String {
    let list = dev.mneme().json(&["table", "list"]);
    let tables = list["tables"].as_array().expect("a list");
    let table = tables
        .iter()
        .find(|t| t["name"] == name)
        .expect("the table is there");
    table["state"].as_str().expect("a word").to_owned()
}

/// The fourth figure: tables, schemas and sealed rows survive; mutable rows are lost,
/// and said to be.
#[test]
fn kill_dev_and_start_again() {
    let mut dev = Dev::start();
    let values: Vec<f32> = (0..64_000).map(|i| i as f32 * 0.1).collect();
    let path = dev.data().join("real.safetensors");
    write_safetensors(&path, &[Tensor::f32("w", &[1000, 64], values.clone())]);
    let file = path.to_str().expect("UTF-8").to_owned();
    let before = {
        let mneme = dev.mneme();
        mneme.ok(&["import", "sealed", &file, "--create", "--seal"]);
        let client = dev.client();
        let pushed = Rows::create(&client, hashed("pushed", 2, sgd(0.25)));
        let _ = Rows::create(&client, hashed("untouched", 2, sgd(0.25)));
        pushed.gradient(&[1, 2], &[1.0; 4]);
        schema(&mneme.json(&["table", "describe", "pushed"]))
    };
    dev.process().kill();
    dev.restart();

    let ids: Vec<u64> = (0..1000).collect();
    let client = dev.client();
    assert_eq!(state(&dev, "sealed"), "sealed");
    assert!(
        bits(&Rows::open(&client, "sealed").pull(&ids)) == bits(&values),
        "sealed rows"
    );

    assert_eq!(state(&dev, "pushed"), "lost");
    let mneme = dev.mneme();
    assert_eq!(
        schema(&mneme.json(&["table", "describe", "pushed"])),
        before
    );
    mneme.refused(
        1,
        &["pull", "pushed", "--keys", "1"],
        &["lost", "import", "table reset"],
    );
    let push = [
        "push", "pushed", "--mode", "gradient", "--keys", "1", "--values", "[[1,1]]",
    ];
    mneme.refused(1, &push, &["lost", "import", "table reset"]);
    mneme.ok(&["table", "reset", "pushed"]);
    mneme.ok(&push);
    let pull = || mneme.json(&["pull", "pushed", "--keys", "1,2"]);
    assert_eq!(pull()["rows"][0]["values"][0], -0.25);
    assert_eq!(pull()["rows"][1]["status"], "default");

    // Nothing could be lost of a table that never took a push.
    assert_eq!(state(&dev, "untouched"), "mutable");
    let untouched = Rows::open(&client, "untouched");
    untouched.gradient(&[1], &[1.0; 2]);
    assert_eq!(untouched.pull(&[1]), [-0.25; 2]);
}

/// What `describe` says of a table that is not its rows or their place.
fn schema(described: &Value) -> Value {
    let kept = [
        "name",
        "kind",
        "planes",
        "optimizer",
        "init",
        "seed",
        "default",
        "id",
    ];
    let object = described.as_object().expect("an object").clone();
    object
        .into_iter()
        .filter(|(name, _)| kept.contains(&name.as_str()))
        .collect()
}

/// A lost table takes an import like a new one.
#[test]
fn lost_rows_can_be_imported_again() {
    let mut dev = Dev::start();
    let path = dev.data().join("t.safetensors");
    write_safetensors(
        &path,
        &[Tensor::f32("w", &[10, 2], (0..20).map(|i| i as f32))],
    );
    let file = path.to_str().expect("UTF-8").to_owned();
    dev.mneme().ok(&["import", "t", &file, "--create"]);
    dev.process().kill();
    dev.restart();
    assert_eq!(state(&dev, "t"), "lost");
    dev.mneme().ok(&["import", "t", &file]);
    assert_eq!(Rows::open(&dev.client(), "t").pull(&[9]), [18.0, 19.0]);
}

/// Killed at any moment of a load, a sealed table is its old version, whole (I-8).
#[test]
fn a_load_cut_short_leaves_the_old_version() {
    let mut dev = Dev::start();
    let path = dev.data().join("t.safetensors");
    let file = path.to_str().expect("UTF-8").to_owned();
    let version = |v: f32| Tensor::f32("w", &[20_000, 64], (0..20_000 * 64).map(move |_| v));
    write_safetensors(&path, &[version(1.0)]);
    dev.mneme()
        .ok(&["import", "t", &file, "--create", "--seal"]);
    write_safetensors(&path, &[version(2.0)]);
    for round in 0..3 {
        let mneme = dev.mneme();
        let import = file.clone();
        let loading = std::thread::spawn(move || mneme.run(&["import", "t", &import, "--seal"]));
        // Some way into the load, a different one each time.
        let used = dev.process().resident_bytes();
        wait_until(limits::SOON, "some of the load", || {
            loading.is_finished() || dev.process().resident_bytes() > used + (round << 20)
        });
        dev.process().kill();
        let published = loading.join().expect("no panic").code == 0;
        dev.restart();
        assert_eq!(state(&dev, "t"), "sealed");
        let ids: Vec<u64> = (0..20_000).collect();
        let rows = Rows::open(&dev.client(), "t").pull(&ids);
        assert!(
            rows.iter().all(|v| *v == rows[0]),
            "a mixture of two versions"
        );
        assert!(rows[0] == 2.0 || !published, "a published version is gone");
        write_safetensors(&path, &[version(2.0)]);
    }
}

/// Killed many times while it takes pushes: it starts again each time, and never answers with
/// less than it acknowledged unless it says that the rows are lost.
#[test]
fn killed_again_and_again_it_starts_again() {
    let mut dev = Dev::start();
    let _ = Rows::create(&dev.client(), hashed("t", 1, sgd(1.0)));
    for _ in 0..5 {
        let client = dev.client();
        if state(&dev, "t") == "lost" {
            client.reset_table("t").expect("a reset");
        }
        let rows = Rows::open(&client, "t");
        for _ in 0..20 {
            rows.gradient(&[1], &[-1.0]);
        }
        dev.process().kill();
        dev.restart();
        let rows = Rows::open(&dev.client(), "t");
        let error = rows
            .push(PushMode::Gradient, &[1], &[-1.0])
            .expect_err("the rows are lost");
        assert!(matches!(error, ClientError::Refused(_)), "{error}");
    }
}

/// A clean end is no different for rows in memory: they are lost, and said to be.
#[test]
fn after_a_clean_end_mutable_rows_are_lost_too() {
    let mut dev = Dev::start();
    Rows::create(&dev.client(), hashed("t", 1, sgd(1.0))).gradient(&[1], &[-1.0]);
    dev.stop();
    dev.restart();
    assert_eq!(state(&dev, "t"), "lost");
}
