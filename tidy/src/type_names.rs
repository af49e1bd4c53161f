//! Names of types: no two of one crate share a name, and the glossary explains the words of the
//! core's public types.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    graph::Modules,
    repository::{crates, modules, read},
};

const GLOSSARY: &str = "docs/internals/glossary.md";

/// Types that are the same concept in several modules and share one name: crate, name, count,
/// meaning.
const PARALLELS: [(&str, &str, usize, &str); 2] = [
    ("transport", "ConnectOptions", 2, "how a wire connects, by wire"),
    ("transport", "Limits", 2, "the limits of a connection, by wire"),
];

/// The folders whose public types the glossary explains.
const CORE: [&str; 3] = ["broker::sessions", "broker::backends", "broker::context"];

/// Words in the names of types that have their general meaning.
const GENERAL: [&str; 30] = [
    "backoff",
    "body",
    "dirty",
    "error",
    "find",
    "flag",
    "flight",
    "get",
    "handshake",
    "in",
    "loaded",
    "mutable",
    "open",
    "opened",
    "pipe",
    "post",
    "purpose",
    "reader",
    "requested",
    "retry",
    "route",
    "slot",
    "store",
    "table",
    "timer",
    "tracked",
    "waiter",
    "waker",
    "watch",
    "account",
];

/// Returns the names that several types of a crate share, with their locations.
fn shared(modules: &Modules) -> BTreeMap<String, Vec<String>> {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (module, definition) in modules.types() {
        places
            .entry(definition.name.clone())
            .or_default()
            .push(format!("{}:{}", module.file, definition.line));
    }
    places.retain(|_, places| places.len() > 1);
    places
}

/// Returns the faults of the names of a crate's types, given the parallels of this crate: name and
/// count.
fn faults(modules: &Modules, parallels: &[(&str, usize)]) -> Vec<String> {
    let shared = shared(modules);
    let mut faults = Vec::new();
    for (name, places) in &shared {
        if !parallels.contains(&(name.as_str(), places.len())) {
            faults.push(format!("{name} is {} types: {}", places.len(), places.join(" ")));
        }
    }
    for (name, count) in parallels {
        if shared.get(*name).is_none_or(|places| places.len() != *count) {
            faults.push(format!("{name} is not {count} types: correct the list of parallels"));
        }
    }
    faults
}

/// Returns the words of a name in lower case: `HttpSseStream` is `http`, `sse` and `stream`.
fn words(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for letter in name.chars().filter(|letter| letter.is_alphabetic()) {
        if letter.is_uppercase() || words.is_empty() {
            words.push(String::new());
        }
        words.last_mut().unwrap().extend(letter.to_lowercase());
    }
    words
}

/// Returns the singular of a noun, as far as the names of types need it.
fn singular(word: &str) -> &str {
    match word {
        _ if word.ends_with("ss") || word.ends_with("us") => word,
        _ => word.strip_suffix('s').unwrap_or(word),
    }
}

/// Returns the words of the terms in a glossary: the italic texts in the first column of its tables.
fn terms(glossary: &str) -> BTreeSet<String> {
    let rows = glossary.lines().filter_map(|line| line.strip_prefix('|')?.split('|').next());
    let terms = rows.flat_map(|cell| cell.split('*').skip(1).step_by(2));
    terms
        .flat_map(|term| term.split([' ', '-']))
        .map(|word| singular(&word.to_lowercase()).to_owned())
        .collect()
}

/// Returns the words of public types of `core` that are neither in the glossary nor general, each with a type.
fn unexplained(
    modules: &Modules,
    core: &[&str],
    glossary: &str,
    general: &[&str],
) -> BTreeMap<String, String> {
    let terms = terms(glossary);
    let mut unexplained = BTreeMap::new();
    for (module, definition) in modules.types().filter(|(_, definition)| definition.is_public) {
        let path = module.path.join("::");
        if !core.iter().any(|folder| path == *folder || path.starts_with(&format!("{folder}::"))) {
            continue;
        }
        for word in words(&definition.name) {
            let word = singular(&word);
            if !terms.contains(word) && !general.contains(&word) {
                unexplained.entry(word.to_owned()).or_insert_with(|| {
                    format!("{}:{} {}", module.file, definition.line, definition.name)
                });
            }
        }
    }
    unexplained
}

#[test]
fn no_two_types_of_a_crate_share_a_name() {
    let mut all = Vec::new();
    for krate in &crates() {
        let parallels = PARALLELS.iter().filter(|(of, ..)| of == krate);
        let parallels: Vec<_> = parallels.map(|(_, name, count, _)| (*name, *count)).collect();
        all.extend(
            faults(&modules(krate), &parallels)
                .into_iter()
                .map(|fault| format!("{krate}: {fault}")),
        );
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
}

#[test]
fn the_glossary_explains_the_words_of_the_core() {
    let unexplained = unexplained(&modules("broker"), &CORE, &read(GLOSSARY), &GENERAL);
    let list: Vec<String> =
        unexplained.iter().map(|(word, place)| format!("{word}: {place}")).collect();
    assert!(list.is_empty(), "{GLOSSARY} does not define:\n{}", list.join("\n"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repository::Source;

    fn app() -> Modules {
        let files = [
            Source::new("app/src/lib.rs", "mod a; mod b; #[cfg(test)] mod tests { struct Place; }"),
            Source::new(
                "app/src/a.rs",
                "pub struct Place; pub enum TaskRunsLimit {} struct Hidden; impl Iterator for Place { type Item = u8; }",
            ),
            Source::new("app/src/b.rs", "mod inner { trait Place {} }"),
        ];
        Modules::read("app", "app", &files)
    }

    #[test]
    fn a_name_of_two_types_is_found_and_the_list_is_exact() {
        let found = faults(&app(), &[]);
        assert_eq!(found, ["Place is 2 types: app/src/a.rs:1 app/src/b.rs:1"]);
        assert_eq!(faults(&app(), &[("Place", 2)]), [""; 0]);
        assert_eq!(faults(&app(), &[("Place", 3)]).len(), 2);
        assert_eq!(faults(&app(), &[("Place", 2), ("Gone", 2)]).len(), 1);
    }

    #[test]
    fn a_word_without_a_glossary_term_is_found() {
        let glossary =
            "| word | meaning |\n|---|---|\n| *task*, *place* | *limit* is not a term here |\n";
        let found = unexplained(&app(), &["app::a"], glossary, &["limit"]);
        assert_eq!(found.keys().collect::<Vec<_>>(), ["run"], "of a public type, in the singular");
    }

    #[test]
    fn names_are_split_into_words() {
        assert_eq!(words("HttpSseStream2"), ["http", "sse", "stream"]);
        assert_eq!(["tasks", "access", "status"].map(singular), ["task", "access", "status"]);
    }
}
