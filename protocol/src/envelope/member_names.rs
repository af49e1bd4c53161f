//! The names that are read at each level of a message, by decoding or by what looks into the message later: policy, capabilities,
//! exposure, catalog, tasks. A message is refused that has one of them twice or in another letter case.

use crate::json::NameIndex;

/// Of the message itself.
pub(super) static ENVELOPE: NameIndex =
    NameIndex::new(&["jsonrpc", "id", "method", "params", "result", "error"]);

/// Of params and result.
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
    // What calls, resources and prompts give.
    "content",
    "contents",
    "structuredContent",
    "messages",
    // Questions to clients, and their answers.
    "toolChoice",
    "requestedSchema",
    "url",
    "message",
    "action",
    "role",
    "roots",
    // Tasks that are no member of their result, and why a request is given up.
    "ttl",
    "statusMessage",
    "pollInterval",
    "pollIntervalMs",
    "reason",
]);

/// Of an error.
pub(super) static ERROR: NameIndex = NameIndex::new(&["code", "message", "data"]);

/// Of `task` and of a related task.
pub(super) static TASK: NameIndex =
    NameIndex::new(&["taskId", "status", "statusMessage", "ttl", "pollInterval", "pollIntervalMs"]);

/// Of `argument`. All texts in it are held to the roots, whatever they are called.
static ARGUMENT: NameIndex = NameIndex::new(&["name", "value"]);

/// Of `context`. The names inside of `arguments` are the backend's, and all of their values are held to the roots.
static CONTEXT: NameIndex = NameIndex::new(&["arguments"]);

/// Of `completion`.
static COMPLETION: NameIndex = NameIndex::new(&["values", "hasMore"]);

/// Of `notifications`, by which a client says what it wants to be told.
pub(super) static NOTIFICATIONS: NameIndex = NameIndex::new(&[
    "toolsListChanged",
    "promptsListChanged",
    "resourcesListChanged",
    "resourceSubscriptions",
    "taskIds",
]);

/// Of `ref`.
pub(super) static REFERENCE: NameIndex = NameIndex::new(&["type", "name", "uri"]);

/// Of `_meta`.
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
    "io.modelcontextprotocol/protocolVersion",
    "io.modelcontextprotocol/clientCapabilities",
    "io.modelcontextprotocol/clientInfo",
    "io.modelcontextprotocol/logLevel",
    "io.modelcontextprotocol/serverInfo",
    "io.modelcontextprotocol/subscriptionId",
    "io.modelcontextprotocol/related-task",
]);

/// The table of what is inside of a member of params or result that is not decoded further.
pub(super) fn inside(key: &[u8]) -> Option<&'static NameIndex> {
    match key {
        b"argument" => Some(&ARGUMENT),
        b"context" => Some(&CONTEXT),
        b"completion" => Some(&COMPLETION),
        _ => None,
    }
}
