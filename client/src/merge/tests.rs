//! What a push becomes, against a plain model.

use std::collections::BTreeMap;

use mneme_proto::schema::{Dtype, Plane, RowSchema, TableKind};
use proptest::prelude::*;

use super::*;
use crate::testing::{map, router, spec};
use mneme_proto::codec;

fn merge(
    router: &Router,
    mode: PushMode,
    keys: &[u64],
    values: Values<'_>,
) -> Result<Merged, ClientError> {
    super::merge(router, mode, keys, values, 0)
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes
        .as_chunks::<4>()
        .0
        .iter()
        .map(|b| f32::from_le_bytes(*b))
        .collect()
}

fn keys_of(merged: &Merged) -> Vec<u64> {
    merged
        .keys
        .as_chunks::<8>()
        .0
        .iter()
        .map(|b| u64::from_le_bytes(*b))
        .collect()
}

fn hashed(dim: u32) -> Router {
    router(TableKind::Hashed, dim, 8, 2)
}

/// B001, B002: gradients of a repeated key are summed in request order; one row is sent.
#[test]
fn repeated_keys_are_summed_once() {
    let router = hashed(1);
    let merge = |keys: &[u64], values: &[f32]| {
        merge(&router, PushMode::Gradient, keys, Values::F32(values)).expect("good")
    };
    let merged = merge(&[42, 42, 42], &[0.25, 0.5, 0.125]);
    assert_eq!(
        (keys_of(&merged), floats(&merged.values)),
        (vec![42], vec![0.875])
    );
    let many = merge(&[7; 4096], &[1.0 / 4096.0; 4096]);
    assert_eq!(floats(&many.values), [1.0]);
    // Request order matters in f32: (1e8 + 1) - 1e8 is 0, (1e8 - 1e8) + 1 is 1.
    assert_eq!(floats(&merge(&[3, 3, 3], &[1e8, 1.0, -1e8]).values), [0.0]);
    assert_eq!(floats(&merge(&[3, 3, 3], &[1e8, -1e8, 1.0]).values), [1.0]);
    // A single gradient keeps its bits, the sign of zero included.
    assert_eq!(merge(&[3], &[-0.0]).values, (-0.0f32).to_le_bytes()[..]);
}

#[test]
fn the_last_assign_wins_and_a_delete_is_sent_once() {
    let router = hashed(2);
    let rows = [1.0f32, 1.0, 2.0, 2.0, f32::NAN, 3.0];
    let merged = merge(&router, PushMode::Assign, &[5, 6, 5], Values::F32(&rows)).expect("good");
    let at = keys_of(&merged).iter().position(|&k| k == 5).expect("sent");
    let row = &floats(&merged.values)[at * 2..at * 2 + 2];
    assert!(
        row[0].is_nan() && row[1] == 3.0,
        "a non-finite assign is stored as it is"
    );
    let merged = merge(&router, PushMode::Delete, &[5, 6, 5], Values::None).expect("good");
    assert_eq!((keys_of(&merged).len(), merged.values.len()), (2, 0));
}

/// B017: NaN, infinities and sums that overflow are refused, naming index and key.
#[test]
fn what_is_not_finite_is_named() {
    let router = hashed(1);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for (mode, word) in [
            (PushMode::Gradient, "the gradient"),
            (PushMode::Add, "the value"),
        ] {
            let error = merge(&router, mode, &[1, 2, 3], Values::F32(&[0.5, bad, 0.5]));
            let Err(ClientError::NonFinite {
                what,
                key: 2,
                index: 1,
            }) = error
            else {
                panic!("{error:?}");
            };
            assert_eq!(what, word);
        }
    }
    let error = merge(
        &router,
        PushMode::Gradient,
        &[9, 4, 4],
        Values::F32(&[1.0, 3e38, 3e38]),
    );
    assert!(
        matches!(
            error,
            Err(ClientError::NonFinite {
                what: "the sum",
                key: 4,
                index: 1
            })
        ),
        "{error:?}"
    );
}

