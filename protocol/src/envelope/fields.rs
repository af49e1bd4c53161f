//! The spans of a message's parts that the broker may read.

use crate::json::Span;

/// Spans of the values that the broker may read, inside params (requests and notifications),
/// result (results) or error. Strings include their quotes. The reader checks that a value has the
/// right type.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Fields {
    /// `name`
    pub name: Option<Span>,
    /// `uri`
    pub uri: Option<Span>,
    /// `cursor`
    pub cursor: Option<Span>,
    /// `level`
    pub level: Option<Span>,
    /// `requestId`
    pub request_id: Option<Span>,
    /// `progressToken`
    pub progress_token: Option<Span>,
    /// `progress`
    pub progress: Option<Span>,
    /// `taskId`
    pub task_id: Option<Span>,
    /// `task`
    pub task: Option<Span>,
    /// `task.taskId`
    pub task_task_id: Option<Span>,
    /// `arguments`
    pub arguments: Option<Span>,
    /// `status`
    pub status: Option<Span>,
    /// `mode`
    pub mode: Option<Span>,
    /// `elicitationId`
    pub elicitation_id: Option<Span>,
    /// `ref`
    pub reference: Option<Span>,
    /// `ref.type`
    pub reference_type: Option<Span>,
    /// `ref.name`
    pub reference_name: Option<Span>,
    /// `ref.uri`
    pub reference_uri: Option<Span>,
    /// `_meta`
    pub meta: Option<Span>,
    /// `_meta.progressToken`
    pub meta_progress_token: Option<Span>,
    /// `_meta["io.modelcontextprotocol/related-task"].taskId`
    pub meta_related_task_id: Option<Span>,
    /// `_meta["dev.mcp-broker/token"]`
    pub meta_token: Option<Span>,
    /// True if `_meta` has a member of [`super::OWN_META`].
    pub meta_has_own: bool,
    /// `_meta["io.modelcontextprotocol/protocolVersion"]`
    pub meta_protocol_version: Option<Span>,
    /// `_meta["io.modelcontextprotocol/clientCapabilities"]`
    pub meta_client_capabilities: Option<Span>,
    /// `_meta["io.modelcontextprotocol/clientInfo"]`
    pub meta_client_info: Option<Span>,
    /// `_meta["io.modelcontextprotocol/logLevel"]`
    pub meta_log_level: Option<Span>,
    /// True if `_meta` has a member besides those that two neighbours exchange
    /// ([`crate::stateless::HOP_META`]).
    pub meta_has_more: bool,
    /// `resultType`
    pub result_type: Option<Span>,
    /// `ttlMs`
    pub ttl_ms: Option<Span>,
    /// `cacheScope`
    pub cache_scope: Option<Span>,
    /// `requestState`
    pub request_state: Option<Span>,
    /// `inputResponses`
    pub input_responses: Option<Span>,
    /// `notifications`
    pub notifications: Option<Span>,
    /// `_meta.traceparent`
    pub meta_traceparent: Option<Span>,
    /// `_meta.tracestate`
    pub meta_tracestate: Option<Span>,
    /// `_meta.baggage`
    pub meta_baggage: Option<Span>,
    /// `isError`
    pub is_error: Option<Span>,
    /// `error.code`
    pub error_code: Option<Span>,
    /// `error.message`
    pub error_message: Option<Span>,
    /// `error.data`
    pub error_data: Option<Span>,
    /// True if some value inside of these holds a member that a reader may take for `uri`.
    pub has_uri_key: bool,
}

impl Fields {
    /// Removes the spans of members that only two neighbours exchange.
    pub fn clear_hop_meta(&mut self) {
        self.meta_protocol_version = None;
        self.meta_client_capabilities = None;
        self.meta_client_info = None;
        self.meta_log_level = None;
    }

    /// Returns every span.
    pub(crate) fn spans_mut(&mut self) -> [&mut Option<Span>; 39] {
        [
            &mut self.name,
            &mut self.is_error,
            &mut self.uri,
            &mut self.cursor,
            &mut self.level,
            &mut self.request_id,
            &mut self.progress_token,
            &mut self.progress,
            &mut self.task_id,
            &mut self.task,
            &mut self.task_task_id,
            &mut self.arguments,
            &mut self.status,
            &mut self.mode,
            &mut self.elicitation_id,
            &mut self.reference,
            &mut self.reference_type,
            &mut self.reference_name,
            &mut self.reference_uri,
            &mut self.meta,
            &mut self.meta_progress_token,
            &mut self.meta_related_task_id,
            &mut self.meta_token,
            &mut self.meta_protocol_version,
            &mut self.meta_client_capabilities,
            &mut self.meta_client_info,
            &mut self.meta_log_level,
            &mut self.result_type,
            &mut self.ttl_ms,
            &mut self.cache_scope,
            &mut self.request_state,
            &mut self.input_responses,
            &mut self.notifications,
            &mut self.meta_traceparent,
            &mut self.meta_tracestate,
            &mut self.meta_baggage,
            &mut self.error_code,
            &mut self.error_message,
            &mut self.error_data,
        ]
    }
}
