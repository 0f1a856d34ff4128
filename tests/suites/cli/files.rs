//! Import and export: bit for bit there and back, or refused with nothing stored.

use std::path::{Path, PathBuf};

use mneme_tests::files::{
    Tensor, f32_bytes, read_npy, read_safetensors, write_npy, write_safetensors,
};
use mneme_tests::{Dev, Mneme};
use serde_json::Value;

/// Rows whose every element differs, odd bits among them.
fn sample(rows: usize, dim: usize) -> Vec<f32> {
    let odd = [0x0000_0001, 0x8000_0000, 0x7FC0_0001, 0xFF80_0000].map(f32::from_bits);
    let plain = (0..rows * dim - odd.len()).map(|i| i as f32 * 0.37 - 5.0);
    odd.into_iter().chain(plain).collect()
}

/// A folder for files, and the path of one in it.
fn path(dev: &Dev, name: &str) -> (PathBuf, String) {
    let path = dev.data().join(name);
    let text = path.to_str().expect("UTF-8").to_owned();
    (path, text)
}

fn export(mneme: &Mneme, table: &str, to: &str) {
    mneme.ok(&["export", table, to]);
}

#[test]
fn dense_safetensors_there_and_back() {
    let dev = Dev::start();
    let mneme = dev.mneme();
    let (from, from_text) = path(&dev, "in.safetensors");
    let other = Tensor::f32("other", &[2, 2], [1.0; 4]);
    let wanted = Tensor::f32("emb.weight", &[1000, 16], sample(1000, 16));
    write_safetensors(&from, &[other, wanted.clone()]);
    // Two tensors: which one must be said.
    mneme.refused(1, &["import", "t", &from_text, "--create"], &["emb.weight"]);
    mneme.ok(&[
        "import",
        "t",
        &from_text,
        "--tensor",
        "emb.weight",
        "--create",
        "--seal",
    ]);
    let shown = mneme.json(&["table", "describe", "t"]);
    assert_eq!(
        (&shown["rows"], &shown["state"]),
        (&1000.into(), &"sealed".into()),
        "{shown:#}"
    );
    let (to, to_text) = path(&dev, "out.safetensors");
    export(&mneme, "t", &to_text);
    let back = read_safetensors(&to);
    assert_eq!(back.len(), 1);
    assert_eq!(
        (&back[0].dtype, &back[0].shape),
        (&wanted.dtype, &wanted.shape)
    );
    assert!(back[0].bytes == wanted.bytes, "bytes differ");
}

#[test]
fn dense_npy_there_and_back() {
    let dev = Dev::start();
    let mneme = dev.mneme();
    let (from, from_text) = path(&dev, "in.npy");
    let bytes = f32_bytes(&sample(500, 6));
    write_npy(&from, "<f4", &[500, 6], &bytes);
    mneme.ok(&["import", "t", &from_text, "--create"]);
    assert_eq!(mneme.json(&["table", "describe", "t"])["state"], "mutable");
    let (to, to_text) = path(&dev, "out.npy");
    export(&mneme, "t", &to_text);
    let (header, back) = read_npy(&to);
    assert!(
        header.contains("'<f4'") && header.contains("(500, 6)"),
        "{header}"
    );
    assert!(back == bytes, "bytes differ");
}

#[test]
fn byte_tables_there_and_back() {
    let dev = Dev::start();
    let mneme = dev.mneme();
    let (from, from_text) = path(&dev, "in.npy");
    let bytes: Vec<u8> = (0..264 * 300).map(|i| (i % 251) as u8).collect();
    write_npy(&from, "|u1", &[300, 264], &bytes);
    mneme.ok(&["import", "t", &from_text, "--create", "--seal"]);
    let (to, to_text) = path(&dev, "out.safetensors");
    export(&mneme, "t", &to_text);
    let back = read_safetensors(&to);
    assert_eq!(
        (back[0].dtype.as_str(), back[0].shape.as_slice()),
        ("U8", &[300, 264][..])
    );
    assert!(back[0].bytes == bytes, "bytes differ");
}

/// Keys make a table hashed; an export holds `keys` and `values`, in any order of rows.
#[test]
fn hashed_tables_there_and_back() {
    let dev = Dev::start();
    let mneme = dev.mneme();
    let keys: Vec<u64> = (0..400)
        .map(|i| (i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15))
        .collect();
    let values = sample(400, 3);
    let (from, from_text) = path(&dev, "rows.npy");
    let (key_file, key_text) = path(&dev, "keys.npy");
    write_npy(&from, "<f4", &[400, 3], &f32_bytes(&values));
    let key_bytes: Vec<u8> = keys.iter().flat_map(|k| k.to_le_bytes()).collect();
    write_npy(&key_file, "<u8", &[400], &key_bytes);
    let import = [
        "import", "t", &from_text, "--keys", &key_text, "--create", "--seal",
    ];
    mneme.ok(&import);
    assert_eq!(mneme.json(&["table", "describe", "t"])["kind"], "hashed");
    let (to, to_text) = path(&dev, "out.safetensors");
    export(&mneme, "t", &to_text);
    let mut back = exported_rows(&to, 3);
    back.sort();
    let rows = f32_bytes(&values);
    let mut wanted: Vec<(u64, Vec<u8>)> = keys
        .iter()
        .zip(rows.chunks(12))
        .map(|(k, row)| (*k, row.to_vec()))
        .collect();
    wanted.sort();
    assert!(back == wanted, "rows differ");
}

