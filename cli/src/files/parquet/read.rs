//! Reading parquet files: checked as a whole once, then decoded again in order.

use std::path::{Path, PathBuf};

use mneme_proto::schema::Dtype;
use parquet::file::metadata::ParquetMetaData;
use parquet::file::reader::{FileReader, SerializedFileReader};

use super::super::array::Source;
use super::super::element::Element;
use super::super::rows::{Body, Keys, RowFile, VALUES, Wanted, width_of};
use super::super::{Column, FileError};
use super::guard::guarded;
use super::leaf::{Chosen, Encoding, Leaf, LeafReader};
use super::schema::{Layout, layout};
use super::{PLANES, PlaneNote, damaged};
use crate::limits::PARQUET_PIECE_BYTES;

/// Decodes the rows of a file in order.
pub(in super::super) struct Cursor {
    path: PathBuf,
    file: SerializedFileReader<std::fs::File>,
    leaves: Vec<Chosen>,
    row_bytes: usize,
    /// The next row.
    next: u64,
    /// The row group that is decoded, its readers, and the rows left in it.
    group: usize,
    readers: Vec<LeafReader>,
    left: u64,
}

impl std::fmt::Debug for Cursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cursor")
            .field("path", &self.path)
            .field("next", &self.next)
            .finish_non_exhaustive()
    }
}

/// Opens a file and decodes all of it once.
///
/// # Errors
/// [`FileError`] when it is damaged or holds something else than rows.
pub(in super::super) fn open(path: &Path, wanted: &Wanted<'_>) -> Result<RowFile, FileError> {
    guarded(path, || open_unguarded(path, wanted))
}

fn open_unguarded(path: &Path, wanted: &Wanted<'_>) -> Result<RowFile, FileError> {
    let source = Source::open(path)?;
    let handle = source.file().try_clone().map_err(FileError::io(path))?;
    let file = SerializedFileReader::new(handle).map_err(damaged(path))?;
    let rows = rows_of(path, file.metadata())?;
    let notes = notes(file.metadata());
    let Layout {
        keys,
        leaves,
        elements,
    } = layout(
        path,
        file.metadata().file_metadata().schema_descr(),
        &notes,
        wanted,
    )?;
    let mut chosen = Vec::new();
    let mut at = 0;
    for leaf in leaves {
        let one = choose(path, &file, leaf, &notes, wanted.dtype, at)?;
        at += one.row_bytes();
        chosen.push(one);
    }
    let columns = match elements {
        true => vec![Column {
            name: VALUES.into(),
            dtype: chosen[0].dtype,
            width: width_of(path, "it", chosen.len() as u64)?,
        }],
        false => columns(path, &chosen)?,
    };
    let mut keyed = keys.map(|leaf| Chosen {
        leaf,
        encoding: Encoding::Key,
        values: 1,
        at,
        dtype: Dtype::U8, // keys are no elements of a row
    });
    let mut cursor = Cursor::new(path, file, chosen, at);
    let keys = cursor.check(rows, keyed.take())?;
    Ok(RowFile {
        path: path.to_owned(),
        rows,
        columns,
        keys: keys.map_or(Keys::None, Keys::Read),
        body: Body::Parquet(Box::new(cursor)),
    })
}

/// The rows of all groups, which the file's own count must equal.
fn rows_of(path: &Path, metadata: &ParquetMetaData) -> Result<u64, FileError> {
    let counts = metadata.row_groups().iter().map(|group| group.num_rows());
    let sum = counts.map(u64::try_from).try_fold(0u64, |sum, rows| {
        rows.ok().and_then(|rows| sum.checked_add(rows))
    });
    let told = u64::try_from(metadata.file_metadata().num_rows()).ok();
    sum.filter(|sum| told == Some(*sum)).ok_or_else(|| {
        let why = "its row groups do not have the rows that it says";
        FileError::malformed(path, "parquet", why)
    })
}

/// What an export of this program notes of its planes.
fn notes(metadata: &ParquetMetaData) -> Vec<PlaneNote> {
    let all = metadata.file_metadata().key_value_metadata();
    let mut all = all.into_iter().flatten();
    let note = all.find(|pair| pair.key == PLANES);
    let text = note.and_then(|pair| pair.value.as_deref());
    // A note that says nothing sensible is nobody's: the types of the columns count.
    text.and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default()
}

