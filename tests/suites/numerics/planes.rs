//! Rows of several planes: concatenated in schema order wherever rows go.

use mneme_client::{PullOptions, PushOptions};
use mneme_proto::frame::PushMode;
use mneme_proto::schema::{Dtype, Initializer, Optimizer, Plane, RowSchema, TableKind, TableSpec};
use mneme_tests::Dev;
use mneme_tests::rows::{Rows, hashed, optimizer};

fn planes(planes: &[(&str, Dtype, u32)]) -> RowSchema {
    let plane = |&(name, dtype, width): &(&str, Dtype, u32)| Plane {
        name: name.into(),
        dtype,
        width,
    };
    RowSchema {
        planes: planes.iter().map(plane).collect(),
    }
}

/// The Engram row of DESIGN 5 as two planes: 256 codes and 8 scales, 264 B, bit for bit.
#[test]
fn an_engram_row_of_two_planes_is_264_bytes() {
    let dev = Dev::start();
    let spec = TableSpec {
        kind: TableKind::Dense { rows: 100 },
        schema: planes(&[("codes", Dtype::F8e4m3, 256), ("scales", Dtype::U8, 8)]),
        ..hashed("t", 1, Optimizer::None)
    };
    let rows = Rows::create(&dev.client(), spec);
    let row = |id: u64| (0..264).map(move |at| (id * 31 + at) as u8);
    let ids = [99, 0, 7];
    let bytes: Vec<u8> = ids.iter().flat_map(|id| row(*id)).collect();
    let pushed = rows
        .table
        .push(PushMode::Assign, &ids, &bytes, &PushOptions::default());
    pushed.expect("a push");
    assert_eq!(rows.stored(&ids), bytes);
    let mut scan = rows.table.scan(None).expect("a scan");
    let mut seen = 0;
    while let Some(piece) = scan.next(1000).expect("rows") {
        for (key, bytes) in piece
            .keys
            .iter()
            .zip(piece.rows.chunks_exact(piece.stride_bytes))
        {
            if ids.contains(key) {
                assert!(row(*key).eq(bytes[..264].iter().copied()));
            }
            seen += 1;
        }
    }
    assert_eq!(seen, 100);
}

/// Gradients and state run over all planes in schema order; each plane is rounded by itself.
#[test]
fn gradients_run_over_all_planes() {
    let dev = Dev::start();
    let spec = TableSpec {
        schema: planes(&[
            ("a", Dtype::F32, 2),
            ("b", Dtype::Bf16, 3),
            ("c", Dtype::F8e5m2, 1),
        ]),
        init: Initializer::Constant(1.0),
        ..hashed("t", 1, optimizer("adagrad", "lr=1"))
    };
    let rows = Rows::create(&dev.client(), spec);
    let gradients = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    rows.gradient(&[5], &gradients);
    let (row, state) = rows.row_and_state(5);
    assert_eq!(row, [0.0; 6]);
    assert_eq!(state, gradients.map(|g| g * g));
    rows.assign(&[5], &[0.1; 6]);
    let bf16 = 0.100_097_656;
    assert_eq!(rows.pull(&[5]), [0.1, 0.1, bf16, bf16, bf16, 0.093_75]);
    let error = rows
        .push(PushMode::Gradient, &[5], &[1.0; 5])
        .expect_err("a wrong dim");
    assert!(error.to_string().contains("1 x 6 numbers"), "{error}");
    // An absent key answers the default row of the same planes.
    let mut bytes = [0xFF; 15];
    let options = PullOptions::default();
    rows.table.pull(&[6], &mut bytes, &options).expect("a pull");
    assert_eq!(bytes, [0; 15]);
}
