//! Regions: mapped in parts, taken from a pool in pieces.
//!
//! A region that may be shared with other processes is one memfd. One that never is (optimizer
//! state) is anonymous memory, which can have huge pages where shared memory is refused them.
//! Both are addressed alike, by offsets into the region.
//!
//! The file is sparse and only ever grows: a part that was given back is a hole, and its offset
//! never serves anything else, so a reader with a stale mapping reads zeros and never somebody
//! else's rows (I-6). Nothing all zeros is valid anywhere in a region.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::limits::EXTENT_BYTES;
use crate::pool::{Pool, PoolError, Taken};

/// One contiguous range of a node's memory, belonging to one replica. The last owner's drop gives
/// its memory back.
#[derive(Debug)]
pub struct Region {
    pool: Arc<Pool>,
    name: String,
    backing: Backing,
}

#[derive(Debug)]
enum Backing {
    /// A file without a name.
    Memfd {
        file: File,
        /// Its length; it only grows.
        bytes: Mutex<u64>,
    },
    /// Anonymous memory, with the bytes of it that are populated.
    Private { populated: AtomicU64 },
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
        let backing = Backing::Memfd {
            file: File::from(fd),
            bytes: Mutex::new(0),
        };
        Ok(Self::register(pool, name, backing))
    }

    /// Makes an empty region that can never be shared.
    #[must_use]
    pub fn create_private(pool: &Arc<Pool>, name: &str) -> Arc<Self> {
        let populated = AtomicU64::new(0);
        Self::register(pool, name, Backing::Private { populated })
    }

    fn register(pool: &Arc<Pool>, name: &str, backing: Backing) -> Arc<Self> {
        let region = Arc::new(Self {
            pool: Arc::clone(pool),
            name: name.to_owned(),
            backing,
        });
        pool.register(&region);
        region
    }

    /// Maps `bytes` bytes of the region from `offset`, both multiples of the page. Takes no memory.
    pub(crate) fn map(self: &Arc<Self>, offset: u64, bytes: u64) -> Result<Span, PoolError> {
        let mut options = MmapOptions::new();
        options.len(usize::try_from(bytes).expect("a 64-bit machine"));
        let map = match &self.backing {
            Backing::Memfd { file, .. } => {
                self.extend(offset + bytes)?;
                if self.pool.spec().huge || bytes < EXTENT_BYTES {
                    options.offset(offset).map_raw(file).map(|map| (map, 0))
                } else {
                    map_in_step(file, offset, bytes as usize)
                }
            }
            Backing::Private { .. } => {
                if self.pool.spec().huge {
                    options.huge(Some(EXTENT_BYTES.trailing_zeros() as u8));
                }
                let map = options.no_reserve_swap().map_anon();
                map.map(|map| (MmapRaw::from(map), 0))
            }
        };
        let (map, skip) = map
            .map_err(|e| PoolError::system(format!("mapping {bytes} bytes of {}", self.name), e))?;
        let span = Span {
            region: Arc::clone(self),
            map,
            skip,
            bytes,
            offset,
        };
        span.bind()?;
        Ok(span)
    }

    /// Makes a file reach to `end`.
    fn extend(&self, end: u64) -> Result<(), PoolError> {
        if let Backing::Memfd { file, bytes } = &self.backing {
            let mut bytes = bytes.lock().unwrap_or_else(PoisonError::into_inner);
            if end > *bytes {
                rustix::fs::ftruncate(file, end)
                    .map_err(|e| PoolError::system(format!("growing {} to {end}", self.name), e))?;
                *bytes = end;
            }
        }
        Ok(())
    }

    /// A read-only descriptor of the region's file, for a process of another user on this host:
    /// it can neither map it writable nor reopen it for writing.
    ///
    /// # Errors
    /// What the system says.
    pub fn share(&self) -> io::Result<OwnedFd> {
        let Backing::Memfd { file, .. } = &self.backing else {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!("{} is private", self.name),
            ));
        };
        rustix::fs::fchmod(file, Mode::RUSR)?;
        let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
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
        match &self.backing {
            Backing::Memfd { file, .. } => Ok(rustix::fs::fstat(file)?.st_blocks as u64 * 512),
            Backing::Private { populated } => Ok(populated.load(Ordering::Relaxed)),
        }
    }

    pub(crate) const fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }
}

