//! Output of a command for operators: the broker's answer as JSON, or as a table. Removals, which
//! print alike, are here whole.

use std::fmt::Write as _;

use http::Method;
use serde_json::{Value, json};

use super::{
    client::{AdminClient, ClientError},
    common_args::OutputOptions,
    table::{self, Column},
};

/// Output of a command: the answer for standard output, and a note for standard error.
pub(super) struct CommandOutput {
    pub(super) out: String,
    pub(super) note: String,
}

pub(super) fn render_list(
    answer: Value,
    member: &str,
    columns: &[Column],
    output: &OutputOptions,
) -> CommandOutput {
    render(&answer, output, |answer| table::rows(&answer[member], columns))
}

pub(super) fn render(
    answer: &Value,
    output: &OutputOptions,
    people: impl FnOnce(&Value) -> String,
) -> CommandOutput {
    let out = if output.json { json_document(answer) } else { people(answer) };
    CommandOutput { out, note: String::new() }
}

/// Returns an answer as JSON in several lines.
pub(super) fn json_document(answer: &Value) -> String {
    escaped(&format!("{answer:#}\n"))
}

/// Escapes the characters of JSON that are not seen or could control a terminal. Names in it may
/// come from untrusted clients and servers.
pub(super) fn escaped(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    // Outside strings, JSON has none of these characters except line ends.
    for char in json.chars() {
        if char != '\n' && table::is_hidden(char) {
            for unit in char.encode_utf16(&mut [0; 2]) {
                let _infallible = write!(text, "\\u{unit:04x}");
            }
        } else {
            text.push(char);
        }
    }
    text
}

/// Returns the warnings of an answer to a change, one on each line.
pub(super) fn warnings(answer: &Value) -> String {
    let warnings = answer["warnings"].as_array().into_iter().flatten();
    let lines = warnings.map(|warning| {
        let text = |member: &str| table::clean(warning[member].as_str().unwrap_or_default());
        format!("warning: {} {}\n", text("field"), text("detail"))
    });
    lines.collect()
}

/// Removes what is at a path of the admin API.
pub(super) async fn remove(
    client: &AdminClient,
    path: &str,
    name: &str,
    output: &OutputOptions,
) -> Result<CommandOutput, ClientError> {
    client.request(Method::DELETE, path, None).await?;
    Ok(render(&json!({ "removed": name }), output, |_| format!("removed {}\n", table::clean(name))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_escapes_what_could_control_the_terminal_and_stays_the_same_json() {
        let name = "\u{202e}evil\u{200b}\u{9b}2J\u{7f}\u{e0041}\u{1b}\n\u{e4}\u{1f600}";
        let answer = json!({"sessions": [{"client_name": name, "\u{2066}": 1}]});
        let text = json_document(&answer);
        assert!(text.chars().all(|char| char == '\n' || !table::is_hidden(char)), "{text:?}");
        assert!(text.contains(r"\u202eevil\u200b\u009b2J\u007f\udb40\udc41\u001b\n"), "{text}");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), answer);
    }
}
