//! The HTTP side: `/healthz` and `/metrics`.

use mneme_tests::rows::{Rows, hashed, sgd};
use mneme_tests::{Dev, Trio, http};

#[test]
fn metrics_count_what_happens() {
    let dev = Dev::start();
    let rows = Rows::create(&dev.client(), hashed("t", 2, sgd(1.0)));
    let ports = dev.http_ports();
    let metrics = || -> String {
        let pages = ports
            .iter()
            .map(|&port| http::get(port, "/metrics").expect("an answer"));
        pages.map(|page| page.body).collect()
    };
    let before = http::total(&metrics(), "mneme_pushed_rows_total");
    rows.gradient(&[1, 2, 3], &[1.0; 6]);
    let text = metrics();
    assert_eq!(
        http::total(&text, "mneme_pushed_rows_total"),
        before + 3.0,
        "{text}"
    );
    // Every family says what it is; no label names a key, a client or a port.
    assert!(text.lines().any(|l| l.starts_with("# HELP mneme_")));
    assert!(text.lines().any(|l| l.starts_with("# TYPE mneme_")));
    for label in ["key=", "client=", "port=", "peer="] {
        assert!(!text.contains(&format!("{{{label}")) && !text.contains(&format!(",{label}")));
    }
    let missing = http::get(ports[0], "/nothing").expect("an answer");
    assert_eq!(missing.status, 404);
}

/// Each process of a cluster by hand has its own, when asked to.
#[test]
fn without_the_option_nothing_listens() {
    let trio = Trio::start();
    assert!(trio.meta.tcp_ports().is_empty());
    assert!(trio.servers.iter().all(|s| s.tcp_ports().is_empty()));
}
