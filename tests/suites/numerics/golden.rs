//! The golden data through a running server: optimizers and formats against numpy, keys against
//! the reference's mix64.

use mneme_proto::frame::PushMode;
use mneme_proto::schema::{Dtype, Optimizer, RowSchema, TableSpec};
use mneme_tests::Dev;
use mneme_tests::rows::{Rows, hashed, optimizer, within_ulps};
use serde_json::Value;

/// Reference steps: made by numpy in f32, one lane.
const OPTIMIZERS: &str = include_str!("../../../server/golden/optimizers.json");

/// f32 bits and those of every narrower float, by nearest even.
const FORMATS: &str = include_str!("../../../proto/golden/formats.json");

/// Keys, their mix64, their shard of 16.
const MIX64: &str = include_str!("../../../proto/golden/mix64.json");

/// Units in the last place that a result may differ.
const ULPS: u32 = 4;

fn read(text: &str) -> Value {
    serde_json::from_str(text).expect("valid JSON")
}

fn number(value: &Value) -> f32 {
    value.as_f64().expect("a number") as f32
}

fn numbers(value: &Value) -> Vec<f32> {
    let list = value.as_array().expect("a list");
    list.iter().map(number).collect()
}

fn bits(case: &Value, name: &str) -> u32 {
    let text = case[name].as_str().expect("bits");
    u32::from_str_radix(text.trim_start_matches("0x"), 16).expect("hex")
}

/// Runs one entry of the reference on a server.
fn replay(dev: &Dev, name: &str, entry: &Value) {
    let word = name.split('_').next().expect("a word");
    let text = |v: &Value| v.as_str().map_or(v.to_string(), str::to_owned);
    let hyper = entry["hyper"].as_object().expect("an object");
    let options: Vec<_> = hyper.iter().map(|(k, v)| (k.clone(), text(v))).collect();
    let optimizer = Optimizer::from_options(word, &options).expect("valid options");
    let rows = Rows::create(&dev.client(), hashed(name, 1, optimizer));
    rows.assign(&[9], &[number(&entry["w0"])]);
    let steps = entry["steps"].as_array().expect("a list").iter();
    let after = entry["after"].as_array().expect("a list").iter();
    for (i, (step, after)) in steps.zip(after).enumerate() {
        // A null is a push that the row is not in.
        let key = if step.is_null() { 10 } else { 9 };
        let number_of = if optimizer.wants_step() {
            i as u64 + 1
        } else {
            0
        };
        let gradient = step.as_f64().unwrap_or(1.0) as f32;
        rows.gradient_at(number_of, &[key], &[gradient]);
        let (row, state) = rows.row_and_state(9);
        let wanted = number(&after["w"]);
        let found = row[0];
        assert!(
            within_ulps(found, wanted, ULPS),
            "{name} step {i}: {found} for {wanted}"
        );
        for (part, value) in optimizer.state_parts(1).iter().zip(state) {
            if part.count {
                continue;
            }
            let wanted = number(&after["state"][part.name]);
            let name = format!("{name} step {i}: {}", part.name);
            assert!(
                within_ulps(value, wanted, ULPS),
                "{name} {value} for {wanted}"
            );
        }
    }
}

#[test]
fn every_optimizer_makes_the_steps_of_the_reference() {
    let dev = Dev::start();
    let reference = read(OPTIMIZERS);
    let entries = reference.as_object().expect("an object");
    let lanes = entries.iter().filter(|(_, entry)| entry["w0"].is_number());
    let mut replayed = 0;
    for (name, entry) in lanes {
        replay(&dev, name, entry);
        replayed += 1;
    }
    assert_eq!(replayed, 7);
}

#[test]
fn rowwise_adagrad_makes_the_steps_of_the_reference() {
    let dev = Dev::start();
    let reference = read(OPTIMIZERS);
    let entry = &reference["rowwise_adagrad"];
    let made = optimizer("rowwise_adagrad", "lr=0.1 eps=1e-8");
    let rows = Rows::create(&dev.client(), hashed("t", 4, made));
    rows.assign(&[9], &numbers(&entry["w0"]));
    let steps = entry["steps"].as_array().expect("a list").iter();
    for (step, after) in steps.zip(entry["after"].as_array().expect("a list")) {
        rows.gradient(&[9], &numbers(step));
        let (row, state) = rows.row_and_state(9);
        for (found, wanted) in row.iter().zip(numbers(&after["w"])) {
            assert!(within_ulps(*found, wanted, ULPS), "{found} for {wanted}");
        }
        assert!(within_ulps(state[0], number(&after["acc"]), ULPS));
    }
}

/// B020, B022, B026: f32 rows assigned to, and sums made in, tables of every float dtype.
#[test]
fn every_format_is_rounded_as_the_reference_rounds() {
    let dev = Dev::start();
    let client = dev.client();
    let golden = read(FORMATS);
    let cases = golden.as_array().expect("a list");
    let keys: Vec<u64> = (0..cases.len() as u64).collect();
    let values: Vec<f32> = cases
        .iter()
        .map(|c| f32::from_bits(bits(c, "f32")))
        .collect();
    for dtype in [Dtype::F16, Dtype::Bf16, Dtype::F8e4m3, Dtype::F8e5m2] {
        let rows = Rows::create(
            &client,
            TableSpec {
                schema: RowSchema::single(dtype, 1),
                ..hashed(dtype.word(), 1, optimizer("sgd", "lr=1"))
            },
        );
        let size = dtype.bytes() as usize;
        let wanted: Vec<u8> = cases
            .iter()
            .flat_map(|c| bits(c, dtype.word()).to_le_bytes()[..size].to_vec())
            .collect();
        rows.assign(&keys, &values);
        assert_eq!(rows.stored(&keys), wanted, "{dtype}");
        // As f32 they are what was stored, and go back to the same bits.
        let widened = rows.pull(&keys);
        rows.assign(&keys, &widened);
        assert_eq!(rows.stored(&keys), wanted, "{dtype}");
        // The node rounds the same way; what is too large it refuses.
        for (at, value) in values.iter().enumerate() {
            let fresh = 1000 + at as u64;
            let pushed = rows.push(PushMode::Gradient, &[fresh], &[-value]);
            if widened[at].is_finite() {
                pushed.expect("a finite result");
                let stored = rows.stored(&[fresh]);
                let minus_zero = *value == 0.0 || widened[at] == 0.0;
                assert!(
                    minus_zero || stored == wanted[at * size..][..size],
                    "{dtype} {value}"
                );
            } else {
                let error = pushed.expect_err("an overflow").to_string();
                assert!(error.contains("not finite"), "{error}");
                assert!(error.contains(&fresh.to_string()), "{error}");
            }
        }
    }
}

/// DESIGN 5: a key's shard is the upper bits of its mix64, on the node as in the reference.
#[test]
fn keys_are_placed_as_the_reference_places_them() {
    let dev = Dev::start();
    let spec = TableSpec {
        shards: 16,
        ..hashed("t", 1, optimizer("sgd", "lr=1"))
    };
    let rows = Rows::create(&dev.client(), spec);
    for case in read(MIX64).as_array().expect("a list") {
        let key: u64 = case["key"].as_str().expect("text").parse().expect("a key");
        let found = rows.table.where_key(key).expect("a place").shard;
        assert_eq!(u64::from(found), case["shard_of_16"], "{key}");
        // A node refuses keys that are not the shard's: a push proves the placement.
        rows.gradient(&[key], &[-1.0]);
        assert_eq!(rows.lane(key), 1.0);
    }
}
