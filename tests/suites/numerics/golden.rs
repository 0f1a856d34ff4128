//! Optimizers against the reference run of the same steps in numpy, through a server.

use mneme_proto::schema::Optimizer;
use mneme_tests::Dev;
use mneme_tests::rows::{Rows, hashed, within_ulps};
use serde_json::Value;

/// Reference steps: made by numpy in f32, one lane.
const REFERENCE: &str = include_str!("../../../server/golden/optimizers.json");

/// Units in the last place that a result may differ.
const ULPS: u32 = 4;

/// Runs one entry of the reference on a server.
fn replay(name: &str, word: &str) {
    let reference: Value = serde_json::from_str(REFERENCE).expect("valid JSON");
    let entry = &reference[name];
    let hyper = entry["hyper"].as_object().expect("an object");
    let number = |v: &Value| v.as_f64().expect("a number") as f32;
    let options: Vec<(String, f32)> = hyper.iter().map(|(k, v)| (k.clone(), number(v))).collect();
    let optimizer = Optimizer::from_options(word, &options).expect("valid options");

    let dev = Dev::start();
    let rows = Rows::create(&dev.client(), hashed(name, 1, optimizer));
    rows.assign(&[9], &[number(&entry["w0"])]);
    let steps = entry["steps"].as_array().expect("a list");
    for (i, (step, after)) in steps
        .iter()
        .zip(entry["after"].as_array().expect("a list"))
        .enumerate()
    {
        // A null is a push that the row is not in.
        let key = if step.is_null() { 10 } else { 9 };
        rows.gradient(&[key], &[step.as_f64().unwrap_or(1.0) as f32]);
        let (row, state) = rows.row_and_state(9);
        let wanted = number(&after["w"]);
        assert!(
            within_ulps(row[0], wanted, ULPS),
            "{name} step {i}: {} for {wanted}",
            row[0]
        );
        let states = optimizer.state_names().iter().zip(state);
        for (state_name, value) in states {
            let wanted = number(&after["state"][state_name]);
            assert!(
                within_ulps(value, wanted, ULPS),
                "{name} step {i}: {state_name} {value}"
            );
        }
    }
}

#[test]
fn sgd() {
    replay("sgd", "sgd");
}

#[test]
fn sgd_with_momentum_and_decay() {
    replay("sgd_momentum", "sgd");
}

#[test]
fn adagrad() {
    replay("adagrad", "adagrad");
}
