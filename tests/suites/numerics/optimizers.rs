//! What one push does to a row: sums of duplicates, optimizers, refusals of bad numbers.

use mneme_client::ClientError;
use mneme_proto::frame::PushMode;
use mneme_proto::schema::Optimizer;
use mneme_tests::rows::{Rows, adagrad, bits, hashed, optimizer, sgd, within_ulps};
use mneme_tests::{Dev, http};

/// B001: duplicates of a key are summed in request order, then one step is made.
#[test]
fn duplicates_are_one_sgd_step() {
    let dev = Dev::start();
    let client = dev.client();
    let rows = Rows::create(&client, hashed("t", 1, sgd(0.5)));
    for _ in 0..1000 {
        rows.assign(&[42], &[1.0]);
        rows.gradient(&[42, 42, 42], &[0.25, 0.5, 0.125]);
        assert_eq!(rows.lane(42).to_bits(), 0.5625_f32.to_bits());
    }
    let large = Rows::create(&client, hashed("large", 1, sgd(1.0)));
    large.assign(&[7], &[1.0]);
    large.gradient(&[7; 4096], &[1.0 / 4096.0; 4096]);
    assert_eq!(large.lane(7).to_bits(), 0);
}

/// B001, I-10: the order of the sum is the request's, whatever else is in the batch.
#[test]
fn sums_follow_the_request_order() {
    let dev = Dev::start();
    let rows = Rows::create(&dev.client(), hashed("t", 1, sgd(1.0)));
    // (1e8 + 1) - 1e8 is 0 in f32; (1e8 - 1e8) + 1 is 1.
    let other = |n: u64| 1000 + n;
    rows.gradient(&[5, other(1), 5, other(2), 5], &[1e8, 1.0, 1.0, 1.0, -1e8]);
    assert_eq!(rows.lane(5), 0.0);
    rows.gradient(&[6, other(3), 6, 6], &[1e8, 1.0, -1e8, 1.0]);
    assert_eq!(rows.lane(6), -1.0);
}

/// B002: adagrad sees the sum, not its parts.
#[test]
fn duplicates_are_one_adagrad_step() {
    let dev = Dev::start();
    let rows = Rows::create(&dev.client(), hashed("t", 1, adagrad(0.1, 1e-10, 7.0)));
    rows.assign(&[5], &[1.0]);
    rows.gradient(&[5, 5], &[1.0, 2.0]);
    let (row, state) = rows.row_and_state(5);
    assert_eq!(state, [16.0]);
    assert!(within_ulps(row[0], 0.925, 4), "{row:?}");
}

/// B004: two pushes of one key are two steps, in either order.
#[test]
fn two_clients_are_two_steps() {
    let dev = Dev::start();
    let first = Rows::create(&dev.client(), hashed("t", 1, adagrad(0.1, 1e-10, 7.0)));
    let second = Rows::open(&dev.client(), "t");
    for key in 0..20 {
        first.assign(&[key], &[1.0]);
        std::thread::scope(|scope| {
            scope.spawn(|| first.gradient(&[key], &[1.0]));
            scope.spawn(|| second.gradient(&[key], &[2.0]));
        });
        let (row, state) = first.row_and_state(key);
        assert_eq!(state, [12.0]);
        let either = [0.906_909_63, 0.910_830_2].map(|w| within_ulps(row[0], w, 4));
        assert!(either.contains(&true), "{row:?}");
    }
}

/// B004: no push of two clients is lost.
#[test]
fn two_clients_lose_nothing() {
    let dev = Dev::start();
    let first = Rows::create(&dev.client(), hashed("t", 1, sgd(1.0)));
    let second = Rows::open(&dev.client(), "t");
    std::thread::scope(|scope| {
        for rows in [&first, &second] {
            scope.spawn(move || {
                for _ in 0..10_000 {
                    rows.gradient(&[1], &[-1.0]);
                }
            });
        }
    });
    assert_eq!(first.lane(1).to_bits(), 20_000_f32.to_bits());
}

