//! The house rules that a machine can check. A rule that fails names the file and the line.
//!
//! What the compiler and clippy check already (unwraps, undocumented unsafe blocks, missing
//! docs) is not checked again here; that no crate switches it off is.

mod invariants;
mod sources;

use std::fmt::Write;

use sources::{Source, crates, root, rust_sources, text_files};

/// Longest file, in lines.
const FILE_LINES_MAX: usize = 600;
/// Longest function, in lines.
const FUNCTION_LINES_MAX: usize = 70;
/// Longest test: a scenario or a table of cases reads from top to bottom.
const TEST_LINES_MAX: usize = 120;
/// Longest line, in characters.
const COLUMNS_MAX: usize = 100;

/// Names that say nothing of what is inside.
const EMPTY_NAMES: [&str; 6] = ["util", "utils", "common", "manager", "helper", "helpers"];

/// Crates by layer: a crate may depend on lower layers only (`server` never on `meta`).
const LAYERS: [(&str, u8); 10] = [
    ("proto", 0),
    ("memory", 1),
    ("net", 1),
    ("meta", 2),
    ("server", 2),
    ("client", 2),
    ("cli", 3),
    ("python", 3),
    ("tests", 4),
    ("benches", 5),
];

/// Hosts that a document or a comment may point to.
const HOSTS: [&str; 9] = [
    "[::1]",
    "127.0.0.1",
    "huggingface.co",
    "keepachangelog.com",
    "localhost",
    "numpy.org",
    "semver.org",
    "www.apache.org",
    "www.w3.org",
];

/// Fails with all findings at once.
fn report(rule: &str, findings: &[String]) {
    let mut list = String::new();
    for finding in findings {
        let _ = writeln!(list, "  {finding}");
    }
    assert!(findings.is_empty(), "{rule}:\n{list}");
}

/// Findings of `check`, which looks at one line, in files that `wanted` selects.
fn lines_where(
    sources: &[Source],
    wanted: impl Fn(&Source) -> bool,
    check: impl Fn(&Source, usize, &str) -> Option<String>,
) -> Vec<String> {
    let mut findings = Vec::new();
    for source in sources.iter().filter(|s| wanted(s)) {
        for (i, line) in source.text.lines().enumerate() {
            if let Some(what) = check(source, i, line) {
                findings.push(format!("{}:{}: {what}", source.path, i + 1));
            }
        }
    }
    findings
}

#[test]
fn files_begin_with_what_they_are_for() {
    let bare = rust_sources()
        .into_iter()
        .filter(|s| !s.text.starts_with("//!"));
    report(
        "a file starts with `//!`",
        &bare.map(|s| s.path).collect::<Vec<_>>(),
    );
}

#[test]
fn files_have_one_subject() {
    let long = rust_sources().into_iter().filter_map(|s| {
        let lines = s.text.lines().count();
        (lines > FILE_LINES_MAX).then(|| format!("{}: {lines} lines", s.path))
    });
    report("a file has at most 600 lines", &long.collect::<Vec<_>>());
}

#[test]
fn functions_fit_a_screen() {
    let mut long = Vec::new();
    for source in rust_sources() {
        let lines: Vec<&str> = source.text.lines().collect();
        for (start, line) in lines.iter().enumerate() {
            let bare = line.trim_start();
            let indent = line.len() - bare.len();
            let head = bare.split('(').next().unwrap_or_default();
            if !(head.starts_with("fn ") || head.contains(" fn ")) || bare.starts_with("//") {
                continue;
            }
            // The code is formatted: the closing brace stands where the function began.
            let close = format!("{}}}", " ".repeat(indent));
            let end = lines[start..].iter().position(|l| *l == close).unwrap_or(0);
            let most = if source.is_test(start) {
                TEST_LINES_MAX
            } else {
                FUNCTION_LINES_MAX
            };
            if end + 1 > most {
                long.push(format!("{}:{}: {} lines", source.path, start + 1, end + 1));
            }
        }
    }
    report("a function has at most 70 lines, a test 120", &long);
}

#[test]
fn lines_fit_the_page() {
    let long = |_: &Source, _: usize, line: &str| {
        let columns = line.chars().count();
        // Links and rows of tables cannot be broken.
        let whole = line.contains("://") || line.starts_with("//! |");
        (columns > COLUMNS_MAX && !whole).then(|| format!("{columns} columns"))
    };
    report(
        "a line has at most 100 columns",
        &lines_where(&rust_sources(), |_| true, long),
    );
}

#[test]
fn names_say_something() {
    let empty = |part: &str| EMPTY_NAMES.contains(&part.trim_end_matches(".rs"));
    let found = rust_sources()
        .into_iter()
        .filter(|s| s.path.split('/').any(empty));
    report(
        "no utils, common, manager or helper",
        &found.map(|s| s.path).collect::<Vec<_>>(),
    );
}

