//! Every bound of this crate, with its reason.

use std::time::Duration;

use mneme_proto::limits::FRAME_BODY_BYTES_MAX;

/// Largest UDP payload. GSO sends ten segments as one datagram of at most 65,507 B; above
/// 6550 B a segment they no longer fit and are lost without an error (DEPENDENCIES, quinn).
pub const MTU_BYTES_MAX: u16 = 6500;

/// UDP payload that every path carries: QUIC's own minimum. Discovery starts here.
pub const MTU_BYTES_MIN: u16 = 1200;

/// What the loopback interface must carry before a link to this host starts at
/// [`MTU_BYTES_MAX`]: the payload and the IPv6 and UDP headers.
pub const LOOPBACK_MTU_BYTES: u32 = MTU_BYTES_MAX as u32 + 40 + 8;

/// Segments that the kernel may hand over as one datagram: 64 KiB of the largest ones. The
/// receive buffers are sized by it, 32 of them for an endpoint.
pub const RECEIVE_SEGMENTS_MAX: usize = 65_535 / MTU_BYTES_MAX as usize + 1;

/// Socket buffers asked for. A burst of several 270 KiB answers must fit while the receiver
/// decrypts the one before.
pub const SOCKET_BUFFER_BYTES: usize = 4 << 20;

/// Requests of one link in flight, default. Each costs a stream's state; QUIC libraries default
/// to 100, which a coalescing client with many tasks reaches.
pub const STREAMS_DEFAULT: u32 = 1024;

/// Receive window of one stream: a whole frame with its header, so that one answer never waits
/// for window updates.
pub const STREAM_WINDOW_BYTES: u32 = FRAME_BODY_BYTES_MAX + 4096;

/// Receive window of a link: what an authenticated peer can make this end hold unread.
pub const LINK_WINDOW_BYTES: u32 = 4 * STREAM_WINDOW_BYTES;

/// Bytes that a link keeps until they are acknowledged; a writer waits above it.
pub const SEND_WINDOW_BYTES: u64 = 2 * STREAM_WINDOW_BYTES as u64;

/// First congestion window. Data-centre paths carry it at once, and one answer of 1024 Engram
/// rows fits without waiting for slow start.
pub const INITIAL_WINDOW_BYTES: u64 = 512 << 10;

/// Packets after which the receiver acknowledges at once; fewer wait for something to send, or
/// for its acknowledgement delay. A packet of its own for every second packet, as is the
/// default, made a pull of 1024 Engram rows a tenth slower; 32 of the largest are well below
/// [`INITIAL_WINDOW_BYTES`], so a sender is never held up by it. Losses are told at once anyway.
pub const ACK_AFTER_PACKETS: u32 = 32;

/// How long an acknowledgement waits for company. The default of 25 ms would be a stall of that
/// length for a sender whose window has shrunk below [`ACK_AFTER_PACKETS`].
pub const ACK_DELAY: Duration = Duration::from_millis(2);

/// Round-trip time assumed before the first measurement: within a data centre, with margin.
/// The standard's 333 ms would make one lost handshake packet cost a second.
pub const INITIAL_RTT: Duration = Duration::from_millis(30);

/// A dialer sends something this often on an idle link.
pub const KEEP_ALIVE: Duration = Duration::from_secs(1);

/// Silence after which a link is dead: several keep-alives, about two node leases.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(6);

/// Handshakes under way at one endpoint. Each holds some 10 KiB and a few hundred microseconds
/// of signatures; 960 clients at once pass in a few rounds.
pub const HANDSHAKES_MAX: usize = 256;

/// From this many handshakes on, a client must first prove its address (QUIC Retry), so that
/// forged sources cannot hold the places.
pub const HANDSHAKES_BEFORE_RETRY: usize = 64;

/// A handshake that takes longer gives its place up.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Connection attempts that wait for a place; the rest are refused at once.
pub const INCOMING_MAX: usize = 4096;

/// Early bytes kept for one waiting attempt, before anything is known of it (I-12).
pub const INCOMING_BUFFER_BYTES: u64 = 16 << 10;

/// The same for all waiting attempts together (I-12).
pub const INCOMING_BUFFER_BYTES_TOTAL: u64 = 16 << 20;

/// Links authenticated and not yet taken by `accept`.
pub const ACCEPT_QUEUE: usize = 1024;

/// A request whose bytes take longer to arrive is dropped, so that a stuck peer does not keep
/// streams for ever. Well above any caller's deadline.
pub const REQUEST_READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Chunks taken from a stream in one go: 64 packets are more than one answer of 1024 rows.
pub const CHUNKS_PER_READ: usize = 64;

/// A received chunk smaller than this is copied out of its packet: kept, it would hold the whole
/// packet in memory. Below the payload of the smallest full packet, so that bulk data is not.
pub const CHUNK_BYTES_MIN: usize = 1024;

/// How often certificate files are looked at.
pub const RELOAD_INTERVAL: Duration = Duration::from_secs(2);

/// Certificate files are small; anything larger is not read.
pub const CERT_FILE_BYTES_MAX: u64 = 1 << 20;

/// Validity of an authority's certificate.
pub const AUTHORITY_VALIDITY: Duration = Duration::from_secs(3650 * 86_400);

/// Validity of an issued certificate.
pub const CERT_VALIDITY: Duration = Duration::from_secs(398 * 86_400);

/// Certificates start this long before they are made, for clocks that are behind.
pub const CERT_BACKDATE: Duration = Duration::from_secs(3600);

const _: () = assert!(MTU_BYTES_MAX as usize * 10 <= 65_507);
const _: () = assert!(KEEP_ALIVE.as_secs() * 2 < IDLE_TIMEOUT.as_secs());
const _: () =
    assert!((ACK_AFTER_PACKETS as u64 + 1) * (MTU_BYTES_MAX as u64) < INITIAL_WINDOW_BYTES);
const _: () = assert!(HANDSHAKES_BEFORE_RETRY < HANDSHAKES_MAX);
const _: () = assert!(STREAM_WINDOW_BYTES > FRAME_BODY_BYTES_MAX);

/// First pause before the catalogue is asked again; doubled up to [`CATALOGUE_BACKOFF_MAX`].
pub const CATALOGUE_BACKOFF: Duration = Duration::from_millis(20);

/// Longest pause between two tries: a new leader is found within an election and this.
pub const CATALOGUE_BACKOFF_MAX: Duration = Duration::from_millis(500);

/// Time for one member to answer a dial before the next seed is tried.
pub const CATALOGUE_DIAL: Duration = Duration::from_secs(2);
