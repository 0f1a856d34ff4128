//! A whole node over real links, beside a scripted catalogue.

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;

use mneme_net::Role;
use mneme_proto::control::{Held, HeldShard, NodeRequest, NodeResponse};
use mneme_proto::frame::{FrameKind, Missing, PushMode, Status};
use mneme_proto::ids::{Epoch, SessionId, ShardId, ShardIndex, TableGeneration, TableId};
use mneme_proto::map::{Integrity, PathKind, TableState};
use mneme_proto::refusal::Refusal;
use mneme_proto::schema::{Initializer, Optimizer, TableKind, TableSpec};
use support::{TABLE, World, bytes, sgd, spec, until};

const FOUND: u8 = Status::Found as u8;
const DEFAULT: u8 = Status::Default as u8;
const MISSING: u8 = Status::Missing as u8;
const SHARD: ShardIndex = ShardIndex(0);

/// Pushes and pulls from end to end: exactly once (I-2), what is missing (B040), state.
#[test]
fn pushes_are_applied_once_and_pulled() {
    let world = World::new();
    let node = world.start();
    let client = world.client(&node);
    world.create(spec(
        2,
        Optimizer::Adagrad {
            lr: 1.0,
            eps: 0.0,
            acc0: 1.0,
        },
    ));
    until("the shard to be reported", || world.reports_of(1, 0) == 1);

    let session = client.open(1).unwrap();
    let ones = bytes(&[1.0; 4]);
    let push = |sequence, mode, payload: &[u8]| {
        client.push(1, session, sequence, mode, &[3, u64::MAX], payload)
    };
    let first = push(1, PushMode::Assign, &ones).unwrap();
    assert_eq!((first.rows.get(), first.ignored.get()), (2, 0));
    let again = push(1, PushMode::Assign, &bytes(&[9.0; 4])).unwrap();
    assert_eq!(again.index.get(), first.index.get());
    push(
        2,
        PushMode::Gradient,
        &bytes(&[3.0f32.sqrt(), 0.0, 0.0, 0.0]),
    )
    .unwrap();

    let rows = client
        .pull(1, 0, Missing::Default, &[u64::MAX, 3, 4, 3])
        .unwrap();
    assert_eq!(rows[0], (FOUND, vec![1.0, 1.0]));
    assert_eq!(rows[2], (DEFAULT, vec![0.5, 0.5]));
    assert_eq!(rows[1], rows[3]);
    assert_eq!(
        client.pull(1, 0, Missing::Error, &[4]).unwrap(),
        [(MISSING, vec![0.0, 0.0])]
    );
    let state = client.pull_state(1, &[u64::MAX, 4]).unwrap();
    assert_eq!(
        state,
        [(FOUND, vec![1.0, 1.0, 1.0, 1.0]), (MISSING, vec![0.0; 4])]
    );
    assert!(client.pull(1, 0, Missing::Default, &[]).unwrap().is_empty());

    let refusal = push(3, PushMode::Gradient, &bytes(&[0.0, f32::NAN, 0.0, 0.0])).unwrap_err();
    assert!(
        matches!(refusal, Refusal::NonFinite { key: 3, .. }),
        "{refusal}"
    );
    let unknown = client
        .push(1, SessionId(99), 1, PushMode::Delete, &[3], &[])
        .unwrap_err();
    assert_eq!(unknown, Refusal::UnknownSession { shard: SHARD });
    let void = NodeRequest::VoidSequence {
        table: TABLE,
        shard: SHARD,
        session,
        sequence: 4,
    };
    assert_eq!(client.control(void).unwrap(), NodeResponse::Done);
    assert!(push(4, PushMode::Assign, &ones).is_err());

    let answer = client.control(NodeRequest::Scan {
        table: TABLE,
        shard: SHARD,
        generation: TableGeneration(0),
        cursor: 0,
        rows_max: 1,
    });
    let Ok(NodeResponse::Rows {
        keys,
        next: Some(next),
        ..
    }) = answer
    else {
        panic!()
    };
    assert_eq!(keys, [3]);
    let answer = client.control(NodeRequest::Scan {
        table: TABLE,
        shard: SHARD,
        generation: TableGeneration(0),
        cursor: next,
        rows_max: 10,
    });
    let Ok(NodeResponse::Rows {
        keys,
        rows,
        next: None,
    }) = answer
    else {
        panic!()
    };
    assert_eq!((keys, rows), (vec![u64::MAX], bytes(&[1.0, 1.0])));

    let Ok(NodeResponse::Shards(shards)) = client.control(NodeRequest::Describe { table: TABLE })
    else {
        panic!()
    };
    let region = &shards[0].1;
    assert_eq!((region.rows, region.integrity), (2, Integrity::SlotCrc));
    assert_eq!(region.paths[0].kind, PathKind::Quic);
    assert_eq!(region.paths[0].locator, node.local_addr().to_string());
}

