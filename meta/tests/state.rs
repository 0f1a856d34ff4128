//! The state machine's rules, one by one.

mod fixture;

use fixture::{Cluster, refusal_of, region, registration, spec, table_of};
use mneme_meta::limits::CREATES_KEPT;
use mneme_meta::state::State;
use mneme_meta::state::command::{Command, Outcome};
use mneme_meta::state::events::Since;
use mneme_proto::control::{Change, Held, HeldShard, ShardReport, ShardStatus, TableRef};
use mneme_proto::ids::{ClusterId, Epoch, Revision, ShardId, ShardIndex, TableGeneration};
use mneme_proto::map::TableState;
use mneme_proto::refusal::Refusal;

#[test]
fn the_first_cluster_id_stays() {
    let mut cluster = Cluster::new();
    let before = cluster.state.clone();
    cluster.state.apply(Command::Found {
        cluster: ClusterId(5),
    });
    assert_eq!(cluster.state, before);
    assert_eq!(cluster.state.cluster(), Some(ClusterId(77)));
}

/// I-6: the same name is the same node, in a life of its own.
#[test]
fn a_node_that_registers_again_is_fenced_from_its_old_life() {
    let mut cluster = Cluster::new();
    let old = cluster.register("n1", vec![]);
    let new = cluster.register("n1", vec![]);
    assert_eq!(old.node, new.node);
    assert!(new.incarnation > old.incarnation);
    let old_end = old.generations.first.0 + u64::from(old.generations.count);
    assert!(new.generations.first.0 >= old_end);

    let take = |incarnation| Command::TakeGenerations {
        node: old.node,
        incarnation,
        count: 10,
    };
    let refused = refusal_of(cluster.state.apply(take(old.incarnation)));
    assert_eq!(refused, Refusal::StaleIncarnation { node: "n1".into() });
    assert!(matches!(
        cluster.state.apply(take(new.incarnation)),
        Outcome::Generations(block) if block.first.0 == new.generations.first.0 + 1024
    ));
}

#[test]
fn bad_registrations_and_blocks_are_refused() {
    let mut cluster = Cluster::new();
    let node = cluster.register("n1", vec![]);
    let before = cluster.state.clone();
    let mut bad_name = registration("x", vec![]);
    bad_name.name = "no spaces".into();
    refusal_of(cluster.state.apply(Command::Register(bad_name)));
    let mut no_address = registration("x", vec![]);
    no_address.address.clear();
    refusal_of(cluster.state.apply(Command::Register(no_address)));
    for count in [0, u32::MAX] {
        refusal_of(cluster.state.apply(Command::TakeGenerations {
            node: node.node,
            incarnation: node.incarnation,
            count,
        }));
    }
    assert_eq!(cluster.state, before);
}

#[test]
fn a_table_is_mutable_once_every_shard_serves() {
    let mut cluster = Cluster::new();
    let mut nodes = [
        cluster.register("n1", vec![]),
        cluster.register("n2", vec![]),
    ];
    let table = table_of(&cluster.create(1, spec("t")));
    assert_eq!(cluster.table_state(table), TableState::Creating);
    cluster.serve(table, &mut nodes[0]);
    assert_eq!(cluster.table_state(table), TableState::Creating);
    cluster.serve(table, &mut nodes[1]);
    assert_eq!(cluster.table_state(table), TableState::Mutable);

    let map = cluster.map(table);
    assert_eq!(map.shards.len(), 4);
    assert_eq!(map.nodes.len(), 2);
    assert_eq!(map.cluster, ClusterId(77));
    for node in 0..2 {
        let shards = map.shards.iter().filter(|s| s.replicas[0].node == node);
        assert_eq!(shards.count(), 2, "shards are spread evenly");
    }
    assert!(map.shards.iter().all(|s| s.replicas[0].region.is_some()));
}

#[test]
fn shards_without_a_number_follow_the_nodes() {
    let mut cluster = Cluster::new();
    for n in 0..3 {
        cluster.register(&format!("n{n}"), vec![]);
    }
    let mut wanted = spec("t");
    wanted.shards = 0;
    let table = table_of(&cluster.create(1, wanted));
    let map = cluster.map(table);
    assert_eq!((map.spec.shards, map.shards.len()), (64, 64));
}

