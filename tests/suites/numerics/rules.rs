//! Rowwise adagrad, adam, adamw and ftrl: the values of `cases.md`, through a server.

use mneme_client::PushOptions;
use mneme_proto::frame::{Missing, PushMode};
use mneme_proto::schema::{Initializer, TableKind, TableSpec};
use mneme_tests::Dev;
use mneme_tests::rows::{Rows, bits, hashed, optimizer, within_ulps};

fn close(found: &[f32], wanted: &[f64]) {
    assert_eq!(found.len(), wanted.len());
    for (found, wanted) in found.iter().zip(wanted) {
        let error = (f64::from(*found) - wanted).abs();
        assert!(
            error <= 2.4e-7 * wanted.abs().max(1.0),
            "{found} for {wanted}"
        );
    }
}

/// B007: one accumulator per row; L2 and decoupled weight decay named apart.
#[test]
fn rowwise_adagrad_with_weight_decay() {
    let dev = Dev::start();
    let client = dev.client();
    for (name, options, acc, wanted) in [
        (
            "none",
            "lr=.1",
            9.0,
            [0.966_666_67, 1.966_666_67, 2.833_333_33, 3.9],
        ),
        (
            "l2",
            "lr=.1 weight_decay=.1",
            10.575,
            [0.966_173_86, 1.963_098_75, 2.837_019_49, 3.895_446_46],
        ),
        (
            "decoupled",
            "lr=.1 weight_decay=.1 decay=decoupled",
            9.0,
            [0.956_666_67, 1.946_666_67, 2.803_333_33, 3.86],
        ),
    ] {
        let spec = hashed(name, 4, optimizer("rowwise_adagrad", options));
        let rows = Rows::create(&client, spec);
        rows.assign(&[1], &[1.0, 2.0, 3.0, 4.0]);
        rows.gradient(&[1], &[1.0, 1.0, 5.0, 3.0]);
        let (row, state) = rows.row_and_state(1);
        close(&row, &wanted);
        close(&state, &[acc]);
    }
}

/// B009, B016: where eps stands; L2 and decoupled decay.
#[test]
fn adam_forms() {
    let dev = Dev::start();
    let client = dev.client();
    for (word, options, from, gradient, wanted) in [
        ("adam", "", 1.0, 1e-8, 0.995),
        ("adam", "eps_form=torch_sparse", 1.0, 1e-8, 0.999_693_47),
        ("adam", "lr=.1 weight_decay=.01", 2.0, 0.5, 1.9),
        ("adamw", "lr=.1 weight_decay=.01", 2.0, 0.5, 1.898),
        ("adam", "lr=.1", 2.0, 0.5, 1.9),
    ] {
        let name = format!("{word}{}", options.replace(['=', ' '], "-"));
        let rows = Rows::create(&client, hashed(&name, 1, optimizer(word, options)));
        rows.assign(&[1, 2], &[from, 2.0]);
        rows.gradient(&[1], &[gradient]);
        close(&rows.pull(&[1, 2]), &[wanted, 2.0]);
    }
}

/// B010, B011: rows count their own steps; rows that are not in a push do not move; an explicit
/// zero moves. Assign and add keep state and step, delete drops them.
#[test]
fn adam_steps_are_the_rows_own() {
    let dev = Dev::start();
    let rows = Rows::create(&dev.client(), hashed("t", 1, optimizer("adam", "")));
    rows.assign(&[1, 2, 3], &[1.0; 3]);
    rows.gradient(&[1], &[1.0]);
    let before = rows.row_and_state(1);
    close(&before.0, &[0.99]);
    close(&before.1, &[0.1, 0.001, 1.0]);
    for _ in 0..9 {
        rows.gradient(&[2], &[1.0]);
    }
    let after = rows.row_and_state(1);
    assert_eq!(
        (bits(&after.0), bits(&after.1)),
        (bits(&before.0), bits(&before.1))
    );
    assert_eq!(rows.row_and_state(2).1[2], 9.0);
    rows.gradient(&[1], &[0.0]);
    close(&rows.pull(&[1]), &[0.983_299_42]);
    rows.gradient(&[3], &[1.0]);
    rows.gradient(&[3], &[1.0]);
    close(&rows.pull(&[3]), &[0.98]);
    rows.assign(&[3], &[5.0]);
    rows.push(PushMode::Add, &[3], &[1.0]).expect("a push");
    let (row, state) = rows.row_and_state(3);
    assert_eq!((row[0], state[2]), (6.0, 2.0));
    let options = PushOptions::default();
    let deleted = rows
        .table
        .push(PushMode::Delete, &[3], mneme_client::Values::None, &options);
    assert_eq!(deleted.expect("a push").rows, 1);
    rows.assign(&[3], &[1.0]);
    assert_eq!(rows.row_and_state(3).1, [0.0; 3]);
}

