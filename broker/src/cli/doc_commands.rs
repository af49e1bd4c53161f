//! Checks that the commands in the documentation are commands of this program. Built for tests
//! only.

use std::fs;

use clap::Parser;

use super::args::Cli;

const PAGES: [&str; 7] = [
    "README.md",
    "docs/catalog.md",
    "docs/clients.md",
    "docs/getting-started.md",
    "docs/migration.md",
    "docs/operations.md",
    "docs/security.md",
];

/// Splits a line of shell into words, with quotes but without expansion. Stops at the end of the
/// command.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![];
    let mut word: Option<String> = None;
    let mut quote = None;
    for c in line.chars() {
        match (quote, c) {
            (None, '#' | '>' | '|') if word.is_none() => break,
            (None, '"' | '\'') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (Some(open), c) if open == c => quote = None,
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

#[test]
fn every_documented_command_exists() {
    let mut seen = 0;
    for page in PAGES {
        let text = fs::read_to_string(format!("{}/../{page}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        let lines = text
            .split("```")
            .skip(1)
            .step_by(2)
            .filter(|block| block.starts_with("bash\n") || block.starts_with("console\n"));
        for line in lines.flat_map(str::lines) {
            let Some(at) = line
                .find("mcp-broker ")
                .filter(|at| line[..*at].chars().all(|c| !c.is_lowercase() && c != '/'))
            else {
                continue;
            };
            let line = &line[at..];
            if let Err(error) = Cli::try_parse_from(words(line)) {
                panic!("{page}: {line}\n{error}");
            }
            seen += 1;
        }
    }
    assert!(seen > 15, "only {seen} commands were found");
}
