//! The header page of a region: 4 KiB that say what the region is, enough to adopt it again.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic, `mnemereg` |
//! | 8 | 4 | layout version |
//! | 12 | 4 | CRC32C of the page, this field taken as zero |
//! | 16 | 8 | cluster |
//! | 24 | 8 | table |
//! | 32 | 4 | shard |
//! | 36 | 4 | state |
//! | 40 | 8 | region |
//! | 48 | 8 | generation |
//! | 56 | 8 | primary_since (epoch; 0: not primary) |
//! | 64 | 4 | layout kind |
//! | 68 | 4 | planes |
//! | 72 | 8 | slots that have memory |
//! | 80 | 8 | rows, as of the last growth or sealing |
//! | 88 | 8 | bytes from slot to slot |
//! | 96 | 8 | offset of slot 0 in the file |
//! | 104 | 8 | offset of the index in the file; 0: none |
//! | 112 | 8 | bytes of the index |
//! | 120 | 8 | seed of the index |
//! | 128 | 256 | 16 planes of {offset u32, stride u32, bytes u32, dtype u32} |
//! | 384 | 3712 | zeros |
//!
//! All little-endian. In a memfd the page comes first.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use mneme_proto::ids::{ClusterId, Epoch, Generation, RegionId, ShardId, ShardIndex, TableId};
use mneme_proto::limits::PLANES_MAX;
use mneme_proto::schema::{Dtype, RowSchema};
use mneme_proto::version::LAYOUT_VERSION;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::limits::HEADER_PAGE_BYTES;
use crate::words::copy_in;

const PAGE: usize = HEADER_PAGE_BYTES as usize;
const MAGIC: u64 = u64::from_le_bytes(*b"mnemereg");
const CRC_OFFSET: usize = 12;

/// What a region's memory may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum RegionState {
    /// Rows are being loaded; nobody reads.
    Loading = 1,
    /// Complete and never written again (I-8).
    Sealed = 2,
    /// Pushed to and read.
    Mutable = 3,
    /// Still readable for those who are reading; nobody new is let in (I-6).
    Draining = 4,
    /// Not readable; its memory is about to be given back.
    Dead = 5,
}

impl RegionState {
    const fn from_code(code: u32) -> Option<Self> {
        match code {
            1 => Some(Self::Loading),
            2 => Some(Self::Sealed),
            3 => Some(Self::Mutable),
            4 => Some(Self::Draining),
            5 => Some(Self::Dead),
            _ => None,
        }
    }
}

/// How the slots of a region are laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum LayoutKind {
    /// Bare rows of a dense table.
    SealedDense = 1,
    /// Key and row of a hashed table.
    SealedHashed = 2,
    /// Slots with header, found by local row.
    MutableDense = 3,
    /// Slots with header, found through an index.
    MutableHashed = 4,
    /// Optimizer state beside a mutable region's slots: private, never shared nor registered.
    State = 5,
}

impl LayoutKind {
    const fn from_code(code: u32) -> Option<Self> {
        match code {
            1 => Some(Self::SealedDense),
            2 => Some(Self::SealedHashed),
            3 => Some(Self::MutableDense),
            4 => Some(Self::MutableHashed),
            5 => Some(Self::State),
            _ => None,
        }
    }
}

/// Where a plane stands in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlaneLayout {
    /// Bytes from the row's first to the plane's.
    pub offset_bytes: u32,
    /// Bytes from one row's plane to the next row's; the store fills it in.
    pub stride_bytes: u32,
    /// Bytes of the plane in one row.
    pub bytes: u32,
    /// Element type.
    pub dtype: Dtype,
}

impl PlaneLayout {
    /// The planes of `schema`, one after the other in each row.
    #[must_use]
    pub fn of_schema(schema: &RowSchema) -> Vec<Self> {
        let mut offset_bytes = 0;
        let plane = |plane: &mneme_proto::schema::Plane| {
            let layout = Self {
                offset_bytes,
                stride_bytes: 0,
                bytes: plane.dtype.bytes() * plane.width,
                dtype: plane.dtype,
            };
            offset_bytes += layout.bytes;
            layout
        };
        schema.planes.iter().map(plane).collect()
    }
}

/// A region's header, decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegionHeader {
    /// The cluster that it belongs to.
    pub cluster: ClusterId,
    /// The shard whose rows it holds.
    pub shard: ShardId,
    /// The region.
    pub region: RegionId,
    /// Its generation, never reused (I-6).
    pub generation: Generation,
    /// What it may be used for.
    pub state: RegionState,
    /// The epoch in which this replica became primary; 0 when it is not.
    pub primary_since: Epoch,
    /// How its slots are laid out.
    pub kind: LayoutKind,
    /// Slots that have memory.
    pub slots: u64,
    /// Rows, as of the last growth or sealing.
    pub rows: u64,
    /// Bytes from one slot to the next.
    pub stride_bytes: u64,
    /// Where the index stands in the file; 0: none.
    pub index_offset: u64,
    /// Bytes of the index.
    pub index_bytes: u64,
    /// Seed of the index.
    pub index_seed: u64,
    /// At most [`PLANES_MAX`].
    pub planes: Vec<PlaneLayout>,
}

