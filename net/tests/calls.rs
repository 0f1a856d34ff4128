//! Requests and answers on a link: sizes, deadlines, slots, and callers that give up.

mod support;

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use mneme_net::{Endpoint, Identity, Link, LinkOptions, NetError, Role};
use mneme_proto::frame::FrameKind;
use mneme_proto::limits::FRAME_BODY_BYTES_MAX;
use support::{Authority, check, echo, in_ms, soon, until};

/// A link to an echoing node.
async fn pair(authority: &Authority, options: LinkOptions) -> (Link, Endpoint) {
    let node = authority.node_with(options);
    echo(&node);
    let dialer = authority.dialer();
    let link = dialer
        .connect(node.local_addr(), Role::Node, soon())
        .await
        .expect("a link");
    (link, node)
}

#[tokio::test]
async fn bodies_of_all_sizes_come_back_whole() {
    let authority = Authority::new();
    let (link, _node) = pair(&authority, LinkOptions::default()).await;
    let pattern: Bytes = (0..FRAME_BODY_BYTES_MAX).map(|i| (i % 251) as u8).collect();
    for size in [
        0,
        1,
        1023,
        1024,
        1200,
        270_000,
        FRAME_BODY_BYTES_MAX as usize,
    ] {
        let cut = size / 3;
        let parts = vec![
            pattern.slice(..cut),
            pattern.slice(cut..cut),
            pattern.slice(cut..size),
        ];
        let mut answer = link
            .call(FrameKind::Pull, size as u64, parts, soon())
            .await
            .expect("an answer");
        assert_eq!(answer.header.request.get(), size as u64);
        assert_eq!(answer.body.len(), size);
        let mut row = [0; 251];
        let mut whole = Vec::new();
        while answer.body.len() >= row.len() {
            answer.body.copy_to_slice(&mut row);
            whole.extend_from_slice(&row);
        }
        whole.extend_from_slice(&answer.body.into_contiguous());
        assert!(whole == pattern[..size], "{size} B came back changed");
    }
    let mtu_bytes = link.stats().mtu_bytes;
    assert_eq!(mtu_bytes, 6500, "loopback starts at the largest MTU");

    let too_large = vec![pattern.clone(), Bytes::from_static(b"!")];
    let error = link
        .call(FrameKind::Pull, 1, too_large, soon())
        .await
        .expect_err("too large");
    assert!(
        matches!(
            error,
            NetError::TooLarge {
                bytes: 16_777_217,
                ..
            }
        ),
        "{error}"
    );
    check(&link).await;
}

#[tokio::test]
async fn it_works_without_segmentation_offload() {
    let authority = Authority::new();
    let options = LinkOptions {
        segmentation_offload: false,
        ..LinkOptions::default()
    };
    let node = authority.node_with(options.clone());
    echo(&node);
    let dialer = authority.dialer_with(options);
    let link = dialer
        .connect(node.local_addr(), Role::Node, soon())
        .await
        .expect("a link");
    let body = Bytes::from(vec![9; 1 << 20]);
    let answer = link
        .call(FrameKind::Pull, 1, vec![body.clone()], soon())
        .await
        .expect("an answer");
    assert_eq!(answer.body.into_contiguous(), body);
}

#[tokio::test]
async fn a_call_that_is_not_answered_ends_at_its_deadline() {
    let authority = Authority::new();
    let (link, _node) = pair(&authority, LinkOptions::default()).await;
    let start = Instant::now();
    let error = link
        .call(FrameKind::Push, 1, vec![], in_ms(200))
        .await
        .expect_err("pushes are held");
    assert!(
        (200..1500).contains(&start.elapsed().as_millis()),
        "{:?}",
        start.elapsed()
    );
    assert_eq!(
        error.to_string(),
        "deadline exceeded while waiting for the answer"
    );
    check(&link).await;
}

/// B094: waiting for a slot obeys the deadline.
#[tokio::test]
async fn waiting_for_a_slot_obeys_the_deadline() {
    let authority = Authority::new();
    let options = LinkOptions {
        streams_max: 2,
        ..LinkOptions::default()
    };
    let (link, _node) = pair(&authority, options).await;
    let held: Vec<_> = (0..2)
        .map(|i| {
            let link = link.clone();
            tokio::spawn(async move { link.call(FrameKind::Push, i, vec![], soon()).await })
        })
        .collect();
    until("both slots are taken", || link.stats().open == 2).await;
    let start = Instant::now();
    let error = link
        .call(FrameKind::Pull, 3, vec![], in_ms(200))
        .await
        .expect_err("no slot");
    assert!(
        (200..1500).contains(&start.elapsed().as_millis()),
        "{:?}",
        start.elapsed()
    );
    assert_eq!(
        error.to_string(),
        "deadline exceeded while waiting for a stream slot"
    );
    for call in held {
        call.abort();
    }
    check(&link).await;
}

