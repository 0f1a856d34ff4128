//! The engine over real memory: frames in, frames out.

use super::*;
use crate::testing::{
    EPOCH, PlainRows, bytes, engine, floats, pull, pull_body, push, push_body, sealed_table, spec,
    table,
};
use mneme_proto::codec::decode;
use mneme_proto::frame::{Missing, PULL_WITH_STATE, PulledView, PushMode, PushedView, Status};
use mneme_proto::schema::{Dtype, Initializer, Optimizer, RowSchema, TableKind, TableSpec};
use proptest::prelude::*;

use crate::shard::Shard;
use crate::shard::effects::PartData;
use crate::shard::rows::Rows;
use mneme_proto::frame::PushPart;
use zerocopy::little_endian::U64;

const FOUND: u8 = Status::Found as u8;
const DEFAULT: u8 = Status::Default as u8;
const MISSING: u8 = Status::Missing as u8;

fn hashed(dim: u32, optimizer: Optimizer) -> TableSpec {
    let schema = RowSchema::single(Dtype::F32, dim);
    TableSpec {
        schema,
        optimizer,
        default_value: 0.5,
        ..spec("t")
    }
}

fn sgd(lr: f64) -> Optimizer {
    Optimizer::Sgd {
        lr,
        momentum: 0.0,
        weight_decay: 0.0,
    }
}

fn session(engine: &Engine, id: u64, shard: u32) -> SessionId {
    let table = engine.tables.get(TableId(id)).expect("made");
    engine
        .open_sessions(&table, &[(ShardIndex(shard), EPOCH)])
        .expect("room")[0]
}

/// Statuses and rows of a pull, and its refusals.
fn read(engine: &Engine, body: &[u8]) -> (Vec<u8>, Vec<Vec<f32>>, Vec<Refusal>) {
    let answer = pull(engine, body).expect("answered");
    let view = PulledView::parse(&answer).expect("well formed");
    let row_bytes = view.header.row_bytes.get() as usize;
    let refusals = if view.refusals.is_empty() {
        Vec::new()
    } else {
        decode::<Vec<Refusal>>(view.refusals).expect("an archive")
    };
    for outcome in view.outcomes {
        assert!(outcome.refusal.get() as usize <= refusals.len());
    }
    (
        view.statuses.to_vec(),
        view.rows.chunks_exact(row_bytes).map(floats).collect(),
        refusals,
    )
}

fn assign(engine: &Engine, session: SessionId, sequence: u64, keys: &[u64], values: &[f32]) {
    let body = push_body(
        1,
        0,
        session,
        sequence,
        PushMode::Assign,
        keys,
        &bytes(values),
    );
    let answer = push(engine, &body).expect("answered");
    let view = PushedView::parse(&answer).expect("well formed");
    assert_eq!(view.outcomes[0].refusal.get(), 0);
}

/// B040, B042: present, absent and all-zero rows are told apart; answers never hold bytes of an
/// earlier one (I-13), although their memory is reused.
#[test]
fn missing_keys_and_reused_buffers() {
    let engine = engine(vec![table(1, hashed(2, sgd(1.0)))]);
    let s = session(&engine, 1, 0);
    assign(&engine, s, 1, &[1, 2], &[7.0, 7.0, 0.0, 0.0]);
    let keys = [1, 999, 2, 1];
    let all = read(
        &engine,
        &pull_body(1, 0, Missing::Error, 0, &[(0, 1, &[1, 1, 1, 1])]),
    );
    assert_eq!(all.1, vec![vec![7.0, 7.0]; 4]);
    let (statuses, rows, _) = read(
        &engine,
        &pull_body(1, 0, Missing::Default, 0, &[(0, 1, &keys)]),
    );
    assert_eq!(statuses, [FOUND, DEFAULT, FOUND, FOUND]);
    assert_eq!(rows, [[7.0, 7.0], [0.5, 0.5], [0.0, 0.0], [7.0, 7.0]]);
    let (statuses, rows, _) = read(
        &engine,
        &pull_body(1, 0, Missing::Error, 0, &[(0, 1, &keys)]),
    );
    assert_eq!((statuses[1], &rows[1][..]), (MISSING, &[0.0, 0.0][..]));
    assert_eq!(engine.tables.get(TableId(1)).expect("made").rows(), 2);
}

