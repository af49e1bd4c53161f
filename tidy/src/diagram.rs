//! The import diagram of ARCHITECTURE.md: crates and the broker's folders, drawn from the parsed
//! imports.
//!
//! An arrow that others imply is left out, so that the layers can be seen. A circle is drawn with
//! all its arrows.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    architecture::page,
    graph::Edge,
    repository::{crates, folders, modules, read, updates, write},
};

const BEGIN: &str = "<!-- imports -->\n";
const END: &str = "<!-- end of imports -->";

/// Imported nodes of each node.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// Returns everything that can be reached from each node, itself excepted unless it lies in a circle.
fn reachable(graph: &Graph) -> Graph {
    let from = |node: &String| {
        let mut reached: BTreeSet<String> = BTreeSet::new();
        let mut next: Vec<&String> = graph[node].iter().collect();
        while let Some(node) = next.pop() {
            if reached.insert(node.clone()) {
                next.extend(&graph[node]);
            }
        }
        reached
    };
    graph.keys().map(|node| (node.clone(), from(node))).collect()
}

/// Returns the graph without the arrows that a longer way implies.
fn reduced(graph: &Graph) -> Graph {
    let reachable = reachable(graph);
    let in_circle = |one: &String, other: &String| {
        reachable[one].contains(other) && reachable[other].contains(one)
    };
    let is_implied = |from: &String, to: &String| {
        let by_way_of = |node: &String| {
            node != to
                && reachable[node].contains(to)
                && !in_circle(node, from)
                && !in_circle(node, to)
        };
        !in_circle(from, to) && graph[from].iter().any(by_way_of)
    };
    graph
        .iter()
        .map(|(from, all)| {
            (from.clone(), all.iter().filter(|to| !is_implied(from, to)).cloned().collect())
        })
        .collect()
}

/// Returns the imports between the top-level folders of a crate and from them to other crates. A module without a folder is
/// left out.
fn of_folders(krate: &str, folders: &[String], edges: &[Edge], crates: &[String]) -> Graph {
    let mut graph = Graph::new();
    let names: BTreeSet<&str> =
        folders.iter().filter_map(|folder| folder.strip_prefix(&format!("{krate}/src/"))).collect();
    let node = |path: &[String], is_own: bool| match path {
        [_, module, ..] if is_own => names.contains(module.as_str()).then(|| module.clone()),
        [other, ..] if !is_own => crates.contains(other).then(|| other.clone()),
        _ => None,
    };
    for name in &names {
        if !name.contains('/') {
            graph.entry((*name).to_owned()).or_default();
        }
    }
    for edge in edges {
        let (from, to) = (node(&edge.from.path, true), node(&edge.to.path, edge.to.file.is_some()));
        if let Some((from, to)) = from.zip(to).filter(|(from, to)| from != to) {
            graph.entry(to.clone()).or_default();
            graph.entry(from).or_default().insert(to);
        }
    }
    graph
}

/// Returns the crates of the program that a manifest names as dependencies.
fn dependencies(manifest: &str, crates: &[String]) -> BTreeSet<String> {
    let section = manifest
        .split("\n[")
        .find(|section| section.starts_with("dependencies]"))
        .unwrap_or_default();
    let names = section.lines().filter_map(|line| line.split(['.', ' ', '=']).next());
    names.map(str::to_owned).filter(|name| crates.contains(name)).collect()
}

/// Returns the graph in Mermaid's language.
fn mermaid(graph: &Graph, crates: &[String]) -> String {
    let mut text = String::from("```mermaid\nflowchart TD\n");
    let id = |node: &String| {
        if crates.contains(node) { format!("crate_{node}") } else { format!("folder_{node}") }
    };
    for node in graph.keys() {
        let label =
            if crates.contains(node) { format!("[[{node}]]") } else { format!("[{node}/]") };
        text.push_str(&format!("    {}{label}\n", id(node)));
    }
    for (from, all) in graph {
        for to in all {
            text.push_str(&format!("    {} --> {}\n", id(from), id(to)));
        }
    }
    text.push_str("```\n");
    text
}

/// Puts a diagram between the two marks of a page.
fn placed(page: &str, diagram: &str) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}{diagram}{END}{after}"))
}

#[test]
fn the_import_diagram_is_up_to_date() {
    // The broker itself is drawn by its folders, one of which has its name.
    let mut crates = crates();
    crates.retain(|krate| krate != "broker");
    let mut graph = of_folders("broker", &folders("broker"), &modules("broker").edges(), &crates);
    for krate in &crates {
        let manifest = read(&format!("{krate}/Cargo.toml"));
        graph.entry(krate.clone()).or_default().extend(dependencies(&manifest, &crates));
    }
    let page = page();
    let placed = placed(&page, &mermaid(&reduced(&graph), &crates));
    let placed = placed
        .unwrap_or_else(|| panic!("ARCHITECTURE.md has no place for the diagram: {BEGIN}{END}"));
    if updates() {
        write("ARCHITECTURE.md", &placed);
    } else {
        assert!(
            page == placed,
            "the import diagram of ARCHITECTURE.md differs from the imports: run this test with UPDATE_DOCS=1"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{graph::Modules, repository::Source};

    fn graph(arrows: &[(&str, &str)]) -> Graph {
        let mut graph = Graph::new();
        for (from, to) in arrows {
            graph.entry((*to).to_owned()).or_default();
            graph.entry((*from).to_owned()).or_default().insert((*to).to_owned());
        }
        graph
    }

    #[test]
    fn implied_arrows_are_left_out_and_cycles_are_kept() {
        assert_eq!(
            reduced(&graph(&[("a", "b"), ("b", "c"), ("a", "c")])),
            graph(&[("a", "b"), ("b", "c")])
        );
        let circle = graph(&[("a", "b"), ("b", "a"), ("b", "c"), ("a", "c")]);
        assert_eq!(reduced(&circle), circle);
    }

    #[test]
    fn folders_and_crates_are_drawn_and_files_are_not() {
        let files = [
            Source::new("app/src/lib.rs", "mod high; mod low; mod leaf;"),
            Source::new(
                "app/src/high/mod.rs",
                "use crate::{leaf::L, low::inner::I}; use storage::S; use std::fmt;",
            ),
            Source::new("app/src/low/mod.rs", "pub mod inner; use crate::leaf::L;"),
            Source::new("app/src/low/inner.rs", "pub struct I;"),
            Source::new("app/src/leaf.rs", "pub struct L;"),
        ];
        let folders = ["app/src/high", "app/src/low"].map(str::to_owned);
        let drawn = of_folders(
            "app",
            &folders,
            &Modules::read("app", "app", &files).edges(),
            &["storage".to_owned()],
        );
        assert_eq!(drawn, graph(&[("high", "low"), ("high", "storage")]));
        let text = mermaid(&drawn, &["storage".to_owned()]);
        assert_eq!(
            text,
            "```mermaid\nflowchart TD\n    folder_high[high/]\n    folder_low[low/]\n    crate_storage[[storage]]\n    \
             folder_high --> folder_low\n    folder_high --> crate_storage\n```\n"
        );
        assert_eq!(
            placed(&format!("a\n{BEGIN}old{END}\nb"), "new\n"),
            Some(format!("a\n{BEGIN}new\n{END}\nb"))
        );
        assert_eq!(placed("a", "new"), None);
    }
}
