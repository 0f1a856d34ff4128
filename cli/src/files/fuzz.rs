//! What fuzzers call: every parser of a file format over any bytes. A parser refuses or reads
//! them; it never panics, and allocates no more than the bytes justify (I-12).
//!
//! `fuzz/` has a libFuzzer target for each, and the tests run all of them over the kept corpora
//! with seeded mutations.

use std::path::Path;

use super::{Wanted, open, read_keys};

/// A target: its name, and what it does with any bytes.
pub type Target = (&'static str, fn(&[u8]));

/// The targets by name, which is also that of the corpus.
pub const TARGETS: &[Target] = &[
    ("safetensors", safetensors),
    ("safetensors_index", safetensors_index),
    ("npy", npy),
    ("npz", npz),
    ("parquet", parquet),
    ("manifest", manifest),
    ("hugectr", hugectr),
];

/// Rows that are read of a file that opens.
const ROWS_READ_MAX: u64 = 1000;

/// A file of safetensors.
pub fn safetensors(data: &[u8]) {
    alone("x.safetensors", data);
}

/// An index of safetensors files beside two valid ones.
pub fn safetensors_index(data: &[u8]) {
    let shard = |name: &str| {
        let json = format!(r#"{{"{name}":{{"dtype":"U8","shape":[2,4],"data_offsets":[0,8]}}}}"#);
        let length = (json.len() as u64).to_le_bytes();
        [&length[..], json.as_bytes(), &[7; 8]].concat()
    };
    let files = [
        ("x.safetensors.index.json", data),
        ("a.safetensors", &shard("a")[..]),
        ("b.safetensors", &shard("b")[..]),
    ];
    beside(&files, |folder| read(&folder.join(files[0].0)));
}

/// An array of rows, or of keys.
pub fn npy(data: &[u8]) {
    beside(&[("x.npy", data)], |folder| {
        let path = folder.join("x.npy");
        read(&path);
        // Both outcomes are fine: there is nothing to do with either.
        let _ = read_keys(&path);
    });
}

/// A container of arrays.
pub fn npz(data: &[u8]) {
    alone("x.npz", data);
}

/// A parquet file.
pub fn parquet(data: &[u8]) {
    alone("x.parquet", data);
}

/// A manifest beside 64 B of rows and two keys.
pub fn manifest(data: &[u8]) {
    let files = [
        ("manifest.json", data),
        ("rows.bin", &[1; 64]),
        ("keys.bin", &[2; 16]),
    ];
    beside(&files, read);
}

/// A folder of HugeCTR; the first byte says how many of the others are the keys'.
pub fn hugectr(data: &[u8]) {
    let Some((&keys, rest)) = data.split_first() else {
        return;
    };
    let (keys, rows) = rest.split_at(rest.len().min(usize::from(keys)));
    beside(&[("key", keys), ("emb_vector", rows)], read);
}

fn alone(name: &str, data: &[u8]) {
    beside(&[(name, data)], |folder| read(&folder.join(name)));
}

/// Makes a folder of these files for a moment.
fn beside(files: &[(&str, &[u8])], look: impl FnOnce(&Path)) {
    let folder = tempfile::tempdir().expect("a fuzzer's machine has room for a folder");
    for (name, data) in files {
        std::fs::write(folder.path().join(name), data).expect("and for small files");
    }
    look(folder.path());
}

/// Opens a file with and without a word for its bytes, and reads what it then offers.
fn read(path: &Path) {
    use mneme_proto::schema::Dtype;
    for dtype in [None, Some(Dtype::Bf16), Some(Dtype::F8e4m3)] {
        let wanted = Wanted {
            dtype,
            ..Wanted::default()
        };
        let Ok(mut file) = open(path, &wanted) else {
            continue;
        };
        let rows = file.rows().min(ROWS_READ_MAX);
        let mut out = vec![0; rows as usize * file.row_bytes()];
        // A file that opened may still fail to be read: damage that only decoding finds.
        let _ = file.read(0, &mut out);
        let _ = file.take_keys();
    }
}
