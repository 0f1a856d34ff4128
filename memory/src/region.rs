//! Regions: one memfd each, mapped in parts, taken from a pool in pieces.
//!
//! The file is sparse and only ever grows: a part that was given back is a hole, and its offset
//! never serves anything else, so a reader with a stale mapping reads zeros and never somebody
//! else's rows (I-6). Nothing all zeros is valid anywhere in a region.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::mm::Advice;

use crate::pool::{Pool, PoolError, Taken};

/// One contiguous range of a node's memory, belonging to one replica: a file without a name.
/// The last owner's drop gives its memory back.
#[derive(Debug)]
pub struct Region {
    pool: Arc<Pool>,
    name: String,
    file: File,
    /// Length of the file; it only grows.
    file_bytes: Mutex<u64>,
}

impl Region {
    /// Makes an empty region. `name` is seen in `/proc/PID/maps`.
    ///
    /// # Errors
    /// [`PoolError::System`].
    pub fn create(pool: &Arc<Pool>, name: &str) -> Result<Arc<Self>, PoolError> {
        let mut flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        if pool.spec().huge {
            flags |= MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        }
        let fd = rustix::fs::memfd_create(name, flags)
            .map_err(|e| PoolError::system(format!("memfd_create {name}"), e))?;
        // Nobody who gets a descriptor can take pages away under our mappings. Growing stays
        // ours, and FUTURE_WRITE would forbid the hole that gives memory back.
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK)
            .map_err(|e| PoolError::system(format!("sealing {name}"), e))?;
        let region = Arc::new(Self {
            pool: Arc::clone(pool),
            name: name.to_owned(),
            file: File::from(fd),
            file_bytes: Mutex::new(0),
        });
        pool.register(&region);
        Ok(region)
    }

    /// Maps `bytes` bytes of the file from `offset`, both multiples of the page. Takes no memory.
    pub(crate) fn map(self: &Arc<Self>, offset: u64, bytes: u64) -> Result<Span, PoolError> {
        let end = offset + bytes;
        let mut file_bytes = self
            .file_bytes
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if end > *file_bytes {
            rustix::fs::ftruncate(&self.file, end)
                .map_err(|e| PoolError::system(format!("growing {} to {end}", self.name), e))?;
            *file_bytes = end;
        }
        drop(file_bytes);
        let map = MmapOptions::new()
            .offset(offset)
            .len(usize::try_from(bytes).expect("a 64-bit machine"))
            .map_raw(&self.file)
            .map_err(|e| PoolError::system(format!("mapping {bytes} bytes of {}", self.name), e))?;
        let span = Span {
            region: Arc::clone(self),
            map,
            offset,
        };
        span.advise()?;
        Ok(span)
    }

    /// A read-only descriptor of the region's file, for a process of another user on this host:
    /// it can neither map it writable nor reopen it for writing.
    ///
    /// # Errors
    /// What the system says.
    pub fn share(&self) -> io::Result<OwnedFd> {
        rustix::fs::fchmod(&self.file, Mode::RUSR)?;
        let path = format!("/proc/self/fd/{}", self.file.as_fd().as_raw_fd());
        Ok(rustix::fs::open(
            path,
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        )?)
    }

    /// Bytes that the system holds for the region.
    ///
    /// # Errors
    /// What the system says.
    pub fn resident_bytes(&self) -> io::Result<u64> {
        Ok(rustix::fs::fstat(&self.file)?.st_blocks as u64 * 512)
    }

    /// Gives a range of the file back to the system; its readers then read zeros.
    fn punch(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(&self.file, flags, offset, bytes)?)
    }

    pub(crate) const fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // Closing alone would leave the memory to whoever still holds a shared descriptor, though
        // the pool no longer counts it.
        let bytes = *self
            .file_bytes
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if bytes > 0 {
            // A failure leaves what a plain close leaves: there is nobody to tell in a drop.
            let _ = self.punch(0, bytes);
        }
    }
}

/// A mapped part of a region. Its address never changes while it lives.
#[derive(Debug)]
pub(crate) struct Span {
    region: Arc<Region>,
    map: MmapRaw,
    offset: u64,
}