/// Each group is answered for itself, and a refused one holds zeros.
#[test]
fn groups_are_refused_one_by_one() {
    let engine = engine(vec![table(1, hashed(1, sgd(1.0)))]);
    let s = session(&engine, 1, 0);
    assign(&engine, s, 1, &[1], &[7.0]);
    let groups: [(u32, u64, &[u64]); 4] =
        [(0, 1, &[1]), (0, 9, &[1, 1]), (5, 1, &[1]), (0, 1, &[1, 3])];
    let (statuses, rows, refusals) = read(&engine, &pull_body(1, 0, Missing::Error, 0, &groups));
    assert_eq!(statuses, [FOUND, 0, 0, 0, FOUND, MISSING]);
    assert_eq!(rows.concat(), [7.0, 0.0, 0.0, 0.0, 7.0, 0.0]);
    assert!(matches!(
        refusals[0],
        Refusal::WrongEpoch {
            asked: Epoch(9),
            current: EPOCH,
            ..
        }
    ));
    assert!(matches!(
        refusals[1],
        Refusal::NotServed {
            shard: ShardIndex(5)
        }
    ));
    assert_eq!(refusals.len(), 2);
}

/// A key that was sent to another shard than its own is an error, not a missing key.
#[test]
fn keys_of_other_shards_are_refused() {
    let engine = engine(vec![table(
        1,
        TableSpec {
            shards: 2,
            ..hashed(1, sgd(1.0))
        },
    )]);
    let key = (0..)
        .find(|k| mneme_proto::mix64::shard_of_key(*k, 2) == 1)
        .expect("half of them");
    let (_, _, refusals) = read(
        &engine,
        &pull_body(1, 0, Missing::Default, 0, &[(0, 1, &[key])]),
    );
    assert!(matches!(&refusals[0], Refusal::Malformed { why } if why.contains("shard 1")));
    let s = session(&engine, 1, 0);
    let body = push_body(1, 0, s, 1, PushMode::Gradient, &[key], &bytes(&[1.0]));
    let answer = push(&engine, &body).expect("answered");
    assert_eq!(
        PushedView::parse(&answer).expect("well formed").outcomes[0]
            .refusal
            .get(),
        1
    );
}

/// B114's neighbours: rows at the end of a dense table, one past it, and far past it.
#[test]
fn dense_rows_out_of_range_are_named() {
    let kind = TableKind::Dense { rows: 1000 };
    let init = Initializer::Uniform {
        low: 0.0,
        high: 1.0,
    };
    let dense = TableSpec {
        kind,
        init,
        default_value: 0.0,
        shards: 1,
        ..hashed(1, sgd(1.0))
    };
    let engine = engine(vec![table(1, dense)]);
    let (statuses, rows, _) = read(
        &engine,
        &pull_body(1, 0, Missing::Error, 0, &[(0, 1, &[999, 0])]),
    );
    assert_eq!(statuses, [FOUND, FOUND]);
    assert_ne!(rows[0], rows[1]);
    for row in [1000, u64::MAX] {
        let (_, _, refusals) = read(
            &engine,
            &pull_body(1, 0, Missing::Error, 0, &[(0, 1, &[0, row])]),
        );
        assert_eq!(refusals, [Refusal::RowOutOfRange { row, rows: 1000 }]);
    }
}

/// B037: the padding key reads as zeros, found, in every kind of pull.
#[test]
fn the_padding_key_reads_as_zeros() {
    let optimizer = Optimizer::Adagrad {
        lr: 1.0,
        eps: 0.0,
        acc0: 3.0,
    };
    let padded = TableSpec {
        padding_key: Some(0),
        ..hashed(1, optimizer)
    };
    let engine = engine(vec![table(1, padded)]);
    let s = session(&engine, 1, 0);
    assign(&engine, s, 1, &[1], &[7.0]);
    for missing in [Missing::Default, Missing::Error, Missing::Init] {
        let body = pull_body(1, 0, missing, 0, &[(0, 1, &[0, 1])]);
        let (statuses, rows, _) = read(&engine, &body);
        assert_eq!(
            (statuses, rows.concat()),
            (vec![FOUND, FOUND], vec![0.0, 7.0])
        );
    }
    let body = pull_body(1, 0, Missing::Error, PULL_WITH_STATE, &[(0, 1, &[0, 1, 2])]);
    let (statuses, rows, _) = read(&engine, &body);
    assert_eq!(statuses, [FOUND, FOUND, MISSING]);
    assert_eq!(rows.concat(), [0.0, 0.0, 7.0, 3.0, 0.0, 0.0]);
}