/// Keys and rows of a hashed export.
fn exported_rows(file: &Path, dim: usize) -> Vec<(u64, Vec<u8>)> {
    let tensors = read_safetensors(file);
    let named = |name: &str| tensors.iter().find(|t| t.name == name).expect("a tensor");
    let (keys, values) = (named("keys"), named("values"));
    let keys = keys
        .bytes
        .chunks(8)
        .map(|k| u64::from_le_bytes(k.try_into().expect("8 bytes")));
    keys.zip(values.bytes.chunks(dim * 4).map(<[u8]>::to_vec))
        .collect()
}

/// B089: a key twice in a file is refused, naming it, unless the user says which counts.
#[test]
fn duplicate_keys_in_a_file() {
    let dev = Dev::start();
    let mneme = dev.mneme();
    let (from, from_text) = path(&dev, "rows.npy");
    let (key_file, key_text) = path(&dev, "keys.npy");
    write_npy(&from, "<f4", &[3, 1], &f32_bytes(&[10.0, 20.0, 30.0]));
    let keys: Vec<u8> = [1_u64, 2, 1].iter().flat_map(|k| k.to_le_bytes()).collect();
    write_npy(&key_file, "<u8", &[3], &keys);
    let import = [
        "import", "t", &from_text, "--keys", &key_text, "--create", "--seal",
    ];
    mneme.refused(1, &import, &["key 1", "0", "2"]);
    assert_eq!(
        mneme.json(&["table", "list"])["tables"],
        Value::Array(vec![])
    );
    for (policy, wanted) in [("first", 10.0), ("last", 30.0)] {
        mneme.ok(&[&import[..], &["--on-duplicate", policy]].concat());
        let rows = mneme.json(&["pull", "t", "--keys", "1,2"]);
        assert_eq!(
            (&rows["rows"][0]["values"][0], &rows["rows"][1]["values"][0]),
            (&wanted.into(), &20.0.into())
        );
        mneme.ok(&["table", "drop", "t"]);
    }
}

/// I-8: a new version replaces the old one whole; a refused one leaves it as it was.
#[test]
fn a_new_version_replaces_the_old_one() {
    let dev = Dev::start();
    let mneme = dev.mneme();
    let (file, text) = path(&dev, "t.npy");
    let import = ["import", "t", &text, "--seal"];
    write_npy(&file, "<f4", &[4, 2], &f32_bytes(&[1.0; 8]));
    mneme.ok(&[&import[..], &["--create"]].concat());
    mneme.refused(1, &[&import[..], &["--create"]].concat(), &["'t'"]);
    write_npy(&file, "<f4", &[4, 2], &f32_bytes(&[2.0; 8]));
    mneme.ok(&import);
    let pull = || mneme.json(&["pull", "t", "--keys", "0,3"])["rows"][1]["values"][1].clone();
    assert_eq!(pull(), 2.0);
    for shape in [[4, 3], [5, 2], [3, 2]] {
        write_npy(
            &file,
            "<f4",
            &shape,
            &f32_bytes(&vec![3.0; shape[0] * shape[1]]),
        );
        mneme.refused(1, &import, &[]);
        assert_eq!(pull(), 2.0);
    }
}

/// More rows than the pools have room for: refused before the first is stored.
#[test]
fn what_does_not_fit_is_refused_first() {
    let dev = Dev::start_with(&["--nodes", "1", "--memory", "dram:16MiB"]);
    let mneme = dev.mneme();
    let (file, text) = path(&dev, "big.npy");
    let rows = 40_000;
    write_npy(&file, "<f4", &[rows, 256], &vec![0; rows * 1024]);
    mneme.refused(1, &["import", "t", &text, "--create", "--seal"], &[]);
    assert_eq!(
        mneme.json(&["table", "list"])["tables"],
        Value::Array(vec![])
    );
    let status = mneme.json(&["status"]);
    let used = status.to_string();
    assert!(used.contains("used_bytes"), "{status:#}");
    mneme.ok(&[
        "table", "create", "s", "--kind", "hashed", "--dtype", "f32", "--dim", "2",
    ]);
    mneme.ok(&[
        "push", "s", "--mode", "assign", "--keys", "1", "--values", "[[1,2]]",
    ]);
}
