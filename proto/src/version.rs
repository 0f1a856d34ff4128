//! Versions of what crosses a wire or a disk. A mismatch is an explicit error, never a guess.

/// Version of frames and control messages. Archives are positional, so any change of a control
/// message raises it.
pub const WIRE_VERSION: u16 = 1;

/// ALPN of data and control connections; carries the major version.
pub const ALPN: &[u8] = b"mneme/1";

/// Version of a region's header page and slab layout.
pub const LAYOUT_VERSION: u32 = 1;

/// Version of the catalogue's log entries and snapshots.
pub const CATALOGUE_VERSION: u32 = 1;