/// B005: `sqrt(acc) + eps`, as torch has it; eps and acc0 are the schema's.
#[test]
fn adagrad_adds_eps_to_the_root() {
    let dev = Dev::start();
    let client = dev.client();
    let cases = [
        // (lr, eps, acc0, gradient, weight after one step from 1)
        (0.01, 1e-10, 0.0, 1e-8, 0.990_099),
        (0.01, 1e-8, 0.0, 1e-8, 0.995),
        (0.01, 1e-10, 0.0, 1.0, 0.99),
        (0.01, 1e-7, 0.1, 1.0, 0.990_465_4),
    ];
    for (i, (lr, eps, acc0, g, expected)) in cases.into_iter().enumerate() {
        let rows = Rows::create(&client, hashed(&format!("t{i}"), 1, adagrad(lr, eps, acc0)));
        rows.assign(&[1], &[1.0]);
        rows.gradient(&[1], &[g]);
        assert!(
            within_ulps(rows.lane(1), expected, 4),
            "case {i}: {}",
            rows.lane(1)
        );
    }
}

/// B010: rows that are not in a push keep their bits, row and state.
#[test]
fn untouched_rows_do_not_move() {
    let dev = Dev::start();
    let client = dev.client();
    let momentum = Optimizer::Sgd {
        lr: 0.01,
        momentum: 0.9,
        weight_decay: 0.1,
    };
    for (name, optimizer) in [
        ("momentum", momentum),
        ("adagrad", adagrad(0.01, 1e-10, 0.0)),
    ] {
        let rows = Rows::create(&client, hashed(name, 3, optimizer));
        rows.assign(&[1, 2], &[1.0; 6]);
        rows.gradient(&[1], &[1.0, -1.0, 0.5]);
        let before = rows.row_and_state(1);
        for _ in 0..9 {
            rows.gradient(&[2], &[1.0; 3]);
        }
        let after = rows.row_and_state(1);
        assert_eq!(bits(&before.0), bits(&after.0), "{name}");
        assert_eq!(bits(&before.1), bits(&after.1), "{name}");
        // An explicit zero is a push: with momentum and decay it moves the row.
        if name == "momentum" {
            rows.gradient(&[1], &[0.0; 3]);
            assert_ne!(bits(&rows.pull(&[1])), bits(&after.0));
        }
    }
}

/// B014: bad hyper-parameters are refused at creation, by name; lr 0 is legal.
#[test]
fn bad_hyper_parameters_are_refused_by_name() {
    let dev = Dev::start();
    let client = dev.client();
    let momentum = |momentum| Optimizer::Sgd {
        lr: 0.1,
        momentum,
        weight_decay: 0.0,
    };
    let decay = |weight_decay| Optimizer::Sgd {
        lr: 0.1,
        momentum: 0.0,
        weight_decay,
    };
    let bad = [
        ("lr", sgd(f64::NAN)),
        ("lr", sgd(f64::INFINITY)),
        ("lr", sgd(-0.1)),
        ("lr", adagrad(f64::NAN, 1e-10, 0.0)),
        ("momentum", momentum(1.0)),
        ("momentum", momentum(-0.1)),
        ("weight_decay", decay(-1.0)),
        ("weight_decay", decay(f64::NAN)),
        ("eps", adagrad(0.1, -1e-10, 0.0)),
        ("acc0", adagrad(0.1, 1e-10, -1.0)),
    ];
    for (field, optimizer) in bad {
        let error = client
            .create_table(hashed("t", 1, optimizer))
            .expect_err(field)
            .to_string();
        assert!(error.contains(field), "{error}");
    }
    let rows = Rows::create(&client, hashed("t", 1, sgd(0.0)));
    rows.assign(&[1], &[3.0]);
    rows.gradient(&[1], &[100.0]);
    assert_eq!(rows.lane(1), 3.0);
}

