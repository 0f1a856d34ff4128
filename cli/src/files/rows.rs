//! The rows of a file: which of its arrays make them up, and reading them in pieces.

use std::path::{Path, PathBuf};

use mneme_proto::schema::{Dtype, Plane};

use super::array::{Array, Part, names};
use super::element::Element;
use super::{Column, FileError};

/// The array that holds the keys of hashed rows, in formats whose arrays have names.
pub(super) const KEYS: &str = "keys";

/// The array that holds the rows where their only plane has no better name.
pub(super) const VALUES: &str = "values";

/// What a file is read for.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wanted<'a> {
    /// The array or column that holds the rows; without it a file must hold one alone, or one for
    /// each of `planes`.
    pub tensor: Option<&'a str>,
    /// The planes of the table that it is read for, where it has several.
    pub planes: Option<&'a [Plane]>,
    /// What untyped bytes are.
    pub dtype: Option<Dtype>,
}

/// The rows of a file, checked as a whole and not yet read.
#[derive(Debug)]
pub struct RowFile {
    pub(super) path: PathBuf,
    pub(super) rows: u64,
    pub(super) columns: Vec<Column>,
    pub(super) keys: Keys,
    pub(super) body: Body,
}

/// Where the keys of rows are.
#[derive(Debug)]
pub(super) enum Keys {
    /// The rows have none.
    None,
    /// In the file.
    Placed(Array),
    /// Read already.
    #[cfg_attr(not(feature = "parquet"), allow(dead_code))]
    Read(Vec<u64>),
}

/// Where the rows are.
#[derive(Debug)]
pub(super) enum Body {
    /// At known places: any can be read.
    Placed(Vec<Part>),
    /// In pages that are decoded one after the other.
    #[cfg(feature = "parquet")]
    Parquet(Box<super::parquet::Cursor>),
}

impl RowFile {
    /// Rows in the file.
    #[must_use]
    pub const fn rows(&self) -> u64 {
        self.rows
    }