/// Why a page is no header.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// Too short, or other bytes than a header begins with.
    #[error("not a region header: it does not begin with 'mnemereg'")]
    Magic,
    /// Written by another version.
    #[error("region header of layout version {found}; this build reads version {known}")]
    Version {
        /// The page's.
        found: u32,
        /// Ours.
        known: u32,
    },
    /// Damaged, or being written.
    #[error("region header's CRC32C is {found:08x}, its bytes give {computed:08x}")]
    Crc {
        /// The page's.
        found: u32,
        /// What its bytes give.
        computed: u32,
    },
    /// A field has a value that no writer writes.
    #[error("region header's {field} is {value}")]
    Field {
        /// Which.
        field: &'static str,
        /// What it holds.
        value: u64,
    },
}

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawPlane {
    offset: U32,
    stride: U32,
    bytes: U32,
    dtype: U32,
}

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHeader {
    magic: U64,
    version: U32,
    crc: U32,
    cluster: U64,
    table: U64,
    shard: U32,
    state: U32,
    region: U64,
    generation: U64,
    primary_since: U64,
    kind: U32,
    planes_used: U32,
    slots: U64,
    rows: U64,
    stride: U64,
    slab_offset: U64,
    index_offset: U64,
    index_bytes: U64,
    index_seed: U64,
    planes: [RawPlane; PLANES_MAX],
}

const _: () = assert!(size_of::<RawHeader>() == 384);

const fn dtype_code(dtype: Dtype) -> u32 {
    match dtype {
        Dtype::F32 => 1,
        Dtype::F16 => 2,
        Dtype::Bf16 => 3,
        Dtype::F8e4m3 => 4,
        Dtype::F8e5m2 => 5,
        Dtype::I8 => 6,
        Dtype::U8 => 7,
    }
}

fn dtype_of_code(code: u32) -> Option<Dtype> {
    Dtype::ALL
        .into_iter()
        .find(|dtype| dtype_code(*dtype) == code)
}

fn page_crc(page: &[u8; PAGE]) -> u32 {
    let crc = crc32c::crc32c(&page[..CRC_OFFSET]);
    let crc = crc32c::crc32c_append(crc, &[0; 4]);
    crc32c::crc32c_append(crc, &page[CRC_OFFSET + 4..])
}

impl RegionHeader {
    /// The page.
    #[must_use]
    pub fn encode(&self) -> Box<[u8; PAGE]> {
        let mut planes = [RawPlane::new_zeroed(); PLANES_MAX];
        for (raw, plane) in planes.iter_mut().zip(&self.planes) {
            *raw = RawPlane {
                offset: plane.offset_bytes.into(),
                stride: plane.stride_bytes.into(),
                bytes: plane.bytes.into(),
                dtype: dtype_code(plane.dtype).into(),
            };
        }
        let raw = RawHeader {
            magic: MAGIC.into(),
            version: LAYOUT_VERSION.into(),
            crc: 0.into(),
            cluster: self.cluster.0.into(),
            table: self.shard.table.0.into(),
            shard: self.shard.shard.0.into(),
            state: (self.state as u32).into(),
            region: self.region.0.into(),
            generation: self.generation.0.into(),
            primary_since: self.primary_since.0.into(),
            kind: (self.kind as u32).into(),
            planes_used: (self.planes.len().min(PLANES_MAX) as u32).into(),
            slots: self.slots.into(),
            rows: self.rows.into(),
            stride: self.stride_bytes.into(),
            slab_offset: HEADER_PAGE_BYTES.into(),
            index_offset: self.index_offset.into(),
            index_bytes: self.index_bytes.into(),
            index_seed: self.index_seed.into(),
            planes,
        };
        let mut page = Box::new([0; PAGE]);
        page[..size_of::<RawHeader>()].copy_from_slice(raw.as_bytes());
        let crc = page_crc(&page);
        page[CRC_OFFSET..CRC_OFFSET + 4].copy_from_slice(&crc.to_le_bytes());
        page
    }

