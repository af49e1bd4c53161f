//! Arguments that a tool wants repeated in headers: `x-mcp-header` in its `inputSchema` (MCP
//! 2026-07-28, Streamable HTTP).
//!
//! An annotation is valid under three conditions:
//!
//! - Its property has the type string, integer or boolean.
//! - The property is reached by `properties` alone.
//! - The header name occurs once.
//!
//! A client may not use a tool with any other annotation.

use std::{borrow::Cow, collections::HashSet};

use crate::json::{Document, Limits, Value, ValueKind};
use crate::stateless::headers;

/// Deepest nesting of properties that is searched.
const DEPTH_MAX: usize = 32;
/// Header names and paths of one tool, together.
const ANNOTATION_BYTES_MAX: usize = 64 * 1024;
/// The largest integer that every peer can hold exactly.
const INTEGER_MAX: i64 = (1 << 53) - 1;

/// Type of the argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParamType {
    /// `string`
    Text,
    /// `integer`
    Integer,
    /// `boolean`
    Boolean,
}

/// One argument that is repeated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamHeader {
    /// The whole header name, in lower case.
    pub header: String,
    /// Path of the value in the arguments.
    pub path: Vec<String>,
    /// Type of the value.
    pub kind: ParamType,
}

/// Reason why a tool cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadAnnotation {
    /// The header name is not a token, or not a string.
    #[error("x-mcp-header must be a non-empty token")]
    Name,
    /// Two properties have the same header name.
    #[error("two properties have the same x-mcp-header")]
    Duplicate,
    /// The property is of another type.
    #[error("x-mcp-header is allowed only on properties of type string, integer or boolean")]
    Type,
    /// The property is not reached by `properties` alone.
    #[error("x-mcp-header is not on a property, or is nested too deeply")]
    NotReachable,
    /// The header names and paths are too long together.
    #[error("the x-mcp-header annotations have more than 64 KiB of names and paths")]
    TooLong,
    /// The schema cannot be read.
    #[error("inputSchema cannot be read")]
    Schema,
}

/// Returns the arguments a tool with this `inputSchema` wants repeated.
pub fn param_headers(schema: &[u8]) -> Result<Vec<ParamHeader>, BadAnnotation> {
    if memchr::memmem::find(schema, b"x-mcp-header").is_none()
        && memchr::memmem::find(schema, b"\\u").is_none()
    {
        return Ok(Vec::new());
    }
    let document = Document::parse(schema, &Limits::with_bytes_max(schema.len()))
        .map_err(|_| BadAnnotation::Schema)?;
    let (mut found, mut bytes_left) = (Vec::new(), ANNOTATION_BYTES_MAX);
    properties(document.root(), &mut Vec::new(), &mut found, &mut bytes_left)?;
    let annotated = count(document.root(), 0)?;
    if annotated != found.len() {
        return Err(BadAnnotation::NotReachable);
    }
    let mut headers = HashSet::new();
    match found.iter().all(|one| headers.insert(one.header.as_str())) {
        true => Ok(found),
        false => Err(BadAnnotation::Duplicate),
    }
}

fn properties(
    schema: Value<'_>,
    path: &mut Vec<String>,
    found: &mut Vec<ParamHeader>,
    bytes_left: &mut usize,
) -> Result<(), BadAnnotation> {
    if path.len() > DEPTH_MAX {
        return Err(BadAnnotation::NotReachable);
    }
    for property in schema.get("properties").into_iter().flat_map(|all| all.members()) {
        path.push(property.key.into_owned());
        if let Some(name) = property.value.get("x-mcp-header") {
            let name = name.as_str().filter(|name| is_token(name)).ok_or(BadAnnotation::Name)?;
            let kind = match property.value.get("type").and_then(|kind| kind.as_str()).as_deref() {
                Some("string") => ParamType::Text,
                Some("integer") => ParamType::Integer,
                Some("boolean") => ParamType::Boolean,
                _ => return Err(BadAnnotation::Type),
            };
            let bytes = name.len() + path.iter().map(String::len).sum::<usize>();
            *bytes_left = bytes_left.checked_sub(bytes).ok_or(BadAnnotation::TooLong)?;
            let header = format!("{}{}", headers::PARAM_PREFIX, name.to_ascii_lowercase());
            found.push(ParamHeader { header, path: path.clone(), kind });
        }
        properties(property.value, path, found, bytes_left)?;
        path.pop();
    }
    Ok(())
}

