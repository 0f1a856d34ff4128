//! Planes, dtypes, optimizers and steps on the command line.

use mneme_tests::{Dev, Mneme};
use serde_json::{Value, json};

/// `create t` and these words.
fn create(mneme: &Mneme, words: &str) {
    let base = ["table", "create", "t", "--kind", "hashed"];
    let words: Vec<&str> = base.into_iter().chain(words.split_whitespace()).collect();
    mneme.ok(&words);
}

fn push(mneme: &Mneme, mode: &str, values: &str, more: &[&str]) {
    let base = [
        "push", "t", "--mode", mode, "--keys", "1", "--values", values,
    ];
    mneme.ok(&[&base, more].concat());
}

fn pull(mneme: &Mneme, more: &[&str]) -> Value {
    let answer = mneme.json(&[&["pull", "t", "--keys", "1"], more].concat());
    answer["rows"][0].clone()
}

/// Values of all planes stand in schema order; bits are as wide as their dtype.
#[test]
fn every_dtype_in_one_row() {
    let dev = Dev::start();
    let mneme = dev.mneme();
    create(
        &mneme,
        "--plane a:f32:1 --plane b:f16:1 --plane c:bf16:1 --plane d:f8e4m3:1 --plane e:f8e5m2:1 \
         --plane f:i8:1 --plane g:u8:1",
    );
    push(
        &mneme,
        "assign",
        "[[0.5, 65520, 0.26911, 464, \"NaN\", -128, 255]]",
        &[],
    );
    let row = pull(&mneme, &[]);
    assert_eq!(
        row["values"],
        json!([0.5, "Infinity", 0.269_531_25, 448.0, "NaN", -128, 255])
    );
    let row = pull(&mneme, &["--bits"]);
    let bits = json!([
        "0x3f000000",
        "0x7c00",
        "0x3e8a",
        "0x7e",
        "0x7e",
        "0x80",
        "0xff"
    ]);
    assert_eq!(row["values"], bits);
    push(&mneme, "assign", &format!("[{bits}]"), &[]);
    assert_eq!(pull(&mneme, &["--bits"])["values"], bits);
    let scanned = mneme.json(&["table", "scan", "t"]);
    assert_eq!(scanned["rows"][0]["values"][5], -128);
    let described = mneme.json(&["table", "describe", "t"]);
    assert_eq!(
        described["planes"][3],
        json!({"name": "d", "dtype": "f8e4m3", "width": 1})
    );
    let add = [
        "push",
        "t",
        "--mode",
        "add",
        "--keys",
        "1",
        "--values",
        "[[1,1,1,1,1,1,1]]",
    ];
    mneme.refused(1, &add, &["add", "f:i8:1 g:u8:1"]);
}

/// `--state` names what the optimizer keeps; options and words are shown as they are effective.
#[test]
fn state_and_options_are_shown() {
    let dev = Dev::start();
    let mneme = dev.mneme();
    create(
        &mneme,
        "--dtype bf16 --dim 2 --optimizer adamw --opt weight_decay=.1 eps_form=torch_sparse \
         --master f32 --rounding stochastic",
    );
    let described = mneme.json(&["table", "describe", "t"]);
    let wanted = json!({"name": "adamw", "options": {
        "lr": 0.01, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.1,
        "step": "row", "eps_form": "torch_sparse",
    }});
    assert_eq!(described["optimizer"], wanted);
    assert_eq!(
        (&described["rounding"], &described["master"]),
        (&json!("stochastic"), &json!("f32"))
    );
    for _ in 0..3 {
        push(&mneme, "gradient", "[[1,1]]", &[]);
    }
    let state = &pull(&mneme, &["--state"])["state"];
    assert_eq!(state["step"], json!([3]));
    let names: Vec<&String> = state.as_object().expect("an object").keys().collect();
    assert_eq!(names, ["m", "master", "step", "v"]);
    let master = state["master"][0].as_f64().expect("a number");
    assert!((master + 0.03).abs() < 1e-4, "{master}");
}

/// `--step` comes with gradients of a table with step=caller, and is refused elsewhere.
#[test]
fn steps_by_the_caller() {
    let dev = Dev::start();
    let mneme = dev.mneme();
    create(
        &mneme,
        "--dtype f32 --dim 1 --optimizer adam --opt step=caller",
    );
    let gradient = [
        "push", "t", "--mode", "gradient", "--keys", "1", "--values", "[[1]]",
    ];
    mneme.refused(1, &gradient, &["--step N"]);
    push(&mneme, "gradient", "[[1]]", &["--step", "1"]);
    let add = [
        "push", "t", "--mode", "add", "--keys", "1", "--values", "[[1]]", "--step", "2",
    ];
    mneme.refused(1, &add, &["step 2"]);
    let value = pull(&mneme, &["--state"]);
    assert!((value["values"][0].as_f64().expect("a number") + 0.01).abs() < 1e-8);
    assert!(value["state"]["step"].is_null());
}
