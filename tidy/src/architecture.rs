//! ARCHITECTURE.md: its length, and that its map names the folders of the repository.

use crate::repository::{crates, folders, read, root, rust_sources};

const PAGE: &str = "ARCHITECTURE.md";
const LINES_MAX: usize = 400;

pub(crate) fn page() -> String {
    read(PAGE)
}

/// Returns the part of a page below a heading of the second level, up to the next one.
pub(crate) fn section<'p>(page: &'p str, heading: &str) -> &'p str {
    let below = page.split("\n## ").find(|section| section.lines().next() == Some(heading));
    below.unwrap_or_else(|| panic!("{PAGE} has no section \"## {heading}\""))
}

/// Returns the texts of a page between backticks.
fn code(page: &str) -> impl Iterator<Item = &str> {
    page.split('`').skip(1).step_by(2)
}

/// Returns those of `folders` that the page names neither in full nor relative to the `src` of
/// their crate.
fn unnamed<'f>(page: &str, folders: &'f [String]) -> Vec<&'f String> {
    let is_named = |folder: &str| {
        let short = folder.split_once("/src/").map(|(_, short)| short);
        code(page)
            .filter_map(|name| name.strip_suffix('/'))
            .any(|name| name == folder || Some(name) == short)
    };
    folders.iter().filter(|folder| !is_named(folder)).collect()
}

/// Returns the folders and Rust files that the page names and `exists` does not know.
fn gone(page: &str, exists: impl Fn(&str) -> bool) -> Vec<&str> {
    let is_path = |name: &&str| {
        !name.contains([' ', '*', '{', '<', ':']) && !name.starts_with(['/', '.', '~'])
    };
    let names =
        code(page).filter(is_path).filter(|name| name.ends_with(".rs") || name.ends_with('/'));
    names.filter(|name| !exists(name.trim_end_matches('/'))).collect()
}

#[test]
fn the_page_is_short() {
    let lines = page().lines().count();
    assert!(lines <= LINES_MAX, "{PAGE} has {lines} lines, {LINES_MAX} are allowed");
}

#[test]
fn the_map_names_every_folder() {
    let (page, folders): (String, Vec<String>) =
        (page(), crates().iter().flat_map(|krate| folders(krate)).collect());
    let unnamed = unnamed(&page, &folders);
    assert!(unnamed.is_empty(), "{PAGE} does not name {unnamed:?} as `folder/`");
}

#[test]
fn the_map_names_only_folders_that_exist() {
    let all: Vec<String> =
        crates().iter().flat_map(|krate| rust_sources(krate)).map(|source| source.path).collect();
    let exists = |name: &str| {
        let is_folder =
            || crates().iter().any(|krate| root().join(krate).join("src").join(name).exists());
        root().join(name).exists()
            || is_folder()
            || all.iter().any(|path| path.ends_with(&format!("/{name}")))
    };
    let page = page();
    let gone = gone(&page, exists);
    assert!(gone.is_empty(), "{PAGE} names {gone:?}, which do not exist");
}

#[test]
fn each_check_of_the_map_can_fail() {
    let page = "# A\n\n## Folders\n\n| `app/src/low/` | low |\n| `old/`, `gone.rs`, `mid/` |\n\n## B\n\nlast";
    assert_eq!(
        section(page, "Folders").trim().lines().last(),
        Some("| `old/`, `gone.rs`, `mid/` |")
    );
    let folders = ["app/src/low", "app/src/mid", "app/src/high"].map(str::to_owned);
    assert_eq!(unnamed(page, &folders), ["app/src/high"]);
    assert_eq!(gone(page, |name| ["app/src/low", "mid"].contains(&name)), ["old/", "gone.rs"]);
}
