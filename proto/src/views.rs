//! Parsing of frame bodies: checks counts against limits and section sizes against the body,
//! then lends views. Nothing here allocates (I-12).

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use crate::frame::{
    FrameError, LoadHeader, LoadView, Missing, PullGroup, PullHeader, PullView, PulledHeader,
    PulledView, PushHeader, PushMode, PushPart, PushView, PushedHeader, PushedView,
};
use crate::limits::{CONTROL_BODY_BYTES_MAX, FRAME_GROUPS_MAX, FRAME_KEYS_MAX, ROW_BYTES_MAX};

fn malformed(what: &'static str, why: impl Into<String>) -> FrameError {
    FrameError::Malformed {
        what,
        why: why.into(),
    }
}

/// Takes one fixed header from the front of `body`.
fn take<'a, T>(what: &'static str, body: &'a [u8]) -> Result<(&'a T, &'a [u8]), FrameError>
where
    T: FromBytes + KnownLayout + Immutable + Unaligned,
{
    T::ref_from_prefix(body)
        .map_err(|_| malformed(what, format!("{} B are less than its header", body.len())))
}

/// Takes `count` elements from the front of `body`.
fn take_many<'a, T>(
    what: &'static str,
    body: &'a [u8],
    count: u32,
) -> Result<(&'a [T], &'a [u8]), FrameError>
where
    T: FromBytes + Immutable + Unaligned,
{
    <[T]>::ref_from_prefix_with_elems(body, count as usize).map_err(|_| {
        malformed(
            what,
            format!("{count} elements claimed, {} B are left", body.len()),
        )
    })
}

fn take_bytes<'a>(
    what: &'static str,
    body: &'a [u8],
    bytes: u64,
) -> Result<(&'a [u8], &'a [u8]), FrameError> {
    usize::try_from(bytes)
        .ok()
        .and_then(|n| body.split_at_checked(n))
        .ok_or_else(|| {
            malformed(
                what,
                format!("{bytes} B claimed, {} B are left", body.len()),
            )
        })
}

fn bounded(what: &'static str, count: u32, limit: u32) -> Result<(), FrameError> {
    if count <= limit {
        return Ok(());
    }
    Err(malformed(
        what,
        format!("{count} is over the limit of {limit}"),
    ))
}

fn nothing_left(what: &'static str, rest: &[u8]) -> Result<(), FrameError> {
    if rest.is_empty() {
        return Ok(());
    }
    Err(malformed(what, format!("{} B follow its end", rest.len())))
}

fn counts_add_up(
    what: &'static str,
    counts: impl Iterator<Item = u32>,
    keys: u32,
) -> Result<(), FrameError> {
    let sum: u64 = counts.map(u64::from).sum();
    if sum == u64::from(keys) {
        return Ok(());
    }
    Err(malformed(
        what,
        format!("its groups hold {sum} keys, its header says {keys}"),
    ))
}

/// Padding after `bytes` bytes that brings the next section to a multiple of 8 from the body's
/// start.
#[must_use]
pub const fn pad_to_8(bytes: usize) -> usize {
    bytes.wrapping_neg() & 7
}

impl<'a> PullView<'a> {
    /// Parses a `Pull` body.
    ///
    /// # Errors
    /// [`FrameError::Malformed`] naming the section.
    pub fn parse(body: &'a [u8]) -> Result<Self, FrameError> {
        let (header, rest) = take::<PullHeader>("pull", body)?;
        bounded("pull groups", header.groups.get(), FRAME_GROUPS_MAX)?;
        bounded("pull keys", header.keys.get(), FRAME_KEYS_MAX)?;
        let missing = Missing::from_byte(header.missing)
            .ok_or_else(|| malformed("pull", format!("missing policy {}", header.missing)))?;
        let (groups, rest) = take_many::<PullGroup>("pull groups", rest, header.groups.get())?;
        let (keys, rest) = take_many::<U64>("pull keys", rest, header.keys.get())?;
        nothing_left("pull", rest)?;
        counts_add_up(
            "pull",
            groups.iter().map(|g| g.keys.get()),
            header.keys.get(),
        )?;
        Ok(Self {
            header,
            missing,
            groups,
            keys,
        })
    }
}