    /// The column groups of a row, in order.
    #[must_use]
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// Bytes of one row, all columns together.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.columns.iter().map(Column::bytes).sum()
    }

    /// Takes the keys that the file itself holds beside its rows, as hashed exports do.
    ///
    /// # Errors
    /// [`FileError::Io`].
    pub fn take_keys(&mut self) -> Result<Option<Vec<u64>>, FileError> {
        match std::mem::replace(&mut self.keys, Keys::None) {
            Keys::None => Ok(None),
            Keys::Placed(array) => array.read_keys().map(Some),
            Keys::Read(keys) => Ok(Some(keys)),
        }
    }

    /// Reads rows from `first` on into `out`, whole rows, little-endian, columns concatenated.
    /// Reading in order is what every format is good at.
    ///
    /// # Errors
    /// [`FileError::Io`], also when the file was cut since it was opened.
    ///
    /// # Panics
    /// If `out` is not a whole number of rows of the file.
    pub fn read(&mut self, first: u64, out: &mut [u8]) -> Result<(), FileError> {
        let stride = self.row_bytes();
        assert_eq!(out.len() % stride, 0, "whole rows");
        let count = (out.len() / stride) as u64;
        assert!(first + count <= self.rows, "rows of the file");
        match &mut self.body {
            Body::Placed(parts) => {
                let mut at = 0;
                for part in parts {
                    part.read(self.rows, first, at, stride, out)?;
                    at += part.row_bytes();
                }
                Ok(())
            }
            #[cfg(feature = "parquet")]
            Body::Parquet(cursor) => cursor.read(first, out),
        }
    }

    /// Checks the dtype of a file that tells its own against `--dtype`.
    pub(super) fn of_dtype(self, asked: Option<Dtype>) -> Result<Self, FileError> {
        let other = |column: &&Column| asked.is_some_and(|asked| asked != column.dtype);
        if let Some(column) = self.columns.iter().find(other) {
            let (found, asked) = (column.dtype.word(), asked.map_or("", Dtype::word));
            let why = format!(
                "its rows are {found}, --dtype says {asked}: rows are moved bit for bit, never \
                 converted"
            );
            return Err(FileError::unsuitable(&self.path, why));
        }
        Ok(self)
    }

    /// The rows of a file of named arrays.
    pub(super) fn of_arrays(
        path: &Path,
        arrays: &[Array],
        wanted: &Wanted<'_>,
    ) -> Result<Self, FileError> {
        let chosen = choose(path, arrays, wanted)?;
        let rows = chosen[0].shape.first().copied().unwrap_or(0);
        let (mut parts, mut columns) = (Vec::new(), Vec::new());
        for array in chosen {
            let what = format!("array '{}'", array.name);
            // A table with planes of several dtypes says itself what untyped bytes are.
            let planes = wanted.planes.unwrap_or_default();
            let plane = planes.iter().find(|plane| plane.name == array.name);
            let untyped = matches!(array.element, Element::Untyped(_));
            let asked = plane.filter(|_| untyped).map(|plane| plane.dtype);
            let asked = wanted.dtype.or(asked);
            let dtype = array
                .element
                .row_dtype(&array.written, asked)
                .map_err(|why| {
                    FileError::unsuitable(path, format!("{what}: its elements {why}"))
                })?;
            let &[its_rows, width] = &array.shape[..] else {
                let why = format!("rows are a 2-D array, {what} is {}", array.axes());
                return Err(FileError::unsuitable(path, why));
            };
            if its_rows != rows {
                let why = format!("{what} has {its_rows} rows, the plane before it {rows}");
                return Err(FileError::unsuitable(path, why));
            }
            let width = width_of(path, &what, width)?;
            parts.push(Part::of(array, width, dtype.bytes()));
            columns.push(Column {
                name: array.name.clone(),
                dtype,
                width,
            });
        }
        let mut keys = arrays.iter().filter(|array| array.name == KEYS);
        let keys = keys.find(|array| array.is_keys());
        if let Some(keys) = keys.filter(|keys| keys.shape != [rows]) {
            let why = format!("it has {} keys for {rows} rows", keys.shape[0]);
            return Err(FileError::unsuitable(path, why));
        }
        Ok(Self {
            path: path.to_owned(),
            rows,
            columns,
            keys: keys.cloned().map_or(Keys::None, Keys::Placed),
            body: Body::Placed(parts),
        })
    }
}

/// Checks the length of a row.
pub(super) fn width_of(path: &Path, what: &str, width: u64) -> Result<u32, FileError> {
    match u32::try_from(width) {
        Ok(width) if width > 0 => Ok(width),
        _ => {
            let why = format!("{what} has rows of {width} elements");
            Err(FileError::unsuitable(path, why))
        }
    }
}

/// The arrays that make up a row.
fn choose<'a>(
    path: &Path,
    arrays: &'a [Array],
    wanted: &Wanted<'_>,
) -> Result<Vec<&'a Array>, FileError> {
    let find = |name: &str| arrays.iter().find(|array| array.name == name);
    if let Some(name) = wanted.tensor {
        return find(name).map(|array| vec![array]).ok_or_else(|| {
            let why = format!("it has no tensor '{name}'; it has {}", names(arrays.iter()));
            FileError::unsuitable(path, why)
        });
    }
    if let Some(planes) = wanted.planes {
        let by_name: Option<Vec<&Array>> = planes.iter().map(|plane| find(&plane.name)).collect();
        if let Some(found) = by_name.filter(|found| !found.is_empty()) {
            return Ok(found);
        }
    }
    // What is alone is taken whatever its shape: the refusal then says what is wrong with it.
    if let [alone] = arrays {
        return Ok(vec![alone]);
    }
    let candidates: Vec<&Array> = arrays
        .iter()
        .filter(|array| array.shape.len() == 2 && array.name != KEYS)
        .collect();
    match candidates.len() {
        1 => Ok(candidates),
        0 => Err(FileError::unsuitable(path, "it holds no 2-D tensor")),
        n => {
            let names = names(candidates.into_iter());
            let why = format!("it holds {n} 2-D tensors, choose one by --tensor: {names}");
            Err(FileError::unsuitable(path, why))
        }
    }
}
