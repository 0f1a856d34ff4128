//! The mutable store of one shard: slots that are pushed to while they are read.
//!
//! A hashed shard is a slab and an index, a dense one a slab alone whose slot numbers are its
//! local rows. Optimizer state stands in a second, private slab with the same slot numbers; only
//! the writer touches it. One [`MutableWriter`] exists per shard, [`MutableReader`]s are cloned at
//! will.

mod reader;
mod room;
mod writer;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mneme_proto::ids::{ClusterId, Epoch, Generation, RegionId, ShardId};

pub use reader::{BatchOutcome, Gone, MutableReader, ReadError};
pub(crate) use reader::{check_buffers, status_byte};
pub use writer::{MutableWriter, Rows};

use crate::growth::{Index, IndexWriter, SlotKeys};
use crate::header::{LayoutKind, LiveHeader, PlaneLayout, RegionHeader, RegionState};
use crate::plan;
use crate::pool::{Pool, PoolError};
use crate::slab::Slab;
use crate::slot::{LIVE, SLOT_HEADER_BYTES, SlotHeader};
use crate::words::{self, padded};

/// Where a row stands. Valid as long as its key is not deleted: slots never move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub(crate) u64);

impl Slot {
    /// Its number, `0..2^48`: what a slot hint carries.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// Hashed or dense.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MutableKind {
    /// Any u64 key, found through an index; takes memory with its first row.
    Hashed,
    /// Local rows `0..rows`; takes all its memory at creation.
    Dense {
        /// Rows of this shard.
        rows: u64,
    },
}

/// What a mutable shard is made of.
#[derive(Debug, Clone)]
pub struct MutableSpec {
    /// The cluster.
    pub cluster: ClusterId,
    /// The table and which of its shards.
    pub shard: ShardId,
    /// The region of rows and index.
    pub region: RegionId,
    /// The region of optimizer state; unused when there is none.
    pub state_region: RegionId,
    /// The generation of both, never reused (I-6).
    pub generation: Generation,
    /// Hashed or dense.
    pub kind: MutableKind,
    /// Bytes of a row; at least 1.
    pub row_bytes: u32,
    /// Bytes of optimizer state per row; 0 for none.
    pub state_bytes: u32,
    /// Seed of the index, the table's own and drawn at random: who knows it can choose keys that
    /// crowd one bucket.
    pub seed: u64,
    /// Planes of a row.
    pub planes: Vec<PlaneLayout>,
}

/// What writer and readers share.
#[derive(Debug)]
pub(crate) struct Shared {
    header: LiveHeader,
    kind: MutableKind,
    row_bytes: usize,
    rows: Slab,
    index: Arc<Index>,
    len: AtomicU64,
}

/// Makes the store of one shard. A dense one's rows and state are zeros.
///
/// # Errors
/// [`PoolError`]; nothing is taken then (I-12).
pub fn create(
    pool: &Arc<Pool>,
    spec: &MutableSpec,
) -> Result<(MutableWriter, MutableReader), PoolError> {
    create_filled(pool, spec, |_, _, _| {})
}

/// Makes the store of one shard; `fill` is given each local row of a dense one, with its row and
/// state bytes, zeroed. A hashed one has no row to fill.
///
/// # Errors
/// [`PoolError`]; nothing is taken then (I-12).
///
/// # Panics
/// If the spec has rows of no bytes: schemas are validated before.
pub fn create_filled(
    pool: &Arc<Pool>,
    spec: &MutableSpec,
    fill: impl FnMut(u64, &mut [u8], &mut [u8]),
) -> Result<(MutableWriter, MutableReader), PoolError> {
    assert!(spec.row_bytes > 0, "a row has at least one byte");
    let stride = plan::mutable_stride(spec.row_bytes);
    let (kind, fixed) = match spec.kind {
        MutableKind::Hashed => (LayoutKind::MutableHashed, None),
        MutableKind::Dense { rows } => (LayoutKind::MutableDense, Some(rows)),
    };
    let header = RegionHeader {
        cluster: spec.cluster,
        shard: spec.shard,
        region: spec.region,
        generation: spec.generation,
        state: RegionState::Mutable,
        primary_since: Epoch(0),
        kind,
        slots: 0,
        rows: 0,
        stride_bytes: stride,
        index_offset: 0,
        index_bytes: 0,
        index_seed: spec.seed,
        planes: spec.planes.clone(),
    };
    let state_stride = padded(spec.state_bytes as usize) as u64;
    let state = (spec.state_bytes > 0).then(|| writer::StateSlab {
        slab: Slab::new(state_stride, fixed),
        bytes: spec.state_bytes as usize,
        header: LiveHeader::new(RegionHeader {
            region: spec.state_region,
            kind: LayoutKind::State,
            stride_bytes: state_stride,
            index_seed: 0,
            planes: Vec::new(),
            ..header.clone()
        }),
    });
    let index = IndexWriter::new(spec.seed);
    let shared = Arc::new(Shared {
        header: LiveHeader::new(header),
        kind: spec.kind,
        row_bytes: spec.row_bytes as usize,
        rows: Slab::new(stride, fixed),
        index: Arc::clone(index.shared()),
        len: AtomicU64::new(0),
    });
    let reader = MutableReader::new(Arc::clone(&shared));
    let mut writer = MutableWriter::new(Arc::clone(pool), shared, state, index);
    if let MutableKind::Dense { rows } = spec.kind {
        writer.fill_dense(rows, fill)?;
    }
    Ok((writer, reader))
}

impl Shared {
    /// The header of a slot that has memory.
    #[inline(always)]
    fn slot(&self, slot: u64) -> &SlotHeader {
        let address = self.rows.address(slot).cast_const();
        // SAFETY: slots come from index entries (or, dense, are compared with `rows`), which are
        // published after their slot got memory; memory stays until `self` goes. The header is
        // aligned (strides are multiples of 8) and only ever touched as atomics.
        unsafe { &*address.cast() }
    }

    /// The address of a slot's row.
    #[inline(always)]
    fn row(&self, slot: u64) -> *mut u8 {
        self.rows.address(slot).wrapping_add(SLOT_HEADER_BYTES)
    }

    /// Bytes from the first of a slot to the last of its row.
    #[inline(always)]
    fn slot_bytes(&self) -> usize {
        SLOT_HEADER_BYTES + self.row_bytes
    }

    fn region_name(&self, what: &str) -> String {
        let header = self.header.get();
        format!("mneme {what} {} region {}", header.shard, header.region)
    }

    fn update_header(&self, change: impl FnOnce(&mut RegionHeader)) {
        let page = self.rows.header_page().filter(|_| self.rows.slots() > 0);
        let page = page.unwrap_or(std::ptr::null_mut());
        // SAFETY: the page is this region's, mapped and populated: the slab has slots.
        unsafe { self.header.update(page, change) };
    }

    fn is_live(&self, slot: u64) -> bool {
        self.slot(slot).flags() == LIVE
    }

    fn rows_now(&self) -> u64 {
        self.len.load(Ordering::Relaxed)
    }
}

impl SlotKeys for Shared {
    fn key(&self, slot: u64) -> u64 {
        self.slot(slot).key()
    }

    fn prefetch(&self, slot: u64) {
        words::prefetch(self.rows.address(slot), 1);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Nobody reads here any more; a mapping elsewhere learns it before the memory goes (I-6).
        self.update_header(|header| header.state = RegionState::Dead);
    }
}
