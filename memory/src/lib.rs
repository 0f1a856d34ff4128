//! A node's memory: pools, regions, slabs of rows and the index over them.
//!
//! *What it is for.* A [`Pool`] is memory that a node was given. A [`region::Region`] is one
//! contiguous range of it that belongs to one replica of one shard. In a region stands a slab of
//! fixed-stride slots and, for hashed tables, an index over it; a dense table is a slab without an
//! index. Two stores are built of these: the mutable one ([`MutableWriter`], [`MutableReader`]),
//! whose rows are pushed to while they are read, and the sealed one ([`SealedBuilder`],
//! [`SealedShard`]), which is loaded once and then never changes.
//!
//! *Who calls it.* `server`: the shard engine owns the one writer of a shard, every serving thread
//! holds a clone of its reader. It is synchronous and knows no clock and no network.
//!
//! *What it promises.*
//!
//! * A row that a reader returns is the asked key's and was written whole: slots are seqlocks, and
//!   key, sequence and liveness are validated after the copy (I-5).
//! * Readers take no lock and no reference count per row, and growth of slab and index goes on
//!   beside them. The one exception: the few keys that found no room in the index are looked up
//!   under a lock that the writer holds for one map operation.
//! * Memory of a region serves nothing else while a read of it can complete: it is given back when
//!   the last reader has let go, its headers made dead before (I-6).
//! * A sealed shard is complete before it can be read and is never written again (I-8).
//! * What does not fit a pool's limit is refused by [`PoolError::Full`] and changes nothing; memory
//!   for a push is taken by `reserve` before the push is acknowledged (I-12).
//!
//! This is the one crate with mapped memory. Rows that somebody may be writing are touched only
//! through [`words`], never through a slice.

#![cfg_attr(loom, allow(dead_code, reason = "only the cores are built under loom"))]

mod index;
mod limits;
mod slot;
mod sync;

// Under loom only the lock-free cores are built: its atomics cannot live in mapped memory.
#[cfg(not(loom))]
mod mapped {
    pub use crate::header::{PlaneLayout, RegionHeader, RegionState};
    pub use crate::keys::KeySource;
    pub use crate::mutable::{
        BatchOutcome, Gone, MutableKind, MutableReader, MutableSpec, MutableWriter, ReadError, Slot,
    };
    pub use crate::pool::{Pool, PoolError, PoolUsage};
    pub use crate::sealed::file::{LoadAs, SealedFileError};
    pub use crate::sealed::{Digests, SealError, SealedBuilder, SealedShard, SealedSpec};
    pub use crate::spec::{PoolSpec, PoolSpecError};
}
#[cfg(not(loom))]
pub use mapped::*;

#[cfg(not(loom))]
mod growth;
#[cfg(not(loom))]
pub mod header;
#[cfg(not(loom))]
mod keys;
#[cfg(not(loom))]
pub mod mutable;
#[cfg(not(loom))]
pub mod plan;
#[cfg(not(loom))]
pub mod pool;
#[cfg(not(loom))]
pub mod region;
#[cfg(not(loom))]
pub mod sealed;
#[cfg(not(loom))]
mod slab;
#[cfg(not(loom))]
pub mod spec;
#[cfg(not(loom))]
pub mod words;
