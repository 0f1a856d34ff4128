//! The rules against the golden vectors and the values of `cases.md`.

use super::*;
use serde_json::Value;

fn optimizer(word: &str, options: &str) -> Optimizer {
    let pairs = options.split_whitespace().map(|o| {
        let (name, value) = o.split_once('=').expect("k=v");
        (name.to_owned(), value.to_owned())
    });
    Optimizer::from_options(word, &pairs.collect::<Vec<_>>()).expect("legal")
}

/// A row with its state, under one rule.
struct Row {
    rule: Rule,
    row: Vec<f32>,
    state: Vec<f32>,
}

impl Row {
    fn new(optimizer: &Optimizer, row: &[f32]) -> Self {
        let parts = optimizer.state_parts(row.len() as u32);
        let words: u32 = parts.iter().map(|p| p.elements).sum();
        let mut state = vec![0.0; words as usize];
        let rule = Rule::from(optimizer);
        rule.fresh(row, &mut state);
        Self {
            rule,
            row: row.to_vec(),
            state,
        }
    }

    fn of(word: &str, options: &str, row: &[f32]) -> Self {
        Self::new(&optimizer(word, options), row)
    }

    fn step_at(&mut self, number: u64, gradient: &[f32]) -> &mut Self {
        let gradient: Vec<F32> = gradient.iter().map(|g| F32::new(*g)).collect();
        let mut steps = self.rule.steps(number);
        steps.step(&mut self.row, &mut self.state, &gradient);
        self
    }

    fn step(&mut self, gradient: &[f32]) -> &mut Self {
        self.step_at(0, gradient)
    }
}

fn close(got: &[f32], want: &[f64]) {
    assert_eq!(got.len(), want.len());
    for (got, want) in got.iter().zip(want) {
        let error = (f64::from(*got) - want).abs();
        assert!(error <= 1.2e-7 * want.abs().max(1.0), "{got} {want}");
    }
}

/// Runs one golden vector over `dim` equal lanes and wants the reference's bits in each.
fn check(golden: &Value, vector: &str, dim: usize) {
    let case = &golden[vector];
    let word = vector.split('_').next().expect("a word");
    let hyper = case["hyper"].as_object().expect("hyper");
    let text = |v: &Value| v.as_str().map_or(v.to_string(), str::to_owned);
    let options: Vec<_> = hyper.iter().map(|(k, v)| (k.clone(), text(v))).collect();
    let optimizer = Optimizer::from_options(word, &options).expect("valid");
    let w0 = case["w0"].as_f64().expect("w0") as f32;
    let mut row = Row::new(&optimizer, &vec![w0; dim]);
    let steps = case["steps"].as_array().expect("steps");
    let after = case["after"].as_array().expect("after");
    for (at, (step, want)) in steps.iter().zip(after).enumerate() {
        if let Some(g) = step.as_f64() {
            row.step_at(at as u64 + 1, &vec![g as f32; dim]);
        }
        let bits = want["bits"].as_str().expect("bits");
        let bits = u32::from_str_radix(bits.trim_start_matches("0x"), 16).expect("hex");
        let all = row.row.iter().all(|w| w.to_bits() == bits);
        assert!(all, "{vector}: {:?} want {want}", row.row);
        let mut state = row.state.as_slice();
        for part in optimizer.state_parts(dim as u32) {
            let (own, rest) = state.split_at(part.elements as usize);
            state = rest;
            if let Some(want) = want["state"][part.name].as_f64() {
                let all = own.iter().all(|s| *s == want as f32);
                assert!(all, "{vector} {}: {own:?} {want}", part.name);
            }
        }
    }
}

