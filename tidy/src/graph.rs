//! The imports between the files of a crate, after re-exports are resolved: an import counts for
//! the file that defines the name.
//!
//! Paths are written in full, with the crate in front: `broker::sessions::call`. A path outside the
//! crate stays as it is written.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    repository::Source,
    syntax::{Contents, Import, Segments, TypeDefinition},
};

/// Longest chain of re-exports that is followed.
const STEPS_MAX: usize = 16;

#[derive(Debug)]
pub(crate) struct Module {
    pub path: Segments,
    pub file: String,
    contents: Contents,
}

impl Module {
    fn place(&self) -> Place {
        Place { path: self.path.clone(), file: Some(self.file.clone()), importer: None }
    }

    /// Returns the path of something outside the crate that is named here.
    fn outside(&self, segments: &[String]) -> Place {
        Place { path: segments.to_vec(), file: None, importer: Some(self.path.clone()) }
    }
}

/// A crate as its modules.
#[derive(Debug)]
pub(crate) struct Modules {
    krate: String,
    by_path: BTreeMap<Segments, Module>,
}

/// An import as it is written, and the path it resolves to.
#[derive(Debug, Clone)]
pub(crate) struct Edge {
    pub from: Place,
    pub line: usize,
    pub written: String,
    pub to: Place,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// Path of a module; outside the crate, as it is written.
    pub path: Segments,
    /// File of the path. `None`: it is outside the crate.
    pub file: Option<String>,
    /// The module of this crate that imports something outside it. Another module may re-export the
    /// name.
    pub importer: Option<Segments>,
}

impl Place {
    pub(crate) fn is_below(&self, prefix: &str) -> bool {
        is_below(&self.path, prefix)
    }
}

/// Returns whether the path is `prefix` or below it.
pub(crate) fn is_below(path: &[String], prefix: &str) -> bool {
    let prefix: Vec<&str> = prefix.split("::").collect();
    path.len() >= prefix.len() && prefix.iter().zip(path).all(|(one, other)| *one == other.as_str())
}

impl Modules {
    /// Reads the crate whose root is `folder/src/lib.rs`.
    pub(crate) fn read(krate: &str, folder: &str, files: &[Source]) -> Self {
        let mut modules = Self { krate: krate.to_owned(), by_path: BTreeMap::new() };
        modules.add_file(
            vec![krate.to_owned()],
            &format!("{folder}/src/lib.rs"),
            &format!("{folder}/src"),
            files,
        );
        modules
    }

    /// `folder`: folder of the files of its modules.
    fn add_file(&mut self, path: Segments, file: &str, folder: &str, files: &[Source]) {
        let source = files
            .iter()
            .find(|source| source.path == file)
            .unwrap_or_else(|| panic!("{} has no file {file}", path.join("::")));
        let contents =
            Contents::parse(&source.text).unwrap_or_else(|error| panic!("{file}: {error}"));
        self.add(path, file, folder, contents, files);
    }

    fn add(
        &mut self,
        path: Segments,
        file: &str,
        folder: &str,
        mut contents: Contents,
        files: &[Source],
    ) {
        for name in &contents.files {
            let (flat, nested) = (format!("{folder}/{name}.rs"), format!("{folder}/{name}/mod.rs"));
            let child = if files.iter().any(|source| source.path == flat) { flat } else { nested };
            self.add_file(
                [path.as_slice(), std::slice::from_ref(name)].concat(),
                &child,
                &format!("{folder}/{name}"),
                files,
            );
        }
        for (name, inner) in std::mem::take(&mut contents.inline) {
            self.add(
                [path.as_slice(), std::slice::from_ref(&name)].concat(),
                file,
                &format!("{folder}/{name}"),
                inner,
                files,
            );
        }
        self.by_path.insert(path.clone(), Module { path, file: file.to_owned(), contents });
    }

    pub(crate) fn files(&self) -> BTreeSet<&str> {
        self.by_path.values().map(|module| module.file.as_str()).collect()
    }

