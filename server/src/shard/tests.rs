//! The shard core against plain models: numbers of `cases.md`, and exactly-once delivery.

use super::*;
use crate::testing::{PlainRows, bytes, spec};
use mneme_proto::frame::PushMode;
use mneme_proto::ids::TableId;
use mneme_proto::limits::SESSION_WINDOW;
use mneme_proto::schema::{Dtype, Initializer, Optimizer, RowSchema, TableKind, TableSpec};
use proptest::prelude::*;
use std::collections::BTreeMap;

mod narrow;

struct Bench {
    shard: Shard<PlainRows>,
    rules: Arc<TableRules>,
    effects: Effects<u64>,
    session: SessionId,
    sequence: u64,
}

const EPOCH: Epoch = Epoch(3);

impl Bench {
    fn new(spec: &TableSpec) -> Self {
        spec.validate().expect("a valid spec");
        let rules = Arc::new(TableRules::new(TableId(7), spec));
        let mut rows = PlainRows::default();
        if let Some(layout) = &rules.dense {
            for id in 0..layout.rows() {
                let (mut row, mut state) = (vec![0; rules.row_bytes], vec![0; rules.state_bytes]);
                rules.fresh(id, &mut row, &mut state, &mut Vec::new());
                rows.insert(id, &row, &state);
            }
        }
        let mut shard = Shard::new(Arc::clone(&rules), 0, EPOCH, rows);
        let session = shard.open_session(EPOCH, 0).expect("room");
        Self {
            shard,
            rules,
            effects: Effects::default(),
            session,
            sequence: 0,
        }
    }

    fn part(&self, keys: usize, sequence: u64) -> PushPart {
        PushPart {
            shard: 0.into(),
            keys: (keys as u32).into(),
            epoch: EPOCH.0.into(),
            session: self.session.0.into(),
            sequence: sequence.into(),
        }
    }

    fn deliver(
        &mut self,
        sequence: u64,
        mode: PushMode,
        keys: &[u64],
        payload: &[u8],
    ) -> Result<Outcome, Refusal> {
        let check = match payload.len().checked_div(keys.len()) {
            Some(value_bytes) => self.rules.check_push(mode, value_bytes as u32, 0),
            None => Ok(()),
        };
        let part = self.part(keys.len(), sequence);
        let keys: Vec<U64> = keys.iter().map(|k| (*k).into()).collect();
        let data = PartData {
            mode,
            keys: &keys,
            payload,
            step: 0,
        };
        self.shard.push(&part, check, data, 0, &mut self.effects)
    }

    fn push(&mut self, mode: PushMode, keys: &[u64], values: &[f32]) -> Outcome {
        self.sequence += 1;
        self.deliver(self.sequence, mode, keys, &bytes(values))
            .expect("ordered")
    }

    fn row(&self, key: u64) -> Vec<f32> {
        self.shard.rows().get(key).expect("a row").0
    }

    fn state(&self, key: u64) -> Vec<f32> {
        self.shard.rows().get(key).expect("a row").1
    }
}

fn sgd(lr: f64) -> Optimizer {
    Optimizer::Sgd {
        lr,
        momentum: 0.0,
        weight_decay: 0.0,
    }
}

fn table(dim: u32, optimizer: Optimizer) -> TableSpec {
    TableSpec {
        schema: RowSchema::single(Dtype::F32, dim),
        optimizer,
        ..spec("t")
    }
}

fn applied(outcome: &Outcome) -> (u32, u32) {
    match outcome {
        Outcome::Applied { rows, ignored, .. } => (*rows, *ignored),
        other => panic!("{other:?}"),
    }
}

fn refused(outcome: Outcome) -> Refusal {
    match outcome {
        Outcome::Refused(refusal) => *refusal,
        other => panic!("{other:?}"),
    }
}

/// B001 with the sum that the client makes, and the large form; B052's lanes.
#[test]
fn sums_step_once() {
    let mut t = Bench::new(&table(1, sgd(0.5)));
    t.push(PushMode::Assign, &[42], &[1.0]);
    t.push(PushMode::Gradient, &[42], &[0.875]);
    assert_eq!(t.row(42), [0.5625]);

    let mut t = Bench::new(&table(1024, sgd(1.0)));
    for _ in 0..1000 {
        t.push(PushMode::Gradient, &[9], &[-1.0; 1024]);
    }
    assert_eq!(t.row(9), [1000.0; 1024]);
}

