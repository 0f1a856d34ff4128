//! `mneme dev` from its first line to its clean end.

use mneme_tests::{Dev, Mneme, Process, Signal, limits};

/// SIGTERM and SIGINT end it cleanly, with code 0, within two seconds.
#[test]
fn signals_end_it_cleanly() {
    let mut dev = Dev::start();
    let mneme = dev.mneme();
    mneme.ok(&[
        "table", "create", "t", "--kind", "hashed", "--dtype", "f32", "--dim", "2",
    ]);
    mneme.ok(&[
        "push", "t", "--mode", "assign", "--keys", "1", "--values", "[[1,2]]",
    ]);
    dev.stop();
    dev.restart();
    dev.process().signal(Signal::INT);
    assert_eq!(dev.process().wait(limits::CLEAN_END).code(), Some(0));
}

/// An open client does not keep it from ending.
#[test]
fn clients_do_not_hold_up_its_end() {
    let mut dev = Dev::start();
    let client = dev.client();
    client.list_tables().expect("a list");
    dev.stop();
    drop(client);
}

/// The last line on stdout names a `client.toml` that works.
#[test]
fn the_ready_line_names_the_configuration() {
    let mut dev = Dev::start();
    let line = format!("ready config={}", dev.config().display());
    assert_eq!(dev.process().stdout().lines().last(), Some(line.as_str()));
    assert_eq!(dev.config(), dev.data().join("client.toml"));
    dev.mneme().ok(&["status"]);
    let config = dev.config().to_str().expect("UTF-8").to_owned();
    Mneme::new().ok(&["--config", &config, "status"]);
}

/// The data directory belongs to one process at a time.
#[test]
fn a_second_dev_on_the_directory_is_refused() {
    let dev = Dev::start();
    let arguments = Dev::arguments(dev.data(), &[]);
    let data = dev.data().to_str().expect("UTF-8");
    Mneme::new().refused(1, &arguments, &[data, "in use", "--data"]);
    dev.mneme().ok(&["status"]);
}

/// B090: IPv6 in brackets serves a whole push and pull; bare IPv6 is refused as ambiguous.
#[test]
fn ipv6_in_brackets_works() {
    let dev = Dev::start_with(&["--listen", "[::1]:0", "--memory", "dram:256MiB"]);
    let config = std::fs::read_to_string(dev.config()).expect("a client.toml");
    assert!(config.contains("[::1]:"), "{config}");
    let mneme = dev.mneme();
    mneme.ok(&[
        "table", "create", "t", "--kind", "hashed", "--dtype", "f32", "--dim", "1",
    ]);
    mneme.ok(&[
        "push", "t", "--mode", "assign", "--keys", "1", "--values", "[[7]]",
    ]);
    assert_eq!(
        mneme.json(&["pull", "t", "--keys", "1"])["rows"][0]["values"][0],
        7.0
    );
    let elsewhere = tempfile::tempdir().expect("a temporary directory");
    let data = elsewhere.path().to_str().expect("UTF-8");
    let bare = Mneme::new().run(&["dev", "--data", data, "--listen", "::1:7400"]);
    assert!(matches!(bare.code, 1 | 2), "{bare:#?}");
    assert!(bare.stderr.contains("brackets"), "{bare:#?}");
}

/// Options and environment variables are the same; nonsense is refused by name.
#[test]
fn options_are_checked_by_name() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let data = folder.path().to_str().expect("UTF-8");
    for (option, value) in [
        ("--memory", "dram:lots"),
        ("--memory", "ram:1GiB"),
        ("--nodes", "-1"),
    ] {
        let refused = Mneme::new().run(&["dev", "--data", data, option, value]);
        assert!(matches!(refused.code, 1 | 2), "{refused:#?}");
        assert!(refused.stderr.contains(value), "{refused:#?}");
        assert_eq!(refused.stdout, "");
    }
}

/// A client without a cluster says so, in one line and in time.
#[test]
fn without_a_cluster_the_error_names_the_address() {
    let mut dev = Dev::start();
    let mneme = dev.mneme();
    let config = std::fs::read_to_string(dev.config()).expect("a client.toml");
    let address = config
        .split('"')
        .nth(1)
        .expect("the catalogue's address")
        .to_owned();
    dev.process().kill();
    mneme.refused(1, &["--deadline", "1s", "table", "list"], &[&address]);
    Mneme::on("/nowhere/client.toml").refused(1, &["table", "list"], &["/nowhere/client.toml"]);
}

/// `--help` and `--version` print on stdout and succeed; no command is wrong usage.
#[test]
fn help_and_usage() {
    let mneme = Mneme::new();
    assert!(mneme.ok(&["--help"]).stdout.contains("Usage"));
    assert!(mneme.ok(&["--version"]).stdout.starts_with("mneme "));
    for wrong in [
        &["frobnicate"][..],
        &["table", "create"],
        &["pull"],
        &["push", "t", "--mode", "x"],
    ] {
        let output = mneme.run(wrong);
        assert_eq!(
            (output.code, output.stdout.as_str()),
            (2, ""),
            "{output:#?}"
        );
        assert!(!output.stderr.is_empty());
    }
}

/// Nothing stays behind when a start fails.
#[test]
fn a_failed_start_ends() {
    let dev = Dev::start();
    let taken = dev.http_ports()[0];
    let folder = tempfile::tempdir().expect("a temporary directory");
    let options = ["--http".to_owned(), format!("127.0.0.1:{taken}")];
    let mut second = Process::start("mneme dev", Dev::arguments(folder.path(), &options));
    assert_eq!(second.wait(limits::READY).code(), Some(1));
    assert!(
        second.stderr().contains(&taken.to_string()),
        "{}",
        second.stderr()
    );
    assert_eq!(second.stdout(), "");
}
