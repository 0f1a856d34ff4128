//! Publishing: whole or not at all (I-8).

mod fixture;

use fixture::{Cluster, Process, refusal_of, spec};
use mneme_meta::limits::LOADS_OPEN_MAX;
use mneme_meta::state::command::Outcome;
use mneme_proto::control::{SealedReplica, ShardReport, ShardStatus};
use mneme_proto::ids::{Epoch, Generation, ShardId, ShardIndex, TableGeneration};
use mneme_proto::map::TableState;
use mneme_proto::refusal::Refusal;

/// I-8: one command, every replica as named, or nothing.
#[test]
fn publish_fails_whole_if_one_replica_is_not_as_named() {
    let mut cluster = Cluster::new();
    let mut nodes = [
        cluster.register("n1", vec![]),
        cluster.register("n2", vec![]),
    ];
    let table = cluster.served_table(spec("t"), &mut nodes);
    let generation = cluster.begin_load(table);
    let named = cluster.sealed(table, &mut nodes);
    let report: Vec<_> = named
        .iter()
        .filter(|r| r.node == nodes[0].node)
        .map(|r| ShardReport {
            shard: ShardId {
                table,
                shard: r.shard,
            },
            epoch: Epoch(1),
            generation,
            status: ShardStatus::Serving(r.region.clone()),
        })
        .collect();
    cluster.report(&nodes[0].clone(), report);
    let before = cluster.state.clone();

    let first_of_n1 = named.iter().position(|r| r.node == nodes[0].node).unwrap();
    let mut wrong = Vec::new();
    wrong.push(named[1..].to_vec());
    wrong.push([&named[..], &named[..1]].concat());
    for damage in 0..5 {
        let mut bad = named.clone();
        let replica = &mut bad[first_of_n1];
        match damage {
            0 => replica.incarnation.0 += 1,
            1 => replica.region.digest ^= 1,
            2 => replica.region.generation.0 += 1,
            3 => replica.region.generation = Generation(1_000_000),
            _ => replica.shard = ShardIndex(99),
        }
        wrong.push(bad);
    }
    for bad in wrong {
        refusal_of(cluster.publish(table, generation, bad));
        assert_eq!(cluster.state, before);
    }
    let never_begun = TableGeneration(generation.0 + 1);
    refusal_of(cluster.publish(table, never_begun, named.clone()));
    assert_eq!(cluster.state, before);

    assert!(matches!(
        cluster.publish(table, generation, named.clone()),
        Outcome::Done { .. }
    ));
    let published = cluster.state.clone();
    // Its retry is answered and changes nothing.
    assert!(matches!(
        cluster.publish(table, generation, named),
        Outcome::Done { .. }
    ));
    assert_eq!(cluster.state, published);
}

#[test]
fn a_restart_between_load_and_publish_is_noticed() {
    let mut cluster = Cluster::new();
    let mut nodes = [cluster.register("n1", vec![])];
    let table = cluster.served_table(spec("t"), &mut nodes);
    let generation = cluster.begin_load(table);
    let named = cluster.sealed(table, &mut nodes);
    cluster.register("n1", vec![]);
    let refused = refusal_of(cluster.publish(table, generation, named));
    assert!(matches!(refused, Refusal::StaleIncarnation { .. }));
}

#[test]
fn a_load_with_a_withdrawn_shard_cannot_be_published() {
    let mut cluster = Cluster::new();
    let mut nodes = [cluster.register("n1", vec![])];
    let table = cluster.served_table(spec("t"), &mut nodes);
    let generation = cluster.begin_load(table);
    let named = cluster.sealed(table, &mut nodes);
    let withdrawn = ShardReport {
        shard: ShardId {
            table,
            shard: ShardIndex(0),
        },
        epoch: Epoch(1),
        generation,
        status: ShardStatus::Failed("disk full".into()),
    };
    cluster.report(&nodes[0].clone(), vec![withdrawn]);
    assert!(matches!(
        refusal_of(cluster.publish(table, generation, named)),
        Refusal::Conflict { .. }
    ));
}

#[test]
fn the_generation_before_can_be_published_again() {
    let mut cluster = Cluster::new();
    let mut nodes = [cluster.register("n1", vec![])];
    let table = cluster.served_table(spec("t"), &mut nodes);
    let first = cluster.import(table, &mut nodes);
    let named = |cluster: &Cluster, node: &Process| -> Vec<_> {
        let map = cluster.map(table);
        let shards = map.shards.iter().zip(0..);
        shards
            .map(|(shard, index)| SealedReplica {
                shard: ShardIndex(index),
                node: node.node,
                incarnation: node.incarnation,
                region: shard.replicas[0].region.clone().unwrap(),
            })
            .collect()
    };
    let of_first = named(&cluster, &nodes[0]);
    let second = cluster.import(table, &mut nodes);
    let map = cluster.map(table);
    assert_eq!((map.generation, map.previous), (second, first));

    cluster.publish(table, first, of_first.clone());
    let map = cluster.map(table);
    assert_eq!((map.generation, map.previous), (first, second));
    assert_eq!(
        map.shards[0].replicas[0].region.as_ref(),
        Some(&of_first[0].region)
    );

    // A node that comes back without the one before cannot roll back to it.
    let held = cluster.held_sealed(table, nodes[0].node);
    cluster.register("n1", held);
    let map = cluster.map(table);
    assert_eq!(map.state, TableState::Sealed);
    assert_eq!(map.previous, TableGeneration(0));
}

#[test]
fn open_loads_are_bounded_and_the_oldest_gives_way() {
    let mut cluster = Cluster::new();
    let mut nodes = [cluster.register("n1", vec![])];
    let table = cluster.served_table(spec("t"), &mut nodes);
    let first = cluster.begin_load(table);
    for _ in 0..LOADS_OPEN_MAX {
        cluster.begin_load(table);
    }
    let named = cluster.sealed(table, &mut nodes);
    let refused = refusal_of(cluster.publish(table, first, named));
    assert!(refused.to_string().contains("load it again"), "{refused}");
}
