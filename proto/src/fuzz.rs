//! What fuzzers call: every decoder of this crate over any bytes. A decoder refuses or reads them;
//! it never panics, and allocates no more than the bytes justify (I-12).
//!
//! `fuzz/` has a libFuzzer target for each, and the tests run all of them over the kept corpora
//! with seeded mutations.

use crate::codec;
use crate::control::{CatalogueRequest, CatalogueResponse, NodeRequest, NodeResponse};
use crate::frame::{
    FRAME_HEADER_BYTES, FrameHeader, LoadView, PullView, PulledView, PushView, PushedView,
};
use crate::limits::ROW_BYTES_MAX;
use crate::map::TableMap;
use crate::refusal::Refusal;

/// A target: its name, and what it does with any bytes.
pub type Target = (&'static str, fn(&[u8]));

/// The targets by name, which is also that of the corpus.
pub const TARGETS: &[Target] = &[("frame", frame), ("control", control)];

/// A frame: its header, then its body as each of the views.
pub fn frame(data: &[u8]) {
    if let Some((start, body)) = data.split_first_chunk::<FRAME_HEADER_BYTES>()
        && let Ok((header, _)) = FrameHeader::parse(start)
    {
        let _ = header.check_crc(body);
        views(body);
    }
    // Bodies come from authenticated peers only, but nothing hangs on their headers.
    views(data);
}

/// Every view of a body; what one lends is touched to its end.
fn views(body: &[u8]) {
    if let Ok(view) = PullView::parse(body) {
        std::hint::black_box(format!("{view:?}").len());
    }
    if let Ok(view) = PushView::parse(body) {
        std::hint::black_box(format!("{view:?}").len());
    }
    if let Ok(view) = PulledView::parse(body) {
        std::hint::black_box(format!("{view:?}").len());
    }
    if let Ok(view) = PushedView::parse(body) {
        std::hint::black_box(format!("{view:?}").len());
    }
    for row_bytes in [1, 4, 264, ROW_BYTES_MAX] {
        if let Ok(view) = LoadView::parse(body, row_bytes) {
            std::hint::black_box(format!("{view:?}").len());
        }
    }
}

/// A control message: the first byte chooses the type, the others are its archive.
pub fn control(data: &[u8]) {
    let Some((&kind, archive)) = data.split_first() else {
        return;
    };
    let decoded = match kind % 6 {
        0 => codec::decode::<CatalogueRequest>(archive).map(|m| format!("{m:?}")),
        1 => codec::decode::<CatalogueResponse>(archive).map(|m| format!("{m:?}")),
        2 => codec::decode::<NodeRequest>(archive).map(|m| format!("{m:?}")),
        3 => codec::decode::<NodeResponse>(archive).map(|m| format!("{m:?}")),
        4 => codec::decode::<Refusal>(archive).map(|m| m.to_string()),
        _ => codec::decode::<TableMap>(archive).map(|m| format!("{m:?}")),
    };
    std::hint::black_box(decoded.is_ok());
}