/// Counts the annotations at any depth. A property may be called `x-mcp-header`: it is then an
/// object, or `true`.
fn count(value: Value<'_>, depth: usize) -> Result<usize, BadAnnotation> {
    if depth > 4 * DEPTH_MAX {
        return Err(BadAnnotation::NotReachable);
    }
    let mut sum = 0;
    for member in value.members() {
        let is_annotation = member.key == "x-mcp-header"
            && !matches!(member.value.kind(), ValueKind::Object | ValueKind::Bool);
        sum += usize::from(is_annotation) + count(member.value, depth + 1)?;
    }
    for element in value.elements() {
        sum += count(element, depth + 1)?;
    }
    Ok(sum)
}

/// Returns whether the text is a token (RFC 9110, Tokens).
fn is_token(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

impl ParamHeader {
    /// Returns the header's text for these arguments, not encoded yet. `None` in three cases:
    ///
    /// - The argument is absent or null.
    /// - It is not of its type, which the server has to judge.
    /// - Two readers would find different arguments.
    pub fn text(&self, arguments: Option<&[u8]>) -> Option<String> {
        let arguments = arguments?;
        let document = Document::parse(arguments, &Limits::with_bytes_max(arguments.len())).ok()?;
        let path: Vec<&str> = self.path.iter().map(String::as_str).collect();
        let value = document.root().unambiguous_path(&path).ok()??;
        match self.kind {
            ParamType::Text => value.as_str().map(Cow::into_owned),
            ParamType::Integer => integer(value.raw()).map(|number| number.to_string()),
            ParamType::Boolean => value.as_bool().map(|set| set.to_string()),
        }
    }

    /// Returns whether any reader finds the argument, and it is not null.
    pub fn is_present(&self, arguments: Option<&[u8]>) -> bool {
        let Some(arguments) = arguments else { return false };
        let Ok(document) = Document::parse(arguments, &Limits::with_bytes_max(arguments.len()))
        else {
            return false;
        };
        let path: Vec<&str> = self.path.iter().map(String::as_str).collect();
        document
            .root()
            .unambiguous_path(&path)
            .map_or(true, |value| value.is_some_and(|value| !value.is_null()))
    }

    /// Returns whether a header with this value agrees with the arguments.
    pub fn matches(&self, value: &[u8], arguments: Option<&[u8]>) -> bool {
        let (Some(expected), Ok(given)) = (self.text(arguments), headers::decode(value)) else {
            return false;
        };
        match self.kind {
            ParamType::Integer => {
                integer(given.as_bytes()).is_some_and(|number| number.to_string() == expected)
            }
            ParamType::Text | ParamType::Boolean => given == expected,
        }
    }
}

/// Parses an integer in any JSON notation, `1e3` and `4.0` too.
fn integer(text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?;
    let number = text.parse::<i64>().ok().or_else(|| {
        let number = text.parse::<f64>().ok()?;
        (number.fract() == 0.0 && number.abs() <= INTEGER_MAX as f64).then_some(number as i64)
    })?;
    (number.unsigned_abs() <= INTEGER_MAX.unsigned_abs()).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEMA: &str = r#"{"type":"object","properties":{
        "region":{"type":"string","x-mcp-header":"Region"},
        "x-mcp-header":{"type":"string"},
        "deep":{"type":"object","properties":{"count":{"type":"integer","x-mcp-header":"Count"},"on":{"type":"boolean","x-mcp-header":"On"}}}}}"#;

    #[test]
    fn n_hdr_03_arguments_are_found_by_their_properties() {
        let headers = param_headers(SCHEMA.as_bytes()).unwrap();
        let names: Vec<&str> = headers.iter().map(|one| one.header.as_str()).collect();
        assert_eq!(names, ["mcp-param-region", "mcp-param-count", "mcp-param-on"]);
        let arguments = br#"{"region":"eu \u00e9","deep":{"count":4.0,"on":true}}"#;
        let texts: Vec<Option<String>> =
            headers.iter().map(|one| one.text(Some(arguments))).collect();
        assert_eq!(texts, [Some("eu é".into()), Some("4".into()), Some("true".into())]);
        assert!(headers[0].matches(headers::encode("eu é").as_bytes(), Some(arguments)));
        assert!(
            headers[1].matches(b"4", Some(arguments))
                && headers[1].matches(b"4.0", Some(arguments))
        );
        assert!(
            !headers[1].matches(b"5", Some(arguments))
                && !headers[2].matches(b"True", Some(arguments))
        );
    }

    #[test]
    fn s01_an_ambiguous_argument_matches_no_header() {
        let region = &param_headers(SCHEMA.as_bytes()).unwrap()[0];
        for arguments in [
            r#"{"region":"eu","region":"us"}"#,
            r#"{"region":"eu","Region":"us"}"#,
            r#"{"Region":"eu"}"#,
        ] {
            let arguments = Some(arguments.as_bytes());
            assert!(
                region.is_present(arguments)
                    && !region.matches(b"eu", arguments)
                    && !region.matches(b"us", arguments)
            );
        }
    }

    #[test]
    fn n_hdr_03_null_and_absent_arguments_have_no_header() {
        let region = &param_headers(SCHEMA.as_bytes()).unwrap()[0];
        for arguments in [None, Some(&b"{}"[..]), Some(br#"{"region":null}"#)] {
            assert_eq!((region.text(arguments), region.is_present(arguments)), (None, false));
        }
        assert!(region.is_present(Some(br#"{"region":""}"#)));
    }

    #[test]
    fn n_hdr_03_the_smallest_integer_matches_nothing() {
        let headers = param_headers(SCHEMA.as_bytes()).unwrap();
        let arguments = br#"{"deep":{"count":-9223372036854775808}}"#;
        for value in ["-9223372036854775808", "-9.223372036854775808e18"] {
            assert!(!headers[1].matches(value.as_bytes(), Some(arguments)), "{value}");
        }
    }

    #[test]
    fn n_hdr_03_invalid_annotations_are_refused_with_a_reason() {
        for (property, why) in [
            (r#"{"type":"string","x-mcp-header":""}"#, BadAnnotation::Name),
            (r#"{"type":"string","x-mcp-header":"a b"}"#, BadAnnotation::Name),
            (r#"{"type":"string","x-mcp-header":7}"#, BadAnnotation::Name),
            (r#"{"type":"number","x-mcp-header":"A"}"#, BadAnnotation::Type),
            (r#"{"x-mcp-header":"A"}"#, BadAnnotation::Type),
            (
                r#"{"type":"array","items":{"type":"string","x-mcp-header":"A"}}"#,
                BadAnnotation::NotReachable,
            ),
            (r#"{"anyOf":[{"type":"string","x-mcp-header":"A"}]}"#, BadAnnotation::NotReachable),
        ] {
            let schema = format!(r#"{{"type":"object","properties":{{"p":{property}}}}}"#);
            assert_eq!(param_headers(schema.as_bytes()), Err(why), "{property}");
        }
        let twice = r#"{"properties":{"a":{"type":"string","x-mcp-header":"A"},"b":{"type":"string","x-mcp-header":"a"}}}"#;
        assert_eq!(param_headers(twice.as_bytes()), Err(BadAnnotation::Duplicate));
        assert_eq!(param_headers(br#"{"type":"object"}"#), Ok(vec![]));
    }

    /// Each annotation has a copy of its path, so these would take terabytes.
    #[test]
    fn n_hdr_03_long_names_and_paths_are_refused() {
        let schema = |outer: &str, count: usize| {
            let properties: Vec<String> = (0..count)
                .map(|at| format!(r#""{at}":{{"type":"string","x-mcp-header":"A{at}"}}"#))
                .collect();
            let inner = properties.join(",");
            format!(r#"{{"properties":{{"{outer}":{{"properties":{{{inner}}}}}}}}}"#)
        };
        assert_eq!(param_headers(schema("a", 1_000).as_bytes()).map(|all| all.len()), Ok(1_000));
        let long = "a".repeat(8 * 1024 * 1024);
        for (outer, count) in [("a", 100_000), (long.as_str(), 100_000)] {
            let found = param_headers(schema(outer, count).as_bytes());
            assert_eq!(found, Err(BadAnnotation::TooLong));
        }
    }
}
