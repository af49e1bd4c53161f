//! The direction of imports: which folder of the broker may import which, and that no circle of files spans two folders.
//!
//! Built for tests only. Reads parsed `use` trees and the paths in code, so that nested trees hide nothing.

use std::collections::{BTreeMap, BTreeSet};

use super::{Source, product};

const ROOT: &str = "broker/src/";

/// Folders, and what their files may not import.
const FORBIDDEN: [(&str, &[&str]); 9] = [
    (
        "context",
        &["backends", "sessions", "broker", "control", "listeners", "cli", "serve", "demo"],
    ),
    (
        "admission",
        &[
            "context",
            "backends",
            "sessions",
            "broker",
            "control",
            "listeners",
            "cli",
            "serve",
            "demo",
        ],
    ),
    ("backends", &["sessions", "broker", "control", "listeners", "cli", "serve", "demo"]),
    ("sessions", &["broker", "control", "listeners", "cli", "serve", "demo"]),
    (
        "sessions/stream",
        &[
            "sessions/session",
            "sessions/call",
            "sessions/tasks",
            "sessions/submit",
            "sessions/stateless",
        ],
    ),
    (
        "sessions/session",
        &["sessions/call", "sessions/tasks", "sessions/submit", "sessions/stateless"],
    ),
    ("sessions/call", &["sessions/tasks", "sessions/submit", "sessions/stateless"]),
    ("sessions/tasks", &["sessions/submit", "sessions/stateless"]),
    ("broker", &["control", "listeners", "cli", "serve", "demo"]),
];

#[test]
fn folders_import_only_what_is_below_them() {
    let graph = graph();
    let is_in = |file: &str, folder: &str| {
        file == folder || file.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
    };
    let mut found = Vec::new();
    for (folder, forbidden) in FORBIDDEN {
        assert!(graph.keys().any(|file| is_in(file, folder)), "there is nothing in {folder}");
        for (file, imports) in graph.iter().filter(|(file, _)| is_in(file, folder)) {
            let upwards =
                imports.iter().filter(|import| forbidden.iter().any(|above| is_in(import, above)));
            found.extend(upwards.map(|import| format!("{file} imports {import}")));
        }
    }
    assert!(found.is_empty(), "imports point downwards:\n{}", found.join("\n"));
}

#[test]
fn no_circle_of_imports_spans_two_folders() {
    let graph = graph();
    let folder = |file: &str| file.split('/').next().unwrap_or_default().to_owned();
    let reached: BTreeMap<&String, BTreeSet<String>> =
        graph.keys().map(|file| (file, reachable(&graph, file))).collect();
    let mut found = Vec::new();
    for (file, others) in &reached {
        let back = others.iter().filter(|other| reached[other].contains(*file));
        found.extend(
            back.filter(|other| folder(other) != folder(file))
                .map(|other| format!("{file} and {other} import each other")),
        );
    }
    assert!(
        found.is_empty(),
        "a circle of imports stays inside of one folder:\n{}",
        found.join("\n")
    );
}

#[test]
fn nested_trees_are_read() {
    let code = "use super::{a::B, c::{self, d::{E as F, *}}};\nuse crate::g::h;\nfn f() -> crate::i::J { super::k::l() }\n";
    let mut paths = paths(code, &["x", "y"]);
    paths.sort();
    assert_eq!(paths, ["g::h", "i::J", "x::a::B", "x::c", "x::c::d", "x::c::d::E", "x::k::l"]);
}

/// By file, without `.rs`: the files that it imports.
type Graph = BTreeMap<String, BTreeSet<String>>;

