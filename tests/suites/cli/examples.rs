//! The programs of `client/examples` run against a cluster, as their first lines say.

use std::process::Command;

use mneme_tests::{Dev, process};

/// Runs an example on `dev`, and returns what it printed.
fn run(dev: &Dev, name: &str, args: &[&str]) -> String {
    let output = Command::new(process::example(name))
        .args(args)
        .env("MNEME_CONFIG", dev.config())
        .output()
        .expect("the example starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{name}: {}\n{stderr}",
        output.status
    );
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Each of them twice: the second run finds the tables of the first.
#[test]
fn examples_run() {
    let dev = Dev::start();
    for _ in 0..2 {
        assert!(!run(&dev, "train", &[]).is_empty());
        assert!(!run(&dev, "engram_rows", &[]).is_empty());
    }
    let mneme = dev.mneme();
    mneme.ok(&[
        "table", "create", "items", "--kind", "hashed", "--dtype", "f32", "--dim", "2",
    ]);
    mneme.ok(&[
        "push", "items", "--mode", "assign", "--keys", "7", "--values", "[[1,2]]",
    ]);
    let pulled = run(&dev, "pull", &["items", "7", "8"]);
    assert!(
        pulled.contains("found") && pulled.contains("default"),
        "{pulled}"
    );
}
