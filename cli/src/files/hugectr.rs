//! The folders in which HugeCTR saves embedding tables: `key` holds i64 keys, `emb_vector` as many
//! f32 rows, both little-endian and without a header. Other files of the folder (`slot_id`, the
//! optimizer's) are not read.

use std::path::Path;

use mneme_proto::schema::Dtype;

use super::array::{Array, Part, Source};
use super::element::Element;
use super::rows::{Body, KEYS, Keys, RowFile, VALUES, width_of};
use super::{Column, FileError};

const FORMAT: &str = "HugeCTR";

/// The file of keys; a folder that has it is HugeCTR's.
pub(super) const KEY_FILE: &str = "key";

const ROWS_FILE: &str = "emb_vector";

/// Opens a folder. The dim is what the sizes of its files give.
///
/// # Errors
/// [`FileError::Malformed`] when the sizes do not match.
pub(super) fn open(folder: &Path) -> Result<RowFile, FileError> {
    let malformed = |why: String| FileError::malformed(folder, FORMAT, why);
    let keys = Source::open(&folder.join(KEY_FILE))?;
    let vectors = Source::open(&folder.join(ROWS_FILE))?;
    let (key_bytes, row_bytes) = (keys.bytes, vectors.bytes);
    if !key_bytes.is_multiple_of(8) {
        return Err(malformed(format!(
            "'{KEY_FILE}' has {key_bytes} B, no whole number of 8-byte keys"
        )));
    }
    let rows = key_bytes / 8;
    if rows == 0 || !row_bytes.is_multiple_of(rows * 4) {
        return Err(malformed(format!(
            "'{ROWS_FILE}' has {row_bytes} B, no whole number of f32 for each of {rows} keys"
        )));
    }
    let column = Column {
        name: VALUES.into(),
        dtype: Dtype::F32,
        width: width_of(folder, "it", row_bytes / rows / 4)?,
    };
    Ok(RowFile {
        path: folder.to_owned(),
        rows,
        body: Body::Placed(vec![Part::whole_rows(&vectors, column.bytes())]),
        columns: vec![column],
        keys: Keys::Placed(Array {
            name: KEYS.into(),
            element: Element::Key,
            written: "i64".into(),
            shape: vec![rows],
            fortran: false,
            swap: false,
            source: keys,
            offset: 0,
        }),
    })
}