/// B002, B004: the accumulator is state, and no push is lost.
#[test]
fn adagrad_keeps_its_accumulator() {
    let adagrad = Optimizer::Adagrad {
        lr: 0.1,
        eps: 1e-10,
        acc0: 7.0,
    };
    let mut t = Bench::new(&table(1, adagrad));
    t.push(PushMode::Assign, &[5], &[1.0]);
    assert_eq!(t.state(5), [7.0], "a new row gets fresh state");
    t.push(PushMode::Gradient, &[5], &[3.0]);
    assert_eq!(t.state(5), [16.0]);
    assert!((t.row(5)[0] - 0.925).abs() < 1e-7);
    t.push(PushMode::Assign, &[5], &[1.0]);
    t.push(PushMode::Add, &[5], &[0.5]);
    assert_eq!(
        (t.row(5)[0], t.state(5)[0]),
        (1.5, 16.0),
        "assign and add keep state"
    );
    assert_eq!(applied(&t.push(PushMode::Delete, &[4, 5], &[])), (1, 0));
    t.push(PushMode::Add, &[5], &[0.5]);
    assert_eq!((t.row(5)[0], t.state(5)[0]), (0.5, 7.0), "delete drops it");
}

/// B010: rows that are not in a push do not move; a zero gradient moves one with momentum.
#[test]
fn untouched_rows_stay() {
    let momentum = Optimizer::Sgd {
        lr: 0.5,
        momentum: 0.5,
        weight_decay: 0.25,
    };
    let mut t = Bench::new(&table(2, momentum));
    t.push(PushMode::Gradient, &[1], &[1.0, 2.0]);
    let before = t.shard.rows().get(1);
    for _ in 0..9 {
        t.push(PushMode::Gradient, &[2], &[1.0, 1.0]);
    }
    assert_eq!(t.shard.rows().get(1), before);
    t.push(PushMode::Gradient, &[1], &[0.0, 0.0]);
    assert_ne!(t.shard.rows().get(1), before);
}

/// B014: sgd with lr 0 changes no weight; negative and NaN never reach a node.
#[test]
fn a_learning_rate_of_zero_is_a_no_op() {
    let mut t = Bench::new(&table(1, sgd(0.0)));
    t.push(PushMode::Assign, &[1], &[2.0]);
    t.push(PushMode::Gradient, &[1], &[5.0]);
    assert_eq!(t.row(1), [2.0]);
    for lr in [-1.0, f64::NAN, f64::INFINITY] {
        assert_eq!(
            table(1, sgd(lr)).validate().expect_err("refused").field,
            "lr"
        );
    }
}

/// B017: a part with one bad gradient, or one bad result, changes no row; the key is named.
#[test]
fn what_is_not_finite_is_refused_whole() {
    let mut t = Bench::new(&table(1, sgd(1.0)));
    t.push(PushMode::Assign, &[1, 2, 3], &[1.0, f32::MAX, 3.0]);
    let before = t.shard.rows().all().clone();
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MIN] {
        let refusal = refused(t.push(PushMode::Gradient, &[1, 2, 3], &[0.5, bad, 0.5]));
        assert!(
            matches!(refusal, Refusal::NonFinite { key: 2, .. }),
            "{refusal}"
        );
        assert_eq!(t.shard.rows().all(), &before);
    }
    let refusal = refused(t.push(PushMode::Add, &[2, 9], &[f32::MAX, 1.0]));
    assert!(
        matches!(refusal, Refusal::NonFinite { key: 2, .. }),
        "{refusal}"
    );
    assert_eq!(t.shard.rows().all(), &before);
    t.push(PushMode::Assign, &[7], &[f32::NAN]);
    assert!(t.row(7)[0].is_nan(), "an assign is stored as it is");
}

/// B019: every lane of every dim as a table of dim 1.
#[test]
fn lanes_do_not_depend_on_the_dim() {
    let adagrad = Optimizer::Adagrad {
        lr: 0.1,
        eps: 1e-10,
        acc0: 0.5,
    };
    let run = |dim: usize| {
        let mut t = Bench::new(&table(dim as u32, adagrad));
        for _ in 0..100 {
            t.push(PushMode::Gradient, &[7], &vec![1.0; dim]);
        }
        (t.row(7), t.state(7))
    };
    let (row, state) = run(1);
    for dim in [8, 12, 20, 128] {
        assert_eq!(
            run(dim),
            (vec![row[0]; dim], vec![state[0]; dim]),
            "dim {dim}"
        );
    }
}

/// B037, and its contrast.
#[test]
fn the_padding_key_is_ignored_and_counted() {
    let padded = TableSpec {
        padding_key: Some(0),
        ..table(1, sgd(1.0))
    };
    let mut t = Bench::new(&padded);
    assert_eq!(
        applied(&t.push(PushMode::Gradient, &[0, 1], &[1.0, 1.0])),
        (1, 1)
    );
    assert_eq!((t.shard.rows().get(0), t.row(1)), (None, vec![-1.0]));
    let mut t = Bench::new(&table(1, sgd(1.0)));
    assert_eq!(applied(&t.push(PushMode::Gradient, &[0], &[1.0])), (1, 0));
    assert_eq!(t.row(0), [-1.0]);
}

