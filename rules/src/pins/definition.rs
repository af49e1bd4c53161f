//! The definition of an object: the members that decide what a client receives, in one form, and
//! their hash.
//!
//! The form is that of RFC 8785, so neither the order of members nor the way a number is written
//! changes the hash. The set of members is part of the version of the hash. Another set is another
//! version, so that no upgrade makes every object a changed one.

use std::{borrow::Cow, cell::Cell, collections::HashSet, fmt};

use aws_lc_rs::digest;
use bytes::Bytes;
use memchr::memmem;
use protocol::{json::Span, splice::Splice};
use records::PinKind;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value, json};

use super::{
    EntryPin, Neighbours,
    scanner::{self, Finding},
};
use crate::{
    glob::Glob,
    limits::pins::{DEFINITION_VALUES_MAX, FINDINGS_MAX},
};

/// Version of the hashes that this build computes.
const VERSION: &str = "v1:";

/// Hash of a definition.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    fn of(text: &str) -> Self {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest::digest(&digest::SHA256, text.as_bytes()).as_ref());
        Self(bytes)
    }

    /// Reads a hash as it is written. `None`: it is none, or it has another version.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix(VERSION)?.as_bytes();
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        };
        let mut bytes = [0; 32];
        if digits.len() != 64 {
            return None;
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(Self(bytes))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(VERSION)?;
        self.0.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

/// Members that are no part of the definitions of some objects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IgnoredMembers(Vec<(Glob, Vec<String>)>);

impl IgnoredMembers {
    /// Adds JSON pointers for the objects whose `KIND/NAME` matches a pattern.
    pub fn add(&mut self, pattern: &str, pointers: &[String]) {
        self.0.push((Glob::new(pattern), pointers.to_vec()));
    }

    fn remove_from(&self, kind: PinKind, name: &str, definition: &mut Value) {
        if self.0.is_empty() {
            return;
        }
        let object = format!("{}/{name}", kind.name());
        let matching = self.0.iter().filter(|(pattern, _)| pattern.matches(&object));
        for pointer in matching.flat_map(|(_, pointers)| pointers) {
            remove(definition, pointer);
        }
    }
}

/// Removes the member that a JSON pointer names (RFC 6901). A member of a list stays.
fn remove(value: &mut Value, pointer: &str) {
    let Some((parent, name)) = pointer.rsplit_once('/') else { return };
    if let Some(Value::Object(members)) = value.pointer_mut(parent) {
        members.remove(&name.replace("~1", "/").replace("~0", "~"));
    }
}

/// The definition of one object as it is seen now.
#[derive(Debug, Clone, PartialEq)]
pub struct PinDefinition {
    pub kind: PinKind,
    pub name: String,
    pub fingerprint: Fingerprint,
    /// JSON text, in the form of RFC 8785.
    pub text: String,
    pub findings: Vec<Finding>,
}

impl PinDefinition {
    /// Returns the definition of an entry of a list, as its backend wrote it.
    pub fn of_entry(kind: PinKind, name: &str, raw: &[u8], ignored: &IgnoredMembers) -> Self {
        let definition = match read_unambiguous(raw) {
            Ok(entry) => {
                let mut definition = members(kind, &entry);
                ignored.remove_from(kind, name, &mut definition);
                definition
            }
            // Readers can differ in what they read, or it has too many values: every byte counts.
            Err(_) => {
                let raw = match kind {
                    PinKind::Tool => without_execution(raw),
                    _ => Cow::Borrowed(raw),
                };
                json!({"text": String::from_utf8_lossy(&raw)})
            }
        };
        Self::new(kind, name, &definition)
    }

    /// Returns the definition of a server's instructions.
    pub fn of_instructions(text: &str) -> Self {
        let kind = PinKind::Instructions;
        Self::new(kind, kind.name(), &json!({"instructions": text}))
    }

    /// Returns the definition of the program of a stdio backend. `package` is the package that a
    /// runner such as npx starts.
    pub fn of_command(command: &str, path: &str, sha256: &str, package: Option<&str>) -> Self {
        let definition =
            json!({"command": command, "path": path, "sha256": sha256, "package": package});
        let mut made = Self::new(PinKind::Command, PinKind::Command.name(), &definition);
        made.findings = scanner::findings_of_command(command, package);
        made
    }

    /// Returns the definition of a user interface: its URI, and what the answer to its read holds.
    /// The contents themselves are a hash.
    pub fn of_app(uri: &str, result: &[u8]) -> Self {
        let definition = match read_unambiguous(result) {
            Ok(result) => {
                let contents = result["contents"].as_array().map(Vec::as_slice);
                let parts: Vec<Value> =
                    contents.unwrap_or_default().iter().map(contents_of_app).collect();
                json!({"uri": uri, "contents": parts})
            }
            Err(_) => json!({"uri": uri, "sha256": hex_digest(result)}),
        };
        Self::new(PinKind::App, uri, &definition)
    }

    /// Returns what a list keeps of the definition.
    pub fn entry_pin(&self) -> EntryPin {
        EntryPin {
            fingerprint: Some(self.fingerprint),
            has_serious_finding: self.findings.iter().any(Finding::is_serious),
            ..EntryPin::default()
        }
    }

    /// Adds what the names and texts of a tool have to do with those of other backends. `own` holds
    /// the names of all tools of its backend.
    pub fn compare(&mut self, neighbours: &Neighbours, own: &HashSet<&str>) {
        let definition: Value = serde_json::from_str(&self.text).unwrap_or_default();
        let description = definition["description"].as_str().unwrap_or_default();
        self.findings.extend(neighbours.findings(&self.name, description, own));
        self.findings.sort_by_key(|finding| !finding.is_serious());
        self.findings.truncate(FINDINGS_MAX);
    }

    fn new(kind: PinKind, name: &str, definition: &Value) -> Self {
        // A value that was parsed from JSON has a canonical form.
        let text = serde_json_canonicalizer::to_string(definition)
            .unwrap_or_else(|_| definition.to_string());
        let findings = scanner::scan(kind, definition);
        Self { kind, name: name.to_owned(), fingerprint: Fingerprint::of(&text), text, findings }
    }
}

/// Returns a tool without its `execution`. MCP 2026-07-28 removed this member, so a server of both
/// eras lists it in sessions only. It distinguishes no two definitions.
pub(crate) fn without_execution(tool: &[u8]) -> Cow<'_, [u8]> {
    const MEMBER: &str = "execution";
    if memmem::find(tool, MEMBER.as_bytes()).is_none() {
        return Cow::Borrowed(tool);
    }
    let text = Bytes::copy_from_slice(tool);
    let object = Span { start: 0, end: u32::try_from(tool.len()).unwrap_or(u32::MAX) };
    Cow::Owned(Splice::new(&text).remove_member(object, MEMBER).finish().to_vec())
}

