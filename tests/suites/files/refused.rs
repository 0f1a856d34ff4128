//! Files that are not what they claim, or not what the table takes: each refused in one line, with
//! nothing stored.

use mneme_tests::files::{Tensor, f32_bytes, write_npy, write_safetensors};
use serde_json::json;

use crate::{Site, kept};

/// A byte of a kept file's rows is flipped, or its end is missing.
#[test]
fn damaged_containers() {
    let site = Site::start();
    let npz = kept("npz", "savez");
    let at = npz
        .windows(4)
        .position(|w| w == 5f32.to_le_bytes())
        .expect("a row");
    let mut flipped = npz.clone();
    flipped[at] ^= 1;
    let file = site.write("x.npz", &flipped);
    site.refused(&file, &[], &["'values.npy'", "checksum"]);
    site.write("x.npz", &npz[..npz.len() - 1]);
    site.refused(&file, &[], &["x.npz"]);
    site.write("x.npz", b"PK\x05\x06");
    site.refused(&file, &[], &["x.npz"]);
    let parquet = kept("parquet", "fixed");
    let file = site.write("x.parquet", &parquet[..parquet.len() - 1]);
    site.refused(&file, &[], &["x.parquet"]);
    site.write("x.parquet", &parquet[1..]);
    site.refused(&file, &[], &["x.parquet"]);
    let file = site.write("x.parquet", &kept("parquet", "nulls"));
    site.refused(&file, &[], &["'values'", "null"]);
    site.write("x.parquet", &kept("parquet", "ragged"));
    site.refused(&file, &[], &["'values'", "lists of several lengths"]);
    site.write("x.parquet", &kept("parquet", "negative_offset"));
    site.refused(&file, &[], &["x.parquet"]);
    site.write("x.parquet", &kept("parquet", "binary"));
    site.refused(&file, &[], &["'values'", "--dtype"]);
    let file = site.write("x.npy", &kept("npy", "pickle"));
    site.refused(&file, &[], &["pickled"]);
}

/// What has no name of a format, is not there, or is a folder of something else.
#[test]
fn names_that_are_no_files_of_rows() {
    let site = Site::start();
    site.refused(&site.write("x.pt", b"x"), &[], &["known format"]);
    site.refused(&site.text("gone.npz"), &[], &["gone.npz"]);
    site.write("empty/readme", b"");
    site.refused(&site.text("empty"), &[], &["manifest.json"]);
    let file = site.write("x.npy", &kept("npy", "f4"));
    site.refused(&file, &["--tensor", "w"], &["--tensor"]);
}

/// Unknown dtypes are named, shortly; other dtypes than the table's name both.
#[test]
fn dtypes_that_do_not_fit() {
    let site = Site::start();
    let tensor = |dtype: &str, bytes: usize| Tensor {
        name: "w".into(),
        dtype: dtype.into(),
        shape: vec![2, 2],
        bytes: vec![0; bytes],
    };
    let file = site.text("x.safetensors");
    for (dtype, bytes) in [("F64", 32), ("F13", 16), ("I32", 16)] {
        write_safetensors(&site.path("x.safetensors"), &[tensor(dtype, bytes)]);
        let import = ["import", "bad", &file, "--create", "--seal"];
        let output = site.mneme.refused(1, &import, &[dtype]);
        assert!(output.stderr.len() < 300, "{output:#?}");
    }
    site.mneme.ok(&[
        "table", "create", "t", "--kind", "dense", "--rows", "2", "--dtype", "bf16", "--dim", "2",
    ]);
    for (dtype, word, bytes) in [("F32", "f32", 16), ("F16", "f16", 8), ("U8", "u8", 4)] {
        write_safetensors(&site.path("x.safetensors"), &[tensor(dtype, bytes)]);
        for seal in [&[][..], &["--seal"]] {
            let import = [&["import", "t", &file], seal].concat();
            site.mneme.refused(1, &import, &[word, "bf16"]);
        }
        let says = [dtype, "bf16"];
        site.mneme.refused(
            1,
            &["import", "t", &file, "--dtype", "bf16"],
            &says[..usize::from(dtype != "U8") * 2],
        );
    }
    assert_eq!(site.values("t", "0"), [json!([0.0, 0.0])]);
}

/// A refused import leaves a table that is there as it was: rows, state, generation.
#[test]
fn tables_stay_as_they_were() {
    let site = Site::start();
    let rows = site.path("rows.npy");
    let keys = site.path("keys.npy");
    let (rows_text, keys_text) = (site.text("rows.npy"), site.text("keys.npy"));
    let write_keys = |list: &[u64]| {
        let bytes: Vec<u8> = list.iter().flat_map(|key| key.to_le_bytes()).collect();
        write_npy(&keys, "<u8", &[list.len()], &bytes);
    };
    write_npy(&rows, "<f4", &[3, 1], &f32_bytes(&[10.0, 20.0, 30.0]));
    write_keys(&[1, 2, 3]);
    let import = ["import", "t", &rows_text, "--keys", &keys_text];
    site.mneme.ok(&[&import[..], &["--create"]].concat());
    let before = site.mneme.json(&["table", "describe", "t"]);
    write_npy(&rows, "<f4", &[3, 1], &f32_bytes(&[11.0, 21.0, 31.0]));
    // B089, two keys for three rows, rows without keys.
    write_keys(&[1, 2, 1]);
    site.mneme.refused(
        1,
        &import,
        &["key 1 at positions 0 and 2", "--on-duplicate"],
    );
    write_keys(&[1, 2]);
    site.mneme.refused(1, &import, &["2 keys", "3 rows"]);
    site.mneme.refused(1, &import[..3], &["--keys"]);
    assert_eq!(site.mneme.json(&["table", "describe", "t"]), before);
    assert_eq!(
        site.values("t", "1,2,3"),
        [json!([10.0]), json!([20.0]), json!([30.0])]
    );
    // B089: which of two rows counts is the user's to say, also into a table that is there.
    write_keys(&[1, 2, 1]);
    for (policy, value) in [("first", 11.0), ("last", 31.0)] {
        site.mneme
            .ok(&[&import[..], &["--on-duplicate", policy]].concat());
        assert_eq!(
            site.values("t", "1,2,3"),
            [json!([value]), json!([21.0]), json!([30.0])]
        );
    }
}

/// More than there is room for, in every format that could claim it: refused before a table is
/// made.
#[test]
fn more_than_there_is_room_for() {
    let site = Site {
        dev: mneme_tests::Dev::start_with(&["--nodes", "1", "--memory", "dram:16MiB"]),
        mneme: mneme_tests::Mneme::new(),
    };
    let site = Site {
        mneme: site.dev.mneme(),
        ..site
    };
    let rows = 40_000;
    let bytes = vec![0; rows * 1024];
    write_npy(&site.path("x.npy"), "<f4", &[rows, 256], &bytes);
    site.refused(&site.text("x.npy"), &[], &["free"]);
    site.write("r/rows.bin", &bytes);
    let manifest = format!(
        r#"{{"mneme_rows": 1, "rows": {rows}, "dtype": "f32", "dim": 256,
            "values": {{"file": "rows.bin"}}}}"#
    );
    let file = site.write("r/manifest.json", manifest.as_bytes());
    site.refused(&file, &[], &["free"]);
}