/// B094: limit 4, 64 at once, half of them dropped early: the others finish, no slot is lost.
#[tokio::test]
async fn more_calls_than_slots_all_finish() {
    let authority = Authority::new();
    let options = LinkOptions {
        streams_max: 4,
        ..LinkOptions::default()
    };
    let (link, _node) = pair(&authority, options).await;
    let body = Bytes::from(vec![3; 50_000]);
    for round in 0..4 {
        let calls: Vec<_> = (0..64u64)
            .map(|i| {
                let (link, body) = (link.clone(), body.clone());
                tokio::spawn(async move { link.call(FrameKind::Pull, i, vec![body], soon()).await })
            })
            .collect();
        for (i, call) in calls.into_iter().enumerate() {
            if i % 2 == round % 2 {
                call.abort();
                // Whether it was in time does not matter.
                let _ = call.await;
            } else {
                let answer = call.await.unwrap().expect("an answer");
                assert_eq!(answer.header.request.get(), i as u64);
                assert_eq!(answer.body.len(), body.len());
            }
        }
    }
    for i in 0..250 {
        let answer = link
            .call(FrameKind::Pull, i, vec![], soon())
            .await
            .expect("an answer");
        assert_eq!(answer.header.request.get(), i);
    }
    assert_eq!(link.stats().open, 0);
}

/// A thousand callers give up at every stage; both ends are left with nothing open.
#[tokio::test]
async fn cancelled_calls_leave_nothing_behind() {
    let authority = Authority::new();
    let node = authority.node();
    let dialer = authority.dialer();
    let link = dialer
        .connect(node.local_addr(), Role::Node, soon())
        .await
        .expect("a link");
    let theirs = node.accept().await.expect("a link");
    let serving = theirs.clone();
    tokio::spawn(async move {
        while let Some(mut request) = serving.next().await {
            tokio::spawn(async move {
                if let Ok((_, kind, body)) = request.read().await {
                    if kind == FrameKind::Push {
                        return request.given_up().await;
                    }
                    let chunks = body.chunks().cloned().collect();
                    let _ = request.answer(FrameKind::Pulled, chunks).await;
                }
            });
        }
    });
    let body = Bytes::from(vec![1; 30_000]);
    for i in 0..1000u64 {
        let kind = if i % 2 == 0 {
            FrameKind::Push
        } else {
            FrameKind::Pull
        };
        let call = link.call(kind, i, vec![body.clone()], soon());
        // From not at all to well into the answer.
        let patience = Duration::from_micros(i * 7 % 400);
        let _ = tokio::time::timeout(patience, call).await;
    }
    check(&link).await;
    until("the dialer has no open calls", || link.stats().open == 0).await;
    until("the server has no open requests", || {
        theirs.stats().open == 0
    })
    .await;
}

#[tokio::test]
async fn a_request_dropped_by_the_server_is_reported_at_once() {
    let authority = Authority::new();
    let node = authority.node();
    let dialer = authority.dialer();
    let link = dialer
        .connect(node.local_addr(), Role::Node, soon())
        .await
        .expect("a link");
    let theirs = node.accept().await.expect("a link");
    tokio::spawn(async move { while theirs.next().await.is_some() {} });
    let error = link
        .call(FrameKind::Pull, 1, vec![], soon())
        .await
        .expect_err("dropped");
    assert!(matches!(error, NetError::Abandoned), "{error}");
}

#[tokio::test]
async fn closing_tells_the_other_end_why() {
    let authority = Authority::new();
    let node = authority.node();
    let dialer = authority.dialer();
    let link = dialer
        .connect(node.local_addr(), Role::Node, soon())
        .await
        .expect("a link");
    let theirs = node.accept().await.expect("a link");
    let call = {
        let link = link.clone();
        tokio::spawn(async move { link.call(FrameKind::Pull, 1, vec![], soon()).await })
    };
    until("the call is under way", || link.stats().open == 1).await;
    node.close("shutting down", soon()).await;
    let error = call.await.unwrap().expect_err("closed");
    assert!(error.is_link_lost(), "{error}");
    assert!(
        error
            .to_string()
            .ends_with("it closed the link: shutting down"),
        "{error}"
    );
    assert_eq!(theirs.close_reason().as_deref(), Some("this end closed it"));
    // What had arrived is handed out first.
    while theirs.next().await.is_some() {}
    assert!(node.accept().await.is_none());
}