/// I-8: a pull reads the generation that it names or is refused; sealed rows need no lease (I-9).
#[test]
fn sealed_generations_are_told_apart() {
    let made = table(1, hashed(1, sgd(1.0)));
    let rows = |value: f32| [(7, bytes(&[value])), (u64::MAX, bytes(&[-value]))];
    let made = sealed_table(sealed_table(made, 1, &rows(1.0)), 2, &rows(2.0));
    let engine = Engine::default();
    engine.tables.put(Arc::new(made));
    for generation in [1, 2] {
        let body = pull_body(
            1,
            generation,
            Missing::Default,
            0,
            &[(0, 9, &[u64::MAX, 8, 7])],
        );
        let (statuses, rows, _) = read(&engine, &body);
        let value = generation as f32;
        assert_eq!(statuses, [FOUND, DEFAULT, FOUND]);
        assert_eq!(rows.concat(), [-value, 0.5, value]);
    }
    for asked in [0, 3] {
        let body = pull_body(1, asked, Missing::Default, 0, &[(0, 1, &[7])]);
        let (_, _, refusals) = read(&engine, &body);
        let (asked, current) = (TableGeneration(asked), TableGeneration(2));
        assert_eq!(refusals, [Refusal::GenerationGone { asked, current }]);
    }
}

/// I-3: nothing mutable without a live lease.
#[test]
fn mutable_work_stops_with_the_lease() {
    let engine = Engine::default();
    engine.tables.put(Arc::new(table(1, hashed(1, sgd(1.0)))));
    let (_, _, refusals) = read(
        &engine,
        &pull_body(1, 0, Missing::Error, 0, &[(0, 1, &[7])]),
    );
    assert!(matches!(refusals[0], Refusal::Unavailable { .. }));
    let made = engine.tables.get(TableId(1)).expect("made");
    assert!(
        engine
            .open_sessions(&made, &[(ShardIndex(0), EPOCH)])
            .is_err()
    );
    let body = push_body(1, 0, SessionId(1), 1, PushMode::Delete, &[7], &[]);
    let answer = push(&engine, &body).expect("answered");
    assert_eq!(
        PushedView::parse(&answer).expect("well formed").outcomes[0]
            .refusal
            .get(),
        1
    );
}

/// I-12: an answer that would not fit a frame is refused before any of it is made.
#[test]
fn an_answer_over_the_limit_is_refused() {
    let engine = engine(vec![table(1, hashed(16_384, sgd(1.0)))]);
    let keys = vec![1; 257];
    let refusal = pull(
        &engine,
        &pull_body(1, 0, Missing::Error, 0, &[(0, 1, &keys)]),
    );
    assert!(matches!(refusal, Err(Refusal::Limit { .. })));
    assert_eq!(engine.replies.used_bytes(), 0);
}

/// B052, B058, B004: many threads, one key; nothing is lost, no row is made twice.
#[test]
fn no_update_is_lost_between_threads() {
    let init = Initializer::Uniform {
        low: -1.0,
        high: 1.0,
    };
    let engine = engine(vec![
        table(1, hashed(4, sgd(1.0))),
        table(
            2,
            TableSpec {
                init,
                ..hashed(1, sgd(1.0))
            },
        ),
    ]);
    let keys: Vec<u64> = (0..100).collect();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mine = session(&engine, 1, 0);
                for sequence in 1..=500 {
                    let body = push_body(
                        1,
                        0,
                        mine,
                        sequence,
                        PushMode::Gradient,
                        &[42],
                        &bytes(&[-1.0; 4]),
                    );
                    push(&engine, &body).expect("answered");
                }
                let (statuses, rows, _) = read(
                    &engine,
                    &pull_body(2, 0, Missing::Init, 0, &[(0, 1, &keys)]),
                );
                assert!(statuses.iter().all(|status| *status == FOUND));
                rows
            });
        }
    });
    let (_, rows, _) = read(
        &engine,
        &pull_body(1, 0, Missing::Error, 0, &[(0, 1, &[42])]),
    );
    assert_eq!(rows[0], [4000.0; 4]);
    assert_eq!(engine.tables.get(TableId(2)).expect("made").rows(), 100);
}

/// A whole set of tables for hostile frames.
fn hostile_engine() -> Engine {
    let dense = TableSpec {
        kind: TableKind::Dense { rows: 100 },
        default_value: 0.0,
        ..hashed(2, sgd(1.0))
    };
    let sealed = table(3, hashed(2, sgd(1.0)));
    engine(vec![
        table(
            1,
            TableSpec {
                shards: 4,
                ..hashed(2, sgd(1.0))
            },
        ),
        table(2, dense),
        sealed_table(sealed, 1, &[(7, bytes(&[1.0, 2.0]))]),
    ])
}

