//! `mneme push`, `pull` and `where`: the JSON that scripts read.

use mneme_tests::{Dev, Mneme};
use serde_json::{Value, json};

const MAX: &str = "18446744073709551615";

fn create(mneme: &Mneme, name: &str, extra: &[&str]) {
    let base = [
        "table", "create", name, "--kind", "hashed", "--dtype", "f32", "--dim", "2",
    ];
    mneme.ok(&[&base, extra].concat());
}

/// The contract of `pull --json`, to the letter.
#[test]
fn pull_json_is_as_promised() {
    let dev = Dev::start();
    let mneme = dev.mneme();
    create(&mneme, "t", &["--default", "0.5"]);
    mneme.ok(&[
        "push",
        "t",
        "--mode",
        "assign",
        "--keys",
        "18446744073709551615,9007199254740993",
        "--values",
        "[[1.5,-0.0],[0.1,3e38]]",
    ]);
    let keys = format!("9007199254740993,{MAX},5,{MAX},9007199254740992");
    let answer = mneme.json(&["pull", "t", "--keys", &keys]);
    let row = |key: &str, status: &str, values: Value| {
        let row = json!({"key": key, "status": status, "values": values});
        row
    };
    let last = row(MAX, "found", json!([1.5, -0.0]));
    let first = &answer["rows"][0]["values"];
    let close: Vec<f32> = first
        .as_array()
        .expect("values")
        .iter()
        .map(as_f32)
        .collect();
    assert_eq!(close, [0.1_f32, 3e38]);
    let wanted = json!({"table": "t", "rows": [
        row("9007199254740993", "found", first.clone()),
        last,
        row("5", "default", json!([0.5, 0.5])),
        last,
        row("9007199254740992", "default", json!([0.5, 0.5])),
    ]});
    assert_eq!(answer, wanted);
}

/// A JSON number read back as f32, through its text, as a careful reader does.
fn as_f32(value: &Value) -> f32 {
    value.to_string().parse().expect("a number")
}

/// Values read back to the same bits; what JSON cannot write is a string.
#[test]
fn odd_values_survive_json() {
    let dev = Dev::start();
    let mneme = dev.mneme();
    create(&mneme, "t", &[]);
    mneme.ok(&[
        "push",
        "t",
        "--mode",
        "assign",
        "--keys",
        "1,2,3",
        "--values",
        r#"[["NaN","Infinity"],["-Infinity",1e-45],[-0.0,0.30000001]]"#,
    ]);
    let rows = mneme.json(&["pull", "t", "--keys", "1,2,3"]);
    assert_eq!(rows["rows"][0]["values"], json!(["NaN", "Infinity"]));
    assert_eq!(rows["rows"][1]["values"][0], "-Infinity");
    assert_eq!(as_f32(&rows["rows"][1]["values"][1]).to_bits(), 1);
    assert_eq!(as_f32(&rows["rows"][2]["values"][0]).to_bits(), 0x8000_0000);
    assert_eq!(as_f32(&rows["rows"][2]["values"][1]), 0.3);
    let bits = mneme.json(&["pull", "t", "--keys", "3", "--bits"]);
    let hex = bits["rows"][0]["values"].to_string().to_lowercase();
    assert!(
        hex.contains("80000000") && hex.contains("3e99999a"),
        "{hex}"
    );
}

