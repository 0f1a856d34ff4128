//! Reading rows: one description for both formats, positioned reads in the caller's pieces.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use mneme_proto::schema::{Dtype, Plane};
use safetensors::Dtype as FileDtype;

use super::safetensors::Tensor;
use super::{Column, FileError, Format, listed, npy, safetensors as st};
use crate::limits::SAFETENSORS_HEADER_BYTES_MAX;

/// The tensor of a safetensors file that holds the keys of hashed rows.
pub(super) const KEYS_TENSOR: &str = "keys";

/// The rows of a file, checked as a whole and not yet read.
#[derive(Debug)]
pub struct RowFile {
    path: PathBuf,
    file: File,
    rows: u64,
    parts: Vec<Part>,
    columns: Vec<Column>,
    keys: Option<Part>,
}

/// A column group where it stands in the file.
#[derive(Debug, Clone, Copy)]
struct Part {
    offset: u64,
    /// Elements per row.
    width: usize,
    /// Bytes of an element.
    element: usize,
    /// The first index runs fastest.
    fortran: bool,
    /// Big-endian in the file.
    swap: bool,
}

/// Opens a file and chooses the tensors that make up its rows.
///
/// `tensor` names one; without it a safetensors file must hold one 2-D tensor beside `keys`, or
/// one tensor for each of `planes` (of the table that it is read for) by name.
///
/// # Errors
/// [`FileError`] when the file is damaged, or does not hold rows of a known dtype.
pub fn open(
    path: &Path,
    tensor: Option<&str>,
    planes: Option<&[Plane]>,
) -> Result<RowFile, FileError> {
    match Format::of(path)? {
        Format::Safetensors => open_safetensors(path, tensor, planes),
        Format::Npy if tensor.is_some() => {
            let why = "an npy file holds one array without a name: leave --tensor out";
            Err(FileError::unsuitable(path, why))
        }
        Format::Npy => open_npy(path),
    }
}

/// Reads the keys of an npy file: 1-D u64, or i64 taken as its two's complement.
///
/// # Errors
/// [`FileError`] when the file is damaged or holds something else.
pub fn read_keys(path: &Path) -> Result<Vec<u64>, FileError> {
    if Format::of(path)? != Format::Npy {
        return Err(FileError::unsuitable(path, "keys come as FILE.npy"));
    }
    let (file, header) = npy_header(path)?;
    let part = match (header.descr.as_str(), &header.shape[..]) {
        ("<u8" | "<i8" | "=u8" | "=i8", [_]) => Part::of_keys(header.data_offset, false),
        (">u8" | ">i8", [_]) => Part::of_keys(header.data_offset, true),
        (descr, shape) => {
            let why = format!(
                "keys are 1-D u64 or i64, this is {} of {descr}",
                axes(shape)
            );
            return Err(FileError::unsuitable(path, why));
        }
    };
    read_keys_part(path, &file, part, header.shape[0])
}

fn read_keys_part(path: &Path, file: &File, part: Part, rows: u64) -> Result<Vec<u64>, FileError> {
    // The file has these bytes: its length was checked against its header.
    let count = usize::try_from(rows)
        .map_err(|_| FileError::unsuitable(path, "more keys than this machine can address"))?;
    let mut keys = Vec::with_capacity(count);
    let mut piece = vec![0u8; 8 << 16];
    while keys.len() < count {
        let bytes = &mut piece[..8 * (count - keys.len()).min(1 << 16)];
        file.read_exact_at(bytes, part.offset + 8 * keys.len() as u64)
            .map_err(FileError::io(path))?;
        keys.extend(bytes.chunks_exact(8).map(|chunk| {
            let chunk = chunk.try_into().expect("chunks are 8 B");
            if part.swap {
                u64::from_be_bytes(chunk)
            } else {
                u64::from_le_bytes(chunk)
            }
        }));
    }
    Ok(keys)
}

impl Part {
    const fn of_keys(offset: u64, swap: bool) -> Self {
        Self {
            offset,
            width: 1,
            element: 8,
            fortran: false,
            swap,
        }
    }

