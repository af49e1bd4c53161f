//! The values that a completion gives for the variables of a resource template. With them, an
//! access rule sees for which resources a backend completes.
//!
//! The client chooses the template, the number of its variables and their values. The values are
//! therefore read once, and the expansion ends as soon as it is too long for a URI.

use std::{borrow::Cow, collections::HashMap};

use protocol::{
    envelope::Message,
    error::{ErrorKind, Refusal},
    json::{AmbiguousMember, Document, Limits, NamedMembers, Value},
};

use crate::limits::{COMPLETION_DEPTH_MAX, TEMPLATE_VARIABLES_MAX, URI_BYTES_MAX};

/// Returns the template with the values that a completion has for its variables. A variable without
/// a value stays, and the completed one stays behind the part that its client typed.
pub(super) fn with_values(template: &str, message: &Message) -> Result<String, Refusal> {
    if variables(template).nth(TEMPLATE_VARIABLES_MAX).is_some() {
        let text = format!("a URI template has more than {TEMPLATE_VARIABLES_MAX} variables");
        return Err(Refusal::new(ErrorKind::UriInvalid, text));
    }
    let Some(params) = message.bytes(message.params) else { return Ok(template.to_owned()) };
    let limits = Limits { bytes_max: params.len(), depth_max: COMPLETION_DEPTH_MAX };
    let document = Document::parse(params, &limits).map_err(|_| unreadable())?;
    let root = document.root();
    let member = |path: &[&str]| root.unambiguous_path(path).map_err(|_| unreadable());
    let completed = member(&["argument", "name"])?.and_then(|name| name.as_str());
    let typed = member(&["argument", "value"])?.and_then(|value| value.as_str());
    let context = ContextValues::read(template, member(&["context", "arguments"])?);
    let mut expanded = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((literal, expression, after)) = next_expression(rest) {
        expanded.push_str(literal);
        let mut values = Vec::new();
        for variable in expression.variables() {
            let is_completed = completed.as_deref() == Some(variable.name);
            let value = match is_completed {
                true => Some(typed.as_deref().unwrap_or_default()),
                false => context.get(variable.name)?,
            };
            values.push(VariableValue { variable, value, is_completed });
        }
        expression.push(&mut expanded, &values)?;
        rest = after;
    }
    expanded.push_str(rest);
    Ok(expanded)
}

/// The values in `context.arguments` of the variables of one template, by their names.
struct ContextValues<'t, 'v>(HashMap<&'t str, Result<Option<Cow<'v, str>>, AmbiguousMember>>);

impl<'t, 'v> ContextValues<'t, 'v> {
    /// Reads the values. The members are passed over once, and each value is decoded once.
    fn read(template: &'t str, arguments: Option<Value<'v>>) -> Self {
        let names = || variables(template).map(|variable| variable.name);
        let members = arguments.into_iter().flat_map(|arguments| arguments.members());
        let found = NamedMembers::find(members, names());
        let mut values = HashMap::new();
        for name in names() {
            values.entry(name).or_insert_with(|| {
                found.unambiguous(name).map(|value| value.and_then(|value| value.as_str()))
            });
        }
        Self(values)
    }

    /// Returns the value of a variable. Fails if readers would differ about it.
    fn get(&self, name: &str) -> Result<Option<&str>, Refusal> {
        match self.0.get(name) {
            Some(Ok(value)) => Ok(value.as_deref()),
            Some(Err(_)) => Err(unreadable()),
            None => Ok(None),
        }
    }
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
    value: Option<&'v str>,
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

    fn variables(&self) -> impl Iterator<Item = Variable<'t>> + use<'t> {
        self.list.split(',').map(|text| match text.split_once(':') {
            Some((name, count)) => {
                Variable { text, name, chars_max: count.parse().unwrap_or(usize::MAX) }
            }
            None => Variable { text, name: text.trim_end_matches('*'), chars_max: usize::MAX },
        })
    }

    /// Adds the expression with its values. It stays as it is if none is known. Fails as soon as
    /// the text is too long for a URI.
    fn push(&self, expanded: &mut String, values: &[VariableValue<'_, '_>]) -> Result<(), Refusal> {
        if values.iter().all(|one| one.value.is_none()) {
            expanded.push_str(self.text);
            return check_length(expanded);
        }
        let is_alone = values.len() == 1;
        for (at, VariableValue { variable, value, is_completed }) in values.iter().enumerate() {
            expanded.push_str(if at == 0 { self.first } else { self.separator });
            if self.is_named {
                expanded.push_str(variable.name);
                expanded.push('=');
            }
            variable.push_value(expanded, value.unwrap_or_default())?;
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
        check_length(expanded)
    }
}

impl Variable<'_> {
    /// Adds a value as a server may insert it. Its braces are encoded, because they would look like
    /// an expression. Fails as soon as the text is too long for a URI.
    fn push_value(&self, expanded: &mut String, value: &str) -> Result<(), Refusal> {
        for symbol in value.chars().take(self.chars_max) {
            match symbol {
                '{' => expanded.push_str("%7B"),
                '}' => expanded.push_str("%7D"),
                other => expanded.push(other),
            }
            check_length(expanded)?;
        }
        Ok(())
    }
}

