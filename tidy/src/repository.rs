//! Reads the files of the repository. Paths are relative to its root, with `/`.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use crate::graph::Modules;

/// The crates that test and measure the program.
pub(crate) const TEST_CRATES: [&str; 7] =
    ["testkit", "loadtest", "benches", "fuzz", "models", "simulation", "tidy"];

/// Returns the crates of the program: every member of the workspace that is not for tests.
pub(crate) fn crates() -> Vec<String> {
    let is_of_program =
        |member: &String| !TEST_CRATES.contains(&member.split('/').next().unwrap_or_default());
    members().into_iter().filter(is_of_program).collect()
}

/// Returns the members of the workspace.
pub(crate) fn members() -> Vec<String> {
    let manifest = read("Cargo.toml");
    let members = manifest
        .split("members = [")
        .nth(1)
        .and_then(|rest| rest.split(']').next())
        .unwrap_or_default();
    members.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// A text file of the repository.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub path: String,
    pub text: String,
}

impl Source {
    pub(crate) fn new(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned() }
    }

    /// Returns the file without the tests at its end.
    pub(crate) fn product(&self) -> &str {
        let end =
            self.text.find("\n#[cfg(test)]\nmod tests {").map_or(self.text.len(), |at| at + 1);
        &self.text[..end]
    }

    /// Returns the lines of the product that are code, with their numbers.
    pub(crate) fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = self.product().lines().enumerate();
        lines
            .map(|(index, line)| (index + 1, line))
            .filter(|(_, line)| !line.trim_start().starts_with("//"))
    }
}

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

pub(crate) fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Replaces a generated file.
pub(crate) fn write(path: &str, text: &str) {
    fs::write(root().join(path), text).unwrap_or_else(|error| panic!("{path}: {error}"));
}

/// Returns whether generated files are written instead of compared.
pub(crate) fn updates() -> bool {
    std::env::var_os("UPDATE_DOCS").is_some()
}

/// Returns every file below a folder whose path ends in one of `endings`, sorted.
pub(crate) fn files(folder: &str, endings: &[&str]) -> Vec<Source> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in
            fs::read_dir(root().join(&folder)).unwrap_or_else(|error| panic!("{folder}: {error}"))
        {
            let entry = entry.unwrap();
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = format!("{folder}/{name}");
            if entry.file_type().unwrap().is_dir() {
                // These folders hold installed packages and build output.
                if !["node_modules", "target", "__pycache__"].contains(&name.as_str()) {
                    folders.push(path);
                }
            } else if endings.iter().any(|ending| path.ends_with(ending)) {
                found.push(Source { text: read(&path), path });
            }
        }
    }
    found.sort_by(|one, other| one.path.cmp(&other.path));
    found
}

/// Returns every Rust file below a folder, sorted.
pub(crate) fn rust_sources(folder: &str) -> Vec<Source> {
    let found = files(folder, &[".rs"]);
    assert!(!found.is_empty(), "{folder} holds no source");
    found
}

/// Returns the modules of a crate of the program.
pub(crate) fn modules(krate: &str) -> Modules {
    Modules::read(krate, krate, &rust_sources(&format!("{krate}/src")))
}

/// Returns the files of a crate of the program, without modules that are built for tests only.
pub(crate) fn product(krate: &str) -> Vec<Source> {
    let modules = modules(krate);
    let is_part: BTreeSet<&str> = modules.files();
    let programs = |path: &str| path.ends_with("/src/main.rs") || path.contains("/src/bin/");
    let all = rust_sources(&format!("{krate}/src")).into_iter();
    all.filter(|source| is_part.contains(source.path.as_str()) || programs(&source.path)).collect()
}

/// Returns every folder below the `src` of a crate of the program that holds product files, sorted,
/// such as `broker/src/sessions`.
pub(crate) fn folders(krate: &str) -> Vec<String> {
    let root = format!("{krate}/src/");
    let mut found: BTreeSet<String> = BTreeSet::new();
    for source in product(krate) {
        let mut path = source.path.as_str();
        while let Some((parent, _)) =
            path.rsplit_once('/').filter(|(parent, _)| parent.starts_with(&root))
        {
            found.insert(parent.to_owned());
            path = parent;
        }
    }
    found.into_iter().collect()
}