impl Span {
    /// The address of its first byte.
    pub(crate) fn base(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    /// Bytes mapped.
    pub(crate) fn bytes(&self) -> u64 {
        self.map.len() as u64
    }

    /// The page that its memory is made of, in bytes.
    pub(crate) fn page_bytes(&self) -> u64 {
        self.region.pool.page_bytes()
    }

    /// Where in the region's file it starts.
    pub(crate) const fn offset(&self) -> u64 {
        self.offset
    }

    /// Populates `[from, to)` of the span, multiples of the page, so that nobody meets a
    /// first-touch fault. The bytes were counted before.
    pub(crate) fn populate(&self, from: u64, to: u64) -> Result<(), PoolError> {
        debug_assert!(from <= to && to <= self.bytes());
        if from == to {
            return Ok(());
        }
        let address = self.base().wrapping_add(from as usize).cast();
        // SAFETY: the range lies within this mapping, which lives as long as `self`; populating
        // changes no byte of it.
        unsafe { rustix::mm::madvise(address, (to - from) as usize, Advice::LinuxPopulateWrite) }
            .map_err(|e| {
                PoolError::system(
                    format!("populating {} bytes of {}", to - from, self.region.name),
                    e,
                )
            })
    }

    /// Gives the memory of `[from, to)` of the span back; the counting is the caller's.
    pub(crate) fn give_back(&self, from: u64, to: u64) -> io::Result<()> {
        if from == to {
            return Ok(());
        }
        self.region.punch(self.offset + from, to - from)
    }

    /// Huge pages where the system gives them to shared memory; the pool's NUMA node.
    fn advise(&self) -> Result<(), PoolError> {
        if !self.region.pool.spec().huge {
            // SAFETY: the whole of a live mapping; the advice changes no byte. Systems without it
            // answer EINVAL and have small pages.
            let _ = unsafe {
                rustix::mm::madvise(self.base().cast(), self.map.len(), Advice::LinuxHugepage)
            };
        }
        let Some(node) = self.region.pool.spec().numa else {
            return Ok(());
        };
        let mut nodes = [0u64; 64];
        nodes[node as usize / 64] |= 1 << (node % 64);
        // SAFETY: the whole of a live mapping that has no page yet; `nodes` outlives the call and
        // holds the 4096 bits that it is told of.
        let answer = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.base(),
                self.map.len(),
                libc::MPOL_BIND,
                nodes.as_ptr(),
                nodes.len() * 64 + 1,
                0,
            )
        };
        if answer == 0 {
            return Ok(());
        }
        Err(PoolError::system(
            format!("binding {} to NUMA node {node}", self.region.name),
            io::Error::last_os_error(),
        ))
    }
}

/// A part of a region that is populated from its start on, and counted.
#[derive(Debug)]
pub(crate) struct Piece {
    span: Span,
    taken: Taken,
    populated: u64,
}

impl Piece {
    /// Maps `taken.bytes()` bytes at `offset`. Nothing of it may be touched before
    /// [`Piece::populate_step`] has reached it.
    pub(crate) fn map(region: &Arc<Region>, offset: u64, taken: Taken) -> Result<Self, PoolError> {
        let span = region.map(offset, taken.bytes())?;
        Ok(Self {
            span,
            taken,
            populated: 0,
        })
    }

    /// Populates up to `bytes` more; true when all of it is.
    pub(crate) fn populate_step(&mut self, bytes: u64) -> Result<bool, PoolError> {
        let to = self.populated.saturating_add(bytes).min(self.span.bytes());
        self.span.populate(self.populated, to)?;
        self.populated = to;
        Ok(to == self.span.bytes())
    }

    pub(crate) const fn span(&self) -> &Span {
        &self.span
    }

    pub(crate) const fn bytes(&self) -> u64 {
        self.taken.bytes()
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        // Given back before it is uncounted; a failure can only make us use more than we count,
        // and the region's own drop tries again.
        let _ = self.span.give_back(0, self.populated);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::PoolSpec;
    use std::os::unix::fs::FileExt;

    fn pool() -> Arc<Pool> {
        Pool::open(PoolSpec::dram(16 << 20)).unwrap()
    }

    #[test]
    fn populated_is_resident_and_punched_is_not() {
        let pool = pool();
        let region = Region::create(&pool, "test").unwrap();
        let taken = pool.take(1 << 20).unwrap();
        let mut piece = Piece::map(&region, 1 << 46, taken).unwrap();
        assert_eq!(pool.usage().resident_bytes, 0);
        assert!(!piece.populate_step(512 << 10).unwrap());
        assert_eq!(pool.usage().resident_bytes, 512 << 10);
        assert!(piece.populate_step(u64::MAX).unwrap());
        assert_eq!(pool.usage().resident_bytes, 1 << 20);
        assert_eq!(pool.usage().used_bytes, 1 << 20);
        drop(piece);
        assert_eq!(pool.usage().resident_bytes, 0);
        assert_eq!(pool.usage().used_bytes, 0);
    }

    /// A shared descriptor reads what is written, cannot write, and reads zeros after the
    /// release (I-6).
    #[test]
    fn shared_descriptor_is_read_only_and_outlives_nothing() {
        let pool = pool();
        let region = Region::create(&pool, "test").unwrap();
        let taken = pool.take(64 << 10).unwrap();
        let mut piece = Piece::map(&region, 0, taken).unwrap();
        piece.populate_step(u64::MAX).unwrap();
        // SAFETY: the page was populated; nobody else maps it.
        unsafe { crate::words::copy_in(piece.span().base(), b"rows of mneme") };

        let shared = File::from(region.share().unwrap());
        let mut read = [0; 13];
        shared.read_exact_at(&mut read, 0).unwrap();
        assert_eq!(&read, b"rows of mneme");
        assert!(shared.write_at(b"x", 0).is_err());
        assert!(MmapOptions::new().len(4096).map_raw(&shared).is_err());
        assert!(
            MmapOptions::new()
                .len(4096)
                .map_raw_read_only(&shared)
                .is_ok()
        );
        assert!(rustix::fs::ftruncate(&shared, 0).is_err());

        drop(piece);
        drop(region);
        shared.read_exact_at(&mut read, 0).unwrap();
        assert_eq!(read, [0; 13]);
        assert_eq!(pool.usage(), PoolUsage0::of(&pool));
    }

    struct PoolUsage0;
    impl PoolUsage0 {
        fn of(pool: &Pool) -> crate::pool::PoolUsage {
            crate::pool::PoolUsage {
                limit_bytes: pool.spec().limit_bytes,
                used_bytes: 0,
                resident_bytes: 0,
            }
        }
    }
}
