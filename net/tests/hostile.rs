//! Bytes that are no frames, from a peer with a good certificate: refused by name, and the node
//! goes on. Proves I-12 on links.

mod support;

use std::time::Duration;

use bytes::Bytes;
use mneme_net::{Endpoint, Role};
use mneme_proto::codec;
use mneme_proto::frame::{FRAME_HEADER_BYTES, FrameHeader, FrameKind};
use mneme_proto::refusal::Refusal;
use mneme_proto::version::{ALPN, WIRE_VERSION};
use rand::{Rng, SeedableRng, rngs::StdRng};
use support::{Authority, check, echo, raw, soon};
use zerocopy::IntoBytes;

struct Hostile {
    authority: Authority,
    node: Endpoint,
    connection: quinn::Connection,
}

impl Hostile {
    async fn new() -> Self {
        let authority = Authority::new();
        let node = authority.node();
        echo(&node);
        authority.identity(Role::Client, "mallory");
        let dir = authority.dir_of(Role::Client, "mallory");
        let connection = raw::endpoint()
            .connect_with(raw::client(Some(&dir), ALPN), node.local_addr(), "mneme")
            .expect("a valid configuration")
            .await
            .expect("a good certificate");
        Self {
            authority,
            node,
            connection,
        }
    }

    /// Sends bytes as a request and returns what comes back; `None` if the stream is reset.
    async fn send(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let (mut send, mut recv) = self.connection.open_bi().await.expect("a stream");
        // The node may stop reading early.
        let _ = send.write_all(bytes).await;
        let _ = send.finish();
        tokio::time::timeout(Duration::from_secs(10), recv.read_to_end(1 << 20))
            .await
            .expect("an end of the stream, soon")
            .ok()
    }

    /// The refusal that bytes are answered with.
    async fn refusal(&self, bytes: &[u8]) -> (FrameHeader, Refusal) {
        let answer = self.send(bytes).await.expect("an answer");
        let (head, body) = answer
            .split_first_chunk::<FRAME_HEADER_BYTES>()
            .expect("a header");
        let (header, kind) = FrameHeader::parse(head).expect("a frame");
        assert_eq!(kind, FrameKind::Refused);
        header.check_crc(body).expect("whole");
        (header, codec::decode(body).expect("a refusal"))
    }

    async fn node_is_well(&self) {
        let dialer = self.authority.dialer();
        let link = dialer
            .connect(self.node.local_addr(), Role::Node, soon())
            .await;
        check(&link.expect("a link")).await;
    }
}

fn header(kind: FrameKind, body_bytes: u32) -> FrameHeader {
    FrameHeader::new(kind, 42, body_bytes)
}

/// B084: another version is an explicit refusal, not silence.
#[tokio::test]
async fn another_version_is_refused_by_number() {
    let hostile = Hostile::new().await;
    let mut newer = header(FrameKind::Pull, 0);
    newer.version = (WIRE_VERSION + 1).into();
    let (answer, refusal) = hostile.refusal(newer.as_bytes()).await;
    assert_eq!(answer.request.get(), 42);
    let (theirs, ours) = (WIRE_VERSION + 1, WIRE_VERSION);
    assert_eq!(refusal, Refusal::Version { theirs, ours });
}

#[tokio::test]
async fn what_is_no_frame_is_refused_by_what_is_wrong() {
    let hostile = Hostile::new().await;
    let mut unknown = header(FrameKind::Pull, 0);
    unknown.kind = 99;
    let damaged = FrameHeader::checked(FrameKind::Control, 42, b"abcd");
    let huge = header(FrameKind::Pull, u32::MAX);
    let cases: [(&str, Vec<u8>, &str); 7] = [
        ("magic", vec![0x16; 64], "not a mneme frame"),
        ("kind", unknown.as_bytes().to_vec(), "unknown frame kind 99"),
        ("huge", huge.as_bytes().to_vec(), "over the limit"),
        ("empty", vec![], "ended after 0 B of its header"),
        (
            "truncated",
            header(FrameKind::Pull, 9).as_bytes()[..23].to_vec(),
            "after 23 B",
        ),
        (
            "short",
            header(FrameKind::Pull, 1 << 20).as_bytes().to_vec(),
            "0 B came",
        ),
        (
            "damaged",
            [damaged.as_bytes(), b"abce"].concat(),
            "arrived damaged",
        ),
    ];
    for (name, bytes, expected) in cases {
        let (_, refusal) = hostile.refusal(&bytes).await;
        let Refusal::Malformed { why } = refusal else {
            panic!("{name}: {refusal}");
        };
        assert!(why.contains(expected), "{name}: {why}");
    }
    let long = [header(FrameKind::Pull, 4).as_bytes(), &[0; 5]].concat();
    let (_, refusal) = hostile.refusal(&long).await;
    assert!(
        refusal
            .to_string()
            .contains("claims a body of 4 B, 5 B came"),
        "{refusal}"
    );
    hostile.node_is_well().await;
}

/// I-12: a thousand claims of the largest body hold no memory.
#[tokio::test]
async fn claims_without_bytes_hold_no_memory() {
    let hostile = Hostile::new().await;
    hostile.node_is_well().await;
    let before = resident_bytes();
    let claim = header(FrameKind::Pull, 16 << 20);
    let mut open = Vec::new();
    for _ in 0..1000 {
        let (mut send, recv) = hostile.connection.open_bi().await.expect("a stream");
        send.write_all(claim.as_bytes())
            .await
            .expect("room for a header");
        open.push((send, recv));
    }
    hostile.node_is_well().await;
    let grown = resident_bytes().saturating_sub(before);
    // 1000 x 16 MiB were claimed.
    assert!(grown < 64 << 20, "{grown} B more are resident");
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: u64 = statm
        .split_whitespace()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .expect("the second figure is the resident pages");
    pages * 4096
}

#[tokio::test]
async fn random_bytes_never_get_an_answer_and_never_harm() {
    let hostile = Hostile::new().await;
    let mut random = StdRng::seed_from_u64(0x6d6e_656d);
    for _ in 0..300 {
        let mut bytes = vec![0; random.random_range(0..4000)];
        random.fill(&mut bytes[..]);
        if random.random_bool(0.5) && bytes.len() >= FRAME_HEADER_BYTES {
            // A good start, so that the rest is reached.
            bytes[..FRAME_HEADER_BYTES].copy_from_slice(header(FrameKind::Control, 99).as_bytes());
        }
        let (_, refusal) = hostile.refusal(&bytes).await;
        assert!(matches!(refusal, Refusal::Malformed { .. }), "{refusal}");
    }
    hostile.node_is_well().await;
}

#[tokio::test]
async fn datagrams_that_are_no_quic_are_ignored() {
    let hostile = Hostile::new().await;
    let socket = std::net::UdpSocket::bind(support::loopback()).expect("a free port");
    let mut random = StdRng::seed_from_u64(7);
    for _ in 0..500 {
        let mut bytes = Bytes::from(vec![0; random.random_range(0..1500)]).to_vec();
        random.fill(&mut bytes[..]);
        socket
            .send_to(&bytes, hostile.node.local_addr())
            .expect("sent");
    }
    hostile.node_is_well().await;
}