proptest! {
    /// I-12: whatever bytes come, nothing panics and no place among the answers is kept.
    #[test]
    fn random_bytes_are_survived(body in prop::collection::vec(any::<u8>(), 0..400)) {
        let engine = hostile_engine();
        let _ = pull(&engine, &body);
        let _ = push(&engine, &body);
        prop_assert_eq!(engine.replies.used_bytes(), 0);
    }

    /// The same for valid frames with a few bytes changed, cut or added.
    #[test]
    fn damaged_frames_are_survived(
        id in 0u64..5,
        generation in 0u64..3,
        keys in prop::collection::vec(any::<u64>(), 0..6),
        flags in any::<u8>(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in 0usize..9,
    ) {
        let engine = hostile_engine();
        let spoil = |mut body: Vec<u8>| {
            for (at, byte) in &damage {
                let at = at.index(body.len());
                body[at] = *byte;
            }
            body.truncate(body.len() - cut.saturating_sub(5).min(body.len()));
            body
        };
        let shard = (flags % 5).into();
        let small: Vec<u64> = keys.iter().map(|k| k % 128).collect();
        for keys in [&keys, &small] {
            let body = pull_body(id, generation, Missing::Init, flags, &[(shard, 1, keys)]);
            if let Ok(answer) = pull(&engine, &spoil(body)) {
                prop_assert!(PulledView::parse(&answer).is_ok());
            }
            let opened = session(&engine, 1, u32::from(flags % 4));
            let payload = vec![flags; keys.len() * 8];
            let mode = [PushMode::Gradient, PushMode::Add, PushMode::Assign][flags as usize % 3];
            let body = push_body(id, shard, opened, 1, mode, keys, &payload);
            if let Ok(answer) = push(&engine, &spoil(body)) {
                prop_assert!(PushedView::parse(&answer).is_ok());
            }
        }
        prop_assert_eq!(engine.replies.used_bytes(), 0);
    }

    /// I-10: the memory store and a plain map hold the same bits after the same pushes.
    #[test]
    fn the_memory_store_is_the_plain_one(
        parts in prop::collection::vec(
            (0u8..4, prop::collection::btree_set(0u64..300, 0..40), any::<i16>()), 1..30,
        ),
    ) {
        let optimizer = Optimizer::Adagrad { lr: 0.5, eps: 1e-8, acc0: 0.1 };
        let init = Initializer::Normal { mean: 0.0, std: 1.0 };
        let made = table(1, TableSpec { init, ..hashed(3, optimizer) });
        let mutable = made.places[0].mutable.clone().expect("made");
        let mut plain =
            Shard::new(Arc::clone(&made.rules), 0, EPOCH, PlainRows::default());
        let opened = plain.open_session(EPOCH, 0).expect("room");
        prop_assert_eq!(mutable.core().open_session(EPOCH, 0).expect("room"), opened);
        let (mut real_effects, mut plain_effects) = (Effects::default(), Effects::default());
        for (at, (mode, keys, value)) in parts.into_iter().enumerate() {
            let modes = [PushMode::Gradient, PushMode::Add, PushMode::Assign, PushMode::Delete];
            let mode = modes[mode as usize];
            let keys: Vec<U64> = keys.into_iter().map(U64::new).collect();
            let lanes = if mode == PushMode::Delete { 0 } else { keys.len() * 3 };
            let payload = bytes(&vec![f32::from(value) * 0.01; lanes]);
            let part = PushPart {
                shard: 0.into(),
                keys: (keys.len() as u32).into(),
                epoch: EPOCH.0.into(),
                session: opened.0.into(),
                sequence: (at as u64 + 1).into(),
            };
            let data = PartData { mode, keys: &keys, payload: &payload, step: 0 };
            let real = mutable.core().push(&part, Ok(()), data, 0, &mut real_effects);
            let wanted = plain.push(&part, Ok(()), data, 0, &mut plain_effects);
            prop_assert_eq!(real, wanted);
        }
        let core = mutable.core();
        let mut held: Vec<_> =
            core.rows().iter().map(|(k, r, s)| (k, (r.to_vec(), s.to_vec()))).collect();
        held.sort();
        let wanted: Vec<_> = plain.rows().all().clone().into_iter().collect();
        prop_assert_eq!(held, wanted);
        let mut slots = Vec::new();
        core.rows().locate_each(&[1_000_000], &mut slots);
        prop_assert!(slots[0].is_none());
    }
}
