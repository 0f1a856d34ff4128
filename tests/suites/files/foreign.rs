//! Files that other programs wrote, and folders as they lay them out.

use mneme_tests::files::{f32_bytes, write_npy};
use serde_json::json;

use crate::{Site, kept};

/// Row 1 of arange(12).reshape(3, 4), which all kept files hold, with the keys 7, 2^64 - 1 and 0.
const ROW: [f64; 4] = [4.0, 5.0, 6.0, 7.0];

/// A file of the corpora, what it is called here, how it is imported, and the key of row 1.
type Foreign = (
    &'static str,
    &'static str,
    &'static str,
    &'static [&'static str],
    &'static str,
);

const LAST: &str = "18446744073709551615";

const FOREIGN: [Foreign; 15] = [
    ("npy", "f4", "x.npy", &[], "1"),
    ("npy", "fortran", "x.npy", &[], "1"),
    ("npy", "big", "x.npy", &[], "1"),
    ("npy", "v2", "x.npy", &[], "1"),
    ("npy", "v3", "x.npy", &[], "1"),
    ("npy", "bf16", "x.npy", &["--dtype", "bf16"], "1"),
    ("npy", "f8", "x.npy", &["--dtype", "f8e4m3"], "1"),
    ("npz", "savez", "x.npz", &[], LAST),
    ("npz", "compressed", "x.npz", &[], LAST),
    ("parquet", "fixed", "x.parquet", &[], LAST),
    ("parquet", "list", "x.parquet", &[], LAST),
    ("parquet", "columns", "x.parquet", &[], LAST),
    ("parquet", "f16", "x.parquet", &[], "1"),
    ("parquet", "i8", "x.parquet", &[], "1"),
    ("parquet", "binary", "x.parquet", &["--dtype", "bf16"], LAST),
];

/// B086 and more: numpy's and pyarrow's own files.
#[test]
fn files_of_numpy_and_pyarrow() {
    let site = Site::start();
    for (format, kept_as, name, words, key) in FOREIGN {
        let file = site.write(name, &kept(format, kept_as));
        let import = ["import", "t", &file, "--create", "--seal"];
        site.mneme.ok(&[&import[..], words].concat());
        let row = &site.values("t", key)[0];
        let values = row.as_array().expect("values").iter();
        let values: Vec<f64> = values.map(|v| v.as_f64().expect("a number")).collect();
        assert_eq!(values, ROW, "{format}/{kept_as}");
        site.drop_table("t");
    }
}

/// B086: `<V2` bytes of bf16.
#[test]
fn untyped_bytes_want_a_word() {
    let site = Site::start();
    let file = site.path("x.npy");
    write_npy(
        &file,
        "<V2",
        &[2, 2],
        &[0, 0, 0x80, 0x3F, 0, 0x40, 0x40, 0x40],
    );
    let text = site.text("x.npy");
    site.refused(&text, &[], &["<V2", "--dtype", "bf16"]);
    site.refused(&text, &["--dtype", "f32"], &["<V2", "f32"]);
    site.mneme
        .ok(&["import", "t", &text, "--create", "--dtype", "bf16"]);
    assert_eq!(
        site.values("t", "0,1"),
        [json!([0.0, 1.0]), json!([2.0, 3.0])]
    );
}

