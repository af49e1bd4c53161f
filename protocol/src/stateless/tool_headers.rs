//! Arguments that a tool wants repeated in headers: `x-mcp-header` in its `inputSchema` (MCP
//! 2026-07-28, Streamable HTTP).
//!
//! An annotation is valid under three conditions:
//!
//! - Its property has the type string, integer or boolean.
//! - The property is reached by `properties` alone.
//! - The header name occurs once.
//!
//! A client may not use a tool with any other annotation, or with more than [`ANNOTATIONS_MAX`].

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
};

use crate::json::{Limits, NamedMembers, Tape, TapeValue, ValueKind};
use crate::stateless::headers;

/// Annotations of one tool. A request cannot have more headers.
pub const ANNOTATIONS_MAX: usize = 100;
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
    /// Two properties have the same header name, or one property occurs twice.
    #[error("two properties have the same x-mcp-header, or the same path")]
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
    /// A client cannot send this many headers.
    #[error("the tool has more x-mcp-header annotations than a request can have headers")]
    TooMany,
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
    let tape = Tape::parse(schema, &Limits::with_bytes_max(schema.len()))
        .map_err(|_| BadAnnotation::Schema)?;
    let (mut found, mut bytes_left) = (Vec::new(), ANNOTATION_BYTES_MAX);
    properties(tape.root(), &mut Vec::new(), &mut found, &mut bytes_left)?;
    if count(tape.root()) != found.len() {
        return Err(BadAnnotation::NotReachable);
    }
    match are_distinct(&found) {
        true => Ok(found),
        false => Err(BadAnnotation::Duplicate),
    }
}

/// Returns whether no two annotations have the same header name or path.
fn are_distinct(found: &[ParamHeader]) -> bool {
    let (mut headers, mut paths) = (HashSet::new(), HashSet::new());
    found.iter().all(|one| headers.insert(one.header.as_str()) && paths.insert(one.path.as_slice()))
}

fn properties(
    schema: TapeValue<'_>,
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
            if found.len() == ANNOTATIONS_MAX {
                return Err(BadAnnotation::TooMany);
            }
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
fn count(value: TapeValue<'_>) -> usize {
    let members: usize = value
        .members()
        .map(|member| {
            let is_annotation = member.key == "x-mcp-header"
                && !matches!(member.value.kind(), ValueKind::Object | ValueKind::Bool);
            usize::from(is_annotation) + count(member.value)
        })
        .sum();
    members + value.elements().map(count).sum::<usize>()
}

/// Returns whether the text is a token (RFC 9110, Tokens).
fn is_token(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

/// One argument of a call, with the header that repeats it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MirroredArgument<'p> {
    /// The header, and the type of the argument.
    pub param: &'p ParamHeader,
    /// The header's text, not encoded yet. `None` in three cases:
    ///
    /// - The argument is absent or null.
    /// - It is not of its type, which the server has to judge.
    /// - Two readers would find different arguments.
    pub text: Option<String>,
    /// Whether any reader finds the argument, and it is not null.
    pub is_present: bool,
}

/// Reads the arguments that a tool wants repeated, in the order of `params`. The arguments are
/// parsed once, and each object in them is searched once.
pub fn mirrored_arguments<'p>(
    params: &'p [ParamHeader],
    arguments: Option<&[u8]>,
) -> Vec<MirroredArgument<'p>> {
    let mut mirrored: Vec<MirroredArgument<'p>> = params
        .iter()
        .map(|param| MirroredArgument { param, text: None, is_present: false })
        .collect();
    let Some(text) = arguments.filter(|_| !params.is_empty()) else { return mirrored };
    if let Ok(tape) = Tape::parse(text, &Limits::with_bytes_max(text.len())) {
        read_mirrored(tape.root(), 0, mirrored.iter_mut().collect());
    }
    mirrored
}

