//! Headers of `.safetensors` files: read strictly, written for streaming.
//!
//! The `safetensors` crate wants the whole file in memory and takes the last of two tensors of
//! one name; rows here are streamed and such files refused. Its types name the dtypes.

use std::fmt;

use safetensors::Dtype as FileDtype;
use safetensors::tensor::TensorInfo;
use serde::de::{Deserializer, MapAccess, Visitor};

/// A tensor as the header describes it; offsets are absolute in the file.
#[derive(Debug, Clone)]
pub(super) struct Tensor {
    /// Its name.
    pub name: String,
    /// Element type.
    pub dtype: FileDtype,
    /// Lengths of the axes.
    pub shape: Vec<u64>,
    /// Where its elements start in the file.
    pub offset: u64,
}

impl Tensor {
    /// `F32`, `BF16` ...: the format's word for the element type.
    pub fn dtype_word(&self) -> String {
        format!("{:?}", self.dtype)
    }
}

/// Parses the JSON header of a file of `file_bytes`; tensors in the order of their bytes.
///
/// # Errors
/// What is wrong, as part of an error line: duplicate names, overlaps, holes, sizes that do not
/// match shapes, a file that is too short or too long.
pub(super) fn parse(json: &[u8], file_bytes: u64) -> Result<Vec<Tensor>, String> {
    let data_start = 8 + json.len() as u64;
    let entries = {
        let mut de = serde_json::Deserializer::from_slice(json);
        let entries = (&mut de)
            .deserialize_map(Entries)
            .map_err(|error| format!("its header: {error}"))?;
        de.end().map_err(|error| format!("its header: {error}"))?;
        entries
    };
    let mut by_offset = entries;
    by_offset.sort_by_key(|(_, info)| info.data_offsets);
    let mut end = 0u64;
    let mut before = "the header".to_owned();
    let mut tensors = Vec::with_capacity(by_offset.len());
    for (name, info) in by_offset {
        let (from, to) = (info.data_offsets.0 as u64, info.data_offsets.1 as u64);
        if from < end {
            return Err(format!("tensor '{name}' overlaps {before}"));
        }
        if from > end {
            return Err(format!("{} B of nothing after {before}", from - end));
        }
        let want = tensor_bytes(&info).ok_or_else(|| {
            format!(
                "tensor '{name}' of shape {:?} has no size in 64 bits",
                info.shape
            )
        })?;
        if to.checked_sub(from) != Some(want) {
            return Err(format!(
                "tensor '{name}': {:?} {:?} takes {want} B, its offsets span {from}..{to}",
                info.shape, info.dtype
            ));
        }
        end = to;
        before = format!("tensor '{name}'");
        tensors.push(Tensor {
            name,
            dtype: info.dtype,
            shape: info.shape.iter().map(|&axis| axis as u64).collect(),
            offset: data_start.saturating_add(from),
        });
    }
    let want = data_start.saturating_add(end);
    if want != file_bytes {
        return Err(format!(
            "its header describes {want} B, the file has {file_bytes} B"
        ));
    }
    Ok(tensors)
}

fn tensor_bytes(info: &TensorInfo) -> Option<u64> {
    let bits = info
        .shape
        .iter()
        .try_fold(info.dtype.bitsize() as u64, |product, &axis| {
            product.checked_mul(axis as u64)
        })?;
    bits.is_multiple_of(8).then_some(bits / 8)
}

/// Reads the header's map entry by entry, so that a name that stands twice is seen.
struct Entries;

impl<'de> Visitor<'de> for Entries {
    type Value = Vec<(String, TensorInfo)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        let mut seen = std::collections::HashSet::new();
        while let Some(name) = map.next_key::<String>()? {
            if !seen.insert(name.clone()) {
                return Err(serde::de::Error::custom(format!(
                    "tensor '{name}' stands twice"
                )));
            }
            if name == "__metadata__" {
                map.next_value::<serde::de::IgnoredAny>()?;
                continue;
            }
            let info = map
                .next_value::<TensorInfo>()
                .map_err(|error| serde::de::Error::custom(format!("tensor '{name}': {error}")))?;
            entries.push((name, info));
        }
        Ok(entries)
    }
}

/// A tensor to be written.
pub(super) struct Written<'a> {
    /// Its name.
    pub name: &'a str,
    /// Element type.
    pub dtype: FileDtype,
    /// Lengths of the axes.
    pub shape: Vec<u64>,
}

/// The start of a file that holds `tensors` in this order, and where each one's bytes go.
/// The data starts at a multiple of 8 B.
pub(super) fn write(tensors: &[Written<'_>]) -> (Vec<u8>, Vec<u64>) {
    let mut end = 0u64;
    let mut starts = Vec::with_capacity(tensors.len());
    let mut map = serde_json::Map::new();
    for tensor in tensors {
        let bytes = tensor.shape.iter().product::<u64>() * tensor.dtype.bitsize() as u64 / 8;
        let info = serde_json::json!({
            "dtype": format!("{:?}", tensor.dtype),
            "shape": tensor.shape,
            "data_offsets": [end, end + bytes],
        });
        map.insert(tensor.name.to_owned(), info);
        starts.push(end);
        end += bytes;
    }
    let mut json = serde_json::to_vec(&map).expect("a map of plain values is JSON");
    json.resize(json.len().next_multiple_of(8), b' ');
    let mut out = (json.len() as u64).to_le_bytes().to_vec();
    out.extend_from_slice(&json);
    let data_start = out.len() as u64;
    (out, starts.iter().map(|start| data_start + start).collect())
}
