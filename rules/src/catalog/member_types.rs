//! The types that MCP gives to the members of an entry of a list (2025-11-25, Schema).
//!
//! A strict client refuses a whole list for one member of another type. On a merged list, one
//! backend would then hide the tools of all others. The broker therefore lists an entry without
//! such members. Many servers write `null` for a member that they do not have.

use std::borrow::Cow;

use bytes::Bytes;
use protocol::json::{TapeValue, ValueKind, quote, quote_into};

use super::ListKind;

/// Members of an object by name. Other members may have any value.
type Members = &'static [(&'static str, MemberType)];

/// The type of a member.
enum MemberType {
    Text,
    Flag,
    Number,
    /// A number from 0 to 1.
    Fraction,
    /// One of these texts.
    OneOf(&'static [&'static str]),
    /// A list of texts.
    Texts,
    /// A list of the roles `user` and `assistant`.
    Roles,
    Object(Members),
    /// A list of objects with a text member of this name.
    Objects(&'static str, Members),
    /// A JSON Schema that describes an object, also without a type.
    InputSchema,
    /// A JSON Schema that names the type `object`.
    OutputSchema,
    /// The properties of such a schema.
    Properties,
}

use MemberType::{
    Flag, Fraction, InputSchema, Number, Object, Objects, OneOf, OutputSchema, Properties, Roles,
    Text, Texts,
};

const ICON: Members = &[("mimeType", Text), ("sizes", Texts), ("theme", OneOf(&["light", "dark"]))];
const ARGUMENT: Members = &[("title", Text), ("description", Text), ("required", Flag)];
const TOOL_ANNOTATIONS: Members = &[
    ("title", Text),
    ("readOnlyHint", Flag),
    ("destructiveHint", Flag),
    ("idempotentHint", Flag),
    ("openWorldHint", Flag),
];
const ANNOTATIONS: Members = &[("audience", Roles), ("priority", Fraction), ("lastModified", Text)];
const EXECUTION: Members = &[("taskSupport", OneOf(&["forbidden", "optional", "required"]))];
const SCHEMA: Members =
    &[("type", OneOf(&["object"])), ("properties", Properties), ("required", Texts)];

const TOOL: Members = &[
    ("title", Text),
    ("description", Text),
    ("icons", Objects("src", ICON)),
    ("_meta", Object(&[])),
    ("annotations", Object(TOOL_ANNOTATIONS)),
    ("execution", Object(EXECUTION)),
    ("inputSchema", InputSchema),
    ("outputSchema", OutputSchema),
];
const PROMPT: Members = &[
    ("title", Text),
    ("description", Text),
    ("icons", Objects("src", ICON)),
    ("_meta", Object(&[])),
    ("arguments", Objects("name", ARGUMENT)),
];
/// Of resources and of templates.
const RESOURCE: Members = &[
    ("name", Text),
    ("title", Text),
    ("description", Text),
    ("icons", Objects("src", ICON)),
    ("_meta", Object(&[])),
    ("annotations", Object(ANNOTATIONS)),
    ("mimeType", Text),
    ("size", Number),
];

/// Returns the entry with this name or URI without the members that have a wrong type. `None`: there
/// are none. An error is the reason for which the entry is left out.
///
/// An `inputSchema` without a type gets the type `object`, which arguments always have. An
/// `outputSchema` without one may describe other content, and is removed. A resource without a name
/// gets its URI as name.
pub(super) fn repaired(
    kind: ListKind,
    key: &str,
    entry: TapeValue<'_>,
) -> Result<Option<Bytes>, &'static str> {
    let members = match kind {
        ListKind::Tools => TOOL,
        ListKind::Prompts => PROMPT,
        ListKind::Resources | ListKind::ResourceTemplates => RESOURCE,
    };
    let is_listed = |schema| !matches!(listed(&InputSchema, schema), Listed::Never);
    if kind == ListKind::Tools && !entry.get("inputSchema").is_some_and(is_listed) {
        return Err("its inputSchema does not describe an object");
    }
    let text = without_wrong_members(members, entry);
    if entry.get("name").is_some_and(|name| name.kind() == ValueKind::String) {
        return Ok(text.map(Bytes::from));
    }
    let text = text.unwrap_or_else(|| entry.raw().to_vec());
    Ok(Some(with_first_member(&text, "name", quote(key).as_bytes()).into()))
}

