//! `mneme grant` as people use it, and what others then can and cannot do.

use std::path::Path;

use mneme_client::blocking::Client;
use mneme_client::{ClientConfig, Level, Missing, PullOptions, PushMode, PushOptions};
use mneme_proto::refusal::Refusal;
use mneme_tests::rows::{Rows, hashed, sgd};
use mneme_tests::{Dev, Mneme, Trio, limits, wait_until};
use serde_json::json;

/// I-13: read reads, write writes, and each refusal is one line that names who, what and the
/// remedy.
#[test]
fn a_level_allows_what_it_says() {
    let trio = Trio::start();
    let admin = trio.mneme();
    let rows = Rows::create(&trio.client(), hashed("emb", 2, sgd(1.0)));
    rows.assign(&[7], &[1.0, 2.0]);
    let ann = Mneme::on(trio.principal("ann"));
    let pull = ["pull", "emb", "--keys", "7"];
    let push = [
        "push", "emb", "--mode", "assign", "--keys", "7", "--values", "[[3,4]]",
    ];

    for command in [
        &pull[..],
        &push,
        &["table", "describe", "emb"],
        &["table", "drop", "emb"],
    ] {
        ann.refused(
            1,
            command,
            &[
                "permission denied",
                "no table 'emb'",
                "client 'ann'",
                "mneme grant emb ann",
            ],
        );
    }
    assert_eq!(ann.json(&["table", "list"])["tables"], json!([]));
    assert_eq!(ann.json(&["status"])["tables"], json!([]));

    let granted = admin.json(&["grant", "emb", "ann", "read"]);
    assert_eq!(
        granted,
        json!({"table": "emb", "principal": "ann", "level": "read"})
    );
    assert_eq!(ann.json(&pull)["rows"][0]["values"], json!([1.0, 2.0]));
    assert_eq!(ann.json(&["table", "list"])["tables"][0]["name"], "emb");
    let init = ["pull", "emb", "--keys", "8", "--missing", "init"];
    for command in [&push[..], &init] {
        ann.refused(
            1,
            command,
            &[
                "client 'ann' may read table 'emb', not write it",
                "`mneme grant emb ann write`",
            ],
        );
    }
    for command in [
        &["table", "seal", "emb"][..],
        &["table", "set", "emb", "--opt", "lr=0.5"],
        &["table", "reset", "emb"],
        &["table", "drop", "emb"],
        &["grant", "emb", "ann", "admin"],
    ] {
        ann.refused(1, command, &["may read table 'emb', not"]);
    }

    admin.ok(&["grant", "emb", "ann", "write"]);
    ann.ok(&push);
    ann.ok(&init);
    assert_eq!(ann.json(&pull)["rows"][0]["values"], json!([3.0, 4.0]));
    ann.refused(
        1,
        &["table", "seal", "emb"],
        &["may write table 'emb', not administer it"],
    );
    assert!(
        ann.json(&["table", "describe", "emb"])
            .get("grants")
            .is_none()
    );
    let described = admin.json(&["table", "describe", "emb"]);
    assert_eq!(described["grants"], json!({"ann": "write"}));

    // A table's own admin needs nobody else, and may do all.
    admin.ok(&["grant", "emb", "ann", "admin"]);
    ann.ok(&["grant", "emb", "bob", "read"]);
    ann.ok(&["table", "drop", "emb"]);
    admin.refused(2, &["grant", "emb", "ann", "all"], &["all"]);
}

fn connect(config: &Path) -> Client {
    let config = ClientConfig::load(config).expect("a valid client.toml");
    Client::connect(config).expect("the catalogue answers")
}

/// What a client makes is its own; a grant lives through a restart of the catalogue and ends for
/// a client that is connected and warm.
#[test]
fn grants_outlive_the_catalogue_and_end_under_a_warm_client() {
    let mut trio = Trio::start();
    let owner = connect(&trio.principal("bob"));
    let config = trio.principal("ann");
    let rows = Rows::create(&owner, hashed("bobs", 2, sgd(1.0)));
    rows.assign(&[7], &[1.0, 2.0]);
    owner
        .grant("bobs", "ann", Some(Level::Write))
        .expect("its creator is its admin");
    trio.restart_meta();

    let ann = connect(&config);
    let table = ann.table("bobs").expect("granted before");
    let options = PullOptions::default();
    let mut row = [0.0; 2];
    table.pull_f32(&[7], &mut row, &options).expect("may read");
    let assign = || table.push(PushMode::Assign, &[7], &[5.0, 6.0], &PushOptions::default());
    assign().expect("may write");
    owner
        .grant("bobs", "ann", Some(Level::Read))
        .expect("still its admin");
    wait_until(limits::SOON, "pushes of ann to be refused", || {
        matches!(
            assign().err().and_then(|e| e.refusal().cloned()),
            Some(Refusal::NotPermitted {
                has: Some(Level::Read),
                needs: Level::Write,
                ..
            })
        )
    });
    let init = PullOptions {
        missing: Missing::Init,
        ..options
    };
    table
        .pull_f32(&[8], &mut row, &init)
        .expect_err("that is a write");
    table
        .pull_f32(&[7], &mut row, &options)
        .expect("still may read");
    owner.grant("bobs", "ann", None).expect("still its admin");
    let mut line = String::new();
    wait_until(limits::SOON, "pulls of ann to be refused", || {
        let pulled = table.pull_f32(&[7], &mut row, &options);
        line = pulled.err().map(|e| e.to_string()).unwrap_or_default();
        !line.is_empty()
    });
    assert!(
        line.starts_with("permission denied: there is no table 'bobs' that client 'ann' may read"),
        "{line}"
    );
    assert!(line.contains("`mneme grant bobs ann read`"), "{line}");
    assert_eq!(rows.pull(&[7]), [5.0, 6.0]);
}

/// The client of `mneme dev` is an admin; other certificates of its authority are clients.
#[test]
fn the_client_of_dev_is_admin() {
    let dev = Dev::start();
    Rows::create(&dev.client(), hashed("emb", 2, sgd(1.0))).assign(&[7], &[1.0, 2.0]);
    let path = |name: &str| dev.data().join(name).to_str().expect("UTF-8").to_owned();
    let (authority, out) = (path("certs/authority"), path("certs/ann"));
    Mneme::new().ok(&[
        "cert",
        "issue",
        "ann",
        "--authority",
        &authority,
        "--out",
        &out,
    ]);
    let config = dev.data().join("ann.toml");
    let text = std::fs::read_to_string(dev.config()).expect("a file");
    std::fs::write(&config, text.replace("certs/client", "certs/ann")).expect("writable");
    let ann = Mneme::on(config);
    let pull = ["pull", "emb", "--keys", "7"];
    ann.refused(1, &pull, &["permission denied"]);
    dev.mneme().ok(&["grant", "emb", "ann", "read"]);
    assert_eq!(ann.json(&pull)["rows"][0]["values"], json!([1.0, 2.0]));
    dev.mneme().ok(&["grant", "emb", "ann", "none"]);
    wait_until(limits::SOON, "pulls of ann to be refused", || {
        ann.run(&pull).code == 1
    });
}