/// B058: of two creators one wins; and a creator's own retry is told of its table.
#[test]
fn creating_is_once_per_name_and_repeatable_per_request() {
    let mut cluster = Cluster::new();
    cluster.register("n1", vec![]);
    let table = table_of(&cluster.create(1, spec("t")));
    let again = cluster.create(1, spec("t"));
    assert_eq!(table_of(&again), table);
    let other = refusal_of(cluster.create(2, spec("t")));
    assert_eq!(other, Refusal::TableExists { table: "t".into() });

    // A table that was dropped meanwhile does not come back through a late retry.
    cluster.state.apply(Command::DropTable {
        table: TableRef::Id(table),
    });
    assert!(matches!(
        refusal_of(cluster.create(1, spec("t"))),
        Refusal::UnknownTable { .. }
    ));
    // A new creation takes the name and a new id (I-6).
    assert!(table_of(&cluster.create(3, spec("t"))) > table);
}

#[test]
fn remembered_creations_are_bounded() {
    let mut cluster = Cluster::new();
    cluster.register("n1", vec![]);
    let mut one = spec("t");
    one.shards = 1;
    for n in 0..=CREATES_KEPT as u64 {
        one.name = format!("t{n}");
        table_of(&cluster.create(n, one.clone()));
    }
    one.name = "t0".into();
    assert!(matches!(
        refusal_of(cluster.create(0, one.clone())),
        Refusal::TableExists { .. }
    ));
    one.name = "t1".into();
    table_of(&cluster.create(1, one));
}

#[test]
fn nothing_is_created_without_nodes_or_with_a_bad_schema() {
    let mut cluster = Cluster::new();
    assert_eq!(refusal_of(cluster.create(1, spec("t"))), Refusal::NoNodes);
    cluster.register("n1", vec![]);
    let before = cluster.state.clone();
    let mut bad = spec("t");
    bad.shards = 3;
    assert!(matches!(
        refusal_of(cluster.create(1, bad)),
        Refusal::Schema { field, .. } if field == "shards"
    ));
    assert_eq!(cluster.state, before);
}

#[test]
fn a_table_that_a_node_cannot_make_is_abandoned_whole() {
    let mut cluster = Cluster::new();
    let node = cluster.register("n1", vec![]);
    let table = table_of(&cluster.create(1, spec("t")));
    let report = ShardReport {
        shard: ShardId {
            table,
            shard: ShardIndex(2),
        },
        epoch: Epoch(1),
        generation: TableGeneration(0),
        status: ShardStatus::Failed("pool dram is full".into()),
    };
    cluster.report(&node, vec![report]);
    let record = cluster.state.table(&TableRef::Id(table)).unwrap();
    assert_eq!(record.failure(), Some((2, node.node, "pool dram is full")));
    cluster.state.apply(Command::AbandonTable { table });
    assert!(cluster.state.table(&TableRef::Id(table)).is_err());
    // The same request may try again.
    assert!(table_of(&cluster.create(1, spec("t"))) > table);
}

#[test]
fn abandoning_spares_a_table_that_serves() {
    let mut cluster = Cluster::new();
    let mut nodes = [cluster.register("n1", vec![])];
    let table = cluster.served_table(spec("t"), &mut nodes);
    cluster.state.apply(Command::AbandonTable { table });
    assert_eq!(cluster.table_state(table), TableState::Mutable);
}

/// A table that is made to be loaded holds nothing before, so nothing of it can be lost.
#[test]
fn a_table_to_load_serves_nothing_until_a_generation_is_published() {
    let mut cluster = Cluster::new();
    let mut nodes = [cluster.register("n1", vec![])];
    let table = table_of(&cluster.create_as(1, spec("t"), true));
    assert_eq!(cluster.table_state(table), TableState::Loading);
    // Mutable shards that a node should not have made do not count.
    cluster.serve(table, &mut nodes[0]);
    assert!(cluster.map(table).shards[0].replicas[0].region.is_none());
    nodes[0] = cluster.register("n1", vec![]);
    assert_eq!(cluster.table_state(table), TableState::Loading);

    let generation = cluster.import(table, &mut nodes);
    let map = cluster.map(table);
    assert_eq!(
        (map.state, map.generation),
        (TableState::Sealed, generation)
    );
    // Without rows there is nothing to go back to, and without its node the rows are lost.
    assert_eq!(map.previous, TableGeneration(0));
    cluster.register("n1", vec![]);
    assert_eq!(cluster.table_state(table), TableState::Lost);
}

