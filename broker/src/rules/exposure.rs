//! Results and entries as the aggregated endpoint shows them: every resource URI gets its backend in front.
//!
//! Only URIs that name a backend's resources are touched (MCP 2025-11-25: embedded resources, resource links, resource
//! contents, `data.uri` of a not-found error, the `ui://` link of a tool); every other byte stays the backend's.

use std::sync::LazyLock;

use bytes::Bytes;
use memchr::memmem::Finder;
use protocol::{
    envelope::Message,
    ids::BackendId,
    json::{self, Document, Span, Value},
    splice::Splice,
};

use super::{endpoint::Endpoint, names};

/// Made once: making it costs more than looking through a short answer.
static URI: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"uri"));

/// A list entry with its exposed name in place of its own.
pub fn expose_entry(backend: &BackendId, native: &Bytes, entry: Value<'_>, key: Value<'_>, exposed_key: &str) -> Bytes {
    let base = entry.span().start;
    let mut splice = Splice::new(native);
    splice.replace(shifted(key.span(), base), json::quote(exposed_key).into_bytes());
    for path in [&["_meta", "ui", "resourceUri"][..], &["_meta", "ui/resourceUri"]] {
        if let Some(link) = entry.path(path)
            && let Some(uri) = link.as_str()
        {
            splice.replace(shifted(link.span(), base), json::quote(&names::exposed_uri(backend, &uri)).into_bytes());
        }
    }
    splice.finish()
}

/// Puts the URIs of a backend's own resources in an answer into the terms of an endpoint.
pub fn expose_answer(answer: &Message, backend: &BackendId, endpoint: &Endpoint, splice: &mut Splice<'_>) {
    if *endpoint == Endpoint::Aggregated {
        for (span, uri) in resource_uris(answer) {
            splice.replace(span, json::quote(&names::exposed_uri(backend, &uri)).into_bytes());
        }
    }
}

/// Spans of the URIs in a backend's answer that name its own resources.
pub fn resource_uris(answer: &Message) -> Vec<(Span, String)> {
    let Some(span) = answer.result.or(answer.error) else { return Vec::new() };
    let text = span.of(&answer.frame);
    // Most answers hold no URI at all; looking for the word is far cheaper than a second parse.
    if URI.find(text).is_none() {
        return Vec::new();
    }
    let Ok(document) = Document::parse(text, &json::Limits::default()) else { return Vec::new() };
    let mut found = Vec::new();
    collect(document.root(), &mut found);
    found.into_iter().map(|(inner, uri)| (Span { start: inner.start + span.start, end: inner.end + span.start }, uri)).collect()
}

fn collect(root: Value<'_>, found: &mut Vec<(Span, String)>) {
    let mut take = |value: Option<Value<'_>>| {
        if let Some(value) = value
            && let Some(uri) = value.as_str()
        {
            found.push((value.span(), uri.into_owned()));
        }
    };
    take(root.path(&["data", "uri"]));
    for contents in root.get("contents").into_iter().flat_map(|value| value.elements()) {
        take(contents.get("uri"));
    }
    let tool_blocks = root.get("content").into_iter().flat_map(|value| value.elements());
    let prompt_blocks = root.get("messages").into_iter().flat_map(|value| value.elements()).filter_map(|message| message.get("content"));
    for block in tool_blocks.chain(prompt_blocks) {
        match block.get("type").and_then(|kind| kind.as_str()).as_deref() {
            Some("resource_link") => take(block.get("uri")),
            Some("resource") => take(block.path(&["resource", "uri"])),
            _ => {}
        }
    }
}

fn shifted(span: Span, base: u32) -> Span {
    Span { start: span.start - base, end: span.end - base }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exposed(answer: &str) -> String {
        let message = Message::decode(Bytes::from(answer.to_owned()), &json::Limits::default()).unwrap();
        let backend = BackendId::parse("b").unwrap();
        let mut splice = Splice::new(&message.frame);
        for (span, uri) in resource_uris(&message) {
            splice.replace(span, json::quote(&names::exposed_uri(&backend, &uri)).into_bytes());
        }
        String::from_utf8(splice.finish().to_vec()).unwrap()
    }

    #[test]
    fn uris_of_resources_are_exposed_and_nothing_else() {
        let answer = r#"{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"uri: file:///x"},
            {"type":"resource_link","uri":"file:///a","name":"uri"},{"type":"resource","resource":{"uri":"file:///b","text":""}}],
            "structuredContent":{"uri":"file:///kept"}}}"#;
        let expected = answer.replace("\"file:///a\"", "\"b+file:///a\"").replace("\"file:///b\"", "\"b+file:///b\"");
        assert_eq!(exposed(answer), expected);
    }

    #[test]
    fn contents_prompts_and_not_found_errors_too() {
        for (from, to) in [
            (r#"{"jsonrpc":"2.0","id":1,"result":{"contents":[{"uri":"x:1"}]}}"#, r#"{"uri":"b+x:1"}"#),
            (
                r#"{"jsonrpc":"2.0","id":1,"result":{"messages":[{"role":"user","content":{"type":"resource","resource":{"uri":"x:1"}}}]}}"#,
                r#""uri":"b+x:1""#,
            ),
            (r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32002,"message":"no","data":{"uri":"x:1"}}}"#, r#"{"uri":"b+x:1"}"#),
        ] {
            assert!(exposed(from).contains(to), "{}", exposed(from));
        }
    }

    #[test]
    fn an_answer_without_uris_is_the_same_bytes() {
        let answer = r#"{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"plain"}]}}"#;
        assert_eq!(exposed(answer), answer);
    }
}
