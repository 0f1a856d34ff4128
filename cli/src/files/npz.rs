//! npz files: a zip container of npy members, as `numpy.savez` and `savez_compressed` write.
//!
//! Every member's checksum is checked when the file is opened. Deflated members are unpacked into
//! a temporary file without a name, which takes their size on disk while the import runs.

use std::fs::File;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use flate2::read::DeflateDecoder;

use super::array::{Array, Source};
use super::zip::{self, Member, Method};
use super::{FileError, npy};
use crate::limits::DEFLATE_RATIO_MAX;

/// The arrays of a file, in the order of their bytes.
///
/// # Errors
/// [`FileError`]: a damaged container, a member that is no npy file or does not match its
/// checksum.
pub(super) fn arrays(path: &Path) -> Result<Vec<Array>, FileError> {
    let source = Source::open(path)?;
    let members = zip::members(&source)?;
    members
        .iter()
        .map(|member| array(&source, member))
        .collect()
}

fn array(source: &Arc<Source>, member: &Member) -> Result<Array, FileError> {
    let damaged = |why: String| {
        let why = format!("member '{}' {why}", member.name);
        FileError::malformed(&source.path, "npz", why)
    };
    let Some(name) = member.name.strip_suffix(".npy") else {
        return Err(damaged("is no .npy file".into()));
    };
    let mut crc = crc32fast::Hasher::new();
    let (placed, offset) = match member.method {
        Method::Stored => {
            source.pass(member.span.start, member.bytes, |piece| crc.update(piece))?;
            (Arc::clone(source), member.span.start)
        }
        Method::Deflated => (unpack(source, member, &mut crc)?, 0),
    };
    if crc.finalize() != member.crc {
        return Err(damaged("does not match its checksum".into()));
    }
    let mut array = npy::array(&placed, offset, member.bytes)?;
    name.clone_into(&mut array.name);
    Ok(array)
}

/// Unpacks a member into a file without a name.
fn unpack(
    source: &Source,
    member: &Member,
    crc: &mut crc32fast::Hasher,
) -> Result<Arc<Source>, FileError> {
    let damaged = |why: &str| {
        let why = format!("member '{}' {why}", member.name);
        FileError::malformed(&source.path, "npz", why)
    };
    let kept = member.span.end - member.span.start;
    if member.bytes / DEFLATE_RATIO_MAX > kept {
        return Err(damaged("claims more bytes than deflate can pack"));
    }
    let packed = Span {
        source,
        left: member.span.clone(),
    };
    // One byte more than there should be, to see that there is none.
    let mut unpacked = DeflateDecoder::new(packed).take(member.bytes.saturating_add(1));
    let mut file = tempfile::tempfile().map_err(FileError::io(&source.path))?;
    let mut piece = vec![0; 1 << 20];
    let mut bytes = 0;
    loop {
        let count = match unpacked.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => count,
            Err(_) => return Err(damaged("is not deflated as it should be")),
        };
        crc.update(&piece[..count]);
        bytes += count as u64;
        write(&mut file, &piece[..count]).map_err(FileError::io(&source.path))?;
    }
    if bytes != member.bytes {
        return Err(damaged("unpacks to another length than its own"));
    }
    Source::of(&source.path, file)
}

fn write(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    file.write_all(bytes)
        .map_err(|error| io::Error::new(error.kind(), format!("unpacking it: {error}")))
}

/// A range of a file, as a reader.
struct Span<'a> {
    source: &'a Source,
    left: Range<u64>,
}

impl Read for Span<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = (self.left.end - self.left.start).min(out.len() as u64) as usize;
        self.source
            .read(&mut out[..count], self.left.start)
            .map_err(io::Error::other)?;
        self.left.start += count as u64;
        Ok(count)
    }
}