/// What the broker lists for the value of a member.
enum Listed {
    AsIs,
    Instead(Vec<u8>),
    Never,
}

fn listed(expected: &MemberType, value: TapeValue<'_>) -> Listed {
    let kind = value.kind();
    let is_right = match expected {
        Text => kind == ValueKind::String,
        Flag => kind == ValueKind::Bool,
        Number => kind == ValueKind::Number,
        Fraction => kind == ValueKind::Number && is_fraction(value.raw()),
        OneOf(texts) => is_one_of(texts, value),
        Texts => {
            kind == ValueKind::Array
                && value.elements().all(|element| element.kind() == ValueKind::String)
        }
        Roles => {
            kind == ValueKind::Array
                && value.elements().all(|element| is_one_of(&["user", "assistant"], element))
        }
        Object(members) if kind == ValueKind::Object => {
            return without_wrong_members(members, value).map_or(Listed::AsIs, Listed::Instead);
        }
        Objects(required, members) if kind == ValueKind::Array => {
            return listed_objects(required, members, value);
        }
        InputSchema if kind == ValueKind::Object && schema_type(value).is_none_or(names_object) => {
            return listed_schema(value);
        }
        OutputSchema
            if kind == ValueKind::Object && schema_type(value).is_some_and(names_object) =>
        {
            return listed_schema(value);
        }
        Properties if kind == ValueKind::Object => return listed_properties(value),
        Object(_) | Objects(..) | InputSchema | OutputSchema | Properties => false,
    };
    if is_right { Listed::AsIs } else { Listed::Never }
}

fn is_fraction(number: &[u8]) -> bool {
    let number = std::str::from_utf8(number).ok().and_then(|text| text.parse::<f64>().ok());
    number.is_some_and(|number| (0.0..=1.0).contains(&number))
}

fn is_one_of(texts: &[&str], value: TapeValue<'_>) -> bool {
    value.as_str().is_some_and(|text| texts.contains(&&*text))
}

/// Returns the object without the members that have a wrong type. `None`: there are none.
fn without_wrong_members(members: Members, object: TapeValue<'_>) -> Option<Vec<u8>> {
    let of_member = |key: &str, value: TapeValue<'_>| {
        let expected = members.iter().find(|(name, _)| *name == key);
        expected.map_or(Listed::AsIs, |(_, expected)| listed(expected, value))
    };
    if object.members().all(|one| matches!(of_member(&one.key, one.value), Listed::AsIs)) {
        return None;
    }
    let mut out = b"{".to_vec();
    for one in object.members() {
        let text = match of_member(&one.key, one.value) {
            Listed::AsIs => Cow::Borrowed(one.value.raw()),
            Listed::Instead(text) => Cow::Owned(text),
            Listed::Never => continue,
        };
        append_member(&mut out, &one.key, &text);
    }
    out.push(b'}');
    Some(out)
}

/// Returns a list without the elements that are no objects or lack the required text.
fn listed_objects(required: &str, members: Members, list: TapeValue<'_>) -> Listed {
    let of_element = |element: TapeValue<'_>| {
        let text = element.get(required).filter(|text| text.kind() == ValueKind::String);
        text.map_or(Listed::Never, |_| listed(&Object(members), element))
    };
    if list.elements().all(|element| matches!(of_element(element), Listed::AsIs)) {
        return Listed::AsIs;
    }
    let kept: Vec<Cow<'_, [u8]>> = list
        .elements()
        .filter_map(|element| match of_element(element) {
            Listed::AsIs => Some(Cow::Borrowed(element.raw())),
            Listed::Instead(text) => Some(Cow::Owned(text)),
            Listed::Never => None,
        })
        .collect();
    Listed::Instead([b"[".as_slice(), &kept.join(&b','), b"]"].concat())
}

