//! B086 and the refusals of damaged files; round trips against the `safetensors` crate.

use std::path::PathBuf;

use mneme_proto::schema::{Dtype, Plane};
use proptest::prelude::*;

use super::write::keys_path;
use super::{open as open_wanted, *};

/// Opens a file for nothing but itself, or for one of its tensors.
fn open(path: &Path, tensor: Option<&str>, planes: Option<&[Plane]>) -> Result<RowFile, FileError> {
    let wanted = Wanted {
        tensor,
        planes,
        dtype: None,
    };
    open_wanted(path, &wanted)
}

struct Dir(tempfile::TempDir);

impl Dir {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary directory"))
    }

    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, bytes).expect("written");
        path
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path()).expect("a folder");
        let mut names: Vec<String> = entries
            .map(|e| {
                e.expect("an entry")
                    .file_name()
                    .into_string()
                    .expect("UTF-8")
            })
            .collect();
        names.sort();
        names
    }
}

fn npy_file(version: u8, dict: &str, data: &[u8]) -> Vec<u8> {
    let mut out = b"\x93NUMPY".to_vec();
    out.extend_from_slice(&[version, 0]);
    if version == 1 {
        out.extend_from_slice(&(dict.len() as u16).to_le_bytes());
    } else {
        out.extend_from_slice(&(dict.len() as u32).to_le_bytes());
    }
    out.extend_from_slice(dict.as_bytes());
    out.extend_from_slice(data);
    out
}

fn dict(descr: &str, fortran: bool, shape: &str) -> String {
    let fortran = if fortran { "True" } else { "False" };
    format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}\n")
}

fn floats(values: impl IntoIterator<Item = u16>) -> Vec<u8> {
    values
        .into_iter()
        .flat_map(|v| f32::from(v).to_le_bytes())
        .collect()
}

fn rows_of(file: &mut RowFile, first: u64, count: usize) -> Vec<u8> {
    let mut out = vec![0; count * file.row_bytes()];
    file.read(first, &mut out).expect("rows");
    out
}

/// B086: C order, Fortran order and big-endian give the same rows, in every version.
#[test]
fn npy_orders_and_endianness() {
    let dir = Dir::new();
    let c: Vec<u16> = (0..12).collect();
    let f = [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11];
    let big: Vec<u8> = c.iter().flat_map(|&v| f32::from(v).to_be_bytes()).collect();
    for version in [1, 2, 3] {
        for (descr, fortran, data) in [
            ("<f4", false, floats(c.clone())),
            ("<f4", true, floats(f)),
            (">f4", false, big.clone()),
        ] {
            let bytes = npy_file(version, &dict(descr, fortran, "(3, 4)"), &data);
            let mut file = open(&dir.file("a.npy", &bytes), None, None).expect("opens");
            assert_eq!((file.rows(), file.row_bytes()), (3, 16));
            assert_eq!(rows_of(&mut file, 0, 3), floats(0..12));
            assert_eq!(rows_of(&mut file, 1, 1), floats(4..8), "{descr} {fortran}");
        }
    }
}

/// B086: what is no 2-D array of a known dtype is refused, naming what was found.
#[test]
fn npy_refusals() {
    let dir = Dir::new();
    for (descr, shape, bytes, says) in [
        ("<f4", "()", 4, "0-D"),
        ("<f4", "(4,)", 16, "1-D"),
        ("<f4", "(1, 2, 2)", 16, "3-D"),
        ("<f4", "(4, 0)", 0, "rows of 0 elements"),
        ("|O", "(2, 2)", 99, "pickled"),
        ("<f8", "(2, 2)", 32, "<f8; tables take f32, f16"),
        ("<V2", "(2, 2)", 8, "--dtype f16 or bf16"),
        ("<f4", "(3, 4)", 47, "describes 178 B, the file has 177 B"),
        ("<f4", "(3, 4)", 49, "describes 178 B, the file has 179 B"),
        (
            "<f4",
            "(1099511627776, 1099511627776)",
            0,
            "no size in 64 bits",
        ),
        ("<f4", "(4611686018427387903, 4)", 0, "no size in 64 bits"),
    ] {
        let mut header = dict(descr, false, shape);
        if shape == "(3, 4)" {
            header = format!("{header:<120}");
        }
        let bytes = npy_file(1, &header, &vec![0; bytes]);
        let error = open(&dir.file("a.npy", &bytes), None, None).expect_err(shape);
        assert!(error.to_string().contains(says), "{error}");
        assert!(!error.to_string().contains('\n'));
    }
    let structured = "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2, 2)}";
    let bytes = npy_file(1, structured, &[0; 16]);
    let error = open(&dir.file("a.npy", &bytes), None, None).expect_err("structured");
    assert!(error.to_string().contains("structured"), "{error}");
    for bytes in [
        &b""[..],
        b"\x93NUMPY\x01\x00",
        b"\x93NUMPX\x01\x00\x02\x00{}",
        &[0xff; 64],
    ] {
        open(&dir.file("a.npy", bytes), None, None).expect_err("no npy file");
    }
    let claims = npy_file(2, "", b"");
    let mut claims = [&claims[..8], &u32::MAX.to_le_bytes()].concat();
    claims.resize(64, b' ');
    let error = open(&dir.file("a.npy", &claims), None, None).expect_err("4 GiB header");
    assert!(error.to_string().contains("over the limit"), "{error}");
}