/// Tensors over several files, by index or by folder.
#[test]
fn sharded_safetensors() {
    let site = Site::start();
    let shard = |name: &str, values: &[f32]| {
        let bytes = f32_bytes(values);
        let header = format!(
            r#"{{"{name}":{{"dtype":"F32","shape":[2,{}],"data_offsets":[0,{}]}}}}"#,
            values.len() / 2,
            bytes.len()
        );
        [
            &(header.len() as u64).to_le_bytes()[..],
            header.as_bytes(),
            &bytes,
        ]
        .concat()
    };
    site.write(
        "m/model-00001-of-00002.safetensors",
        &shard("a", &[1.0, 2.0]),
    );
    site.write(
        "m/model-00002-of-00002.safetensors",
        &shard("b", &[3.0, 4.0, 5.0, 6.0]),
    );
    let map =
        r#"{"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}"#;
    let index = |map: &str| format!(r#"{{"metadata": {{"total_size": 24}}, "weight_map": {map}}}"#);
    let file = site.write("m/model.safetensors.index.json", index(map).as_bytes());
    site.refused(&file, &[], &["--tensor", "a, b"]);
    for from in [site.text("m"), file.clone()] {
        site.mneme
            .ok(&["import", "t", &from, "--tensor", "b", "--create", "--seal"]);
        assert_eq!(site.values("t", "1"), [json!([5.0, 6.0])]);
        site.drop_table("t");
    }
    for (map, says) in [
        (
            r#"{"a": "model-00001-of-00002.safetensors", "c": "model-00001-of-00002.safetensors"}"#,
            "'c'",
        ),
        (r#"{"a": "../a.safetensors"}"#, "no name of a file"),
        (r#"{"a": "gone.safetensors"}"#, "gone.safetensors"),
        (r#"{"b": "model-00001-of-00002.safetensors"}"#, "'a'"),
        (
            r#"{"a": "x.safetensors", "a": "x.safetensors"}"#,
            "stands twice",
        ),
    ] {
        site.write("m/model.safetensors.index.json", index(map).as_bytes());
        site.refused(&file, &["--tensor", "a"], &[says]);
    }
}

/// HugeCTR's folder: `key` and `emb_vector`, without headers.
#[test]
fn hugectr_folders() {
    let site = Site::start();
    let keys: Vec<u8> = [5i64, -1].iter().flat_map(|k| k.to_le_bytes()).collect();
    site.write("h/key", &keys);
    site.write("h/emb_vector", &f32_bytes(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
    let folder = site.text("h");
    site.mneme
        .ok(&["import", "t", &folder, "--create", "--seal"]);
    let rows = site.values("t", &format!("5,{LAST}"));
    assert_eq!(rows, [json!([1.0, 2.0, 3.0]), json!([4.0, 5.0, 6.0])]);
    site.refused(&folder, &["--dtype", "f16"], &["f32", "f16"]);
    site.write("h/emb_vector", &[0; 23]);
    site.refused(&folder, &[], &["emb_vector", "23 B"]);
    site.write("h/key", &keys[1..]);
    site.refused(&folder, &[], &["key", "15 B"]);
}

/// Raw rows with a manifest.
#[test]
fn raw_rows_with_a_manifest() {
    let site = Site::start();
    site.write("r/rows.bin", b"123456789");
    site.write(
        "r/keys.bin",
        &[
            7, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0,
        ],
    );
    // 0xe3069283 is the check value of CRC-32C over "123456789".
    let good = r#"{"mneme_rows": 1, "rows": 3, "dtype": "u8", "dim": 3,
        "values": {"file": "rows.bin", "crc32c": "e3069283"}, "keys": {"file": "keys.bin"}}"#;
    let manifest = site.write("r/manifest.json", good.as_bytes());
    for from in [site.text("r"), manifest.clone()] {
        site.mneme.ok(&["import", "t", &from, "--create", "--seal"]);
        assert_eq!(site.values("t", "8"), [json!([52, 53, 54])]);
        site.drop_table("t");
    }
    let planes = r#"{"mneme_rows": 1, "rows": 3, "values": {"file": "rows.bin"},
        "planes": [{"name": "a", "dtype": "u8", "dim": 1},
            {"name": "b", "dtype": "i8", "dim": 2}]}"#;
    site.write("r/manifest.json", planes.as_bytes());
    site.mneme.ok(&["import", "t", &manifest, "--create"]);
    assert_eq!(site.values("t", "2"), [json!([55, 56, 57])]);
    site.drop_table("t");
    for (from, to, says) in [
        ("\"mneme_rows\": 1", "\"mneme_rows\": 2", "version 2"),
        ("e3069283", "e3069284", "damaged"),
        ("e3069283", "x", "eight hexadecimal digits"),
        ("\"rows\": 3", "\"rows\": 4", "9 B of 'rows.bin'"),
        ("\"dim\": 3", "\"dim\": 18446744073709551615", "rows of"),
        ("rows.bin", "../rows.bin", "no name of a file"),
        ("keys.bin", "rows.bin", "9 B of 'rows.bin'"),
        ("u8", "u9", "unknown"),
        ("\"dim\": 3", "\"dim\": 3, \"x\": 1", "unknown field"),
        ("\"dim\": 3,", "", "'dtype' and 'dim'"),
    ] {
        assert!(good.contains(from));
        site.write("r/manifest.json", good.replace(from, to).as_bytes());
        site.refused(&manifest, &[], &[says]);
    }
}
