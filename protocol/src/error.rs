//! Every refusal of the broker: one table from kind to JSON-RPC code, HTTP status and the owner's
//! refusal number.
//!
//! Rules, listeners and links make a [`Refusal`]; this file alone decides how it looks on the wire.
//! A code that the specification prescribes is used if there is one. Otherwise the positive refusal
//! number is the code, which is legal in every revision. Messages are the broker's own text: they
//! contain no peer's text and no internals.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use crate::ids::RequestId;
use crate::json::{JsonError, quote_into};

/// Most refusals are about the request. It fails again if it is repeated unchanged.
const FINAL: bool = false;
/// Nothing was done; the same request may succeed later.
const RETRY: bool = true;

macro_rules! error_kinds {
    ($($variant:ident $name:literal $code:literal, $status:literal, $refusal:expr, $retry:expr, $meaning:literal;)*) => {
        /// Kind of failure, from the caller's point of view.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum ErrorKind {
            $(#[doc = $meaning] $variant,)*
        }

        impl ErrorKind {
            /// All kinds, in the order of the table.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Returns the name in `error.data.kind`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Returns the JSON-RPC `error.code`.
            pub const fn code(self) -> i64 {
                match self { $(Self::$variant => $code,)* }
            }

            /// Returns the HTTP status when the refusal is the whole answer to a POST.
            pub const fn http_status(self) -> u16 {
                match self { $(Self::$variant => $status,)* }
            }

            /// Returns the owner's refusal number, 1001 to 1089.
            pub const fn refusal_code(self) -> Option<u16> {
                match self { $(Self::$variant => $refusal,)* }
            }

            /// Returns whether the same request may be sent again: the refused one had no effect.
            pub const fn retryable(self) -> bool {
                match self { $(Self::$variant => $retry,)* }
            }

            /// Returns the meaning of the kind, for the documentation.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$variant => $meaning,)* }
            }
        }
    };
}