/// B050: shapes that do not fit name both sides.
#[test]
fn shapes_are_checked_first() {
    let router = hashed(4);
    let numbers = vec![0.0; 64];
    for wrong in [3, 6, 7, 12, 16] {
        let error = merge(
            &router,
            PushMode::Add,
            &[1, 2],
            Values::F32(&numbers[..wrong]),
        );
        let text = error.expect_err("wrong shape").to_string();
        assert!(
            text.contains(&format!("{wrong} numbers")) && text.contains("2 x 4"),
            "{text}"
        );
    }
    assert!(merge(&router, PushMode::Add, &[1, 2], Values::None).is_err());
    assert!(merge(&router, PushMode::Delete, &[1], Values::F32(&numbers[..4])).is_err());
    assert!(merge(&router, PushMode::Assign, &[1], Values::Rows(&[0; 15])).is_err());
    assert!(merge(&router, PushMode::Assign, &[1], Values::Rows(&[0; 16])).is_ok());
}

#[test]
fn modes_are_checked_against_the_table() {
    let mut bytes = spec(TableKind::Hashed, 4, 4);
    bytes.schema = RowSchema::single(Dtype::U8, 4);
    bytes.optimizer = Optimizer::None;
    let router = Router::new(&codec::encode(&map(bytes.clone(), 1))).expect("good");
    for mode in [PushMode::Gradient, PushMode::Add] {
        let error = merge(&router, mode, &[1], Values::F32(&[0.0; 4]));
        assert!(
            matches!(error, Err(ClientError::Refused(Refusal::Mode { .. }))),
            "{error:?}"
        );
    }
    assert!(merge(&router, PushMode::Assign, &[1], Values::F32(&[0.0; 1])).is_err());
    assert!(merge(&router, PushMode::Assign, &[1], Values::Rows(&[1, 2, 3, 4])).is_ok());
    bytes.schema = RowSchema::single(Dtype::F32, 4);
    let router = Router::new(&codec::encode(&map(bytes, 1))).expect("good");
    let error = merge(&router, PushMode::Gradient, &[1], Values::F32(&[0.0; 4]));
    assert!(
        matches!(error, Err(ClientError::Refused(Refusal::Mode { .. }))),
        "{error:?}"
    );
}

/// B020, B050: f32 rows are rounded to nearest even on their way into a narrow table; any other
/// dtype than the table's is refused, naming both sides.
#[test]
fn values_are_of_the_tables_dtype_or_f32() {
    let with = |schema: RowSchema| {
        let mut spec = spec(TableKind::Hashed, 1, 4);
        spec.schema = schema;
        spec.optimizer = Optimizer::None;
        Router::new(&codec::encode(&map(spec, 1))).expect("good")
    };
    let assign = |router: &Router, values| merge(router, PushMode::Assign, &[1], values);
    let plane = |name: &str, dtype, width| Plane {
        name: name.into(),
        dtype,
        width,
    };
    let router = with(RowSchema {
        planes: vec![plane("a", Dtype::Bf16, 2), plane("b", Dtype::F8e4m3, 1)],
    });
    let values = [f32::from_bits(0x3E89_CCD5), 1.0, 464.0];
    let merged = assign(&router, Values::F32(&values)).expect("rounded");
    assert_eq!(merged.values, [0x8A, 0x3E, 0x80, 0x3F, 0x7E][..]);
    for (dtype, bytes) in [(Dtype::Bf16, 6), (Dtype::I8, 3)] {
        let error = assign(&router, Values::Of(dtype, &[0; 6][..bytes]));
        let text = error.expect_err("another dtype").to_string();
        let both = text.contains(dtype.word()) && text.contains("a:bf16:2 b:f8e4m3:1");
        assert!(both, "{text}");
    }
    let router = with(RowSchema::single(Dtype::I8, 2));
    assert!(assign(&router, Values::Of(Dtype::I8, &[1, 255])).is_ok());
    let text = assign(&router, Values::F32(&[1.0, 2.0]))
        .expect_err("f32")
        .to_string();
    assert!(
        text.contains("f32 numbers") && text.contains("i8 numbers"),
        "{text}"
    );
    let gradient = Values::Of(Dtype::F16, &[0; 8]);
    let error = merge(&hashed(4), PushMode::Gradient, &[1], gradient).expect_err("f16");
    assert!(error.to_string().contains("f16 numbers"), "{error}");
}

