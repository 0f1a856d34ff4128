//! Every fuzz target over its kept corpus (`fuzz/corpus`) and seeded mutations of it: a bounded
//! run on any toolchain of what `make fuzz` does without end.
//!
//! The seed is printed; `MNEME_FUZZ_SEED=N` runs it again, `MNEME_FUZZ_RUNS=N` makes it longer. An
//! input that fails is kept in the temporary directory and named.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Mutated inputs of each target.
const RUNS: u64 = 1500;

/// The longest input that mutation makes.
const INPUT_BYTES_MAX: usize = 1 << 16;

fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text} is no number")),
    )
}

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../fuzz/corpus")
        .join(target);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{target}: {e}"));
    let mut paths: Vec<PathBuf> = entries.map(|e| e.expect("an entry").path()).collect();
    paths.sort();
    let inputs: Vec<Vec<u8>> = paths
        .iter()
        .map(|path| std::fs::read(path).expect("a file of the corpus"))
        .collect();
    assert!(!inputs.is_empty(), "{target} has a corpus");
    inputs
}

/// Numbers that lengths and offsets go wrong at.
const NUMBERS: [u64; 9] = [
    0,
    1,
    0x7F,
    0xFF,
    0xFFFF,
    0x7FFF_FFFF,
    0xFFFF_FFFF,
    i64::MAX as u64,
    u64::MAX,
];

/// Changes an input in one place.
fn mutate(input: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut StdRng) {
    let at = rng.random_range(0..=input.len());
    let span = rng.random_range(1..=16).min(input.len() - at);
    match rng.random_range(0..8) {
        0 if at < input.len() => input[at] ^= 1 << rng.random_range(0..8),
        1 if at < input.len() => input[at] = rng.random(),
        2 => {
            let number = NUMBERS[rng.random_range(0..NUMBERS.len())].to_le_bytes();
            let bytes = [1, 2, 4, 8][rng.random_range(0..4)].min(input.len() - at);
            input[at..at + bytes].copy_from_slice(&number[..bytes]);
        }
        3 => input.truncate(at),
        4 => {
            input.drain(at..at + span);
        }
        5 => {
            let copy = input[at..at + span].to_vec();
            let to = rng.random_range(0..=input.len());
            input.splice(to..to, copy);
        }
        6 => {
            let other = &corpus[rng.random_range(0..corpus.len())];
            let from = rng.random_range(0..=other.len());
            input.truncate(at);
            input.extend_from_slice(&other[from..]);
        }
        // A digit for another: headers in text have their lengths in digits.
        _ => {
            if let Some(digit) = input[at..].iter_mut().find(|b| b.is_ascii_digit()) {
                *digit = b'0' + rng.random_range(0..10);
            }
        }
    }
    input.truncate(INPUT_BYTES_MAX);
}

/// Runs a target over its corpus and mutations of it.
fn run(target: &str, parse: fn(&[u8])) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let seed =
        variable("MNEME_FUZZ_SEED").unwrap_or_else(|| now.map_or(0, |now| now.as_micros() as u64));
    let runs = variable("MNEME_FUZZ_RUNS").unwrap_or(RUNS);
    println!("fuzz target {target}: MNEME_FUZZ_SEED={seed} MNEME_FUZZ_RUNS={runs}");
    let corpus = corpus(target);
    let mut rng = StdRng::seed_from_u64(seed);
    let mutated = (0..runs).map(|_| {
        let mut input = corpus[rng.random_range(0..corpus.len())].clone();
        for _ in 0..rng.random_range(1..=4) {
            mutate(&mut input, &corpus, &mut rng);
        }
        input
    });
    for input in corpus.clone().into_iter().chain(mutated) {
        if std::panic::catch_unwind(|| parse(&input)).is_err() {
            let path = std::env::temp_dir().join(format!("mneme-fuzz-{target}-{seed}"));
            std::fs::write(&path, &input).expect("the temporary directory is writable");
            panic!(
                "{target} fails with seed {seed}: the input is {}",
                path.display()
            );
        }
    }
}

/// I-12: a claim in a file is worth no allocation and no panic.
#[test]
fn file_formats() {
    for (target, parse) in mneme_cli::files::fuzz::TARGETS {
        run(target, *parse);
    }
}

/// I-12: frames and control messages, too.
#[test]
fn frames_and_control_messages() {
    for (target, parse) in mneme_proto::fuzz::TARGETS {
        run(target, *parse);
    }
}