    const fn row_bytes(&self) -> usize {
        self.width * self.element
    }
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
        self.parts.iter().map(Part::row_bytes).sum()
    }

    /// The keys that the file itself holds beside its rows, as hashed exports do.
    ///
    /// # Errors
    /// [`FileError::Io`].
    pub fn keys(&self) -> Result<Option<Vec<u64>>, FileError> {
        self.keys
            .map(|part| read_keys_part(&self.path, &self.file, part, self.rows))
            .transpose()
    }

    /// Reads rows from `first` on into `out`, whole rows, little-endian, columns concatenated.
    ///
    /// # Errors
    /// [`FileError::Io`], also when the file was cut since it was opened.
    ///
    /// # Panics
    /// If `out` is not a whole number of rows of the file.
    pub fn read(&self, first: u64, out: &mut [u8]) -> Result<(), FileError> {
        let stride = self.row_bytes();
        assert_eq!(out.len() % stride, 0, "whole rows");
        let count = out.len() / stride;
        assert!(first + count as u64 <= self.rows, "rows of the file");
        let mut at = 0;
        for part in &self.parts {
            self.read_part(part, first, count, at, stride, out)
                .map_err(FileError::io(&self.path))?;
            at += part.row_bytes();
        }
        Ok(())
    }

    fn read_part(
        &self,
        part: &Part,
        first: u64,
        count: usize,
        at: usize,
        stride: usize,
        out: &mut [u8],
    ) -> std::io::Result<()> {
        let bytes = part.row_bytes();
        if bytes == stride && !part.fortran {
            let offset = part.offset + first * bytes as u64;
            self.file.read_exact_at(out, offset)?;
            swap_elements(out, part);
            return Ok(());
        }
        // (elements, offset) of each contiguous run, and where its pieces go in a row.
        let (runs, piece) = if part.fortran {
            (part.width, part.element)
        } else {
            (1, bytes)
        };
        let mut run_bytes = vec![0u8; count * piece];
        for run in 0..runs {
            let row = run as u64 * self.rows + first;
            self.file
                .read_exact_at(&mut run_bytes, part.offset + row * piece as u64)?;
            swap_elements(&mut run_bytes, part);
            let starts = (at + run * piece..).step_by(stride);
            for (start, piece_bytes) in starts.zip(run_bytes.chunks_exact(piece)) {
                out[start..start + piece].copy_from_slice(piece_bytes);
            }
        }
        Ok(())
    }
}

fn swap_elements(bytes: &mut [u8], part: &Part) {
    if part.swap {
        for element in bytes.chunks_exact_mut(part.element) {
            element.reverse();
        }
    }
}

/// `a 2-D array (3 x 4)`, for error lines.
fn axes(shape: &[u64]) -> String {
    let lengths: Vec<String> = shape.iter().map(u64::to_string).collect();
    format!("a {}-D array ({})", shape.len(), lengths.join(" x "))
}

fn width_of(path: &Path, what: &str, width: u64) -> Result<u32, FileError> {
    match u32::try_from(width) {
        Ok(width) if width > 0 => Ok(width),
        _ => {
            let why = format!("{what} has rows of {width} elements");
            Err(FileError::unsuitable(path, why))
        }
    }
}

fn npy_header(path: &Path) -> Result<(File, npy::Header), FileError> {
    let malformed = |why: String| FileError::malformed(path, "npy", why);
    let file = File::open(path).map_err(FileError::io(path))?;
    let file_bytes = file.metadata().map_err(FileError::io(path))?.len();
    let mut start = [0; 12];
    if file_bytes < start.len() as u64 {
        return Err(malformed(format!("{file_bytes} B are less than a header")));
    }
    file.read_exact_at(&mut start, 0)
        .map_err(FileError::io(path))?;
    let end = npy::header_end(&start).map_err(malformed)?;
    if end > file_bytes {
        let why = format!("its header ends at {end}, the file at {file_bytes} B");
        return Err(malformed(why));
    }
    let mut bytes = vec![0; end as usize]; // bounded by NPY_HEADER_BYTES_MAX
    file.read_exact_at(&mut bytes, 0)
        .map_err(FileError::io(path))?;
    let header = npy::parse(&bytes).map_err(malformed)?;
    // The element's size is the number that ends its descr; others are refused further on.
    let element = header.descr.get(2..).and_then(|n| n.parse::<u64>().ok());
    if let Some(element) = element {
        let want = header
            .shape
            .iter()
            .try_fold(element, |product, &axis| product.checked_mul(axis))
            .and_then(|bytes| bytes.checked_add(end))
            .ok_or_else(|| malformed(format!("{:?} has no size in 64 bits", header.shape)))?;
        // Objects are pickled: their size says nothing, and their dtype is refused.
        if want != file_bytes && !header.descr.contains('O') {
            let why = format!("its header describes {want} B, the file has {file_bytes} B");
            return Err(malformed(why));
        }
    }
    Ok((file, header))
}

fn open_npy(path: &Path) -> Result<RowFile, FileError> {
    let (file, header) = npy_header(path)?;
    let (dtype, swap) = match header.descr.as_str() {
        "<f4" | "=f4" => (Dtype::F32, false),
        ">f4" => (Dtype::F32, true),
        "|u1" | "<u1" | ">u1" | "=u1" => (Dtype::U8, false),
        descr if descr.contains('O') => {
            let why = "it holds pickled Python objects, which are never read: save numbers";
            return Err(FileError::unsuitable(path, why));
        }
        descr => {
            let why = format!("its elements are {descr}; tables take f32 (<f4) and u8 (|u1)");
            return Err(FileError::unsuitable(path, why));
        }
    };
    let &[rows, width] = &header.shape[..] else {
        let why = format!("rows are a 2-D array, this is {}", axes(&header.shape));
        return Err(FileError::unsuitable(path, why));
    };
    let column = Column {
        name: "values".into(),
        dtype,
        width: width_of(path, "its array", width)?,
    };
    let part = Part {
        offset: header.data_offset,
        width: column.width as usize,
        element: dtype.bytes() as usize,
        fortran: header.fortran,
        swap,
    };
    Ok(RowFile {
        path: path.to_owned(),
        file,
        rows,
        parts: vec![part],
        columns: vec![column],
        keys: None,
    })
}

