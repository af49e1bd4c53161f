//! The rules of the house that a test can hold: how long a file is, who imports whom, what the documentation names.
//!
//! Built for tests only. Reads the sources as text, so it sees what a reviewer sees; each failure names the file.

use std::{
    fs,
    path::{Path, PathBuf},
};

const LINES_MAX: usize = 500;
const CRATES: [&str; 4] = ["protocol", "transport", "storage", "broker"];

struct Source {
    /// Relative to the repository, with `/`.
    path: String,
    text: String,
}

impl Source {
    /// The file without its tests.
    fn product(&self) -> &str {
        let end =
            self.text.find("\n#[cfg(test)]\nmod tests {").map_or(self.text.len(), |at| at + 1);
        &self.text[..end]
    }

    /// Lines of the product that are code, with their numbers.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = self.product().lines().enumerate();
        lines
            .map(|(index, line)| (index + 1, line))
            .filter(|(_, line)| !line.trim_start().starts_with("//"))
    }

    /// Whether all of the file is for tests.
    fn is_test(&self) -> bool {
        self.path.ends_with("/tests.rs")
            || self.path.contains("/tests/")
            || TEST_FILES.contains(&self.path.as_str())
    }
}

/// Modules that are built for tests only.
const TEST_FILES: [&str; 4] = [
    "broker/src/tidy.rs",
    "broker/src/pages.rs",
    "broker/src/pages/limits.rs",
    "broker/src/cli/documented.rs",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Every Rust file below a folder of the repository.
fn sources(folder: &str) -> Vec<Source> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in
            fs::read_dir(root().join(&folder)).unwrap_or_else(|error| panic!("{folder}: {error}"))
        {
            let entry = entry.unwrap();
            let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
            if entry.file_type().unwrap().is_dir() {
                folders.push(path);
            } else if path.ends_with(".rs") {
                found.push(Source { text: read(&path), path });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(!found.is_empty(), "{folder} holds no source");
    found
}

fn product(folder: &str) -> Vec<Source> {
    sources(folder).into_iter().filter(|source| !source.is_test()).collect()
}

/// No code below `folder` may hold any of `notifications`.
#[track_caller]
fn assert_absent(folder: &str, words: &[&str], why: &str) {
    let mut found = Vec::new();
    for source in product(folder) {
        for (number, line) in source.code() {
            found.extend(
                words
                    .iter()
                    .filter(|word| line.contains(**word))
                    .map(|word| format!("{}:{number}: {word}", source.path)),
            );
        }
    }
    assert!(found.is_empty(), "{why}:\n{}", found.join("\n"));
}

#[test]
fn every_file_begins_with_what_it_is() {
    for folder in CRATES.into_iter().chain(["testkit", "loadtest", "benches"]) {
        for source in sources(folder) {
            assert!(source.text.starts_with("//! "), "{} does not begin with //!", source.path);
        }
    }
}

#[test]
fn no_file_is_longer_than_a_reader_can_hold() {
    for folder in CRATES.into_iter().chain(["testkit", "loadtest", "benches"]) {
        for source in product(folder) {
            let lines = source.product().lines().count();
            assert!(
                lines <= LINES_MAX,
                "{} has {lines} lines without its tests, {LINES_MAX} are allowed",
                source.path
            );
        }
    }
}

#[test]
fn rules_decide_and_nothing_else() {
    assert_absent(
        "broker/src/rules",
        &["tokio", "async ", ".await", "Instant::now", "Timestamp::now"],
        "rules neither wait nor look at a clock",
    );
    let upwards =
        ["sessions", "backends", "listeners", "control", "broker", "metrics", "auth", "cli"]
            .map(|module| format!("crate::{module}"));
    let upwards: Vec<&str> = upwards.iter().map(String::as_str).collect();
    assert_absent("broker/src/rules", &upwards, "rules import nothing that acts");
    assert_absent(
        "broker/src/rules",
        &["transport::", "storage::", "hyper", "http::"],
        "rules know no socket and no store",
    );
}

#[test]
fn arrows_point_downwards() {
    for module in ["listeners", "control", "cli", "serve", "demo"] {
        for folder in ["broker/src/backends", "broker/src/sessions"] {
            let above = format!("crate::{module}");
            assert_absent(folder, &[&above], "backends and sessions import nothing above them");
        }
    }
    for folder in ["broker/src/backends", "broker/src/sessions"] {
        assert_absent(folder, &["storage::"], "the store is asked by control only");
    }
    assert_absent(
        "broker/src/listeners/http",
        &["storage::", "crate::control"],
        "the data plane never asks the store",
    );
    assert_absent("broker/src/demo", &["crate::"], "the demo backend knows nothing of the broker");
}

#[test]
fn crates_keep_to_their_layer() {
    for (krate, forbidden) in [
        ("protocol", &["tokio", "hyper", "transport", "storage"][..]),
        ("transport", &["protocol", "storage", "simdutf8"]),
        ("storage", &["transport", "hyper"]),
        ("broker", &["simdutf8", "sqlx"]),
    ] {
        let manifest = read(&format!("{krate}/Cargo.toml"));
        for dependency in manifest.lines().filter_map(|line| line.split(['.', ' ', '=']).next()) {
            assert!(!forbidden.contains(&dependency), "{krate} depends on {dependency}");
        }
    }
}

#[test]
fn the_code_map_names_every_module() {
    let map = read("ARCHITECTURE.md");
    for krate in CRATES {
        let folder = format!("{krate}/src");
        for source in product(&folder) {
            let relative = source.path.strip_prefix(&format!("{folder}/")).unwrap_or(&source.path);
            let name = relative.strip_suffix("mod.rs").unwrap_or(relative);
            assert!(
                map.contains(&format!("`{name}`")),
                "ARCHITECTURE.md does not name `{name}` of {krate}"
            );
        }
    }
}

#[test]
fn the_code_map_names_nothing_that_is_gone() {
    let map = read("ARCHITECTURE.md");
    let all: Vec<String> = CRATES
        .iter()
        .flat_map(|krate| sources(&format!("{krate}/src")))
        .map(|source| source.path)
        .collect();
    for name in map
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|name| name.ends_with(".rs") && !name.contains(' '))
    {
        assert!(
            all.iter().any(|path| path == name || path.ends_with(&format!("/{name}"))),
            "ARCHITECTURE.md names `{name}`, which does not exist"
        );
    }
}

/// What tests say, with ids as both code and prose write them.
fn cited() -> String {
    let mut cited = String::new();
    for source in ["protocol", "transport", "storage", "broker", "testkit"]
        .iter()
        .flat_map(|krate| sources(krate))
    {
        let tests = if source.is_test() {
            0
        } else {
            source.text.find("#[cfg(test)]").unwrap_or(source.text.len())
        };
        if source.path != "broker/src/tidy.rs" {
            cited.push_str(&source.text[tests..].to_lowercase().replace('-', "_"));
        }
    }
    cited
}

#[test]
fn every_requirement_of_2026_07_28_is_named_by_a_test_or_told_to_be_uncovered() {
    assert_covered("testkit/checklist-2026-07-28.txt");
}

/// Of the chapter Authorization, of both revisions that have the server's side of it as it is built.
#[test]
fn every_requirement_of_authorization_is_named_by_a_test_or_told_to_be_uncovered() {
    assert_covered("testkit/checklist-authorization.txt");
}

#[track_caller]
fn assert_covered(checklist: &str) {
    let (cited, page) = (cited(), read("docs/compatibility.md"));
    for id in read(checklist).lines() {
        let name = id.to_lowercase().replace('-', "_");
        let is_whole = |at: usize| {
            let (before, after) = (&cited[..at], &cited[at + name.len()..]);
            !before.ends_with(|last: char| last.is_ascii_alphanumeric())
                && !after.starts_with(|next: char| next.is_ascii_digit())
        };
        let is_cited = cited.match_indices(&name).any(|(at, _)| is_whole(at));
        let is_told = page.contains(&format!("\n| {id} | "));
        assert!(
            is_cited || is_told,
            "{id}: no test names it, and docs/compatibility.md does not say why"
        );
        assert!(
            !is_cited || !is_told,
            "{id}: a test names it, so docs/compatibility.md need not say why not: take its line out"
        );
    }
}

/// What was promised to be tried, by section: faults of processes and stores (F), backends (B), JSON (J), access (A), operation (O),
/// and findings that were closed (S).
const PROMISED: [(&str, std::ops::RangeInclusive<u32>); 7] = [
    ("F", 1..=50),
    ("B", 1..=26),
    ("J", 1..=24),
    ("A", 1..=27),
    ("A", 30..=43),
    ("O", 1..=12),
    ("S", 1..=18),
];
/// And under load.
const PROMISED_UNDER_LOAD: [u32; 12] = [6, 13, 14, 15, 16, 17, 18, 19, 20, 22, 23, 26];

/// Each has a row in `docs/internals/security-proofs.md`, and the row names a test, or says in words why there is none.
#[test]
fn everything_that_was_promised_to_be_tried_has_a_test_or_a_reason() {
    let page = read("docs/internals/security-proofs.md");
    let rows: Vec<(Vec<&str>, &str)> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"))
        .filter_map(|row| row.split_once(" | "))
        .map(|(ids, rest)| (ids.split(", ").collect(), rest))
        .collect();
    let single = PROMISED
        .into_iter()
        .flat_map(|(section, numbers)| numbers.map(move |number| format!("{section}-{number:02}")));
    let all: Vec<String> =
        single.chain(PROMISED_UNDER_LOAD.iter().map(|number| format!("R{number}"))).collect();
    let tests: String = CRATES
        .iter()
        .chain(&["testkit"])
        .flat_map(|krate| sources(krate))
        .map(|source| source.text)
        .collect();
    for id in &all {
        let of_it: Vec<&str> = rows
            .iter()
            .filter(|(ids, _)| ids.contains(&id.as_str()))
            .map(|(_, rest)| *rest)
            .collect();
        assert_eq!(of_it.len(), 1, "{id} has one row in docs/internals/security-proofs.md");
        let (_, told) =
            of_it[0].split_once(" | ").unwrap_or_else(|| panic!("{id}: the row has three columns"));
        let is_name = |text: &&str| {
            let of_names =
                |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
            text.bytes().all(of_names) && text.matches('_').count() >= 3
        };
        let names = told.split('`').skip(1).step_by(2).filter(is_name);
        for name in names {
            let is_test =
                tests.contains(&format!("fn {name}(")) || tests.contains(&format!("fn {name}<"));
            assert!(is_test, "{id} names the test {name}, which does not exist");
        }
        assert!(told.len() > 20, "{id} names no test and gives no reason: {told}");
    }
}
