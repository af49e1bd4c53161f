//! Features of the backends of each revision: everything that the revision knows, and nothing else.

use serde_json::{Value, json};

use super::{Of, REVISIONS};

/// More resources than one page of the broker holds.
pub(super) const RESOURCES: usize = 120;

fn since(of: Of, revision: &str) -> bool {
    REVISIONS[of] >= revision
}

fn add(entry: &mut Value, key: &str, value: Value) {
    entry[key] = value;
}

/// Adds title, icons and `_meta` if the revision has them.
fn described(mut entry: Value, of: Of) -> Value {
    add(&mut entry, "description", json!("what it is"));
    if since(of, "2025-06-18") {
        add(&mut entry, "title", json!("A title"));
        add(&mut entry, "_meta", json!({"example.org/own": [1, null]}));
    }
    if since(of, "2025-11-25") {
        add(
            &mut entry,
            "icons",
            json!([{"src": "https://example.org/i.png", "mimeType": "image/png", "sizes": ["48x48"]}]),
        );
    }
    entry
}

pub(super) fn entries(member: &str, of: Of) -> Vec<Value> {
    match member {
        "tools" => vec![tool(of)],
        "prompts" => vec![described(
            json!({"name": "p", "arguments": [{"name": "a", "required": false}]}),
            of,
        )],
        "resourceTemplates" => vec![described(
            json!({"uriTemplate": "test://t/{x}", "name": "t", "mimeType": "text/plain"}),
            of,
        )],
        _ => (0..RESOURCES).map(|number| resource(number, of)).collect(),
    }
}

fn tool(of: Of) -> Value {
    let schema =
        json!({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]});
    let mut tool = described(json!({"name": "full", "inputSchema": schema}), of);
    if since(of, "2025-03-26") {
        add(
            &mut tool,
            "annotations",
            json!({"title": "Full", "readOnlyHint": true, "openWorldHint": false}),
        );
    }
    if since(of, "2025-06-18") {
        add(
            &mut tool,
            "outputSchema",
            json!({"type": "object", "properties": {"n": {"type": "number"}}}),
        );
    }
    tool
}

fn resource(number: usize, of: Of) -> Value {
    let mut resource = json!({"uri": format!("test://r/{number}"), "name": format!("r{number}"), "mimeType": "text/plain"});
    if number == 0 {
        resource = described(resource, of);
        add(&mut resource, "annotations", json!({"audience": ["user"], "priority": 0.5}));
    }
    resource
}

pub(super) fn server_info(of: Of) -> Value {
    let mut info = json!({"name": "modern", "version": "1"});
    if since(of, "2025-06-18") {
        add(&mut info, "title", json!("A server"));
    }
    if since(of, "2025-11-25") {
        add(&mut info, "websiteUrl", json!("https://example.org/"));
    }
    info
}

pub(super) fn prompt(params: &Value) -> Value {
    let text = params["arguments"]["a"].as_str().unwrap_or("nothing");
    json!({"description": "d", "messages": [{"role": "user", "content": {"type": "text", "text": text}}]})
}

/// Returns the contents of a URI, if the resource exists.
pub(super) fn contents(uri: &str) -> Option<Value> {
    let number: usize = uri.strip_prefix("test://r/")?.parse().ok()?;
    let contents = match number % 2 {
        0 => json!({"uri": uri, "mimeType": "text/plain", "text": "caf\u{e9}"}),
        _ => json!({"uri": uri, "mimeType": "application/octet-stream", "blob": "AAEC"}),
    };
    (number < RESOURCES).then(|| json!({"contents": [contents]}))
}

pub(super) fn completion(params: &Value) -> Value {
    let value = params["argument"]["value"].as_str().unwrap_or_default();
    let known = params["context"]["arguments"]["b"].as_str().unwrap_or("no context");
    json!({"completion": {"values": [value, known], "total": 7, "hasMore": true}})
}

pub(super) fn sampling() -> Value {
    json!({"messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}], "maxTokens": 5})
}
