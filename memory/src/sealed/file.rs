//! A sealed shard in a file of the node's data directory.
//!
//! | offset | what |
//! |---|---|
//! | 0 | the region's header page, 4096 bytes (`header`) |
//! | 4096 | head, 64 bytes, see below |
//! | 4160 | CRC32C u32 of each 64 MiB chunk of the content |
//! | next multiple of 4096 | the slab: `rows` slots |
//!
//! The head: magic `mnemesea` u64, version u32, CRC32C u32 over head (this field zero) and chunk
//! digests, rows u64, row bytes u32, keyed u32, content bytes u64, combined digest u64, chunks u64,
//! zeros u64. All little-endian.
//!
//! A file is written under a temporary name, fsynced, renamed, and its directory
//! fsynced, so that the name never shows a partial one. Loading believes nothing: length and
//! digests are checked, and what does not fit is refused by file and chunk.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mneme_proto::ids::{ClusterId, Generation, RegionId, ShardId};
use mneme_proto::limits::{DIGEST_CHUNK_BYTES, ROW_BYTES_MAX};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Digests, SealError, SealedBuilder, SealedShard, SealedSpec};
use crate::header::{HeaderError, LayoutKind, RegionHeader};
use crate::limits::{HEADER_PAGE_BYTES, SLOTS_MAX};
use crate::plan;
use crate::pool::{Pool, PoolError};

const MAGIC: u64 = u64::from_le_bytes(*b"mnemesea");
const VERSION: u32 = 1;
const HEAD_BYTES: u64 = size_of::<Head>() as u64;

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Head {
    magic: U64,
    version: U32,
    crc: U32,
    rows: U64,
    row_bytes: U32,
    keyed: U32,
    content_bytes: U64,
    combined: U64,
    chunks: U64,
    zeros: U64,
}

/// Why a sealed shard was not saved or loaded.
#[derive(Debug, thiserror::Error)]
pub enum SealedFileError {
    /// The system refused.
    #[error("{call} {}: {source}", path.display())]
    Io {
        /// What was being done.
        call: &'static str,
        /// To which file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Not a sealed shard's file, or its header page is damaged.
    #[error("{}: {source}", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// What is wrong with its header page.
        source: HeaderError,
    },
    /// Written by a newer version.
    #[error(
        "{}: made by a newer version: format {found}, this build reads up to {known}",
        path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// Ours.
        known: u32,
    },
    /// The head is damaged or contradicts itself.
    #[error("{}: {why}", path.display())]
    Head {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// Bytes of the content are missing or follow its end.
    #[error(
        "{}: has {found} bytes, {expected} are needed; chunk {chunk} is the first affected",
        path.display()
    )]
    Length {
        /// The file.
        path: PathBuf,
        /// Its length.
        found: u64,
        /// What its head says.
        expected: u64,
        /// The first 64 MiB chunk that is not whole.
        chunk: u64,
    },
    /// A chunk's bytes are not those that were sealed.
    #[error(
        "{}: chunk {chunk} is damaged: its CRC32C is {computed:08x}, {expected:08x} was sealed",
        path.display()
    )]
    Chunk {
        /// The file.
        path: PathBuf,
        /// Which 64 MiB chunk, from 0.
        chunk: u64,
        /// What was sealed.
        expected: u32,
        /// What its bytes give.
        computed: u32,
    },
    /// The file is another shard's.
    #[error("{}: holds shard {found} of cluster {cluster}, {expected} was asked", path.display())]
    OtherShard {
        /// The file.
        path: PathBuf,
        /// Its shard.
        found: ShardId,
        /// Its cluster.
        cluster: ClusterId,
        /// The shard asked for.
        expected: ShardId,
    },
    /// The pool has no room.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The contents are no sealed shard's.
    #[error("{}: {source}", path.display())]
    Seal {
        /// The file.
        path: PathBuf,
        /// Why.
        source: SealError,
    },
}

/// Who a loaded shard will be: a region and generation of its own, since neither is reused (I-6).
#[derive(Debug, Clone, Copy)]
pub struct LoadAs {
    /// The cluster that the file must be of.
    pub cluster: ClusterId,
    /// The shard that the file must be of.
    pub shard: ShardId,
    /// The new region.
    pub region: RegionId,
    /// Its generation.
    pub generation: Generation,
    /// Seed of the new index.
    pub seed: u64,
}

fn io_at<'a>(
    call: &'static str,
    path: &'a Path,
) -> impl FnOnce(io::Error) -> SealedFileError + use<'a> {
    move |source| SealedFileError::Io {
        call,
        path: path.to_owned(),
        source,
    }
}

