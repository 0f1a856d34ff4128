//! Frames on a QUIC stream: header first, limits checked, then the body as it arrives.

use bytes::{Buf, Bytes, BytesMut};
use mneme_proto::frame::{FRAME_HEADER_BYTES, FrameError, FrameHeader, FrameKind};
use quinn::{ReadError, RecvStream, SendStream, WriteError};
use zerocopy::IntoBytes;

use crate::body::Body;
use crate::error::NetError;
use crate::limits::CHUNKS_PER_READ;

/// Why no frame could be read.
#[derive(Debug)]
pub(crate) enum ReadFault {
    /// The stream broke.
    Stream(ReadError),
    /// What came is no frame; `request` is its id as far as that is known.
    Frame { request: u64, error: FrameError },
}

impl From<ReadError> for ReadFault {
    fn from(error: ReadError) -> Self {
        Self::Stream(error)
    }
}

/// Reads one frame to the end of its stream. What is kept follows what arrived: the length that
/// a header claims reserves nothing (I-12).
pub(crate) async fn read_frame(
    recv: &mut RecvStream,
) -> Result<(FrameHeader, FrameKind, Body), ReadFault> {
    let (mut body, mut small) = (Body::default(), BytesMut::new());
    let mut head = None;
    loop {
        let mut chunks: [Bytes; CHUNKS_PER_READ] = [const { Bytes::new() }; CHUNKS_PER_READ];
        let Some(count) = recv.read_chunks(&mut chunks).await? else {
            break;
        };
        for chunk in chunks.into_iter().take(count) {
            body.push(chunk, &mut small);
        }
        if head.is_none() && body.len() >= FRAME_HEADER_BYTES {
            body.flush(&mut small);
            head = Some(take_header(&mut body)?);
        }
        if let Some((header, _)) = &head {
            check_length(header, body.len(), u32::gt)?;
        }
    }
    body.flush(&mut small);
    let Some((header, kind)) = head else {
        let why = format!("the stream ended after {} B of its header", body.len());
        return Err(malformed(0, why));
    };
    check_length(&header, body.len(), u32::ne)?;
    if is_checked(kind) {
        // One contiguous piece, because the archive in it is read as one.
        let whole = body.into_contiguous();
        header
            .check_crc(&whole)
            .map_err(|error| fault(header.request.get(), error))?;
        body = whole.into();
    }
    Ok((header, kind, body))
}

fn take_header(body: &mut Body) -> Result<(FrameHeader, FrameKind), ReadFault> {
    let mut bytes = [0; FRAME_HEADER_BYTES];
    body.copy_to_slice(&mut bytes);
    FrameHeader::parse(&bytes).map_err(|error| {
        // Known to be an id only where the magic was right.
        let request = match error {
            FrameError::Magic(_) => 0,
            _ => u64::from_le_bytes(std::array::from_fn(|i| bytes[8 + i])),
        };
        fault(request, error)
    })
}

/// Fails if `wrong(received, claimed)`.
fn check_length(
    header: &FrameHeader,
    received: usize,
    wrong: fn(&u32, &u32) -> bool,
) -> Result<(), ReadFault> {
    let claimed = header.body_bytes.get();
    if wrong(&u32::try_from(received).unwrap_or(u32::MAX), &claimed) {
        let why = format!("its header claims a body of {claimed} B, {received} B came");
        return Err(malformed(header.request.get(), why));
    }
    Ok(())
}

fn malformed(request: u64, why: String) -> ReadFault {
    fault(request, FrameError::Malformed { what: "frame", why })
}

fn fault(request: u64, error: FrameError) -> ReadFault {
    ReadFault::Frame { request, error }
}

/// Kinds whose bodies carry a CRC32C: archives. Rows are covered by TLS alone.
fn is_checked(kind: FrameKind) -> bool {
    matches!(kind, FrameKind::Control | FrameKind::Refused)
}

/// A frame ready to be written: header and body parts, which are sent without being copied.
///
/// # Errors
/// [`NetError::TooLarge`].
pub(crate) fn frame_parts(
    kind: FrameKind,
    request: u64,
    mut body: Vec<Bytes>,
) -> Result<Vec<Bytes>, NetError> {
    let bytes: u64 = body.iter().map(|part| part.len() as u64).sum();
    let limit = kind.body_bytes_max();
    let length = u32::try_from(bytes)
        .ok()
        .filter(|&n| n <= limit)
        .ok_or(NetError::TooLarge { bytes, limit })?;
    let header = if is_checked(kind) {
        let whole = match body.len() {
            1 => body.swap_remove(0),
            _ => body.concat().into(),
        };
        let header = FrameHeader::checked(kind, request, &whole);
        body = vec![whole];
        header
    } else {
        FrameHeader::new(kind, request, length)
    };
    let mut parts = Vec::with_capacity(body.len() + 1);
    parts.push(Bytes::copy_from_slice(header.as_bytes()));
    parts.extend(body.into_iter().filter(|part| !part.is_empty()));
    Ok(parts)
}

/// Writes a frame and ends the stream.
pub(crate) async fn write_frame(
    send: &mut SendStream,
    parts: &mut [Bytes],
) -> Result<(), WriteError> {
    send.write_all_chunks(parts).await?;
    send.finish().map_err(|_| WriteError::ClosedStream)
}