/// A step's number comes with gradients of tables that count by the caller, and with nothing
/// else.
#[test]
fn step_numbers_are_asked_for_or_refused() {
    let with = |word: &str, options: &[(String, String)]| {
        let mut spec = spec(TableKind::Hashed, 1, 4);
        spec.optimizer = Optimizer::from_options(word, options).expect("legal");
        Router::new(&codec::encode(&map(spec, 1))).expect("good")
    };
    let push = |router: &Router, mode, step| {
        super::merge(router, mode, &[1], Values::F32(&[1.0]), step).map_err(|e| e.to_string())
    };
    let caller = with("adam", &[("step".into(), "caller".into())]);
    assert!(push(&caller, PushMode::Gradient, 1).is_ok());
    assert!(push(&caller, PushMode::Assign, 0).is_ok());
    let error = push(&caller, PushMode::Gradient, 0).expect_err("no step");
    assert!(error.contains("--step"), "{error}");
    for (router, mode) in [
        (&caller, PushMode::Add),
        (&with("adam", &[]), PushMode::Gradient),
    ] {
        let error = push(router, mode, 7).expect_err("a step");
        assert!(error.contains("step 7"), "{error}");
    }
}

/// B045: nothing to push is no part, and so no step.
#[test]
fn an_empty_push_has_no_parts() {
    let router = hashed(4);
    for values in [Values::None, Values::F32(&[]), Values::Rows(&[])] {
        assert!(
            merge(&router, PushMode::Gradient, &[], values)
                .expect("good")
                .parts
                .is_empty()
        );
    }
}

/// B047: parts keep within a frame.
#[test]
fn large_parts_are_split() {
    let router = router(TableKind::Hashed, 1, 1, 1);
    let count = FRAME_KEYS_MAX as usize + 1;
    let (keys, values) = ((0..count as u64).collect::<Vec<_>>(), vec![1.0; count]);
    let merged = merge(&router, PushMode::Add, &keys, Values::F32(&values)).expect("good");
    let sizes: Vec<usize> = merged.parts.iter().map(|part| part.keys.len()).collect();
    assert_eq!(sizes, [FRAME_KEYS_MAX as usize, 1]);
}

proptest! {
    /// I-10: what is sent is a function of the push: per shard, ascending, summed in order.
    #[test]
    fn parts_hold_every_key_once_in_order(
        pushed in prop::collection::vec((0u64..60, -8i8..8), 0..400),
    ) {
        let router = hashed(1);
        let keys: Vec<u64> = pushed.iter().map(|(key, _)| *key).collect();
        let values: Vec<f32> = pushed.iter().map(|(_, v)| f32::from(*v)).collect();
        let merged = merge(&router, PushMode::Add, &keys, Values::F32(&values)).expect("finite");
        let mut model: BTreeMap<u64, f32> = BTreeMap::new();
        for (key, value) in keys.iter().zip(&values) {
            *model.entry(*key).or_default() += value;
        }
        let (sent, sums) = (keys_of(&merged), floats(&merged.values));
        let mut next = 0;
        for part in &merged.parts {
            prop_assert_eq!(part.keys.start, next);
            next = part.keys.end;
            let keys = &sent[part.keys.clone()];
            prop_assert!(keys.is_sorted_by(|a, b| a < b), "strictly ascending");
            prop_assert!(keys.iter().all(|&k| router.shard(k) == Ok(part.shard)));
        }
        prop_assert_eq!(next, sent.len());
        prop_assert_eq!(sent.into_iter().zip(sums).collect::<BTreeMap<_, _>>(), model);
    }
}