// name on the wire, error.code, HTTP status, refusal number, may it be repeated, meaning
error_kinds! {
    ParseError "parse_error" -32700, 400, None, FINAL, "The body is not valid JSON, or nested deeper than the limit";
    InvalidRequest "invalid_request" -32600, 400, None, FINAL, "The JSON is not a valid JSON-RPC message, or does not fit the state of the session";
    NotInitialized "not_initialized" -32600, 400, Some(1076), FINAL, "The client sent a request before `initialize`";
    UnsupportedEra "unsupported_era" -32600, 400, None, FINAL, "The request has the form of 2026-07-28, and `compat.eras` is `legacy` or the connection is a session (TCP, WebSocket, QUIC, HTTP+SSE)";
    UnsupportedProtocolVersion "unsupported_protocol_version" -32022, 400, None, FINAL, "The broker does not serve the revision that the request names, in the form of 2026-07-28 or in `initialize` with `compat.eras: modern`; `data.supported` lists the revisions it serves";
    HeaderMismatch "header_mismatch" -32020, 400, None, FINAL, "A header of 2026-07-28 is missing, is malformed or differs from the body";
    ClientCapabilityRequired "client_capability_required" -32021, 400, None, FINAL, "The request needs a capability that it does not declare; `data.requiredCapabilities` names it";
    MetaInvalid "meta_invalid" -32602, 400, None, FINAL, "A request of 2026-07-28 lacks a member of `_meta` that it needs";
    UnsupportedVersion "unsupported_version" -32602, 400, None, FINAL, "The named protocol version is unknown";
    SessionRequired "session_required" -32600, 400, None, FINAL, "The request needs the `Mcp-Session-Id` header";
    SessionNotFound "session_not_found" -32600, 404, None, FINAL, "The session does not exist, has ended or belongs to another principal";
    NotFound "not_found" -32600, 404, None, FINAL, "Nothing exists at this path, or no backend or published toolset has this name";
    MethodNotFound "method_not_found" -32601, 200, None, FINAL, "The method does not exist";
    CapabilityMissing "capability_missing" -32601, 200, Some(1007), FINAL, "The method needs a capability that was not declared";
    InvalidParams "invalid_params" -32602, 200, None, FINAL, "A parameter is missing or wrong";
    ToolNotFound "tool_not_found" -32602, 200, None, FINAL, "No such tool";
    ToolHeld "tool_held" 1005, 200, Some(1005), FINAL, "No operator has approved the definition that the backend lists now, or an operator has blocked it. The broker holds it until an operator approves it";
    ToolAmbiguous "tool_ambiguous" -32602, 200, None, FINAL, "An app called a tool by its own name, and several backends with apps have a tool of that name; `data.tools` lists the names to choose from";
    PromptNotFound "prompt_not_found" -32602, 200, None, FINAL, "No such prompt";
    TaskNotFound "task_not_found" -32602, 200, None, FINAL, "The task does not exist, has expired or belongs to another caller";
    CursorInvalid "cursor_invalid" -32602, 200, None, FINAL, "The broker did not issue the cursor, or its list has changed";
    ReferenceNotFound "reference_not_found" -32602, 200, None, FINAL, "The completion names an unknown prompt or resource";
    UriInvalid "uri_invalid" -32602, 200, None, FINAL, "The resource URI is malformed";
    PathTraversal "path_traversal" -32602, 200, Some(1036), FINAL, "The resource URI could lead to a parent folder";
    OutsideRoots "outside_roots" -32602, 200, Some(1039), FINAL, "The resource URI is outside the roots the operator set for the backend";
    ArgumentsInvalid "arguments_invalid" -32602, 200, Some(1021), FINAL, "The arguments do not match the tool's `inputSchema`, or the broker could not validate them; `data.path` is the location, `data.reason` the reason: `mismatch`, `duplicate_member`, `timeout`, `too_costly`, `too_large`, `unreadable`";
    ResourceNotFound "resource_not_found" -32002, 200, None, FINAL, "No such resource";
    Internal "internal" -32603, 200, None, FINAL, "The broker failed. Its log has the reason under the request id";
    MessageTooLarge "message_too_large" -32600, 413, Some(1068), FINAL, "The message exceeds the size limit";
    RateLimited "rate_limited" 1003, 429, Some(1003), RETRY, "Too many requests in the current window";
    Overloaded "overloaded" 1004, 503, Some(1004), RETRY, "The broker is overloaded and refuses new requests";
    PermissionDenied "permission_denied" 1005, 403, Some(1005), FINAL, "The principal may not do this";
    InsufficientScope "insufficient_scope" 1005, 403, Some(1005), FINAL, "The token is valid but lacks a scope; `data.scope` lists every scope that the request needs";
    Forbidden "forbidden" 1005, 403, Some(1005), FINAL, "The access policy of the tenant requires scopes that the credential does not have; `data.required_scopes` lists every scope that the request needs";
    Unauthorized "unauthorized" 1005, 401, Some(1005), FINAL, "The credential is missing, unknown or expired";
    OriginRefused "origin_refused" 1005, 403, Some(1005), FINAL, "The `Origin` header is not allowed";
    HostRefused "host_refused" 1005, 403, Some(1005), FINAL, "The `Host` header is not allowed";
    NotAcceptable "not_acceptable" -32600, 406, None, FINAL, "The `Accept` header does not list every type that the answer can have";
    MediaTypeUnsupported "media_type_unsupported" -32600, 415, None, FINAL, "The body is not `application/json`";
    MethodNotAllowed "method_not_allowed" -32600, 405, None, FINAL, "This path does not support the HTTP method";
    BackendUnavailable "backend_unavailable" 1008, 200, Some(1008), RETRY, "The broker cannot reach the backend; it sent nothing";
    ConnectionRequired "connection_required" -32042, 200, None, FINAL, "The user must connect an account at the backend first; `data.elicitations` has the address (MCP 2025-11-25, Elicitation)";
    TokenRequired "token_required" 1005, 200, Some(1005), FINAL, "The backend needs an access token of the caller that the broker may exchange, and no caller of the principal sent one";
    BackendProtocolError "backend_protocol_error" 1009, 200, Some(1009), FINAL, "The answer of the backend is not MCP";
    CatalogLoop "catalog_loop" 1009, 200, Some(1009), FINAL, "The catalog of the tenant would contain itself: a backend leads back to the tenant's endpoint, directly or through other brokers";
    OutcomeUnknown "outcome_unknown" 1009, 200, Some(1009), FINAL, "The backend, or the database that stores the task, did not answer: it is unknown whether the request had an effect";
    Timeout "timeout" 1069, 200, Some(1069), FINAL, "The backend sent no answer before the deadline";
    TooManyCalls "too_many_calls" 1004, 200, Some(1004), RETRY, "Too many calls in flight";
    TooManySessions "too_many_sessions" 1003, 429, Some(1003), RETRY, "Too many sessions";
    TooManySignIns "too_many_sign_ins" 1003, 429, Some(1003), RETRY, "Too many sign-ins from this address failed within a minute, and the credential is not valid";
    TooManyConnections "too_many_connections" 1003, 429, Some(1003), RETRY, "Too many connections and open streams";
    Draining "draining" 1008, 503, Some(1008), RETRY, "The broker is shutting down";
    IssuerUnavailable "issuer_unavailable" 1008, 503, Some(1008), RETRY, "The authorization server that must confirm the token does not answer, or too many tokens wait for it; a retry does no harm";
    StoreUnavailable "store_unavailable" 1008, 503, Some(1008), RETRY, "The broker cannot reach the database that must store this; a retry does no harm";
    StoreBusy "store_busy" 1004, 503, Some(1004), RETRY, "The database is too busy to store this now; a retry does no harm";
    StoreFull "store_full" 1004, 503, Some(1004), FINAL, "The disk of the database is full; the request had no effect";
    EventsGone "events_gone" -32600, 400, None, FINAL, "The broker no longer holds the events after this `Last-Event-ID`";
    TaskLimit "task_limit" 1003, 200, Some(1003), RETRY, "The tenant has reached its limit of tasks";
    ApprovalLimit "approval_limit" 1003, 200, Some(1003), RETRY, "Too many calls of the principal or of the tenant wait for the approval of a person";
    SessionElsewhere "session_elsewhere" 1008, 503, Some(1008), RETRY, "Another replica owns the session and cannot be reached now";
    ResultTooLarge "result_too_large" 1009, 200, Some(1009), FINAL, "The backend's answer exceeds the size limit";
}