    /// Returns whether there is a module of this name, such as `broker::sessions`.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.by_path.contains_key(&path.split("::").map(str::to_owned).collect::<Vec<_>>())
    }

    pub(crate) fn types(&self) -> impl Iterator<Item = (&Module, &TypeDefinition)> {
        self.by_path.values().flat_map(|module| {
            module.contents.types.iter().map(move |definition| (module, definition))
        })
    }

    /// Returns every import and every path written in full. Two kinds are left out: those that stay
    /// within their file, and names that a module re-exports from below it.
    pub(crate) fn edges(&self) -> Vec<Edge> {
        let mut edges = Vec::new();
        for module in self.by_path.values() {
            let imports = module
                .contents
                .imports
                .iter()
                .map(|import| (&import.segments, import.line, import.is_public));
            let paths = module.contents.paths.iter().map(|path| (&path.segments, path.line, false));
            for (segments, line, is_public) in imports.chain(paths) {
                let Some(to) = self.resolve(module, segments, 0) else { continue };
                let passes_on = is_public
                    && to.path.len() > module.path.len()
                    && to.path.starts_with(&module.path);
                if !passes_on && to.file.as_ref() != Some(&module.file) {
                    let from = module.place();
                    edges.push(Edge { from, line, written: segments.join("::"), to });
                }
            }
        }
        edges
    }

    /// Returns the resolution of a path that is written in `module`. `None`: it names something
    /// that is not a module's, such as a variant.
    fn resolve(&self, module: &Module, segments: &[String], steps: usize) -> Option<Place> {
        let (first, rest) = segments.split_first()?;
        match first.as_str() {
            "Self" => None,
            "crate" => {
                self.descend(self.by_path.get(std::slice::from_ref(&self.krate))?, rest, steps)
            }
            "self" => self.descend(module, rest, steps),
            "super" => {
                self.descend(self.by_path.get(&module.path[..module.path.len() - 1])?, rest, steps)
            }
            _ => match self.lookup(module, segments, steps) {
                Some(found) => found,
                // A name that is neither defined nor imported here is a crate, a primitive type or
                // a parameter.
                None if first.starts_with(char::is_lowercase) => Some(module.outside(segments)),
                None => None,
            },
        }
    }

    /// Resolves `segments` in `module`. The first of them does not lead upwards.
    fn descend(&self, module: &Module, segments: &[String], steps: usize) -> Option<Place> {
        match segments.first().map(String::as_str) {
            None => Some(module.place()),
            Some("super") => self.descend(
                self.by_path.get(&module.path[..module.path.len() - 1])?,
                &segments[1..],
                steps,
            ),
            Some("self") => self.descend(module, &segments[1..], steps),
            Some(_) => self
                .lookup(module, segments, steps)
                .unwrap_or_else(|| self.descend(module, &[], steps)),
        }
    }

    /// Resolves the first of `segments` in `module`, and the rest from there. `None`: the name does
    /// not exist.
    fn lookup(&self, module: &Module, segments: &[String], steps: usize) -> Option<Option<Place>> {
        let (first, rest) = segments.split_first()?;
        if let Some(child) =
            self.by_path.get(&[module.path.as_slice(), std::slice::from_ref(first)].concat())
        {
            return Some(self.descend(child, rest, steps));
        }
        if module.contents.names.contains(first) {
            return Some(self.descend(module, &[], steps));
        }
        if steps > STEPS_MAX {
            return None;
        }
        let follow = |import: &Import, rest: &[String]| {
            // An import of a crate by its own name leads to itself.
            let path = [import.segments.as_slice(), rest].concat();
            if import.segments.first() == Some(first) {
                return Some(module.outside(&path));
            }
            self.resolve(module, &path, steps + 1)
        };
        let imports = &module.contents.imports;
        if let Some(import) = imports.iter().find(|import| import.name.as_ref() == Some(first)) {
            return Some(follow(import, rest));
        }
        let globs = imports.iter().filter(|import| import.name.is_none());
        globs.filter_map(|glob| follow(glob, &[])).find_map(|place| {
            let other = self.by_path.get(&place.path)?;
            self.lookup(other, segments, steps + 1)
        })
    }
}
