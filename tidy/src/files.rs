//! Files: how they begin, how long they are, what rules may not contain. Also the dependencies that
//! a crate may not have.

use std::fs;

use crate::repository::{Source, TEST_CRATES, crates, members, product, read, root, rust_sources};

/// Lines of a file without its tests.
const LINES_MAX: usize = 500;

/// Files that exceed it since lines have 100 columns. The list may only shrink.
const TOO_LONG: [&str; 0] = [];

/// Dependencies that the crates of the inner layers may not have. An edge that Cargo guards needs
/// no other test.
const DEPENDENCIES: [(&str, &[&str]); 7] = [
    ("protocol", &["tokio", "hyper", "transport", "storage"]),
    ("transport", &["protocol", "storage", "simdutf8"]),
    ("records", &["tokio", "sqlx", "serde"]),
    ("rules", &["tokio", "transport", "storage", "hyper", "http", "tracing", "rand"]),
    ("storage", &["transport", "hyper", "rules"]),
    ("config", &["tokio", "hyper", "sqlx", "tracing"]),
    ("broker", &["simdutf8", "sqlx"]),
];

/// Words that rules may not contain: they neither wait nor read a clock.
const NOT_IN_RULES: [&str; 5] = ["tokio", "async ", ".await", "Instant::now", "Timestamp::now"];

fn begins_with_a_file_comment(source: &Source) -> bool {
    source.text.starts_with("//! ")
}

fn is_too_long(source: &Source) -> bool {
    source.product().lines().count() > LINES_MAX
}

/// Returns the lines where code holds one of `words`.
fn occurrences(sources: &[Source], words: &[&str]) -> Vec<String> {
    let lines = sources
        .iter()
        .flat_map(|source| source.code().map(move |(number, line)| (source, number, line)));
    let found = lines.flat_map(|(source, number, line)| {
        words
            .iter()
            .filter(|word| line.contains(**word))
            .map(move |word| format!("{}:{number}: {word}", source.path))
    });
    found.collect()
}

/// Returns those of `forbidden` that a manifest names as a dependency.
fn dependencies<'f>(manifest: &str, forbidden: &[&'f str]) -> Vec<&'f str> {
    let section = manifest
        .split("\n[")
        .find(|section| section.starts_with("dependencies]"))
        .unwrap_or_default();
    let names: Vec<&str> =
        section.lines().filter_map(|line| line.split(['.', ' ', '=']).next()).collect();
    forbidden.iter().copied().filter(|name| names.contains(name)).collect()
}

/// Returns the members of the workspace that the build context of the image lacks. Cargo reads the
/// manifest of every member, even to build one.
fn missing_in_context<'m>(members: &'m [String], ignore_file: &str) -> Vec<&'m str> {
    let kept: Vec<&str> = ignore_file.lines().filter_map(|line| line.strip_prefix('!')).collect();
    let top = |member: &'m String| member.split('/').next().unwrap_or_default();
    members.iter().map(top).filter(|folder| !kept.contains(folder)).collect()
}

/// Returns the targets of a makefile that do not have exactly one recipe and one line of help.
fn incomplete_targets(makefile: &str) -> Vec<&str> {
    let declared = makefile.lines().find_map(|line| line.strip_prefix(".PHONY:"));
    let count = |start: &str| {
        let is_it = |line: &&str| {
            line.strip_prefix(start).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
        };
        makefile.lines().filter(is_it).count()
    };
    let is_incomplete = |target: &&str| {
        let recipes = count(&format!("{target}:"));
        let help = count(&format!("\t@echo \"make {target}"));
        recipes != 1 || (help != 1 && *target != "help")
    };
    declared.unwrap_or_default().split_whitespace().filter(is_incomplete).collect()
}