/// B086: no rows is a legal number of rows.
#[test]
fn npy_without_rows() {
    let dir = Dir::new();
    let bytes = npy_file(1, &dict("<f4", false, "(0, 16)"), &[]);
    let mut file = open(&dir.file("a.npy", &bytes), None, None).expect("opens");
    assert_eq!((file.rows(), file.columns()[0].width), (0, 16));
    assert_eq!(rows_of(&mut file, 0, 0), [0u8; 0]);
}

/// Signed keys are their two's complement: -1 is 2^64 - 1.
#[test]
fn npy_keys() {
    let dir = Dir::new();
    let data: Vec<u8> = [-1i64, 7].iter().flat_map(|k| k.to_le_bytes()).collect();
    let bytes = npy_file(1, &dict("<i8", false, "(2,)"), &data);
    let keys = read_keys(&dir.file("k.npy", &bytes)).expect("keys");
    assert_eq!(keys, [u64::MAX, 7]);
    let data: Vec<u8> = [1u64, 1 << 63]
        .iter()
        .flat_map(|k| k.to_be_bytes())
        .collect();
    let bytes = npy_file(1, &dict(">u8", false, "(2,)"), &data);
    let keys = read_keys(&dir.file("k.npy", &bytes)).expect("keys");
    assert_eq!(keys, [1, 1 << 63]);
    for (descr, shape, bytes) in [
        ("<u8", "(2, 1)", 16),
        ("<f8", "(2,)", 16),
        ("<u4", "(2,)", 8),
    ] {
        let bytes = npy_file(1, &dict(descr, false, shape), &vec![0; bytes]);
        let error = read_keys(&dir.file("k.npy", &bytes)).expect_err("no keys");
        assert!(
            error.to_string().contains("keys are 1-D u64 or i64"),
            "{error}"
        );
    }
}

fn safetensors_file(json: &str, data: &[u8]) -> Vec<u8> {
    let mut out = (json.len() as u64).to_le_bytes().to_vec();
    out.extend_from_slice(json.as_bytes());
    out.extend_from_slice(data);
    out
}

/// A tensor of a header: dtype, shape, first and end byte.
fn tensor(name: &str, dtype: &str, shape: &str, from: u64, to: u64) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{from},{to}]}}"#)
}

/// The one line by which a file of this header and as many zeros is refused.
fn refusal(dir: &Dir, json: &str, bytes: usize) -> String {
    let path = dir.file("a.safetensors", &safetensors_file(json, &vec![0; bytes]));
    let error = open(&path, None, None).expect_err(json).to_string();
    assert!(!error.contains('\n'), "{error}");
    error
}

/// Duplicate names, overlaps, holes and sizes that do not match are refused.
#[test]
fn safetensors_layout_refusals() {
    let dir = Dir::new();
    let a = tensor("a", "F32", "[2,2]", 0, 16);
    let b = |from, to| tensor("b", "U8", "[1,8]", from, to);
    let alone = |shape, from, to| tensor("a", "F32", shape, from, to);
    for (tensors, bytes, says) in [
        (format!("{a},{a}"), 16, "'a' stands twice"),
        (format!("{a},{}", b(8, 16)), 16, "'b' overlaps tensor 'a'"),
        (
            format!("{a},{}", b(24, 32)),
            32,
            "8 B of nothing after tensor 'a'",
        ),
        (alone("[2,2]", 8, 24), 24, "8 B of nothing after the header"),
        (a.clone(), 15, "the file has"),
        (a.clone(), 17, "the file has"),
        (alone("[2,3]", 0, 16), 16, "takes 24 B"),
        (alone("[2,2]", 0, 8), 8, "span 0..8"),
        (alone("[2,2]", 16, 0), 16, "16 B of nothing"),
        (
            alone("[1099511627776,1099511627776]", 0, 16),
            16,
            "no size in 64 bits",
        ),
    ] {
        let error = refusal(&dir, &format!("{{{tensors}}}"), bytes);
        assert!(error.contains(says), "{tensors}: {error}");
    }
}

