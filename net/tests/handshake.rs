//! Who may link with whom, and what a dialer is told when it may not.

mod support;

use std::fs;
use std::net::{Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant, SystemTime};

use mneme_net::cert::{Principal, issue_between};
use mneme_net::{Endpoint, Expected, HandshakeFault, Identity, LinkOptions, NetError, Role};
use mneme_proto::version::ALPN;
use support::{Authority, check, echo, in_ms, loopback, raw, soon};

/// Dials, and expects a handshake fault within a second.
async fn fault(dialer: &Endpoint, addr: SocketAddr, expect: impl Into<Expected>) -> HandshakeFault {
    let start = Instant::now();
    let error = dialer
        .connect(addr, expect, soon())
        .await
        .expect_err("a refusal");
    assert!(
        start.elapsed() < Duration::from_secs(1),
        "refused too late: {error}"
    );
    assert!(!error.to_string().contains('\n'), "one line: {error}");
    match error {
        NetError::Handshake { why, .. } => why,
        other => panic!("not a handshake fault: {other}"),
    }
}

#[tokio::test]
async fn the_right_ones_link_and_know_each_other() {
    let authority = Authority::new();
    let node = authority.node();
    let dialer = authority.dialer();
    let link = dialer
        .connect(node.local_addr(), Role::Node, soon())
        .await
        .expect("a link");
    let theirs = node.accept().await.expect("a link");
    assert_eq!(link.peer().to_string(), "node 'n1'");
    assert_eq!(theirs.peer().to_string(), "client 'c1'");
    assert_eq!(node.stats().links, 1);

    let named = Principal {
        role: Role::Node,
        name: "n1".into(),
    };
    dialer
        .connect(node.local_addr(), &named, soon())
        .await
        .expect("a link to the named node");
}

#[tokio::test]
async fn a_node_dials_a_catalogue_from_its_own_port() {
    let authority = Authority::new();
    let catalogue = Endpoint::bind(
        loopback(),
        authority.identity(Role::Catalogue, "1"),
        LinkOptions::default(),
    )
    .expect("a free port");
    let node = authority.node();
    node.connect(catalogue.local_addr(), Role::Catalogue, soon())
        .await
        .expect("a link");
    let link = catalogue.accept().await.expect("a link");
    assert_eq!(link.peer_addr(), node.local_addr());
    assert_eq!(link.peer().role, Role::Node);
}

#[tokio::test]
async fn ipv6_works_alone_and_beside_ipv4() {
    let authority = Authority::new();
    let dialer = authority.dialer();
    for listen in [Ipv6Addr::LOCALHOST, Ipv6Addr::UNSPECIFIED] {
        let identity = authority.identity(Role::Node, "n1");
        let node = Endpoint::bind((listen, 0).into(), identity, LinkOptions::default())
            .expect("IPv6 on loopback");
        echo(&node);
        let port = node.local_addr().port();
        let v6 = SocketAddr::from((Ipv6Addr::LOCALHOST, port));
        let link = dialer
            .connect(v6, Role::Node, soon())
            .await
            .expect("a link");
        assert_eq!(link.peer_addr().to_string(), format!("[::1]:{port}"));
        check(&link).await;
        if listen.is_unspecified() {
            let v4 = SocketAddr::from(([127, 0, 0, 1], port));
            check(
                &dialer
                    .connect(v4, Role::Node, soon())
                    .await
                    .expect("a link"),
            )
            .await;
        }
    }
    // A node bound to IPv4 alone reaches an IPv6 peer from a port aside.
    let identity = authority.identity(Role::Node, "n2");
    let six = Endpoint::bind(
        (Ipv6Addr::LOCALHOST, 0).into(),
        identity,
        LinkOptions::default(),
    )
    .expect("IPv6 on loopback");
    echo(&six);
    let four = authority.node();
    check(
        &four
            .connect(six.local_addr(), Role::Node, soon())
            .await
            .expect("a link"),
    )
    .await;
}

#[tokio::test]
async fn another_authority_is_refused_by_either_end() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let node = ours.node();
    let stranger = theirs.dialer();
    let found = fault(&stranger, node.local_addr(), Role::Node).await;
    assert_eq!(found, HandshakeFault::OtherAuthority);

    // It trusts both authorities; the node does not know the one that issued its certificate.
    let dir = theirs.dir_of(Role::Client, "c1");
    let both = [ours.path(), theirs.path()].map(|p| fs::read_to_string(p.join("ca.pem")).unwrap());
    fs::write(dir.join("ca.pem"), both.concat()).unwrap();
    let identity = Identity::load(&dir).expect("an identity");
    let stranger = Endpoint::dialer(identity, LinkOptions::default()).expect("a free port");
    let found = fault(&stranger, node.local_addr(), Role::Node).await;
    assert_eq!(found, HandshakeFault::NotKnownThere);
}

#[tokio::test]
async fn a_wrong_role_or_name_is_refused() {
    let authority = Authority::new();
    let node = authority.node();
    let dialer = authority.dialer();
    let found = fault(&dialer, node.local_addr(), Role::Catalogue).await;
    assert_eq!(
        found.to_string(),
        "a catalogue was dialed, node 'n1' answered"
    );
    let other = Principal {
        role: Role::Node,
        name: "n2".into(),
    };
    let found = fault(&dialer, node.local_addr(), &other).await;
    assert_eq!(found.to_string(), "'n2' was dialed, node 'n1' answered");
}