/// The dtype of a leaf and how many values a row has of it.
fn choose(
    path: &Path,
    file: &SerializedFileReader<std::fs::File>,
    leaf: Leaf,
    notes: &[PlaneNote],
    asked: Option<Dtype>,
    at: usize,
) -> Result<Chosen, FileError> {
    let unsuitable =
        |why: String| FileError::unsuitable(path, format!("column '{}' {why}", leaf.name));
    let elements = |why: String| unsuitable(format!("has elements that {why}"));
    let written = &leaf.written;
    let none = || Element::Other.row_dtype(written, None);
    let encoding = leaf
        .encoding
        .ok_or_else(|| none().err().unwrap_or_default());
    let encoding = encoding.map_err(elements)?;
    if leaf.max_rep > 1 {
        return Err(unsuitable(
            "has lists of lists; rows are one list each".into(),
        ));
    }
    let dtype = match (leaf.element, encoding, asked) {
        // Binary values are whole rows: any dtype may be in them.
        (Element::Untyped(_), Encoding::Fixed(bytes), Some(asked)) => {
            let whole = bytes.is_multiple_of(asked.bytes() as usize);
            whole
                .then_some(asked)
                .ok_or_else(|| unsuitable(format!("is {written}, no whole number of {asked}")))?
        }
        (Element::Untyped(_), _, None) => {
            let why = format!("is {written}, bytes without a type: say which by --dtype");
            return Err(unsuitable(why));
        }
        (element, _, asked) => element.row_dtype(written, asked).map_err(elements)?,
    };
    let note = notes.iter().find(|note| note.name == leaf.name);
    let values = match leaf.max_rep {
        0 => 1,
        _ => match first_length(file, &leaf).map_err(damaged(path))? {
            Some(length) => length,
            None => note
                .map(|note| note.dim as usize)
                .ok_or_else(|| unsuitable("has no row that would tell how long rows are".into()))?,
        },
    };
    width_of(path, &format!("column '{}'", leaf.name), values as u64)?;
    Ok(Chosen {
        encoding,
        values,
        at,
        dtype,
        leaf,
    })
}

/// How long the first list of a column is; `None` without rows.
fn first_length(
    file: &SerializedFileReader<std::fs::File>,
    leaf: &Leaf,
) -> parquet::errors::Result<Option<usize>> {
    use parquet::column::reader::ColumnReader;
    let mut groups = file.metadata().row_groups().iter();
    let Some(group) = groups.position(|group| group.num_rows() > 0) else {
        return Ok(None);
    };
    let column = file.get_row_group(group)?.get_column_reader(leaf.index)?;
    let (mut defs, mut reps) = (Vec::new(), Vec::new());
    let (d, r) = (Some(&mut defs), Some(&mut reps));
    // The crate's readers differ by type only.
    let (_, values, _) = match column {
        ColumnReader::FloatColumnReader(mut c) => c.read_records(1, d, r, &mut Vec::new())?,
        ColumnReader::Int32ColumnReader(mut c) => c.read_records(1, d, r, &mut Vec::new())?,
        ColumnReader::Int64ColumnReader(mut c) => c.read_records(1, d, r, &mut Vec::new())?,
        ColumnReader::FixedLenByteArrayColumnReader(mut c) => {
            c.read_records(1, d, r, &mut Vec::new())?
        }
        _ => (0, 0, 0),
    };
    Ok(Some(values))
}

fn columns(path: &Path, chosen: &[Chosen]) -> Result<Vec<Column>, FileError> {
    let column = |one: &Chosen| {
        let elements = one.row_bytes() as u64 / u64::from(one.dtype.bytes());
        Ok(Column {
            name: one.leaf.name.clone(),
            dtype: one.dtype,
            width: width_of(path, &format!("column '{}'", one.leaf.name), elements)?,
        })
    };
    chosen.iter().map(column).collect()
}

