//! Pools: accounting of the memory that a node was given. The memory itself belongs to regions.
//!
//! The limit is a limit on real memory: every byte is counted before it is populated, and what
//! would go over is refused before anything has changed (I-12).

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::limits::{EXTENT_BYTES, PIECE_BYTES};
use crate::region::Region;
use crate::spec::PoolSpec;

/// Memory that a node was given, shared by all its regions.
#[derive(Debug)]
pub struct Pool {
    spec: PoolSpec,
    used_bytes: AtomicU64,
    /// Its regions, for `resident`; dead ones are dropped when the next comes.
    regions: Mutex<Vec<Weak<Region>>>,
}

/// A pool in figures. All in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolUsage {
    /// What its regions may take together.
    pub limit_bytes: u64,
    /// What its regions have taken.
    pub used_bytes: u64,
    /// What the system says that their files hold: equal to `used_bytes`, or something is wrong.
    pub resident_bytes: u64,
}

impl PoolUsage {
    /// What can still be taken.
    #[must_use]
    pub const fn free_bytes(&self) -> u64 {
        self.limit_bytes.saturating_sub(self.used_bytes)
    }
}

/// Why memory was not given.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// The limit would be passed. Nothing has changed.
    #[error(
        "pool is full: {asked} more bytes asked, {used} of {limit} in use; \
         raise the pool's size or free rows"
    )]
    Full {
        /// Bytes asked for.
        asked: u64,
        /// Bytes in use.
        used: u64,
        /// The pool's limit, in bytes.
        limit: u64,
    },
    /// The machine does not have what the pool was configured to give.
    #[error("pool '{spec}': {why}")]
    Unfit {
        /// The pool as configured.
        spec: String,
        /// What is missing, and the remedy.
        why: String,
    },
    /// A slab or index would pass what its layout can address.
    #[error("{what} of {asked} is over the limit of {limit}")]
    TooLarge {
        /// What was asked for.
        what: &'static str,
        /// How much.
        asked: u64,
        /// The most there can be.
        limit: u64,
    },
    /// The system refused.
    #[error("{call}: {source}")]
    System {
        /// The call, and on what.
        call: String,
        /// Its error.
        source: io::Error,
    },
}

impl PoolError {
    pub(crate) fn system(call: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::System {
            call: call.into(),
            source: source.into(),
        }
    }
}

impl Pool {
    /// Opens a pool. Takes no memory yet, but refuses what the machine cannot give.
    ///
    /// # Errors
    /// [`PoolError::Unfit`]: larger than the machine's memory, no such NUMA node, or fewer huge
    /// pages than the size needs.
    pub fn open(spec: PoolSpec) -> Result<Arc<Self>, PoolError> {
        let unfit = |why: String| PoolError::Unfit {
            spec: spec.to_string(),
            why,
        };
        if let Some(total) = machine_bytes()
            && spec.limit_bytes > total
        {
            return Err(unfit(format!(
                "{} bytes are asked, the machine has {total}",
                spec.limit_bytes
            )));
        }
        if let Some(node) = spec.numa
            && !Path::new(&format!("/sys/devices/system/node/node{node}")).exists()
        {
            return Err(unfit(format!("this machine has no NUMA node {node}")));
        }
        if spec.huge {
            let free = free_huge_bytes();
            if free < spec.limit_bytes {
                return Err(unfit(format!(
                    "huge pages for {free} bytes are free; set vm.nr_hugepages to {} or more",
                    spec.limit_bytes.div_ceil(EXTENT_BYTES)
                )));
            }
        }
        Ok(Arc::new(Self {
            spec,
            used_bytes: AtomicU64::new(0),
            regions: Mutex::default(),
        }))
    }

    /// The pool as configured.
    #[must_use]
    pub const fn spec(&self) -> &PoolSpec {
        &self.spec
    }

    /// The pool in figures; asks the system for the resident bytes.
    #[must_use]
    pub fn usage(&self) -> PoolUsage {
        let regions = self.regions.lock().unwrap_or_else(PoisonError::into_inner);
        let resident = |region: &Weak<Region>| {
            region
                .upgrade()
                .and_then(|r| r.resident_bytes().ok())
                .unwrap_or(0)
        };
        PoolUsage {
            limit_bytes: self.spec.limit_bytes,
            used_bytes: self.used_bytes(),
            resident_bytes: regions.iter().map(resident).sum(),
        }
    }

