//! Hostile input to a running cluster: refused, memory flat, and the next honest caller is
//! served as if nothing had been (I-12).

use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;

use mneme_net::{Role, init_authority, issue};
use mneme_proto::frame::{FRAME_HEADER_BYTES, FrameHeader, FrameKind, PullHeader, PushHeader};
use mneme_proto::schema::Optimizer;
use mneme_proto::version::ALPN;
use mneme_tests::raw::{self, Exchange};
use mneme_tests::rows::{Rows, hashed};
use mneme_tests::{Mneme, Trio};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// What resident memory may grow by: allocator slack, not anything that was claimed.
const GROWTH_BYTES_MAX: u64 = 16 << 20;

/// A cluster under attack, with a table that must go on being served.
struct Target {
    trio: Trio,
    rows: Rows,
    before: Vec<u64>,
}

impl Target {
    fn new() -> Self {
        let trio = Trio::start();
        let client = trio.client();
        let rows = Rows::create(&client, hashed("honest", 4, Optimizer::None));
        let target = Self {
            trio,
            rows,
            before: Vec::new(),
        };
        // The first calls fill pools and caches of the servers; they are not growth.
        for i in 0..50 {
            target.serves(i as f32);
        }
        let before = target.resident();
        Self { before, ..target }
    }

    /// Addresses under attack: the catalogue and a node.
    fn addresses(&self) -> [SocketAddr; 2] {
        [self.trio.catalogue(), self.trio.address(0)].map(|a| a.parse().expect("an address"))
    }

    /// The identity of an honest client.
    fn identity(&self) -> PathBuf {
        self.trio.folder().join("certs/admin")
    }

    fn resident(&self) -> Vec<u64> {
        let servers = self.trio.servers.iter().map(|p| p.resident_bytes());
        std::iter::once(self.trio.meta.resident_bytes())
            .chain(servers)
            .collect()
    }

    fn serves(&self, value: f32) {
        self.rows.assign(&[1], &[value; 4]);
        assert_eq!(self.rows.pull(&[1]), [value; 4]);
    }

