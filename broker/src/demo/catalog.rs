//! Catalog of the demo backend: its lists, the texts of its resources, its prompt and the
//! completions.

use serde_json::{Value, json};

use super::session::RpcError;

pub(super) const COUNTER: &str = "demo://counter";
const ABOUT: &str = "demo://about";
const GREETING: &str = "demo://greeting/";
const GREETING_TEMPLATE: &str = "demo://greeting/{name}";
const STYLES: [&str; 3] = ["formal", "friendly", "pirate"];
const NAMES: [&str; 4] = ["Ada", "Alan", "Barbara", "Grace"];
const ABOUT_TEXT: &str = "A small MCP server that comes with mcp-broker, to try a client with.";

pub(super) fn tools() -> Value {
    let whole = |what: &str, min: u64, max: u64, default: u64| json!({ "type": "integer", "description": what, "minimum": min, "maximum": max, "default": default });
    json!([
        {
            "name": "echo", "title": "Echo", "description": "Returns the given message.",
            "inputSchema": { "type": "object", "properties": { "message": { "type": "string" } }, "required": ["message"] },
            "annotations": { "readOnlyHint": true, "openWorldHint": false }
        },
        {
            "name": "add", "title": "Add", "description": "Adds two numbers.",
            "inputSchema": { "type": "object", "properties": { "a": { "type": "number" }, "b": { "type": "number" } }, "required": ["a", "b"] },
            "outputSchema": { "type": "object", "properties": { "sum": { "type": "number" } }, "required": ["sum"] },
            "annotations": { "readOnlyHint": true, "openWorldHint": false }
        },
        {
            "name": "countdown", "title": "Count down",
            "description": "Counts down with progress and log messages. Can be cancelled.",
            "inputSchema": { "type": "object", "properties": {
                "from": whole("Steps.", 1, 100, 3), "pause_ms": whole("Milliseconds between two steps.", 0, 10_000, 200) } },
            "annotations": { "readOnlyHint": true, "openWorldHint": false }
        },
        {
            "name": "ask", "title": "Ask the user", "description": "Asks the user of the client a question.",
            "inputSchema": { "type": "object", "properties": { "question": { "type": "string" } } },
            "annotations": { "readOnlyHint": true, "openWorldHint": true }
        },
        {
            "name": "increment", "title": "Increment the counter", "description": format!("Adds to {COUNTER} and notifies its subscribers."),
            "inputSchema": { "type": "object", "properties": { "by": whole("Amount to add.", 1, 1_000, 1) } },
            "outputSchema": { "type": "object", "properties": { "count": { "type": "integer" } }, "required": ["count"] },
            "annotations": { "readOnlyHint": false, "destructiveHint": false, "idempotentHint": false, "openWorldHint": false }
        }
    ])
}

pub(super) fn resources() -> Value {
    json!([
        { "uri": ABOUT, "name": "about", "title": "About this server", "mimeType": "text/plain" },
        { "uri": COUNTER, "name": "counter", "title": "A counter", "description": "Changed by increment.", "mimeType": "text/plain" }
    ])
}

pub(super) fn resource_templates() -> Value {
    json!([{ "uriTemplate": GREETING_TEMPLATE, "name": "greeting", "title": "A greeting", "mimeType": "text/plain" }])
}

pub(super) fn prompts() -> Value {
    json!([{
        "name": "greet", "title": "Greet a person", "description": "Asks the model for a greeting.",
        "arguments": [
            { "name": "name", "description": "Name of the person to greet.", "required": true },
            { "name": "style", "description": "formal, friendly or pirate." }
        ]
    }])
}

/// Returns the text of a resource, or `None` if it does not exist.
pub(super) fn resource_text(uri: &str, count: u64) -> Option<String> {
    match uri {
        ABOUT => Some(ABOUT_TEXT.to_owned()),
        COUNTER => Some(count.to_string()),
        _ => {
            let name = uri.strip_prefix(GREETING)?;
            (!name.is_empty() && !name.contains('/')).then(|| format!("Hello, {name}!"))
        }
    }
}

pub(super) fn prompt(name: &str, arguments: &Value) -> Result<Value, RpcError> {
    if name != "greet" {
        return Err(RpcError::invalid(format!("unknown prompt {name}")));
    }
    let whom = arguments["name"]
        .as_str()
        .ok_or_else(|| RpcError::invalid("the argument name is missing or not a text"))?;
    let style = arguments["style"].as_str().unwrap_or("friendly");
    let text = format!("Write a short, {style} greeting for {whom}.");
    Ok(
        json!({ "description": "A greeting", "messages": [{ "role": "user", "content": { "type": "text", "text": text } }] }),
    )
}

/// Completes the prompt's arguments and the template's name. Other arguments have no completions.
pub(super) fn complete(reference: &Value, argument: &Value) -> Value {
    let known: &[&str] =
        match (reference["name"].as_str(), reference["uri"].as_str(), argument["name"].as_str()) {
            (Some("greet"), _, Some("style")) => &STYLES,
            (Some("greet"), _, Some("name")) | (_, Some(GREETING_TEMPLATE), Some("name")) => &NAMES,
            _ => &[],
        };
    let typed = argument["value"].as_str().unwrap_or_default().to_lowercase();
    let values: Vec<&str> =
        known.iter().copied().filter(|value| value.to_lowercase().starts_with(&typed)).collect();
    json!({ "completion": { "total": values.len(), "values": values, "hasMore": false } })
}
