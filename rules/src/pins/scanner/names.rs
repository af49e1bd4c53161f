//! Names that pass for others: letters of several scripts, names that look like those of another
//! backend, and descriptions that are about another backend's tools.

use std::collections::{HashMap, HashSet};

use unicode_security::{MixedScript, confusable_detection::skeleton};

use super::Finding;

/// Returns a finding for a name with letters of several scripts (Unicode, Technical Standard 39).
pub(super) fn mixed_scripts(name: &str) -> Option<Finding> {
    let is_mixed = !name.is_ascii() && name.split_whitespace().any(|word| !word.is_single_script());
    is_mixed.then(|| Finding::serious("mixed-scripts", "/name", name))
}

/// Returns whether a package is named with one version, and not with a range or none.
pub(super) fn has_exact_version(package: &str) -> bool {
    let version = match package.split_once("==") {
        Some((_, version)) => version,
        None => match package.char_indices().skip(1).find(|(_, char)| *char == '@') {
            Some((at, _)) => &package[at + 1..],
            None => return false,
        },
    };
    let (core, _) = version.split_once(['-', '+']).unwrap_or((version, ""));
    let numbers: Vec<&str> = core.split('.').collect();
    numbers.len() >= 2
        && numbers
            .iter()
            .all(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// A tool of another backend.
struct Neighbour {
    backend: String,
    name: String,
}

/// The tools of the other backends of a tenant.
#[derive(Default)]
pub struct Neighbours {
    by_skeleton: HashMap<String, Neighbour>,
    /// Names that no sentence contains by chance.
    distinctive: HashMap<String, String>,
}

impl Neighbours {
    /// Adds a tool by its own name and by the name on the aggregated endpoint.
    pub fn add(&mut self, backend: &str, name: &str, exposed: &str) {
        let neighbour = Neighbour { backend: backend.to_owned(), name: name.to_owned() };
        self.by_skeleton.entry(look_of(name)).or_insert(neighbour);
        for name in [name, exposed] {
            if is_distinctive(name) {
                self.distinctive.entry(name.to_owned()).or_insert_with(|| backend.to_owned());
            }
        }
    }

    /// Returns the findings of one tool. `own` holds the names of all tools of its backend.
    pub fn findings(&self, name: &str, description: &str, own: &HashSet<&str>) -> Vec<Finding> {
        let mut findings = Vec::new();
        if let Some(other) = self.by_skeleton.get(&look_of(name)) {
            let text = format!("{name}, and {} of backend {}", other.name, other.backend);
            findings.push(match other.name == name {
                true => Finding::notable("same-name", "/name", &text),
                false => Finding::serious("confusable-name", "/name", &text),
            });
        }
        let is_name = |char: char| char.is_ascii_alphanumeric() || matches!(char, '_' | '-');
        let words = description.split(|char| !is_name(char)).filter(|word| !own.contains(word));
        if let Some((word, backend)) =
            words.filter_map(|word| Some((word, self.distinctive.get(word)?))).next()
        {
            let text = format!("{word} of backend {backend}");
            findings.push(Finding::notable("mentions-other-tool", "/description", &text));
        }
        findings
    }
}

/// Returns what a name looks like: equal for names that people confuse.
fn look_of(name: &str) -> String {
    skeleton(&name.to_lowercase().replace('-', "_")).collect()
}

/// Returns whether a name is one that no sentence contains by chance.
fn is_distinctive(name: &str) -> bool {
    name.len() >= 6
        && (name.contains(['_', '-']) || name.chars().skip(1).any(|char| char.is_ascii_uppercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn neighbours() -> Neighbours {
        let mut neighbours = Neighbours::default();
        neighbours.add("files", "read_file", "files__read_file");
        neighbours.add("mail", "send", "mail__send");
        neighbours
    }

    fn rules(name: &str, description: &str) -> Vec<(String, bool)> {
        let own = HashSet::from([name, "own_tool"]);
        let found = neighbours().findings(name, description, &own);
        found.into_iter().map(|finding| (finding.rule.clone(), finding.is_serious())).collect()
    }

    #[test]
    fn names_that_imitate_others_are_found() {
        assert_eq!(rules("read_file", ""), [("same-name".to_owned(), false)]);
        for name in ["re\u{430}d_file", "read_fi1e", "read-file", "Read_File"] {
            assert_eq!(rules(name, ""), [("confusable-name".to_owned(), true)], "{name}");
        }
        assert_eq!(rules("write_file", ""), []);
    }

    #[test]
    fn descriptions_of_other_backends_tools_are_found() {
        let found = [("mentions-other-tool".to_owned(), false)];
        assert_eq!(rules("x", "Use it instead of read_file."), found);
        assert_eq!(rules("x", "See mail__send."), found);
        for honest in ["Send a file, or read it.", "Works like own_tool."] {
            assert_eq!(rules("x", honest), [], "{honest}");
        }
    }

    #[test]
    fn letters_of_several_scripts_are_found() {
        for name in ["p\u{430}ypal", "re\u{430}d_file", "\u{3b1}dd"] {
            assert!(mixed_scripts(name).is_some(), "{name}");
        }
        for name in [
            "read_file",
            "\u{447}\u{438}\u{442}\u{430}\u{442}\u{44c}",
            "\u{8aad}\u{3080}",
            "caf\u{e9}",
            "\u{447}\u{438}\u{442}\u{430}\u{442}\u{44c} file",
        ] {
            assert!(mixed_scripts(name).is_none(), "{name}");
        }
    }
}