    /// Checks that all is as before, and prints the figures.
    fn is_unharmed(&mut self, attack: &str) {
        self.serves(0.5);
        let fresh = Rows::open(&self.trio.client(), "honest");
        assert_eq!(fresh.pull(&[1]), [0.5; 4]);
        assert!(self.trio.meta.ended().is_none(), "the catalogue ended");
        assert!(
            self.trio.servers.iter_mut().all(|s| s.ended().is_none()),
            "a node ended"
        );
        let after = self.resident();
        for (before, after) in self.before.iter().zip(&after) {
            println!(
                "{attack}: VmRSS {} KiB before, {} KiB after",
                before >> 10,
                after >> 10
            );
            assert!(
                after.saturating_sub(*before) < GROWTH_BYTES_MAX,
                "memory grew"
            );
        }
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime")
}

#[test]
fn strangers_are_turned_away() {
    let mut target = Target::new();
    let other = target.trio.folder().join("other");
    init_authority(&other.join("ca")).expect("another authority");
    issue(
        &other.join("ca"),
        Role::Client,
        "admin",
        &other.join("admin"),
    )
    .expect("a certificate");
    let honest = target.identity();
    runtime().block_on(async {
        for server in target.addresses() {
            assert!(
                raw::is_let_in(server, raw::client(Some(&honest), ALPN)).await,
                "the honest"
            );
            for _ in 0..50 {
                let no_certificate = raw::client(None, ALPN);
                assert!(
                    !raw::is_let_in(server, no_certificate).await,
                    "no certificate"
                );
                let other_authority = raw::client(Some(&other.join("admin")), ALPN);
                assert!(
                    !raw::is_let_in(server, other_authority).await,
                    "another authority"
                );
                for alpn in [&b"h3"[..], b"mneme/0", b"mneme/2"] {
                    let wrong = raw::client(Some(&honest), alpn);
                    assert!(!raw::is_let_in(server, wrong).await, "a wrong ALPN");
                }
            }
        }
    });
    // The client says which of it was the matter, within its time.
    let stranger = target.trio.folder().join("stranger.toml");
    let text = format!(
        "catalogue = [\"{}\"]\nidentity = \"other/admin\"\n",
        target.trio.catalogue()
    );
    std::fs::write(&stranger, text).expect("writable");
    Mneme::on(stranger).refused(1, &["table", "list"], &["certificate"]);
    target.is_unharmed("strangers");
}

#[test]
fn datagrams_of_noise_are_ignored() {
    let mut target = Target::new();
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    let mut random = StdRng::seed_from_u64(11);
    for server in target.addresses() {
        for _ in 0..20_000 {
            let mut bytes = vec![0; random.random_range(1..1500)];
            random.fill(&mut bytes[..]);
            socket.send_to(&bytes, server).expect("sent");
        }
    }
    target.is_unharmed("noise");
}

#[test]
fn frames_of_nonsense_are_refused() {
    let mut target = Target::new();
    let identity = target.identity();
    runtime().block_on(async {
        for server in target.addresses() {
            let mut connection = raw::connect(server, &identity).await;
            for bytes in nonsense() {
                match raw::exchange(&connection, &bytes).await {
                    Exchange::Answered(answer) => assert_refusal(&answer),
                    Exchange::Reset => {}
                    Exchange::Closed => connection = raw::connect(server, &identity).await,
                }
            }
        }
    });
    target.is_unharmed("nonsense");
}

/// Truncated, oversized, mis-counted and random requests.
fn nonsense() -> Vec<Vec<u8>> {
    use zerocopy::IntoBytes;
    let mut random = StdRng::seed_from_u64(12);
    let kinds = [
        FrameKind::Pull,
        FrameKind::Pulled,
        FrameKind::Push,
        FrameKind::Pushed,
        FrameKind::Load,
        FrameKind::Control,
        FrameKind::Refused,
    ];
    let mut all = vec![Vec::new()];
    for kind in kinds {
        let header = |body: u32| FrameHeader::new(kind, 7, body).as_bytes().to_vec();
        all.push(header(0));
        all.push(header(u32::MAX));
        all.push(header(kind.body_bytes_max() + 1));
        all.push(header(kind.body_bytes_max()));
        all.push(header(1 << 20)[..FRAME_HEADER_BYTES / 2].to_vec());
        for _ in 0..40 {
            let mut body = vec![0; random.random_range(0..2000)];
            random.fill(&mut body[..]);
            let checked = FrameHeader::checked(kind, 7, &body);
            all.push([checked.as_bytes(), &body].concat());
        }
    }
    // Good headers whose counts claim far more than came.
    let pull = PullHeader {
        table: 1.into(),
        generation: 0.into(),
        groups: u32::MAX.into(),
        keys: u32::MAX.into(),
        missing: 0,
        flags: 255,
        reserved: [255; 6],
    };
    let push = PushHeader {
        table: 1.into(),
        step: u64::MAX.into(),
        parts: u32::MAX.into(),
        keys: u32::MAX.into(),
        value_bytes: u32::MAX.into(),
        mode: 1,
        reserved: [255; 3],
    };
    for (kind, body) in [
        (FrameKind::Pull, pull.as_bytes()),
        (FrameKind::Push, push.as_bytes()),
    ] {
        let header = FrameHeader::new(kind, 7, body.len() as u32);
        all.push([header.as_bytes(), body].concat());
    }
    for _ in 0..300 {
        let mut bytes = vec![0; random.random_range(0..4000)];
        random.fill(&mut bytes[..]);
        all.push(bytes);
    }
    all
}

/// Whatever comes back to nonsense is a refusal, not rows.
fn assert_refusal(answer: &[u8]) {
    let (head, _) = answer
        .split_first_chunk::<FRAME_HEADER_BYTES>()
        .expect("a whole header");
    let (_, kind) = FrameHeader::parse(head).expect("a frame");
    assert!(
        matches!(kind, FrameKind::Refused | FrameKind::Control),
        "{kind:?}"
    );
}

#[test]
fn claims_without_bytes_hold_no_memory() {
    use zerocopy::IntoBytes;
    let mut target = Target::new();
    let identity = target.identity();
    let runtime = runtime();
    let held = runtime.block_on(async {
        let mut held = Vec::new();
        for server in target.addresses() {
            let connection = raw::connect(server, &identity).await;
            for _ in 0..500 {
                let opened = tokio::time::timeout(raw::PATIENCE, connection.open_bi()).await;
                let (mut send, recv) = opened.expect("a stream, soon").expect("a live connection");
                let claim = FrameHeader::new(FrameKind::Push, 7, 16 << 20);
                send.write_all(claim.as_bytes())
                    .await
                    .expect("room for a header");
                held.push((send, recv));
            }
            held.shrink_to_fit();
        }
        held
    });
    // All streams are still open: 16 GiB are claimed.
    target.is_unharmed("claims");
    drop(held);
}

#[test]
fn callers_that_vanish_leave_nothing_behind() {
    let mut target = Target::new();
    let before = target.trio.servers[0].descriptors();
    let identity = target.identity();
    runtime().block_on(async {
        let server = target.addresses()[1];
        for _ in 0..200 {
            let connection = raw::connect(server, &identity).await;
            let (mut send, _recv) = connection.open_bi().await.expect("a stream");
            // Half a frame, then gone without a word.
            send.write_all(b"MNEM\x01\x00\x03").await.expect("room");
            drop(connection);
        }
    });
    target.is_unharmed("vanished");
    let after = target.trio.servers[0].descriptors();
    assert!(
        after <= before + 4,
        "{before} descriptors before, {after} after"
    );
}
