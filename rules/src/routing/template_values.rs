//! The values that a completion gives for the variables of a resource template. With them, an
//! access rule sees for which resources a backend completes.

use std::borrow::Cow;

use protocol::{
    envelope::Message,
    error::{ErrorKind, Refusal},
    json::{Document, Limits, Value},
};

use crate::limits::{COMPLETION_DEPTH_MAX, URI_BYTES_MAX};

/// Returns the template with the values that a completion has for its variables. A variable without
/// a value stays, and the completed one stays behind the part that its client typed.
pub(super) fn with_values(template: &str, message: &Message) -> Result<String, Refusal> {
    let Some(params) = message.bytes(message.params) else { return Ok(template.to_owned()) };
    let limits = Limits { bytes_max: params.len(), depth_max: COMPLETION_DEPTH_MAX };
    let document = Document::parse(params, &limits).map_err(|_| unreadable())?;
    let root = document.root();
    let member = |path: &[&str]| root.unambiguous_path(path).map_err(|_| unreadable());
    let completed = member(&["argument", "name"])?.and_then(|name| name.as_str());
    let typed = member(&["argument", "value"])?.and_then(|value| value.as_str());
    let context = member(&["context", "arguments"])?;
    let mut expanded = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((literal, expression, after)) = next_expression(rest) {
        expanded.push_str(literal);
        let mut values = Vec::new();
        for variable in expression.variables() {
            let is_completed = completed.as_deref() == Some(variable.name);
            let value = match is_completed {
                true => Some(Cow::Borrowed(typed.as_deref().unwrap_or_default())),
                false => value_of(context.as_ref(), variable.name)?,
            };
            values.push(VariableValue { variable, value, is_completed });
        }
        expression.push(&mut expanded, &values);
        if expanded.len() > URI_BYTES_MAX {
            let text = format!("a URI of these values has more than {URI_BYTES_MAX} bytes");
            return Err(Refusal::new(ErrorKind::UriInvalid, text));
        }
        rest = after;
    }
    expanded.push_str(rest);
    Ok(expanded)
}

/// An expression of a template (RFC 6570, 2.2).
struct Expression<'t> {
    /// The expression with its braces.
    text: &'t str,
    /// The variables, without the operator and the braces.
    list: &'t str,
    /// Text before the first value.
    first: &'static str,
    /// Text between values.
    separator: &'static str,
    /// Whether each value follows the name of its variable.
    is_named: bool,
}

/// A variable of an expression.
#[derive(Clone, Copy)]
struct Variable<'t> {
    /// The variable with its modifier.
    text: &'t str,
    name: &'t str,
    /// Characters of the value that count.
    chars_max: usize,
}

struct VariableValue<'t, 'v> {
    variable: Variable<'t>,
    value: Option<Cow<'v, str>>,
    /// Whether the client completes the value, so that it stays open.
    is_completed: bool,
}

impl<'t> Expression<'t> {
    /// Reads an expression with its braces.
    fn of(text: &'t str) -> Self {
        let inner = &text[1..text.len() - 1];
        // RFC 6570, appendix A.
        let (operator_bytes, first, separator, is_named) = match inner.as_bytes().first() {
            Some(b'+') => (1, "", ",", false),
            Some(b'#') => (1, "#", ",", false),
            Some(b'.') => (1, ".", ".", false),
            Some(b'/') => (1, "/", "/", false),
            Some(b';') => (1, ";", ";", true),
            Some(b'?') => (1, "?", "&", true),
            Some(b'&') => (1, "&", "&", true),
            _ => (0, "", ",", false),
        };
        Self { text, list: &inner[operator_bytes..], first, separator, is_named }
    }

    fn variables(&self) -> impl Iterator<Item = Variable<'t>> {
        self.list.split(',').map(|text| match text.split_once(':') {
            Some((name, count)) => {
                Variable { text, name, chars_max: count.parse().unwrap_or(usize::MAX) }
            }
            None => Variable { text, name: text.trim_end_matches('*'), chars_max: usize::MAX },
        })
    }

    /// Adds the expression with its values. It stays as it is if none is known.
    fn push(&self, expanded: &mut String, values: &[VariableValue<'_, '_>]) {
        if values.iter().all(|one| one.value.is_none()) {
            return expanded.push_str(self.text);
        }
        let is_alone = values.len() == 1;
        for (at, VariableValue { variable, value, is_completed }) in values.iter().enumerate() {
            expanded.push_str(if at == 0 { self.first } else { self.separator });
            if self.is_named {
                expanded.push_str(variable.name);
                expanded.push('=');
            }
            variable.push_value(expanded, value.as_deref().unwrap_or_default());
            match is_alone && !self.is_named {
                true if *is_completed => expanded.push_str(self.text),
                false if *is_completed || value.is_none() => {
                    expanded.push('{');
                    expanded.push_str(variable.text);
                    expanded.push('}');
                }
                _ => {}
            }
        }
    }
}

