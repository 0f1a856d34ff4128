//! Batches of any size, buffers of the wrong one, and bits that must not change.

use mneme_client::{ClientError, PullOptions, PushOptions};
use mneme_proto::frame::{Missing, PushMode};
use mneme_proto::schema::{Dtype, Optimizer, RowSchema, TableSpec};
use mneme_tests::files::{Tensor, write_safetensors};
use mneme_tests::rows::{Rows, bits, dense, hashed, sgd};
use mneme_tests::{Dev, rows};

/// B047: batches over every limit of a frame are split; order and statuses hold.
#[test]
fn batches_over_the_limit_are_split() {
    let dev = Dev::start();
    let client = dev.client();
    let rows = Rows::create(&client, hashed("t", 2, Optimizer::None));
    let value = |key: u64| [key as f32, -(key as f32)];
    let most = 1_048_577_u64;
    let keys: Vec<u64> = (0..most).rev().collect();
    let values: Vec<f32> = keys.iter().flat_map(|&k| value(k)).collect();
    let report = rows.assign(&keys, &values);
    assert_eq!(report.rows, most);
    for count in [1, 1_048_575, 1_048_576, 1_048_577] {
        let (pulled, _) = rows
            .pull_with(&keys[..count], Missing::Error)
            .expect("all are there");
        assert!(pulled == values[..count * 2], "{count} keys");
    }
    assert_eq!(rows.count(), most);
}

/// B047: wide rows fill frames by bytes long before they fill them by keys.
#[test]
fn wide_rows_are_split_by_bytes() {
    let dev = Dev::start_with(&["--nodes", "2", "--memory", "dram:2GiB"]);
    let rows = Rows::create(&dev.client(), dense("wide", 4096, 8192, sgd(1.0)));
    let keys: Vec<u64> = (0..2048).map(|i| i * 2).collect();
    let values: Vec<f32> = keys
        .iter()
        .flat_map(|&k| std::iter::repeat_n(k as f32, 8192))
        .collect();
    rows.assign(&keys, &values);
    assert!(rows.pull(&keys) == values, "64 MiB of rows");
    assert_eq!(rows.pull(&[1])[..3], [0.0; 3]);
}

/// B050: buffers and values of the wrong size are refused before anything is sent, naming both.
#[test]
fn shapes_that_do_not_fit_are_refused() {
    let dev = Dev::start();
    let rows = Rows::create(&dev.client(), hashed("t", 4, sgd(1.0)));
    rows.assign(&[1, 2], &[1.0; 8]);
    for wrong in [0, 3, 4, 7, 9, 16] {
        let values = vec![1.0; wrong];
        let error = rows
            .push(PushMode::Gradient, &[1, 2], &values)
            .expect_err("a wrong shape");
        assert!(matches!(error, ClientError::Refused(_)), "{error}");
        assert!(error.to_string().contains("wants"), "{error}");
        let mut out = vec![0.0; wrong];
        rows.table
            .pull_f32(&[1, 2], &mut out, &PullOptions::default())
            .expect_err("a wrong buffer");
    }
    let bytes = vec![0_u8; 31];
    rows.table
        .push(PushMode::Assign, &[1, 2], &bytes, &PushOptions::default())
        .expect_err("a wrong shape");
    assert_eq!(rows.pull(&[1, 2]), [1.0; 8]);
}

/// B050: byte tables take bytes, and nothing that needs arithmetic.
#[test]
fn byte_tables_take_assign_and_delete_only() {
    let dev = Dev::start();
    let client = dev.client();
    let schema = RowSchema::single(Dtype::U8, 3);
    let spec = TableSpec {
        schema,
        ..hashed("bytes", 3, Optimizer::None)
    };
    let table = client.create_table(spec.clone()).expect("a table");
    let options = PushOptions::default();
    table
        .push(PushMode::Assign, &[1], &[7_u8, 8, 255][..], &options)
        .expect("bytes");
    for mode in [PushMode::Add, PushMode::Gradient] {
        table
            .push(mode, &[1], &[1.0_f32; 3], &options)
            .expect_err("no arithmetic on bytes");
    }
    let mut out = [0; 3];
    table
        .pull(&[1], &mut out, &PullOptions::default())
        .expect("a pull");
    assert_eq!(out, [7, 8, 255]);
    let spec = TableSpec {
        name: "sgd".into(),
        optimizer: rows::sgd(1.0),
        ..spec
    };
    let error = client
        .create_table(spec)
        .expect_err("an optimizer on bytes");
    assert!(error.to_string().contains("optimizer"), "{error}");
}

/// B022: sealed rows are served bit for bit: subnormals, signed zero, NaN payloads.
#[test]
fn sealed_bits_are_served_as_they_are() {
    let odd = [
        0x0000_0001,
        0x8000_0000,
        0x7FC0_0001,
        0x7F80_0001,
        0xFFC0_0000,
        0x007F_FFFF,
        0x8080_0000,
        0x7F80_0000,
    ];
    let dev = Dev::start();
    let path = dev.data().join("odd.safetensors");
    let tensor = Tensor::f32("odd", &[2, 4], odd.map(f32::from_bits));
    write_safetensors(&path, &[tensor]);
    let file = path.to_str().expect("UTF-8");
    dev.mneme()
        .ok(&["import", "odd", file, "--create", "--seal"]);
    let rows = Rows::open(&dev.client(), "odd");
    assert_eq!(bits(&rows.pull(&[0, 1])), odd);
}

/// A non-finite assign is stored as it is.
#[test]
fn assigned_bits_are_stored_as_they_are() {
    let dev = Dev::start();
    let rows = Rows::create(&dev.client(), hashed("t", 4, sgd(1.0)));
    let odd = [0x7FC0_0001, 0xFF80_0000, 0x0000_0001, 0x8000_0000];
    rows.assign(&[1], &odd.map(f32::from_bits));
    assert_eq!(bits(&rows.pull(&[1])), odd);
}