/// Maps a part of a file so that the file's extents are whole extents of addresses too: only then
/// can they be huge pages. Returns a mapping that is one extent longer, and where in it the file
/// starts.
fn map_in_step(file: &File, offset: u64, bytes: usize) -> io::Result<(MmapRaw, usize)> {
    let extent = EXTENT_BYTES as usize;
    let mut options = MmapOptions::new();
    let around = options.len(bytes + extent).no_reserve_swap().map_anon()?;
    let around = MmapRaw::from(around);
    let skip = (offset as usize).wrapping_sub(around.as_mut_ptr() as usize) % extent;
    let (prot, flags) = (
        ProtFlags::READ | ProtFlags::WRITE,
        MapFlags::SHARED | MapFlags::FIXED,
    );
    let start = around.as_mut_ptr().wrapping_add(skip).cast();
    // SAFETY: `skip` is below one extent, so the range lies within `around`, which nobody has
    // touched; what is mapped over it is unmapped with it.
    unsafe { rustix::mm::mmap(start, bytes, prot, flags, file, offset) }?;
    Ok((around, skip))
}

/// Gives a range of a file back to the system; its readers then read zeros.
fn punch(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(rustix::fs::fallocate(file, flags, offset, bytes)?)
}

impl Drop for Region {
    fn drop(&mut self) {
        // Closing alone would leave the memory to whoever still holds a shared descriptor, though
        // the pool no longer counts it.
        if let Backing::Memfd { file, bytes } = &mut self.backing {
            let bytes = *bytes.get_mut().unwrap_or_else(PoisonError::into_inner);
            if bytes > 0 {
                // A failure leaves what a plain close leaves: there is nobody to tell in a drop.
                let _ = punch(file, 0, bytes);
            }
        }
    }
}

/// A mapped part of a region. Its address never changes while it lives.
#[derive(Debug)]
pub(crate) struct Span {
    region: Arc<Region>,
    map: MmapRaw,
    /// Where in the mapping the span starts.
    skip: usize,
    bytes: u64,
    offset: u64,
}

impl Span {
    /// The address of its first byte.
    pub(crate) fn base(&self) -> *mut u8 {
        self.map.as_mut_ptr().wrapping_add(self.skip)
    }