fn head_crc(mut head: Head, chunks: &[u8]) -> u32 {
    head.crc = 0.into();
    crc32c::crc32c_append(crc32c::crc32c(head.as_bytes()), chunks)
}

/// Where the content starts: after header page, head and chunk digests, at a whole page.
const fn content_offset(chunks: u64) -> u64 {
    (HEADER_PAGE_BYTES + HEAD_BYTES + chunks * 4).next_multiple_of(HEADER_PAGE_BYTES)
}

impl SealedShard {
    /// Writes the shard, header first, to `out`.
    ///
    /// # Errors
    /// What `out` says.
    pub fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        let inner = &*self.inner;
        let digests: Vec<U32> = inner
            .digests
            .chunks
            .iter()
            .map(|crc| U32::new(*crc))
            .collect();
        let mut head = Head {
            magic: MAGIC.into(),
            version: VERSION.into(),
            crc: 0.into(),
            rows: inner.rows.into(),
            row_bytes: (inner.row_bytes as u32).into(),
            keyed: u32::from(inner.keyed).into(),
            content_bytes: (inner.content().len() as u64).into(),
            combined: inner.digests.combined.into(),
            chunks: (digests.len() as u64).into(),
            zeros: 0.into(),
        };
        head.crc = head_crc(head, digests.as_bytes()).into();
        out.write_all(self.header().encode().as_slice())?;
        out.write_all(head.as_bytes())?;
        out.write_all(digests.as_bytes())?;
        let offset = content_offset(digests.len() as u64);
        let padding = offset - HEADER_PAGE_BYTES - HEAD_BYTES - digests.len() as u64 * 4;
        out.write_all(&vec![0; padding as usize])?;
        out.write_all(inner.content())
    }

    /// Saves the shard as `path`: a temporary name beside it, fsync, rename, fsync of the
    /// directory. The file is durable when this returns; a failure leaves what stood there.
    ///
    /// # Errors
    /// [`SealedFileError::Io`].
    pub fn save(&self, path: &Path) -> Result<(), SealedFileError> {
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        let result = self.save_through(&partial, path);
        if result.is_err() {
            // Already failing: what cannot be removed is overwritten by the next save.
            let _ = fs::remove_file(&partial);
        }
        result
    }

    fn save_through(&self, partial: &Path, path: &Path) -> Result<(), SealedFileError> {
        let mut file = File::create(partial).map_err(io_at("creating", partial))?;
        self.write_to(&mut file)
            .map_err(io_at("writing", partial))?;
        file.sync_all().map_err(io_at("fsync of", partial))?;
        fs::rename(partial, path).map_err(io_at("renaming to", path))?;
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        File::open(directory)
            .and_then(|directory| directory.sync_all())
            .map_err(io_at("fsync of", directory))
    }

    /// Loads a file that [`SealedShard::save`] wrote, as a new region. Length and digests are
    /// checked before memory is taken, each chunk while it is read.
    ///
    /// # Errors
    /// [`SealedFileError`] naming the file, and the chunk where one is damaged; no memory is kept.
    pub fn load(path: &Path, pool: &Arc<Pool>, load: &LoadAs) -> Result<Self, SealedFileError> {
        let mut file = File::open(path).map_err(io_at("opening", path))?;
        let length = file.metadata().map_err(io_at("reading", path))?.len();
        let header = read_header(&mut file, path, length)?;
        if header.cluster != load.cluster || header.shard != load.shard {
            return Err(SealedFileError::OtherShard {
                path: path.to_owned(),
                found: header.shard,
                cluster: header.cluster,
                expected: load.shard,
            });
        }
        let (head, digests) = read_head(&mut file, path, length, &header)?;
        let spec = SealedSpec {
            cluster: load.cluster,
            shard: load.shard,
            region: load.region,
            generation: load.generation,
            row_bytes: head.row_bytes.get(),
            rows: head.rows.get(),
            keyed: head.keyed.get() == 1,
            seed: load.seed,
            planes: header.planes,
        };
        let mut builder = SealedBuilder::new(pool, &spec)?;
        let chunks = builder
            .content_mut()
            .chunks_mut(DIGEST_CHUNK_BYTES as usize);
        for (chunk, bytes) in chunks.enumerate() {
            file.read_exact(bytes).map_err(io_at("reading", path))?;
            let (computed, expected) = (crc32c::crc32c(bytes), digests.chunks[chunk]);
            if computed != expected {
                return Err(SealedFileError::Chunk {
                    path: path.to_owned(),
                    chunk: chunk as u64,
                    expected,
                    computed,
                });
            }
        }
        builder.finish().map_err(|source| SealedFileError::Seal {
            path: path.to_owned(),
            source,
        })
    }
}