    /// Reads a page back. A page of zeros is no header.
    ///
    /// # Errors
    /// [`HeaderError`]; version and magic come before the CRC, so that a newer page is named.
    pub fn decode(page: &[u8; PAGE]) -> Result<Self, HeaderError> {
        let (raw, _) = RawHeader::read_from_prefix(page).map_err(|_| HeaderError::Magic)?;
        if raw.magic.get() != MAGIC {
            return Err(HeaderError::Magic);
        }
        let (found, known) = (raw.version.get(), LAYOUT_VERSION);
        if found != known {
            return Err(HeaderError::Version { found, known });
        }
        let (found, computed) = (raw.crc.get(), page_crc(page));
        if found != computed {
            return Err(HeaderError::Crc { found, computed });
        }
        let field = |field, value: u64| HeaderError::Field { field, value };
        let used = raw.planes_used.get() as usize;
        let used = raw
            .planes
            .get(..used)
            .ok_or_else(|| field("number of planes", used as u64))?;
        let plane = |raw: &RawPlane| {
            Ok(PlaneLayout {
                offset_bytes: raw.offset.get(),
                stride_bytes: raw.stride.get(),
                bytes: raw.bytes.get(),
                dtype: dtype_of_code(raw.dtype.get())
                    .ok_or_else(|| field("dtype", raw.dtype.get().into()))?,
            })
        };
        if raw.slab_offset.get() != HEADER_PAGE_BYTES {
            return Err(field("slab offset", raw.slab_offset.get()));
        }
        Ok(Self {
            cluster: ClusterId(raw.cluster.get()),
            shard: ShardId {
                table: TableId(raw.table.get()),
                shard: ShardIndex(raw.shard.get()),
            },
            region: RegionId(raw.region.get()),
            generation: Generation(raw.generation.get()),
            state: RegionState::from_code(raw.state.get())
                .ok_or_else(|| field("state", raw.state.get().into()))?,
            primary_since: Epoch(raw.primary_since.get()),
            kind: LayoutKind::from_code(raw.kind.get())
                .ok_or_else(|| field("layout kind", raw.kind.get().into()))?,
            slots: raw.slots.get(),
            rows: raw.rows.get(),
            stride_bytes: raw.stride.get(),
            index_offset: raw.index_offset.get(),
            index_bytes: raw.index_bytes.get(),
            index_seed: raw.index_seed.get(),
            planes: used.iter().map(plane).collect::<Result<_, _>>()?,
        })
    }
}

/// The header of a region that is in use: what this process knows, and the page that says it to
/// others.
#[derive(Debug)]
pub(crate) struct LiveHeader {
    fields: Mutex<RegionHeader>,
    /// The state again, for readers that check it after each batch.
    state: AtomicU32,
}

impl LiveHeader {
    pub(crate) fn new(mut fields: RegionHeader) -> Self {
        for plane in &mut fields.planes {
            plane.stride_bytes = fields.stride_bytes as u32;
        }
        Self {
            state: AtomicU32::new(fields.state as u32),
            fields: Mutex::new(fields),
        }
    }

    /// A copy of the header.
    pub(crate) fn get(&self) -> RegionHeader {
        self.fields
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Whether rows may be returned: checked after they were copied (I-6).
    #[inline(always)]
    pub(crate) fn is_readable(&self) -> bool {
        let state = self.state.load(Ordering::Acquire);
        state != RegionState::Dead as u32 && state != RegionState::Loading as u32
    }

    /// Changes the header and writes the page, if the region has memory.
    ///
    /// # Safety
    /// `page` is null or the region's own mapped and populated header page.
    pub(crate) unsafe fn update(&self, page: *mut u8, change: impl FnOnce(&mut RegionHeader)) {
        let mut fields = self.fields.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut fields);
        self.state.store(fields.state as u32, Ordering::Release);
        if !page.is_null() {
            // SAFETY: the caller's contract; the lock makes this the page's only writer.
            unsafe { copy_in(page, fields.encode().as_slice()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> RegionHeader {
        RegionHeader {
            cluster: ClusterId(0x0123_4567_89AB_CDEF),
            shard: ShardId {
                table: TableId(7),
                shard: ShardIndex(3),
            },
            region: RegionId(41),
            generation: Generation(42),
            state: RegionState::Sealed,
            primary_since: Epoch(5),
            kind: LayoutKind::SealedHashed,
            slots: 100,
            rows: 99,
            stride_bytes: 272,
            index_offset: 1 << 46,
            index_bytes: 65536,
            index_seed: 0xFEED,
            planes: vec![PlaneLayout {
                offset_bytes: 0,
                stride_bytes: 272,
                bytes: 264,
                dtype: Dtype::U8,
            }],
        }
    }

    #[test]
    fn round_trip_and_golden_bytes() {
        let page = header().encode();
        assert_eq!(RegionHeader::decode(&page), Ok(header()));
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        // Layout version 1. Changing these bytes needs a new version.
        assert_eq!(
            hex(&page[..144]),
            include_str!("../golden/region_header_v1.hex").replace('\n', "")
        );
        assert!(page[144..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn refuses_zeros_other_versions_and_any_flipped_bit() {
        assert_eq!(RegionHeader::decode(&[0; PAGE]), Err(HeaderError::Magic));
        let mut page = header().encode();
        page[8] = 2;
        assert_eq!(
            RegionHeader::decode(&page),
            Err(HeaderError::Version { found: 2, known: 1 })
        );
        for byte in (0..400).chain([PAGE - 1]) {
            let mut page = header().encode();
            page[byte] ^= 0x10;
            assert!(RegionHeader::decode(&page).is_err(), "byte {byte}");
        }
    }
}
