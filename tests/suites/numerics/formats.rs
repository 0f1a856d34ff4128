//! Rows narrower than f32: learning in them, rounding, master copies, what does not fit.

use mneme_client::{PullOptions, PushOptions, Values};
use mneme_proto::frame::PushMode;
use mneme_proto::schema::{Dtype, Optimizer, Rounding, RowSchema, TableSpec};
use mneme_tests::Dev;
use mneme_tests::rows::{Rows, hashed, optimizer, sgd};

fn narrow(name: &str, dtype: Dtype, dim: u32, optimizer: Optimizer) -> TableSpec {
    TableSpec {
        schema: RowSchema::single(dtype, dim),
        ..hashed(name, dim, optimizer)
    }
}

/// B023: by nearest even a small update is lost for ever; a master copy keeps it; and the edges.
#[test]
fn small_updates_are_lost_without_a_master_copy() {
    let dev = Dev::start();
    let client = dev.client();
    let nearest = Rows::create(&client, narrow("nearest", Dtype::Bf16, 1, sgd(1.0)));
    let master = Rows::create(
        &client,
        TableSpec {
            master: true,
            ..narrow("master", Dtype::Bf16, 1, sgd(1.0))
        },
    );
    for rows in [&nearest, &master] {
        rows.assign(&[1], &[1.0]);
        for _ in 0..100 {
            rows.gradient(&[1], &[1e-3]);
        }
    }
    assert_eq!(nearest.stored(&[1]), [0x80, 0x3F], "still exactly 1");
    let (row, state) = master.row_and_state(1);
    assert!((state[0] - 0.9).abs() < 1e-5, "{state:?}");
    assert!((row[0] - 0.9).abs() < 2e-3, "{row:?}");
    // An assign sets the master copy too.
    master.assign(&[1], &[2.0]);
    assert_eq!(master.row_and_state(1), (vec![2.0], vec![2.0]));
    for (from, update, to) in [
        (1.0, 2f32.powi(-9), 1.0),
        (1.0, 2f32.powi(-8), 0.996_093_75),
        (256.0, -1.0, 256.0),
        (258.0, -1.0, 260.0),
    ] {
        nearest.assign(&[2], &[from]);
        nearest.gradient(&[2], &[update]);
        assert_eq!(nearest.lane(2), to, "{from} - {update}");
    }
}

/// B024: stochastic rounding is right on average, keeps what is representable, rounds lanes apart.
#[test]
fn stochastic_rounding_is_right_on_average() {
    const ROWS: u64 = 8192;
    let dev = Dev::start();
    let rows = Rows::create(
        &dev.client(),
        TableSpec {
            rounding: Rounding::Stochastic,
            ..narrow("t", Dtype::Bf16, 8, sgd(1.0))
        },
    );
    let keys: Vec<u64> = (0..ROWS).collect();
    let lanes = keys.len() * 8;
    rows.assign(&keys, &vec![1.0; lanes]);
    rows.gradient(&keys, &vec![1e-3; lanes]);
    let after = rows.pull(&keys);
    let mean = after.iter().map(|v| f64::from(*v)).sum::<f64>() / lanes as f64;
    assert!((mean - 0.999).abs() < 2.7e-5, "{mean}");
    assert!(after.iter().all(|v| [1.0, 0.996_093_75].contains(v)));
    let mixed = after
        .chunks_exact(8)
        .filter(|row| row.iter().any(|v| *v != row[0]));
    assert!(mixed.count() > 7000, "lanes of a row are rounded alike");
    // What is representable stays: a zero gradient changes nothing.
    rows.gradient(&keys, &vec![0.0; lanes]);
    assert_eq!(rows.pull(&keys), after);
    rows.assign(&[1], &[-0.0; 8]);
    rows.push(PushMode::Add, &[1], &[-0.0; 8]).expect("a push");
    assert_eq!(rows.stored(&[1]), [0x00, 0x80].repeat(8));
}

/// A result over the dtype's largest value counts as not finite, whatever it is in f32.
#[test]
fn results_that_do_not_fit_are_refused() {
    let dev = Dev::start();
    let client = dev.client();
    for (dtype, largest) in [
        (Dtype::F16, 65504.0),
        (Dtype::Bf16, 3.389_531_4e38),
        (Dtype::F8e4m3, 448.0),
        (Dtype::F8e5m2, 57344.0),
    ] {
        let rows = Rows::create(&client, narrow(dtype.word(), dtype, 1, sgd(1.0)));
        rows.assign(&[7], &[largest]);
        for mode in [PushMode::Gradient, PushMode::Add] {
            let sign = if mode == PushMode::Add { 1.0 } else { -1.0 };
            let error = rows.push(mode, &[7], &[sign * largest * 0.1]);
            let error = error.expect_err("an overflow").to_string();
            assert!(
                error.contains("not finite") && error.contains("key 7"),
                "{error}"
            );
            assert_eq!(rows.lane(7), largest, "{dtype}");
        }
        // A value that is not finite is stored where it is assigned.
        rows.assign(&[8], &[f32::NAN]);
        assert!(rows.lane(8).is_nan());
    }
}

