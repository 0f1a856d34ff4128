//! The invariants of ARCHITECTURE.md and the tests that prove them.
//!
//! A row of its table reads `| I-5 whole | what holds | proof |`. The proof is a list of
//! `` `path/file.rs::test` `` in code marks, or `planned: CAPABILITY`. A listed test must exist,
//! in a file whose test code cites the invariant by number.

use crate::report;
use crate::sources::{Source, read, rust_sources};

/// Invariants of the design.
const INVARIANTS: usize = 13;

struct Row {
    number: usize,
    proof: String,
}

fn table() -> Vec<Row> {
    let text = read("ARCHITECTURE.md");
    let rows = text.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| **I-")?.split('|');
        let number = cells.next()?.split(' ').next()?.parse().ok()?;
        let proof = cells.nth(1)?.trim().to_owned();
        Some(Row { number, proof })
    });
    rows.collect()
}

/// Whether `text` cites invariant `number`, and not one that merely begins with its digits.
fn cites(text: &str, number: usize) -> bool {
    let mark = format!("I-{number}");
    text.match_indices(&mark)
        .any(|(at, _)| !text[at + mark.len()..].starts_with(|c: char| c.is_ascii_digit()))
}

/// The test code of a file.
fn test_code(source: &Source) -> String {
    let lines = source.text.lines().enumerate();
    let tests = lines
        .filter(|(i, _)| source.is_test(*i))
        .map(|(_, line)| line);
    tests.collect::<Vec<_>>().join("\n")
}

/// What is wrong with the proof of one invariant.
fn faults(row: &Row, sources: &[Source]) -> Vec<String> {
    let number = row.number;
    let tests: Vec<&str> = row
        .proof
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|t| t.contains("::"))
        .collect();
    let planned = row.proof.split("planned:").nth(1).map(str::trim);
    if tests.is_empty() && planned.is_none_or(str::is_empty) {
        return vec![format!(
            "I-{number} has neither a test nor `planned: CAPABILITY`"
        )];
    }
    let fault = |test: &&str| {
        let (path, name) = test.split_once("::").expect("filtered for it");
        let Some(source) = sources.iter().find(|s| s.path == path) else {
            return Some(format!("I-{number}: there is no {path}"));
        };
        let code = test_code(source);
        if !code.contains(&format!("fn {name}(")) {
            return Some(format!("I-{number}: {path} has no test {name}"));
        }
        (!cites(&code, number)).then(|| format!("I-{number}: the tests of {path} do not cite it"))
    };
    tests.iter().filter_map(fault).collect()
}

#[test]
fn every_invariant_has_a_test_or_a_plan() {
    let (rows, sources) = (table(), rust_sources());
    let numbers: Vec<usize> = rows.iter().map(|r| r.number).collect();
    assert_eq!(
        numbers,
        (1..=INVARIANTS).collect::<Vec<_>>(),
        "rows of ARCHITECTURE.md"
    );
    let found: Vec<String> = rows.iter().flat_map(|row| faults(row, &sources)).collect();
    report("invariants are proved or planned", &found);
}

#[test]
fn cited_invariants_exist() {
    let mut findings = Vec::new();
    for source in rust_sources() {
        for (i, line) in source.text.lines().enumerate() {
            let after = line.match_indices("I-").map(|(at, _)| &line[at + 2..]);
            let digits = after.map(|rest| {
                rest.chars()
                    .take_while(char::is_ascii_digit)
                    .collect::<String>()
            });
            for number in digits.filter_map(|d| d.parse::<usize>().ok()) {
                if number == 0 || number > INVARIANTS {
                    findings.push(format!("{}:{}: I-{number}", source.path, i + 1));
                }
            }
        }
    }
    report("only invariants that exist are cited", &findings);
}
