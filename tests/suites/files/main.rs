//! Files of rows through a running cluster: every format and dtype there and back bit for bit, and
//! each refused file leaving nothing (`cases.md` B086, B089).

mod foreign;
mod refused;
mod round_trips;

use std::path::PathBuf;

use mneme_tests::{Dev, Mneme};
use serde_json::Value;

/// A running cluster and its folder.
struct Site {
    dev: Dev,
    mneme: Mneme,
}

impl Site {
    fn start() -> Self {
        let dev = Dev::start();
        let mneme = dev.mneme();
        Self { dev, mneme }
    }

    /// A path for a file of the test.
    fn path(&self, name: &str) -> PathBuf {
        let folder = self.dev.data().join("files");
        std::fs::create_dir_all(&folder).expect("a folder");
        folder.join(name)
    }

    /// The same as text.
    fn text(&self, name: &str) -> String {
        self.path(name).to_str().expect("UTF-8").to_owned()
    }

    /// Writes a file, in a folder where its name has one.
    fn write(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().expect("it has one")).expect("a folder");
        std::fs::write(path, bytes).expect("writable");
        self.text(name)
    }

    /// The values of rows, as `pull --json` shows them.
    fn values(&self, table: &str, keys: &str) -> Vec<Value> {
        let pulled = self.mneme.json(&["pull", table, "--keys", keys]);
        let rows = pulled["rows"].as_array().expect("rows");
        rows.iter().map(|row| row["values"].clone()).collect()
    }

    fn drop_table(&self, table: &str) {
        self.mneme.ok(&["table", "drop", table]);
    }

    /// Imports a file as a new table, which must be refused in one line that has `words`, and
    /// must leave no table.
    fn refused(&self, file: &str, more: &[&str], words: &[&str]) {
        let import = [&["import", "bad", file, "--create", "--seal"], more].concat();
        self.mneme.refused(1, &import, words);
        let tables = &self.mneme.json(&["table", "list"])["tables"];
        let named = |table: &Value| table["name"] == "bad";
        let tables = tables.as_array().expect("a list");
        assert!(!tables.iter().any(named), "{file} left a table: {tables:?}");
    }
}

/// A file of the kept corpora, written by another program: numpy, pyarrow.
fn kept(format: &str, name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
    std::fs::read(path.join(format).join(name)).expect("a file of the corpus")
}