/// I-10, B019: the reference's bits in every lane, whatever the dim.
#[test]
fn golden_vectors_are_met_bit_for_bit() {
    let golden: Value =
        serde_json::from_str(include_str!("../../../golden/optimizers.json")).expect("golden file");
    for vector in [
        "sgd",
        "sgd_momentum",
        "adagrad",
        "adam",
        "adam_step_caller",
        "adamw",
        "ftrl",
    ] {
        for dim in [1, 8, 12, 20, 128] {
            check(&golden, vector, dim);
        }
    }
    let case = &golden["rowwise_adagrad"];
    let list = |v: &Value| -> Vec<f32> {
        let numbers = v.as_array().expect("a list").iter();
        numbers
            .map(|n| n.as_f64().expect("a number") as f32)
            .collect()
    };
    let mut row = Row::of("rowwise_adagrad", "lr=0.1 eps=1e-8", &list(&case["w0"]));
    let steps = case["steps"].as_array().expect("steps");
    for (step, after) in steps.iter().zip(case["after"].as_array().expect("after")) {
        row.step(&list(step));
        assert_eq!(row.row, list(&after["w"]));
        assert_eq!(row.state, [after["acc"].as_f64().expect("acc") as f32]);
    }
}

/// B005: where eps stands and what acc0 is.
#[test]
fn adagrad_forms() {
    for (options, g, want) in [
        ("lr=.01 eps=1e-10", 1e-8, 0.990_099_01),
        ("lr=.01 eps=1e-8", 1e-8, 0.995),
        ("lr=.01 eps=1e-10", 1.0, 0.99),
        ("lr=.01 eps=1e-7 acc0=.1", 1.0, 0.990_465_37),
    ] {
        close(&Row::of("adagrad", options, &[1.0]).step(&[g]).row, &[want]);
    }
}

/// B002 after the client's sum; B004 in both orders.
#[test]
fn adagrad_sums_and_orders() {
    let mut row = Row::of("adagrad", "lr=.1 eps=1e-10 acc0=7", &[1.0]);
    close(&row.step(&[3.0]).row, &[0.925]);
    assert_eq!(row.state, [16.0]);
    for (first, second, want) in [(1.0, 2.0, 0.906_909_63), (2.0, 1.0, 0.910_830_22)] {
        let mut row = Row::of("adagrad", "lr=.1 eps=1e-10 acc0=7", &[1.0]);
        close(&row.step(&[first]).step(&[second]).row, &[want]);
        assert_eq!(row.state, [12.0]);
    }
}

/// B007: no decay, L2 and decoupled.
#[test]
fn rowwise_adagrad_and_weight_decay() {
    let (w, g) = ([1.0, 2.0, 3.0, 4.0], [1.0, 1.0, 5.0, 3.0]);
    for (options, acc, want) in [
        ("", 9.0, [0.966_666_67, 1.966_666_67, 2.833_333_33, 3.9]),
        (
            "weight_decay=.1",
            10.575,
            [0.966_173_86, 1.963_098_75, 2.837_019_49, 3.895_446_46],
        ),
        (
            "weight_decay=.1 decay=decoupled",
            9.0,
            [0.956_666_67, 1.946_666_67, 2.803_333_33, 3.86],
        ),
    ] {
        let mut row = Row::of("rowwise_adagrad", &format!("lr=.1 {options}"), &w);
        close(&row.step(&g).row, &want);
        close(&row.state, &[acc]);
    }
    let mut row = Row::of("adagrad", "lr=.1", &w);
    close(&row.step(&g).row, &[0.9, 1.9, 2.9, 3.9]);
}

