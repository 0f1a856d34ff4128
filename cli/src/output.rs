//! What commands print: human text, or with `--json` one JSON document.

use std::io::{self, BufWriter, ErrorKind, Write};

use comfy_table::{Table, presets};
use serde::Serialize;

/// How to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Output {
    /// JSON instead of text.
    pub json: bool,
}

impl Output {
    /// Prints a result: `value` as JSON, or what `text` makes of it.
    ///
    /// # Errors
    /// Stdout's, except that a reader that went away (`| head`) is no error.
    pub fn print<T: Serialize>(self, value: &T, text: impl FnOnce() -> String) -> io::Result<()> {
        let mut out = BufWriter::new(io::stdout().lock());
        let written = if self.json {
            serde_json::to_writer(&mut out, value)
                .map_err(io::Error::from)
                .and_then(|()| writeln!(out))
        } else {
            let text = text();
            writeln!(out, "{}", text.trim_end())
        };
        match written.and_then(|()| out.flush()) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            other => other,
        }
    }
}

/// Aligned columns under a header, without lines.
#[must_use]
pub fn columns(
    header: &[&str],
    rows: impl IntoIterator<Item = impl IntoIterator<Item = String>>,
) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(header.iter().copied());
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    trimmed(&table)
}

/// `name  value` lines.
#[must_use]
pub fn fields<'a>(fields: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    for (name, value) in fields {
        table.add_row([name.to_owned(), value]);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    trimmed(&table)
}

fn trimmed(table: &Table) -> String {
    let lines: Vec<String> = table.lines().map(|l| l.trim_end().to_owned()).collect();
    lines.join("\n")
}

/// Bytes as people read them: `1.5 GiB`.
#[must_use]
pub fn bytes(count: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.into_iter().find(|&(shift, _)| count >= 1 << shift) {
        Some((shift, unit)) => format!("{:.1} {unit}", count as f64 / f64::from(1 << shift)),
        None => format!("{count} B"),
    }
}

/// So many of something: `1 row`, `1,234 rows`.
#[must_use]
pub fn of(number: u64, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {what}{plural}", count(number))
}

/// A count with thousands set apart: `1,234,567`.
#[must_use]
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3 + 1);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_for_people() {
        assert_eq!(bytes(17), "17 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(3 << 30), "3.0 GiB");
        assert_eq!(bytes(u64::MAX), "17179869184.0 GiB");
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(count(number), text);
        }
    }

    #[test]
    fn columns_line_up() {
        let text = columns(
            &["name", "rows"],
            [["a", "1"], ["longer", "22"]].map(|r| r.map(str::to_owned)),
        );
        assert_eq!(text, "name    rows\na       1\nlonger  22");
    }
}