/// I-3: epochs; a reset empties the shard; the node looks at a newer map by itself.
#[test]
fn a_reset_begins_a_new_epoch() {
    let world = World::new();
    let node = world.start();
    let client = world.client(&node);
    world.create(spec(1, sgd(1.0)));
    let session = client.open(1).unwrap();
    client
        .push(1, session, 1, PushMode::Assign, &[7], &bytes(&[1.0]))
        .unwrap();
    world.change(|map| map.shards[0].epoch = Epoch(2));
    // The client's map is newer than the node's: the node looks, and serves it.
    assert_eq!(
        client.pull(2, 0, Missing::Error, &[7]).unwrap()[0].0,
        MISSING
    );
    let refusal = client
        .push(1, session, 2, PushMode::Assign, &[7], &bytes(&[1.0]))
        .unwrap_err();
    let wrong = Refusal::WrongEpoch {
        shard: SHARD,
        asked: Epoch(1),
        current: Epoch(2),
    };
    assert_eq!(refusal, wrong);
    assert_eq!(client.pull(1, 0, Missing::Error, &[7]).unwrap_err(), wrong);
    let refusal = client
        .push(2, session, 2, PushMode::Assign, &[7], &bytes(&[1.0]))
        .unwrap_err();
    assert_eq!(refusal, Refusal::UnknownSession { shard: SHARD });
    assert_eq!(
        client.pull(1, 5, Missing::Error, &[7]).unwrap_err(),
        Refusal::GenerationGone {
            asked: TableGeneration(5),
            current: TableGeneration(0),
        }
    );
}

/// B041, B058: a pull with `init` inserts the initializer's row, the same after a restart.
#[test]
fn initial_rows_are_inserted_by_a_pull() {
    let world = World::new();
    let node = world.start();
    let init = Initializer::Uniform {
        low: -0.05,
        high: 0.05,
    };
    world.create(TableSpec {
        init,
        ..spec(4, sgd(1.0))
    });
    let client = world.client(&node);
    until("the table", || client.open(1).is_ok());
    let read = client.pull(1, 0, Missing::Init, &[5, 12345, 5]).unwrap();
    assert!(read.iter().all(|(status, _)| *status == FOUND));
    assert_eq!(read[0], read[2]);
    assert_eq!(
        client.pull(1, 0, Missing::Error, &[12345]).unwrap()[0],
        read[1]
    );
    drop(client);
    node.shutdown();

    let node = world.start();
    assert_eq!(
        world.script.lock().unwrap().held,
        [HeldShard {
            shard: ShardId {
                table: TABLE,
                shard: SHARD
            },
            held: Held::Untouched,
        }]
    );
    let client = world.client(&node);
    until("the table", || client.open(2).is_ok());
    assert_eq!(
        client.pull(2, 0, Missing::Init, &[12345]).unwrap()[0],
        read[1]
    );
}

