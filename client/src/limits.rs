//! Every bound of the client, with its reason.

use std::time::Duration;

use mneme_proto::limits::{FRAME_BODY_BYTES_MAX, FRAME_KEYS_MAX, ROW_BYTES_MAX};

/// Deadline of a call whose caller names none.
pub const DEADLINE_DEFAULT: Duration = Duration::from_secs(5);

/// Bytes of rows that a node makes, or seals and writes to its disk, in a second at the very least,
/// memory that the machine gives for the first time included.
pub const MADE_BYTES_PER_S: u64 = 64 << 20;

/// How long nodes may take for so many bytes of rows.
#[must_use]
pub const fn made_within(bytes: u64) -> Duration {
    Duration::from_secs(bytes / MADE_BYTES_PER_S)
}

/// How long one attempt to reach a node may take: a handshake is a few round trips, so what is
/// silent this long is not there (B092).
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Tries of one call, the first included (DESIGN 11).
pub const TRIES_MAX: u32 = 3;

/// Retries that traffic earns: one for ten calls (DESIGN 11).
pub const RETRY_SHARE: f64 = 0.1;

/// Retries saved up at most, and at the start: a short outage does not find the purse empty.
pub const RETRY_RESERVE: f64 = 20.0;

/// Retries a second that even an idle client may make: after a quiet hour a lost link must not
/// fail the first call.
pub const RETRY_FLOOR_PER_S: f64 = 2.0;

/// First pause before a retry; it doubles, and is jittered.
pub const PAUSE_FIRST: Duration = Duration::from_millis(4);

/// Longest pause before a retry.
pub const PAUSE_MAX: Duration = Duration::from_millis(250);

/// Default bound of the coalescer: how long a small pull waits for others to join (DESIGN 7).
pub const COALESCE_US_DEFAULT: u64 = 20;

/// Default bound of a blocking client's busy polling: calls of a thousand rows are answered within
/// it; those that take longer do not feel a wake-up.
pub const BUSY_POLL_US_DEFAULT: u64 = 1000;

/// A pull that brings more keys for one node goes straight through: joining others would save it
/// a small part of its time and cost a copy of all its rows.
pub const COALESCE_KEYS_MAX: usize = 256;

/// A joint frame of this many keys is full.
pub const COALESCED_FRAME_KEYS: usize = 2048;

/// Bytes of rows that one pull frame asks for. Large enough that a frame's fixed costs vanish
/// (smaller frames, which a node could gather while others travel, were measured slower), small
/// enough that a node's other callers are not held up by one.
pub const FRAME_ROWS_BYTES: usize = 1 << 20;

/// Frames of one pull or push in flight. More would only queue in the same links.
pub const FRAMES_IN_FLIGHT: usize = 8;

/// Kept free in an answer's frame for the text of refusals.
pub const REFUSALS_BYTES: usize = 512 << 10;

/// Keys of one call: positions are 32-bit.
pub const CALL_KEYS_MAX: usize = u32::MAX as usize;

/// Plans kept for the next call; beyond that they are freed.
pub const PLANS_KEPT: usize = 16;

/// A plan that has grown beyond this many keys is freed, not kept.
pub const PLAN_KEYS_KEPT: usize = 1 << 20;

/// Wait of one watch question; the catalogue answers earlier when something changes.
pub const WATCH_WAIT_MS: u32 = 10_000;

/// Pause after a failed watch. Clients recover within it once the catalogue is back (B077).
pub const WATCH_PAUSE: Duration = Duration::from_millis(500);

/// Bytes of rows asked of a node in one scan answer: half a control frame.
pub const SCAN_BYTES: usize = 4 << 20;

/// How long a sequence that was given up is tried to be voided. A session that cannot be put in
/// order within it is dropped and a new one opened.
pub const VOID_WITHIN: Duration = Duration::from_secs(30);

/// Keys and payload of one push part. Parts are atomic, so they are as large as frames allow.
pub const PART_BYTES_MAX: usize = FRAME_BODY_BYTES_MAX as usize - (64 << 10);

/// A push frame that holds this much takes no further part.
pub const PUSH_FRAME_BYTES: usize = 1 << 20;

/// Configuration files are small; anything larger is not read.
pub const CONFIG_BYTES_MAX: u64 = 1 << 20;

/// Keys of one pull frame for rows of `row_bytes`: within the frame's limits, and of about
/// [`FRAME_ROWS_BYTES`].
#[must_use]
pub const fn pull_frame_keys(row_bytes: usize) -> usize {
    let wanted = FRAME_ROWS_BYTES / row_bytes;
    let wanted = if wanted == 0 { 1 } else { wanted };
    if wanted > FRAME_KEYS_MAX as usize {
        FRAME_KEYS_MAX as usize
    } else {
        wanted
    }
}

// The largest rows, with state beside them (four vectors of f32 for every byte), fit a frame.
const _: () = assert!(ROW_BYTES_MAX as usize * 17 + REFUSALS_BYTES < FRAME_BODY_BYTES_MAX as usize);
const _: () = assert!(FRAME_ROWS_BYTES + REFUSALS_BYTES < FRAME_BODY_BYTES_MAX as usize);
const _: () = assert!(COALESCE_KEYS_MAX <= COALESCED_FRAME_KEYS);
const _: () = assert!(COALESCED_FRAME_KEYS <= FRAME_KEYS_MAX as usize);
