//! Roots that operators give a backend (MCP 2025-11-25, Roots). Part of a backend's body. Read by
//! [`super::spec_parser`], applied by `backends::roots`.

use std::collections::HashSet;

use rules::limits::apps::{ROOT_NAME_CHARS_MAX, ROOTS_MAX};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    field_error::{FieldError, element, join},
    transport_spec::ProtocolChoice,
};

const LIST: &str = "roots.list";
const URI_BYTES_MAX: usize = 2_048;
const URI_ALLOWED: &str =
    "a file URI without control characters and of at most 2048 bytes, such as file:///srv/projects";

/// The answer to a backend that asks for roots.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RootRules {
    /// The operator's roots, in the order in which the backend gets them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub list: Vec<ConfiguredRoot>,
    pub mode: RootMode,
}

/// A root as MCP names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ConfiguredRoot {
    #[schema(example = "file:///srv/projects")]
    pub uri: String,
    /// Name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// Whose roots a backend gets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum RootMode {
    /// Those of the client that the backend asks.
    #[default]
    Client,
    /// The operator's. Clients are not asked.
    Configured,
    /// The operator's, then those of the client.
    Merge,
}

impl RootRules {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Adds a root, or gives a known one its name. Returns whether it is new.
    pub fn add(&mut self, root: ConfiguredRoot) -> bool {
        match self.list.iter_mut().find(|known| known.uri == root.uri) {
            Some(known) => {
                known.name = root.name;
                false
            }
            None => {
                self.list.push(root);
                true
            }
        }
    }

    /// Removes a root. Returns whether it was there.
    pub fn remove(&mut self, uri: &str) -> bool {
        let before = self.list.len();
        self.list.retain(|root| root.uri != uri);
        self.list.len() < before
    }
}

/// Checks the rules that the types do not express.
pub(super) fn check(roots: &RootRules, protocol: ProtocolChoice, faults: &mut Vec<FieldError>) {
    if roots.mode != RootMode::Client && protocol == ProtocolChoice::Modern {
        let wrong = "gives roots to a backend of 2026-07-28, whose requests for roots the broker does not answer";
        faults.push(FieldError::new("roots.mode", wrong, "client for a modern backend"));
    }
    if roots.list.len() > ROOTS_MAX {
        let allowed = format!("at most {ROOTS_MAX}");
        faults.push(FieldError::new(LIST, "has too many entries", allowed));
    }
    let mut seen = HashSet::new();
    for (at, root) in roots.list.iter().enumerate() {
        let path = element(LIST, at);
        faults.extend(root_faults(root, &path));
        if !seen.insert(&root.uri) {
            faults.push(FieldError::new(join(&path, "uri"), "occurs twice", "each URI once"));
        }
    }
}

/// Returns the faults of one root, with their paths below `path`.
pub fn root_faults(root: &ConfiguredRoot, path: &str) -> Vec<FieldError> {
    let mut faults = Vec::new();
    if !is_root(&root.uri) {
        faults.push(FieldError::new(join(path, "uri"), "is not the URI of a root", URI_ALLOWED));
    }
    if root.name.as_ref().is_some_and(|name| !is_name(name)) {
        faults.push(FieldError::new(
            join(path, "name"),
            "is empty, too long or holds control characters",
            format!("text of at most {ROOT_NAME_CHARS_MAX} characters"),
        ));
    }
    faults
}

/// MCP 2025-11-25, Roots: the URI of a root is a `file://` URI.
fn is_root(uri: &str) -> bool {
    uri.len() <= URI_BYTES_MAX
        && uri.strip_prefix("file://").is_some_and(|path| !path.is_empty())
        && !uri.chars().any(|one| one.is_control() || one.is_whitespace())
}

fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.chars().count() <= ROOT_NAME_CHARS_MAX
        && !name.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::spec_parser::parse_backend_spec;

    fn body(roots: Value) -> Value {
        json!({"transport": {"type": "stdio", "command": "x"}, "roots": roots})
    }

    #[test]
    fn roots_of_operators_are_read_and_kept_as_written() {
        let given = json!({"list": [{"uri": "file:///srv/a", "name": "A"}, {"uri": "file:///b"}], "mode": "merge"});
        let spec = parse_backend_spec(&body(given.clone())).unwrap();
        assert_eq!(serde_json::to_value(&spec).unwrap()["roots"], given);
        let plain = parse_backend_spec(&body(json!({}))).unwrap();
        assert_eq!(plain.roots.mode, RootMode::Client);
        assert!(serde_json::to_value(&plain).unwrap().get("roots").is_none());
        assert!(plain.differs_in_roots_alone(&plain));
        assert!(!plain.differs_in_roots_alone(&spec), "the mode differs too");
    }

    #[test]
    fn every_fault_of_roots_is_named() {
        let long = "x".repeat(URI_BYTES_MAX);
        let many: Vec<Value> =
            (0..=ROOTS_MAX).map(|n| json!({"uri": format!("file:///{n}")})).collect();
        for (roots, paths) in [
            (json!({"list": many}), vec!["roots.list"]),
            (
                json!({"list": [{"uri": "http://a/"}, {"uri": "file://"}]}),
                vec!["roots.list[0].uri", "roots.list[1].uri"],
            ),
            (
                json!({"list": [{"uri": "file:///a"}, {"uri": "file:///a"}]}),
                vec!["roots.list[1].uri"],
            ),
            (
                json!({"list": [{"uri": "file:///a b", "name": ""}]}),
                vec!["roots.list[0].uri", "roots.list[0].name"],
            ),
            (
                json!({"list": [{"uri": format!("file:///{long}"), "name": "a\nb"}]}),
                vec!["roots.list[0].uri", "roots.list[0].name"],
            ),
        ] {
            let faults = parse_backend_spec(&body(roots.clone())).unwrap_err();
            let found: Vec<&str> = faults.iter().map(|fault| fault.path.as_str()).collect();
            assert_eq!(found, paths, "{roots}");
        }
        for (roots, path) in [
            (json!({"list": [{"name": "A"}]}), "roots.list[0].uri"),
            (json!({"list": [{"uri": 7}]}), "roots.list[0].uri"),
            (json!({"list": [{"uri": "file:///a", "x": 1}]}), "roots.list[0].x"),
            (json!({"mode": "both"}), "roots.mode"),
            (json!({"modes": []}), "roots.modes"),
            (json!([]), "roots"),
        ] {
            let faults = parse_backend_spec(&body(roots.clone())).unwrap_err();
            assert!(faults.iter().any(|fault| fault.path == path), "{roots}: {faults:?}");
        }
        let modern = json!({"transport": {"type": "stdio", "command": "x"}, "protocol": "modern", "roots": {"mode": "configured"}});
        assert_eq!(parse_backend_spec(&modern).unwrap_err()[0].path, "roots.mode");
    }
}