/// Every mode, with the optimizer's state beside the row.
#[test]
fn modes_do_what_they_say() {
    let dev = Dev::start();
    let mneme = dev.mneme();
    create(
        &mneme,
        "t",
        &[
            "--optimizer",
            "adagrad",
            "--opt",
            "lr=0.1",
            "--opt",
            "acc0=7",
        ],
    );
    let push = |mode: &str, keys: &str, values: &str| {
        mneme.ok(&[
            "push", "t", "--mode", mode, "--keys", keys, "--values", values,
        ]);
    };
    push("assign", "5", "[[1,1]]");
    push("gradient", "5,5", "[[1,0],[2,0]]");
    let row = &mneme.json(&["pull", "t", "--keys", "5", "--state"])["rows"][0];
    assert!((as_f32(&row["values"][0]) - 0.925).abs() < 1e-6, "{row}");
    assert_eq!(row["values"][1], 1.0);
    assert_eq!(row["state"], json!({"acc": [16.0, 7.0]}));
    push("add", "5", "[[0,1]]");
    assert_eq!(
        mneme.json(&["pull", "t", "--keys", "5"])["rows"][0]["values"][1],
        2.0
    );
    mneme.ok(&["push", "t", "--mode", "delete", "--keys", "5"]);
    assert_eq!(
        mneme.json(&["pull", "t", "--keys", "5"])["rows"][0]["status"],
        "default"
    );
}

/// B040: `--missing error` exits 1, names up to ten keys, and prints no rows.
#[test]
fn missing_keys_are_named() {
    let dev = Dev::start();
    let mneme = dev.mneme();
    create(&mneme, "t", &["--init", "constant:3"]);
    mneme.ok(&[
        "push", "t", "--mode", "assign", "--keys", "1", "--values", "[[1,1]]",
    ]);
    let pull = |keys: &str, missing: &'static str| {
        ["pull", "t", "--keys", keys, "--missing", missing].map(str::to_owned)
    };
    mneme.refused(
        1,
        &pull(&format!("1,999,{MAX}"), "error"),
        &["999", MAX, "2 keys"],
    );
    let many: Vec<String> = (1000..1030).map(|k: u32| k.to_string()).collect();
    let refused = mneme.refused(
        1,
        &pull(&many.join(","), "error"),
        &["1000", "1009", "20 more"],
    );
    assert!(!refused.stderr.contains("1010"), "{refused:#?}");
    let found = mneme.ok(&pull("999", "init"));
    assert!(found.stdout.contains("found"), "{found:#?}");
    assert_eq!(mneme.json(&["table", "describe", "t"])["rows"], 2);
}