/// One number of the owner's registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefusalNumber {
    /// 1001 to 1089.
    pub number: u16,
    /// Meaning in the registry.
    pub meaning: &'static str,
    /// Place where the broker uses it; empty if it does not.
    pub used: &'static str,
}

const fn number(number: u16, meaning: &'static str, used: &'static str) -> RefusalNumber {
    RefusalNumber { number, meaning, used }
}

/// The owner's registry of refusal numbers. Numbers up to 1089 that are not listed are reserved.
pub const REFUSAL_NUMBERS: &[RefusalNumber] = &[
    number(1001, "content violates policy", ""),
    number(1002, "safety guideline", ""),
    number(1003, "rate limit", "rate, session, connection, sign-in, task and approval limits"),
    number(1004, "resource constraints", "load shedding, calls in flight, database busy or full"),
    number(1005, "permission denied", "authentication, authorisation, `Origin` and `Host`"),
    number(1006, "invalid input", ""),
    number(1007, "unsupported operation", "capability gate, with code -32601"),
    number(1008, "temporarily unavailable", "backend, database or replica down, broker draining"),
    number(1009, "dependency failed", "backend answered wrongly, too large or not at all"),
    number(1010, "custom", ""),
    number(1014, "resource permission missing", ""),
    number(
        1021,
        "invalid parameter or syntax",
        "arguments that do not fit a tool's schema, cannot be held to it in time, or hold a member twice; with code -32602",
    ),
    number(1036, "path traversal", "resource URIs with `..`, with code -32602"),
    number(1039, "outside the roots", "resource URIs outside `resources.roots`, with code -32602"),
    number(1068, "message too large", "size limit, with code -32600"),
    number(1069, "timeout", "calls that ran out of time"),
    number(1076, "not initialized", "requests before `initialize`, with code -32600"),
];

/// Returns the table of error kinds as Markdown.
pub fn kinds_markdown() -> String {
    let mut out = String::from(
        "| `data.kind` | `code` | HTTP | refusal | retryable | meaning |\n|---|---|---|---|---|---|\n",
    );
    for kind in ErrorKind::ALL {
        let refusal = kind.refusal_code().map_or(String::new(), |number| number.to_string());
        let retryable = if kind.retryable() { "yes" } else { "no" };
        let (name, code, status, meaning) =
            (kind.name(), kind.code(), kind.http_status(), kind.meaning());
        out.push_str(&format!(
            "| `{name}` | {code} | {status} | {refusal} | {retryable} | {meaning} |\n"
        ));
    }
    out
}