/// B017: a gradient, or a sum of duplicates, that is not finite refuses the whole push before
/// anything is sent.
#[test]
fn gradients_that_are_not_finite_change_nothing() {
    let dev = Dev::start();
    let rows = Rows::create(&dev.client(), hashed("t", 1, adagrad(0.1, 1e-10, 0.0)));
    rows.assign(&[1, 2, 3], &[1.0, 2.0, 3.0]);
    rows.gradient(&[1, 2, 3], &[1.0; 3]);
    let before = [1, 2, 3].map(|key| rows.row_and_state(key));
    let pushes: [(&[u64], &[f32]); 4] = [
        (&[1, 2, 3], &[0.5, f32::NAN, 0.5]),
        (&[1, 2, 3], &[0.5, f32::INFINITY, 0.5]),
        (&[1, 2, 3], &[0.5, f32::NEG_INFINITY, 0.5]),
        (&[1, 2, 3, 2], &[0.5, 3e38, 0.5, 3e38]),
    ];
    for (keys, values) in pushes {
        let error = rows
            .push(PushMode::Gradient, keys, values)
            .expect_err("not finite");
        let ClientError::NonFinite { key, index, .. } = error else {
            panic!("{error}");
        };
        assert_eq!(key, 2);
        assert!(index == 1 || index == 3, "{index}");
    }
    assert_eq!([1, 2, 3].map(|key| rows.row_and_state(key)), before);
}

/// B017: a resulting row or state that is not finite refuses that shard's part, and is counted.
#[test]
fn results_that_are_not_finite_change_nothing() {
    let dev = Dev::start();
    let client = dev.client();
    let rows = Rows::create(&client, hashed("t", 1, sgd(10.0)));
    rows.assign(&[1], &[1.0]);
    rows.push(PushMode::Gradient, &[1], &[-3e38])
        .expect_err("the row would be infinite");
    assert_eq!(rows.lane(1), 1.0);
    let squares = Rows::create(&client, hashed("squares", 1, adagrad(0.1, 1e-10, 0.0)));
    squares.assign(&[1], &[1.0]);
    squares
        .push(PushMode::Gradient, &[1], &[1e20])
        .expect_err("acc would be infinite");
    assert_eq!(squares.row_and_state(1), (vec![1.0], vec![0.0]));
    let ports = dev.http_ports();
    let metrics = ports.iter().filter_map(|&port| http::get(port, "/metrics"));
    let counted: f64 = metrics
        .map(|m| http::total(&m.body, "mneme_push_rejected_nonfinite_total"))
        .sum();
    assert_eq!(counted, 2.0);
}

/// B019: tables of mixed widths in one server do not step on each other, whatever state they keep.
#[test]
fn tables_of_mixed_widths_agree_lane_by_lane() {
    let dev = Dev::start();
    let client = dev.client();
    for word in ["adagrad", "adam", "ftrl"] {
        let made = optimizer(word, "lr=.05");
        let tables = [1, 8, 12, 20, 128].map(|dim: u32| {
            let spec = hashed(&format!("{word}{dim}"), dim, made);
            (dim as usize, Rows::create(&client, spec))
        });
        for _ in 0..100 {
            for (dim, rows) in &tables {
                rows.gradient(&[7], &vec![1.0; *dim]);
            }
        }
        let one = tables[0].1.row_and_state(7);
        for (dim, rows) in &tables {
            let (row, state) = rows.row_and_state(7);
            assert_eq!(bits(&row), vec![one.0[0].to_bits(); *dim]);
            let mut state = state.as_slice();
            for (part, one) in made.state_parts(*dim as u32).iter().zip(&one.1) {
                let (own, rest) = state.split_at(part.elements as usize);
                state = rest;
                assert_eq!(
                    bits(own),
                    vec![one.to_bits(); own.len()],
                    "{word} {}",
                    part.name
                );
            }
        }
    }
}

/// A gradient on a table without an optimizer is refused; assign, add and delete are not.
#[test]
fn without_an_optimizer_gradients_are_refused() {
    let dev = Dev::start();
    let rows = Rows::create(&dev.client(), hashed("t", 2, Optimizer::None));
    let error = rows
        .push(PushMode::Gradient, &[1], &[1.0, 1.0])
        .expect_err("no optimizer");
    assert!(error.to_string().contains("gradient"), "{error}");
    rows.assign(&[1], &[1.0, 2.0]);
    rows.push(PushMode::Add, &[1, 1], &[0.5, 0.5, 0.25, 0.25])
        .expect("add");
    assert_eq!(rows.pull(&[1]), [1.75, 2.75]);
}