/// Passes datagrams between dialers and a node until it is told to swallow them.
struct Relay {
    addr: SocketAddr,
    swallow: Arc<AtomicBool>,
}

fn relay_to(node: SocketAddr) -> Relay {
    let front = UdpSocket::bind(support::loopback()).expect("a free port");
    front.set_nonblocking(true).expect("a socket option");
    let addr = front.local_addr().expect("bound");
    let swallow = Arc::new(AtomicBool::new(false));
    let off = swallow.clone();
    tokio::spawn(async move {
        let front = tokio::net::UdpSocket::from_std(front).expect("within a runtime");
        let back = tokio::net::UdpSocket::bind(support::loopback())
            .await
            .expect("a free port");
        let (mut dialer, mut up, mut down) = (None, vec![0; 65_535], vec![0; 65_535]);
        loop {
            let (out, bytes, to) = tokio::select! {
                Ok((n, from)) = front.recv_from(&mut up) => {
                    dialer = Some(from);
                    (&back, &up[..n], Some(node))
                }
                Ok((n, _)) = back.recv_from(&mut down) => (&front, &down[..n], dialer),
            };
            if let (Some(to), false) = (to, off.load(Ordering::Relaxed)) {
                // A full buffer is a lost datagram, as on a network.
                let _ = out.send_to(bytes, to).await;
            }
        }
    });
    Relay { addr, swallow }
}

/// B092, B096: UDP stops mid-link: a call ends at its deadline, the link by its idle timeout,
/// and after a reconnect the same again. (On an idle machine the call takes under 510 ms.)
#[tokio::test]
async fn a_half_open_link_is_noticed() {
    let authority = Authority::new();
    let node = authority.node();
    echo(&node);
    let options = LinkOptions {
        keep_alive: Duration::from_millis(200),
        idle_timeout: Duration::from_millis(1500),
        ..LinkOptions::default()
    };
    let dialer = authority.dialer_with(options);
    let relay = relay_to(node.local_addr());
    for _ in 0..2 {
        relay.swallow.store(false, Ordering::Relaxed);
        let link = dialer
            .connect(relay.addr, Role::Node, soon())
            .await
            .expect("a link");
        check(&link).await;
        relay.swallow.store(true, Ordering::Relaxed);
        let start = Instant::now();
        let error = link
            .call(FrameKind::Pull, 1, vec![], in_ms(500))
            .await
            .expect_err("silence");
        assert!(matches!(error, NetError::Deadline { .. }), "{error}");
        assert!(
            (500..1500).contains(&start.elapsed().as_millis()),
            "{:?}",
            start.elapsed()
        );
        let why = link.closed_for().await;
        assert_eq!(why, "nothing was heard from it for too long");
        assert!(
            start.elapsed() < Duration::from_secs(8),
            "{:?}",
            start.elapsed()
        );
    }
}

/// A node that was killed and came back says so: nobody waits for the idle timeout.
#[tokio::test]
async fn a_restarted_node_is_noticed_at_once() {
    let authority = Authority::new();
    let identity = authority.identity(Role::Node, "n1");
    let first = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let bound = first.spawn(async move {
        let bound = Endpoint::bind(support::loopback(), identity, LinkOptions::default());
        let node = bound.expect("a free port");
        echo(&node);
        node.local_addr()
    });
    let addr = bound.await.unwrap();
    let dialer = authority.dialer();
    let link = dialer
        .connect(addr, Role::Node, soon())
        .await
        .expect("a link");
    check(&link).await;
    // Like a kill: its tasks end between two steps, and nothing more is sent.
    first.shutdown_background();

    let identity = Identity::load(&authority.dir_of(Role::Node, "n1")).unwrap();
    let deadline = soon();
    let _node = loop {
        match Endpoint::bind(addr, identity.clone(), LinkOptions::default()) {
            Ok(node) => break node,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        tokio::task::yield_now().await;
    };
    let start = Instant::now();
    let error = link
        .call(FrameKind::Pull, 1, vec![], soon())
        .await
        .expect_err("restarted");
    assert!(
        error.to_string().ends_with("is closed: it was restarted"),
        "{error}"
    );
    assert!(
        start.elapsed() < Duration::from_secs(2),
        "{:?}",
        start.elapsed()
    );
    dialer
        .connect(addr, Role::Node, soon())
        .await
        .expect("a new link");
}