/// B009, B010, B011, B016.
#[test]
fn adam_forms() {
    let first =
        |word: &str, options: &str, w: f32, g: f32| Row::of(word, options, &[w]).step(&[g]).row[0];
    close(&[first("adam", "", 1.0, 1e-8)], &[0.995]);
    let sparse = first("adam", "eps_form=torch_sparse", 1.0, 1e-8);
    close(&[sparse], &[0.999_693_47]);
    close(&[first("adam", "lr=.1 weight_decay=.01", 2.0, 0.5)], &[1.9]);
    close(
        &[first("adamw", "lr=.1 weight_decay=.01", 2.0, 0.5)],
        &[1.898],
    );
    let mut row = Row::of("adam", "", &[1.0]);
    close(&row.step(&[1.0]).row, &[0.99]);
    close(&row.state[..2], &[0.1, 0.001]);
    assert_eq!(row.state[2].to_bits(), 1);
    close(
        &Row::of("adam", "", &[1.0]).step(&[1.0]).step(&[1.0]).row,
        &[0.98],
    );
    close(&row.step(&[0.0]).row, &[0.983_299_42]);
}

/// B012: the paper's form, TF's by its parameters, duplicates after the client's sum.
#[test]
fn ftrl_forms() {
    let mut row = Row::of("ftrl", "lr=.5 l1=.1 l2=1", &[0.0]);
    for (g, want) in [
        (0.5, [0.25, 0.5, -0.1]),
        (-1.0, [1.25, -0.376_393_20, 0.052_786_40]),
        (0.25, [1.3125, -0.129_308_06, 0.005_538_93]),
    ] {
        row.step(&[g]);
        close(&[row.state[0], row.state[1], row.row[0]], &want);
    }
    let mut row = Row::of("ftrl", "lr=.5 l1=.1 l2=2 beta=0 n0=.1", &[0.0]);
    for (g, want) in [
        (0.5, -0.125_659_08),
        (-1.0, 0.059_363_78),
        (0.25, 0.002_246_68),
    ] {
        close(&row.step(&[g]).row, &[want]);
    }
    let mut row = Row::of("ftrl", "lr=.5 l1=.1 l2=1 n0=1", &[0.0]);
    close(&row.step(&[1.0]).row, &[-0.154_415_59]);
    close(&row.state, &[2.0, 1.0]);
}

/// A row that was set keeps its value at the next zero gradient, to the bit where z is as fine
/// as the weight.
#[test]
fn ftrl_agrees_with_a_row_that_was_set() {
    for options in [
        "lr=.5 l2=1",
        "lr=.05",
        "lr=.5 l1=.001 l2=1",
        "lr=.3 n0=.7 l2=.1",
    ] {
        for at in 1..2000u32 {
            let w = (at as f32 - 1000.0) * 0.013 + 0.001;
            let mut row = Row::of("ftrl", options, &[w]);
            row.step(&[0.0]);
            let ulps = row.row[0].to_bits().abs_diff(w.to_bits());
            assert!(ulps <= 1, "{options}: {w} became {}", row.row[0]);
        }
    }
    let mut row = Row::of("ftrl", "lr=.5 l1=.1", &[0.0]);
    assert_eq!(row.step(&[0.0]).row, [0.0]);
}

/// B019, I-10: every lane of any dim is that of dim 1.
#[test]
fn lanes_do_not_depend_on_the_dim() {
    for word in ["sgd", "adagrad", "rowwise_adagrad", "adam", "adamw", "ftrl"] {
        let run = |dim: usize| {
            let mut row = Row::of(word, "", &vec![0.0; dim]);
            for _ in 0..100 {
                row.step(&vec![1.0; dim]);
            }
            row
        };
        let one = run(1);
        for dim in [8, 12, 20, 128] {
            let row = run(dim);
            assert!(row.row.iter().all(|w| *w == one.row[0]), "{word} {dim}");
        }
    }
}

#[test]
fn infinities_and_nan_are_seen() {
    use crate::optimizer::{all_finite, all_finite_le};
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        assert!(!all_finite(&[0.0, bad, 1.0]));
        assert!(!all_finite_le(&[F32::new(0.0), F32::new(bad)]));
    }
    let finite = [f32::MAX, f32::MIN, -0.0, f32::MIN_POSITIVE / 2.0];
    assert!(all_finite(&finite));
    assert!(all_finite(&[]));
}
