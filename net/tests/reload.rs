//! Certificates that change under a running endpoint (B095): new links use the new files, a bad
//! new file keeps the old ones and is reported once.

mod support;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use mneme_net::cert::{CertError, issue_between};
use mneme_net::identity::{Reload, Reloader};
use mneme_net::{Endpoint, HandshakeFault, Identity, LinkOptions, NetError, Role, issue};
use support::{Authority, check, echo, loopback, soon, until};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn files_are_looked_at_when_due_and_reported_once() {
    let authority = Authority::new();
    let current = authority.identity(Role::Node, "n1");
    let dir = authority.dir_of(Role::Node, "n1");
    let (start, wall) = (Instant::now(), SystemTime::now());
    let mut reloader = Reloader::new(2 * SECOND, start);
    let key = fs::read(dir.join("key.pem")).unwrap();

    // A pair half written: the key is the new one already.
    let aside = authority.dir_of(Role::Node, "aside");
    issue(&authority.path(), Role::Node, "n1", &aside).unwrap();
    fs::copy(aside.join("key.pem"), dir.join("key.pem")).unwrap();
    let early = reloader.poll(&current, start + SECOND, wall);
    assert!(matches!(early, Reload::Unchanged), "not due yet: {early:?}");
    let half = reloader.poll(&current, start + 2 * SECOND, wall);
    assert!(
        matches!(half, Reload::Refused(CertError::Mismatch(_))),
        "{half:?}"
    );
    let again = reloader.poll(&current, start + 4 * SECOND, wall);
    assert!(
        matches!(again, Reload::Unchanged),
        "reported once: {again:?}"
    );

    // Garbage, and files that are gone, are other faults.
    fs::write(dir.join("cert.pem"), "-----BEGIN GARBAGE").unwrap();
    let garbage = reloader.poll(&current, start + 6 * SECOND, wall);
    assert!(
        matches!(garbage, Reload::Refused(CertError::Content { .. })),
        "{garbage:?}"
    );
    fs::remove_file(dir.join("cert.pem")).unwrap();
    let gone = reloader.poll(&current, start + 8 * SECOND, wall);
    assert!(
        matches!(gone, Reload::Refused(CertError::File { .. })),
        "{gone:?}"
    );

    // The pair is complete at last.
    fs::copy(aside.join("cert.pem"), dir.join("cert.pem")).unwrap();
    let Reload::Changed(new) = reloader.poll(&current, start + 10 * SECOND, wall) else {
        panic!("good files were not taken");
    };
    assert_eq!(new.principal(), current.principal());
    assert_ne!(fs::read(dir.join("key.pem")).unwrap(), key);
    let settled = reloader.poll(&new, start + 12 * SECOND, wall);
    assert!(matches!(settled, Reload::Unchanged), "{settled:?}");

    // A good certificate of somebody else is not taken either.
    issue(&authority.path(), Role::Node, "n2", &dir).unwrap();
    let other = reloader.poll(&new, start + 14 * SECOND, wall);
    let Reload::Refused(error) = other else {
        panic!("another principal was taken: {other:?}");
    };
    assert!(
        error
            .to_string()
            .contains("names node 'n2', this process is node 'n1'"),
        "{error}"
    );
}

#[tokio::test]
async fn a_running_endpoint_takes_new_files_and_keeps_old_links() {
    let authority = Authority::new();
    let dir = authority.dir_of(Role::Node, "n1");
    let (now, hour) = (SystemTime::now(), Duration::from_secs(3600));
    let short = |until| {
        let from = now - 2 * hour;
        issue_between(&authority.path(), Role::Node, "n1", &dir, from, until).unwrap();
    };
    // Already over by the dialer's clock; the node was started while it was valid.
    short(now - hour);
    let identity = Identity::load_at(&dir, now - hour - SECOND).unwrap();
    let options = LinkOptions {
        reload_interval: Duration::from_millis(50),
        ..Default::default()
    };
    let node = Endpoint::bind(loopback(), identity, options).unwrap();
    echo(&node);
    let dialer = authority.dialer();
    let error = dialer
        .connect(node.local_addr(), Role::Node, soon())
        .await
        .expect_err("expired");
    let NetError::Handshake {
        why: HandshakeFault::Expired { .. },
        ..
    } = error
    else {
        panic!("{error}");
    };

    short(now + hour);
    until("the new certificate is in use", || {
        node.stats().reloads >= 1
    })
    .await;
    let link = dialer
        .connect(node.local_addr(), Role::Node, soon())
        .await
        .expect("a link");
    check(&link).await;

    fs::write(dir.join("cert.pem"), "garbage").unwrap();
    until("the bad file is counted", || {
        node.stats().reloads_refused >= 1
    })
    .await;
    let in_use = node.stats().cert_not_after_s;
    let expected = (now + hour)
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap()
        .as_secs();
    assert_eq!(in_use, expected, "the old certificate stays");
    check(&link).await;
    check(
        &dialer
            .connect(node.local_addr(), Role::Node, soon())
            .await
            .expect("a link"),
    )
    .await;
}

/// The authority is replaced: bundles first, then certificates; links go on all the time.
#[tokio::test]
async fn an_authority_can_be_replaced() {
    let (old, new) = (Authority::new(), Authority::new());
    let node = old.node();
    echo(&node);
    let dialer = old.dialer();
    let bundle = [old.path(), new.path()]
        .map(|path| fs::read_to_string(path.join("ca.pem")).unwrap())
        .concat();
    let place = |dir: &Path| fs::write(dir.join("ca.pem"), &bundle).unwrap();
    let (node_dir, dialer_dir) = (old.dir_of(Role::Node, "n1"), old.dir_of(Role::Client, "c1"));
    place(&node_dir);
    place(&dialer_dir);
    assert!(node.reload().unwrap() && dialer.reload().unwrap());
    check(
        &dialer
            .connect(node.local_addr(), Role::Node, soon())
            .await
            .expect("a link"),
    )
    .await;

    let aside = new.dir_of(Role::Node, "n1");
    issue(&new.path(), Role::Node, "n1", &aside).unwrap();
    for file in ["cert.pem", "key.pem"] {
        fs::copy(aside.join(file), node_dir.join(file)).unwrap();
    }
    assert!(node.reload().unwrap());
    assert!(!node.reload().unwrap(), "nothing changed since");
    check(
        &dialer
            .connect(node.local_addr(), Role::Node, soon())
            .await
            .expect("a link"),
    )
    .await;
}

#[test]
fn an_authority_is_never_overwritten_and_keys_are_private() {
    use std::os::unix::fs::PermissionsExt;
    let authority = Authority::new();
    let error = mneme_net::init_authority(&authority.path()).expect_err("it is there");
    assert!(matches!(error, CertError::AuthorityExists(_)), "{error}");
    authority.identity(Role::Client, "a.b-c");
    let dir = authority.dir_of(Role::Client, "a.b-c");
    for key in [authority.path().join("ca.key"), dir.join("key.pem")] {
        let mode = fs::metadata(&key).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", key.display());
    }
    for name in ["", "a b", "ü", "a..b", "-", &"x".repeat(64)] {
        let error = issue(&authority.path(), Role::Node, name, &dir).expect_err(name);
        assert!(matches!(error, CertError::Name(_)), "{name}: {error}");
    }
    let other = Authority::new();
    fs::copy(other.path().join("ca.pem"), dir.join("ca.pem")).unwrap();
    let error = Identity::load(&dir).expect_err("another authority's");
    assert!(matches!(error, CertError::OtherAuthority(_)), "{error}");
}
