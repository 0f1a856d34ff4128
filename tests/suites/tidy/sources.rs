//! The files of the workspace, and which of their lines are test code.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A file, its path relative to the workspace with `/` between folders.
pub struct Source {
    pub path: String,
    pub text: String,
    /// First line of the `#[cfg(test)] mod`, or past the end.
    tests_from: usize,
}

impl Source {
    /// Whether line `index` (from 0) is test code.
    pub fn is_test(&self, index: usize) -> bool {
        index >= self.tests_from
    }
}

/// The workspace's folder.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("a crate of the workspace")
        .to_owned()
}

/// Reads a file of the workspace.
pub fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Crates of the workspace: folders with a manifest. `fuzz` stands apart from it.
pub fn crates() -> Vec<String> {
    let entries = std::fs::read_dir(root()).expect("the workspace is readable");
    let with_manifest = entries
        .flatten()
        .filter(|e| e.path().join("Cargo.toml").is_file() && e.file_name() != "fuzz");
    let mut names: Vec<String> = with_manifest
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder)
        .expect("a readable folder")
        .flatten()
    {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        let hidden = name.starts_with('.') && name != ".ci" && name != ".config";
        if hidden || name == "target" {
            continue;
        }
        if path.is_dir() {
            walk(&path, found);
        } else {
            found.push(path);
        }
    }
}

/// All files that are text, except generated ones.
pub fn text_files() -> Vec<Source> {
    let mut paths = Vec::new();
    walk(&root(), &mut paths);
    paths.sort();
    let readable = paths.into_iter().filter_map(|path| {
        let name = path
            .strip_prefix(root())
            .expect("below the root")
            .to_string_lossy();
        let path_text = name.replace('\\', "/");
        let generated =
            path_text.ends_with("Cargo.lock") || path_text.contains("proptest-regressions");
        let text = std::fs::read_to_string(&path).ok().filter(|_| !generated)?;
        Some(Source {
            path: path_text,
            text,
            tests_from: usize::MAX,
        })
    });
    readable.collect()
}

/// All Rust files, with their test code marked.
pub fn rust_sources() -> Vec<Source> {
    let mut all: Vec<Source> = text_files()
        .into_iter()
        .filter(|f| f.path.ends_with(".rs"))
        .collect();
    let test_modules: BTreeSet<String> = all.iter().flat_map(declared_test_modules).collect();
    for source in &mut all {
        let folders: Vec<&str> = source.path.split('/').collect();
        let in_tests = folders.iter().any(|f| ["tests", "suites"].contains(f));
        if in_tests || test_modules.contains(&source.path) {
            source.tests_from = 0;
            continue;
        }
        let lines: Vec<&str> = source.text.lines().collect();
        let is_module = |pair: &[&str]| {
            let cfg = pair[0].starts_with("#[cfg(test)]") || pair[0].starts_with("#[cfg(all(test");
            cfg && pair[1].starts_with("mod ") && pair[1].ends_with('{')
        };
        source.tests_from = lines.windows(2).position(is_module).unwrap_or(usize::MAX);
    }
    all
}

/// Paths of modules declared as `#[cfg(test)] mod NAME;` in a file.
fn declared_test_modules(source: &Source) -> Vec<String> {
    let lines: Vec<&str> = source.text.lines().collect();
    let (folder, file) = source.path.rsplit_once('/').unwrap_or(("", &source.path));
    let own = match file {
        "lib.rs" | "main.rs" | "mod.rs" => folder.to_owned(),
        other => format!("{folder}/{}", other.trim_end_matches(".rs")),
    };
    let declared = lines
        .windows(2)
        .filter(|pair| pair[0].trim().starts_with("#[cfg(test)]"));
    let names = declared.filter_map(|pair| {
        let rest = pair[1]
            .trim()
            .strip_prefix("mod ")
            .or(pair[1].trim().strip_prefix("pub mod "))?;
        rest.strip_suffix(';')
    });
    names
        .flat_map(|n| [format!("{own}/{n}.rs"), format!("{own}/{n}/mod.rs")])
        .collect()
}
