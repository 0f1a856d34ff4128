//! An array where it stands in a file, and positioned reads of it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::element::Element;
use super::{FileError, listed};

/// Bytes that a pass over a whole array reads at once.
const PIECE_BYTES: usize = 1 << 20;

/// An open file with its name. What stands in it was checked against `bytes` when it was opened;
/// one that is cut later fails a read.
#[derive(Debug)]
pub(super) struct Source {
    /// Its name, for error lines.
    pub path: PathBuf,
    /// Its length.
    pub bytes: u64,
    file: File,
}

impl Source {
    /// Opens a file for reading.
    pub fn open(path: &Path) -> Result<Arc<Self>, FileError> {
        let file = File::open(path).map_err(FileError::io(path))?;
        Self::of(path, file)
    }

    /// A file that is open already.
    pub fn of(path: &Path, file: File) -> Result<Arc<Self>, FileError> {
        let about = file.metadata().map_err(FileError::io(path))?;
        if about.is_dir() {
            let source = io::Error::from(io::ErrorKind::IsADirectory);
            return Err(FileError::io(path)(source));
        }
        Ok(Arc::new(Self {
            path: path.to_owned(),
            bytes: about.len(),
            file,
        }))
    }

    /// Fills `out` from `offset` on.
    pub fn read(&self, out: &mut [u8], offset: u64) -> Result<(), FileError> {
        let read = self.file.read_exact_at(out, offset);
        read.map_err(FileError::io(&self.path))
    }

    /// The first `N` bytes from `offset` on.
    pub fn read_array<const N: usize>(&self, offset: u64) -> Result<[u8; N], FileError> {
        let mut out = [0; N];
        self.read(&mut out, offset)?;
        Ok(out)
    }

    /// Calls `each` with all bytes of a range, in order.
    pub fn pass(
        &self,
        offset: u64,
        bytes: u64,
        mut each: impl FnMut(&[u8]),
    ) -> Result<(), FileError> {
        let mut piece = vec![0; PIECE_BYTES];
        let mut done = 0;
        while done < bytes {
            let count = (bytes - done).min(PIECE_BYTES as u64) as usize;
            self.read(&mut piece[..count], offset + done)?;
            each(&piece[..count]);
            done += count as u64;
        }
        Ok(())
    }

    /// The underlying file.
    #[cfg(feature = "parquet")]
    pub fn file(&self) -> &File {
        &self.file
    }
}

/// An array of a file.
#[derive(Debug, Clone)]
pub(super) struct Array {
    /// Its name.
    pub name: String,
    /// What its elements are.
    pub element: Element,
    /// The same, as the format writes it.
    pub written: String,
    /// Lengths of the axes.
    pub shape: Vec<u64>,
    /// The first index runs fastest.
    pub fortran: bool,
    /// Big-endian in the file.
    pub swap: bool,
    /// Where its elements are.
    pub source: Arc<Source>,
    /// Where they start.
    pub offset: u64,
}

impl Array {
    /// Whether these are keys: one axis of u64 or i64.
    pub fn is_keys(&self) -> bool {
        self.element == Element::Key && self.shape.len() == 1
    }

    /// `a 2-D array (3 x 4)`, for error lines.
    pub fn axes(&self) -> String {
        let lengths: Vec<String> = self.shape.iter().map(u64::to_string).collect();
        format!("a {}-D array ({})", lengths.len(), lengths.join(" x "))
    }

    /// Reads the keys.
    ///
    /// # Errors
    /// [`FileError::Unsuitable`] if these are none.
    pub fn read_keys(&self) -> Result<Vec<u64>, FileError> {
        let path = &self.source.path;
        if !self.is_keys() {
            let (axes, written) = (self.axes(), &self.written);
            let why = format!("keys are 1-D u64 or i64, this is {axes} of {written}");
            return Err(FileError::unsuitable(path, why));
        }
        // The file has these bytes: its length was checked against its header.
        let count = usize::try_from(self.shape[0])
            .map_err(|_| FileError::unsuitable(path, "more keys than this machine can address"))?;
        let mut keys = Vec::with_capacity(count);
        self.source.pass(self.offset, count as u64 * 8, |piece| {
            let words = piece.as_chunks::<8>().0.iter();
            if self.swap {
                keys.extend(words.map(|word| u64::from_be_bytes(*word)));
            } else {
                keys.extend(words.map(|word| u64::from_le_bytes(*word)));
            }
        })?;
        Ok(keys)
    }
}

/// Bytes of rows that stand together in a file: one column group, or all of them.
#[derive(Debug, Clone)]
pub(super) struct Part {
    source: Arc<Source>,
    offset: u64,
    /// Elements per row.
    width: usize,
    /// Bytes of an element.
    element: usize,
    fortran: bool,
    swap: bool,
}

impl Part {
    /// The rows of a 2-D array of `width` elements a row, `element` bytes each.
    pub fn of(array: &Array, width: u32, element: u32) -> Self {
        Self {
            source: Arc::clone(&array.source),
            offset: array.offset,
            width: width as usize,
            element: element as usize,
            fortran: array.fortran,
            swap: array.swap,
        }
    }

    /// Whole rows of `row_bytes`, one after the other.
    pub fn whole_rows(source: &Arc<Source>, row_bytes: usize) -> Self {
        Self {
            source: Arc::clone(source),
            offset: 0,
            width: row_bytes,
            element: 1,
            fortran: false,
            swap: false,
        }
    }

    /// Bytes of this part in a row.
    pub const fn row_bytes(&self) -> usize {
        self.width * self.element
    }

    /// Reads the part of rows `first..` (of `rows` in the file) to byte `at` of each row of `out`,
    /// rows being `stride` bytes.
    pub fn read(
        &self,
        rows: u64,
        first: u64,
        at: usize,
        stride: usize,
        out: &mut [u8],
    ) -> Result<(), FileError> {
        let bytes = self.row_bytes();
        if bytes == stride && !self.fortran {
            self.source.read(out, self.offset + first * bytes as u64)?;
            self.swap_elements(out);
            return Ok(());
        }
        // Contiguous runs of so many elements, and the bytes that one has of a row.
        let (runs, piece) = match self.fortran {
            true => (self.width, self.element),
            false => (1, bytes),
        };
        let mut run_bytes = vec![0; out.len() / stride * piece];
        for run in 0..runs {
            let row = run as u64 * rows + first;
            self.source
                .read(&mut run_bytes, self.offset + row * piece as u64)?;
            self.swap_elements(&mut run_bytes);
            let starts = (at + run * piece..).step_by(stride);
            for (start, piece_bytes) in starts.zip(run_bytes.chunks_exact(piece)) {
                out[start..start + piece].copy_from_slice(piece_bytes);
            }
        }
        Ok(())
    }

    fn swap_elements(&self, bytes: &mut [u8]) {
        if self.swap {
            for element in bytes.chunks_exact_mut(self.element) {
                element.reverse();
            }
        }
    }
}

/// The arrays' names, for error lines.
pub(super) fn names<'a>(arrays: impl ExactSizeIterator<Item = &'a Array>) -> String {
    listed(arrays.map(|array| array.name.as_str()))
}