/// The caller's step: kept nowhere, wanted with every gradient and with nothing else.
#[test]
fn adam_steps_by_the_caller() {
    let dev = Dev::start();
    let client = dev.client();
    let rows = Rows::create(&client, hashed("t", 1, optimizer("adam", "step=caller")));
    rows.assign(&[1], &[1.0]);
    let error = rows
        .push(PushMode::Gradient, &[1], &[1.0])
        .expect_err("no step");
    assert!(error.to_string().contains("step"), "{error}");
    assert_eq!(rows.lane(1), 1.0);
    rows.gradient_at(1, &[1], &[1.0]);
    let (row, state) = rows.row_and_state(1);
    close(&row, &[0.99]);
    close(&state, &[0.1, 0.001]);
    rows.gradient_at(2, &[1], &[0.0]);
    close(&rows.pull(&[1]), &[0.983_299_42]);
    let own = Rows::create(&client, hashed("own", 1, optimizer("adam", "")));
    let options = PushOptions {
        step: 3,
        ..PushOptions::default()
    };
    let pushed = own.table.push(PushMode::Gradient, &[1], &[1.0], &options);
    assert!(pushed.expect_err("a step").to_string().contains("step 3"));
}

/// B012: the paper's form; TF's numbers by its parameters; duplicates are one step.
#[test]
fn ftrl_forms() {
    let dev = Dev::start();
    let client = dev.client();
    let rows = Rows::create(
        &client,
        hashed("paper", 1, optimizer("ftrl", "lr=.5 l1=.1 l2=1")),
    );
    for (gradient, wanted) in [
        (0.5, [0.25, 0.5, -0.1]),
        (-1.0, [1.25, -0.376_393_20, 0.052_786_40]),
        (0.25, [1.3125, -0.129_308_06, 0.005_538_93]),
    ] {
        rows.gradient(&[1], &[gradient]);
        let (row, state) = rows.row_and_state(1);
        close(&[state[0], state[1], row[0]], &wanted);
    }
    let options = "lr=.5 l1=.1 l2=2 beta=0 n0=.1";
    let rows = Rows::create(&client, hashed("tf", 1, optimizer("ftrl", options)));
    for (gradient, wanted) in [
        (0.5, -0.125_659_08),
        (-1.0, 0.059_363_78),
        (0.25, 0.002_246_68),
    ] {
        rows.gradient(&[1], &[gradient]);
        close(&rows.pull(&[1]), &[wanted]);
    }
    let options = "lr=.5 l1=.1 l2=1 n0=1";
    let rows = Rows::create(&client, hashed("twice", 1, optimizer("ftrl", options)));
    rows.gradient(&[1, 1], &[0.5, 0.5]);
    let (row, state) = rows.row_and_state(1);
    close(&[row[0], state[0], state[1]], &[-0.154_415_59, 2.0, 1.0]);
}

/// However a row came by its value, the next zero gradient keeps it: assigned, added to, made by
/// the initializer, dense or hashed.
#[test]
fn ftrl_keeps_rows_that_were_set() {
    let dev = Dev::start();
    let client = dev.client();
    let ftrl = optimizer("ftrl", "lr=.5 l2=1");
    let init = Initializer::Uniform {
        low: -1.0,
        high: 1.0,
    };
    let spec = |name: &str, kind| TableSpec {
        kind,
        init,
        ..hashed(name, 3, ftrl)
    };
    for (name, kind) in [
        ("h", TableKind::Hashed),
        ("d", TableKind::Dense { rows: 8 }),
    ] {
        let rows = Rows::create(&client, spec(name, kind));
        let made = rows.pull_with(&[1], Missing::Init).expect("a row").0;
        assert!(made.iter().all(|v| *v != 0.0));
        rows.gradient(&[1], &[0.0; 3]);
        // z is an f32: not every weight has one whose weight it is to the bit.
        for (kept, made) in rows.pull(&[1]).into_iter().zip(made) {
            assert!(within_ulps(kept, made, 1), "{name}: {made} became {kept}");
        }
        rows.assign(&[2], &[0.75, -3.25, 0.0]);
        rows.gradient(&[2], &[0.0; 3]);
        assert_eq!(rows.pull(&[2]), [0.75, -3.25, 0.0]);
        rows.push(PushMode::Add, &[2], &[0.5; 3]).expect("a push");
        rows.gradient(&[2], &[0.0; 3]);
        assert_eq!(rows.pull(&[2]), [1.25, -2.75, 0.5]);
    }
}

/// B014: by name, through the catalogue as well.
#[test]
fn bad_options_are_refused_by_name() {
    let dev = Dev::start();
    let client = dev.client();
    for (word, name, value) in [
        ("ftrl", "lr", "0"),
        ("ftrl", "l1", "-1"),
        ("adam", "beta2", "1.0"),
        ("adam", "beta1", "-.1"),
        ("adamw", "eps", "-1e-8"),
        ("rowwise_adagrad", "weight_decay", "NaN"),
    ] {
        let mut bad = optimizer(word, "");
        bad.set(name, value).expect("a number");
        let error = client
            .create_table(hashed("t", 1, bad))
            .expect_err("refused");
        assert!(error.to_string().contains(&format!("{name}: ")), "{error}");
    }
    assert!(client.list_tables().expect("a list").is_empty());
    let padded = TableSpec {
        kind: TableKind::Dense { rows: 4 },
        padding_key: Some(4),
        ..hashed("t", 1, optimizer("sgd", ""))
    };
    let error = client
        .create_table(padded)
        .expect_err("refused")
        .to_string();
    assert!(
        error.contains("padding-key: 4") && error.contains("4 of them, from 0 on"),
        "{error}"
    );
}