impl<'a> PushView<'a> {
    /// Parses a `Push` body.
    ///
    /// # Errors
    /// [`FrameError::Malformed`] naming the section.
    pub fn parse(body: &'a [u8]) -> Result<Self, FrameError> {
        let (header, rest) = take::<PushHeader>("push", body)?;
        bounded("push parts", header.parts.get(), FRAME_GROUPS_MAX)?;
        bounded("push keys", header.keys.get(), FRAME_KEYS_MAX)?;
        bounded(
            "push value bytes",
            header.value_bytes.get(),
            ROW_BYTES_MAX * 4,
        )?;
        let mode = PushMode::from_byte(header.mode)
            .ok_or_else(|| malformed("push", format!("mode {}", header.mode)))?;
        let (parts, rest) = take_many::<PushPart>("push parts", rest, header.parts.get())?;
        let (keys, rest) = take_many::<U64>("push keys", rest, header.keys.get())?;
        let bytes = u64::from(header.keys.get()) * u64::from(header.value_bytes.get());
        let (payload, rest) = take_bytes("push payload", rest, bytes)?;
        nothing_left("push", rest)?;
        counts_add_up(
            "push",
            parts.iter().map(|p| p.keys.get()),
            header.keys.get(),
        )?;
        Ok(Self {
            header,
            mode,
            parts,
            keys,
            payload,
        })
    }
}

impl<'a> PulledView<'a> {
    /// Parses a `Pulled` body.
    ///
    /// # Errors
    /// [`FrameError::Malformed`] naming the section.
    pub fn parse(body: &'a [u8]) -> Result<Self, FrameError> {
        let (header, rest) = take::<PulledHeader>("pulled", body)?;
        bounded("pulled groups", header.groups.get(), FRAME_GROUPS_MAX)?;
        bounded("pulled keys", header.keys.get(), FRAME_KEYS_MAX)?;
        let (outcomes, rest) = take_many("pulled outcomes", rest, header.groups.get())?;
        let (statuses, rest) = take_bytes("pulled statuses", rest, header.keys.get().into())?;
        let (_, rest) = take_bytes("pulled padding", rest, pad_to_8(statuses.len()) as u64)?;
        let bytes = u64::from(header.keys.get()) * u64::from(header.row_bytes.get());
        let (rows, rest) = take_bytes("pulled rows", rest, bytes)?;
        let (refusals, rest) =
            take_bytes("pulled refusals", rest, header.refusals_bytes.get().into())?;
        nothing_left("pulled", rest)?;
        Ok(Self {
            header,
            outcomes,
            statuses,
            rows,
            refusals,
        })
    }
}

impl<'a> PushedView<'a> {
    /// Parses a `Pushed` body.
    ///
    /// # Errors
    /// [`FrameError::Malformed`] naming the section.
    pub fn parse(body: &'a [u8]) -> Result<Self, FrameError> {
        let (header, rest) = take::<PushedHeader>("pushed", body)?;
        bounded("pushed parts", header.parts.get(), FRAME_GROUPS_MAX)?;
        bounded(
            "pushed refusals",
            header.refusals_bytes.get(),
            CONTROL_BODY_BYTES_MAX,
        )?;
        let (outcomes, rest) = take_many("pushed outcomes", rest, header.parts.get())?;
        let (refusals, rest) =
            take_bytes("pushed refusals", rest, header.refusals_bytes.get().into())?;
        nothing_left("pushed", rest)?;
        Ok(Self { outcomes, refusals })
    }
}

impl<'a> LoadView<'a> {
    /// Parses a `Load` body; `row_bytes` is the table's.
    ///
    /// # Errors
    /// [`FrameError::Malformed`] naming the section.
    pub fn parse(body: &'a [u8], row_bytes: u32) -> Result<Self, FrameError> {
        let (header, rest) = take::<LoadHeader>("load", body)?;
        bounded("load rows", header.rows.get(), FRAME_KEYS_MAX)?;
        let keys = if header.keyed == 0 {
            0
        } else {
            header.rows.get()
        };
        let (keys, rest) = take_many::<U64>("load keys", rest, keys)?;
        let bytes = u64::from(header.rows.get()) * u64::from(row_bytes);
        let (rows, rest) = take_bytes("load rows", rest, bytes)?;
        nothing_left("load", rest)?;
        Ok(Self { header, keys, rows })
    }
}
