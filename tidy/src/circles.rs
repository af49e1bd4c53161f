//! Circles of imports between files, by Tarjan's algorithm, and the folders they lie in.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    graph::Edge,
    repository::{crates, modules},
};

/// Returns the groups of files that import each other, directly or not. Sorted; a single file is
/// not a circle.
pub(crate) fn circles(edges: &[Edge]) -> Vec<Vec<String>> {
    let mut imports: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for edge in edges {
        if let (Some(from), Some(to)) = (&edge.from.file, &edge.to.file) {
            imports.entry(from).or_default().insert(to);
            imports.entry(to).or_default();
        }
    }
    let mut search = Search {
        imports: &imports,
        visited: BTreeMap::new(),
        stack: Vec::new(),
        circles: Vec::new(),
    };
    for file in imports.keys() {
        if !search.visited.contains_key(file) {
            search.visit(file);
        }
    }
    search.circles
}

struct Search<'g> {
    imports: &'g BTreeMap<&'g str, BTreeSet<&'g str>>,
    /// Index at which a file was reached, and the lowest index on the stack that it leads back to.
    visited: BTreeMap<&'g str, (usize, usize)>,
    stack: Vec<&'g str>,
    circles: Vec<Vec<String>>,
}

impl<'g> Search<'g> {
    fn visit(&mut self, file: &'g str) -> usize {
        let index = self.visited.len();
        let mut earliest = index;
        self.visited.insert(file, (index, index));
        self.stack.push(file);
        for next in &self.imports[file] {
            earliest = match self.visited.get(next) {
                None => earliest.min(self.visit(next)),
                Some(&(reached, _)) if self.stack.contains(next) => earliest.min(reached),
                Some(_) => earliest,
            };
        }
        self.visited.insert(file, (index, earliest));
        if earliest == index {
            let start = self.stack.iter().rposition(|other| *other == file).unwrap_or_default();
            let mut circle: Vec<String> =
                self.stack.split_off(start).into_iter().map(str::to_owned).collect();
            circle.sort();
            if circle.len() > 1 {
                self.circles.push(circle);
            }
        }
        earliest
    }
}

/// A circle that lies in several folders and is not cut yet.
struct Exception {
    /// The deepest folder that holds all of it.
    folder: &'static str,
    /// Files in it. The number may only shrink.
    files: usize,
    reason: &'static str,
}

const EXCEPTIONS: [Exception; 3] = [
    Exception { folder: "transport/src", files: 2, reason: "TCP and TLS connect each other" },
    Exception { folder: "broker/src/backends", files: 2, reason: "a backend and its links" },
    Exception { folder: "broker/src/sessions", files: 8, reason: "a session and its tenant" },
];

/// Returns the folder that a file belongs to. The file of a module belongs to the folder with the
/// rest of the module.
fn folder<'f>(file: &'f str, all: &BTreeSet<&str>) -> &'f str {
    let module = file.strip_suffix(".rs").unwrap_or(file);
    let parent = file.rsplit_once('/').map_or("", |(parent, _)| parent);
    let has_folder = all
        .iter()
        .any(|other| other.strip_prefix(module).is_some_and(|rest| rest.starts_with('/')));
    if has_folder { module } else { parent }
}

/// Returns the deepest folder that holds all of `folders`.
fn common<'f>(folders: &BTreeSet<&'f str>) -> &'f str {
    let mut common = folders.first().copied().unwrap_or_default();
    while !folders.iter().all(|folder| {
        folder.strip_prefix(common).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }) {
        common = common.rsplit_once('/').map_or("", |(parent, _)| parent);
    }
    common
}

/// Returns the faults of the circles of a crate. `exceptions` are those of this crate.
fn faults(edges: &[Edge], all: &BTreeSet<&str>, exceptions: &[&Exception]) -> Vec<String> {
    let mut faults = Vec::new();
    let mut met: BTreeMap<&str, usize> = BTreeMap::new();
    for circle in circles(edges) {
        let folders: BTreeSet<&str> = circle.iter().map(|file| folder(file, all)).collect();
        if folders.len() == 1 {
            continue;
        }
        let exception = exceptions.iter().find(|exception| exception.folder == common(&folders));
        if exception.is_none_or(|exception| circle.len() > exception.files) {
            faults.push(format!(
                "a circle of {} files lies in {folders:?}: {}",
                circle.len(),
                circle.join(" ")
            ));
        }
        if let Some(exception) = exception {
            let most = met.entry(exception.folder).or_default();
            *most = circle.len().max(*most);
        }
    }
    for Exception { folder, files, .. } in exceptions {
        match met.get(folder) {
            None => {
                faults.push(format!("the circle below {folder} is cut: take its exception away"))
            }
            Some(found) if found < files => faults
                .push(format!("the circle below {folder} has {found} files: lower its exception")),
            Some(_) => {}
        }
    }
    faults
}

#[test]
fn no_import_cycle_is_larger_than_a_folder() {
    assert!(EXCEPTIONS.iter().all(|exception| !exception.reason.is_empty()));
    let mut all = Vec::new();
    for krate in &crates() {
        let modules = modules(krate);
        let exceptions: Vec<&Exception> = EXCEPTIONS
            .iter()
            .filter(|exception| exception.folder.split('/').next() == Some(krate.as_str()))
            .collect();
        all.extend(faults(&modules.edges(), &modules.files(), &exceptions));
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{graph::Modules, repository::Source};

    /// Returns modules in which `a/` and `b/` import each other through `c.rs`, and the files of
    /// `d/` import each other.
    fn modules() -> Modules {
        Modules::read(
            "app",
            "app",
            &[
                Source::new("app/src/lib.rs", "mod a; mod b; mod c; mod d;"),
                Source::new("app/src/a/mod.rs", "use crate::b::B; pub struct A;"),
                Source::new("app/src/b/mod.rs", "use crate::{c::{C}}; pub struct B;"),
                Source::new("app/src/c.rs", "pub struct C(crate::a::A);"),
                Source::new("app/src/d.rs", "mod e; use e::E; pub struct D;"),
                Source::new("app/src/d/e.rs", "use super::D; pub struct E;"),
            ],
        )
    }

    const ABC: Exception = Exception { folder: "app/src", files: 3, reason: "for this test" };

    #[test]
    fn an_import_cycle_of_several_folders_is_found() {
        let modules = modules();
        let (edges, files) = (modules.edges(), modules.files());
        assert_eq!(
            circles(&edges),
            [
                vec!["app/src/a/mod.rs", "app/src/b/mod.rs", "app/src/c.rs"],
                vec!["app/src/d.rs", "app/src/d/e.rs"]
            ]
        );
        assert_eq!(faults(&edges, &files, &[]).len(), 1, "the one in d is within one folder");
        assert_eq!(faults(&edges, &files, &[&ABC]), [""; 0]);
    }

    #[test]
    fn exceptions_for_import_cycles_only_shrink() {
        let modules = modules();
        let (edges, files) = (modules.edges(), modules.files());
        assert_eq!(faults(&edges, &files, &[&Exception { files: 2, ..ABC }]).len(), 1);
        assert_eq!(faults(&edges, &files, &[&Exception { files: 4, ..ABC }]).len(), 1);
        assert_eq!(
            faults(&edges, &files, &[&ABC, &Exception { folder: "app/src/d", ..ABC }]).len(),
            1
        );
    }
}
