//! Faults of a configuration or of the body of an admin request: path, problem, and permitted
//! values. The other files of this folder create them. `check-config` prints one per line, and the
//! admin API shows the field at fault.
//!
//! Invariant: a fault never holds the value of a secret, and is always one line.

use std::fmt;

use serde_json::Value;

/// A fault of one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldError {
    /// Path of the key, such as `limits.burst` or `transport.args[0]`. Empty for the document as a
    /// whole.
    pub path: String,
    pub problem: String,
    /// Permitted values. Empty when `problem` already contains them.
    pub allowed: String,
}

impl FieldError {
    pub fn new(
        path: impl Into<String>,
        wrong: impl Into<String>,
        allowed: impl Into<String>,
    ) -> Self {
        Self { path: path.into(), problem: wrong.into(), allowed: allowed.into() }
    }

    /// Prefixes the path of a fault with the path of the enclosing value.
    pub fn nested_in(mut self, parent: &str) -> Self {
        self.path = join(parent, &self.path);
        self
    }

    /// Adds keys to those that are allowed instead of an unknown key of the document itself.
    pub(super) fn or_one_of(mut self, keys: &[&str]) -> Self {
        if self.problem.starts_with(UNKNOWN_KEY) && !self.path.contains('.') {
            self.allowed = format!("{}, {}", self.allowed, keys.join(", "));
        }
        self
    }
}

pub(super) const NAME_ALLOWED: &str =
    "1 to 32 characters of a-z 0-9 and -, neither first nor last a -";
/// Problem of a key that its map does not have.
const UNKNOWN_KEY: &str = "is not a known key";

/// Returns the path of a member.
pub(super) fn join(parent: &str, name: &str) -> String {
    match (parent, name) {
        ("", name) => name.to_owned(),
        (parent, "") => parent.to_owned(),
        (parent, name) => format!("{parent}.{name}"),
    }
}

/// Returns the path of an element of a list.
pub(super) fn element(parent: &str, index: usize) -> String {
    format!("{parent}[{index}]")
}

impl fmt::Display for FieldError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = if self.path.is_empty() { "document" } else { &self.path };
        write!(out, "{}: {}", OneLine(path), OneLine(&self.problem))?;
        if !self.allowed.is_empty() {
            write!(out, "; allowed: {}", OneLine(&self.allowed))?;
        }
        Ok(())
    }
}

/// All faults of one configuration. Never empty.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct FieldErrors(pub Vec<FieldError>);

/// Text without control characters, which must not reach a terminal or start a second line.
struct OneLine<'a>(&'a str);

impl fmt::Display for OneLine<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |char: char| if char.is_control() { ' ' } else { char };
        self.0.chars().map(shown).try_for_each(|char| fmt::Write::write_char(out, char))
    }
}

/// Returns the known name that is most similar to a mistyped one.
pub(super) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    /// Largest distance of a suggestion. Names with a larger distance are unlikely to be meant.
    const SLIPS_MAX: usize = 2;
    // The distance below is quadratic, so a very long name is not measured.
    if name.len() > 64 {
        return None;
    }
    known
        .map(|candidate| (distance(name, candidate), candidate))
        .filter(|(slips, _)| *slips <= SLIPS_MAX)
        .min()
        .map(|(_, candidate)| candidate)
}

/// Returns the number of insertions, deletions and replacements between two names.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (above, from) in one.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = above + 1;
        for (column, to) in other.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(row[column] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

pub(super) fn not_available(path: String) -> FieldError {
    FieldError::new(path, "not available in this build", "leaving it out")
}

pub(super) fn unknown<'a>(
    parent: &str,
    name: &str,
    known: impl Iterator<Item = &'a str> + Clone,
) -> FieldError {
    let hint = nearest(name, known.clone())
        .map(|name| format!(", perhaps `{name}` was meant"))
        .unwrap_or_default();
    let shown: String = name.chars().take(64).collect();
    FieldError::new(
        join(parent, &shown),
        format!("{UNKNOWN_KEY}{hint}"),
        known.collect::<Vec<_>>().join(", "),
    )
}

/// Reason why a value is not accepted. The permitted values come from the table.
pub(super) type InvalidReason = String;

/// Shows a value that is not a secret.
pub(super) fn invalid_value(value: &Value) -> InvalidReason {
    const SHOWN_CHARS_MAX: usize = 60;
    match value {
        Value::String(text) if text.is_empty() => "is empty".to_owned(),
        Value::String(text) => {
            format!("is \"{}\"", text.chars().take(SHOWN_CHARS_MAX).collect::<String>())
        }
        Value::Number(number) => format!("is {number}"),
        Value::Bool(bool) => format!("is {bool}"),
        other => format!("is {}", describe(other)),
    }
}

/// Returns the type of a value as text. Does not show the value, as it may be a secret.
pub(super) fn describe(value: &Value) -> &'static str {
    match value {
        Value::Null => "empty",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a map",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_one_line() {
        let fault = FieldError::new("limits.burst", "is \"a\nb\u{1b}[31m\"", "a whole number");
        assert_eq!(fault.to_string(), "limits.burst: is \"a b [31m\"; allowed: a whole number");
        assert_eq!(
            FieldError::new("", "is empty", "").nested_in("backends.x").to_string(),
            "backends.x: is empty"
        );
    }

    #[test]
    fn a_typing_error_is_recognised() {
        let known = ["burst", "connections", "call"];
        assert_eq!(nearest("brust", known.into_iter()), Some("burst"));
        assert_eq!(nearest("conections", known.into_iter()), Some("connections"));
        assert_eq!(nearest("unrelated", known.into_iter()), None);
        assert_eq!(nearest(&"c".repeat(100_000), known.into_iter()), None);
    }
}
