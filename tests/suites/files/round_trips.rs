//! What comes in goes out the same, whatever the format on the way.

use mneme_tests::files::{Tensor, read_safetensors, write_safetensors};
use serde_json::json;

use crate::Site;

/// dtypes with their safetensors word and bytes.
const DTYPES: [(&str, &str, usize); 7] = [
    ("f32", "F32", 4),
    ("f16", "F16", 2),
    ("bf16", "BF16", 2),
    ("f8e4m3", "F8_E4M3", 1),
    ("f8e5m2", "F8_E5M2", 1),
    ("i8", "I8", 1),
    ("u8", "U8", 1),
];

const ROWS: usize = 300;
const DIM: usize = 5;

/// Bytes of every kind: as numbers they are NaN, infinite and subnormal, too.
fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    std::iter::repeat_with(next).take(bytes).collect()
}

fn tensor(name: &str, dtype: &str, shape: &[usize], bytes: Vec<u8>) -> Tensor {
    Tensor {
        name: name.into(),
        dtype: dtype.into(),
        shape: shape.to_vec(),
        bytes,
    }
}

fn keys_tensor() -> Tensor {
    // Ascending, as exports have them; the first and the last of all keys among them.
    let mut keys: Vec<u64> = (0..ROWS as u64 - 1)
        .map(|i| i * 0x00D1_CE00_0BAD_CAFE)
        .collect();
    keys.push(u64::MAX);
    let bytes = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
    tensor("keys", "U64", &[ROWS], bytes)
}

/// Takes a file through a table to each format in turn, and back to the first.
fn chain(site: &Site, first: &str, formats: &[&str], words: &[&str]) {
    let mut from = first.to_owned();
    for format in formats {
        let to = site.text(&format!("out.{format}"));
        let keys = site.text("out.keys.npy");
        let mut import = vec!["import", "t", from.as_str()];
        import.extend_from_slice(words);
        if from.ends_with("out.npy") && std::path::Path::new(&keys).exists() {
            import.extend_from_slice(&["--keys", &keys]);
        }
        site.mneme.ok(&import);
        site.mneme.ok(&["export", "t", &to]);
        if words.contains(&"--create") {
            site.drop_table("t");
        }
        from = to;
    }
}

fn every_dtype(site: &Site, keyed: bool, seal: &[&str]) {
    for (dtype, word, bytes) in DTYPES {
        let rows = tensor("values", word, &[ROWS, DIM], noise(ROWS * DIM * bytes));
        let keys = keyed.then(keys_tensor);
        let tensors: Vec<Tensor> = keys.into_iter().chain([rows]).collect();
        write_safetensors(&site.path("in.safetensors"), &tensors);
        let words = [&["--create", "--dtype", dtype], seal].concat();
        let formats = ["npy", "npz", "parquet", "safetensors"];
        chain(site, &site.text("in.safetensors"), &formats, &words);
        let back = read_safetensors(&site.path("out.safetensors"));
        assert!(back == tensors, "{dtype} differs");
    }
}

#[test]
fn dense_tables_of_every_dtype_through_every_format() {
    every_dtype(&Site::start(), false, &["--seal"]);
}

#[test]
fn hashed_tables_of_every_dtype_through_every_format() {
    every_dtype(&Site::start(), true, &["--seal"]);
}

#[test]
fn mutable_tables_of_every_dtype_through_every_format() {
    every_dtype(&Site::start(), true, &[]);
}

/// Planes are a tensor or column each, by name, in any format that has names.
#[test]
fn planes_through_every_format_with_names() {
    let site = Site::start();
    site.mneme.ok(&[
        "table",
        "create",
        "t",
        "--kind",
        "hashed",
        "--plane",
        "codes:f8e4m3:16",
        "--plane",
        "scale:bf16:2",
        "--plane",
        "bias:f32:1",
    ]);
    let tensors = [
        tensor("bias", "F32", &[ROWS, 1], noise(ROWS * 4)),
        tensor("codes", "F8_E4M3", &[ROWS, 16], noise(ROWS * 16)),
        keys_tensor(),
        tensor("scale", "BF16", &[ROWS, 2], noise(ROWS * 4)),
    ];
    write_safetensors(&site.path("in.safetensors"), &tensors);
    let formats = ["npz", "parquet", "safetensors"];
    chain(&site, &site.text("in.safetensors"), &formats, &[]);
    let back = read_safetensors(&site.path("out.safetensors"));
    let sorted = |mut tensors: Vec<Tensor>| {
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        tensors
    };
    assert!(sorted(back) == sorted(tensors.to_vec()), "planes differ");
    let npy = site.text("out.npy");
    site.mneme
        .refused(1, &["export", "t", &npy], &["one dtype"]);
}

/// A table without rows keeps its shape through every format; B086: no rows is a number of rows.
#[test]
fn tables_without_rows() {
    let site = Site::start();
    let tensors = [
        tensor("keys", "U64", &[0], Vec::new()),
        tensor("values", "F32", &[0, 16], Vec::new()),
    ];
    write_safetensors(&site.path("in.safetensors"), &tensors);
    let formats = ["npy", "npz", "parquet", "safetensors"];
    chain(
        &site,
        &site.text("in.safetensors"),
        &formats,
        &["--create", "--seal"],
    );
    assert_eq!(read_safetensors(&site.path("out.safetensors")), tensors);
}

/// The same of dense tables, sealed and mutable: what they lack is rows, not a place.
#[test]
fn dense_tables_without_rows() {
    let site = Site::start();
    let tensors = [tensor("values", "F32", &[0, 16], Vec::new())];
    write_safetensors(&site.path("in.safetensors"), &tensors);
    let formats = ["npy", "npz", "parquet", "safetensors"];
    for words in [&["--create", "--seal"][..], &["--create"]] {
        chain(&site, &site.text("in.safetensors"), &formats, words);
        assert_eq!(read_safetensors(&site.path("out.safetensors")), tensors);
    }
    site.mneme
        .ok(&["import", "t", &site.text("out.npy"), "--create"]);
    let described = site.mneme.json(&["table", "describe", "t"]);
    assert_eq!(described["rows"], 0);
    let none = ["row 0 is out of range", "has 0 rows"];
    site.mneme.refused(1, &["pull", "t", "--keys", "0"], &none);
    site.mneme.refused(1, &["bench", "pull", "t"], &["no rows"]);
}

/// Exports name what they wrote; one row is not "1 rows".
#[test]
fn exports_say_what_they_wrote() {
    let site = Site::start();
    write_safetensors(
        &site.path("in.safetensors"),
        &[tensor("w", "F32", &[1, 2], noise(8))],
    );
    let import = ["import", "t", &site.text("in.safetensors"), "--create"];
    let said = site.mneme.ok(&import).stdout;
    assert!(said.contains("1 row,"), "{said}");
    let npy = site.text("out.npy");
    let exported = site.mneme.json(&["export", "t", &npy]);
    assert_eq!(
        exported,
        json!({"table": "t", "rows": 1, "bytes": 8, "files": [npy]})
    );
    let nowhere = site.text("no/such/folder/x.npy");
    let error = site
        .mneme
        .refused(1, &["export", "t", &nowhere], &[&nowhere]);
    assert!(!error.stderr.contains("/.x.npy"), "{error:#?}");
}