/// Returns the type of a schema. `None`: it has none.
fn schema_type(schema: TapeValue<'_>) -> Option<TapeValue<'_>> {
    schema.get("type").filter(|kind| !kind.is_null())
}

fn names_object(kind: TapeValue<'_>) -> bool {
    let is_object = |name: TapeValue<'_>| is_one_of(&["object"], name);
    is_object(kind) || kind.elements().any(is_object)
}

/// Returns a schema that allows objects, with no other type.
fn listed_schema(schema: TapeValue<'_>) -> Listed {
    let text = without_wrong_members(SCHEMA, schema);
    if schema_type(schema).is_some_and(|kind| kind.kind() == ValueKind::String) {
        return text.map_or(Listed::AsIs, Listed::Instead);
    }
    let text = text.unwrap_or_else(|| schema.raw().to_vec());
    Listed::Instead(with_first_member(&text, "type", b"\"object\""))
}

/// Returns properties with the empty schema in place of `true`, which means the same, and of values
/// that are no schemas.
fn listed_properties(properties: TapeValue<'_>) -> Listed {
    let is_kept = |schema: TapeValue<'_>| {
        schema.kind() == ValueKind::Object || schema.as_bool() == Some(false)
    };
    if properties.members().all(|property| is_kept(property.value)) {
        return Listed::AsIs;
    }
    let mut out = b"{".to_vec();
    for property in properties.members() {
        let schema = if is_kept(property.value) { property.value.raw() } else { b"{}".as_slice() };
        append_member(&mut out, &property.key, schema);
    }
    out.push(b'}');
    Listed::Instead(out)
}

/// Returns the object with a further member.
fn with_first_member(object: &[u8], key: &str, value: &[u8]) -> Vec<u8> {
    let mut out = b"{".to_vec();
    append_member(&mut out, key, value);
    let rest = object.strip_prefix(b"{").unwrap_or_default();
    if !rest.trim_ascii_start().starts_with(b"}") {
        out.push(b',');
    }
    out.extend_from_slice(rest);
    out
}

/// Appends `"key":value`, after a comma unless it is the first member.
fn append_member(out: &mut Vec<u8>, key: &str, value: &[u8]) {
    if out.as_slice() != b"{" {
        out.push(b',');
    }
    quote_into(out, key);
    out.push(b':');
    out.extend_from_slice(value);
}

#[cfg(test)]
mod tests {
    use protocol::ids::BackendId;
    use serde_json::{Value, json};

    use super::{
        super::{TaskHost, read_page},
        *,
    };

    /// Returns the entry as both endpoints list it, with its native name, or why it is left out.
    fn shown(kind: ListKind, entry: &str) -> Result<Value, &'static str> {
        let backend = BackendId::parse("b").unwrap();
        let page = format!(r#"{{"{}":[{entry}]}}"#, kind.member());
        let page = read_page(kind, &backend, TaskHost::Backend, page.as_bytes()).unwrap();
        if let Some(skipped) = page.skipped.first() {
            return Err(skipped.reason);
        }
        let [native, mut exposed] = [&page.entries[0].native, &page.entries[0].exposed]
            .map(|text| serde_json::from_slice::<Value>(text).unwrap());
        let key = match kind {
            ListKind::Tools | ListKind::Prompts => "name",
            ListKind::Resources => "uri",
            ListKind::ResourceTemplates => "uriTemplate",
        };
        exposed[key] = native[key].clone();
        assert_eq!(native, exposed);
        Ok(native)
    }