#[tokio::test]
async fn a_client_cannot_pose_as_a_server() {
    let authority = Authority::new();
    let identity = authority.identity(Role::Client, "mallory");
    let error = Endpoint::bind(loopback(), identity, LinkOptions::default())
        .expect_err("a client's certificate must not serve");
    assert!(
        error.to_string().contains("client 'mallory' may not serve"),
        "{error}"
    );

    let server = raw::server(&authority.dir_of(Role::Client, "mallory"), ALPN);
    let addr = server.local_addr().unwrap();
    let found = fault(&authority.dialer(), addr, Role::Node).await;
    assert!(matches!(found, HandshakeFault::Other(_)), "{found:?}");
}

#[tokio::test]
async fn no_certificate_is_refused() {
    let authority = Authority::new();
    let node = authority.node();
    let connecting = raw::endpoint()
        .connect_with(raw::client(None, ALPN), node.local_addr(), "mneme")
        .unwrap();
    // With TLS 1.3 the client may be done before the server has looked.
    let error = match connecting.await {
        Ok(connection) => connection.closed().await,
        Err(error) => error,
    };
    let quinn::ConnectionError::ConnectionClosed(close) = error else {
        panic!("not closed by the server: {error}");
    };
    assert_eq!(
        u64::from(close.error_code),
        0x100 + 116,
        "certificate_required: {close:?}"
    );
    support::until("the failure is counted", || {
        node.stats().handshakes_failed == 1
    })
    .await;
}

#[tokio::test]
async fn another_protocol_is_refused_by_either_end() {
    let authority = Authority::new();
    let node = authority.node();
    authority.identity(Role::Client, "c1");
    let dir = authority.dir_of(Role::Client, "c1");
    let error = raw::endpoint()
        .connect_with(raw::client(Some(&dir), b"h3"), node.local_addr(), "mneme")
        .unwrap()
        .await
        .expect_err("no common protocol");
    let quinn::ConnectionError::ConnectionClosed(close) = error else {
        panic!("not closed by the server: {error}");
    };
    assert_eq!(
        u64::from(close.error_code),
        0x100 + 120,
        "no_application_protocol: {close:?}"
    );

    let web = raw::server(&authority.dir_of(Role::Node, "n1"), b"h3");
    let found = fault(&authority.dialer(), web.local_addr().unwrap(), Role::Node).await;
    assert_eq!(found, HandshakeFault::NoCommonProtocol);
}

/// B095: the error says "expired" and the date, at whichever end the certificate is.
#[tokio::test]
async fn an_expired_certificate_is_named_with_its_date() {
    let authority = Authority::new();
    let year_2001 = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let hour = Duration::from_secs(3600);
    let expired = |role, name: &str| {
        let out = authority.dir_of(role, name);
        let (from, until) = (year_2001 - hour, year_2001 + hour);
        issue_between(&authority.path(), role, name, &out, from, until).expect("a certificate");
        let error = Identity::load(&out).expect_err("expired");
        assert!(
            error
                .to_string()
                .contains("expired on 2001-09-09 02:46:40 UTC"),
            "{error}"
        );
        Identity::load_at(&out, year_2001).expect("valid then")
    };
    let node = Endpoint::bind(
        loopback(),
        expired(Role::Node, "old"),
        LinkOptions::default(),
    )
    .expect("a free port");
    let found = fault(&authority.dialer(), node.local_addr(), Role::Node).await;
    let expected = "the peer's certificate expired on 2001-09-09 02:46:40 UTC: issue a new one";
    assert_eq!(found.to_string(), expected);

    let dialer = Endpoint::dialer(expired(Role::Client, "old"), LinkOptions::default())
        .expect("a free port");
    let found = fault(&dialer, authority.node().local_addr(), Role::Node).await;
    let expected = "this end's certificate expired on 2001-09-09 02:46:40 UTC: issue a new one";
    assert_eq!(found.to_string(), expected);
}

/// B092: nobody answers; the caller learns it at its deadline.
#[tokio::test]
async fn silence_is_reported_at_the_deadline() {
    let authority = Authority::new();
    let silent = UdpSocket::bind(loopback()).unwrap();
    let addr = silent.local_addr().unwrap();
    let start = Instant::now();
    let error = authority
        .dialer()
        .connect(addr, Role::Node, in_ms(300))
        .await
        .expect_err("nobody answers");
    let took = start.elapsed();
    assert!((300..1500).contains(&took.as_millis()), "{took:?}");
    assert!(
        error
            .to_string()
            .starts_with(&format!("UDP to {addr} unanswered")),
        "{error}"
    );
}

/// B098 in small: many dialers at once, more than there are places for handshakes.
#[tokio::test]
async fn a_storm_of_dialers_all_link() {
    let authority = Authority::new();
    let node = authority.node();
    echo(&node);
    let dialer = authority.dialer();
    let dials = (0..400).map(|_| {
        let (dialer, addr) = (dialer.clone(), node.local_addr());
        tokio::spawn(async move { dialer.connect(addr, Role::Node, soon()).await.map(drop) })
    });
    for dial in dials.collect::<Vec<_>>() {
        dial.await.unwrap().expect("a link");
    }
    support::until("the node has counted them", || {
        node.stats().handshakes == 400
    })
    .await;
}

/// B099 in small: links that end, well or badly, leave nothing behind.
#[tokio::test]
async fn ended_links_leave_nothing_behind() {
    let authority = Authority::new();
    let node = authority.node();
    echo(&node);
    let dialer = authority.dialer();
    let files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = files();
    for _ in 0..60 {
        let link = dialer.connect(node.local_addr(), Role::Node, soon()).await;
        check(&link.expect("a link")).await;
        fault(&dialer, node.local_addr(), Role::Catalogue).await;
    }
    support::until("both ends have closed their links", || {
        node.stats().links + dialer.stats().links == 0
    })
    .await;
    assert_eq!(files(), before);
}