/// Rows that went with an earlier life are never served as if empty.
#[test]
fn lost_rows_are_refused_until_a_reset() {
    let world = World::new();
    let node = world.start();
    world.create(spec(1, sgd(1.0)));
    let client = world.client(&node);
    let session = client.open(1).unwrap();
    client
        .push(1, session, 1, PushMode::Assign, &[7], &bytes(&[1.0]))
        .unwrap();
    drop(client);
    node.shutdown();

    world.script.lock().unwrap().loses = true;
    let node = world.start();
    assert_eq!(
        world.script.lock().unwrap().held,
        [],
        "a touched shard is not held"
    );
    let client = world.client(&node);
    let lost = Refusal::TableLost { table: "t".into() };
    assert_eq!(client.pull(2, 0, Missing::Default, &[7]).unwrap_err(), lost);
    assert_eq!(client.open(2).unwrap_err(), lost);
    world.change(|map| {
        map.shards[0].epoch = Epoch(3);
        map.shards[0].replicas[0].lost = false;
    });
    assert_eq!(
        client.pull(3, 0, Missing::Default, &[7]).unwrap()[0].0,
        DEFAULT
    );
}

/// I-8: a load is seen when it is published, whole; it outlives the node's process; the version
/// before is kept, older ones are not.
#[test]
fn sealed_generations_are_published_kept_and_dropped() {
    let world = World::new();
    let node = world.start();
    world.create(TableSpec {
        kind: TableKind::Dense { rows: 3 },
        default_value: 0.0,
        ..spec(1, sgd(1.0))
    });
    let client = world.client(&node);
    until("the table", || client.open(1).is_ok());
    assert_eq!(
        client.pull(1, 0, Missing::Error, &[2]).unwrap(),
        [(FOUND, vec![0.0])]
    );

    let begin = |generation| NodeRequest::BeginLoad {
        table: TABLE,
        generation: TableGeneration(generation),
        shards: vec![(SHARD, 3)],
    };
    let finish = |generation| NodeRequest::FinishLoad {
        table: TABLE,
        generation: TableGeneration(generation),
    };
    client.control(begin(1)).unwrap();
    client.load(1, 1, None, &[2.0, 3.0], 2).unwrap();
    let refusal = client.control(finish(1)).unwrap_err();
    assert!(refusal.to_string().contains("row 0"), "{refusal}");
    assert!(client.load(1, 2, None, &[2.0, 3.0], 2).is_err());
    client.load(1, 0, None, &[1.0], 1).unwrap();
    let Ok(NodeResponse::Sealed(replicas)) = client.control(finish(1)) else {
        panic!()
    };
    assert_eq!(
        client.control(finish(1)).unwrap(),
        NodeResponse::Sealed(replicas.clone())
    );
    assert_eq!((replicas.len(), replicas[0].region.rows), (1, 3));
    assert!(
        client.pull(1, 1, Missing::Error, &[2]).is_err(),
        "not published yet"
    );

    let publish = |generation, previous| {
        world.change(|map| {
            map.state = TableState::Sealed;
            map.generation = TableGeneration(generation);
            map.previous = TableGeneration(previous);
        });
    };
    publish(1, 0);
    let rows = client.pull(1, 1, Missing::Error, &[2, 0]).unwrap();
    assert_eq!(rows, [(FOUND, vec![3.0]), (FOUND, vec![1.0])]);
    let refusal = client.pull(1, 1, Missing::Error, &[3]).unwrap_err();
    assert_eq!(refusal, Refusal::RowOutOfRange { row: 3, rows: 3 });
    let refusal = client.pull(1, 0, Missing::Error, &[2]).unwrap_err();
    let gone = |asked, current| Refusal::GenerationGone {
        asked: TableGeneration(asked),
        current: TableGeneration(current),
    };
    assert_eq!(refusal, gone(0, 1));
    let refusal = client.open(1).unwrap_err();
    assert!(matches!(refusal, Refusal::TableState { .. }), "{refusal}");

    for generation in [2, 3] {
        client.control(begin(generation)).unwrap();
        client
            .load(generation, 0, None, &[generation as f32; 3], 3)
            .unwrap();
        client.control(finish(generation)).unwrap();
        publish(generation, generation - 1);
        let rows = client.pull(1, generation, Missing::Error, &[1]).unwrap();
        assert_eq!(rows, [(FOUND, vec![generation as f32])]);
    }
    assert_eq!(
        client.pull(1, 2, Missing::Error, &[1]).unwrap(),
        [(FOUND, vec![2.0])]
    );
    assert_eq!(
        client.pull(1, 1, Missing::Error, &[1]).unwrap_err(),
        gone(1, 3)
    );
    drop(client);
    node.shutdown();

    let node = world.start();
    let held = world.script.lock().unwrap().held.clone();
    let generations: Vec<_> = held
        .iter()
        .map(|h| match h.held {
            Held::Sealed { generation, digest } => (generation.0, digest != 0),
            Held::Untouched => panic!("the mutable shard is gone"),
        })
        .collect();
    assert_eq!(generations, [(2, true), (3, true)]);
    let client = world.client(&node);
    assert_eq!(
        client.pull(2, 3, Missing::Error, &[1]).unwrap(),
        [(FOUND, vec![3.0])]
    );
    assert_eq!(
        client.pull(2, 2, Missing::Error, &[1]).unwrap(),
        [(FOUND, vec![2.0])]
    );
    assert_eq!(world.reports_of(2, 3), 1);
}

