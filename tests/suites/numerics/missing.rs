//! Keys without a row: what a pull answers, and what it never does.

use mneme_client::{ClientError, PullOptions};
use mneme_proto::frame::{Missing, PushMode, Status};
use mneme_proto::refusal::Refusal;
use mneme_proto::schema::{Initializer, Optimizer, TableSpec};
use mneme_tests::Dev;
use mneme_tests::rows::{Rows, bits, dense, hashed, sgd};

/// B040: the default row and a status, or an error that names the keys.
#[test]
fn absent_keys_answer_the_default_or_an_error() {
    let dev = Dev::start();
    let spec = TableSpec {
        default_value: 0.5,
        ..hashed("t", 2, Optimizer::None)
    };
    let rows = Rows::create(&dev.client(), spec);
    rows.assign(&[1], &[1.0, 1.0]);
    let (values, statuses) = rows.pull_with(&[1, 999], Missing::Default).expect("a pull");
    assert_eq!(values, [1.0, 1.0, 0.5, 0.5]);
    assert_eq!(statuses, [Status::Found, Status::Default]);
    let error = rows
        .pull_with(&[1, 999, u64::MAX], Missing::Error)
        .expect_err("absent");
    let Some(Refusal::MissingKeys { keys, total }) = error.refusal() else {
        panic!("{error}");
    };
    assert_eq!((keys.as_slice(), *total), (&[999, u64::MAX][..], 2));
    assert_eq!(rows.count(), 1);
}

/// B041: what an absent key answers never changes, and asking stores nothing.
#[test]
fn absent_keys_answer_the_same_for_ever() {
    let mut dev = Dev::start();
    let init = Initializer::Uniform {
        low: -0.05,
        high: 0.05,
    };
    let spec = TableSpec {
        init,
        ..hashed("t", 8, sgd(0.1))
    };
    let (first, second);
    {
        let client = dev.client();
        let rows = Rows::create(&client, spec);
        let other = Rows::open(&dev.client(), "t");
        for _ in 0..10 {
            for reader in [&rows, &other] {
                let (values, statuses) =
                    reader.pull_with(&[12345], Missing::Default).expect("pull");
                assert_eq!(
                    (bits(&values), statuses),
                    (vec![0; 8], vec![Status::Default])
                );
            }
        }
        assert_eq!(rows.count(), 0);
        // A training pull makes the row; deleted and made again, it is the same.
        first = rows
            .pull_with(&[12345], Missing::Init)
            .expect("a training pull")
            .0;
        assert!(
            first.iter().all(|v| (-0.05..0.05).contains(v) && *v != 0.0),
            "{first:?}"
        );
        assert_eq!(rows.count(), 1);
        rows.push(PushMode::Delete, &[12345], &[])
            .expect("a delete");
        assert_eq!(
            rows.pull_with(&[12345], Missing::Default).expect("pull").1,
            [Status::Default]
        );
        second = rows
            .pull_with(&[12345], Missing::Init)
            .expect("a training pull")
            .0;
        assert_ne!(
            bits(&rows.pull_with(&[12346], Missing::Init).expect("a pull").0),
            bits(&first)
        );
    }
    assert_eq!(bits(&first), bits(&second));
    // The same after a restart: seed, table and key make the row, not the process.
    dev.stop();
    dev.restart();
    let client = dev.client();
    client.reset_table("t").expect("a reset");
    let third = Rows::open(&client, "t")
        .pull_with(&[12345], Missing::Init)
        .expect("a pull")
        .0;
    assert_eq!(bits(&first), bits(&third));
}

/// B042: a row of zeros that is there is found, not absent.
#[test]
fn zeros_that_are_there_are_found() {
    let dev = Dev::start();
    let rows = Rows::create(&dev.client(), hashed("t", 2, Optimizer::None));
    rows.assign(&[5], &[0.0, 0.0]);
    let (values, statuses) = rows.pull_with(&[5, 6], Missing::Default).expect("a pull");
    assert_eq!(bits(&values), [0; 4]);
    assert_eq!(statuses, [Status::Found, Status::Default]);
}

/// Dense rows are all found from creation; an id out of range names id and rows, and is never
/// row 0 nor a neighbour.
#[test]
fn dense_ids_out_of_range_are_an_error() {
    let dev = Dev::start();
    let init = Initializer::Constant(2.0);
    let rows = Rows::create(
        &dev.client(),
        TableSpec {
            init,
            ..dense("t", 100, 2, sgd(1.0))
        },
    );
    let (values, statuses) = rows.pull_with(&[0, 99], Missing::Error).expect("a pull");
    assert_eq!((values, statuses), (vec![2.0; 4], vec![Status::Found; 2]));
    for id in [100, 101, u64::MAX, 1 << 32] {
        let error = rows
            .pull_with(&[0, id], Missing::Default)
            .expect_err("out of range");
        let wanted = Refusal::RowOutOfRange { row: id, rows: 100 };
        assert_eq!(error.refusal(), Some(&wanted), "{error}");
        let error = rows
            .push(PushMode::Gradient, &[0, id], &[1.0; 4])
            .expect_err("out of range");
        assert!(matches!(error, ClientError::Refused(_)), "{error}");
    }
    assert_eq!(rows.pull(&[0]), [2.0, 2.0]);
}

/// B037: the padding key reads as zeros and takes no push; without one, key 0 is a key.
#[test]
fn the_padding_key_is_zeros_and_ignores_pushes() {
    let dev = Dev::start();
    let client = dev.client();
    let spec = TableSpec {
        padding_key: Some(0),
        ..hashed("padded", 1, sgd(1.0))
    };
    let rows = Rows::create(&client, spec);
    rows.assign(&[1], &[4.0]);
    let report = rows.gradient(&[0, 1], &[1.0, 1.0]);
    assert_eq!((report.rows, report.ignored), (1, 1));
    assert_eq!(rows.pull(&[0, 1]), [0.0, 3.0]);
    let plain = Rows::create(&client, hashed("plain", 1, sgd(1.0)));
    plain.gradient(&[0], &[1.0]);
    assert_eq!(plain.pull(&[0]), [-1.0]);
}

/// B045: no keys are no work and no step.
#[test]
fn empty_batches_are_fine() {
    let dev = Dev::start();
    let rows = Rows::create(&dev.client(), hashed("t", 4, sgd(1.0)));
    let (values, statuses) = rows
        .pull_with(&[], Missing::Error)
        .expect("nothing to pull");
    assert!(values.is_empty() && statuses.is_empty());
    let report = rows.gradient(&[], &[]);
    assert_eq!((report.rows, report.parts), (0, 0));
    assert_eq!(rows.count(), 0);
    rows.table
        .pull(&[], &mut [], &PullOptions::default())
        .expect("nothing to pull");
}