/// What is no header, or describes no rows that a table takes, is refused.
#[test]
fn safetensors_content_refusals() {
    let dir = Dir::new();
    let alone = |dtype, shape| format!("{{{}}}", tensor("a", dtype, shape, 0, 16));
    for (json, bytes, says) in [
        (
            alone("Q7", "[2,2]"),
            16,
            "tensor 'a' is of unknown dtype \"Q7\"",
        ),
        (alone("F64", "[1,2]"), 16, "are F64; tables take f32"),
        (alone("F32", "[4]"), 16, "is a 1-D array (4)"),
        (r#"{"a":1}"#.into(), 0, "tensor 'a'"),
        ("[]".into(), 0, "header"),
        ("{".into(), 0, "header"),
        ("{} {}".into(), 0, "header"),
        ("{}".into(), 0, "no 2-D tensor"),
    ] {
        let error = refusal(&dir, &json, bytes);
        assert!(error.contains(says), "{json}: {error}");
    }
    let short: [&[u8]; 4] = [
        b"",
        &[1, 0, 0],
        &[0xff; 32],
        &[100, 0, 0, 0, 0, 0, 0, 0, b'{'],
    ];
    for bytes in short {
        let path = dir.file("a.safetensors", bytes);
        open(&path, None, None).expect_err("no safetensors file");
    }
}

/// One 2-D tensor is taken, of several one must be named, planes go by name.
#[test]
fn safetensors_choice_of_tensors() {
    let dir = Dir::new();
    let json = r#"{"__metadata__":{"format":"pt"},
        "bias":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
        "a":{"dtype":"F32","shape":[2,1],"data_offsets":[8,16]},
        "b":{"dtype":"U8","shape":[2,3],"data_offsets":[16,22]}}"#;
    let data: Vec<u8> = (0..22).collect();
    let path = dir.file("a.safetensors", &safetensors_file(json, &data));
    let error = open(&path, None, None).expect_err("two");
    assert!(
        error.to_string().contains("choose one by --tensor: a, b"),
        "{error}"
    );
    let error = open(&path, Some("c"), None).expect_err("no c");
    assert!(
        error
            .to_string()
            .contains("has no tensor 'c'; it has bias, a, b"),
        "{error}"
    );
    let mut file = open(&path, Some("b"), None).expect("b");
    assert_eq!(rows_of(&mut file, 1, 1), [19, 20, 21]);

    let plane = |name: &str, dtype, width| Plane {
        name: name.into(),
        dtype,
        width,
    };
    let planes = [plane("b", Dtype::U8, 3), plane("a", Dtype::F32, 1)];
    let mut file = open(&path, None, Some(&planes)).expect("planes");
    assert_eq!((file.rows(), file.row_bytes()), (2, 7));
    assert_eq!(
        rows_of(&mut file, 0, 2),
        [16, 17, 18, 8, 9, 10, 11, 19, 20, 21, 12, 13, 14, 15]
    );
    assert_eq!(rows_of(&mut file, 1, 1), [19, 20, 21, 12, 13, 14, 15]);
}

fn column(name: &str, dtype: Dtype, width: u32) -> Column {
    Column {
        name: name.into(),
        dtype,
        width,
    }
}

/// A writer that is dropped leaves nothing and touches no file of its name.
#[test]
fn unfinished_exports_leave_nothing() {
    let dir = Dir::new();
    let columns = [column("values", Dtype::F32, 2)];
    for name in ["a.safetensors", "a.npy", "a.npz"] {
        let path = dir.file(name, b"before");
        let mut writer = RowWriter::create(&path, &columns, 2, true).expect("created");
        writer.write(&[7], &[1; 8]).expect("written");
        drop(writer);
        assert_eq!(std::fs::read(&path).expect("kept"), b"before");
    }
    assert_eq!(dir.names(), ["a.npy", "a.npz", "a.safetensors"]);
    let mixed = [column("a", Dtype::F32, 2), column("b", Dtype::U8, 2)];
    let path = dir.0.path().join("b.npy");
    let error = RowWriter::create(&path, &mixed, 2, false).expect_err("two dtypes");
    assert!(error.to_string().contains("one dtype"), "{error}");
    let path = dir.0.path().join("b.pt");
    let error = RowWriter::create(&path, &mixed, 2, false).expect_err("no format");
    assert!(
        error.to_string().contains("FILE.safetensors, .npy, .npz"),
        "{error}"
    );
    assert_eq!(dir.names(), ["a.npy", "a.npz", "a.safetensors"]);
}

