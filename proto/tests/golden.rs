//! The encodings of this wire version, pinned byte by byte in `proto/golden`, and decoders fed
//! with bytes that are none.
//!
//! A difference here is a change of the wire: raise `version::WIRE_VERSION`, and write the new
//! files with `MNEME_BLESS=1 cargo test -p mneme-proto --test golden`.

mod samples;

use std::fmt::Debug;
use std::path::PathBuf;

use mneme_proto::codec;
use mneme_proto::control::{CatalogueRequest, CatalogueResponse, NodeRequest, NodeResponse};
use mneme_proto::frame::{
    FRAME_HEADER_BYTES, FrameHeader, FrameKind, LoadView, PullView, PulledView, PushView,
    PushedView,
};
use mneme_proto::map::TableMap;
use mneme_proto::refusal::Refusal;
use mneme_proto::version::WIRE_VERSION;
use proptest::prelude::*;
use samples::frames;

fn golden_path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("golden")
        .join(format!("{name}_v{WIRE_VERSION}.bin"))
}

/// Compares `bytes` with the golden file, or writes it when asked to.
fn check_golden(name: &str, bytes: &[u8]) {
    let path = golden_path(name);
    if std::env::var_os("MNEME_BLESS").is_some() {
        std::fs::write(&path, bytes).expect("the golden folder is writable");
        return;
    }
    let golden = std::fs::read(&path)
        .unwrap_or_else(|e| panic!("{}: {e}; see the top of golden.rs", path.display()));
    let first = golden.iter().zip(bytes).position(|(a, b)| a != b);
    assert!(
        golden == bytes,
        "{name}: {} B are golden, {} B are encoded now, first difference at {first:?}",
        golden.len(),
        bytes.len(),
    );
}

/// Length-prefixed (u32) encodings of many messages in one file.
fn listed(archives: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    archives
        .flat_map(|a| [&(a.len() as u32).to_le_bytes()[..], &a].concat())
        .collect()
}

macro_rules! pins_archives {
    ($test:ident, $type:ty, $samples:expr) => {
        #[test]
        fn $test() {
            let samples: Vec<$type> = $samples;
            let archives = samples.iter().map(|s| codec::encode(s).to_vec());
            check_golden(stringify!($test), &listed(archives));
            for sample in &samples {
                let decoded: $type = codec::decode(&codec::encode(sample)).expect("valid");
                assert_eq!(&decoded, sample);
            }
            let kinds: std::collections::HashSet<String> =
                samples.iter().map(variant_name).collect();
            assert_eq!(kinds.len(), samples.len(), "two samples of one variant");
        }
    };
}

fn variant_name<T: Debug>(value: &T) -> String {
    let text = format!("{value:?}");
    let end = text.find(|c: char| !c.is_alphanumeric());
    text[..end.unwrap_or(text.len())].to_owned()
}

pins_archives!(
    catalogue_request,
    CatalogueRequest,
    samples::catalogue_requests()
);
pins_archives!(
    catalogue_response,
    CatalogueResponse,
    samples::catalogue_responses()
);
pins_archives!(node_request, NodeRequest, samples::node_requests());
pins_archives!(node_response, NodeResponse, samples::node_responses());
pins_archives!(refusal, Refusal, samples::refusals());
pins_archives!(table_map, TableMap, vec![samples::map()]);

/// Splits a frame into its kind and its body.
fn parse(frame: &[u8]) -> (FrameHeader, FrameKind, &[u8]) {
    let (head, body) = frame
        .split_first_chunk::<FRAME_HEADER_BYTES>()
        .expect("a header");
    let (header, kind) = FrameHeader::parse(head).expect("a frame");
    (header, kind, body)
}