    /// Bytes mapped.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
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
        match &self.region.backing {
            Backing::Memfd { .. } => self.populate_huge(from, to),
            Backing::Private { .. } => self.advise_huge(from.next_multiple_of(EXTENT_BYTES), to),
        }
        let address = self.base().wrapping_add(from as usize).cast();
        // SAFETY: the range lies within this mapping, which lives as long as `self`; populating
        // changes no byte of it.
        unsafe { rustix::mm::madvise(address, (to - from) as usize, Advice::LinuxPopulateWrite) }
            .map_err(|e| {
            let what = format!("populating {} bytes of {}", to - from, self.region.name);
            PoolError::system(what, e)
        })?;
        if let Backing::Private { populated } = &self.region.backing {
            populated.fetch_add(to - from, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Gives the memory of `[from, to)` of the span back; the counting is the caller's.
    pub(crate) fn give_back(&self, from: u64, to: u64) -> io::Result<()> {
        if from == to {
            return Ok(());
        }
        match &self.region.backing {
            Backing::Memfd { file, .. } => punch(file, self.offset + from, to - from),
            Backing::Private { populated } => {
                let address = self.base().wrapping_add(from as usize).cast();
                // SAFETY: the range lies within this mapping; its owner calls this when it is
                // done with what stands there, and zeros are as good to it.
                unsafe {
                    rustix::mm::madvise(address, (to - from) as usize, Advice::LinuxDontNeed)
                }?;
                populated.fetch_sub(to - from, Ordering::Relaxed);
                Ok(())
            }
        }
    }

    /// Asks for huge pages for what is whole extents and about to be populated: never for more
    /// than is counted.
    fn advise_huge(&self, from: u64, to: u64) {
        if from < to && !self.region.pool.spec().huge {
            let address = self.base().wrapping_add(from as usize).cast();
            // SAFETY: a range of a live mapping; the advice changes no byte. Systems that do not
            // know it for such memory answer an error and have small pages.
            let _ = unsafe {
                rustix::mm::madvise(address, (to - from) as usize, Advice::LinuxHugepage)
            };
        }
    }

    /// Makes whole extents of a file huge pages before anything stands in them: a reader of random
    /// rows then misses the TLB once where it would miss it, and the page tables below, twice.
    /// The system gives files no huge pages by itself where it is not configured to; it gathers
    /// small ones on request, if there is at least one. What it refuses is populated in small
    /// pages afterwards.
    fn populate_huge(&self, from: u64, to: u64) {
        let (from, to) = (from.next_multiple_of(EXTENT_BYTES), to - to % EXTENT_BYTES);
        if from >= to || self.region.pool.spec().huge {
            return;
        }
        let at = |offset: u64| self.base().wrapping_add(offset as usize).cast();
        for extent in (from..to).step_by(EXTENT_BYTES as usize) {
            let (page, advice) = (at(extent), Advice::LinuxPopulateWrite);
            // SAFETY: a page of this mapping; populating changes no byte of it.
            if unsafe { rustix::mm::madvise(page, 4096, advice) }.is_err() {
                return;
            }
        }
        // SAFETY: a range of this mapping; the call moves its bytes to other memory behind the same
        // addresses and changes none of them. A failure leaves them where they are.
        let _ = unsafe { libc::madvise(at(from), (to - from) as usize, libc::MADV_COLLAPSE) };
    }

    /// Binds the span to the pool's NUMA node, if it has one.
    fn bind(&self) -> Result<(), PoolError> {
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
                self.bytes,
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

    /// Whole extents become huge pages where the system allows it: what is counted and what stands
    /// in them is the same either way, and a hole takes a part of one.
    #[test]
    fn extents_are_counted_alike_whatever_their_pages() {
        let pool = pool();
        let region = Region::create(&pool, "test").unwrap();
        let bytes = 6 << 20;
        let mut piece = Piece::map(&region, 0, pool.take(bytes).unwrap()).unwrap();
        assert_eq!(piece.span().base() as u64 % EXTENT_BYTES, 0);
        assert!(!piece.populate_step(3 << 20).unwrap());
        assert_eq!(pool.usage().resident_bytes, 3 << 20);
        assert!(piece.populate_step(u64::MAX).unwrap());
        assert_eq!(pool.usage().resident_bytes, bytes);
        let at = |offset: usize| piece.span().base().wrapping_add(offset);
        for offset in [0, (2 << 20) - 8, (3 << 20) + 4096, (6 << 20) - 8] {
            // SAFETY: populated, and nobody else maps it.
            unsafe { crate::words::copy_in(at(offset), &(offset as u64).to_le_bytes()) };
        }
        piece.span().give_back(0, 1 << 20).unwrap();
        let read = |offset: usize| {
            let mut row = [0; 8];
            // SAFETY: as above; what was given back reads as zeros.
            unsafe { crate::words::copy_out(at(offset), &mut row) };
            u64::from_le_bytes(row)
        };
        assert_eq!(read(0), 0);
        for offset in [(2 << 20) - 8, (3 << 20) + 4096, (6 << 20) - 8] {
            assert_eq!(read(offset), offset as u64);
        }
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
        assert_eq!(
            (pool.usage().used_bytes, pool.usage().resident_bytes),
            (0, 0)
        );
    }

    /// Optimizer state is never shared: there is nothing to share.
    #[test]
    fn private_region_has_no_descriptor_and_is_counted_alike() {
        let pool = pool();
        let region = Region::create_private(&pool, "state");
        let mut piece = Piece::map(&region, 0, pool.take(4 << 20).unwrap()).unwrap();
        piece.populate_step(u64::MAX).unwrap();
        assert_eq!(pool.usage().resident_bytes, 4 << 20);
        let error = region.share().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        drop(piece);
        assert_eq!(
            (pool.usage().used_bytes, pool.usage().resident_bytes),
            (0, 0)
        );
    }
}