/// An independent reader agrees with what is written.
#[test]
fn written_safetensors_read_by_the_crate() {
    let dir = Dir::new();
    let path = dir.0.path().join("a.safetensors");
    let columns = [
        column("codes", Dtype::U8, 3),
        column("scale", Dtype::F32, 1),
    ];
    let mut writer = RowWriter::create(&path, &columns, 2, true).expect("created");
    writer
        .write(&[7], &[1, 2, 3, 0, 0, 128, 63])
        .expect("row 0");
    writer
        .write(&[u64::MAX], &[4, 5, 6, 0, 0, 0, 64])
        .expect("row 1");
    assert_eq!(
        writer.finish().expect("finished"),
        std::slice::from_ref(&path)
    );
    let bytes = std::fs::read(&path).expect("bytes");
    let tensors = ::safetensors::SafeTensors::deserialize(&bytes).expect("valid");
    assert_eq!(
        tensors.tensor("codes").expect("codes").data(),
        [1, 2, 3, 4, 5, 6]
    );
    assert_eq!(
        tensors.tensor("scale").expect("scale").data(),
        [0, 0, 128, 63, 0, 0, 0, 64]
    );
    let keys = tensors.tensor("keys").expect("keys");
    assert_eq!(keys.shape(), [2]);
    assert_eq!(
        keys.data(),
        [7u64.to_le_bytes(), u64::MAX.to_le_bytes()].concat()
    );
}

/// The formats that rows are exported to.
const WRITTEN: &[&str] = if cfg!(feature = "parquet") {
    &["a.safetensors", "a.npy", "a.npz", "a.parquet"]
} else {
    &["a.safetensors", "a.npy", "a.npz"]
};

/// An f8 table's planes beside an f32 one survive formats that have a tensor for each.
#[test]
fn planes_there_and_back() {
    let dir = Dir::new();
    let columns = [
        column("codes", Dtype::F8e4m3, 3),
        column("scale", Dtype::Bf16, 1),
        column("bias", Dtype::F32, 2),
    ];
    let planes: Vec<Plane> = columns
        .iter()
        .map(|c| Plane {
            name: c.name.clone(),
            dtype: c.dtype,
            width: c.width,
        })
        .collect();
    let rows: Vec<u8> = (0..13 * 5).collect();
    let keys = [5, 4, 3, 2, u64::MAX];
    for name in WRITTEN.iter().filter(|name| **name != "a.npy") {
        let path = dir.0.path().join(name);
        let mut writer = RowWriter::create(&path, &columns, 5, true).expect("created");
        writer.write(&keys[..3], &rows[..39]).expect("three");
        writer.write(&keys[3..], &rows[39..]).expect("two");
        writer.finish().expect("finished");
        let mut file = open(&path, None, Some(&planes)).expect(name);
        assert_eq!(file.columns(), columns, "{name}");
        assert_eq!(rows_of(&mut file, 0, 5), rows, "{name}");
        assert_eq!(rows_of(&mut file, 3, 2), rows[39..], "{name}");
        assert_eq!(rows_of(&mut file, 1, 1), rows[13..26], "{name}: back again");
        let found = file.take_keys().expect("keys");
        assert_eq!(found.as_deref(), Some(&keys[..]), "{name}");
    }
}

proptest! {
    /// What is exported is imported again bit for bit, in any pieces, keys too.
    #[test]
    fn round_trips(
        rows in 0u64..40,
        width in 1u32..9,
        piece in 1usize..13,
        dtype in 0..Dtype::ALL.len(),
        format in 0..WRITTEN.len(),
        keyed in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let dir = Dir::new();
        let (dtype, name) = (Dtype::ALL[dtype], WRITTEN[format]);
        let columns = [column("values", dtype, width)];
        let stride = columns[0].bytes();
        let mix = |i: u64| mneme_proto::mix64::mix64(seed ^ i);
        let data: Vec<u8> = (0..rows * stride as u64).map(|i| mix(i) as u8).collect();
        let keys: Vec<u64> = (0..rows).map(mix).collect();
        let path = dir.0.path().join(name);
        let mut writer = RowWriter::create(&path, &columns, rows, keyed).unwrap();
        for (chunk, keys) in data.chunks(piece * stride).zip(keys.chunks(piece)) {
            writer.write(if keyed { keys } else { &[] }, chunk).unwrap();
        }
        let files = writer.finish().unwrap();
        let beside = name == "a.npy" && keyed;
        prop_assert_eq!(files.len(), if beside { 2 } else { 1 });

        // npy has no words for bf16 and fp8.
        let wanted = Wanted { dtype: Some(dtype), ..Wanted::default() };
        let mut file = open_wanted(&path, &wanted).unwrap();
        prop_assert_eq!(file.rows(), rows);
        prop_assert_eq!(file.columns(), &columns[..]);
        let mut read = Vec::new();
        while read.len() < data.len() {
            let count = piece.min((data.len() - read.len()) / stride);
            read.extend(rows_of(&mut file, (read.len() / stride) as u64, count));
        }
        prop_assert_eq!(read, data);
        let found = if beside {
            Some(read_keys(&keys_path(&path)).unwrap())
        } else {
            file.take_keys().unwrap()
        };
        prop_assert_eq!(found, keyed.then_some(keys));
    }
}
