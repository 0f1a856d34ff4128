//! Which columns of a parquet file make up its rows.

use std::collections::BTreeMap;
use std::path::Path;

use mneme_proto::schema::Dtype;
use parquet::basic::{ConvertedType, LogicalType, Type as Physical};
use parquet::schema::types::{ColumnDescriptor, SchemaDescriptor};

use super::super::element::Element;
use super::super::rows::{KEYS, Wanted};
use super::super::{FileError, listed};
use super::PlaneNote;
use super::leaf::{Encoding, Leaf};

/// The other name that a column of keys may have.
const KEY: &str = "key";

/// The columns of a file's rows.
#[derive(Debug)]
pub(super) struct Layout {
    /// The leaf of the keys.
    pub keys: Option<Leaf>,
    /// One leaf per plane, or one per element of a single plane.
    pub leaves: Vec<Leaf>,
    /// Whether the leaves are elements of one plane.
    pub elements: bool,
}

/// The leaves of a file.
fn leaves(schema: &SchemaDescriptor, notes: &[PlaneNote]) -> Vec<Leaf> {
    let leaf = |(index, column): (usize, &parquet::schema::types::ColumnDescPtr)| {
        let name = schema.get_column_root(index).name().to_owned();
        let (encoding, element) = kind(column, notes.iter().find(|note| note.name == name));
        Leaf {
            index,
            encoding,
            element,
            written: words(column),
            max_def: column.max_def_level(),
            max_rep: column.max_rep_level(),
            name,
        }
    };
    schema.columns().iter().enumerate().map(leaf).collect()
}

fn kind(column: &ColumnDescriptor, note: Option<&PlaneNote>) -> (Option<Encoding>, Element) {
    let logical = column.logical_type_ref();
    let byte = match (logical, column.converted_type()) {
        (Some(LogicalType::Integer(int)), _) if int.bit_width == 8 => Some(int.is_signed),
        (None, ConvertedType::INT_8) => Some(true),
        (None, ConvertedType::UINT_8) => Some(false),
        _ => None,
    };
    match (column.physical_type(), byte) {
        (Physical::FLOAT, _) => (Some(Encoding::Float), Element::Row(Dtype::F32)),
        (Physical::INT32, Some(signed)) => {
            let dtype = if signed { Dtype::I8 } else { Dtype::U8 };
            (Some(Encoding::Byte { signed }), Element::Row(dtype))
        }
        (Physical::INT64, _) => (Some(Encoding::Key), Element::Key),
        (Physical::FIXED_LEN_BYTE_ARRAY, _) => {
            let bytes = usize::try_from(column.type_length()).unwrap_or(0);
            let element = match (logical, note) {
                (Some(LogicalType::Float16), _) => Element::Row(Dtype::F16),
                (None, Some(note)) => Element::Row(note.dtype),
                (None, None) => Element::Untyped(1),
                _ => Element::Other,
            };
            (Some(Encoding::Fixed(bytes)).filter(|_| bytes > 0), element)
        }
        _ => (None, Element::Other),
    }
}

/// A column's type as people read it: `INT32 (Integer ...)` or `FLOAT`.
fn words(column: &ColumnDescriptor) -> String {
    let physical = column.physical_type();
    match (column.logical_type_ref(), physical) {
        (Some(LogicalType::Integer(int)), _) => {
            let sign = if int.is_signed { "" } else { "U" };
            format!("{sign}INT{}", int.bit_width)
        }
        (Some(logical), _) => format!("{physical} ({logical:?})"),
        (None, Physical::FIXED_LEN_BYTE_ARRAY) => format!("{physical}({})", column.type_length()),
        (None, _) => physical.to_string(),
    }
}

/// Chooses the columns of the rows.
///
/// # Errors
/// [`FileError::Unsuitable`] naming the columns there are.
pub(super) fn layout(
    path: &Path,
    schema: &SchemaDescriptor,
    notes: &[PlaneNote],
    wanted: &Wanted<'_>,
) -> Result<Layout, FileError> {
    let unsuitable = |why: String| FileError::unsuitable(path, why);
    let leaves = leaves(schema, notes);
    let mut of_name: BTreeMap<&str, usize> = BTreeMap::new();
    for leaf in &leaves {
        *of_name.entry(leaf.name.as_str()).or_default() += 1;
    }
    if let Some((name, _)) = of_name.iter().find(|(_, leaves)| **leaves > 1) {
        let why = format!("column '{name}' is a group of columns, or stands twice");
        return Err(unsuitable(why));
    }
    let is_keys = |leaf: &&Leaf| {
        let named = leaf.name == KEYS || leaf.name == KEY;
        named && leaf.element == Element::Key && leaf.max_rep == 0
    };
    let keys = leaves.iter().find(is_keys).cloned();
    let others: Vec<&Leaf> = leaves.iter().filter(|leaf| !is_keys(leaf)).collect();
    let find = |name: &str| others.iter().find(|leaf| leaf.name == name);
    let names = |of: &[&Leaf]| listed(of.iter().map(|leaf| leaf.name.as_str()));
    let of_planes = |chosen: Vec<&Leaf>| Layout {
        keys: keys.clone(),
        leaves: chosen.into_iter().cloned().collect(),
        elements: false,
    };
    if let Some(name) = wanted.tensor {
        let found = find(name).map(|leaf| of_planes(vec![leaf]));
        return found.ok_or_else(|| {
            let names = names(&others);
            unsuitable(format!("it has no column '{name}'; it has {names}"))
        });
    }
    let planes = wanted.planes.unwrap_or_default().iter();
    let by_name: Option<Vec<&Leaf>> = planes.map(|plane| find(&plane.name).copied()).collect();
    if let Some(found) = by_name.filter(|found| !found.is_empty()) {
        return Ok(of_planes(found));
    }
    let lists: Vec<&Leaf> = others
        .iter()
        .copied()
        .filter(|leaf| leaf.max_rep > 0)
        .collect();
    match (&others[..], &lists[..]) {
        ([], _) => Err(unsuitable("it has no column of values".into())),
        ([alone], _) | (_, [alone]) => Ok(of_planes(vec![alone])),
        (elements, []) => {
            let first = elements[0].element;
            if let Some(other) = elements.iter().find(|leaf| leaf.element != first) {
                let why = format!(
                    "column '{}' is {} and '{}' {}: choose one of {} by --tensor (keys stand in \
                     an INT64 column '{KEYS}' or '{KEY}')",
                    elements[0].name,
                    elements[0].written,
                    other.name,
                    other.written,
                    names(elements)
                );
                return Err(unsuitable(why));
            }
            Ok(Layout {
                elements: true,
                ..of_planes(elements.to_vec())
            })
        }
        (_, lists) => {
            let (n, names) = (lists.len(), names(lists));
            let why = format!("it has {n} columns of lists, choose one by --tensor: {names}");
            Err(unsuitable(why))
        }
    }
}
