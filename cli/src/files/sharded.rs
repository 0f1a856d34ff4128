//! Tensors that are spread over several `.safetensors` files, with an index of which is where:
//! `model.safetensors.index.json`, <https://huggingface.co/docs/safetensors>.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

use super::array::{Array, Source};
use super::{FileError, safetensors};
use crate::limits::SAFETENSORS_HEADER_BYTES_MAX;

const FORMAT: &str = "safetensors index";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Index {
    #[serde(default, rename = "metadata")]
    _metadata: Option<IgnoredAny>,
    weight_map: WeightMap,
}

/// Tensors with their files, in the index' order.
struct WeightMap(Vec<(String, String)>);

/// The tensors of all files of an index; every file is checked as a whole.
///
/// # Errors
/// [`FileError::Malformed`]: a file that is named outside the folder, a tensor that its file
/// lacks, that the index lacks, or that stands in two files.
pub(super) fn arrays(path: &Path) -> Result<Vec<Array>, FileError> {
    let malformed = |why: String| FileError::malformed(path, FORMAT, why);
    let source = Source::open(path)?;
    if source.bytes > SAFETENSORS_HEADER_BYTES_MAX {
        let limit = SAFETENSORS_HEADER_BYTES_MAX;
        return Err(malformed(format!("it has over {limit} B")));
    }
    let mut json = vec![0; source.bytes as usize]; // bounded just now
    source.read(&mut json, 0)?;
    let index: Index = serde_json::from_slice(&json).map_err(|e| malformed(e.to_string()))?;
    let mut of_file: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (tensor, file) in &index.weight_map.0 {
        if !is_plain_name(file) {
            let why = format!("tensor '{tensor}' is said to be in {file:?}, no name of a file");
            return Err(malformed(why));
        }
        of_file.entry(file).or_default().insert(tensor);
    }
    let mut arrays = Vec::new();
    for (file, mut named) in of_file {
        for array in safetensors::arrays(&path.with_file_name(file))? {
            if !named.remove(array.name.as_str()) {
                let elsewhere = index
                    .weight_map
                    .0
                    .iter()
                    .find(|(name, _)| *name == array.name);
                let says = match elsewhere {
                    Some((_, other)) => format!("says it is in '{other}'"),
                    None => "does not name it".to_owned(),
                };
                let why = format!("tensor '{}' is in '{file}', the index {says}", array.name);
                return Err(malformed(why));
            }
            arrays.push(array);
        }
        if let Some(missing) = named.first() {
            return Err(malformed(format!("'{file}' has no tensor '{missing}'")));
        }
    }
    Ok(arrays)
}

/// Whether it names something in a folder, nothing above or below it.
pub(super) fn is_plain_name(name: &str) -> bool {
    let path = Path::new(name);
    path.file_name()
        .is_some_and(|last| last == path.as_os_str())
}

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Entries)
    }
}

/// Reads the map entry by entry, so that a tensor that stands twice is seen.
struct Entries;

impl<'de> Visitor<'de> for Entries {
    type Value = WeightMap;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of tensors to files")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WeightMap, A::Error> {
        let mut entries = Vec::new();
        let mut seen = BTreeSet::new();
        while let Some((tensor, file)) = map.next_entry::<String, String>()? {
            if !seen.insert(tensor.clone()) {
                let why = format!("tensor '{tensor}' stands twice");
                return Err(serde::de::Error::custom(why));
            }
            entries.push((tensor, file));
        }
        Ok(WeightMap(entries))
    }
}
