//! MCP 2026-07-28: keys of `_meta`, headers, kinds of results, error codes, and their readers and
//! writers.
//!
//! Both sides use it: the front reads requests and writes results, the back writes requests and
//! reads results. In this revision each request stands alone, so everything here is about one
//! message and nothing about a session.

pub mod downgrade;
pub mod headers;
pub mod inputs;
pub mod request;
pub mod results;
pub mod tool_headers;

use crate::method::Method;
use crate::version::Version;

/// `_meta`: the revision of a request.
pub const META_PROTOCOL_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
/// `_meta`: the client's capabilities, for this request alone.
pub const META_CLIENT_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
/// `_meta`: the client's name and version, for display only.
pub const META_CLIENT_INFO: &str = "io.modelcontextprotocol/clientInfo";
/// `_meta`: least severe log message wanted with this request. If it is absent, none is sent.
pub const META_LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
/// `_meta` of results: the server's name and version, for display only.
pub const META_SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";
/// `_meta` of everything on a stream of notifications: the id of the request that opened it.
pub const META_SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";
/// The members of a request's `_meta` that two neighbours exchange and never pass on.
pub const HOP_META: [&str; 4] =
    [META_PROTOCOL_VERSION, META_CLIENT_CAPABILITIES, META_CLIENT_INFO, META_LOG_LEVEL];

/// The extension of tasks.
pub const EXTENSION_TASKS: &str = "io.modelcontextprotocol/tasks";

/// A header and the body disagree, or a required header is missing or malformed.
pub const HEADER_MISMATCH: i64 = -32020;
/// The request needs a capability that it does not declare.
pub const MISSING_CLIENT_CAPABILITY: i64 = -32021;
/// The revision is not served; `data` names those that are.
pub const UNSUPPORTED_PROTOCOL_VERSION: i64 = -32022;

/// Returns whether an error of this code can only come from a server of 2026-07-28.
pub const fn is_stateless_error(code: i64) -> bool {
    matches!(code, HEADER_MISMATCH | MISSING_CLIENT_CAPABILITY | UNSUPPORTED_PROTOCOL_VERSION)
}

/// Returns whether the answer to this request may be `input_required` (MCP 2026-07-28, Multi
/// Round-Trip Requests).
pub const fn may_require_input(method: Method) -> bool {
    matches!(method, Method::ToolsCall | Method::PromptsGet | Method::ResourcesRead)
}

/// Returns whether a result of this request holds a time for which it may be kept (MCP 2026-07-28,
/// Caching).
pub const fn is_cacheable(method: Method) -> bool {
    matches!(
        method,
        Method::ServerDiscover
            | Method::ToolsList
            | Method::PromptsList
            | Method::ResourcesList
            | Method::ResourcesTemplatesList
            | Method::ResourcesRead
    )
}

/// Returns whether a client may send this request in the revision.
pub fn is_request(method: Method) -> bool {
    let info = method.info();
    method.exists_in(Version::V2026_07_28)
        && info.kind == crate::method::MessageKind::Request
        && method.from_client()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_methods_are_not_requests() {
        let removed = [
            Method::Initialize,
            Method::Ping,
            Method::LoggingSetLevel,
            Method::ResourcesSubscribe,
            Method::ResourcesUnsubscribe,
            Method::TasksList,
            Method::TasksResult,
            Method::SamplingCreateMessage,
            Method::RootsList,
            Method::ElicitationCreate,
        ];
        assert!(removed.into_iter().all(|method| !is_request(method)));
        let kept = [
            Method::ServerDiscover,
            Method::ToolsCall,
            Method::SubscriptionsListen,
            Method::TasksUpdate,
            Method::TasksGet,
        ];
        assert!(kept.into_iter().all(is_request));
    }

    #[test]
    fn only_three_error_codes_identify_a_stateless_server() {
        assert!([-32020, -32021, -32022].into_iter().all(is_stateless_error));
        assert!(![-32019, -32023, -32602, -32601, -32002, 0].into_iter().any(is_stateless_error));
    }
}