#[test]
fn frames() {
    let pull = frames::pull();
    let (header, kind, body) = parse(&pull);
    assert_eq!(
        (kind, header.body_bytes.get()),
        (FrameKind::Pull, body.len() as u32)
    );
    let view = PullView::parse(body).expect("a pull");
    assert_eq!((view.groups.len(), view.keys[2].get()), (2, u64::MAX));

    let pulled = frames::pulled();
    let view = PulledView::parse(parse(&pulled).2).expect("an answer");
    assert_eq!((view.statuses, view.rows.len()), (&[0, 1, 2][..], 36));
    // Rows start at a multiple of 8 from the body's start: readers may load words from them.
    let start = view.rows.as_ptr() as usize - pulled[FRAME_HEADER_BYTES..].as_ptr() as usize;
    assert_eq!(start % 8, 0);
    let refusals: Vec<Refusal> = codec::decode(view.refusals).expect("refusals");
    assert_eq!(refusals, [Refusal::RowOutOfRange { row: 9, rows: 9 }]);

    let push = frames::push();
    let view = PushView::parse(parse(&push).2).expect("a push");
    assert_eq!((view.parts.len(), view.payload.len()), (2, 36));

    let pushed = frames::pushed();
    let view = PushedView::parse(parse(&pushed).2).expect("an answer");
    assert_eq!(view.outcomes[0].index.get(), 0x8182_8384);

    let load = frames::load();
    let view = LoadView::parse(parse(&load).2, frames::ROW_BYTES).expect("a load");
    assert_eq!((view.keys.len(), view.rows.len()), (3, 36));

    check_golden("frame_pull", &pull);
    check_golden("frame_pulled", &pulled);
    check_golden("frame_push", &push);
    check_golden("frame_pushed", &pushed);
    check_golden("frame_load", &load);
    check_golden("frame_checked", &frames::checked());
}

/// Runs every decoder; the test is that none panics and none allocates on a claim (I-12).
fn decode_all(bytes: &[u8]) {
    if let Some((head, body)) = bytes.split_first_chunk::<FRAME_HEADER_BYTES>()
        && let Ok((header, _)) = FrameHeader::parse(head)
    {
        let _ = header.check_crc(body);
    }
    let _ = PullView::parse(bytes);
    let _ = PulledView::parse(bytes);
    let _ = PushView::parse(bytes);
    let _ = PushedView::parse(bytes);
    let _ = LoadView::parse(bytes, frames::ROW_BYTES);
    let _ = codec::decode::<CatalogueRequest>(bytes);
    let _ = codec::decode::<CatalogueResponse>(bytes);
    let _ = codec::decode::<NodeRequest>(bytes);
    let _ = codec::decode::<NodeResponse>(bytes);
    let _ = codec::decode::<TableMap>(bytes);
    let _ = codec::decode::<Vec<Refusal>>(bytes);
}

/// Good bytes of every kind, to be damaged.
fn good() -> Vec<Vec<u8>> {
    let mut all = vec![
        frames::pull(),
        frames::pulled(),
        frames::push(),
        frames::pushed(),
        frames::load(),
    ];
    let bodies: Vec<Vec<u8>> = all
        .iter()
        .map(|f| f[FRAME_HEADER_BYTES..].to_vec())
        .collect();
    all.extend(bodies);
    all.push(codec::encode(&samples::map()).to_vec());
    all.push(codec::encode(&samples::refusals()).to_vec());
    let archive = |r: &CatalogueRequest| codec::encode(r).to_vec();
    all.extend(samples::catalogue_requests().iter().map(archive));
    let archive = |r: &CatalogueResponse| codec::encode(r).to_vec();
    all.extend(samples::catalogue_responses().iter().map(archive));
    all.extend(
        samples::node_requests()
            .iter()
            .map(|r| codec::encode(r).to_vec()),
    );
    all.extend(
        samples::node_responses()
            .iter()
            .map(|r| codec::encode(r).to_vec()),
    );
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_bytes_are_an_error_not_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        decode_all(&bytes);
    }

    #[test]
    fn damaged_messages_are_an_error_not_a_panic(
        which in any::<prop::sample::Index>(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
        truncate in any::<bool>(),
    ) {
        let all = good();
        let mut bytes = which.get(&all).clone();
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if truncate {
            bytes.truncate(cut.index(bytes.len()));
        }
        decode_all(&bytes);
    }
}