/// Errors leave stdout empty, with `--json` too unless it is JSON, and say what is wrong.
#[test]
fn wrong_rows_are_refused() {
    let dev = Dev::start();
    let mneme = dev.mneme();
    create(&mneme, "t", &["--optimizer", "sgd"]);
    let push = |keys: &str, values: &str| {
        let args = [
            "push", "t", "--mode", "gradient", "--keys", keys, "--values", values,
        ];
        let output = mneme.run(&args);
        assert!(matches!(output.code, 1 | 2), "{output:#?}");
        assert_eq!(output.stdout, "", "{output:#?}");
        output.stderr
    };
    assert!(push("1,2", "[[1,2]]").contains('2'));
    push("1", "[[1,2,3]]");
    push("1", "[1,2]");
    push("1", "nonsense");
    push("-1", "[[1,2]]");
    push("18446744073709551616", "[[1,2]]");
    push("1.5", "[[1,2]]");
    let not_finite = push("7", r#"[[1,"NaN"]]"#);
    assert!(not_finite.contains("key 7"), "{not_finite}");
    let json = mneme.run(&["pull", "nowhere", "--keys", "1", "--json"]);
    assert_eq!(json.code, 1);
    assert!(json.stdout.is_empty() || serde_json::from_str::<Value>(&json.stdout).is_ok());
    assert_eq!(mneme.json(&["table", "describe", "t"])["rows"], 0);
}

/// Byte tables show numbers, and take only bytes.
#[test]
fn byte_rows_are_numbers() {
    let dev = Dev::start();
    let mneme = dev.mneme();
    mneme.ok(&[
        "table", "create", "b", "--kind", "dense", "--rows", "4", "--dtype", "u8", "--dim", "3",
    ]);
    mneme.ok(&[
        "push",
        "b",
        "--mode",
        "assign",
        "--keys",
        "3",
        "--values",
        "[[0,128,255]]",
    ]);
    let rows = mneme.json(&["pull", "b", "--keys", "3,0"]);
    assert_eq!(rows["rows"][0]["values"], json!([0, 128, 255]));
    assert_eq!(
        rows["rows"][1],
        json!({"key": "0", "status": "found", "values": [0, 0, 0]})
    );
    for bad in ["[[0,1,256]]", "[[0,1,-1]]", "[[0,1,0.5]]"] {
        let output = mneme.run(&[
            "push", "b", "--mode", "assign", "--keys", "0", "--values", bad,
        ]);
        assert!(matches!(output.code, 1 | 2), "{output:#?}");
    }
    mneme.refused(1, &["pull", "b", "--keys", "4"], &["4", "4 rows"]);
}

/// `where --json` has all its fields, and exactly one path is chosen.
#[test]
fn where_tells_the_place_and_the_paths() {
    let dev = Dev::start();
    let mneme = dev.mneme();
    mneme.ok(&[
        "table", "create", "d", "--kind", "dense", "--rows", "100", "--dtype", "f32", "--dim", "8",
    ]);
    let place = mneme.json(&["where", "d", "42"]);
    for field in [
        "table",
        "key",
        "shard",
        "node",
        "region",
        "generation",
        "offset",
        "tier",
        "paths",
    ] {
        assert!(place.get(field).is_some(), "no {field} in {place:#}");
    }
    assert_eq!(
        (&place["table"], &place["tier"]),
        (&json!("d"), &json!("dram"))
    );
    assert_eq!(place["key"], "42");
    let paths = place["paths"].as_array().expect("a list");
    assert!(paths.iter().any(|p| p["name"] == "quic"), "{place:#}");
    assert_eq!(
        paths.iter().filter(|p| p["chosen"] == true).count(),
        1,
        "{place:#}"
    );
    assert!(
        paths.iter().all(|p| p["predicted_us"].is_number()),
        "{place:#}"
    );
    mneme.refused(1, &["where", "d", "100"], &["100"]);
    assert!(mneme.ok(&["where", "d", "42"]).stdout.contains("quic"));
}

/// A push from a file is the push of its keys and values.
#[test]
fn batches_come_from_files() {
    let dev = Dev::start();
    let mneme = dev.mneme();
    for name in ["a", "b"] {
        mneme.ok(&[
            "table",
            "create",
            name,
            "--kind",
            "hashed",
            "--dtype",
            "f32",
            "--dim",
            "2",
            "--optimizer",
            "sgd",
            "--opt",
            "lr=1",
        ]);
    }
    mneme.ok(&[
        "push",
        "a",
        "--mode",
        "assign",
        "--keys",
        "3,9",
        "--values",
        "[[1,2],[3,4]]",
    ]);
    let file = dev.data().join("batch.npz");
    let file = file.to_str().expect("UTF-8");
    mneme.ok(&["export", "a", file]);
    let values = || {
        let rows = mneme.json(&["pull", "b", "--keys", "3,9"])["rows"].clone();
        [rows[0]["values"].clone(), rows[1]["values"].clone()]
    };
    let json = |rows: [[f64; 2]; 2]| rows.map(|row| serde_json::json!(row));
    mneme.ok(&["push", "b", "--mode", "assign", "--file", file]);
    assert_eq!(values(), json([[1.0, 2.0], [3.0, 4.0]]));
    mneme.ok(&["push", "b", "--mode", "gradient", "--file", file]);
    assert_eq!(values(), json([[0.0, 0.0], [0.0, 0.0]]));
    mneme.ok(&["push", "b", "--mode", "delete", "--file", file]);
    let gone = mneme.json(&["pull", "b", "--keys", "3"]);
    assert_eq!(gone["rows"][0]["status"], "default");
    mneme.refused(
        2,
        &["push", "b", "--mode", "add", "--file", file, "--keys", "1"],
        &["--keys"],
    );
    mneme.refused(2, &["push", "b", "--mode", "add"], &["--keys"]);
    mneme.refused(
        1,
        &["push", "b", "--mode", "add", "--file", "absent.npz"],
        &["absent.npz"],
    );
}
