//! Data frames: fixed little-endian headers, then sections whose sizes the header gives.
//!
//! One request and one answer per QUIC stream. Every length is checked against `limits` before
//! anything is allocated (I-12); the views here borrow from the received bytes and copy nothing.
//!
//! ```text
//! frame    = FrameHeader (24 B), body (body_bytes)
//! pull     = PullHeader, PullGroup x groups, key u64 x keys
//! pulled   = PulledHeader, GroupOutcome x groups, status u8 x keys, pad to 8,
//!            row x keys (row_bytes each), refusals (rkyv, refusals_bytes)
//! push     = PushHeader, PushPart x parts, key u64 x keys, payload
//! pushed   = PushedHeader, PartOutcome x parts, refusals (rkyv, refusals_bytes)
//! load     = LoadHeader, key u64 x keys, row x keys
//! control  = one rkyv archive (see `control`), CRC32C in the frame header
//! ```

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::limits::{CONTROL_BODY_BYTES_MAX, FRAME_BODY_BYTES_MAX};
use crate::version::WIRE_VERSION;

/// First bytes of every frame.
pub const FRAME_MAGIC: [u8; 4] = *b"MNEM";

/// Bytes of a [`FrameHeader`].
pub const FRAME_HEADER_BYTES: usize = size_of::<FrameHeader>();

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FrameKind {
    /// Client to node: read rows.
    Pull = 1,
    /// Node to client: the rows.
    Pulled = 2,
    /// Client to node: change rows.
    Push = 3,
    /// Node to client: what each part did.
    Pushed = 4,
    /// Client to node: rows of a generation being loaded.
    Load = 5,
    /// A control request or answer (rkyv).
    Control = 6,
    /// A refusal of the whole request (rkyv `Refusal`).
    Refused = 7,
}

impl FrameKind {
    fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Pull,
            2 => Self::Pulled,
            3 => Self::Push,
            4 => Self::Pushed,
            5 => Self::Load,
            6 => Self::Control,
            7 => Self::Refused,
            _ => return None,
        })
    }

    /// The largest body that a frame of this kind may claim.
    #[must_use]
    pub const fn body_bytes_max(self) -> u32 {
        match self {
            Self::Control | Self::Refused => CONTROL_BODY_BYTES_MAX,
            _ => FRAME_BODY_BYTES_MAX,
        }
    }
}

/// The fixed start of every frame.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct FrameHeader {
    /// [`FRAME_MAGIC`].
    pub magic: [u8; 4],
    /// [`WIRE_VERSION`] of the sender.
    pub version: U16,
    /// A [`FrameKind`].
    pub kind: u8,
    /// Reserved, 0.
    pub flags: u8,
    /// Echoed by the answer.
    pub request: U64,
    /// Bytes after this header.
    pub body_bytes: U32,
    /// CRC32C of the body for `Control` and `Refused`, else 0: rows are covered by TLS.
    pub body_crc: U32,
}

/// Why bytes are not a frame. Each names what was found and what was expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The first bytes are not a frame's.
    #[error("not a mneme frame: it starts with {0:02x?}")]
    Magic([u8; 4]),
    /// Another version of the protocol.
    #[error("the peer speaks protocol version {theirs}, this end {ours}: upgrade the older one")]
    Version {
        /// The sender's version.
        theirs: u16,
        /// This build's version.
        ours: u16,
    },
    /// A kind that this version does not have.
    #[error("unknown frame kind {0}")]
    Kind(u8),
    /// A body over its limit.
    #[error("a {kind:?} frame of {claimed} B is over the limit of {limit} B")]
    TooLarge {
        /// The frame's kind.
        kind: FrameKind,
        /// What its header claims.
        claimed: u32,
        /// What is allowed.
        limit: u32,
    },
    /// Sections and body length disagree, or a count is over its limit.
    #[error("malformed {what}: {why}")]
    Malformed {
        /// The frame or section.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// The body's checksum does not match.
    #[error("a control frame arrived damaged: CRC32C {found:08x}, expected {expected:08x}")]
    Crc {
        /// Computed over the body.
        found: u32,
        /// As the header says.
        expected: u32,
    },
}

impl FrameHeader {
    /// A header for `body_bytes` of `kind`; the CRC is left 0.
    #[must_use]
    pub fn new(kind: FrameKind, request: u64, body_bytes: u32) -> Self {
        Self {
            magic: FRAME_MAGIC,
            version: WIRE_VERSION.into(),
            kind: kind as u8,
            flags: 0,
            request: request.into(),
            body_bytes: body_bytes.into(),
            body_crc: 0.into(),
        }
    }

