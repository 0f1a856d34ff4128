//! One data frame of every kind, built field by field.

use mneme_proto::codec::encode;
use mneme_proto::frame::{
    FrameHeader, FrameKind, GroupOutcome, LoadHeader, Missing, PULL_WITH_STATE, PartOutcome,
    PullGroup, PullHeader, PulledHeader, PushHeader, PushMode, PushPart, PushedHeader, Status,
};
use mneme_proto::refusal::Refusal;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

/// Bytes of one row in these frames.
pub const ROW_BYTES: u32 = 12;

const KEYS: [u64; 3] = [7, 1 << 53 | 1, u64::MAX];
const REQUEST: u64 = 0x0a0b_0c0d_0e0f_1011;

fn keys() -> Vec<u8> {
    KEYS.iter().flat_map(|&k| U64::new(k).to_bytes()).collect()
}

fn rows() -> Vec<u8> {
    (0..3 * ROW_BYTES as u8).collect()
}

fn refused() -> Vec<u8> {
    let why = Refusal::RowOutOfRange { row: 9, rows: 9 };
    encode(&vec![why]).to_vec()
}

fn framed(kind: FrameKind, body: &[u8]) -> Vec<u8> {
    let header = FrameHeader::new(kind, REQUEST, body.len() as u32);
    [header.as_bytes(), body].concat()
}

/// A pull of three keys in two groups.
pub fn pull() -> Vec<u8> {
    let header = PullHeader {
        table: 0x2122_2324_2526_2728.into(),
        generation: 0x3132_3334_3536_3738.into(),
        groups: 2.into(),
        keys: 3.into(),
        missing: Missing::Init as u8,
        flags: PULL_WITH_STATE,
        reserved: [0; 6],
    };
    let group = |shard: u32, keys: u32| PullGroup {
        shard: shard.into(),
        keys: keys.into(),
        epoch: 0x4142_4344_4546_4748.into(),
    };
    let groups = [group(5, 1), group(6, 2)];
    let body = [header.as_bytes(), groups.as_bytes(), &keys()].concat();
    framed(FrameKind::Pull, &body)
}

/// Its answer: the first group refused, the second served.
pub fn pulled() -> Vec<u8> {
    let refusals = refused();
    let header = PulledHeader {
        groups: 2.into(),
        keys: 3.into(),
        row_bytes: ROW_BYTES.into(),
        refusals_bytes: (refusals.len() as u32).into(),
    };
    let outcome = |shard: u32, refusal: u32| GroupOutcome {
        shard: shard.into(),
        refusal: refusal.into(),
    };
    let outcomes = [outcome(5, 1), outcome(6, 0)];
    let statuses = [0, Status::Found as u8, Status::Default as u8];
    let body = [
        header.as_bytes(),
        outcomes.as_bytes(),
        &statuses,
        &[0; 5],
        &rows(),
        &refusals,
    ]
    .concat();
    framed(FrameKind::Pulled, &body)
}

/// A push of three gradients in two parts.
pub fn push() -> Vec<u8> {
    let header = PushHeader {
        table: 0x2122_2324_2526_2728.into(),
        step: 0x5152_5354_5556_5758.into(),
        parts: 2.into(),
        keys: 3.into(),
        value_bytes: ROW_BYTES.into(),
        mode: PushMode::Gradient as u8,
        reserved: [0; 3],
    };
    let part = |shard: u32, keys: u32, sequence: u64| PushPart {
        shard: shard.into(),
        keys: keys.into(),
        epoch: 0x4142_4344_4546_4748.into(),
        session: 0x6162_6364_6566_6768.into(),
        sequence: sequence.into(),
    };
    let parts = [part(5, 2, 0x7172), part(6, 1, 0x7374)];
    let body = [header.as_bytes(), parts.as_bytes(), &keys(), &rows()].concat();
    framed(FrameKind::Push, &body)
}

/// Its answer: the first part applied, the second refused.
pub fn pushed() -> Vec<u8> {
    let refusals = refused();
    let header = PushedHeader {
        parts: 2.into(),
        refusals_bytes: (refusals.len() as u32).into(),
    };
    let outcome = |shard: u32, refusal: u32, rows: u32, index: u64| PartOutcome {
        shard: shard.into(),
        refusal: refusal.into(),
        rows: rows.into(),
        ignored: (2 - rows).into(),
        index: index.into(),
    };
    let outcomes = [outcome(5, 0, 1, 0x8182_8384), outcome(6, 1, 0, 0)];
    let body = [header.as_bytes(), outcomes.as_bytes(), &refusals].concat();
    framed(FrameKind::Pushed, &body)
}

/// Three rows of a hashed generation being loaded.
pub fn load() -> Vec<u8> {
    let header = LoadHeader {
        table: 0x2122_2324_2526_2728.into(),
        generation: 0x3132_3334_3536_3738.into(),
        first: 0x9192_9394_9596_9798.into(),
        shard: 5.into(),
        rows: 3.into(),
        keyed: 1,
        reserved: [0; 7],
    };
    let body = [header.as_bytes(), &keys(), &rows()].concat();
    framed(FrameKind::Load, &body)
}

/// A control frame and a refusal frame, whose bodies carry a CRC32C.
pub fn checked() -> Vec<u8> {
    let body = refused();
    let both = [FrameKind::Control, FrameKind::Refused];
    both.iter()
        .flat_map(|&kind| {
            let header = FrameHeader::checked(kind, REQUEST, &body);
            [header.as_bytes(), &body].concat()
        })
        .collect()
}