/// B041, B058: a new row is the initializer's, whichever call makes it.
#[test]
fn new_rows_are_the_initializers() {
    let init = Initializer::Uniform {
        low: -1.0,
        high: 1.0,
    };
    let mut t = Bench::new(&TableSpec {
        init,
        ..table(3, sgd(1.0))
    });
    t.push(PushMode::Gradient, &[1], &[0.0; 3]);
    let keys: Vec<U64> = [2u64, 1, 2].map(U64::new).to_vec();
    t.shard.init(EPOCH, &keys, 0, &mut t.effects).expect("room");
    assert_eq!(t.shard.rows().all().len(), 2);
    t.push(PushMode::Add, &[3], &[0.0; 3]);
    for key in [1, 2, 3] {
        let mut row = vec![0.0; 3];
        t.rules.init.fill(key, &mut row);
        assert_eq!(t.row(key), row);
    }
    let (last, rows) = (t.shard.last(), t.shard.rows().all().clone());
    t.shard
        .init(EPOCH, &keys, 0, &mut t.effects)
        .expect("nothing to do");
    assert_eq!((t.shard.last(), t.shard.rows().all()), (last, &rows));
}

#[test]
fn a_dense_row_is_reset_by_delete_and_out_of_range_is_named() {
    let init = Initializer::Constant(2.5);
    let mut t = Bench::new(&TableSpec {
        kind: TableKind::Dense { rows: 4 },
        init,
        ..table(
            1,
            Optimizer::Adagrad {
                lr: 1.0,
                eps: 1e-10,
                acc0: 0.5,
            },
        )
    });
    t.push(PushMode::Gradient, &[3], &[1.0]);
    assert_ne!((t.row(3)[0], t.state(3)[0]), (2.5, 0.5));
    assert_eq!(applied(&t.push(PushMode::Delete, &[3], &[])), (1, 0));
    assert_eq!((t.row(3)[0], t.state(3)[0]), (2.5, 0.5));
    let refusal = refused(t.push(PushMode::Assign, &[0, 4], &[1.0, 1.0]));
    assert_eq!(refusal, Refusal::RowOutOfRange { row: 4, rows: 4 });
    assert_eq!(t.row(0), [2.5]);
}

#[test]
fn byte_planes_take_assign_and_delete() {
    let bytes_table = TableSpec {
        schema: RowSchema::single(Dtype::U8, 3),
        ..spec("t")
    };
    let mut t = Bench::new(&bytes_table);
    let assigned = t.deliver(1, PushMode::Assign, &[1, 2], &[1, 2, 3, 4, 5, 6]);
    assert_eq!(applied(&assigned.expect("ordered")), (2, 0));
    assert_eq!(t.shard.rows().all()[&2].0, [4, 5, 6]);
    let refusal = refused(
        t.deliver(2, PushMode::Add, &[1], &[0; 12])
            .expect("ordered"),
    );
    assert!(matches!(refusal, Refusal::Mode { .. }), "{refusal}");
    let refusal = refused(
        t.deliver(3, PushMode::Assign, &[1], &[0; 4])
            .expect("ordered"),
    );
    assert!(matches!(refusal, Refusal::Shape { .. }), "{refusal}");
}

/// I-12: memory that is short refuses the part; what was there stays.
#[test]
fn a_full_pool_refuses_the_part() {
    let mut t = Bench::new(&table(1, sgd(1.0)));
    t.push(PushMode::Gradient, &[1], &[1.0]);
    let mut rows = std::mem::take(&mut t.shard.rows);
    rows.room = Some(1);
    t.shard.rows = rows;
    let refusal = refused(t.push(PushMode::Gradient, &[1, 2, 3], &[1.0; 3]));
    assert!(
        matches!(
            refusal,
            Refusal::Limit {
                asked: 2,
                limit: 1,
                ..
            }
        ),
        "{refusal}"
    );
    assert_eq!((t.row(1), t.shard.rows().all().len()), (vec![-1.0], 1));
}

#[test]
fn keys_must_ascend() {
    let mut t = Bench::new(&table(1, sgd(1.0)));
    for keys in [[2, 1], [2, 2]] {
        let refusal = refused(t.push(PushMode::Gradient, &keys, &[1.0; 2]));
        assert!(matches!(refusal, Refusal::Malformed { .. }), "{refusal}");
    }
    assert!(t.shard.rows().all().is_empty());
    assert_eq!(applied(&t.push(PushMode::Gradient, &[], &[])), (0, 0));
}

