//! Headers of `.safetensors` files: read strictly, written for streaming.
//!
//! The `safetensors` crate wants the whole file in memory and takes the last of two tensors of
//! one name; rows here are streamed and such files refused. The crate knows the dtypes' sizes.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use safetensors::Dtype as FileDtype;
use serde::Deserialize;
use serde::de::value::{Error as WordError, StrDeserializer};
use serde::de::{Deserializer, IntoDeserializer, MapAccess, Visitor};

use super::FileError;
use super::array::{Array, Source};
use super::element::Element;
use crate::limits::SAFETENSORS_HEADER_BYTES_MAX;

/// A tensor as the header describes it.
#[derive(Debug, Deserialize)]
struct Described {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// The tensors of a file, in the order of their bytes, its layout checked as a whole.
///
/// # Errors
/// [`FileError::Io`] and [`FileError::Malformed`].
pub(super) fn arrays(path: &Path) -> Result<Vec<Array>, FileError> {
    let malformed = |why: String| FileError::malformed(path, "safetensors", why);
    let source = Source::open(path)?;
    let file_bytes = source.bytes;
    if file_bytes < 8 {
        return Err(malformed(format!("{file_bytes} B are less than a header")));
    }
    let length = u64::from_le_bytes(source.read_array(0)?);
    if length > SAFETENSORS_HEADER_BYTES_MAX || length > file_bytes - 8 {
        let why = format!("a header of {length} B does not fit the file of {file_bytes} B");
        return Err(malformed(why));
    }
    let mut json = vec![0; length as usize]; // the file has these bytes
    source.read(&mut json, 8)?;
    parse(&json, &source).map_err(malformed)
}

/// Parses the JSON header of a file; tensors in the order of their bytes.
///
/// # Errors
/// What is wrong, as part of an error line: duplicate names, unknown dtypes, overlaps, holes,
/// sizes that do not match shapes, a file that is too short or too long.
fn parse(json: &[u8], source: &Arc<Source>) -> Result<Vec<Array>, String> {
    let data_start = 8 + json.len() as u64;
    let mut de = serde_json::Deserializer::from_slice(json);
    let mut by_offset = (&mut de)
        .deserialize_map(Entries)
        .and_then(|entries| de.end().map(|()| entries))
        .map_err(|error| format!("its header: {error}"))?;
    by_offset.sort_by_key(|(_, described)| described.data_offsets);
    let mut end = 0;
    let mut before = "the header".to_owned();
    let mut arrays = Vec::with_capacity(by_offset.len());
    for (name, described) in by_offset {
        let (from, to) = described.data_offsets;
        if from < end {
            return Err(format!("tensor '{name}' overlaps {before}"));
        }
        if from > end {
            return Err(format!("{} B of nothing after {before}", from - end));
        }
        let want = tensor_bytes(&described).map_err(|why| format!("tensor '{name}' {why}"))?;
        let Described { dtype, shape, .. } = described;
        if to.checked_sub(from) != Some(want) {
            return Err(format!(
                "tensor '{name}': {shape:?} {dtype} takes {want} B, its offsets span {from}..{to}"
            ));
        }
        end = to;
        before = format!("tensor '{name}'");
        arrays.push(Array {
            name,
            element: Element::of_safetensors(&dtype),
            written: dtype,
            shape,
            fortran: false,
            swap: false,
            source: Arc::clone(source),
            offset: data_start.saturating_add(from),
        });
    }
    let (want, file_bytes) = (data_start.saturating_add(end), source.bytes);
    if want != file_bytes {
        return Err(format!(
            "its header describes {want} B, the file has {file_bytes} B"
        ));
    }
    Ok(arrays)
}

/// Bytes of a tensor, or what is wrong with it.
fn tensor_bytes(described: &Described) -> Result<u64, String> {
    let Described { dtype, shape, .. } = described;
    let word: StrDeserializer<'_, WordError> = dtype.as_str().into_deserializer();
    let known =
        FileDtype::deserialize(word).map_err(|_| format!("is of unknown dtype {dtype:?}"))?;
    let bits = shape
        .iter()
        .try_fold(known.bitsize() as u64, |product, &axis| {
            product.checked_mul(axis)
        })
        .ok_or_else(|| format!("of shape {shape:?} has no size in 64 bits"))?;
    if bits.is_multiple_of(8) {
        return Ok(bits / 8);
    }
    Err(format!("of {shape:?} {dtype} is no whole number of bytes"))
}

/// Reads the header's map entry by entry, so that a name that stands twice is seen.
struct Entries;

impl<'de> Visitor<'de> for Entries {
    type Value = Vec<(String, Described)>;

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
            let described = map
                .next_value::<Described>()
                .map_err(|error| serde::de::Error::custom(format!("tensor '{name}': {error}")))?;
            entries.push((name, described));
        }
        Ok(entries)
    }
}

/// A tensor to be written.
pub(super) struct Written<'a> {
    /// Its name.
    pub name: &'a str,
    /// The format's word for its dtype.
    pub dtype: &'static str,
    /// Lengths of the axes.
    pub shape: Vec<u64>,
    /// Its bytes.
    pub bytes: u64,
}

/// The start of a file that holds `tensors` in this order, and where each one's bytes go.
/// The data starts at a multiple of 8 B.
pub(super) fn write(tensors: &[Written<'_>]) -> (Vec<u8>, Vec<u64>) {
    let mut end = 0u64;
    let mut starts = Vec::with_capacity(tensors.len());
    let mut map = serde_json::Map::new();
    for tensor in tensors {
        let info = serde_json::json!({
            "dtype": tensor.dtype,
            "shape": tensor.shape,
            "data_offsets": [end, end + tensor.bytes],
        });
        map.insert(tensor.name.to_owned(), info);
        starts.push(end);
        end += tensor.bytes;
    }
    let mut json = serde_json::to_vec(&map).expect("a map of plain values is JSON");
    json.resize(json.len().next_multiple_of(8), b' ');
    let mut out = (json.len() as u64).to_le_bytes().to_vec();
    out.extend_from_slice(&json);
    let data_start = out.len() as u64;
    (out, starts.iter().map(|start| data_start + start).collect())
}
