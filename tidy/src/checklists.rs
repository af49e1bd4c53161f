//! Every requirement of the checklists, and every promised test, has a test or a reason.

use std::collections::HashSet;

use crate::repository::{crates, product, read, rust_sources};

/// Promised tests by section: faults of processes and stores (F), backends (B), JSON (J), access
/// (A), operation (O), and findings that were closed (S).
const PROMISED: [(&str, std::ops::RangeInclusive<u32>); 7] = [
    ("F", 1..=50),
    ("B", 1..=26),
    ("J", 1..=24),
    ("A", 1..=27),
    ("A", 30..=43),
    ("O", 1..=12),
    ("S", 1..=18),
];
/// Promised tests under load.
const PROMISED_UNDER_LOAD: [u32; 12] = [6, 13, 14, 15, 16, 17, 18, 19, 20, 22, 23, 26];

/// Returns the text of all tests. Ids in it are in lower case and have `_` instead of `-`, as in
/// the names of functions.
fn cited() -> String {
    let mut cited = String::new();
    for krate in &crates() {
        let product: Vec<String> = product(krate).into_iter().map(|source| source.path).collect();
        for source in rust_sources(krate) {
            let is_product = product.contains(&source.path) && !source.path.contains("/tests/");
            let tests = if is_product {
                source.text.find("#[cfg(test)]").unwrap_or(source.text.len())
            } else {
                0
            };
            cited.push_str(&source.text[tests..]);
        }
    }
    for source in rust_sources("testkit") {
        let is_test = source.path.ends_with("/tests.rs") || source.path.contains("/tests/");
        let tests =
            if is_test { 0 } else { source.text.find("#[cfg(test)]").unwrap_or(source.text.len()) };
        cited.push_str(&source.text[tests..]);
    }
    cited.to_lowercase().replace('-', "_")
}

/// Returns the fault of a requirement, given the text of all tests and the page of uncovered ones.
fn fault(id: &str, cited: &str, page: &str) -> Option<String> {
    let name = id.to_lowercase().replace('-', "_");
    let is_whole = |at: usize| {
        let (before, after) = (&cited[..at], &cited[at + name.len()..]);
        !before.ends_with(|last: char| last.is_ascii_alphanumeric())
            && !after.starts_with(|next: char| next.is_ascii_digit())
    };
    let is_cited = cited.match_indices(&name).any(|(at, _)| is_whole(at));
    let is_listed = page.contains(&format!("\n| {id} | "));
    match (is_cited, is_listed) {
        (false, false) => {
            Some(format!("{id}: no test names it, and docs/compatibility.md does not say why"))
        }
        (true, true) => Some(format!(
            "{id}: a test names it, so docs/compatibility.md need not say why not: take its line out"
        )),
        _ => None,
    }
}

#[track_caller]
fn assert_covered(checklist: &str) {
    let (cited, page) = (cited(), read("docs/compatibility.md"));
    let faults: Vec<String> =
        read(checklist).lines().filter_map(|id| fault(id, &cited, &page)).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_requirement_of_2026_07_28_is_named_by_a_test_or_listed() {
    assert_covered("testkit/checklist-2026-07-28.txt");
}

/// Covers the chapter Authorization of both revisions whose server side is built.
#[test]
fn every_requirement_of_authorization_is_named_by_a_test_or_listed() {
    assert_covered("testkit/checklist-authorization.txt");
}

/// Returns the name of the function that this text declares after `fn `.
fn function_name(text: &str) -> Option<&str> {
    let end = text.find(|char: char| !char.is_ascii_alphanumeric() && char != '_')?;
    text[end..].starts_with(['(', '<']).then(|| &text[..end])
}

/// Each promise has a row in `docs/internals/security-proofs.md`, which names a test or gives a
/// reason why there is none.
#[test]
fn every_promised_test_exists_or_has_a_reason() {
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
    let folders = crates().into_iter().chain(["testkit".to_owned()]);
    let sources: Vec<String> =
        folders.flat_map(|folder| rust_sources(&folder)).map(|source| source.text).collect();
    let functions: HashSet<&str> = sources
        .iter()
        .flat_map(|text| text.split("fn ").skip(1).filter_map(function_name))
        .collect();
    for id in &all {
        let of_it: Vec<&str> = rows
            .iter()
            .filter(|(ids, _)| ids.contains(&id.as_str()))
            .map(|(_, rest)| *rest)
            .collect();
        assert_eq!(of_it.len(), 1, "{id} has one row in docs/internals/security-proofs.md");
        let (_, answer) =
            of_it[0].split_once(" | ").unwrap_or_else(|| panic!("{id}: the row has three columns"));
        let is_name = |text: &&str| {
            let of_names =
                |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
            text.bytes().all(of_names) && text.matches('_').count() >= 3
        };
        let names = answer.split('`').skip(1).step_by(2).filter(is_name);
        for name in names {
            let exists = functions.contains(name);
            assert!(exists, "{id} names the test {name}, which does not exist");
        }
        assert!(answer.len() > 20, "{id} names no test and gives no reason: {answer}");
    }
}

#[test]
fn a_requirement_is_covered_or_listed_and_not_both() {
    let (cited, page) = ("fn mcp_1_2_holds() // mcp_1_30", "\n| MCP-4 | why |\n| MCP-1-2 | why |");
    assert!(fault("MCP-1-30", cited, page).is_none() && fault("MCP-4", cited, page).is_none());
    for id in ["MCP-1-3", "MCP-1-2", "MCP-5"] {
        assert!(fault(id, cited, page).is_some(), "{id}");
    }
}