fn read_header(file: &mut File, path: &Path, length: u64) -> Result<RegionHeader, SealedFileError> {
    let least = content_offset(0);
    if length < least {
        return Err(SealedFileError::Length {
            path: path.to_owned(),
            found: length,
            expected: least,
            chunk: 0,
        });
    }
    let mut page = [0; HEADER_PAGE_BYTES as usize];
    file.read_exact(&mut page).map_err(io_at("reading", path))?;
    RegionHeader::decode(&page).map_err(|source| SealedFileError::Header {
        path: path.to_owned(),
        source,
    })
}

/// Reads head and digests and leaves `file` at its content. Nothing is allocated on a claim that
/// the file's length does not bear out (I-12).
fn read_head(
    file: &mut File,
    path: &Path,
    length: u64,
    header: &RegionHeader,
) -> Result<(Head, Digests), SealedFileError> {
    let refuse = |why: String| SealedFileError::Head {
        path: path.to_owned(),
        why,
    };
    let mut head = Head::new_zeroed();
    file.read_exact(head.as_mut_bytes())
        .map_err(io_at("reading", path))?;
    if head.magic.get() != MAGIC {
        return Err(refuse(
            "not a sealed shard: its head is not 'mnemesea'".into(),
        ));
    }
    if head.version.get() != VERSION {
        return Err(SealedFileError::Version {
            path: path.to_owned(),
            found: head.version.get(),
            known: VERSION,
        });
    }
    let (rows, row_bytes, keyed) = (head.rows.get(), head.row_bytes.get(), head.keyed.get());
    let content = head.content_bytes.get();
    let stride = plan::sealed_stride(row_bytes, keyed == 1);
    let kind = if keyed == 1 {
        LayoutKind::SealedHashed
    } else {
        LayoutKind::SealedDense
    };
    let sound = keyed <= 1
        && (1..=ROW_BYTES_MAX).contains(&row_bytes)
        && rows <= SLOTS_MAX
        && rows * stride == content
        && head.chunks.get() == content.div_ceil(DIGEST_CHUNK_BYTES)
        && (header.kind, header.rows, header.stride_bytes) == (kind, rows, stride);
    if !sound {
        return Err(refuse(
            "its head contradicts itself or the header page".into(),
        ));
    }
    let offset = content_offset(head.chunks.get());
    if length != offset + content {
        let whole = length.min(offset + content).saturating_sub(offset) / DIGEST_CHUNK_BYTES;
        return Err(SealedFileError::Length {
            path: path.to_owned(),
            found: length,
            expected: offset + content,
            chunk: whole.min(head.chunks.get().saturating_sub(1)),
        });
    }
    let digests = read_digests(file, path, head)?;
    Ok((head, digests))
}

/// Reads the chunk digests and what pads them, and checks them and the head. The file's length
/// bears the head's claims out: this allocates less than the file has.
fn read_digests(file: &mut File, path: &Path, head: Head) -> Result<Digests, SealedFileError> {
    let refuse = |why: String| SealedFileError::Head {
        path: path.to_owned(),
        why,
    };
    let offset = content_offset(head.chunks.get());
    let mut rest = vec![0; (offset - HEADER_PAGE_BYTES - HEAD_BYTES) as usize];
    file.read_exact(&mut rest).map_err(io_at("reading", path))?;
    let digests = &rest[..head.chunks.get() as usize * 4];
    let (found, computed) = (head.crc.get(), head_crc(head, digests));
    if found != computed {
        return Err(refuse(format!(
            "head or chunk digests are damaged: CRC32C is {found:08x}, bytes give {computed:08x}"
        )));
    }
    let chunks = digests
        .chunks_exact(4)
        .map(|crc| u32::from_le_bytes(crc.try_into().expect("four bytes")))
        .collect();
    let keyed = head.keyed.get() == 1;
    let stride = plan::sealed_stride(head.row_bytes.get(), keyed);
    let digests = Digests::of_chunks(chunks, head.rows.get(), stride, keyed);
    if digests.combined != head.combined.get() {
        return Err(refuse(
            "its combined digest is not that of its chunks".into(),
        ));
    }
    Ok(digests)
}
