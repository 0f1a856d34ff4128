//! Grants at a node: each kind of frame, and what happens when a grant comes or goes (I-13).

mod support;

use mneme_net::Role;
use mneme_proto::control::{NodeRequest, NodeResponse};
use mneme_proto::frame::{Missing, PushMode, Status};
use mneme_proto::grant::{Grant, Level};
use mneme_proto::ids::{SessionId, ShardIndex, TableGeneration};
use mneme_proto::refusal::Refusal;
use support::{Client, TABLE, World, bytes, sgd, spec, until};

const SHARD: ShardIndex = ShardIndex(0);

/// Changes the grants of the table, as `mneme grant` would.
fn grant(world: &World, grants: &[(&str, Level)]) {
    let grant = |(principal, level): &(&str, Level)| Grant {
        principal: (*principal).into(),
        level: *level,
    };
    world.change(|map| map.grants = grants.iter().map(grant).collect());
}

/// Every kind of frame, with the level that it needs.
fn frames(client: &Client, session: SessionId) -> Vec<(Level, &'static str, Result<(), Refusal>)> {
    let generation = TableGeneration(1);
    let table = TABLE;
    let control = |request: NodeRequest| {
        let (needs, name) = (request.needs(), name_of(&request));
        (needs, name, client.control(request).map(drop))
    };
    let pull = |missing| client.pull(1, 0, missing, &[7]).map(drop);
    vec![
        (Level::Read, "pull", pull(Missing::Default)),
        (Level::Read, "pull, missing=error", pull(Missing::Error)),
        (Level::Write, "pull, missing=init", pull(Missing::Init)),
        (
            Level::Read,
            "pull with state",
            client.pull_state(1, &[7]).map(drop),
        ),
        (
            Level::Write,
            "push",
            client
                .push(1, session, 1, PushMode::Assign, &[7], &bytes(&[1.0]))
                .map(drop),
        ),
        control(NodeRequest::OpenSessions {
            table,
            shards: vec![],
        }),
        control(NodeRequest::VoidSequence {
            table,
            shard: SHARD,
            session,
            sequence: 1,
        }),
        control(NodeRequest::BeginLoad {
            table,
            generation,
            shards: vec![(SHARD, 1)],
        }),
        (
            Level::Write,
            "load",
            client.load(1, 0, Some(&[9]), &[1.0], 1),
        ),
        control(NodeRequest::FinishLoad { table, generation }),
        control(NodeRequest::AbandonLoad { table, generation }),
        control(NodeRequest::Scan {
            table,
            shard: SHARD,
            generation: TableGeneration(0),
            cursor: 0,
            rows_max: 1,
        }),
        control(NodeRequest::Describe { table }),
        control(NodeRequest::SealShards {
            table,
            generation: TableGeneration(2),
        }),
    ]
}

/// A request without a line here does not compile.
const fn name_of(request: &NodeRequest) -> &'static str {
    match request {
        NodeRequest::OpenSessions { .. } => "open sessions",
        NodeRequest::VoidSequence { .. } => "void a sequence",
        NodeRequest::BeginLoad { .. } => "begin a load",
        NodeRequest::FinishLoad { .. } => "finish a load",
        NodeRequest::AbandonLoad { .. } => "abandon a load",
        NodeRequest::SealShards { .. } => "seal",
        NodeRequest::Scan { .. } => "scan",
        NodeRequest::Describe { .. } => "describe",
    }
}

/// I-13: no kind of frame passes below the level that it needs, and none is refused above it.
#[test]
fn every_frame_needs_its_level() {
    let world = World::new();
    let node = world.start();
    world.create(spec(1, sgd(1.0)));
    let owner = world.client(&node);
    let session = owner.open(1).unwrap();
    let ann = world.peer(&node, Role::Client, "ann");
    for has in [
        None,
        Some(Level::Read),
        Some(Level::Write),
        Some(Level::Admin),
    ] {
        let mut grants = vec![("c1", Level::Admin)];
        grants.extend(has.map(|level| ("ann", level)));
        grant(&world, &grants);
        // What it loses is checked once the node has heard; what it gains is found by a look.
        until("the node to follow", || {
            let refused = matches!(
                ann.control(NodeRequest::Describe { table: TABLE }),
                Err(Refusal::NotPermitted { .. })
            );
            refused == has.is_none()
        });
        for (needs, name, answer) in frames(&ann, session) {
            let refused = matches!(answer, Err(Refusal::NotPermitted { .. }));
            assert_eq!(
                refused,
                has < Some(needs),
                "{name} with {has:?}: {answer:?}"
            );
            if has.is_none() {
                let refusal = answer.unwrap_err();
                assert!(!refusal.to_string().contains("'t'"), "{name}: {refusal}");
            }
        }
    }
}

/// A grant is found by the first request after it, and ends with the next frame once the node has
/// heard; links and sessions that stand change nothing about it.
#[test]
fn a_grant_comes_and_goes_under_a_link() {
    let world = World::new();
    let node = world.start();
    world.create(spec(1, sgd(1.0)));
    let owner = world.client(&node);
    let session = owner.open(1).unwrap();
    let push = |client: &Client, sequence, value: f32| {
        let payload = bytes(&[value]);
        client.push(1, session, sequence, PushMode::Assign, &[7], &payload)
    };
    push(&owner, 1, 1.0).unwrap();
    let ann = world.peer(&node, Role::Client, "ann");
    assert!(matches!(
        ann.pull(1, 0, Missing::Error, &[7]).unwrap_err(),
        Refusal::NotPermitted { has: None, .. }
    ));
    grant(&world, &[("c1", Level::Admin), ("ann", Level::Write)]);
    // No waiting: the catalogue has answered, so the node must know.
    let row = vec![(Status::Found as u8, vec![1.0])];
    assert_eq!(ann.pull(1, 0, Missing::Error, &[7]).unwrap(), row);
    let NodeResponse::Sessions(own) = ann
        .control(NodeRequest::OpenSessions {
            table: TABLE,
            shards: vec![(SHARD, 1.into())],
        })
        .unwrap()
    else {
        panic!("no session");
    };
    grant(&world, &[("c1", Level::Admin), ("ann", Level::Read)]);
    let mut sequence = 0;
    until("pushes to end", || {
        sequence += 1;
        let payload = bytes(&[2.0]);
        let pushed = ann.push(1, own[0], sequence, PushMode::Assign, &[7], &payload);
        matches!(
            pushed,
            Err(Refusal::NotPermitted {
                has: Some(Level::Read),
                ..
            })
        )
    });
    assert!(ann.pull(1, 0, Missing::Error, &[7]).is_ok());
    grant(&world, &[("c1", Level::Admin)]);
    until("pulls to end", || {
        let pulled = ann.pull(1, 0, Missing::Error, &[7]);
        matches!(pulled, Err(Refusal::NotPermitted { has: None, .. }))
    });
    assert!(push(&owner, 2, 3.0).is_ok(), "others go on");
}

/// I-9: a pull whose grant the node knows waits for no catalogue.
#[test]
fn a_known_grant_needs_no_catalogue() {
    let world = World::new();
    let node = world.start();
    world.create(spec(1, sgd(1.0)));
    let owner = world.client(&node);
    until("the shard", || world.reports_of(1, 0) == 1);
    owner.open(1).unwrap();
    world.script.lock().unwrap().silent = true;
    assert!(owner.pull(1, 0, Missing::Error, &[7]).is_ok());
}
