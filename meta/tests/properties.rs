//! Random commands against the state machine: what must hold whatever is asked, and in which
//! order.

// A panic in a step is a failed test.
#![allow(clippy::unwrap_used)]

mod fixture;

use std::collections::BTreeSet;

use fixture::{Cluster, Process, spec};
use mneme_meta::state::State;
use mneme_meta::state::command::{Command, Outcome};
use mneme_proto::control::{ShardStatus, TableRef};
use mneme_proto::ids::{NodeId, TableId};
use mneme_proto::map::TableState;
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Step {
    Register {
        node: u8,
        keep: bool,
    },
    Take {
        node: u8,
        count: u32,
        stale: bool,
    },
    Create {
        request: u8,
        name: u8,
        shards: u32,
        loading: bool,
    },
    Drop {
        table: u8,
    },
    Reset {
        table: u8,
    },
    Serve {
        table: u8,
        node: u8,
        stale: bool,
        fail: bool,
    },
    Load {
        table: u8,
        damage: Option<u8>,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let small = 0..4u8;
    let step = prop_oneof![
        2 => (small.clone(), any::<bool>()).prop_map(|(node, keep)| Step::Register { node, keep }),
        1 => (small.clone(), 0..2000u32, any::<bool>())
            .prop_map(|(node, count, stale)| Step::Take { node, count, stale }),
        3 => (0..6u8, small.clone(), 0..5u32, prop::bool::weighted(0.3))
            .prop_map(|(request, name, shards, loading)| {
                Step::Create { request, name, shards, loading }
            }),
        1 => small.clone().prop_map(|table| Step::Drop { table }),
        1 => small.clone().prop_map(|table| Step::Reset { table }),
        6 => (small.clone(), small.clone(), prop::bool::weighted(0.1), prop::bool::weighted(0.1))
            .prop_map(|(table, node, stale, fail)| Step::Serve { table, node, stale, fail }),
        3 => (small, prop::option::of(0..6u8))
            .prop_map(|(table, damage)| Step::Load { table, damage }),
    ];
    prop::collection::vec(step, 1..60)
}

/// What was ever given out, to find anything given twice.
#[derive(Default)]
struct Given {
    incarnations: BTreeSet<u64>,
    generations_end: u64,
    tables: BTreeSet<TableId>,
    loads: BTreeSet<(TableId, u64)>,
}

struct World {
    cluster: Cluster,
    processes: Vec<Process>,
    given: Given,
}

impl World {
    fn table(&self, number: u8) -> Option<TableId> {
        let tables: Vec<_> = self.cluster.state.tables().map(|t| t.id).collect();
        tables
            .get(usize::from(number) % tables.len().max(1))
            .copied()
    }

    fn process(&mut self, number: u8) -> Option<&mut Process> {
        let name = format!("n{number}");
        self.processes.iter_mut().find(|p| p.name == name)
    }

    /// Applies one command and checks what holds of every command.
    fn apply(&mut self, command: Command) -> Outcome {
        let before = self.cluster.state.clone();
        let mut twin = before.clone();
        let outcome = self.cluster.state.apply(command.clone());
        let after = &self.cluster.state;
        assert_eq!(
            twin.apply(command),
            outcome,
            "the same command, the same answer"
        );
        assert_eq!(&twin, after, "the same command, the same state");
        if matches!(outcome, Outcome::Refused(_)) {
            assert_eq!(after, &before, "a refused command changes nothing");
        }
        assert_eq!(
            after.revision() > before.revision(),
            after != &before,
            "the revision moves exactly when the state does"
        );
        assert!(after.revision() >= before.revision());
        self.note(&outcome);
        outcome
    }

    /// I-6: nothing that was given out is ever given again.
    fn note(&mut self, outcome: &Outcome) {
        let block = match outcome {
            Outcome::Registered {
                incarnation,
                generations,
                ..
            } => {
                assert!(
                    self.given.incarnations.insert(incarnation.0),
                    "incarnation reused"
                );
                generations
            }
            Outcome::Generations(block) => block,
            Outcome::Load {
                table, generation, ..
            } => {
                let load = (*table, generation.0);
                assert!(self.given.loads.insert(load), "table generation reused");
                return;
            }
            _ => return,
        };
        assert!(
            block.first.0 > self.given.generations_end,
            "generations reused"
        );
        self.given.generations_end = block.first.0 + u64::from(block.count) - 1;
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Register { node, keep } => self.register(node, keep),
            Step::Take { node, count, stale } => {
                let Some(process) = self.process(node).cloned() else {
                    return;
                };
                let mut incarnation = process.incarnation;
                incarnation.0 += u64::from(stale);
                self.apply(Command::TakeGenerations {
                    node: process.node,
                    incarnation,
                    count,
                });
            }
            Step::Create {
                request,
                name,
                shards,
                loading,
            } => {
                let mut wanted = spec(&format!("t{name}"));
                wanted.shards = shards;
                let known: BTreeSet<_> = self.cluster.state.tables().map(|t| t.id).collect();
                let candidates = self.cluster.candidates();
                let outcome = self.apply(Command::CreateTable {
                    creator: None,
                    request: request.into(),
                    spec: wanted,
                    loading,
                    candidates,
                });
                if let Outcome::Table { table, .. } = outcome
                    && !known.contains(&table)
                {
                    assert!(self.given.tables.insert(table), "table id reused");
                }
            }
            Step::Drop { table } => {
                if let Some(table) = self.table(table) {
                    self.apply(Command::DropTable {
                        table: TableRef::Id(table),
                    });
                }
            }
            Step::Reset { table } => {
                if let Some(table) = self.table(table) {
                    self.apply(Command::ResetTable {
                        table: TableRef::Id(table),
                    });
                }
            }
            Step::Serve {
                table,
                node,
                stale,
                fail,
            } => self.serve(table, node, stale, fail),
            Step::Load { table, damage } => self.load(table, damage),
        }
    }

    fn register(&mut self, node: u8, keep: bool) {
        let name = format!("n{node}");
        let mut held = Vec::new();
        if keep && let Some(id) = self.process(node).map(|p| p.node) {
            let sealed = self.cluster.state.tables();
            let sealed: Vec<_> = sealed
                .filter(|t| t.generation.0 > 0)
                .map(|t| t.id)
                .collect();
            held = sealed
                .into_iter()
                .flat_map(|t| self.cluster.held_sealed(t, id))
                .collect();
        }
        let before = self.cluster.state.clone();
        let command = Command::Register(fixture::registration(&name, held.clone()));
        self.apply(command);
        // The fixture's own registration, from the same state, makes the process to go on with.
        let mut twin = Cluster { state: before };
        let process = twin.register(&name, held);
        self.processes.retain(|p| p.name != name);
        self.processes.push(process);
    }

    fn serve(&mut self, table: u8, node: u8, stale: bool, fail: bool) {
        let (Some(table), Some(process)) = (self.table(table), self.process(node).cloned()) else {
            return;
        };
        let mut process = process;
        let mut shards = self.cluster.serving_report(table, &mut process);
        if fail && let Some(report) = shards.first_mut() {
            report.status = ShardStatus::Failed("no room".into());
        }
        let mut incarnation = process.incarnation;
        incarnation.0 -= u64::from(stale);
        self.apply(Command::Report {
            node: process.node,
            incarnation,
            shards,
        });
        self.processes.retain(|p| p.name != process.name);
        self.processes.push(process);
    }

    /// I-8: the whole table is at the new generation, or at the old one as it was.
    fn load(&mut self, table: u8, damage: Option<u8>) {
        let Some(table) = self.table(table) else {
            return;
        };
        let begun = self.apply(Command::BeginLoad {
            table: TableRef::Id(table),
        });
        let Outcome::Load { generation, .. } = begun else {
            return;
        };
        let mut replicas = self.cluster.sealed(table, &mut self.processes);
        match damage {
            Some(0) => drop(replicas.pop()),
            Some(1) => replicas[0].incarnation.0 += 1,
            Some(2) => replicas[0].region.generation.0 += 1 << 40,
            Some(3) => replicas[0].node = NodeId(999),
            Some(4) => replicas.extend(replicas.first().cloned()),
            Some(_) => replicas[0].region.state = mneme_proto::map::RegionState::Loading,
            None => {}
        }
        let outcome = self.apply(Command::Publish {
            table,
            generation,
            replicas: replicas.clone(),
        });
        if damage.is_some() {
            assert!(matches!(outcome, Outcome::Refused(_)), "{outcome:?}");
            return;
        }
        assert!(matches!(outcome, Outcome::Done { .. }), "{outcome:?}");
        let map = self.cluster.map(table);
        assert_eq!(
            (map.state, map.generation),
            (TableState::Sealed, generation)
        );
        for (shard, named) in map.shards.iter().zip(&replicas) {
            assert_eq!(shard.replicas[0].region.as_ref(), Some(&named.region));
        }
    }
}

fn check_whole(state: &State) {
    for table in state.tables() {
        assert_eq!(table.shards.len(), table.spec.shards as usize);
        for replica in table.replicas() {
            let node = state.node(replica.node).expect("a replica's node is known");
            assert_eq!(replica.incarnation, node.entry.incarnation);
            if table.state() == TableState::Sealed {
                assert!(replica.contents.contains_key(&table.generation));
            }
        }
    }
    let bytes = postcard::to_stdvec(state).unwrap();
    assert_eq!(&postcard::from_bytes::<State>(&bytes).unwrap(), state);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn commands_keep_the_invariants(steps in steps()) {
        let mut world = World {
            cluster: Cluster::new(),
            processes: Vec::new(),
            given: Given::default(),
        };
        for step in steps {
            world.step(step);
        }
        check_whole(&world.cluster.state);
    }
}