    /// A header for a control or refusal body, with its CRC32C.
    #[must_use]
    pub fn checked(kind: FrameKind, request: u64, body: &[u8]) -> Self {
        let mut header = Self::new(kind, request, body.len() as u32);
        header.body_crc = crc32c::crc32c(body).into();
        header
    }

    /// Checks magic, version, kind and claimed length, in this order, without allocating.
    ///
    /// # Errors
    /// [`FrameError`]; the stream that carried it is of no further use.
    pub fn parse(bytes: &[u8; FRAME_HEADER_BYTES]) -> Result<(Self, FrameKind), FrameError> {
        let header = Self::read_from_bytes(bytes).expect("the array has the header's size");
        if header.magic != FRAME_MAGIC {
            return Err(FrameError::Magic(header.magic));
        }
        if header.version.get() != WIRE_VERSION {
            let theirs = header.version.get();
            return Err(FrameError::Version {
                theirs,
                ours: WIRE_VERSION,
            });
        }
        let kind = FrameKind::from_byte(header.kind).ok_or(FrameError::Kind(header.kind))?;
        let (claimed, limit) = (header.body_bytes.get(), kind.body_bytes_max());
        if claimed > limit {
            return Err(FrameError::TooLarge {
                kind,
                claimed,
                limit,
            });
        }
        Ok((header, kind))
    }

    /// Checks a control or refusal body against the header's CRC.
    ///
    /// # Errors
    /// [`FrameError::Crc`].
    pub fn check_crc(&self, body: &[u8]) -> Result<(), FrameError> {
        let (found, expected) = (crc32c::crc32c(body), self.body_crc.get());
        if found == expected {
            Ok(())
        } else {
            Err(FrameError::Crc { found, expected })
        }
    }
}

/// What a pull does with a key that has no row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Missing {
    /// Answer the table's default row, status `default`; store nothing.
    #[default]
    Default = 0,
    /// Answer zeros, status `missing`; the caller makes it an error.
    Error = 1,
    /// Insert the table's initial row if absent, status `found` (needs the write grant).
    Init = 2,
}

impl Missing {
    /// The policy of a wire byte.
    #[must_use]
    pub const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::Default),
            1 => Some(Self::Error),
            2 => Some(Self::Init),
            _ => None,
        }
    }
}

/// What a pull says of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Status {
    /// The key's own row.
    Found = 1,
    /// The table's default row: the key has none.
    Default = 2,
    /// No row, and none was made up.
    Missing = 3,
}

impl Status {
    /// The status of a wire byte.
    #[must_use]
    pub const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Found),
            2 => Some(Self::Default),
            3 => Some(Self::Missing),
            _ => None,
        }
    }

    /// The word for it in JSON and tables.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Found => "found",
            Self::Default => "default",
            Self::Missing => "missing",
        }
    }
}

/// What a push does with its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PushMode {
    /// One optimizer step per key. Payload: f32 x dim per key.
    Gradient = 1,
    /// Adds to the row. Payload: f32 x dim per key.
    Add = 2,
    /// Replaces the row. Payload: row_bytes per key, in the table's own dtypes.
    Assign = 3,
    /// Removes the row and its state. No payload.
    Delete = 4,
}

impl PushMode {
    /// The mode of a wire byte.
    #[must_use]
    pub const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Gradient),
            2 => Some(Self::Add),
            3 => Some(Self::Assign),
            4 => Some(Self::Delete),
            _ => None,
        }
    }

    /// The word for it on the command line.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Gradient => "gradient",
            Self::Add => "add",
            Self::Assign => "assign",
            Self::Delete => "delete",
        }
    }
}

/// Set in [`PullHeader::flags`]: each row is followed by its optimizer state (and, on hashed
/// rows that are not found, zeros).
pub const PULL_WITH_STATE: u8 = 1;

/// Start of a `Pull` body.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct PullHeader {
    /// The table's id.
    pub table: U64,
    /// The sealed generation that the client's map names; 0 for a mutable table (I-8).
    pub generation: U64,
    /// Shard groups that follow.
    pub groups: U32,
    /// Keys in all groups together.
    pub keys: U32,
    /// A [`Missing`].
    pub missing: u8,
    /// [`PULL_WITH_STATE`] or 0.
    pub flags: u8,
    /// Reserved, 0.
    pub reserved: [u8; 6],
}

/// The keys of one shard within a pull: the next `keys` of the key section.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct PullGroup {
    /// The shard's index.
    pub shard: U32,
    /// How many keys.
    pub keys: U32,
    /// The shard's epoch in the client's map (I-3).
    pub epoch: U64,
}

/// Start of a `Pulled` body.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct PulledHeader {
    /// As in the request.
    pub groups: U32,
    /// As in the request; refused groups have statuses 0 and zero rows.
    pub keys: U32,
    /// Bytes of a row as sent, state included where it was asked for.
    pub row_bytes: U32,
    /// Bytes of the refusals archive; 0 when every group was served.
    pub refusals_bytes: U32,
}

