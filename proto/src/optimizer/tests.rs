//! Defaults, refusals by name, and state of every optimizer.

use super::*;

fn made(word: &str, options: &str) -> Result<Optimizer, String> {
    let pairs = options.split_whitespace().map(|o| {
        let (name, value) = o.split_once('=').expect("k=v");
        (name.to_owned(), value.to_owned())
    });
    Optimizer::from_options(word, &pairs.collect::<Vec<_>>()).map_err(|e| e.to_string())
}

/// The defaults of `CLI.md`, by name.
#[test]
fn defaults() {
    let shown = |word: &str| {
        let options = made(word, "").expect("defaults").options();
        let pairs: Vec<String> = options.iter().map(|(n, v)| format!("{n}={v}")).collect();
        pairs.join(" ")
    };
    assert_eq!(shown("none"), "");
    assert_eq!(shown("sgd"), "lr=0.01 momentum=0 weight_decay=0");
    assert_eq!(shown("adagrad"), "lr=0.01 eps=1e-10 acc0=0");
    assert_eq!(
        shown("rowwise_adagrad"),
        "lr=0.01 eps=1e-8 acc0=0 weight_decay=0 decay=l2"
    );
    let adam = "lr=0.01 beta1=0.9 beta2=0.999 eps=1e-8 weight_decay=0 step=row \
                eps_form=standard";
    assert_eq!((shown("adam"), shown("adamw")), (adam.into(), adam.into()));
    assert_eq!(shown("ftrl"), "lr=0.01 l1=0 l2=0 beta=1 n0=0");
}

/// B014 and its neighbours: the message names the option and what it must be.
#[test]
fn bad_values_are_refused_by_name() {
    for (word, options, says) in [
        (
            "ftrl",
            "lr=0",
            "lr: 0 is refused: it must be finite and > 0",
        ),
        ("ftrl", "lr=1e-60", "lr: "),
        ("ftrl", "l1=-1", "l1: -1 is refused"),
        ("ftrl", "n0=NaN", "n0: NaN is refused"),
        ("ftrl", "beta=-0.5", "beta: -0.5"),
        ("sgd", "lr=NaN", "lr: NaN"),
        ("sgd", "lr=-1", "lr: -1"),
        ("sgd", "lr=1e39", "lr: "),
        (
            "sgd",
            "momentum=1",
            "momentum: 1 is refused: it must be in [0, 1)",
        ),
        (
            "adam",
            "beta2=1.0",
            "beta2: 1 is refused: it must be in [0, 1)",
        ),
        ("adam", "beta2=0.99999999999", "beta2: "),
        ("adam", "beta1=-.1", "beta1: -0.1"),
        ("adamw", "eps=-1e-8", "eps: "),
        (
            "adam",
            "step=global",
            "step: 'global' is unknown; known: row, caller",
        ),
        ("adam", "eps_form=keras", "known: standard, torch_sparse"),
        ("rowwise_adagrad", "decay=L1", "known: l2, decoupled"),
        ("adagrad", "lr=fast", "lr: 'fast' is not a number"),
        ("adagrad", "lr=1 lr=2", "lr: it is given twice"),
        (
            "adagrad",
            "beta1=0.5",
            "beta1: adagrad has no such option; it has: lr, eps, acc0",
        ),
        ("none", "lr=1", "lr: none has no such option, nor any other"),
        (
            "adamax",
            "",
            "known: none, sgd, adagrad, rowwise_adagrad, adam, adamw, ftrl",
        ),
    ] {
        let error = made(word, options).expect_err(options);
        assert!(error.contains(says), "{word} {options}: {error}");
    }
    assert!(made("sgd", "lr=0").is_ok(), "a push that changes nothing");
}

#[test]
fn state_of_each() {
    let bytes = |word: &str, options: &str| {
        let parts = made(word, options).expect("legal").state_parts(8);
        parts.iter().map(|p| p.elements * 4).sum::<u32>()
    };
    assert_eq!((bytes("none", ""), bytes("sgd", "")), (0, 0));
    assert_eq!(bytes("sgd", "momentum=0.9"), 32);
    assert_eq!(
        (bytes("adagrad", ""), bytes("rowwise_adagrad", "")),
        (32, 4)
    );
    assert_eq!((bytes("adam", ""), bytes("adamw", "step=caller")), (68, 64));
    assert_eq!(bytes("ftrl", ""), 64);
}