/// Returns what counts of one part of a user interface.
fn contents_of_app(part: &Value) -> Value {
    let body = part["text"].as_str().or(part["blob"].as_str()).unwrap_or_default();
    let mut counted = json!({"bytes": body.len(), "sha256": hex_digest(body.as_bytes())});
    for (name, value) in [("mimeType", &part["mimeType"]), ("ui", &part["_meta"]["ui"])] {
        if !value.is_null() {
            counted[name] = value.clone();
        }
    }
    counted
}

fn hex_digest(bytes: &[u8]) -> String {
    let digest = digest::digest(&digest::SHA256, bytes);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the members of an entry that are hashed. Another choice is another version.
fn members(kind: PinKind, entry: &Value) -> Value {
    const TOOL: &[&str] =
        &["name", "title", "description", "inputSchema", "outputSchema", "annotations"];
    let wanted = match kind {
        PinKind::Tool => TOOL,
        PinKind::Prompt => &["name", "title", "description", "arguments"],
        PinKind::Resource => &["uri", "name", "title", "description", "mimeType"],
        PinKind::Template => &["uriTemplate", "name", "title", "description", "mimeType"],
        PinKind::Instructions | PinKind::Command | PinKind::App => &[],
    };
    let mut members = Map::new();
    for name in wanted {
        if let Some(value) = entry.get(name) {
            members.insert((*name).to_owned(), value.clone());
        }
    }
    let mut interface = Map::new();
    for name in ["ui", "ui/resourceUri"] {
        if let Some(value) = entry.get("_meta").and_then(|meta| meta.get(name)) {
            interface.insert(name.to_owned(), value.clone());
        }
    }
    if !interface.is_empty() {
        members.insert("_meta".to_owned(), interface.into());
    }
    if let Some(Value::Array(icons)) = entry.get("icons") {
        let sources = icons.iter().filter_map(|icon| icon.get("src").cloned());
        members.insert("icons".to_owned(), sources.collect());
    }
    members.into()
}

/// Returns a JSON value in which every reader finds the same members and numbers. Fails above
/// [`DEFINITION_VALUES_MAX`]: a value takes much more memory than its text.
fn read_unambiguous(text: &[u8]) -> serde_json::Result<Value> {
    let remaining = Cell::new(DEFINITION_VALUES_MAX);
    let mut from = serde_json::Deserializer::from_slice(text);
    let value = UnambiguousVisitor { remaining: &remaining }.deserialize(&mut from)?;
    from.end()?;
    Ok(value)
}

/// Integers above it have neighbours with the same value as a double.
const EXACT_INTEGER_MAX: u64 = 1 << 53;

#[derive(Clone, Copy)]
struct UnambiguousVisitor<'a> {
    /// Values that may still follow.
    remaining: &'a Cell<usize>,
}