    /// Bytes that its regions have taken.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// Bytes that a range of `bytes` occupies in this pool: whole pieces below one extent, whole
    /// extents above and on huge pages.
    #[must_use]
    pub const fn rounded(&self, bytes: u64) -> u64 {
        let step = if self.spec.huge || bytes > EXTENT_BYTES {
            EXTENT_BYTES
        } else {
            PIECE_BYTES
        };
        bytes.next_multiple_of(step)
    }

    /// The page that mappings and offsets are aligned to.
    pub(crate) const fn page_bytes(&self) -> u64 {
        if self.spec.huge { EXTENT_BYTES } else { 4096 }
    }

    /// Counts `asked` more bytes, or refuses and changes nothing (I-12).
    pub(crate) fn take(self: &Arc<Self>, asked: u64) -> Result<Taken, PoolError> {
        let limit = self.spec.limit_bytes;
        let more = |used: u64| used.checked_add(asked).filter(|sum| *sum <= limit);
        self.used_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .map_err(|used| PoolError::Full { asked, used, limit })?;
        Ok(Taken {
            pool: Arc::clone(self),
            bytes: asked,
        })
    }

    pub(crate) fn register(&self, region: &Arc<Region>) {
        let mut regions = self.regions.lock().unwrap_or_else(PoisonError::into_inner);
        regions.retain(|r| r.strong_count() > 0);
        regions.push(Arc::downgrade(region));
    }
}

/// Bytes counted against a pool; gives them back when dropped.
#[derive(Debug)]
pub(crate) struct Taken {
    pool: Arc<Pool>,
    bytes: u64,
}

impl Taken {
    /// Moves `bytes` of it into an account of their own.
    ///
    /// # Panics
    /// If it holds less: callers split what they took as a sum.
    pub(crate) fn split(&mut self, bytes: u64) -> Self {
        assert!(bytes <= self.bytes, "splitting more than was taken");
        self.bytes -= bytes;
        Self {
            pool: Arc::clone(&self.pool),
            bytes,
        }
    }

    /// Adds another account of the same pool to this one.
    pub(crate) fn join(&mut self, mut other: Self) {
        debug_assert!(Arc::ptr_eq(&self.pool, &other.pool));
        self.bytes += std::mem::take(&mut other.bytes);
    }

    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.pool
            .used_bytes
            .fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Bytes of memory of the machine, if it says.
fn machine_bytes() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib << 10)
}

/// Bytes in free 2 MiB pages.
fn free_huge_bytes() -> u64 {
    std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
        .ok()
        .and_then(|text| text.trim().parse::<u64>().ok())
        .map_or(0, |pages| pages * EXTENT_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// I-12: what goes over the limit is refused with the three numbers, and changes nothing.
    #[test]
    fn full_changes_nothing() {
        let pool = Pool::open(PoolSpec::dram(4 << 20)).unwrap();
        let mut first = pool.take(3 << 20).unwrap();
        let error = pool.take((1 << 20) + 1).unwrap_err();
        assert!(
            matches!(
                error,
                PoolError::Full {
                    asked: 1_048_577,
                    used: 3_145_728,
                    limit: 4_194_304
                }
            ),
            "{error}"
        );
        assert_eq!(pool.used_bytes(), 3 << 20);
        assert!(pool.take(u64::MAX).is_err());
        let part = first.split(1 << 20);
        drop(part);
        assert_eq!(pool.used_bytes(), 2 << 20);
        first.join(pool.take(2 << 20).unwrap());
        assert_eq!(first.bytes(), 4 << 20);
        assert_eq!(pool.usage().free_bytes(), 0);
        drop(first);
        assert_eq!(pool.used_bytes(), 0);
    }

    #[test]
    fn rounds_to_pieces_then_extents() {
        let pool = Pool::open(PoolSpec::dram(4 << 20)).unwrap();
        assert_eq!(pool.rounded(1), 64 << 10);
        assert_eq!(pool.rounded(2 << 20), 2 << 20);
        assert_eq!(pool.rounded((2 << 20) + 1), 4 << 20);
    }

    #[test]
    fn refuses_what_the_machine_lacks() {
        for (text, part) in [
            ("dram:1000TiB", "the machine has"),
            ("dram:8MiB,numa=4095", "no NUMA node 4095"),
            ("dram:8MiB,huge=2M", "vm.nr_hugepages to 4 or more"),
        ] {
            match Pool::open(text.parse().unwrap()) {
                Err(error) => assert!(error.to_string().contains(part), "{error}"),
                // A machine may have huge pages to spare.
                Ok(_) => assert!(text.contains("huge"), "{text}"),
            }
        }
    }
}
