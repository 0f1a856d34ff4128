//! safetensors and npy files, made and read here without the product's own code: a second
//! opinion on the formats.

use std::path::Path;

use serde_json::{Map, Value, json};

/// A tensor: name, dtype as the format writes it (`F32`, `U8`, `U64`), shape and raw bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// Its dtype.
    pub dtype: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Row-major, little-endian.
    pub bytes: Vec<u8>,
}

impl Tensor {
    /// A tensor of f32 by their bits.
    #[must_use]
    pub fn f32(name: &str, shape: &[usize], values: impl IntoIterator<Item = f32>) -> Self {
        let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
        Self {
            name: name.into(),
            dtype: "F32".into(),
            shape: shape.to_vec(),
            bytes,
        }
    }
}

/// Writes tensors one after the other.
pub fn write_safetensors(path: &Path, tensors: &[Tensor]) {
    let mut header = Map::new();
    let mut data = Vec::new();
    for t in tensors {
        let start = data.len();
        data.extend_from_slice(&t.bytes);
        let offsets = [start, data.len()];
        let entry = json!({"dtype": t.dtype, "shape": t.shape, "data_offsets": offsets});
        header.insert(t.name.clone(), entry);
    }
    write_safetensors_raw(path, &Value::Object(header).to_string(), &data);
}

/// Writes a header as it is, right or wrong.
pub fn write_safetensors_raw(path: &Path, header: &str, data: &[u8]) {
    let size = (header.len() as u64).to_le_bytes();
    std::fs::write(path, [&size, header.as_bytes(), data].concat()).expect("writable");
}

/// Reads every tensor of a file.
///
/// # Panics
/// If the file is not well formed.
#[must_use]
pub fn read_safetensors(path: &Path) -> Vec<Tensor> {
    let bytes = std::fs::read(path).expect("a file");
    let (size, rest) = bytes.split_first_chunk::<8>().expect("a header's size");
    let size = usize::try_from(u64::from_le_bytes(*size)).expect("a sane size");
    let (header, data) = rest.split_at(size);
    let header: Map<String, Value> = serde_json::from_slice(header).expect("a JSON header");
    let entries = header
        .into_iter()
        .filter(|(name, _)| name != "__metadata__");
    let number = |v: &Value| usize::try_from(v.as_u64().expect("a number")).expect("64 bits");
    entries
        .map(|(name, entry)| {
            let numbers = |key: &str| {
                let list = entry[key].as_array().expect("a list");
                list.iter().map(number).collect::<Vec<_>>()
            };
            let offsets = numbers("data_offsets");
            Tensor {
                name,
                dtype: entry["dtype"].as_str().expect("a string").to_owned(),
                shape: numbers("shape"),
                bytes: data[offsets[0]..offsets[1]].to_vec(),
            }
        })
        .collect()
}

/// Writes an npy file of version 1.0 with this header dictionary.
pub fn write_npy_raw(path: &Path, dictionary: &str, data: &[u8]) {
    let unpadded = 10 + dictionary.len() + 1;
    let padding = " ".repeat(unpadded.next_multiple_of(64) - unpadded);
    let header = format!("{dictionary}{padding}\n");
    let size = u16::try_from(header.len())
        .expect("a short header")
        .to_le_bytes();
    let bytes = [&b"\x93NUMPY\x01\x00"[..], &size, header.as_bytes(), data].concat();
    std::fs::write(path, bytes).expect("writable");
}

/// Writes a C-ordered array of `descr` (`<f4`, `<u8`, `|u1`).
pub fn write_npy(path: &Path, descr: &str, shape: &[usize], data: &[u8]) {
    let sizes: Vec<String> = shape.iter().map(|n| format!("{n},")).collect();
    let shape = sizes.join(" ");
    let dictionary =
        format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}");
    write_npy_raw(path, &dictionary, data);
}

/// The header dictionary and the data of an npy file.
///
/// # Panics
/// If the file is not well formed.
#[must_use]
pub fn read_npy(path: &Path) -> (String, Vec<u8>) {
    let bytes = std::fs::read(path).expect("a file");
    assert_eq!(&bytes[..6], b"\x93NUMPY");
    let (start, size) = match bytes[6] {
        1 => (10, usize::from(u16::from_le_bytes([bytes[8], bytes[9]]))),
        _ => {
            let size = u32::from_le_bytes(bytes[8..12].try_into().expect("four bytes"));
            (12, size as usize)
        }
    };
    let header = String::from_utf8(bytes[start..start + size].to_vec()).expect("text");
    (header, bytes[start + size..].to_vec())
}

/// Little-endian f32 bytes.
#[must_use]
pub fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}