/// A mutable table sealed in place: pushes wait, and go on if the seal is given up.
#[test]
fn a_mutable_table_is_sealed() {
    let world = World::new();
    let node = world.start();
    world.create(spec(1, sgd(1.0)));
    let client = world.client(&node);
    let session = client.open(1).unwrap();
    let keys: Vec<u64> = (0..3000).collect();
    let values: Vec<f32> = keys.iter().map(|k| *k as f32).collect();
    client
        .push(1, session, 1, PushMode::Assign, &keys, &bytes(&values))
        .unwrap();
    let seal = NodeRequest::SealShards {
        table: TABLE,
        generation: TableGeneration(1),
    };
    let Ok(NodeResponse::Sealed(replicas)) = client.control(seal) else {
        panic!()
    };
    assert_eq!(replicas[0].region.rows, 3000);
    let push = |sequence| client.push(1, session, sequence, PushMode::Delete, &[1], &[]);
    assert!(matches!(push(2).unwrap_err(), Refusal::TableState { .. }));
    let abandon = NodeRequest::AbandonLoad {
        table: TABLE,
        generation: TableGeneration(1),
    };
    assert_eq!(client.control(abandon).unwrap(), NodeResponse::Done);
    push(2).unwrap();

    let seal = NodeRequest::SealShards {
        table: TABLE,
        generation: TableGeneration(2),
    };
    client.control(seal).unwrap();
    world.change(|map| {
        map.state = TableState::Sealed;
        map.generation = TableGeneration(2);
    });
    let rows = client.pull(1, 2, Missing::Default, &[1, 2, 2999]).unwrap();
    assert_eq!(
        rows,
        [
            (DEFAULT, vec![0.5]),
            (FOUND, vec![2.0]),
            (FOUND, vec![2999.0])
        ]
    );
}

/// I-3, I-9: without the catalogue mutable rows stop with the lease and sealed ones go on; a
/// dropped table is gone; a replaced process stops.
#[test]
fn a_lease_ends_and_a_stale_process_stops() {
    let world = World::new();
    let node = world.start();
    world.create(spec(1, sgd(1.0)));
    let client = world.client(&node);
    until("the table", || client.open(1).is_ok());
    world.script.lock().unwrap().silent = true;
    until("the end of the lease", || {
        matches!(
            client.pull(1, 0, Missing::Error, &[1]),
            Err(Refusal::Unavailable { .. })
        )
    });
    world.script.lock().unwrap().silent = false;
    until("a new lease", || {
        client.pull(1, 0, Missing::Error, &[1]).is_ok()
    });

    {
        let mut script = world.script.lock().unwrap();
        script.maps.clear();
        script.revision += 1;
    }
    until("the table to go", || {
        matches!(
            client.pull(1, 0, Missing::Error, &[1]),
            Err(Refusal::NotPermitted { has: None, .. })
        )
    });
    world.script.lock().unwrap().stale_below = 99;
    let error = world.runtime.block_on(node.failed());
    assert!(error.to_string().contains("registered again"), "{error}");
}