    #[test]
    fn a_member_of_a_wrong_type_does_not_reach_a_list() {
        let null = r#"{"name":"t","title":null,"description":null,"inputSchema":{"type":"object","properties":null,"required":null},"outputSchema":null,"annotations":null,"icons":null,"execution":null,"_meta":null,"other":null}"#;
        let tool = json!({"name": "t", "inputSchema": {"type": "object"}, "other": null});
        assert_eq!(shown(ListKind::Tools, null), Ok(tool));
        let inner = r#"{"name":"t","inputSchema":{"type":"object"},"annotations":{"title":1,"readOnlyHint":"true","openWorldHint":false,"own":null},
            "icons":[{"src":"https://i.example/i.png","sizes":null,"theme":"dark"},{"mimeType":"image/png"},7],"execution":{"taskSupport":"never"}}"#;
        let tool = json!({
            "name": "t", "inputSchema": {"type": "object"}, "annotations": {"openWorldHint": false, "own": null},
            "icons": [{"src": "https://i.example/i.png", "theme": "dark"}], "execution": {}
        });
        assert_eq!(shown(ListKind::Tools, inner), Ok(tool));
        let prompt = r#"{"name":"p","arguments":[{"name":"a","description":null,"required":null},{"required":true}]}"#;
        let expected = json!({"name": "p", "arguments": [{"name": "a"}]});
        assert_eq!(shown(ListKind::Prompts, prompt), Ok(expected));
        let none = r#"{"name":"p","arguments":null}"#;
        assert_eq!(shown(ListKind::Prompts, none), Ok(json!({"name": "p"})));
        let resource = r#"{"uri":"a:b","name":null,"size":"7","mimeType":null,"annotations":{"audience":["user","all"],"priority":5}}"#;
        let expected = json!({"uri": "a:b", "name": "a:b", "annotations": {}});
        assert_eq!(shown(ListKind::Resources, resource), Ok(expected));
        let template = r#"{"uriTemplate":"a:{b}"}"#;
        let expected = json!({"uriTemplate": "a:{b}", "name": "a:{b}"});
        assert_eq!(shown(ListKind::ResourceTemplates, template), Ok(expected));
    }

    #[test]
    fn schemas_of_tools_describe_objects() {
        let of = |input: &str, output: &str| {
            let entry = format!(r#"{{"name":"t","inputSchema":{input},"outputSchema":{output}}}"#);
            shown(ListKind::Tools, &entry)
                .map(|mut tool| (tool["inputSchema"].take(), tool["outputSchema"].take()))
        };
        let object = json!({"type": "object"});
        for (schema, output) in [
            ("{}", &Value::Null),
            ("{ }", &Value::Null),
            (r#"{"type":null}"#, &Value::Null),
            (r#"{"type":["null","object"]}"#, &object),
            (r#"{"type":"object"}"#, &object),
        ] {
            assert_eq!(of(schema, schema), Ok((object.clone(), output.clone())), "{schema}");
        }
        let any = r#"{"anyOf":[{"required":["a"]}],"properties":{"a":true,"b":{"type":"null"}}}"#;
        let typed = json!({
            "type": "object", "anyOf": [{"required": ["a"]}], "properties": {"a": {}, "b": {"type": "null"}}
        });
        assert_eq!(of(any, r#"{"type":"array"}"#), Ok((typed, Value::Null)));
        let reason = "its inputSchema does not describe an object";
        for schema in [r#"{"type":"array"}"#, r#"{"type":["string"]}"#, r#"{"type":7}"#] {
            assert_eq!(of(schema, "{}"), Err(reason), "{schema}");
        }
    }

    #[test]
    fn an_entry_of_the_right_types_keeps_its_bytes() {
        for (kind, entry) in [
            (
                ListKind::Tools,
                r#"{ "name" : "t\u0041", "title":"T","inputSchema":{"type":"object","properties":{"a":{"type":["null","string"]},"b":false},"required":["a"]},"annotations":{"readOnlyHint":true},"icons":[],"x":[1.0] }"#,
            ),
            (
                ListKind::Resources,
                r#"{"uri" : "a:b","name":"r","size":1e2,"annotations":{"audience":["user"],"priority":1.0,"lastModified":"2025-01-12T15:00:58"}}"#,
            ),
            (ListKind::Prompts, r#"{"name" : "p","arguments":[{"name":"a","required":true}]}"#),
        ] {
            let page = format!(r#"{{"{}":[{entry}]}}"#, kind.member());
            let backend = BackendId::parse("b").unwrap();
            let page = read_page(kind, &backend, TaskHost::Backend, page.as_bytes()).unwrap();
            assert_eq!(page.entries[0].native, entry);
        }
    }
}
