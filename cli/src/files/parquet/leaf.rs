//! A leaf column of a parquet file, decoded into the bytes of rows.

use mneme_proto::schema::Dtype;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_typed_column_reader};
use parquet::data_type::{DataType, FixedLenByteArrayType, FloatType, Int32Type, Int64Type};
use parquet::errors::Result as Decoded;

use super::super::element::Element;

/// How the values of a leaf become bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    /// FLOAT.
    Float,
    /// INT32 that holds bytes, signed or not.
    Byte {
        /// As i8.
        signed: bool,
    },
    /// INT64.
    Key,
    /// FIXED_LEN_BYTE_ARRAY of so many bytes.
    Fixed(usize),
}

/// A leaf column.
#[derive(Debug, Clone)]
pub(super) struct Leaf {
    /// Its place among the file's leaves.
    pub index: usize,
    /// The name of the top-level column that it is of.
    pub name: String,
    /// How its values are kept; `None` for types that no row has.
    pub encoding: Option<Encoding>,
    /// What its elements are.
    pub element: Element,
    /// The same in the format's words.
    pub written: String,
    /// The level of a value that is not null.
    pub max_def: i16,
    /// How deep its lists are: 0 for one value per row.
    pub max_rep: i16,
}

impl Encoding {
    /// Bytes of a value.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Float => 4,
            Self::Byte { .. } => 1,
            Self::Key => 8,
            Self::Fixed(bytes) => bytes,
        }
    }
}

/// A leaf that is chosen, with its place in a row.
#[derive(Debug, Clone)]
pub(super) struct Chosen {
    /// The leaf.
    pub leaf: Leaf,
    /// How its values are kept.
    pub encoding: Encoding,
    /// Values per row.
    pub values: usize,
    /// Its first byte in a row.
    pub at: usize,
    /// The dtype of its elements.
    pub dtype: Dtype,
}

impl Chosen {
    /// Bytes that it has of a row.
    pub const fn row_bytes(&self) -> usize {
        self.values * self.encoding.bytes()
    }
}

/// Decodes a leaf of one row group in order.
pub(super) enum LeafReader {
    Float(ColumnReaderImpl<FloatType>),
    Byte(ColumnReaderImpl<Int32Type>),
    Key(ColumnReaderImpl<Int64Type>),
    Fixed(ColumnReaderImpl<FixedLenByteArrayType>),
}

impl std::fmt::Debug for LeafReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LeafReader")
    }
}

impl LeafReader {
    /// A reader of the kind that the encoding needs.
    pub fn new(encoding: Encoding, column: ColumnReader) -> Self {
        match encoding {
            Encoding::Float => Self::Float(get_typed_column_reader(column)),
            Encoding::Byte { .. } => Self::Byte(get_typed_column_reader(column)),
            Encoding::Key => Self::Key(get_typed_column_reader(column)),
            Encoding::Fixed(_) => Self::Fixed(get_typed_column_reader(column)),
        }
    }

    /// Decodes the next `rows` rows into their places in `out`, whose rows are `stride` bytes.
    ///
    /// # Errors
    /// What is wrong with the column, as part of an error line; `first` is the first row's number.
    pub fn read(
        &mut self,
        of: &Chosen,
        first: u64,
        rows: usize,
        stride: usize,
        out: &mut [u8],
    ) -> Result<(), String> {
        match self {
            Self::Float(reader) => {
                let values = values(reader, of, first, rows)?;
                place(of, stride, out, values.iter().map(|v| v.to_le_bytes()));
            }
            Self::Byte(reader) => {
                let values = values(reader, of, first, rows)?;
                let signed = of.encoding == Encoding::Byte { signed: true };
                let fits = |v: &i32| match signed {
                    true => i8::try_from(*v).is_ok(),
                    false => u8::try_from(*v).is_ok(),
                };
                if let Some(value) = values.iter().find(|v| !fits(v)) {
                    return Err(format!("has {value}, which is no {}", of.leaf.written));
                }
                place(of, stride, out, values.iter().map(|v| [*v as u8]));
            }
            Self::Key(reader) => {
                let values = values(reader, of, first, rows)?;
                place(of, stride, out, values.iter().map(|v| v.to_le_bytes()));
            }
            Self::Fixed(reader) => {
                let values = values(reader, of, first, rows)?;
                let bytes = of.encoding.bytes();
                if values.iter().any(|v| v.len() != bytes) {
                    return Err(format!("has a value that is not {bytes} B long"));
                }
                place(of, stride, out, values.iter());
            }
        }
        Ok(())
    }
}

/// The values of the next `rows` rows: none null, every row as long as the first.
fn values<T: DataType>(
    reader: &mut ColumnReaderImpl<T>,
    of: &Chosen,
    first: u64,
    rows: usize,
) -> Result<Vec<T::T>, String> {
    let (mut defs, mut reps) = (Vec::new(), Vec::new());
    let mut values = Vec::new();
    let mut found = 0;
    while found < rows {
        let left = rows - found;
        let read: Decoded<_> =
            reader.read_records(left, Some(&mut defs), Some(&mut reps), &mut values);
        match read.map_err(|error| error.to_string())? {
            (0, ..) => return Err(format!("ends before row {}", first + rows as u64)),
            (records, ..) => found += records,
        }
    }
    let row_of = |value: usize| first + (value / of.values) as u64;
    if of.leaf.max_def > 0
        && let Some(null) = defs.iter().position(|level| *level != of.leaf.max_def)
    {
        let row = row_of(null);
        return Err(format!(
            "has a null or an empty list at or before row {row}"
        ));
    }
    if of.leaf.max_rep > 0 {
        let starts = |(at, level): (usize, &i16)| (*level == 0) != at.is_multiple_of(of.values);
        if let Some(at) = reps.iter().enumerate().position(starts) {
            let (row, wanted) = (row_of(at), of.values);
            return Err(format!(
                "has lists of several lengths: row {row} is not {wanted} long as the first one is"
            ));
        }
    }
    if found != rows || values.len() != rows * of.values {
        let (found, wanted) = (values.len(), of.values);
        return Err(format!(
            "has lists of several lengths: {found} values do not make {rows} rows of {wanted}"
        ));
    }
    Ok(values)
}

/// Writes values one after the other into the leaf's part of each row.
fn place<B: AsRef<[u8]>>(
    of: &Chosen,
    stride: usize,
    out: &mut [u8],
    mut values: impl Iterator<Item = B>,
) {
    let bytes = of.encoding.bytes();
    for row in out.chunks_exact_mut(stride) {
        let part = &mut row[of.at..of.at + of.row_bytes()];
        for slot in part.chunks_exact_mut(bytes) {
            if let Some(value) = values.next() {
                slot.copy_from_slice(value.as_ref());
            }
        }
    }
}
