//! Descriptors: the node's word on its own regions (DESIGN 7).

use mneme_memory::{MutableWriter, Pool, RegionHeader, SealedShard};
use mneme_proto::ids::{Generation, RegionId};
use mneme_proto::map::{
    Coherence, CostOrigin, Descriptor, Integrity, PathCost, PathEntry, PathKind, PlaneLayout,
    RegionState, Tier,
};

/// Bytes before the first slot of a region (DESIGN 6).
const HEADER_PAGE_BYTES: u64 = 4096;
/// Bytes before the row in a mutable slot (DESIGN 6).
const SLOT_HEADER_BYTES: u64 = 24;
/// Bytes of the key before the row in a sealed hashed slot (DESIGN 6).
const KEY_BYTES: u64 = 8;

/// What frames over QUIC cost on one host, as measured when the design was made: 50 us for a
/// round trip, 1 GB/s, some 60 ns to look a row up and copy it. Clients replace it by what they
/// observe.
const QUIC_COST: PathCost = PathCost {
    fixed_ns: 50_000,
    row_ns: 60,
    kib_ns: 1_000,
    setup_us: 2_000,
    origin: CostOrigin::Configured,
};

/// What all regions of a pool share.
#[derive(Debug, Clone)]
pub(super) struct Medium {
    page_bytes: u32,
    numa: i16,
    address: String,
}

impl Medium {
    pub(super) fn new(pool: &Pool, address: &str) -> Self {
        let spec = pool.spec();
        Self {
            page_bytes: if spec.huge { 2 << 20 } else { 4096 },
            numa: spec.numa.and_then(|n| i16::try_from(n).ok()).unwrap_or(-1),
            address: address.to_owned(),
        }
    }

    /// The descriptor of a mutable shard, as of now.
    pub(super) fn mutable(&self, writer: &MutableWriter) -> Descriptor {
        let header = writer.header();
        Descriptor {
            rows: writer.len(),
            bytes: writer.bytes(),
            integrity: Integrity::SlotCrc,
            state: RegionState::Mutable,
            ..self.region(&header, SLOT_HEADER_BYTES)
        }
    }

    /// The descriptor of a sealed shard.
    pub(super) fn sealed(&self, shard: &SealedShard) -> Descriptor {
        let key_bytes = if shard.keyed() { KEY_BYTES } else { 0 };
        Descriptor {
            rows: shard.rows(),
            bytes: shard.bytes(),
            integrity: Integrity::Digest,
            state: RegionState::Sealed,
            digest: shard.digests().combined,
            ..self.region(&shard.header(), key_bytes)
        }
    }

    fn region(&self, header: &RegionHeader, before_row: u64) -> Descriptor {
        let plane = |plane: &mneme_memory::PlaneLayout| PlaneLayout {
            offset: HEADER_PAGE_BYTES + before_row + u64::from(plane.offset_bytes),
            stride: header.stride_bytes as u32,
            bytes: plane.bytes,
            dtype: plane.dtype,
        };
        let path = PathEntry {
            kind: PathKind::Quic,
            locator: self.address.clone(),
            cost: QUIC_COST,
        };
        Descriptor {
            region: header.region,
            generation: header.generation,
            state: RegionState::Loading,
            tier: Tier::Dram,
            coherence: Coherence::Host,
            page_bytes: self.page_bytes,
            numa: self.numa,
            integrity: Integrity::Digest,
            rows: 0,
            bytes: 0,
            planes: header.planes.iter().map(plane).collect(),
            paths: vec![path],
            digest: 0,
        }
    }
}

/// Names for a new region, from the catalogue's block. Region ids come from the same numbers: a
/// region has one generation in its life.
#[derive(Debug)]
pub(super) struct Names {
    next: u64,
    end: u64,
}

impl Names {
    pub(super) fn new(first: Generation, count: u32) -> Self {
        Self {
            next: first.0,
            end: first.0 + u64::from(count),
        }
    }

    /// How many are left.
    pub(super) fn left(&self) -> u64 {
        self.end - self.next
    }

    /// Takes `count` of them off the front.
    pub(super) fn split(&mut self, count: u64) -> Self {
        assert!(count <= self.left(), "more names than the block has");
        let end = self.next + count;
        let taken = Self {
            next: self.next,
            end,
        };
        self.next = end;
        taken
    }

    /// A name never used before (I-6).
    pub(super) fn draw(&mut self) -> (RegionId, Generation) {
        let name = self.split(1).next;
        (RegionId(name), Generation(name))
    }
}