/// Reads the wanted arguments below a value, to which the first `depth` keys of their paths lead.
fn read_mirrored(value: TapeValue<'_>, depth: usize, wanted: Vec<&mut MirroredArgument<'_>>) {
    let keys = wanted.iter().filter_map(|one| one.param.path.get(depth));
    let members = NamedMembers::find(value.members(), keys.map(String::as_str));
    let mut inside: HashMap<&str, Vec<&mut MirroredArgument<'_>>> = HashMap::new();
    for argument in wanted {
        let param = argument.param;
        let Some((key, rest)) = param.path[depth..].split_first() else { continue };
        match members.unambiguous(key) {
            Ok(None) => {}
            Ok(Some(found)) if rest.is_empty() => argument.read(found),
            Ok(Some(_)) => inside.entry(key.as_str()).or_default().push(argument),
            Err(_) => argument.is_present = true,
        }
    }
    for (key, wanted) in inside {
        if let Ok(Some(found)) = members.unambiguous(key) {
            read_mirrored(found, depth + 1, wanted);
        }
    }
}

impl MirroredArgument<'_> {
    fn read(&mut self, value: TapeValue<'_>) {
        self.is_present = !value.is_null();
        self.text = match self.param.kind {
            ParamType::Text => value.as_str().map(Cow::into_owned),
            ParamType::Integer => integer(value.raw()).map(|number| number.to_string()),
            ParamType::Boolean => value.as_bool().map(|set| set.to_string()),
        };
    }

    /// Returns whether a header with this value agrees with the argument.
    pub fn matches(&self, value: &[u8]) -> bool {
        let (Some(expected), Ok(given)) = (&self.text, headers::decode(value)) else {
            return false;
        };
        match self.param.kind {
            ParamType::Integer => {
                integer(given.as_bytes()).is_some_and(|number| number.to_string() == *expected)
            }
            ParamType::Text | ParamType::Boolean => given == *expected,
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

    fn mirrored<'p>(params: &'p [ParamHeader], arguments: &str) -> Vec<MirroredArgument<'p>> {
        mirrored_arguments(params, Some(arguments.as_bytes()))
    }

    #[test]
    fn n_hdr_03_arguments_are_found_by_their_properties() {
        let headers = param_headers(SCHEMA.as_bytes()).unwrap();
        let names: Vec<&str> = headers.iter().map(|one| one.header.as_str()).collect();
        assert_eq!(names, ["mcp-param-region", "mcp-param-count", "mcp-param-on"]);
        let arguments =
            mirrored(&headers, r#"{"region":"eu \u00e9","deep":{"count":4.0,"on":true}}"#);
        let texts: Vec<Option<&str>> = arguments.iter().map(|one| one.text.as_deref()).collect();
        assert_eq!(texts, [Some("eu é"), Some("4"), Some("true")]);
        assert!(arguments[0].matches(headers::encode("eu é").as_bytes()));
        assert!(arguments[1].matches(b"4") && arguments[1].matches(b"4.0"));
        assert!(!arguments[1].matches(b"5") && !arguments[2].matches(b"True"));
    }

    #[test]
    fn s01_an_ambiguous_argument_matches_no_header() {
        let headers = param_headers(SCHEMA.as_bytes()).unwrap();
        for arguments in [
            r#"{"region":"eu","region":"us"}"#,
            r#"{"region":"eu","Region":"us"}"#,
            r#"{"Region":"eu"}"#,
        ] {
            let region = &mirrored(&headers, arguments)[0];
            assert!(region.is_present && !region.matches(b"eu") && !region.matches(b"us"));
        }
        let deep = r#"{"deep":{"count":4,"on":true},"Deep":{}}"#;
        for argument in &mirrored(&headers, deep)[1..] {
            assert_eq!((&argument.text, argument.is_present), (&None, true));
        }
    }

    #[test]
    fn n_hdr_03_null_and_absent_arguments_have_no_header() {
        let headers = param_headers(SCHEMA.as_bytes()).unwrap();
        for arguments in [None, Some(&b"{}"[..]), Some(br#"{"region":null}"#), Some(b"[]")] {
            let region = &mirrored_arguments(&headers, arguments)[0];
            assert_eq!((&region.text, region.is_present), (&None, false));
        }
        assert!(mirrored(&headers, r#"{"region":""}"#)[0].is_present);
    }

    #[test]
    fn n_hdr_03_the_smallest_integer_matches_nothing() {
        let headers = param_headers(SCHEMA.as_bytes()).unwrap();
        let count = &mirrored(&headers, r#"{"deep":{"count":-9223372036854775808}}"#)[1];
        for value in ["-9223372036854775808", "-9.223372036854775808e18"] {
            assert!(!count.matches(value.as_bytes()), "{value}");
        }
    }

    #[test]
    fn n_hdr_03_arguments_with_a_common_path_are_read_together() {
        let property =
            |at: usize| format!(r#""p{at}":{{"type":"integer","x-mcp-header":"H{at}"}}"#);
        let properties: Vec<String> = (0..ANNOTATIONS_MAX).map(property).collect();
        let schema = format!(
            r#"{{"properties":{{"o":{{"properties":{{"i":{{"properties":{{{}}}}}}}}}}}}}"#,
            properties.join(",")
        );
        let headers = param_headers(schema.as_bytes()).unwrap();
        let values: Vec<String> =
            (0..ANNOTATIONS_MAX).map(|at| format!(r#""p{at}":{at}"#)).collect();
        let arguments = format!(r#"{{"o":{{"i":{{"x":[],{}}}}}}}"#, values.join(","));
        let texts = mirrored(&headers, &arguments).into_iter().map(|one| one.text);
        assert!(texts.eq((0..ANNOTATIONS_MAX).map(|at| Some(at.to_string()))));
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
        let same_path = r#"{"properties":{"a":{"type":"string","x-mcp-header":"A"},"a":{"type":"string","x-mcp-header":"B"}}}"#;
        assert_eq!(param_headers(same_path.as_bytes()), Err(BadAnnotation::Duplicate));
        assert_eq!(param_headers(br#"{"type":"object"}"#), Ok(vec![]));
    }

    /// A schema of `count` annotated properties inside of one property.
    fn annotated(outer: &str, count: usize) -> String {
        let properties: Vec<String> = (0..count)
            .map(|at| format!(r#""{at}":{{"type":"string","x-mcp-header":"A{at}"}}"#))
            .collect();
        let inner = properties.join(",");
        format!(r#"{{"properties":{{"{outer}":{{"properties":{{{inner}}}}}}}}}"#)
    }

    /// Each annotation has a copy of its path, so these would take terabytes.
    #[test]
    fn n_hdr_03_long_names_and_paths_are_refused() {
        let long = "a".repeat(8 * 1024 * 1024);
        for (outer, count) in [(&long[..1_024], ANNOTATIONS_MAX), (long.as_str(), 100_000)] {
            let found = param_headers(annotated(outer, count).as_bytes());
            assert_eq!(found, Err(BadAnnotation::TooLong));
        }
    }

    #[test]
    fn n_hdr_03_more_annotations_than_headers_are_refused() {
        for (count, found) in [
            (ANNOTATIONS_MAX, Ok(ANNOTATIONS_MAX)),
            (ANNOTATIONS_MAX + 1, Err(BadAnnotation::TooMany)),
            (100_000, Err(BadAnnotation::TooMany)),
        ] {
            let headers = param_headers(annotated("a", count).as_bytes());
            assert_eq!(headers.map(|all| all.len()), found, "{count}");
        }
    }

    #[test]
    fn n_hdr_03_annotations_are_counted_at_every_depth() {
        let nested = |depth: usize, inner: &str| {
            format!("{}{inner}{}", r#"{"items":["#.repeat(depth), "]}".repeat(depth))
        };
        let annotated = r#"{"type":"string","x-mcp-header":"A"}"#;
        let (named, absent) = (r#"{"x-mcp-header":true}"#, r#"{"type":"x-mcp-header"}"#);
        assert_eq!(
            param_headers(nested(60, annotated).as_bytes()),
            Err(BadAnnotation::NotReachable)
        );
        assert_eq!(param_headers(nested(60, named).as_bytes()), Ok(vec![]));
        assert_eq!(param_headers(nested(60, absent).as_bytes()), Ok(vec![]));
    }
}