impl Variable<'_> {
    /// Adds a value as a server may insert it. Its braces are encoded, because they would look like
    /// an expression.
    fn push_value(&self, expanded: &mut String, value: &str) {
        for symbol in value.chars().take(self.chars_max) {
            match symbol {
                '{' => expanded.push_str("%7B"),
                '}' => expanded.push_str("%7D"),
                other => expanded.push(other),
            }
        }
    }
}

/// Returns the text before the next expression, the expression, and the text after it.
fn next_expression(template: &str) -> Option<(&str, Expression<'_>, &str)> {
    let start = template.find('{')?;
    let end = start + template[start..].find('}')?;
    Some((&template[..start], Expression::of(&template[start..=end]), &template[end + 1..]))
}

fn value_of<'v>(values: Option<&Value<'v>>, name: &str) -> Result<Option<Cow<'v, str>>, Refusal> {
    let Some(values) = values else { return Ok(None) };
    let value = values.unambiguous(name).map_err(|_| unreadable())?;
    Ok(value.and_then(|value| value.as_str()))
}

fn unreadable() -> Refusal {
    Refusal::new(
        ErrorKind::InvalidParams,
        "a completion must have one argument, and at most one value for each variable",
    )
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn expanded(template: &str, params: &str) -> Result<String, Refusal> {
        let frame = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"completion/complete","params":{params}}}"#
        );
        let limits = Limits::with_bytes_max(frame.len());
        with_values(template, &Message::decode(Bytes::from(frame), &limits).unwrap())
    }

    #[test]
    fn known_values_are_inserted_and_the_completed_variable_stays_open() {
        let template = "file:///{dir}/{name}";
        for (params, result) in [
            (r#"{"argument":{"name":"name","value":""}}"#, "file:///{dir}/{name}"),
            (
                r#"{"argument":{"name":"name","value":"a"},"context":{"arguments":{"dir":"secret"}}}"#,
                "file:///secret/a{name}",
            ),
            (r#"{"argument":{"name":"dir","value":"../s"}}"#, "file:///../s{dir}/{name}"),
            (
                r#"{"argument":{"name":"name","value":""},"context":{"arguments":{"dir":"{x}/.."}}}"#,
                "file:///%7Bx%7D/../{name}",
            ),
        ] {
            assert_eq!(expanded(template, params).unwrap(), result, "{params}");
        }
        let params =
            r#"{"argument":{"name":"q","value":""},"context":{"arguments":{"path":"a/b"}}}"#;
        for (template, result) in [
            ("file://{/path*}{?q}", "file:///a/b?q={q}"),
            ("file://{/path*}{?x}", "file:///a/b{?x}"),
            ("db:rows{?path,x}{&q}", "db:rows?path=a/b&x={x}&q={q}"),
            ("db:rows{;path}{#x,path}", "db:rows;path=a/b#{x},a/b"),
            ("db:{x,path:1}{/path,q}", "db:{x},a/a/b/{q}"),
            ("file:///{+path}", "file:///a/b"),
            ("file:///{path:1}/x", "file:///a/x"),
            ("file:///{a,path}/{", "file:///{a},a/b/{"),
        ] {
            assert_eq!(expanded(template, params).unwrap(), result);
        }
    }

    #[test]
    fn two_values_for_a_variable_and_too_long_ones_are_refused() {
        for params in [
            r#"{"argument":{"name":"name","value":""},"context":{"arguments":{"dir":"a","dir":"b"}}}"#,
            r#"{"argument":{"name":"name","value":""},"context":{"arguments":{"dir":"a","DIR":"b"}}}"#,
        ] {
            assert_eq!(
                expanded("file:///{dir}/{name}", params).unwrap_err().kind,
                ErrorKind::InvalidParams
            );
        }
        let long = "x".repeat(URI_BYTES_MAX);
        let params = format!(r#"{{"argument":{{"name":"name","value":"{long}"}}}}"#);
        assert_eq!(expanded("file:///{name}", &params).unwrap_err().kind, ErrorKind::UriInvalid);
    }
}
