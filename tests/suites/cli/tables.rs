//! `mneme table`: create, list, describe, drop, reset, seal.

use mneme_tests::{Dev, Mneme, limits, wait_until};
use serde_json::Value;

fn hashed(mneme: &Mneme, name: &str) {
    mneme.ok(&[
        "table", "create", name, "--kind", "hashed", "--dtype", "f32", "--dim", "4",
    ]);
}

/// The entry of a table in the list.
fn listed(mneme: &Mneme, name: &str) -> Option<Value> {
    let list = mneme.json(&["table", "list"]);
    let tables = list["tables"].as_array().expect("a list").clone();
    tables.into_iter().find(|t| t["name"] == name)
}

#[test]
fn tables_come_and_go() {
    let dev = Dev::start();
    let mneme = dev.mneme();
    assert_eq!(
        mneme.json(&["table", "list"])["tables"],
        Value::Array(vec![])
    );
    hashed(&mneme, "a");
    mneme.ok(&[
        "table", "create", "b", "--kind", "dense", "--rows", "10", "--dtype", "u8", "--dim", "3",
    ]);
    let (a, b) = (
        listed(&mneme, "a").expect("a"),
        listed(&mneme, "b").expect("b"),
    );
    assert_eq!(
        (&a["kind"], &a["state"]),
        (&"hashed".into(), &"mutable".into())
    );
    assert_eq!(
        (&b["kind"], &b["state"]),
        (&"dense".into(), &"mutable".into())
    );
    mneme.refused(
        1,
        &[
            "table", "create", "a", "--kind", "hashed", "--dtype", "f32", "--dim", "4",
        ],
        &["'a'", "exists"],
    );
    mneme.ok(&["table", "drop", "a"]);
    assert!(listed(&mneme, "a").is_none());
    mneme.refused(1, &["table", "drop", "a"], &["'a'"]);
    mneme.refused(1, &["table", "describe", "a"], &["'a'"]);
    mneme.refused(1, &["pull", "a", "--keys", "1"], &["'a'"]);
    // The name is free again, and the new table is not the old one.
    hashed(&mneme, "a");
    assert_eq!(mneme.json(&["table", "describe", "a"])["rows"], 0);
}

/// B005: everything effective is shown, defaults included.
#[test]
fn describe_shows_what_is_effective() {
    let dev = Dev::start();
    let mneme = dev.mneme();
    mneme.ok(&[
        "table",
        "create",
        "t",
        "--kind",
        "hashed",
        "--dtype",
        "f32",
        "--dim",
        "8",
        "--optimizer",
        "adagrad",
        "--init",
        "uniform:-0.05:0.05",
    ]);
    let shown = mneme.json(&["table", "describe", "t"]);
    let text = shown.to_string();
    for word in [
        "adagrad",
        "\"lr\"",
        "\"eps\"",
        "\"acc0\"",
        "uniform",
        "\"seed\"",
        "\"shards\"",
    ] {
        assert!(text.contains(word), "'{word}' is not in {shown:#}");
    }
    assert_eq!(shown["rows"], 0);
    assert!(shown["bytes"].is_u64(), "{shown:#}");
    let human = mneme.ok(&["table", "describe", "t"]).stdout;
    for word in ["adagrad", "lr=0.01", "eps=1e-10", "acc0=0"] {
        assert!(human.contains(word), "'{word}' is not in {human}");
    }
}

