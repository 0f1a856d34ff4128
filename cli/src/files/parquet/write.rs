//! Writing parquet files: `keys` (UINT64) where the rows have them, and a column for each plane.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use mneme_proto::schema::Dtype;
use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical};
use parquet::data_type::{
    ByteArray, DataType, FixedLenByteArray, FixedLenByteArrayType, FloatType, Int32Type, Int64Type,
};
use parquet::errors::{ParquetError, Result as Encoded};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::{Type, TypePtr};

use super::super::rows::KEYS;
use super::super::write::Pending;
use super::super::{Column, FileError};
use super::{PLANES, PlaneNote};
use crate::limits::PARQUET_GROUP_BYTES;

/// A file being written. Rows gather until a row group of them is full.
pub(in super::super) struct Writer {
    pending: Pending,
    file: SerializedFileWriter<File>,
    columns: Vec<Column>,
    keyed: bool,
    stride: usize,
    keys: Vec<u64>,
    rows: Vec<u8>,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer")
            .field("pending", &self.pending)
            .finish_non_exhaustive()
    }
}

/// Whether a dtype's rows are one binary value each, parquet having no type for its elements.
const fn is_binary(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::Bf16 | Dtype::F8e4m3 | Dtype::F8e5m2)
}

/// The type of a plane's column: a required list of required elements, or a binary value.
fn plane_type(column: &Column) -> Encoded<Type> {
    let name = column.name.as_str();
    let element = |physical| {
        Type::primitive_type_builder("element", physical).with_repetition(Repetition::REQUIRED)
    };
    let element = match column.dtype {
        Dtype::F32 => element(Physical::FLOAT),
        Dtype::F16 => element(Physical::FIXED_LEN_BYTE_ARRAY)
            .with_length(2)
            .with_logical_type(Some(LogicalType::Float16)),
        Dtype::I8 | Dtype::U8 => {
            let signed = column.dtype == Dtype::I8;
            element(Physical::INT32).with_logical_type(Some(LogicalType::integer(8, signed)))
        }
        Dtype::Bf16 | Dtype::F8e4m3 | Dtype::F8e5m2 => {
            let bytes = i32::try_from(column.bytes())
                .map_err(|_| ParquetError::General("a row is too long".into()))?;
            return Type::primitive_type_builder(name, Physical::FIXED_LEN_BYTE_ARRAY)
                .with_repetition(Repetition::REQUIRED)
                .with_length(bytes)
                .build();
        }
    };
    let list = Type::group_type_builder("list")
        .with_repetition(Repetition::REPEATED)
        .with_fields(vec![Arc::new(element.build()?)])
        .build()?;
    Type::group_type_builder(name)
        .with_repetition(Repetition::REQUIRED)
        .with_logical_type(Some(LogicalType::List))
        .with_fields(vec![Arc::new(list)])
        .build()
}

fn schema(columns: &[Column], keyed: bool) -> Encoded<TypePtr> {
    let mut fields = Vec::new();
    if keyed {
        let keys = Type::primitive_type_builder(KEYS, Physical::INT64)
            .with_repetition(Repetition::REQUIRED)
            .with_logical_type(Some(LogicalType::integer(64, false)));
        fields.push(Arc::new(keys.build()?));
    }
    for column in columns {
        fields.push(Arc::new(plane_type(column)?));
    }
    let root = Type::group_type_builder("mneme")
        .with_fields(fields)
        .build()?;
    Ok(Arc::new(root))
}

/// An error of the encoder: the operating system's word, or its own.
fn failed(path: &Path) -> impl FnOnce(ParquetError) -> FileError + '_ {
    move |error| FileError::io(path)(io::Error::other(error))
}

impl Writer {
    /// Begins a file.
    pub fn create(path: &Path, columns: &[Column], keyed: bool) -> Result<Self, FileError> {
        let note = |column: &Column| PlaneNote {
            name: column.name.clone(),
            dtype: column.dtype,
            dim: column.width,
        };
        let notes: Vec<PlaneNote> = columns.iter().map(note).collect();
        let notes = serde_json::to_string(&notes).expect("plain values are JSON");
        // Rows are noise to a compressor, and every one is different.
        let properties = WriterProperties::builder()
            .set_created_by(concat!("mneme ", env!("CARGO_PKG_VERSION")).into())
            .set_compression(Compression::UNCOMPRESSED)
            .set_dictionary_enabled(false)
            .set_statistics_enabled(EnabledStatistics::None)
            .set_key_value_metadata(Some(vec![KeyValue::new(PLANES.into(), notes)]))
            .build();
        let schema = schema(columns, keyed).map_err(failed(path))?;
        let pending = Pending::create(path, &[])?;
        let handle = pending.handle()?;
        let file = SerializedFileWriter::new(handle, schema, Arc::new(properties));
        Ok(Self {
            file: file.map_err(failed(path))?,
            pending,
            columns: columns.to_vec(),
            keyed,
            stride: columns.iter().map(Column::bytes).sum(),
            keys: Vec::new(),
            rows: Vec::new(),
        })
    }