/// Refuses a text that is too long for a URI.
fn check_length(expanded: &str) -> Result<(), Refusal> {
    if expanded.len() <= URI_BYTES_MAX {
        return Ok(());
    }
    let text = format!("a URI of these values has more than {URI_BYTES_MAX} bytes");
    Err(Refusal::new(ErrorKind::UriInvalid, text))
}

/// Returns the variables of all expressions of a template.
fn variables(template: &str) -> impl Iterator<Item = Variable<'_>> {
    let mut rest = template;
    let expressions = std::iter::from_fn(move || {
        let (_, expression, after) = next_expression(rest)?;
        rest = after;
        Some(expression)
    });
    expressions.flat_map(|expression| expression.variables())
}

/// Returns the text before the next expression, the expression, and the text after it.
fn next_expression(template: &str) -> Option<(&str, Expression<'_>, &str)> {
    let start = template.find('{')?;
    let end = start + template[start..].find('}')?;
    Some((&template[..start], Expression::of(&template[start..=end]), &template[end + 1..]))
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

    #[test]
    fn a_long_value_is_not_expanded_once_for_each_variable() {
        let expression = Expression::of("{+a,a,a,a:9,a}");
        let value = "x".repeat(4 * URI_BYTES_MAX);
        let values: Vec<VariableValue<'_, '_>> = expression
            .variables()
            .map(|variable| VariableValue {
                variable,
                value: Some(value.as_str()),
                is_completed: false,
            })
            .collect();
        let mut expanded = String::new();
        let refusal = expression.push(&mut expanded, &values).unwrap_err();
        assert_eq!((refusal.kind, expanded.len()), (ErrorKind::UriInvalid, URI_BYTES_MAX + 1));
        let params = format!(r#"{{"argument":{{"name":"a","value":"{value}"}}}}"#);
        assert_eq!(expanded_kind("b:{+a,a,a}", &params), Some(ErrorKind::UriInvalid));
        assert_eq!(expanded_kind("b:{+a:9,x}", &params), None, "only nine characters count");
    }

    fn expanded_kind(template: &str, params: &str) -> Option<ErrorKind> {
        expanded(template, params).err().map(|refusal| refusal.kind)
    }

    #[test]
    fn a_template_with_too_many_variables_is_refused() {
        let params = r#"{"argument":{"name":"a","value":""}}"#;
        for (count, kind) in [
            (TEMPLATE_VARIABLES_MAX, None),
            (TEMPLATE_VARIABLES_MAX + 1, Some(ErrorKind::UriInvalid)),
        ] {
            let one = format!("b:{{+{}}}", vec!["a"; count].join(","));
            assert_eq!(expanded_kind(&one, params), kind, "{count} in one expression");
            let each = format!("b:{}", "{a}".repeat(count));
            assert_eq!(expanded_kind(&each, params), kind, "{count} expressions");
        }
    }

    #[test]
    fn only_values_of_open_variables_must_be_unambiguous() {
        let of = |template: &str, arguments: &str| {
            let context = format!(r#""context":{{"arguments":{{{arguments}}}}}"#);
            expanded(template, &format!(r#"{{"argument":{{"name":"q","value":"v"}},{context}}}"#))
        };
        for arguments in [r#""q":"a","q":"b""#, r#""other":1,"Other":2,"dir":"d""#] {
            assert!(of("x:{dir}/{q}", arguments).unwrap().ends_with("/v{q}"), "{arguments}");
        }
        assert_eq!(of("x:{dir}{dir}", r#""dir":"d","e":"f""#).unwrap(), "x:dd");
        assert_eq!(of("x:{dir}{é}", r#""dir":7,"é":"f""#).unwrap(), "x:{dir}{é}");
        for (template, arguments) in [
            ("x:{dir}{DIR}", r#""dir":"d""#),
            ("x:{dir}", r#""dir":"d","d\u0131r":"e""#),
            ("x:{q}{dir}", r#""Dir":"d""#),
        ] {
            let refusal = of(template, arguments).unwrap_err();
            assert_eq!(refusal.kind, ErrorKind::InvalidParams, "{template}");
        }
    }
}