/// B050: another dtype, dim or size than the table's is refused, naming both sides; nothing of it
/// is applied.
#[test]
fn values_of_another_dtype_name_both_sides() {
    let dev = Dev::start();
    let rows = Rows::create(&dev.client(), narrow("t", Dtype::F16, 2, Optimizer::None));
    rows.assign(&[1, 2], &[1.0; 4]);
    let options = PushOptions::default();
    let push = |values: Values<'_>| {
        let pushed = rows.table.push(PushMode::Assign, &[1, 2], values, &options);
        pushed.expect_err("refused").to_string()
    };
    for (values, found, wanted) in [
        (Values::Of(Dtype::Bf16, &[0; 8]), "bf16", "f16"),
        (Values::Of(Dtype::U8, &[0; 4]), "u8", "f16"),
        (Values::F32(&[0.0; 3]), "3 numbers", "2 x 2"),
        (Values::Rows(&[0; 16]), "16 B", "2 x 4 B"),
    ] {
        let error = push(values);
        assert!(error.contains(found) && error.contains(wanted), "{error}");
    }
    assert_eq!(rows.pull(&[1, 2]), [1.0; 4]);
    let bits = [0x00, 0x40, 0x01, 0xFE, 0x01, 0x00, 0x00, 0x80];
    let pushed = rows.table.push(
        PushMode::Assign,
        &[1, 2],
        Values::Of(Dtype::F16, &bits),
        &options,
    );
    pushed.expect("the table's dtype");
    assert_eq!(rows.stored(&[1, 2]), bits);
    let mut short = [0.0; 3];
    let pulled = rows
        .table
        .pull_f32(&[1, 2], &mut short, &PullOptions::default());
    assert!(
        pulled
            .expect_err("refused")
            .to_string()
            .contains("3 numbers")
    );
}

/// i8 and u8 hold whole numbers: assigned, deleted and served as f32, never reckoned with.
#[test]
fn bytes_take_no_arithmetic() {
    let dev = Dev::start();
    let rows = Rows::create(&dev.client(), narrow("t", Dtype::I8, 3, Optimizer::None));
    let options = PushOptions::default();
    let bytes = Values::Rows(&[0x80, 0x00, 0x7F]);
    let pushed = rows.table.push(PushMode::Assign, &[1], bytes, &options);
    pushed.expect("bytes");
    assert_eq!(rows.pull(&[1]), [-128.0, 0.0, 127.0]);
    for mode in [PushMode::Add, PushMode::Gradient, PushMode::Assign] {
        let error = rows.push(mode, &[1], &[1.0; 3]).expect_err("f32");
        assert!(error.to_string().contains("i8"), "{error}");
    }
    let refused = narrow("sgd", Dtype::I8, 3, optimizer("adam", ""));
    let error = dev
        .client()
        .create_table(refused)
        .expect_err("no optimizer");
    assert!(error.to_string().contains("values:i8:3"), "{error}");
}

/// Optimizer state is f32 whatever the row's dtype: the rows of a narrow table are those of an
/// f32 one, rounded step by step.
#[test]
fn every_optimizer_keeps_its_state_in_f32() {
    let dev = Dev::start();
    let client = dev.client();
    for word in ["sgd", "adagrad", "rowwise_adagrad", "adam", "adamw", "ftrl"] {
        let of = |dtype: Dtype| narrow(&format!("{word}-{dtype}"), dtype, 2, optimizer(word, ""));
        let wide = Rows::create(&client, of(Dtype::F32));
        let half = Rows::create(&client, of(Dtype::F16));
        let wide_state = |g: f32| {
            wide.gradient(&[1], &[g; 2]);
            wide.row_and_state(1)
        };
        // The first step starts from the same row: states agree to the bit.
        let (row, state) = wide_state(0.3);
        half.gradient(&[1], &[0.3; 2]);
        let (half_row, half_state) = half.row_and_state(1);
        assert_eq!(state, half_state, "{word}");
        assert!(
            (row[0] - half_row[0]).abs() <= row[0].abs() * 5e-4,
            "{word}"
        );
    }
}