#[test]
fn a_table_to_load_is_made_mutable_by_a_reset() {
    let mut cluster = Cluster::new();
    let mut nodes = [cluster.register("n1", vec![])];
    let table = table_of(&cluster.create_as(1, spec("t"), true));
    let reset = Command::ResetTable {
        table: TableRef::Id(table),
    };
    cluster.state.apply(reset);
    assert_eq!(cluster.table_state(table), TableState::Creating);
    cluster.serve(table, &mut nodes[0]);
    assert_eq!(cluster.table_state(table), TableState::Mutable);
}

/// Rows of a mutable table went with the old process: shown, never served as if empty.
#[test]
fn mutable_rows_are_lost_with_their_process_until_reset() {
    let mut cluster = Cluster::new();
    let mut nodes = [
        cluster.register("n1", vec![]),
        cluster.register("n2", vec![]),
    ];
    let table = cluster.served_table(spec("t"), &mut nodes);
    let epochs: Vec<_> = cluster.map(table).shards.iter().map(|s| s.epoch).collect();
    nodes[0] = cluster.register("n1", vec![]);
    assert_eq!(cluster.table_state(table), TableState::Lost);
    // The set changed, so the epoch did (I-3), of that node's shards only.
    for (shard, before) in cluster.map(table).shards.iter().zip(epochs) {
        let replica = &shard.replicas[0];
        let moved = shard.epoch > before;
        assert_eq!(moved, replica.incarnation == nodes[0].incarnation);
        assert_eq!(replica.lost, moved);
        assert_eq!(replica.region.is_none(), replica.lost);
    }
    // A report does not bring rows back.
    cluster.serve(table, &mut nodes[0]);
    assert_eq!(cluster.table_state(table), TableState::Lost);

    cluster.state.apply(Command::ResetTable {
        table: TableRef::Id(table),
    });
    assert_eq!(cluster.table_state(table), TableState::Creating);
    cluster.serve(table, &mut nodes[0]);
    // Its retry, while the nodes are at it, does not start them again.
    let before = cluster.state.clone();
    cluster.state.apply(Command::ResetTable {
        table: TableRef::Id(table),
    });
    assert_eq!(cluster.state, before);
    cluster.serve(table, &mut nodes[1]);
    assert_eq!(cluster.table_state(table), TableState::Mutable);
}

#[test]
fn shards_that_were_never_written_are_not_lost() {
    let mut cluster = Cluster::new();
    let mut nodes = [cluster.register("n1", vec![])];
    let table = cluster.served_table(spec("t"), &mut nodes);
    let untouched = (0..4).map(|shard| HeldShard {
        shard: ShardId {
            table,
            shard: ShardIndex(shard),
        },
        held: Held::Untouched,
    });
    nodes[0] = cluster.register("n1", untouched.collect());
    assert_eq!(cluster.table_state(table), TableState::Mutable);
    assert!(cluster.map(table).shards[0].replicas[0].region.is_none());
    cluster.serve(table, &mut nodes[0]);
    assert!(cluster.map(table).shards[0].replicas[0].region.is_some());
}

#[test]
fn sealed_rows_come_back_with_their_digest_only() {
    let mut cluster = Cluster::new();
    let mut nodes = [cluster.register("n1", vec![])];
    let table = cluster.served_table(spec("t"), &mut nodes);
    let generation = cluster.import(table, &mut nodes);
    assert_eq!(cluster.table_state(table), TableState::Sealed);

    let held = cluster.held_sealed(table, nodes[0].node);
    nodes[0] = cluster.register("n1", held.clone());
    assert_eq!(cluster.table_state(table), TableState::Sealed);
    assert!(cluster.map(table).shards[0].replicas[0].region.is_none());
    cluster.serve(table, &mut nodes[0]);
    let map = cluster.map(table);
    assert_eq!(map.generation, generation);
    assert!(map.shards[0].replicas[0].region.is_some());

    let mut damaged = held.clone();
    damaged[0].held = Held::Sealed {
        generation,
        digest: 1,
    };
    cluster.register("n1", damaged);
    assert_eq!(cluster.table_state(table), TableState::Lost);
    // A later life that holds everything brings it back.
    cluster.register("n1", held);
    assert_eq!(cluster.table_state(table), TableState::Sealed);
}