/// I-12: bytes that are no request are refused, and the link goes on.
#[test]
fn hostile_requests_are_refused() {
    let world = World::new();
    let node = world.start();
    world.create(spec(1, sgd(1.0)));
    let client = world.client(&node);
    until("the table", || client.open(1).is_ok());
    let garbage: Vec<u8> = (0..5000u32).map(|i| ((i * 7919) >> 3) as u8).collect();
    let kinds = [
        FrameKind::Pull,
        FrameKind::Push,
        FrameKind::Load,
        FrameKind::Control,
    ];
    for kind in kinds {
        for bytes in [&garbage[..], &garbage[..32], &[0xFF; 24], &[]] {
            let refusal = client.call(kind, bytes.to_vec()).unwrap_err();
            let known = matches!(
                refusal,
                Refusal::Malformed { .. } | Refusal::NotPermitted { .. } | Refusal::Conflict { .. }
            );
            assert!(known, "{kind:?}: {refusal}");
        }
    }
    for kind in [FrameKind::Pulled, FrameKind::Pushed] {
        let refusal = client.call(kind, vec![0; 64]).unwrap_err();
        assert!(
            refusal.to_string().contains("an answer, not a request"),
            "{refusal}"
        );
    }
    let unknown = NodeRequest::Describe {
        table: TableId(404),
    };
    assert!(matches!(
        client.control(unknown.clone()).unwrap_err(),
        Refusal::NotPermitted { .. }
    ));
    let admin = world.peer(&node, Role::Admin, "ops");
    assert!(matches!(
        admin.control(unknown).unwrap_err(),
        Refusal::UnknownTable { .. }
    ));
    assert_eq!(
        client.pull(1, 0, Missing::Error, &[1]).unwrap()[0].0,
        MISSING
    );
}

/// Only clients have business with rows.
#[test]
fn other_principals_are_denied() {
    let world = World::new();
    let node = world.start();
    world.create(spec(1, sgd(1.0)));
    let other = world.peer(&node, Role::Node, "n2");
    let refusal = other.pull(1, 0, Missing::Error, &[1]).unwrap_err();
    assert!(
        matches!(refusal, Refusal::PermissionDenied { .. }),
        "{refusal}"
    );
}

/// B017's counter, and the health of a node, over HTTP.
#[test]
fn http_tells_health_and_metrics() {
    let world = World::new();
    let node = world.start();
    world.create(spec(1, sgd(1.0)));
    let client = world.client(&node);
    let session = client.open(1).unwrap();
    let nan = bytes(&[f32::NAN]);
    assert!(
        client
            .push(1, session, 1, PushMode::Gradient, &[7], &nan)
            .is_err()
    );
    client
        .push(1, session, 2, PushMode::Gradient, &[7], &bytes(&[1.0]))
        .unwrap();
    client.pull(1, 0, Missing::Error, &[7, 8]).unwrap();

    let get = |path: &str| {
        let mut stream = TcpStream::connect(node.http_addr().unwrap()).unwrap();
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    assert!(get("/healthz").starts_with("HTTP/1.1 200"));
    let metrics = get("/metrics");
    for line in [
        "mneme_push_rejected_nonfinite_total 1",
        "mneme_pulls_total 1",
        "mneme_pulled_rows_total 1",
        "mneme_pulled_missing_total 1",
        "mneme_pushed_rows_total 1",
        "mneme_table_rows{tenant=\"default\",table=\"t\"} 1",
        "mneme_links 1",
        "mneme_lease_live 1",
        "mneme_refusals_total{kind=\"non_finite\"} 1",
    ] {
        assert!(
            metrics.lines().any(|l| l == line),
            "{line} is not in\n{metrics}"
        );
    }
}
