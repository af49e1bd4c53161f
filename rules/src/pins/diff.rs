//! The difference between two definitions, member by member.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use similar::{ChangeTag, TextDiff};
use utoipa::ToSchema;

use super::visible;

/// A member that differs. Invisible characters have names, such as `<U+200B>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DefinitionChange {
    /// JSON pointer to the member.
    pub pointer: String,
    /// The member before. Absent: it was added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// The member now. Absent: it was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// For texts: one text in which `[-…-]` is removed and `{+…+}` is added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// Returns the members that differ between two definitions, as JSON texts.
pub fn diff(before: &str, after: &str) -> Vec<DefinitionChange> {
    let read = |text: &str| serde_json::from_str(text).unwrap_or_else(|_| Value::from(text));
    let mut changes = Vec::new();
    compare(String::new(), Some(&read(before)), Some(&read(after)), &mut changes);
    changes
}

fn compare(
    pointer: String,
    before: Option<&Value>,
    after: Option<&Value>,
    changes: &mut Vec<DefinitionChange>,
) {
    match (before, after) {
        (Some(before), Some(after)) if before == after => {}
        (Some(Value::Object(before)), Some(Value::Object(after))) => {
            let added = after.keys().filter(|name| !before.contains_key(*name));
            let mut names: Vec<&String> = before.keys().chain(added).collect();
            names.sort_unstable();
            for name in names {
                let escaped = name.replace('~', "~0").replace('/', "~1");
                compare(format!("{pointer}/{escaped}"), before.get(name), after.get(name), changes);
            }
        }
        (Some(Value::Array(before)), Some(Value::Array(after))) => {
            for at in 0..before.len().max(after.len()) {
                compare(format!("{pointer}/{at}"), before.get(at), after.get(at), changes);
            }
        }
        (before, after) => changes.push(DefinitionChange {
            text: match (before, after) {
                (Some(Value::String(before)), Some(Value::String(after))) => {
                    Some(marked(&visible(before), &visible(after)))
                }
                _ => None,
            },
            before: before.map(shown),
            after: after.map(shown),
            pointer: visible(&pointer),
        }),
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => visible(text),
        other => visible(&other.to_string()),
    }
}

/// Returns one text with marks around the words that were removed and added.
fn marked(before: &str, after: &str) -> String {
    let words = TextDiff::from_words(before, after);
    let (mut out, mut open) = (String::new(), ChangeTag::Equal);
    for change in words.iter_all_changes() {
        if change.tag() != open {
            out.push_str(closing(open));
            out.push_str(opening(change.tag()));
            open = change.tag();
        }
        out.push_str(change.value());
    }
    out.push_str(closing(open));
    out
}

fn opening(tag: ChangeTag) -> &'static str {
    match tag {
        ChangeTag::Equal => "",
        ChangeTag::Delete => "[-",
        ChangeTag::Insert => "{+",
    }
}

fn closing(tag: ChangeTag) -> &'static str {
    match tag {
        ChangeTag::Equal => "",
        ChangeTag::Delete => "-]",
        ChangeTag::Insert => "+}",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_that_differ_are_named_by_pointers() {
        let before = r#"{"name":"a","description":"Reads a file.","inputSchema":{"a/b":[1,2]},"annotations":{"readOnlyHint":true}}"#;
        let after = "{\"name\":\"a\",\"description\":\"Reads\u{200b} a secret file.\",\"inputSchema\":{\"a/b\":[1,3]},\"title\":\"t\"}";
        let changes = diff(before, after);
        let pointers: Vec<&str> = changes.iter().map(|change| change.pointer.as_str()).collect();
        assert_eq!(pointers, ["/annotations", "/description", "/inputSchema/a~1b/1", "/title"]);
        assert_eq!(
            (changes[0].before.as_deref(), changes[0].after.as_deref()),
            (Some(r#"{"readOnlyHint":true}"#), None)
        );
        assert_eq!(changes[1].after.as_deref(), Some("Reads<U+200B> a secret file."));
        let text = changes[1].text.as_deref().unwrap();
        assert!(
            text.contains("[-Reads-]{+Reads<U+200B>+}") && text.contains("{+secret +}"),
            "{text}"
        );
        assert_eq!(
            (changes[2].before.as_deref(), changes[2].after.as_deref()),
            (Some("2"), Some("3"))
        );
        assert_eq!((changes[3].before.as_deref(), changes[3].after.as_deref()), (None, Some("t")));
        assert_eq!(diff(before, before), []);
    }
}