/// I-8: a sealed region that comes back with other contents is not served.
#[test]
fn a_report_with_another_digest_makes_the_shard_lost() {
    let mut cluster = Cluster::new();
    let mut nodes = [cluster.register("n1", vec![])];
    let table = cluster.served_table(spec("t"), &mut nodes);
    cluster.import(table, &mut nodes);
    let mut shards = cluster.serving_report(table, &mut nodes[0]);
    shards.truncate(1);
    shards[0].status = ShardStatus::Serving(region(nodes[0].generation(), 1));
    cluster.report(&nodes[0].clone(), shards);
    assert_eq!(cluster.table_state(table), TableState::Lost);
    assert!(cluster.map(table).shards[0].replicas[0].region.is_none());
}

#[test]
fn a_sealed_table_is_not_reset_and_a_lost_one_is_imported_again() {
    let mut cluster = Cluster::new();
    let mut nodes = [cluster.register("n1", vec![])];
    let table = cluster.served_table(spec("t"), &mut nodes);
    cluster.import(table, &mut nodes);
    let refused = refusal_of(cluster.state.apply(Command::ResetTable {
        table: TableRef::Id(table),
    }));
    assert!(matches!(refused, Refusal::TableState { .. }));

    nodes[0] = cluster.register("n1", vec![]);
    assert_eq!(cluster.table_state(table), TableState::Lost);
    let generation = cluster.import(table, &mut nodes);
    let map = cluster.map(table);
    assert_eq!(
        (map.state, map.generation),
        (TableState::Sealed, generation)
    );
    // What was lost is nothing to roll back to.
    assert_eq!(map.previous, TableGeneration(0));
}

#[test]
fn reports_of_another_epoch_or_unknown_tables_change_nothing() {
    let mut cluster = Cluster::new();
    let mut nodes = [cluster.register("n1", vec![])];
    let table = table_of(&cluster.create(1, spec("t")));
    let mut stale = cluster.serving_report(table, &mut nodes[0]);
    stale.iter_mut().for_each(|r| r.epoch.0 += 1);
    let mut unknown = cluster.serving_report(table, &mut nodes[0]);
    unknown.iter_mut().for_each(|r| r.shard.table.0 += 1);
    let before = cluster.state.clone();
    cluster.report(&nodes[0].clone(), stale);
    cluster.report(&nodes[0].clone(), unknown);
    assert_eq!(cluster.state, before);
}

#[test]
fn counts_of_rows_move_the_revision_but_wake_no_watcher_in_vain() {
    let mut cluster = Cluster::new();
    let mut nodes = [cluster.register("n1", vec![])];
    let table = table_of(&cluster.create(1, spec("t")));
    let mut shards = cluster.serving_report(table, &mut nodes[0]);
    cluster.report(&nodes[0].clone(), shards.clone());
    let at = cluster.state.revision();
    cluster.report(&nodes[0].clone(), shards.clone());
    assert_eq!(
        cluster.state.revision(),
        at,
        "the same report again is no change"
    );
    for report in &mut shards {
        if let ShardStatus::Serving(region) = &mut report.status {
            region.rows = 10;
        }
    }
    cluster.report(&nodes[0].clone(), shards);
    assert!(cluster.state.revision() > at);
    assert_eq!(cluster.state.since(at), Since::Changes(vec![]));
    assert_eq!(cluster.state.summaries(|_| true)[0].rows, 40);
}

#[test]
fn watchers_see_what_happened_and_a_future_revision_is_a_reload() {
    let mut cluster = Cluster::new();
    let node = cluster.register("n1", vec![]);
    let at = cluster.state.revision();
    let table = table_of(&cluster.create(1, spec("t")));
    cluster.state.apply(Command::DropTable {
        table: TableRef::Name {
            tenant: "default".into(),
            name: "t".into(),
        },
    });
    let changes = vec![Change::Table(table), Change::Dropped(table)];
    assert_eq!(cluster.state.since(at), Since::Changes(changes));
    let all = cluster.state.since(Revision(0));
    assert!(matches!(all, Since::Changes(c) if c[0] == Change::Node(node.node)));
    let future = Revision(cluster.state.revision().0 + 1);
    assert_eq!(cluster.state.since(future), Since::Compacted);
}

#[test]
fn a_snapshot_of_the_state_is_the_state() {
    let mut cluster = Cluster::new();
    let mut nodes = [
        cluster.register("n1", vec![]),
        cluster.register("n2", vec![]),
    ];
    let table = cluster.served_table(spec("t"), &mut nodes);
    cluster.import(table, &mut nodes);
    let bytes = postcard::to_stdvec(&cluster.state).unwrap();
    let back: State = postcard::from_bytes(&bytes).unwrap();
    assert_eq!(back, cluster.state);
}