/// I-3: the refusal of a wrong epoch brings the right one, and leaves the sequence open.
#[test]
fn a_wrong_epoch_is_told_the_right_one() {
    let mut t = Bench::new(&table(1, sgd(1.0)));
    let mut part = t.part(1, 1);
    part.epoch = 2.into();
    let data = PartData {
        mode: PushMode::Gradient,
        keys: &[U64::new(1)],
        payload: &[0; 4],
        step: 0,
    };
    let refusal = t
        .shard
        .push(&part, Ok(()), data, 0, &mut t.effects)
        .expect_err("refused");
    let shard = ShardIndex(0);
    assert_eq!(
        refusal,
        Refusal::WrongEpoch {
            shard,
            asked: Epoch(2),
            current: EPOCH
        }
    );
    t.shard.set_gate(Gate::Replaced(Epoch(4)));
    let refusal = t
        .deliver(1, PushMode::Gradient, &[1], &[0; 4])
        .expect_err("refused");
    assert_eq!(
        refusal,
        Refusal::WrongEpoch {
            shard,
            asked: EPOCH,
            current: Epoch(4)
        }
    );
    t.shard.set_gate(Gate::Sealing);
    let refusal = t
        .deliver(1, PushMode::Gradient, &[1], &[0; 4])
        .expect_err("refused");
    assert!(matches!(refusal, Refusal::TableState { .. }), "{refusal}");
    t.shard.set_gate(Gate::Open);
    t.push(PushMode::Gradient, &[1], &[1.0]);
}

#[test]
fn a_voided_sequence_never_takes_effect() {
    let mut t = Bench::new(&table(1, sgd(1.0)));
    t.shard.void(t.session, 1, 0).expect("open");
    t.shard.void(t.session, 1, 0).expect("again");
    let late = t
        .deliver(1, PushMode::Gradient, &[1], &bytes(&[1.0]))
        .expect("answered");
    assert_eq!(late, Outcome::Voided);
    assert!(t.shard.rows().all().is_empty());
    let unknown = t.shard.void(SessionId(99), 1, 0).expect_err("unknown");
    assert_eq!(
        unknown,
        Refusal::UnknownSession {
            shard: ShardIndex(0)
        }
    );
}

#[derive(Debug, Clone)]
struct Planned {
    mode: u8,
    keys: Vec<u64>,
    value: i8,
}

fn planned() -> impl Strategy<Value = Planned> {
    let keys = prop::collection::btree_set(0u64..12, 0..6).prop_map(|k| k.into_iter().collect());
    (0u8..4, keys, any::<i8>()).prop_map(|(mode, keys, value)| Planned { mode, keys, value })
}

proptest! {
    /// I-2, I-10: parts of one session that arrive in any order, repeatedly and some never, take
    /// effect once each, in the order of their entries; repeats get the first answer.
    #[test]
    fn parts_take_effect_exactly_once(
        plans in prop::collection::vec(planned(), 1..40),
        arrivals in prop::collection::vec(any::<prop::sample::Index>(), 0..160),
    ) {
        let mut t = Bench::new(&table(2, sgd(1.0)));
        let mut model: BTreeMap<u64, f32> = BTreeMap::new();
        let mut answers: BTreeMap<u64, Outcome> = BTreeMap::new();
        for arrival in arrivals {
            let at = arrival.index(plans.len());
            let (plan, sequence) = (&plans[at], at as u64 + 1);
            let lowest = (1..).find(|s| !answers.contains_key(s)).expect("endless");
            let value = f32::from(plan.value);
            let modes =
                [PushMode::Gradient, PushMode::Add, PushMode::Assign, PushMode::Delete];
            let mode = modes[plan.mode as usize];
            let lanes = if mode == PushMode::Delete { 0 } else { plan.keys.len() * 2 };
            let payload = bytes(&vec![value; lanes]);
            let last = t.shard.last();
            let answer = t.deliver(sequence, mode, &plan.keys, &payload);
            if let Some(before) = answers.get(&sequence) {
                prop_assert_eq!(&answer.expect("kept"), before);
                prop_assert_eq!(t.shard.last(), last);
                continue;
            }
            prop_assert!(sequence < lowest + SESSION_WINDOW);
            for key in &plan.keys {
                match mode {
                    PushMode::Gradient => *model.entry(*key).or_default() -= value,
                    PushMode::Add => *model.entry(*key).or_default() += value,
                    PushMode::Assign => { model.insert(*key, value); }
                    PushMode::Delete => { model.remove(key); }
                }
            }
            answers.insert(sequence, answer.expect("ordered"));
            let held: BTreeMap<u64, f32> =
                t.shard.rows().all().keys().map(|k| (*k, t.row(*k)[1])).collect();
            prop_assert_eq!(&held, &model);
        }
    }
}
