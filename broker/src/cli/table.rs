//! Answers as tables. Names in an answer may come from untrusted clients and servers. The module
//! therefore replaces characters that are not seen or could control a terminal.

use std::fmt::Write as _;

use protocol::characters::is_unseen;
use serde_json::Value;

/// A column: its heading and its member. A dot in the member selects a member of an object.
pub(super) type Column = (&'static str, &'static str);

/// Returns rows under headings, with columns as wide as their cells.
pub(super) fn rows(list: &Value, columns: &[Column]) -> String {
    let items = list.as_array().map(Vec::as_slice).unwrap_or_default();
    if items.is_empty() {
        return "none\n".to_owned();
    }
    let heading = columns.iter().map(|(heading, _)| (*heading).to_owned()).collect::<Vec<_>>();
    let cells = items
        .iter()
        .map(|item| columns.iter().map(|(_, member)| cell(item, member)).collect::<Vec<_>>());
    let lines: Vec<Vec<String>> = std::iter::once(heading).chain(cells).collect();
    let widths: Vec<usize> = (0..columns.len())
        .map(|at| lines.iter().map(|line| line[at].chars().count()).max().unwrap_or(0))
        .collect();
    let mut text = String::new();
    for line in lines {
        let padded = line
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect::<Vec<_>>()
            .join("  ");
        text.push_str(padded.trim_end());
        text.push('\n');
    }
    text
}

/// Returns one item with a line for each member that has a value.
pub(super) fn facts(item: &Value, columns: &[Column]) -> String {
    let shown: Vec<(&str, String)> =
        columns.iter().map(|(heading, member)| (*heading, cell(item, member))).collect();
    let width = shown.iter().map(|(heading, _)| heading.chars().count()).max().unwrap_or(0);
    let lines = shown
        .iter()
        .filter(|(_, value)| value != "-")
        .map(|(heading, value)| format!("{heading:<width$}  {value}\n"));
    lines.collect()
}

fn cell(item: &Value, member: &str) -> String {
    let value = member.split('.').fold(item, |value, name| &value[name]);
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) if text.is_empty() => "-".to_owned(),
        Value::String(text) => clean(text),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::Number(number) => number
            .as_f64()
            .filter(|_| number.is_f64())
            .map_or_else(|| number.to_string(), |float| format!("{float:.1}")),
        Value::Array(items) if items.is_empty() => "-".to_owned(),
        Value::Array(items) => items
            .iter()
            .map(|item| item.as_str().map_or_else(|| clean(&item.to_string()), clean))
            .collect::<Vec<_>>()
            .join(" "),
        Value::Object(members) if members.is_empty() => "-".to_owned(),
        Value::Object(_) => clean(&value.to_string()),
    }
}

/// Returns the text as one line with a replacement for each character that is not seen.
pub(super) fn clean(text: &str) -> String {
    text.chars().map(|char| if is_hidden(char) { '\u{fffd}' } else { char }).collect()
}

/// Returns the text as one line with the name of each character that is not seen, such as
/// `<U+200B>`.
pub(super) fn with_names(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for char in text.chars() {
        if is_hidden(char) {
            let _infallible = write!(line, "<U+{:04X}>", u32::from(char));
        } else {
            line.push(char);
        }
    }
    line
}

/// Returns whether a reader does not see the character, or it changes how others are seen.
pub(super) fn is_hidden(char: char) -> bool {
    char.is_control() || is_unseen(char)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const COLUMNS: &[Column] =
        &[("name", "name"), ("state", "state"), ("bearer", "credentials.bearer")];

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let list = json!([{"name": "a", "state": "ready", "credentials": {"bearer": true}}, {"name": "longer", "state": null}]);
        assert_eq!(
            rows(&list, COLUMNS),
            "name    state  bearer\na       ready  yes\nlonger  -      -\n"
        );
        assert_eq!(rows(&json!([]), COLUMNS), "none\n");
    }

    #[test]
    fn facts_omit_unknown_values() {
        assert_eq!(
            facts(&json!({"name": "a", "latency": 1.25, "state": ""}), COLUMNS),
            "name    a\n"
        );
    }

    #[test]
    fn a_peers_text_cannot_control_the_terminal() {
        let list = json!([{"name": "\u{1b}[2J\u{202e}evil\nrow"}]);
        let text = rows(&list, &[("name", "name")]);
        assert_eq!(text.lines().count(), 2);
        assert!(!text.contains('\u{1b}') && !text.contains('\u{202e}'), "{text:?}");
    }

    #[test]
    fn characters_that_are_not_seen_are_replaced_or_named() {
        for hidden in [
            '\u{ad}',
            '\u{61c}',
            '\u{200b}',
            '\u{200d}',
            '\u{202e}',
            '\u{2060}',
            '\u{2064}',
            '\u{feff}',
            '\u{e0041}',
            '\n',
        ] {
            let text = format!("ann{hidden}\u{e4}");
            assert_eq!(clean(&text), "ann\u{fffd}\u{e4}");
            let name = format!("<U+{:04X}>", u32::from(hidden));
            assert_eq!(with_names(&text), format!("ann{name}\u{e4}"));
        }
    }
}