/// Returns the registry of refusal numbers as Markdown.
pub fn refusal_numbers_markdown() -> String {
    let mut out = String::from("| number | meaning | used by the broker for |\n|---|---|---|\n");
    for entry in REFUSAL_NUMBERS {
        let used = if entry.used.is_empty() { "not used" } else { entry.used };
        out.push_str(&format!("| {} | {} | {used} |\n", entry.number, entry.meaning));
    }
    out
}

/// A refusal that a peer is answered with.
#[derive(Debug, Clone, PartialEq)]
pub struct Refusal {
    /// Kind, which decides codes and status.
    pub kind: ErrorKind,
    /// For people. Lower case, no full stop, nothing internal.
    pub message: String,
    /// Time after which a retry can succeed.
    pub retry_after: Option<Duration>,
    /// True if a repeated request does no harm, even after the first one had an effect.
    pub idempotent: bool,
    /// More members of `error.data`.
    pub data: Vec<(&'static str, serde_json::Value)>,
}

impl Refusal {
    /// Creates a refusal without further data.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            retry_after: None,
            idempotent: false,
            data: Vec::new(),
        }
    }

    /// Adds a member to `error.data`.
    #[must_use]
    pub fn with(mut self, key: &'static str, value: impl Into<serde_json::Value>) -> Self {
        self.data.push((key, value.into()));
        self
    }

    /// Marks the request as safe to repeat, even after the first one had an effect.
    #[must_use]
    pub fn mark_idempotent(mut self) -> Self {
        self.idempotent = true;
        self
    }

    /// Sets the time after which a retry can succeed.
    #[must_use]
    pub fn retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    /// Returns the JSON-RPC error object. `request_id` is the id of this request in the log.
    pub fn to_error_json(&self, request_id: &str) -> Bytes {
        let mut out = Vec::with_capacity(256);
        self.write_error(&mut out, request_id);
        out.into()
    }

    /// Returns the whole error response, without `id` when the request's could not be read.
    pub fn to_response(&self, id: Option<&RequestId>, request_id: &str) -> Bytes {
        let mut out = Vec::with_capacity(320);
        out.extend_from_slice(b"{\"jsonrpc\":\"2.0\",");
        if let Some(id) = id {
            out.extend_from_slice(b"\"id\":");
            out.extend_from_slice(id.raw());
            out.push(b',');
        }
        out.extend_from_slice(b"\"error\":");
        self.write_error(&mut out, request_id);
        out.push(b'}');
        out.into()
    }

    fn write_error(&self, out: &mut Vec<u8>, request_id: &str) {
        let kind = self.kind;
        out.extend_from_slice(format!("{{\"code\":{},\"message\":", kind.code()).as_bytes());
        quote_into(out, &self.message);
        let retryable = kind.retryable() || self.idempotent;
        let opening = format!(
            ",\"data\":{{\"kind\":\"{}\",\"retryable\":{retryable},\"requestId\":",
            kind.name()
        );
        out.extend_from_slice(opening.as_bytes());
        quote_into(out, request_id);
        if let Some(after) = self.retry_after {
            out.extend_from_slice(format!(",\"retryAfterMs\":{}", after.as_millis()).as_bytes());
        }
        if let Some(number) = kind.refusal_code() {
            out.extend_from_slice(format!(",\"refusalCode\":{number}").as_bytes());
        }
        for (key, value) in &self.data {
            out.push(b',');
            quote_into(out, key);
            out.push(b':');
            out.extend_from_slice(value.to_string().as_bytes());
        }
        out.extend_from_slice(b"}}");
    }
}

/// A text that is not JSON, or more of it than is allowed.
impl From<JsonError> for Refusal {
    fn from(error: JsonError) -> Self {
        let text = error.to_string();
        match error {
            JsonError::TooLarge { size, max } => Self::new(ErrorKind::MessageTooLarge, text)
                .with("size", size)
                .with("maxSize", max)
                .with("unit", "bytes"),
            JsonError::TooManyValues { max } => {
                Self::new(ErrorKind::MessageTooLarge, text).with("maxValues", max)
            }
            JsonError::TooDeep { max } => {
                Self::new(ErrorKind::ParseError, text).with("maxDepth", max)
            }
            JsonError::Malformed => Self::new(ErrorKind::ParseError, text),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.name(), self.message)
    }
}

impl std::error::Error for Refusal {}