#[test]
fn every_make_target_has_a_recipe_and_help() {
    assert_eq!(incomplete_targets(&read("Makefile")), [""; 0]);
    let help = "\t@echo \"make a  do\"\n\t@echo \"make b  do\"\n";
    let twice = format!(".PHONY: a b\n{help}a:\n\tdo\na:\n\tdo\nc:\n\tdo\n");
    assert_eq!(incomplete_targets(&twice), ["a", "b"]);
}

#[test]
fn the_image_is_built_from_every_crate() {
    assert_eq!(missing_in_context(&members(), &read(".dockerignore")), [""; 0]);
    let two = ["broker".to_owned(), "benches/instructions".to_owned()];
    assert_eq!(missing_in_context(&two, "*\n!broker\n"), ["benches"]);
}

#[test]
fn published_programs_have_a_profile_of_their_toolchain() {
    let toolchain = read("rust-toolchain.toml");
    let channel = toolchain.split("channel = \"").nth(1).and_then(|rest| rest.split('"').next());
    let profile = format!("broker/pgo/mcp-broker-{}.profdata", channel.expect("a pinned channel"));
    let profiles: Vec<_> = fs::read_dir(root().join("broker/pgo"))
        .expect("broker/pgo is a folder")
        .map(|entry| entry.expect("a readable entry").file_name().into_string())
        .collect();
    assert!(
        matches!(&profiles[..], [Ok(one)] if profile.ends_with(one)),
        "broker/pgo has {profiles:?} and not only {profile}: run `make pgo`"
    );
}

#[test]
fn every_file_begins_with_a_file_comment() {
    for source in crates()
        .into_iter()
        .chain(TEST_CRATES.map(str::to_owned))
        .flat_map(|folder| rust_sources(&folder))
    {
        assert!(begins_with_a_file_comment(&source), "{} does not begin with //!", source.path);
    }
}

#[test]
fn no_file_exceeds_the_length_limit() {
    let test_crates = TEST_CRATES
        .iter()
        .flat_map(|folder| rust_sources(folder))
        .filter(|source| !source.path.contains("/tests/"));
    let all = crates().into_iter().flat_map(|krate| product(&krate)).chain(test_crates);
    let mut long: Vec<String> = all.filter(is_too_long).map(|source| source.path).collect();
    long.sort();
    let new: Vec<&String> = long.iter().filter(|path| !TOO_LONG.contains(&path.as_str())).collect();
    assert!(new.is_empty(), "more than {LINES_MAX} lines without tests: {new:#?}");
    assert_eq!(long, TOO_LONG, "take off the list what is short enough, or gone");
}

#[test]
fn rules_neither_wait_nor_read_a_clock() {
    let found = occurrences(&product("rules"), &NOT_IN_RULES);
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn crates_have_only_dependencies_of_their_layer() {
    for (krate, forbidden) in DEPENDENCIES {
        let found = dependencies(&read(&format!("{krate}/Cargo.toml")), forbidden);
        assert!(found.is_empty(), "{krate} depends on {found:?}");
    }
}

#[test]
fn each_check_of_files_can_fail() {
    let long = Source::new("a.rs", &"fn f() {}\n".repeat(LINES_MAX + 1));
    assert!(!begins_with_a_file_comment(&long) && is_too_long(&long));
    let tested = format!(
        "//! A file.\nfn f() {{}}\n#[cfg(test)]\nmod tests {{\n{}}}\n",
        "fn f() {}\n".repeat(LINES_MAX)
    );
    assert!(
        begins_with_a_file_comment(&Source::new("a.rs", &tested))
            && !is_too_long(&Source::new("a.rs", &tested))
    );
    let waits = Source::new("a.rs", "// tokio in a comment\nlet now = Instant::now();\n");
    assert_eq!(occurrences(&[waits], &NOT_IN_RULES), ["a.rs:2: Instant::now"]);
    let manifest = "[package]\nname = \"a\"\n\n[dependencies]\nhyper.workspace = true\n\n[dev-dependencies]\ntokio = \"1\"\n";
    assert_eq!(dependencies(manifest, &["tokio", "hyper"]), ["hyper"]);
}