#[test]
fn unsafe_code_stays_where_it_may_be() {
    let allowed = ["memory/", "net/src/rdma", "python/"];
    let elsewhere = |s: &Source| !allowed.iter().any(|a| s.path.starts_with(a));
    let found = lines_where(&rust_sources(), elsewhere, |_, _, line| {
        let bare = line.trim_start();
        let code = !bare.starts_with("//") && !bare.starts_with('#') && !bare.contains('"');
        let words = ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern"];
        (code && words.iter().any(|w| bare.contains(w))).then(|| bare.to_owned())
    });
    report(
        "unsafe code is in memory/, net/src/rdma/ and python/ only",
        &found,
    );
}

#[test]
fn no_crate_switches_the_house_lints_off() {
    let mut findings = Vec::new();
    for name in crates() {
        let manifest = sources::read(&format!("{name}/Cargo.toml"));
        if !manifest.contains("[lints]\nworkspace = true") {
            findings.push(format!("{name}/Cargo.toml: no `[lints] workspace = true`"));
        }
    }
    let lints = [
        "unwrap_used",
        "undocumented_unsafe_blocks",
        "todo",
        "unimplemented",
        "dbg_macro",
    ];
    findings.extend(lines_where(
        &rust_sources(),
        |_| true,
        |source, i, line| {
            let off =
                line.contains("allow(") && lints.iter().any(|l| line.contains(&format!("::{l}")));
            (off && !source.is_test(i)).then(|| line.trim().to_owned())
        },
    ));
    report("the workspace's lints hold everywhere", &findings);
}

#[test]
fn imports_run_one_way() {
    let layer = |name: &str| {
        LAYERS
            .iter()
            .find(|(n, _)| *n == name)
            .map(|(_, layer)| *layer)
    };
    let mut findings = Vec::new();
    for name in crates() {
        let own = layer(&name).unwrap_or_else(|| panic!("{name} has no layer in tidy"));
        let manifest = sources::read(&format!("{name}/Cargo.toml"));
        let used = manifest.lines().filter_map(|l| l.strip_prefix("mneme-"));
        for other in used.filter_map(|l| l.split(['.', ' ', '=']).next()) {
            if layer(other).is_none_or(|theirs| theirs >= own) {
                findings.push(format!("{name} depends on {other}"));
            }
        }
    }
    report(
        "proto <- memory, net <- meta, server, client <- cli <- tests, benches",
        &findings,
    );
}

#[test]
fn every_crate_states_its_bounds() {
    let none = |name: &String| !root().join(name).join("src/limits.rs").is_file();
    report(
        "every crate has a limits.rs",
        &crates().into_iter().filter(none).collect::<Vec<_>>(),
    );
}

#[test]
fn tests_wait_for_conditions() {
    // These wait in short steps inside a loop with a deadline; everything else calls them.
    let waits = |s: &Source| {
        s.path == "tests/src/wait.rs"
            || s.path.contains("/support/")
            || s.path.contains("/fixture/")
    };
    let found = lines_where(
        &rust_sources(),
        |s| !waits(s),
        |source, i, line| {
            let sleeps = ["thread::sleep(", "time::sleep(", " sleep("]
                .iter()
                .any(|w| line.contains(w));
            let quoted = line.contains("\", \"") || line.trim_start().starts_with("//");
            (sleeps && !quoted && source.is_test(i)).then(|| line.trim().to_owned())
        },
    );
    report("no test sleeps to wait", &found);
}

#[test]
fn nothing_points_at_one_machine() {
    let paths = ["/home/", "/root/", "/Users/", "/work/"];
    let mut findings = Vec::new();
    for file in text_files()
        .iter()
        .filter(|f| f.path != "tests/suites/tidy/main.rs")
    {
        for (i, line) in file.text.lines().enumerate() {
            let at = format!("{}:{}", file.path, i + 1);
            if let Some(path) = paths.iter().find(|p| line.contains(*p)) {
                findings.push(format!("{at}: {path}"));
            }
            for url in line.split("://").skip(1) {
                let end = url
                    .find(['/', ' ', ')', '>', '"', '`', '{'])
                    .unwrap_or(url.len());
                let host = url[..end].trim_end_matches(['.', ',']);
                let bare = if host.starts_with('[') {
                    host.split_inclusive(']').next().unwrap_or(host)
                } else {
                    host.split(':').next().unwrap_or(host)
                };
                if !bare.is_empty() && !HOSTS.contains(&bare) {
                    findings.push(format!("{at}: host {bare}"));
                }
            }
        }
    }
    report(
        "no paths of one machine, no hosts but the known ones",
        &findings,
    );
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut findings = Vec::new();
    for file in text_files().iter().filter(|f| f.path.ends_with(".md")) {
        let folder = root()
            .join(&file.path)
            .parent()
            .expect("a file has a folder")
            .to_owned();
        for link in file
            .text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
        {
            let target = link.split('#').next().unwrap_or_default();
            if !target.is_empty() && !target.contains("://") && !folder.join(target).exists() {
                findings.push(format!("{}: {target}", file.path));
            }
        }
    }
    report("links lead to files that exist", &findings);
}
