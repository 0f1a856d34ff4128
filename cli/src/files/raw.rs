//! Raw rows with a manifest: a small JSON file beside files without headers.
//!
//! ```json
//! {
//!   "mneme_rows": 1,
//!   "rows": 1000,
//!   "dtype": "bf16", "dim": 64,
//!   "values": {"file": "rows.bin", "crc32c": "c9a0e52f"},
//!   "keys": {"file": "keys.bin"}
//! }
//! ```
//!
//! * `mneme_rows`: the version of this format. A newer one is refused by name.
//! * `dtype` and `dim`, or for rows of several planes `planes`: a list of
//!   `{"name", "dtype", "dim"}` in schema order.
//! * `values`: little-endian rows, the planes of a row one after the other, nothing between rows.
//! * `keys` (optional): as many u64, little-endian.
//! * `crc32c` (optional): the file's CRC-32C (Castagnoli), eight hexadecimal digits.
//!
//! Files are named without a folder and lie beside the manifest. Unknown fields are refused.

use std::path::Path;
use std::sync::Arc;

use mneme_proto::schema::Dtype;
use serde::Deserialize;

use super::array::{Array, Part, Source};
use super::element::Element;
use super::rows::{Body, KEYS, Keys, RowFile, VALUES, width_of};
use super::sharded::is_plain_name;
use super::{Column, FileError};
use crate::limits::MANIFEST_BYTES_MAX;

const FORMAT: &str = "manifest";

/// The version that this build reads.
const VERSION: u64 = 1;

#[derive(Deserialize)]
struct Version {
    mneme_rows: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    #[serde(rename = "mneme_rows")]
    _version: u64,
    rows: u64,
    dtype: Option<String>,
    dim: Option<u64>,
    planes: Option<Vec<PlaneOf>>,
    values: FileOf,
    keys: Option<FileOf>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlaneOf {
    name: String,
    dtype: String,
    dim: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileOf {
    file: String,
    crc32c: Option<String>,
}

/// Opens the rows that a manifest describes, sizes and checksums checked.
///
/// # Errors
/// [`FileError`], naming the manifest or the file that does not match it.
pub(super) fn open(path: &Path) -> Result<RowFile, FileError> {
    let malformed = |why: String| FileError::malformed(path, FORMAT, why);
    let source = Source::open(path)?;
    if source.bytes > MANIFEST_BYTES_MAX {
        return Err(malformed(format!("it has over {MANIFEST_BYTES_MAX} B")));
    }
    let mut json = vec![0; source.bytes as usize]; // bounded just now
    source.read(&mut json, 0)?;
    // The version first: a newer manifest may have fields that this one does not know.
    let version: Version = serde_json::from_slice(&json).map_err(|e| malformed(e.to_string()))?;
    if version.mneme_rows != VERSION {
        let found = version.mneme_rows;
        let why = format!("it is of version {found}; this mneme reads version {VERSION}");
        return Err(malformed(why));
    }
    let manifest: Manifest = serde_json::from_slice(&json).map_err(|e| malformed(e.to_string()))?;
    let columns = columns(path, &manifest)?;
    let row_bytes: usize = columns.iter().map(Column::bytes).sum();
    let values = beside(path, &manifest.values, manifest.rows, row_bytes)?;
    let keys = match &manifest.keys {
        Some(file) => Keys::Placed(Array {
            name: KEYS.into(),
            element: Element::Key,
            written: "u64".into(),
            shape: vec![manifest.rows],
            fortran: false,
            swap: false,
            source: beside(path, file, manifest.rows, 8)?,
            offset: 0,
        }),
        None => Keys::None,
    };
    Ok(RowFile {
        path: path.to_owned(),
        rows: manifest.rows,
        columns,
        keys,
        body: Body::Placed(vec![Part::whole_rows(&values, row_bytes)]),
    })
}

fn columns(path: &Path, manifest: &Manifest) -> Result<Vec<Column>, FileError> {
    let column = |name: &str, dtype: &str, dim: u64| {
        let dtype: Dtype = dtype
            .parse()
            .map_err(|e| FileError::malformed(path, FORMAT, format!("plane '{name}': {e}")))?;
        let width = width_of(path, &format!("plane '{name}'"), dim)?;
        // Rows are bounded by the table's own limit; here only their size must be a number.
        if dtype.bytes().checked_mul(width).is_none() {
            let why = format!("plane '{name}' has rows of {dim} elements");
            return Err(FileError::unsuitable(path, why));
        }
        Ok(Column {
            name: name.to_owned(),
            dtype,
            width,
        })
    };
    match (&manifest.dtype, manifest.dim, &manifest.planes) {
        (Some(dtype), Some(dim), None) => Ok(vec![column(VALUES, dtype, dim)?]),
        (None, None, Some(planes)) if !planes.is_empty() => planes
            .iter()
            .map(|plane| column(&plane.name, &plane.dtype, plane.dim))
            .collect(),
        _ => {
            let why = "it needs 'dtype' and 'dim', or 'planes', and not both";
            Err(FileError::malformed(path, FORMAT, why))
        }
    }
}

/// Opens a file beside the manifest and checks its length and checksum.
fn beside(
    manifest: &Path,
    of: &FileOf,
    rows: u64,
    row_bytes: usize,
) -> Result<Arc<Source>, FileError> {
    let malformed = |why: String| FileError::malformed(manifest, FORMAT, why);
    let name = &of.file;
    if !is_plain_name(name) {
        let why = format!("{name:?} is no name of a file beside it");
        return Err(malformed(why));
    }
    let source = Source::open(&manifest.with_file_name(name))?;
    let want = rows.checked_mul(row_bytes as u64);
    if want != Some(source.bytes) {
        let found = source.bytes;
        let why = format!("{rows} rows of {row_bytes} B do not make the {found} B of '{name}'");
        return Err(malformed(why));
    }
    if let Some(hex) = &of.crc32c {
        let want = u32::from_str_radix(hex, 16).ok().filter(|_| is_hex(hex));
        let Some(want) = want else {
            let why = format!("the crc32c of '{name}' is {hex:?}, not eight hexadecimal digits");
            return Err(malformed(why));
        };
        let mut crc = 0;
        source.pass(0, source.bytes, |piece| {
            crc = crc32c::crc32c_append(crc, piece)
        })?;
        if crc != want {
            let why = format!("'{name}' has the crc32c {crc:08x}, not {want:08x}: it is damaged");
            return Err(malformed(why));
        }
    }
    Ok(source)
}

fn is_hex(text: &str) -> bool {
    text.len() == 8 && text.bytes().all(|b| b.is_ascii_hexdigit())
}
