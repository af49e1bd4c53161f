//! The names that decoding reads at each level of a message, and the spellings of them that make a message be refused.

use crate::json::NameIndex;

/// A member that two readers of the same message would read differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum MemberFault {
    /// Readers take the first or the last.
    #[error("member `{0}` occurs twice")]
    Duplicate(&'static str),
    /// Readers that ignore case take it for the member.
    #[error("a member differs from `{0}` in letter case only, write `{0}`")]
    Misspelled(&'static str),
}

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
]);

/// Of an error.
pub(super) static ERROR: NameIndex = NameIndex::new(&["code", "message", "data"]);

/// Of `task` and of a related task.
pub(super) static TASK: NameIndex = NameIndex::new(&["taskId"]);

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
    "io.modelcontextprotocol/protocolVersion",
    "io.modelcontextprotocol/clientCapabilities",
    "io.modelcontextprotocol/clientInfo",
    "io.modelcontextprotocol/logLevel",
    "io.modelcontextprotocol/serverInfo",
    "io.modelcontextprotocol/subscriptionId",
    "io.modelcontextprotocol/related-task",
]);