impl Cursor {
    fn new(
        path: &Path,
        file: SerializedFileReader<std::fs::File>,
        leaves: Vec<Chosen>,
        row_bytes: usize,
    ) -> Self {
        Self {
            path: path.to_owned(),
            file,
            leaves,
            row_bytes,
            next: 0,
            group: 0,
            readers: Vec::new(),
            left: 0,
        }
    }

    /// Decodes everything once. Returns the keys where there is a leaf of them.
    fn check(&mut self, rows: u64, keys: Option<Chosen>) -> Result<Option<Vec<u64>>, FileError> {
        let keyed = keys.is_some();
        let (values, stride) = (self.row_bytes, self.row_bytes + if keyed { 8 } else { 0 });
        self.leaves.extend(keys);
        self.row_bytes = stride;
        let mut found = Vec::new();
        let mut piece = Vec::new();
        let piece_rows = (PARQUET_PIECE_BYTES / stride).max(1) as u64;
        let mut first = 0;
        while first < rows {
            let count = piece_rows.min(rows - first);
            piece.resize(count as usize * stride, 0);
            self.read_unguarded(first, &mut piece)?;
            if keyed {
                let keys = piece.chunks_exact(stride).map(|row| &row[values..]);
                found.extend(keys.map(|key| {
                    u64::from_le_bytes(key.try_into().expect("8 B of the row are its key's"))
                }));
            }
            first += count;
        }
        if keyed {
            self.leaves.pop();
        }
        self.row_bytes = values;
        self.rewind();
        Ok(keyed.then_some(found))
    }

    fn rewind(&mut self) {
        (self.next, self.group, self.left) = (0, 0, 0);
        self.readers.clear();
    }

    /// Decodes rows from `first` on, whole rows.
    ///
    /// # Errors
    /// [`FileError::Malformed`].
    pub(in super::super) fn read(&mut self, first: u64, out: &mut [u8]) -> Result<(), FileError> {
        let path = self.path.clone();
        guarded(&path, || self.read_unguarded(first, out))
    }

    fn read_unguarded(&mut self, first: u64, out: &mut [u8]) -> Result<(), FileError> {
        if first < self.next {
            self.rewind();
        }
        if first > self.next {
            self.skip(first - self.next)?;
        }
        let mut done = 0;
        while done < out.len() {
            self.enter()?;
            let piece_rows = (PARQUET_PIECE_BYTES / self.row_bytes).max(1);
            let rows = ((out.len() - done) / self.row_bytes)
                .min(piece_rows)
                .min(usize::try_from(self.left).unwrap_or(usize::MAX));
            let piece = &mut out[done..done + rows * self.row_bytes];
            for (reader, leaf) in self.readers.iter_mut().zip(&self.leaves) {
                reader
                    .read(leaf, self.next, rows, self.row_bytes, piece)
                    .map_err(|why| {
                        let why = format!("column '{}' {why}", leaf.leaf.name);
                        FileError::malformed(&self.path, "parquet", why)
                    })?;
            }
            done += piece.len();
            self.next += rows as u64;
            self.left -= rows as u64;
        }
        Ok(())
    }

    fn skip(&mut self, rows: u64) -> Result<(), FileError> {
        let piece_rows = (PARQUET_PIECE_BYTES / self.row_bytes).max(1) as u64;
        let mut left = rows;
        while left > 0 {
            let count = left.min(piece_rows);
            let mut piece = vec![0; count as usize * self.row_bytes];
            self.read_unguarded(self.next, &mut piece)?;
            left -= count;
        }
        Ok(())
    }

    /// Goes to the row group that has the next row.
    fn enter(&mut self) -> Result<(), FileError> {
        while self.left == 0 {
            let group = self
                .file
                .get_row_group(self.group)
                .map_err(damaged(&self.path))?;
            self.left = group.metadata().num_rows().unsigned_abs(); // counted when opened
            self.group += 1;
            let open = |leaf: &Chosen| {
                let column = group.get_column_reader(leaf.leaf.index)?;
                Ok(LeafReader::new(leaf.encoding, column))
            };
            let readers: parquet::errors::Result<_> = self.leaves.iter().map(open).collect();
            self.readers = readers.map_err(damaged(&self.path))?;
        }
        Ok(())
    }
}
