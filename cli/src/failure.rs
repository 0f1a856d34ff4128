//! How a command ends without success: one line on stderr and an exit code.

/// Exit code of a command that failed.
pub const FAILED: u8 = 1;

/// Exit code of wrong usage.
pub const USAGE: u8 = 2;

/// The line of an error with its causes: `outer: inner`, whatever line breaks they contain. A
/// cause that the outer text tells already is not told again.
#[must_use]
pub fn line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let text = one_line(&cause.to_string());
        if line.is_empty() {
            line = text;
        } else if !line.contains(&text) {
            line = format!("{line}: {text}");
        }
    }
    line
}

/// The line of a parse error of clap, without its usage text.
#[must_use]
pub fn usage_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let (what, _) = text.split_once("\nUsage:").unwrap_or((text, ""));
    let (what, _) = what
        .split_once("\nFor more information")
        .unwrap_or((what, ""));
    // A blank line comes before a tip.
    let parts: Vec<String> = what.trim_end().split("\n\n").map(one_line).collect();
    format!("{}; see --help", parts.join("; "))
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use anyhow::Context;
    use clap::{Arg, Command};

    use super::*;

    #[test]
    fn causes_join_in_one_line() {
        let error = std::fs::read("/nonexistent").context("reading\n  it");
        let line = line(&error.expect_err("not there"));
        assert_eq!(line, "reading it: No such file or directory (os error 2)");
        let inner = std::io::Error::other("no room");
        let outer = anyhow::Error::new(inner).context("writing: no room");
        assert_eq!(super::line(&outer), "writing: no room");
    }

    #[test]
    fn usage_errors_are_one_line() {
        let command = Command::new("mneme")
            .arg(Arg::new("dim").long("dim").required(true))
            .arg(
                Arg::new("n")
                    .long("nodes")
                    .value_parser(clap::value_parser!(u32)),
            );
        for (words, says) in [
            (
                &["mneme"][..],
                "the following required arguments were not provided: --dim <dim>; see --help",
            ),
            (
                &["mneme", "--nodes", "x", "--dim", "1"],
                "invalid value 'x' for '--nodes <n>': invalid digit found in string; see --help",
            ),
            (
                &["mneme", "--dimm", "1"],
                "unexpected argument '--dimm' found",
            ),
        ] {
            let error = command
                .clone()
                .try_get_matches_from(words)
                .expect_err("wrong");
            let line = usage_line(&error);
            assert!(line.starts_with(says), "{line}");
            assert!(
                line.ends_with("; see --help") && !line.contains('\n'),
                "{line}"
            );
        }
    }
}
