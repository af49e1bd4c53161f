//! Words that the prose avoids, with a count for each folder that may only shrink.
//!
//! `tidy/words.txt` holds the counts; `UPDATE_DOCS=1` lowers them. A folder that is not in it, such as `docs/`, holds none.

use std::{collections::BTreeMap, fs};

use crate::repository::{Source, files, read, root, updates, write};

const COUNTS: &str = "tidy/words.txt";

/// Idioms, and words whose subject is hidden. A phrase may be broken by the end of a line.
const AVOIDED: [&str; 16] = [
    "whoever",
    "whomever",
    "anew",
    "is no",
    "can not",
    "for all that",
    "in vain",
    "go on with",
    "goes on with",
    "going on with",
    "nobody",
    "nobody's",
    "somebody",
    "somebody's",
    "anybody's",
    "beside",
];

/// What may follow `is no`.
const AFTER_IS_NO: [&str; 1] = ["longer"];

/// Files that prose is in. Migrations are left out: their checksums do not let them change.
const ENDINGS: [&str; 12] =
    [".rs", ".md", ".py", ".sh", ".toml", ".yaml", ".yml", ".go", ".js", ".mjs", ".ts", ".tpl"];

/// Returns the words of a text in lower case, without what marks a comment at the beginning of a line.
fn words(text: &str) -> Vec<String> {
    let lines = text.lines().map(|line| line.trim_start().trim_start_matches(['/', '!', '#', '>']));
    let parts = lines.flat_map(|line| {
        line.split(|letter: char| !letter.is_alphanumeric() && letter != '_' && letter != '\'')
    });
    parts
        .map(|word| word.trim_matches('\'').to_lowercase())
        .filter(|word| !word.is_empty())
        .collect()
}

/// Returns how often a text holds avoided words.
fn count(text: &str) -> usize {
    let words = words(text);
    let phrases: Vec<Vec<&str>> =
        AVOIDED.iter().map(|phrase| phrase.split(' ').collect()).collect();
    let begins = |at: usize, phrase: &[&str]| {
        let rest = &words[at..];
        let is_it =
            rest.len() >= phrase.len() && phrase.iter().zip(rest).all(|(one, other)| one == other);
        is_it
            && (phrase != ["is", "no"]
                || rest.get(2).is_none_or(|next| !AFTER_IS_NO.contains(&next.as_str())))
    };
    (0..words.len()).map(|at| phrases.iter().filter(|phrase| begins(at, phrase)).count()).sum()
}

/// Returns the folder whose count a file belongs to: the first one of its path.
fn folder(path: &str) -> &str {
    path.split('/').next().unwrap_or(path)
}

fn counts<'s>(sources: impl IntoIterator<Item = &'s Source>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for source in sources {
        *counts.entry(folder(&source.path).to_owned()).or_default() += count(&source.text);
    }
    counts.retain(|_, count| *count > 0);
    counts
}

fn parse(text: &str) -> BTreeMap<String, usize> {
    let pairs =
        text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.rsplit_once(' '));
    pairs.map(|(folder, count)| (folder.to_owned(), count.parse().expect("a count"))).collect()
}

/// Returns the folders that hold more avoided words than they may.
fn excess(allowed: &BTreeMap<String, usize>, found: &BTreeMap<String, usize>) -> Vec<String> {
    let may = |folder: &str| allowed.get(folder).copied().unwrap_or_default();
    let over = found.iter().filter(|(folder, count)| **count > may(folder));
    over.map(|(folder, count)| {
        format!("{folder} has {count} avoided words, {} are allowed", may(folder))
    })
    .collect()
}

/// Every file with prose, except for this one, which has to name the words.
fn prose() -> Vec<Source> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root()).unwrap().map(Result::unwrap) {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_dir = entry.file_type().unwrap().is_dir();
        if is_dir
            && !name.starts_with('.')
            && !["target", "data", "migrations"].contains(&name.as_str())
        {
            found.extend(files(&name, &ENDINGS));
        } else if !is_dir && (name == "Makefile" || name == "Dockerfile" || name.ends_with(".md")) {
            found.push(Source { text: read(&name), path: name });
        }
    }
    found.retain(|source| source.path != "tidy/src/prose.rs");
    found
}

#[test]
fn the_count_of_avoided_words_only_shrinks() {
    let found = counts(&prose());
    let allowed = parse(&read(COUNTS));
    let excess = excess(&allowed, &found);
    assert!(excess.is_empty(), "{}\nThe words are in tidy/src/prose.rs.", excess.join("\n"));
    if updates() {
        let lines: String =
            found.iter().map(|(folder, count)| format!("{folder} {count}\n")).collect();
        write(
            COUNTS,
            &format!(
                "# Avoided words by folder (tidy/src/prose.rs). A count may only shrink: UPDATE_DOCS=1 lowers it.\n{lines}"
            ),
        );
    } else {
        assert!(
            found == allowed,
            "{COUNTS} allows more than there are: run this test with UPDATE_DOCS=1"
        );
    }
}

#[test]
fn documentation_for_users_contains_no_avoided_words() {
    let kept = parse(&read(COUNTS));
    let pages = kept.keys().filter(|folder| *folder == "README.md" || *folder == "docs");
    assert_eq!(pages.count(), 0, "docs/ and README.md hold avoided words");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_counted_across_lines_and_not_within_names() {
        assert_eq!(count("/// Nobody goes on\n    /// with it. `nobody_owns`, somebody's."), 3);
        assert_eq!(count("This is no\n# longer so, and is no error; cannot, can not."), 2);
        assert_eq!(count("besides, a new one"), 0);
    }

    #[test]
    fn a_folder_with_too_many_avoided_words_is_found() {
        let sources = [
            Source::new("docs/a.md", "anew"),
            Source::new("broker/src/call.rs", "// in vain, in vain"),
        ];
        let found = counts(&sources);
        assert_eq!(found, parse("# a comment\nbroker 2\ndocs 1\n"));
        assert_eq!(
            excess(&parse("broker 2\n"), &found),
            ["docs has 1 avoided words, 0 are allowed"]
        );
        assert_eq!(excess(&found, &found), [""; 0]);
        assert_eq!(["README.md", "broker/src/lib.rs"].map(folder), ["README.md", "broker"]);
    }
}