/// B014, B050: what cannot be is refused by name, and nothing is made.
#[test]
fn bad_schemas_are_refused_by_name() {
    let dev = Dev::start();
    let mneme = dev.mneme();
    let create = |extra: &[&'static str]| {
        [
            &[
                "table", "create", "t", "--kind", "hashed", "--dtype", "f32", "--dim", "4",
            ],
            extra,
        ]
        .concat()
    };
    let bad: [(&[&'static str], &str); 9] = [
        (&["--optimizer", "adagrad", "--opt", "lr=NaN"], "lr"),
        (&["--optimizer", "adagrad", "--opt", "eps=-1"], "eps"),
        (&["--optimizer", "sgd", "--opt", "momentum=1"], "momentum"),
        (&["--optimizer", "sgd", "--opt", "speed=1"], "speed"),
        (&["--optimizer", "lion"], "lion"),
        (&["--shards", "3"], "shards"),
        (&["--init", "uniform:1:0"], "uniform:1:0"),
        (&["--default", "inf"], "default"),
        (&["--rows", "5"], "rows"),
    ];
    for (extra, word) in bad {
        let output = mneme.run(&create(extra));
        assert!(matches!(output.code, 1 | 2), "{output:#?}");
        assert!(output.stderr.contains(word), "{output:#?}");
        assert_eq!(output.stdout, "");
    }
    for name in ["", "a/b", "-x", "ü"] {
        let args = [
            "table", "create", "--kind", "hashed", "--dtype", "f32", "--dim", "4", "--", name,
        ];
        let output = mneme.run(&args);
        assert!(matches!(output.code, 1 | 2), "{output:#?}");
    }
    assert_eq!(
        mneme.json(&["table", "list"])["tables"],
        Value::Array(vec![])
    );
}

#[test]
fn seal_makes_rows_immutable() {
    let dev = Dev::start();
    let mneme = dev.mneme();
    hashed(&mneme, "t");
    let push = [
        "push",
        "t",
        "--mode",
        "assign",
        "--keys",
        "1,2",
        "--values",
        "[[1,2,3,4],[5,6,7,8]]",
    ];
    mneme.ok(&push);
    mneme.ok(&["table", "seal", "t"]);
    assert_eq!(listed(&mneme, "t").expect("t")["state"], "sealed");
    mneme.refused(1, &push, &["sealed"]);
    let rows = mneme.json(&["pull", "t", "--keys", "2,3"]);
    assert_eq!(
        rows["rows"][0]["values"],
        serde_json::json!([5.0, 6.0, 7.0, 8.0])
    );
    assert_eq!(rows["rows"][1]["status"], "default");
    assert_eq!(mneme.json(&["table", "describe", "t"])["rows"], 2);
}

#[test]
fn reset_empties_a_table() {
    let dev = Dev::start();
    let mneme = dev.mneme();
    hashed(&mneme, "t");
    mneme.ok(&[
        "push",
        "t",
        "--mode",
        "assign",
        "--keys",
        "1",
        "--values",
        "[[1,2,3,4]]",
    ]);
    mneme.ok(&["table", "reset", "t"]);
    assert_eq!(mneme.json(&["table", "describe", "t"])["rows"], 0);
    assert_eq!(
        mneme.json(&["pull", "t", "--keys", "1"])["rows"][0]["status"],
        "default"
    );
}

/// `status` knows the nodes, the tables and the memory.
#[test]
fn status_shows_the_cluster() {
    let dev = Dev::start();
    let mneme = dev.mneme();
    hashed(&mneme, "t");
    let status = mneme.json(&["status"]);
    assert_eq!(mneme_tests::trio::alive(&status), 2, "{status:#}");
    assert_eq!(
        status["tables"].as_array().map(Vec::len),
        Some(1),
        "{status:#}"
    );
    assert!(mneme.ok(&["status"]).stdout.contains("alive"));
}

/// The learning rate changes under pushes, without a restart; nothing else does.
#[test]
fn set_changes_the_learning_rate() {
    let dev = Dev::start();
    let mneme = dev.mneme();
    mneme.ok(&[
        "table",
        "create",
        "t",
        "--kind",
        "hashed",
        "--dtype",
        "f32",
        "--dim",
        "1",
        "--optimizer",
        "sgd",
        "--opt",
        "lr=0.5",
    ]);
    let mut key = 0;
    let mut step = || {
        key += 1;
        let text = key.to_string();
        let gradient = [
            "push", "t", "--mode", "gradient", "--keys", &text, "--values", "[[-1]]",
        ];
        mneme.ok(&gradient);
        let pulled = mneme.json(&["pull", "t", "--keys", &text]);
        pulled["rows"][0]["values"][0].as_f64().expect("a number")
    };
    assert_eq!(step(), 0.5);
    mneme.ok(&["table", "set", "t", "--opt", "lr=2"]);
    wait_until(limits::SOON, "the nodes follow", || step() == 2.0);
    let described = mneme.json(&["table", "describe", "t"]);
    assert_eq!(described["optimizer"]["options"]["lr"], 2.0);
    for (option, says) in [
        ("momentum=0.5", "only lr can be changed"),
        ("rho=1", "no such option"),
        ("lr=NaN", "lr"),
        ("lr=fast", "not a number"),
    ] {
        mneme.refused(1, &["table", "set", "t", "--opt", option], &[says]);
    }
    assert_eq!(step(), 2.0);
    mneme.refused(1, &["table", "set", "absent", "--opt", "lr=1"], &["absent"]);
}
