//! Files that commands read. `-` is standard input.

use std::{hash::RandomState, io::Read, path::Path};

use protocol::json::{Limits, duplicate_member};
use serde_json::Value;

use super::client::ClientError;

/// Longest pointer of a member in a refusal.
const MEMBER_CHARS_MAX: usize = 200;

/// Returns the JSON of a file.
pub(super) fn read_json(file: &Path) -> Result<Value, ClientError> {
    let text = read_file(file)?;
    let name =
        if file == Path::new("-") { "standard input".into() } else { file.to_string_lossy() };
    parse_json(&name, &text)
}

/// Parses a document, and refuses one with a duplicate member. The parser keeps the last of two
/// equal members only, so the broker could not see that there were two.
fn parse_json(name: &str, text: &str) -> Result<Value, ClientError> {
    if text.trim().is_empty() {
        return Err(ClientError::Usage(format!("{name} is empty; allowed: a JSON document")));
    }
    let not_json = |reason: String| ClientError::Usage(format!("{name} is not JSON: {reason}"));
    let value = serde_json::from_str(text).map_err(|error| not_json(error.to_string()))?;
    let limits = Limits::with_bytes_max(text.len());
    match duplicate_member(text.as_bytes(), &limits, &RandomState::new(), MEMBER_CHARS_MAX) {
        Ok(None) => Ok(value),
        Ok(Some(pointer)) => {
            Err(ClientError::Usage(format!("{name}: {pointer} is in its object twice")))
        }
        Err(error) => Err(not_json(error.to_string())),
    }
}

/// Returns the text of a file, or of standard input for `-`.
pub(super) fn read_file(file: &Path) -> Result<String, ClientError> {
    let read = || {
        if file == Path::new("-") {
            let mut text = String::new();
            std::io::stdin().lock().read_to_string(&mut text)?;
            return Ok(text);
        }
        std::fs::read_to_string(file)
    };
    read()
        .map_err(|error: std::io::Error| ClientError::Usage(format!("{}: {error}", file.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_with_a_duplicate_member_is_refused_with_its_pointer() {
        let parsed = |text: &str| parse_json("policy.json", text);
        assert_eq!(parsed("{\"a\": [{\"b\": 1}, {\"b\": 2}]}\n").unwrap()["a"][1]["b"], 2);
        let text = r#"{"rules": [{"id": "x", "effect": "deny", "effect": "allow"}]}"#;
        let refused = parsed(text).unwrap_err();
        assert!(matches!(refused, ClientError::Usage(_)), "{refused:?}");
        assert_eq!(refused.to_string(), "policy.json: /rules/0/effect is in its object twice");
        for (text, reason) in [("{", "policy.json is not JSON: "), (" \n", "policy.json is empty")]
        {
            let refused = parsed(text).unwrap_err().to_string();
            assert!(refused.starts_with(reason), "{refused}");
        }
    }
}
