//! The names that are read at each level of a message, by decoding or by later readers: policy,
//! capabilities, exposure, catalog, tasks. A message that has one of them twice or in another
//! letter case is refused.

use crate::json::NameIndex;

/// Names of the message itself.
pub(super) static ENVELOPE: NameIndex =
    NameIndex::new(&["jsonrpc", "id", "method", "params", "result", "error"]);

/// Names of params and result.
pub(super) static BODY: NameIndex = NameIndex::new(&[
    "name",
    "uri",
    "cursor",
    "level",
    "requestId",
    "progressToken",
    "progress",
    "taskId",
    "arguments",
    "status",
    "mode",
    "elicitationId",
    "resultType",
    "ttlMs",
    "cacheScope",
    "requestState",
    "inputResponses",
    "inputRequests",
    "isError",
    "notifications",
    "task",
    "ref",
    "_meta",
    // Completions.
    "argument",
    "context",
    "completion",
    // Handshakes and discovery.
    "protocolVersion",
    "capabilities",
    "clientInfo",
    "serverInfo",
    "instructions",
    "supportedVersions",
    // Lists.
    "tools",
    "prompts",
    "resources",
    "resourceTemplates",
    "nextCursor",
    // Results of calls, resources and prompts.
    "content",
    "contents",
    "structuredContent",
    "messages",
    // Requests to clients, and their answers.
    "toolChoice",
    "requestedSchema",
    "url",
    "message",
    "action",
    "role",
    "roots",
    // Tasks that are the result itself, and the reason of a cancellation.
    "ttl",
    "statusMessage",
    "pollInterval",
    "pollIntervalMs",
    "reason",
]);

/// Names of an error.
pub(super) static ERROR: NameIndex = NameIndex::new(&["code", "message", "data"]);

/// Names of `task` and of a related task.
pub(super) static TASK: NameIndex =
    NameIndex::new(&["taskId", "status", "statusMessage", "ttl", "pollInterval", "pollIntervalMs"]);

/// Names of `argument`. All texts in it are checked against the roots, whatever their names.
static ARGUMENT: NameIndex = NameIndex::new(&["name", "value"]);

/// Names of `context`. The names inside `arguments` are the backend's. All of their values are
/// checked against the roots.
static CONTEXT: NameIndex = NameIndex::new(&["arguments"]);

/// Names of `completion`.
static COMPLETION: NameIndex = NameIndex::new(&["values", "hasMore"]);

/// Names of `notifications`, the filter of a client's subscription.
pub(super) static NOTIFICATIONS: NameIndex = NameIndex::new(&[
    "toolsListChanged",
    "promptsListChanged",
    "resourcesListChanged",
    "resourceSubscriptions",
    "taskIds",
]);

/// Names of `ref`.
pub(super) static REFERENCE: NameIndex = NameIndex::new(&["type", "name", "uri"]);

/// Names of `_meta`.
pub(super) static META: NameIndex = NameIndex::new(&[
    "progressToken",
    "traceparent",
    "tracestate",
    "baggage",
    "dev.mcp-broker/token",
    "dev.mcp-broker/backend",
    "dev.mcp-broker/session",
    "dev.mcp-broker/streams",
    "dev.mcp-broker/idempotency-key",
    "dev.mcp-broker/via",
    "io.modelcontextprotocol/protocolVersion",
    "io.modelcontextprotocol/clientCapabilities",
    "io.modelcontextprotocol/clientInfo",
    "io.modelcontextprotocol/logLevel",
    "io.modelcontextprotocol/serverInfo",
    "io.modelcontextprotocol/subscriptionId",
    "io.modelcontextprotocol/related-task",
]);

/// Returns the table of names inside a member of params or result that is not decoded further.
pub(super) fn inside(key: &[u8]) -> Option<&'static NameIndex> {
    match key {
        b"argument" => Some(&ARGUMENT),
        b"context" => Some(&CONTEXT),
        b"completion" => Some(&COMPLETION),
        _ => None,
    }
}