impl<'de> DeserializeSeed<'de> for UnambiguousVisitor<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        let remaining = self.remaining.get().checked_sub(1);
        let too_many = || serde::de::Error::custom("the definition has too many values");
        self.remaining.set(remaining.ok_or_else(too_many)?);
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for UnambiguousVisitor<'_> {
    type Value = Value;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a value that every reader reads alike")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Value, E> {
        exact(value.unsigned_abs())?;
        Ok(value.into())
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Value, E> {
        exact(value)?;
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(self)? {
            values.push(value);
        }
        Ok(values.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut members = Map::new();
        while let Some(name) = map.next_key::<String>()? {
            let value = map.next_value_seed(self)?;
            if members.insert(name, value).is_some() {
                return Err(serde::de::Error::custom("a member occurs twice"));
            }
        }
        Ok(members.into())
    }
}

fn exact<E: serde::de::Error>(magnitude: u64) -> Result<(), E> {
    match magnitude <= EXACT_INTEGER_MAX {
        true => Ok(()),
        false => Err(E::custom("an integer is too large to be exact in all JSON readers")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(raw: &str) -> PinDefinition {
        PinDefinition::of_entry(PinKind::Tool, "a", raw.as_bytes(), &IgnoredMembers::default())
    }

    const PLAIN: &str = r#"{"name":"a","description":"d","inputSchema":{"type":"object","properties":{"x":{"maximum":1}}}}"#;

    #[test]
    fn another_spelling_is_the_same_definition() {
        for same in [
            r#"{ "inputSchema" : {"properties":{"x":{"maximum":1.0}},"type":"object"}, "description":"\u0064", "name":"a" }"#,
            r#"{"name":"a","description":"d","inputSchema":{"type":"object","properties":{"x":{"maximum":1e0}}},"x-vendor":7,"_meta":{"other":1}}"#,
        ] {
            assert_eq!(tool(same).fingerprint, tool(PLAIN).fingerprint, "{same}");
        }
    }

    /// A value of a small object takes 80 times the memory of its text.
    #[test]
    fn a_definition_with_too_many_values_is_its_text() {
        let of = |objects: usize| {
            format!(r#"{{"name":"a","title":[{}1]}}"#, r#"{"":0},"#.repeat(objects))
        };
        let (most, more) = (of((DEFINITION_VALUES_MAX - 4) / 2), of(DEFINITION_VALUES_MAX / 2));
        assert_eq!(tool(&most).text, most);
        assert_eq!(tool(&more).text, json!({"text": more}).to_string());
        let app = |objects: usize| PinDefinition::of_app("ui://a", of(objects).as_bytes()).text;
        assert!(app(1).contains("contents") && app(DEFINITION_VALUES_MAX / 2).contains("sha256"));
    }

    /// The value is fixed: a build that computes another one under the same version would make
    /// every pinned object a changed one.
    #[test]
    fn the_hash_of_version_1_stays() {
        assert_eq!(
            tool(PLAIN).text,
            r#"{"description":"d","inputSchema":{"properties":{"x":{"maximum":1}},"type":"object"},"name":"a"}"#
        );
        assert_eq!(tool(PLAIN).fingerprint.to_string(), EXPECTED);
    }

    const EXPECTED: &str = "v1:e40593feedf30dd03e8cc8e2c56908eda7335ff30e1aed2849e032191463da3f";

    #[test]
    fn every_member_shown_to_a_client_changes_the_hash() {
        let plain = tool(PLAIN).fingerprint;
        for (member, value) in [
            ("description", r#""e""#),
            ("title", r#""t""#),
            ("annotations", r#"{"readOnlyHint":true}"#),
            ("outputSchema", r#"{"type":"object"}"#),
            ("_meta", r#"{"ui":{"resourceUri":"ui://x"}}"#),
            ("_meta", r#"{"ui/resourceUri":"ui://x"}"#),
            ("icons", r#"[{"src":"https://a.example/i.png"}]"#),
        ] {
            let mut entry: Value = serde_json::from_str(PLAIN).unwrap();
            entry[member] = serde_json::from_str(value).unwrap();
            let changed = tool(&entry.to_string()).fingerprint;
            assert_ne!(changed, plain, "{member}");
        }
        let one = r#"{"name":"a","inputSchema":{},"annotations":{"readOnlyHint":true}}"#;
        assert_ne!(tool(one).fingerprint, tool(&one.replace("true", "false")).fingerprint);
    }

    /// A server of both eras lists `execution` in sessions only: MCP 2026-07-28 removed it.
    #[test]
    fn execution_does_not_change_the_hash() {
        for plain in [
            r#"{"name":"a","inputSchema":{"type":"object"}}"#,
            r#"{"name":"a","inputSchema":{"maximum":9007199254740993}}"#,
        ] {
            let member = r#""execution":{"taskSupport":"optional"}"#;
            for listed in [
                plain.replacen('{', &format!("{{{member},"), 1),
                format!("{},{member}}}", plain.strip_suffix('}').unwrap()),
            ] {
                assert_eq!(tool(&listed), tool(plain), "{listed}");
            }
        }
        let prompt = |raw: &str| {
            let ignored = IgnoredMembers::default();
            PinDefinition::of_entry(PinKind::Prompt, "a", raw.as_bytes(), &ignored).fingerprint
        };
        let twice = |value: u8| format!(r#"{{"name":"a","name":"a","execution":{value}}}"#);
        assert_ne!(prompt(&twice(1)), prompt(&twice(2)), "it has no meaning in a prompt");
    }

    #[test]
    fn an_ambiguous_text_is_hashed_byte_by_byte() {
        for (one, other) in [
            (
                r#"{"name":"a","inputSchema":{"x":1,"x":2}}"#,
                r#"{"name":"a","inputSchema":{"x":3,"x":2}}"#,
            ),
            (
                r#"{"name":"a","inputSchema":{"x":9007199254740993}}"#,
                r#"{"name":"a","inputSchema":{"x":9007199254740995}}"#,
            ),
            (
                r#"{"name":"a","inputSchema":{"x":1e999}}"#,
                r#"{"name":"a","inputSchema":{"x":1e998}}"#,
            ),
        ] {
            assert_ne!(tool(one).fingerprint, tool(other).fingerprint, "{one}");
            assert_eq!(tool(one).fingerprint, tool(one).fingerprint);
        }
    }

    #[test]
    fn ignored_members_do_not_change_the_fingerprint() {
        let mut ignored = IgnoredMembers::default();
        ignored.add("tool/a*", &["/description".to_owned(), "/inputSchema/x~1y".to_owned()]);
        let read = |kind, name: &str, raw: &str| {
            PinDefinition::of_entry(kind, name, raw.as_bytes(), &ignored).fingerprint
        };
        let one = r#"{"name":"a","description":"today is monday","inputSchema":{"x/y":1}}"#;
        let other = r#"{"name":"a","description":"today is friday","inputSchema":{"x/y":2}}"#;
        assert_eq!(read(PinKind::Tool, "a", one), read(PinKind::Tool, "a", other));
        assert_ne!(read(PinKind::Tool, "b", one), read(PinKind::Tool, "b", other));
        assert_ne!(read(PinKind::Prompt, "a", one), read(PinKind::Prompt, "a", other));
        let third = r#"{"name":"a","title":"t","inputSchema":{}}"#;
        assert_ne!(read(PinKind::Tool, "a", one), read(PinKind::Tool, "a", third));
    }

    #[test]
    fn the_contents_of_a_user_interface_and_its_rights_change_its_hash() {
        let part = |text: &str, domain: &str| {
            json!({"contents": [{"uri": "ui://a", "mimeType": "text/html", "text": text,
                "_meta": {"ui": {"csp": {"connectDomains": [domain]}}, "other": text.len()}}]})
        };
        let read = |result: Value| PinDefinition::of_app("ui://a", result.to_string().as_bytes());
        let plain = read(part("<p>", "a.example"));
        assert_eq!(read(part("<p>", "a.example")).fingerprint, plain.fingerprint);
        assert_ne!(read(part("<b>", "a.example")).fingerprint, plain.fingerprint);
        assert_ne!(read(part("<p>", "b.example")).fingerprint, plain.fingerprint);
        assert!(!plain.text.contains("<p>"), "the contents are a hash: {}", plain.text);
    }

    #[test]
    fn hashes_are_read_as_they_are_written() {
        let fingerprint = tool(PLAIN).fingerprint;
        assert_eq!(Fingerprint::parse(&fingerprint.to_string()), Some(fingerprint));
        assert_eq!(fingerprint.to_string().len(), records::PIN_HASH_CHARS);
        let text = fingerprint.to_string();
        for wrong in [
            "",
            "v1:",
            &text[1..],
            &text.replace("v1", "v2"),
            &format!("{text}0"),
            &text.to_uppercase(),
        ] {
            assert_eq!(Fingerprint::parse(wrong), None, "{wrong}");
        }
    }
}