fn graph() -> Graph {
    let sources: Vec<(Vec<String>, Source)> =
        product("broker/src").into_iter().map(|source| (module_of(&source.path), source)).collect();
    let modules: BTreeSet<&[String]> = sources
        .iter()
        .map(|(module, _)| module.as_slice())
        .filter(|module| !module.is_empty())
        .collect();
    let file = |path: &str| {
        let segments: Vec<String> = path.split("::").map(str::to_owned).collect();
        (1..=segments.len())
            .rev()
            .map(|count| &segments[..count])
            .find(|some| modules.contains(some))
            .map(|some| some.join("/"))
    };
    let mut graph = Graph::new();
    for (module, source) in &sources {
        let own = module.join("/");
        let names: Vec<&str> = module.iter().map(String::as_str).collect();
        let code: String = source.code().map(|(_, line)| format!("{line}\n")).collect();
        let imports = paths(&code, &names)
            .iter()
            .filter_map(|path| file(path))
            .filter(|import| *import != own)
            .collect();
        graph.insert(own, imports);
    }
    graph
}

fn reachable(graph: &Graph, from: &str) -> BTreeSet<String> {
    let (mut found, mut left) = (BTreeSet::new(), vec![from.to_owned()]);
    while let Some(next) = left.pop() {
        let new = graph.get(&next).into_iter().flatten().filter(|import| !found.contains(*import));
        let new: Vec<String> = new.cloned().collect();
        found.extend(new.iter().cloned());
        left.extend(new);
    }
    found
}

/// The module of a file, from the root of the crate.
fn module_of(path: &str) -> Vec<String> {
    let path = path.strip_prefix(ROOT).unwrap_or(path).trim_end_matches(".rs");
    let path = path.strip_suffix("/mod").unwrap_or(path);
    path.split('/').filter(|name| !matches!(*name, "lib" | "main")).map(str::to_owned).collect()
}

/// Every path of this crate that the code of a module names, from the root of the crate.
fn paths(code: &str, module: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = String::new();
    let mut statements = code.split_inclusive(';');
    for statement in &mut statements {
        match statement.split_once("use ").filter(|(before, _)| is_visibility(before)) {
            Some((_, tree)) => expand(tree.trim_end_matches(';'), "", &mut found),
            None => rest.push_str(statement),
        }
    }
    let is_of_path = |letter: char| letter.is_alphanumeric() || matches!(letter, '_' | ':');
    found.extend(
        rest.split(|letter: char| !is_of_path(letter))
            .map(|path| path.trim_end_matches(':').to_owned()),
    );
    found.iter().filter_map(|path| from_root(path, module)).collect()
}

/// Only attributes and a visibility stand before a `use`, behind the end of the item before.
fn is_visibility(before: &str) -> bool {
    let before = before.rsplit(['}', ']']).next().unwrap_or_default().trim();
    before.is_empty() || before == "pub" || before.starts_with("pub(") && before.ends_with(')')
}

fn from_root(path: &str, module: &[&str]) -> Option<String> {
    let (mut base, mut rest) = (module, path);
    if let Some(inner) = rest.strip_prefix("crate::") {
        return Some(inner.to_owned());
    }
    if let Some(inner) = rest.strip_prefix("self::") {
        rest = inner;
    } else if !rest.starts_with("super::") {
        return None;
    }
    while let Some(inner) = rest.strip_prefix("super::") {
        (base, rest) = (base.split_last()?.1, inner);
    }
    Some(base.iter().copied().chain([rest]).collect::<Vec<_>>().join("::"))
}

/// Adds every path of a `use` tree.
fn expand(tree: &str, before: &str, found: &mut Vec<String>) {
    let tree = tree.trim();
    if let Some((path, inner)) = tree.split_once('{') {
        let inner = inner.trim_end().strip_suffix('}').unwrap_or(inner);
        let before = format!("{before}{}", path.trim());
        return parts(inner).into_iter().for_each(|part| expand(part, &before, found));
    }
    let path = tree.split(" as ").next().unwrap_or_default();
    let path = format!("{before}{path}");
    found.push(path.trim_end_matches("::self").trim_end_matches("::*").to_owned());
}

/// What stands between the commas of a tree, but for those of the trees in it.
fn parts(tree: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut begin) = (Vec::new(), 0, 0);
    for (at, letter) in tree.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&tree[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&tree[begin..]);
    parts.into_iter().filter(|part| !part.trim().is_empty()).collect()
}
