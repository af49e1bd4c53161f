//! Requests of 2026-07-28: the `_meta` that each has, and the headers that repeat its body.

use serde_json::{Value, json};

/// The revision without sessions.
pub const STATELESS: &str = "2026-07-28";
/// The extension of tasks, among the capabilities of a client.
pub const TASKS_EXTENSION: &str = "io.modelcontextprotocol/tasks";

/// Returns the `_meta` of a request from a client with this name and these capabilities.
pub fn request_meta(client: &str, capabilities: &Value) -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": STATELESS,
        "io.modelcontextprotocol/clientCapabilities": capabilities,
        "io.modelcontextprotocol/clientInfo": {"name": client, "version": "1"},
    })
}

/// Adds the `_meta` of [`request_meta`] to params that may have some.
pub fn add_request_meta(params: &mut Value, client: &str, capabilities: &Value) {
    let Value::Object(meta) = request_meta(client, capabilities) else { unreachable!() };
    for (key, value) in meta {
        params["_meta"][key] = value;
    }
}

/// Returns the headers that a POST of this request repeats from its body.
pub fn request_headers<'a>(method: &'a str, params: &'a Value) -> Vec<(&'static str, &'a str)> {
    let name = match method {
        "tools/call" | "prompts/get" => params["name"].as_str(),
        "resources/read" => params["uri"].as_str(),
        "tasks/get" | "tasks/update" | "tasks/cancel" => params["taskId"].as_str(),
        _ => None,
    };
    let mut headers = vec![("mcp-protocol-version", STATELESS), ("mcp-method", method)];
    headers.extend(name.map(|name| ("mcp-name", name)));
    headers
}