/// What became of one group: `code` 0, or the index + 1 of its refusal.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct GroupOutcome {
    /// The shard's index.
    pub shard: U32,
    /// 0: served; n: `refusals[n - 1]` says why not.
    pub refusal: U32,
}

/// Start of a `Push` body.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct PushHeader {
    /// The table's id.
    pub table: U64,
    /// Step number for optimizers with `step=caller`; else 0.
    pub step: U64,
    /// Parts that follow.
    pub parts: U32,
    /// Keys in all parts together.
    pub keys: U32,
    /// Payload bytes per key.
    pub value_bytes: U32,
    /// A [`PushMode`].
    pub mode: u8,
    /// Reserved, 0.
    pub reserved: [u8; 3],
}

/// One shard's part of a push: the next `keys` of the keys and of the payload, keys strictly
/// ascending (duplicates were merged by the client). Atomic; exactly once by (session, sequence).
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct PushPart {
    /// The shard's index.
    pub shard: U32,
    /// How many keys.
    pub keys: U32,
    /// The shard's epoch in the client's map.
    pub epoch: U64,
    /// The session on this shard.
    pub session: U64,
    /// The part's sequence in that session.
    pub sequence: U64,
}

/// Start of a `Pushed` body.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct PushedHeader {
    /// As in the request.
    pub parts: U32,
    /// Bytes of the refusals archive; 0 when every part was applied.
    pub refusals_bytes: U32,
}

/// What became of one part. The same bytes answer a repeat of it (I-2).
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct PartOutcome {
    /// The shard's index.
    pub shard: U32,
    /// 0: applied; n: `refusals[n - 1]` says why not.
    pub refusal: U32,
    /// Rows changed, inserted or removed.
    pub rows: U32,
    /// Keys ignored: the padding key.
    pub ignored: U32,
    /// The log index of the part's entry; 0 when refused.
    pub index: U64,
}

/// Start of a `Load` body: rows for one shard of a generation being loaded. Loading is
/// idempotent: `first` says where the rows stand in the load, so a repeat rewrites the same.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct LoadHeader {
    /// The table's id.
    pub table: U64,
    /// The generation being loaded.
    pub generation: U64,
    /// Index of the first row within the shard's load: its local row (dense), its slot (hashed).
    pub first: U64,
    /// The shard's index.
    pub shard: U32,
    /// Rows that follow.
    pub rows: U32,
    /// 1: a key section of `rows` u64 comes before the rows (hashed); 0: rows only (dense).
    pub keyed: u8,
    /// Reserved, 0.
    pub reserved: [u8; 7],
}

/// A parsed pull request: views into the body.
#[derive(Debug, Clone, Copy)]
pub struct PullView<'a> {
    /// The fixed start.
    pub header: &'a PullHeader,
    /// What to do with missing keys.
    pub missing: Missing,
    /// One per shard.
    pub groups: &'a [PullGroup],
    /// Keys of all groups, in order.
    pub keys: &'a [U64],
}

/// A parsed push request: views into the body.
#[derive(Debug, Clone, Copy)]
pub struct PushView<'a> {
    /// The fixed start.
    pub header: &'a PushHeader,
    /// What to do.
    pub mode: PushMode,
    /// One per shard.
    pub parts: &'a [PushPart],
    /// Keys of all parts, in order.
    pub keys: &'a [U64],
    /// `value_bytes` per key.
    pub payload: &'a [u8],
}

/// A parsed answer to a pull.
#[derive(Debug, Clone, Copy)]
pub struct PulledView<'a> {
    /// The fixed start.
    pub header: &'a PulledHeader,
    /// One per group of the request.
    pub outcomes: &'a [GroupOutcome],
    /// One [`Status`] byte per key; 0 in refused groups.
    pub statuses: &'a [u8],
    /// `row_bytes` per key.
    pub rows: &'a [u8],
    /// Archive of the refusals; empty when there are none.
    pub refusals: &'a [u8],
}

/// A parsed answer to a push.
#[derive(Debug, Clone, Copy)]
pub struct PushedView<'a> {
    /// One per part of the request.
    pub outcomes: &'a [PartOutcome],
    /// Archive of the refusals; empty when there are none.
    pub refusals: &'a [u8],
}

/// Parsed rows of a load.
#[derive(Debug, Clone, Copy)]
pub struct LoadView<'a> {
    /// The fixed start.
    pub header: &'a LoadHeader,
    /// Keys, empty for dense tables.
    pub keys: &'a [U64],
    /// The rows, `row_bytes` each.
    pub rows: &'a [u8],
}