    /// Takes the next rows.
    pub fn write(&mut self, keys: &[u64], rows: &[u8]) -> Result<(), FileError> {
        let count = rows.len() / self.stride;
        assert_eq!(rows.len() % self.stride, 0, "whole rows");
        let keyed = if self.keyed { count } else { 0 };
        assert_eq!(keys.len(), keyed, "a key for every row that has one");
        self.keys.extend_from_slice(keys);
        self.rows.extend_from_slice(rows);
        if self.rows.len() < PARQUET_GROUP_BYTES {
            return Ok(());
        }
        self.write_group()
    }

    fn write_group(&mut self) -> Result<(), FileError> {
        let Self {
            file, keys, rows, ..
        } = self;
        let mut write = || {
            let mut group = file.next_row_group()?;
            if self.keyed {
                let keys: Vec<i64> = keys.iter().map(|key| key.cast_signed()).collect();
                write_column::<Int64Type>(&mut group, &keys, None)?;
            }
            let mut at = 0;
            for column in &self.columns {
                let parts = rows
                    .chunks_exact(self.stride)
                    .map(|row| &row[at..at + column.bytes()]);
                write_plane(&mut group, column, parts)?;
                at += column.bytes();
            }
            group.close().map(|_| ())
        };
        write().map_err(failed(self.pending.path()))?;
        self.keys.clear();
        self.rows.clear();
        Ok(())
    }

    /// Writes what is left and makes the file durable.
    pub fn finish(mut self) -> Result<Vec<PathBuf>, FileError> {
        if !self.rows.is_empty() {
            self.write_group()?;
        }
        self.file.close().map_err(failed(self.pending.path()))?;
        Ok(vec![self.pending.finish()?])
    }
}

/// Writes one plane of the rows of a group.
fn write_plane<'r>(
    group: &mut SerializedRowGroupWriter<'_, File>,
    column: &Column,
    parts: impl Iterator<Item = &'r [u8]>,
) -> Encoded<()> {
    let width = column.width as usize;
    if is_binary(column.dtype) {
        let values: Vec<FixedLenByteArray> = parts.map(binary).collect();
        return write_column::<FixedLenByteArrayType>(group, &values, None);
    }
    match column.dtype {
        Dtype::F32 => {
            let words = parts.flat_map(|part| part.as_chunks::<4>().0);
            let values: Vec<f32> = words.map(|word| f32::from_le_bytes(*word)).collect();
            write_column::<FloatType>(group, &values, Some(width))
        }
        Dtype::F16 => {
            let values: Vec<FixedLenByteArray> = parts
                .flat_map(|part| part.chunks_exact(2))
                .map(binary)
                .collect();
            write_column::<FixedLenByteArrayType>(group, &values, Some(width))
        }
        Dtype::I8 => {
            let values: Vec<i32> = parts
                .flatten()
                .map(|&byte| i32::from(byte.cast_signed()))
                .collect();
            write_column::<Int32Type>(group, &values, Some(width))
        }
        _ => {
            let values: Vec<i32> = parts.flatten().map(|&byte| i32::from(byte)).collect();
            write_column::<Int32Type>(group, &values, Some(width))
        }
    }
}

fn binary(bytes: &[u8]) -> FixedLenByteArray {
    FixedLenByteArray::from(ByteArray::from(Bytes::copy_from_slice(bytes)))
}

/// Writes the next column: values in lists of `list`, or one per row.
fn write_column<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, File>,
    values: &[T::T],
    list: Option<usize>,
) -> Encoded<()> {
    let column = group.next_column()?;
    let mut column = column.ok_or_else(|| ParquetError::General("a column too many".into()))?;
    let typed = column.typed::<T>();
    match list {
        None => typed.write_batch(values, None, None)?,
        Some(width) => {
            // Only the repeated group has levels: 1 is a value, and 0 begins a row.
            let defs = vec![1i16; values.len()];
            let begins = |at: usize| i16::from(!at.is_multiple_of(width));
            let reps: Vec<i16> = (0..values.len()).map(begins).collect();
            typed.write_batch(values, Some(&defs), Some(&reps))?
        }
    };
    column.close()
}