fn safetensors_header(path: &Path) -> Result<(File, Vec<Tensor>), FileError> {
    let malformed = |why: String| FileError::malformed(path, "safetensors", why);
    let file = File::open(path).map_err(FileError::io(path))?;
    let file_bytes = file.metadata().map_err(FileError::io(path))?.len();
    let mut length = [0; 8];
    if file_bytes < 8 {
        return Err(malformed(format!("{file_bytes} B are less than a header")));
    }
    file.read_exact_at(&mut length, 0)
        .map_err(FileError::io(path))?;
    let length = u64::from_le_bytes(length);
    if length > SAFETENSORS_HEADER_BYTES_MAX || length > file_bytes - 8 {
        let why = format!("a header of {length} B does not fit the file of {file_bytes} B");
        return Err(malformed(why));
    }
    let mut json = vec![0; length as usize]; // the file has these bytes
    file.read_exact_at(&mut json, 8)
        .map_err(FileError::io(path))?;
    let tensors = st::parse(&json, file_bytes).map_err(malformed)?;
    Ok((file, tensors))
}

fn open_safetensors(
    path: &Path,
    tensor: Option<&str>,
    planes: Option<&[Plane]>,
) -> Result<RowFile, FileError> {
    let (file, tensors) = safetensors_header(path)?;
    let chosen = choose(path, &tensors, tensor, planes)?;
    let rows = chosen[0].shape.first().copied().unwrap_or(0);
    let (mut parts, mut columns) = (Vec::new(), Vec::new());
    for tensor in chosen {
        let what = format!("tensor '{}'", tensor.name);
        let dtype = match tensor.dtype {
            FileDtype::F32 => Dtype::F32,
            FileDtype::U8 => Dtype::U8,
            _ => {
                let word = tensor.dtype_word();
                let why = format!("{what} is {word}; tables take f32 (F32) and u8 (U8)");
                return Err(FileError::unsuitable(path, why));
            }
        };
        let &[its_rows, width] = &tensor.shape[..] else {
            let why = format!("rows are a 2-D array, {what} is {}", axes(&tensor.shape));
            return Err(FileError::unsuitable(path, why));
        };
        if its_rows != rows {
            let why = format!("{what} has {its_rows} rows, the plane before it {rows}");
            return Err(FileError::unsuitable(path, why));
        }
        let width = width_of(path, &what, width)?;
        parts.push(Part {
            offset: tensor.offset,
            width: width as usize,
            element: dtype.bytes() as usize,
            fortran: false,
            swap: false,
        });
        columns.push(Column {
            name: tensor.name.clone(),
            dtype,
            width,
        });
    }
    let keys = tensors.iter().find(|t| is_keys(t));
    let keys = keys.filter(|t| t.shape == [rows]);
    Ok(RowFile {
        path: path.to_owned(),
        file,
        rows,
        parts,
        columns,
        keys: keys.map(|t| Part::of_keys(t.offset, false)),
    })
}

fn is_keys(tensor: &Tensor) -> bool {
    let integer = matches!(tensor.dtype, FileDtype::U64 | FileDtype::I64);
    tensor.name == KEYS_TENSOR && tensor.shape.len() == 1 && integer
}

/// The tensors that make up a row.
fn choose<'a>(
    path: &Path,
    tensors: &'a [Tensor],
    name: Option<&str>,
    planes: Option<&[Plane]>,
) -> Result<Vec<&'a Tensor>, FileError> {
    let find = |name: &str| tensors.iter().find(|t| t.name == name);
    let names = |of: &[&'a Tensor]| listed(of.iter().map(|t| t.name.as_str()));
    if let Some(name) = name {
        return find(name).map(|tensor| vec![tensor]).ok_or_else(|| {
            let all: Vec<&Tensor> = tensors.iter().collect();
            let why = format!("it has no tensor '{name}'; it has {}", names(&all));
            FileError::unsuitable(path, why)
        });
    }
    if let Some(planes) = planes {
        let by_name: Option<Vec<&Tensor>> = planes.iter().map(|p| find(&p.name)).collect();
        if let Some(found) = by_name.filter(|found| !found.is_empty()) {
            return Ok(found);
        }
    }
    let candidates: Vec<&Tensor> = tensors
        .iter()
        .filter(|t| t.shape.len() == 2 && t.name != KEYS_TENSOR)
        .collect();
    match candidates.len() {
        1 => Ok(candidates),
        0 => Err(FileError::unsuitable(path, "it holds no 2-D tensor")),
        n => {
            let why = format!(
                "it holds {n} 2-D tensors, choose one by --tensor: {}",
                names(&candidates)
            );
            Err(FileError::unsuitable(path, why))
        }
    }
}
