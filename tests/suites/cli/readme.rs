//! What the README shows parses: every `mneme` line in its code blocks names commands and
//! options that the binary has.

use mneme_tests::Mneme;

/// Command lines of the README: lines of code blocks that begin with `mneme`, continued lines
/// joined, what follows `#`, `|`, `>` or `&` cut off.
fn command_lines() -> Vec<Vec<String>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md");
    let text = std::fs::read_to_string(path)
        .expect("a README")
        .replace("\\\n", " ");
    let mut in_block = false;
    let mut found = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if in_block && line.trim_start().starts_with("mneme ") {
            let ends = |word: &&str| !["#", "|", ">", "&", "&&"].contains(word);
            let words = line.split_whitespace().skip(1).take_while(ends);
            found.push(words.map(str::to_owned).collect());
        }
    }
    found
}

#[test]
fn every_command_of_the_readme_exists() {
    let lines = command_lines();
    assert!(
        lines.len() > 10,
        "the README shows {} commands",
        lines.len()
    );
    let mneme = Mneme::new();
    for words in lines {
        let is_word = |w: &&String| w.chars().all(|c| c.is_ascii_lowercase());
        let mut path: Vec<&str> = words
            .iter()
            .take_while(is_word)
            .map(String::as_str)
            .collect();
        // A positional argument may look like a subcommand: cut until the help is there.
        let help = loop {
            assert!(!path.is_empty(), "no command in {words:?}");
            let output = mneme.run(&[&path[..], &["--help"]].concat());
            if output.code == 0 {
                break output.stdout;
            }
            path.pop();
        };
        for option in words.iter().filter(|w| w.starts_with("--")) {
            assert!(
                help.contains(option.as_str()),
                "{words:?}: no {option} in\n{help}"
            );
        }
    }
}

/// The example files of `deploy/` hold only keys that are options of their command.
#[test]
fn every_key_of_the_deployment_exists() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy");
    for (file, command) in [("meta.toml", "meta"), ("server.toml", "server")] {
        let text = std::fs::read_to_string(format!("{folder}/{file}")).expect("an example");
        let help = Mneme::new().ok(&[command, "--help"]).stdout;
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        for key in lines
            .filter_map(|line| line.split(" = ").next())
            .filter(|k| !k.is_empty())
        {
            let option = format!("--{}", key.replace('_', "-"));
            assert!(help.contains(&option), "{file}: no {option} in\n{help}");
        }
    }
}
