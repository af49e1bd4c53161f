//! Generates the page of limits: every setting that is a limit, and every fixed limit that concerns
//! a peer or an operator. Each has its effect.
//!
//! The test fails for a key or constant that is in none of the lists below.

use std::{fmt::Write as _, time::Duration};

use config::{DECLARED_OPERATORS_MAX, documented_keys, units};
use protocol::error::ErrorKind;
use rules::limits::{
    access::{POLICY_RULES_MAX, REVOCATIONS_MAX},
    approvals::*,
    apps::*,
    arguments::*,
    included::*,
    inputs::*,
    log::*,
    oauth::*,
    own_lists::*,
    pins::*,
    replicas::*,
    results::*,
    sign_ins::*,
    streams::*,
    tokens::*,
    toolsets::*,
    *,
};

use super::assert_current;
use crate::control::{BACKENDS_PER_TENANT_MAX, KEYS_PER_TENANT_MAX, OPERATORS_MAX, TENANTS_MAX};

/// Effect of a reached limit.
enum Effect {
    /// A refusal, counted by its code.
    Refused(ErrorKind),
    /// A refusal that also counts in `mcp_rate_limited_total{scope}`.
    Scoped(ErrorKind, &'static str),
    /// A refusal because of overload.
    Shed,
    /// A call that did not fit in a queue.
    Crowded,
    /// Another effect, and the metric that shows it, if any.
    Other(&'static str, &'static str),
    /// A setting that modifies a limit but is not one itself.
    Describes(&'static str),
}

use Effect::{Crowded, Describes, Other, Refused, Scoped, Shed};

const SECTIONS: [&str; 6] = ["limits", "overload", "timeouts", "session", "tasks", "events"];

const DROPPED: &str = "`mcp_dropped_notifications_total`";
const CONNECTION_ENDS: &str = "the connection is closed";
const SCHEMA_UNUSED: &str = "the broker does not validate the arguments of the tool; the log and the view of the backend show it";
const AUDIT_DROPPED: &str = "`mcp_audit_records_total{outcome=\"dropped\"}`";
const AUDIT_LEFT_OUT: &str = "`mcp_audit_records_total{outcome=\"left_out\"}`";
const KEY_FETCHES: &str = "`mcp_issuer_key_fetches_total{outcome=\"failed\"}`";
const TIMEOUTS: &str = "`mcp_requests_total{outcome=\"timeout\"}`";

const KEYS: &[(&str, Effect)] = &[
    ("limits.message_bytes", Refused(ErrorKind::MessageTooLarge)),
    ("limits.message_profile", Refused(ErrorKind::MessageTooLarge)),
    ("limits.message_profiles", Refused(ErrorKind::MessageTooLarge)),
    (
        "limits.connections",
        Other(
            "new connections wait in the kernel; QUIC refuses them",
            "`mcp_rate_limited_total{scope=\"connections\"}` (QUIC)",
        ),
    ),
    (
        "limits.connections_per_address",
        Other(CONNECTION_ENDS, "`mcp_rate_limited_total{scope=\"connections_per_address\"}`"),
    ),
    (
        "limits.connections_per_second_per_address",
        Other(
            CONNECTION_ENDS,
            "`mcp_rate_limited_total{scope=\"connections_per_second_per_address\"}`",
        ),
    ),
    (
        "limits.connection_burst_per_address",
        Describes("see `limits.connections_per_second_per_address`"),
    ),
    ("limits.sign_in_failures_per_minute", Scoped(ErrorKind::TooManySignIns, "sign_in_failures")),
    (
        "limits.connections_per_tenant",
        Scoped(ErrorKind::TooManyConnections, "connections_per_tenant"),
    ),
    ("limits.sessions_per_tenant", Scoped(ErrorKind::TooManySessions, "sessions_per_tenant")),
    ("limits.sessions_per_principal", Scoped(ErrorKind::TooManySessions, "sessions_per_principal")),
    (
        "limits.calls_in_flight_per_session",
        Scoped(ErrorKind::TooManyCalls, "calls_in_flight_per_session"),
    ),
    (
        "limits.calls_in_flight_per_tenant",
        Scoped(ErrorKind::TooManyCalls, "calls_in_flight_per_tenant"),
    ),
    (
        "limits.calls_in_flight_per_backend",
        Describes("further calls wait: see `limits.calls_queued_per_backend`"),
    ),
    ("limits.calls_queued_per_backend", Crowded),
    ("limits.calls_in_flight", Describes("further calls wait: see `limits.calls_queued`")),
    ("limits.calls_queued", Crowded),
    ("limits.batch_calls", Refused(ErrorKind::InvalidParams)),
    (
        "limits.adaptive_concurrency",
        Other(
            "further calls wait: see `limits.calls_queued_per_backend`",
            "`mcp_backend_calls_max`",
        ),
    ),
    ("limits.requests_per_second", Scoped(ErrorKind::RateLimited, "tenant")),
    ("limits.burst", Describes("see `limits.requests_per_second`")),
    ("limits.requests_per_second_per_principal", Scoped(ErrorKind::RateLimited, "principal")),
    ("limits.burst_per_principal", Describes("see `limits.requests_per_second_per_principal`")),
    ("limits.requests_per_second_per_backend", Scoped(ErrorKind::RateLimited, "backend")),
    ("limits.burst_per_backend", Describes("see `limits.requests_per_second_per_backend`")),
    ("limits.requests_per_second_per_tool", Scoped(ErrorKind::RateLimited, "tool")),
    ("limits.burst_per_tool", Describes("see `limits.requests_per_second_per_tool`")),
    (
        "limits.without_redis",
        Other("how limits over replicas apply without Redis", "`mcp_rates_shared`"),
    ),
    (
        "limits.outbox_bytes",
        Other(CONNECTION_ENDS, "`mcp_rate_limited_total{scope=\"outbox_bytes\"}`"),
    ),
    (
        "limits.outbox_bytes_total",
        Other(
            "the broker closes the largest connection of the tenant with the most waiting bytes",
            "`mcp_rate_limited_total{scope=\"outbox_bytes_total\"}`, `mcp_outbox_bytes`",
        ),
    ),
    ("overload.memory_bytes", Describes("see `overload.memory_percent`")),
    ("overload.memory_percent", Shed),
    ("overload.queue_delay", Shed),
    ("overload.requests_pending", Shed),
    ("timeouts.call", Refused(ErrorKind::Timeout)),
    ("timeouts.control", Refused(ErrorKind::Timeout)),
    ("timeouts.call_max", Refused(ErrorKind::Timeout)),
    ("timeouts.methods", Refused(ErrorKind::Timeout)),
    ("timeouts.initialize", Refused(ErrorKind::BackendUnavailable)),
    (
        "timeouts.request_read",
        Other(
            "400 `invalid_request` for a body; a request head, or a message of TCP or WebSocket, ends the connection",
            "",
        ),
    ),
    ("timeouts.http_idle", Other(CONNECTION_ENDS, "")),
    ("timeouts.connect", Refused(ErrorKind::BackendUnavailable)),
    ("timeouts.handshake", Other(CONNECTION_ENDS, "")),
    ("timeouts.websocket_ping", Describes("see `timeouts.websocket_idle`")),
    ("timeouts.websocket_idle", Other(CONNECTION_ENDS, "")),
    ("timeouts.quic_idle", Other(CONNECTION_ENDS, "")),
    (
        "timeouts.client_request",
        Other("the broker answers the question of the backend with an error", ""),
    ),
    (
        "timeouts.ping_interval",
        Other("the broker reconnects the link to the backend", "`mcp_links`"),
    ),
    ("timeouts.idle_session", Describes("see `session.idle`")),
    (
        "session.lease",
        Other("other replicas take over what this one owns", "`mcp_node_lease_renewals_total`"),
    ),
    (
        "session.idle",
        Other("the session ends: `session_not_found`", "`mcp_sessions`, `mcp_expired_total`"),
    ),
    ("session.resume", Other("the session ends: `session_not_found`", "`mcp_sessions`")),
    ("tasks.enabled", Describes("turns tasks on")),
    (
        "tasks.ttl",
        Other("the task is removed: `task_not_found`", "`mcp_expired_total{kind=\"tasks\"}`"),
    ),
    ("tasks.ttl_max", Other("the task gets this time", "")),
    ("tasks.poll_interval", Describes("the value that clients get")),
    ("tasks.promote", Describes("lets long calls become tasks")),
    ("tasks.promote_after", Other("the call becomes a task", "`mcp_task_promotions_total`")),
    ("tasks.running_per_tenant", Refused(ErrorKind::TaskLimit)),
    ("tasks.stored_per_tenant", Refused(ErrorKind::TaskLimit)),
    ("tasks.bytes_per_tenant", Refused(ErrorKind::TaskLimit)),
    ("tasks.result_bytes", Refused(ErrorKind::ResultTooLarge)),
    ("events.log", Describes("where events are kept")),
    (
        "events.retain",
        Other(
            "older events cannot be replayed: `events_gone`, or a gap that the stream reports",
            "`mcp_event_gaps_total`",
        ),
    ),
    (
        "events.stream_events",
        Other("the stream drops progress and log messages, oldest first; then it ends", DROPPED),
    ),
    (
        "events.stream_bytes",
        Other("the stream drops progress and log messages, oldest first; then it ends", DROPPED),
    ),
    (
        "events.tenant_bytes",
        Other(
            "the broker does not log further events of the tenant; connected clients get them, and the stream has a gap after a restart",
            "`mcp_events_lost_total`",
        ),
    ),
    ("events.keepalive", Describes("interval of keep-alive comments on a quiet stream")),
    ("events.retry", Describes("the value that clients get")),
];

/// Sources of the constants.
const SOURCE: &str = concat!(
    include_str!("../../../rules/src/limits.rs"),
    include_str!("../../../rules/src/limits/lists.rs"),
    include_str!("../../../rules/src/limits/memory.rs"),
    include_str!("../../../rules/src/limits/access.rs"),
    include_str!("../../../rules/src/limits/toolsets.rs"),
    include_str!("../../../rules/src/limits/approvals.rs"),
    include_str!("../../../rules/src/limits/apps.rs"),
    include_str!("../../../rules/src/limits/arguments.rs"),
    include_str!("../../../rules/src/limits/audit.rs"),
    include_str!("../../../rules/src/limits/children.rs"),
    include_str!("../../../rules/src/limits/concurrency.rs"),
    include_str!("../../../rules/src/limits/included.rs"),
    include_str!("../../../rules/src/limits/inputs.rs"),
    include_str!("../../../rules/src/limits/log.rs"),
    include_str!("../../../rules/src/limits/own_lists.rs"),
    include_str!("../../../rules/src/limits/console.rs"),
    include_str!("../../../rules/src/limits/shutdown.rs"),
    include_str!("../../../rules/src/limits/oauth.rs"),
    include_str!("../../../rules/src/limits/pins.rs"),
    include_str!("../../../rules/src/limits/replicas.rs"),
    include_str!("../../../rules/src/limits/results.rs"),
    include_str!("../../../rules/src/limits/sign_ins.rs"),
    include_str!("../../../rules/src/limits/streams.rs"),
    include_str!("../../../rules/src/limits/tokens.rs")
);

struct Fixed {
    name: &'static str,
    value: String,
    effect: Effect,
}

macro_rules! fixed {
    ($($name:ident $effect:expr;)*) => {
        vec![$(Fixed { name: stringify!($name), value: Shown::shown(&$name, stringify!($name)), effect: $effect },)*]
    };
}

trait Shown {
    fn shown(&self, name: &str) -> String;
}

impl Shown for Duration {
    fn shown(&self, _: &str) -> String {
        units::format_duration(*self)
    }
}

impl Shown for usize {
    fn shown(&self, name: &str) -> String {
        if name.contains("BYTES") { units::format_size(*self) } else { self.to_string() }
    }
}

impl Shown for u64 {
    fn shown(&self, name: &str) -> String {
        match usize::try_from(*self) {
            Ok(bytes) if name.contains("BYTES") => bytes.shown(name),
            _ => self.to_string(),
        }
    }
}

impl Shown for u32 {
    fn shown(&self, _: &str) -> String {
        self.to_string()
    }
}

/// The limits that a client, a backend or an operator can meet.
fn met() -> Vec<Fixed> {
    let backend_fault = "the broker drops the excess; the log and `last_error` show it";
    let overflow = "the broker drops the oldest: `events_gone`";
    fixed! {
        PAGE_ENTRIES Describes("the broker paginates its lists");
        PAGE_BYTES_MAX Describes("the broker paginates its lists");
        LIST_PAGES_MAX Other(backend_fault, "");
        CURSOR_BYTES_MAX Other(backend_fault, "");
        CATALOG_MARKS_MAX Other("the backend is unavailable; the log and `last_error` show it", "");
        LIST_ENTRIES_MAX Other(backend_fault, "");
        LIST_ENTRY_VALUES_MAX Other("the broker leaves out the entry; the log shows it", "");
        LIST_BYTES_MAX Other(backend_fault, "");
        OWN_LISTS_BYTES_MAX Other("clients of the link get the shared lists, and a principal none of the backend; the log shows it", "");
        OWN_LISTS_BYTES_PER_TENANT_MAX Other("clients of the link get the shared lists, and a principal none of the backend; the log shows it", "");
        PINS_PER_BACKEND_MAX Other("the broker does not pin new objects, and modes that hold objects hold them; the log shows it", "");
        DEFINITION_VALUES_MAX Other("the broker hashes the text of the definition, so each spelling is another definition", "");
        SCANNED_BYTES_MAX Other("the broker does not scan the rest, which is a finding", "`mcp_catalog_findings`");
        LIST_URIS_WITH_FORMS_BYTES_MAX Other("the broker leaves out the entry; the log shows it", "");
        URI_BYTES_MAX Refused(ErrorKind::UriInvalid);
        URI_READING_FACTOR Other("every deny rule with resources covers the URI, and no allow rule", "");
        URI_READING_BYTES_MIN Describes("the minimum of `URI_READING_FACTOR`");
        BATCH_PARALLEL_MAX Other("further calls of the batch wait", "");
        BATCH_RESULT_BYTES_MAX Other("the result of the batch omits further results, with `message_too_large`", "");
        BATCH_RESULT_VALUES_MAX Other("the result of the batch omits further results, with `message_too_large`", "");
        KEPT_RESULT_BYTES_MAX Other("the broker stores the beginning, and the shortened result reports that", "");
        KEPT_RESULT_BYTES_PER_PRINCIPAL Other("the broker removes the oldest results", "");
        KEPT_RESULT_BYTES_PER_TENANT Other("the broker sends long results as they are; the log shows it", "");
        KEPT_RESULT_TTL Refused(ErrorKind::ResourceNotFound);
        HOSTED_PROMPT_RESULT_BYTES_MAX Refused(ErrorKind::InvalidParams);
        SEARCH_QUERY_BYTES_MAX Refused(ErrorKind::InvalidParams);
        EXTENSION_POOLS_MAX Refused(ErrorKind::TooManyCalls);
        CAPABILITY_PROBE_WAIT Other("its clients may see tools that they cannot use, until the probe is over", "");
        CAPABILITY_PROBE_INTERVAL_MIN Other("clients may see new tools that they cannot use, until the next probe", "");
        ROOTS_MAX Other("the admin API refuses a further root", "");
        ROOT_NAME_CHARS_MAX Other("the admin API refuses the root", "");
        LOG_FILTER_BYTES_MAX Other("the admin API refuses the filter", "");
        LOG_FILTER_TIME_MAX Other("the admin API refuses the filter", "");
        REFRESH_INTERVAL_MIN Other("clients learn of changes later", "");
        SCHEMA_BYTES_MAX Other(SCHEMA_UNUSED, "");
        SCHEMA_NODES_MAX Other(SCHEMA_UNUSED, "");
        SCHEMA_NESTING_MAX Other(SCHEMA_UNUSED, "");
        SCHEMA_COST_MAX Other(SCHEMA_UNUSED, "");
        PATTERN_COMPILED_BYTES_MAX Other(SCHEMA_UNUSED, "");
        SCHEMA_COMPILED_BYTES_MAX Other(SCHEMA_UNUSED, "");
        SCHEMAS_COMPILED_BYTES_MAX Other("the broker compiles a schema again when a call needs it", "");
        SCHEMA_COMPILE_WAIT Refused(ErrorKind::ArgumentsInvalid);
        ARGUMENT_BYTES_MAX Refused(ErrorKind::ArgumentsInvalid);
        ARGUMENT_STEPS_MAX Refused(ErrorKind::ArgumentsInvalid);
        FORMAT_BYTES_MAX Refused(ErrorKind::ArgumentsInvalid);
        VALIDATE_TIMEOUT_MAX Describes("`tools.validate_timeout` of a backend is at most this");
        VALIDATIONS_QUEUED_PER_TENANT_MAX Refused(ErrorKind::Overloaded);
        VALIDATIONS_QUEUED_MAX Refused(ErrorKind::Overloaded);
        POOLED_SESSION_WAIT_MAX Refused(ErrorKind::TooManyCalls);
        SUSPENDED_PER_CALLER_MAX Refused(ErrorKind::TooManyCalls);
        SUSPENDED_PER_TENANT_MAX Refused(ErrorKind::TooManyCalls);
        SUSPENDED_MAX Refused(ErrorKind::TooManyCalls);
        SUSPENDED_BYTES_PER_CALLER_MAX Refused(ErrorKind::TooManyCalls);
        SUSPENDED_BYTES_PER_TENANT_MAX Refused(ErrorKind::TooManyCalls);
        SUSPENDED_BYTES_MAX Refused(ErrorKind::TooManyCalls);
        POOLED_SESSIONS_SUSPENDED_MAX Refused(ErrorKind::TooManyCalls);
        INPUT_ROUNDS_MAX Refused(ErrorKind::BackendProtocolError);
        BACKEND_INPUT_ROUNDS_MAX Refused(ErrorKind::BackendProtocolError);
        BACKEND_TASK_INPUTS_MAX Refused(ErrorKind::BackendProtocolError);
        LISTEN_URIS_MAX Refused(ErrorKind::InvalidParams);
        COMPLETION_DEPTH_MAX Refused(ErrorKind::InvalidParams);
        TEMPLATE_VARIABLES_MAX Refused(ErrorKind::UriInvalid);
        LISTEN_TASKS_MAX Refused(ErrorKind::InvalidParams);
        APPROVALS_PENDING_PER_PRINCIPAL_MAX Scoped(ErrorKind::ApprovalLimit, "approvals");
        APPROVALS_PENDING_PER_TENANT_MAX Scoped(ErrorKind::ApprovalLimit, "approvals");
        APPROVAL_ARGUMENTS_BYTES_MAX Refused(ErrorKind::MessageTooLarge);
        TASK_REQUEST_BYTES_MAX Refused(ErrorKind::MessageTooLarge);
        IDEMPOTENCY_KEY_BYTES_MAX Refused(ErrorKind::InvalidParams);
        TASK_TTL_MIN Other("the task gets this time", "");
        TASK_RUN_MAX Refused(ErrorKind::Timeout);
        PROMOTE_RETRY_INTERVAL Other("the call continues as before", "");
        TASK_RUNS_MAX Refused(ErrorKind::Overloaded);
        TASK_INPUTS_MAX Other("the broker answers the question of the backend with an error", "");
        TASK_NOTIFICATIONS_PER_SECOND Other("the broker drops further ones", DROPPED);
        TASK_RESULT_WAIT_MAX Refused(ErrorKind::Timeout);
        TASK_STORE_WAIT_MAX Refused(ErrorKind::StoreUnavailable);
        STREAMS_KEPT_MAX Other(overflow, "");
        STREAM_OPENINGS_FREE_PER_MINUTE Other("further ones count as requests", "`mcp_rate_limited_total`");
        SUBSCRIPTIONS_PER_SESSION_MAX Refused(ErrorKind::Overloaded);
        SUBSCRIPTION_BYTES_PER_SESSION_MAX Refused(ErrorKind::Overloaded);
        QUESTIONS_MAX Other("the broker answers the question of the backend with an error", "");
        CLIENT_TEXT_BYTES_MAX Refused(ErrorKind::InvalidParams);
        INSTRUCTIONS_BYTES_MAX Other("the rest is cut", "");
        CLIENT_TASKS_MAX Other("the broker does not forward the outcome of the oldest", "");
        ELICITATIONS_MAX Other("the broker does not forward the outcome of the oldest", "");
        ELICITATION_BYTES_PER_SESSION_MAX Other("the broker does not forward the outcome of the oldest", "");
        ELICITATIONS_PER_ANSWER_MAX Other("the broker does not forward the outcome of further ones", "");
        COMPLETION_VALUES_MAX Other("the rest is cut; `hasMore` is true", "");
        LINK_QUEUE_FRAMES Refused(ErrorKind::Overloaded);
        LINK_QUEUE_BYTES_MAX Refused(ErrorKind::Overloaded);
        BACKEND_WRITE_STALL_MAX Other("the connection to the backend ends", "`mcp_links`");
        CHILD_WRITE_STALL_MAX Other("the next request starts another child", "`mcp_links`");
        ONE_WAY_QUEUE_FRAMES Other("further ones are dropped", "`mcp_queue_depth{queue=\"http_one_way\"}`");
        NOISE_LINES_MAX Other("the link is closed", "`mcp_links`");
        BACKOFF_WAIT_MAX Refused(ErrorKind::BackendUnavailable);
        LINK_IDLE_MAX Other("the link closes; the next call opens it again", "`mcp_links`");
        RETRY_AFTER_MAX Other("clients get this time in `data.retryAfterMs`", "");
        RETRY_MAX Other("the broker reconnects after this time", "");
        REQUEST_HEAD_BYTES_MAX Other("431, and the connection is closed", "");
        HTTP_HEADERS_MAX Other("431, by the HTTP library", "");
        CLIENT_WRITE_STALL_MAX Other(CONNECTION_ENDS, "");
        HTTP2_STREAMS_MAX Other("further streams are refused by HTTP/2", "");
        HTTP2_GIVEN_UP_MAX Other(CONNECTION_ENDS, "");
        HTTP2_STREAM_WINDOW_BYTES Other("further bytes wait, by HTTP/2", "");
        HTTP2_WAITING_BODIES_MAX Refused(ErrorKind::Overloaded);
        FIRST_MESSAGE_BYTES_MAX Refused(ErrorKind::MessageTooLarge);
        LONG_FIRST_MESSAGES_MAX Other(CONNECTION_ENDS, "");
        OUTBOX_FRAMES_MAX Other(CONNECTION_ENDS, "`mcp_rate_limited_total{scope=\"outbox_bytes\"}`");
        PIPELINE_WAIT_MAX Refused(ErrorKind::TooManyCalls);
        HALF_CLOSED_MAX Other(CONNECTION_ENDS, "");
        QUIC_REQUEST_STREAMS_MAX Other("further streams wait, by QUIC", "");
        QUIC_HANDSHAKES_MAX Other("the broker refuses new connections", "");
        UNFINISHED_REQUESTS_BYTES_MAX Other("a QUIC stream is reset (8), a POST waits", "`mcp_rate_limited_total{scope=\"quic_request_bytes\"}`");
        UNFINISHED_TENANT_BYTES_MAX Other("further bytes wait for `timeouts.request_read`, then `overloaded`", "");
        HTTP_SSE_QUEUE_FRAMES Other("further ones wait for `timeouts.request_read`, then `overloaded`", "");
        ADMIN_LIST_MAX Other("the answer has `next` for the next page", "");
        TASKS_COMPARED_MAX Other("409 `too-many-tasks`; the id of the task finds it", "");
        INCLUDED_FILES_MAX Other("the broker applies no change of the folder", "`mcp_config_reloads_total`");
        PERSIST_QUEUE_MAX Refused(ErrorKind::StoreBusy);
        EVENT_QUEUE_MAX Other("the broker does not log events; the stream reports a gap", "`mcp_events_lost_total`");
        EVENT_QUEUE_BYTES_MAX Other("the broker does not log events; the stream reports a gap", "`mcp_events_lost_total`");
        SPANS_PER_REQUEST_MAX Other("further ones are dropped", "`mcp_trace_spans_total{outcome=\"too_many\"}`");
        LOG_LINES_MAX Other("the broker drops further lines; a later line counts them", "`mcp_log_lines_dropped_total`");
        LOG_LINES_BYTES_MAX Other("the broker drops further lines; a later line counts them", "`mcp_log_lines_dropped_total`");
        AUDIT_QUEUE_MAX Other("further records are dropped", AUDIT_DROPPED);
        AUDIT_QUEUE_BYTES_MAX Other("further records are dropped", AUDIT_DROPPED);
        AUDIT_FREE_REFUSALS_PER_MINUTE Other("the broker leaves out further records; the next one has their number", AUDIT_LEFT_OUT);
        AUDIT_RETENTION_DELAY Describes("how long a shorter `audit.retain` waits");
        AUDIT_ARGUMENTS_BYTES_MAX Other("only their digest is kept", "");
        AUDIT_VALUE_BYTES_MAX Other("only its digest is kept", "");
        AUDIT_TARGET_CHARS_MAX Other("the rest is cut", "");
        PERMITS_LEASE Describes("when the permits of a killed replica are free");
        CALL_PERMITS_RESERVED_MAX Describes("permits that another replica cannot use for a moment");
        PRINCIPALS_METERED_MAX Other("further ones share one rate", "");
        TOOLS_METERED_MAX Other("further ones share one rate", "");
        ADDRESSES_METERED_MAX Other("further ones share one rate", "");
        SIGN_IN_ADDRESSES_MAX Other("further ones share one count, without an address", "`mcp_auth_failures_total`");
        SIGN_IN_WINDOW Describes("see `limits.sign_in_failures_per_minute`");
        SIGN_IN_LOG_LINES_MAX Other("the log omits further lines; the next line counts them", "`mcp_auth_failures_total`");
        OVERLOAD_BODY_BYTES_MAX Shed;
        RELAYED_UNREAD_BYTES_MAX Other("the broker disconnects the largest client of the tenant with the most", "`mcp_dropped_notifications_total{kind=\"slow_client\"}`");
        RETAINED_EVENTS_BYTES_MAX Other("the tenant with the most loses those of its oldest stream: `events_gone`, or a gap that the stream reports", "");
        ISSUERS_MAX Other("the configuration is refused", "");
        TOKEN_BYTES_MAX Refused(ErrorKind::Unauthorized);
        TOKEN_KEY_ID_BYTES_MAX Refused(ErrorKind::Unauthorized);
        TOKEN_PRINCIPAL_BYTES_MAX Refused(ErrorKind::Unauthorized);
        TOKEN_LEEWAY Describes("bounds the validity of a token");
        KEY_SET_BYTES_MAX Other("the broker uses the keys it has, up to their age", KEY_FETCHES);
        KEY_SET_KEYS_MAX Other("further ones are not used", "");
        KEY_SET_AGE_MAX Other("the broker accepts no token of the issuer", "`mcp_issuers_without_keys`");
        KEY_SET_REFRESH_INTERVAL Describes("time for which a revoked key stays valid while the issuer answers");
        KEY_SET_PAUSE_MIN Refused(ErrorKind::Unauthorized);
        KEY_SET_FETCH_MAX Other("the broker uses the keys it has, up to their age", KEY_FETCHES);
        KEY_SET_WAIT_MAX Refused(ErrorKind::Unauthorized);
        KEY_SET_WAITING_MAX Refused(ErrorKind::Unauthorized);
        ISSUERS_PER_TENANT_MAX Other("the request is refused (409)", "");
        METADATA_MEMBERS_MAX Other("the entry is refused", "");
        REGISTRATION_URIS_MAX Other("the entry or the registration is refused", "");
        REGISTRATION_URI_BYTES_MAX Other("the entry or the registration is refused", "");
        AUTHORIZATION_REQUEST_BYTES_MAX Other("413 `invalid_request`", "");
        AUTHORIZATION_ANSWER_BYTES_MAX Other("503 `temporarily_unavailable`", "");
        AUTHORIZATION_FORWARD_MAX Other("503 `temporarily_unavailable`", "");
        AUTHORIZATION_FORWARDS_MAX Other("503 `temporarily_unavailable`", "");
        AUTHORIZATION_FORWARDS_PER_ISSUER_MAX Other("503 `temporarily_unavailable`", "");
        INTROSPECTION_BYTES_MAX Refused(ErrorKind::IssuerUnavailable);
        INTROSPECTION_MAX Refused(ErrorKind::IssuerUnavailable);
        INTROSPECTIONS_AT_ONCE_MAX Describes("further ones wait");
        INTROSPECTIONS_RESERVED Describes("new tokens wait");
        INTROSPECTION_WAITING_MAX Refused(ErrorKind::IssuerUnavailable);
        INTROSPECTION_WAITING_RESERVED Refused(ErrorKind::IssuerUnavailable);
        INTROSPECTION_NEW_TOKENS_PER_SECOND Refused(ErrorKind::IssuerUnavailable);
        INTROSPECTION_INACTIVE_FOR Refused(ErrorKind::Unauthorized);
        INTROSPECTION_FAILURE_PAUSE Refused(ErrorKind::IssuerUnavailable);
        OAUTH_ANSWER_BYTES_MAX Refused(ErrorKind::BackendUnavailable);
        OAUTH_REQUEST_MAX Refused(ErrorKind::BackendUnavailable);
        OAUTH_FAILURE_PAUSE Refused(ErrorKind::BackendUnavailable);
        OAUTH_TOKEN_BYTES_MAX Refused(ErrorKind::BackendUnavailable);
        OAUTH_TRIES_MAX Refused(ErrorKind::BackendProtocolError);
        TOKEN_SCOPES_MAX Describes("the broker requests the scopes of `auth.scopes` or of discovery, with those of the last challenge, up to the limit");
        TOKEN_SCOPES_BYTES_MAX Describes("see `TOKEN_SCOPES_MAX`");
        GRANTS_SOUGHT_MAX Other("the broker reads no lists with `catalog_auth: first_user`, until one of these principals connects the account again", "");
        CONNECT_REQUEST_LIFE Describes("the page answers 403");
        CONNECT_REQUESTS_MAX Describes("the page answers 403 to the answer of the replaced request");
        REGISTRATION_BYTES_MAX Describes("the page answers 502");
        CONNECT_LINK_LIFE Describes("the page answers 403");
        CONNECT_LOGIN_LIFE Describes("the page answers 403");
        LOGIN_METADATA_AGE_MAX Describes("time after which a change of the metadata is in force");
        LOGIN_METADATA_PAUSE Describes("the page answers 502");
        LOGINS_AT_ONCE_MAX Other("the page answers 503 with `Retry-After`", "`mcp_rate_limited_total{scope=\"logins\"}`");
        LOGINS_PER_ISSUER_MAX Other("the page answers 503 with `Retry-After`", "`mcp_rate_limited_total{scope=\"logins\"}`");
        OAUTH_URL_BYTES_MAX Describes("the broker sends no request there");
        AUTHORIZATION_SERVERS_MAX Describes("the broker ignores the others");
        SUBJECT_WRITES_PER_TENANT_MAX Describes("the next request with the token writes it");
        CONNECT_FORM_BYTES_MAX Refused(ErrorKind::MessageTooLarge);
    }
}

/// Internal paces, batch sizes and caches, which no peer meets as a limit.
const INNER: &str = "BATCH_CALLS_MAX RESULT_TOKENS_MIN RESULT_TOKENS_MAX TOKEN_BYTES KEPT_RESULT_ID_BYTES KEPT_RESULT_PAGE_BYTES_MAX TOOLSETS_PER_TENANT_MAX TOOLSET_ENTRIES_MAX TOOLSET_ALIAS_BYTES_MAX TOOLSET_TEXT_BYTES_MAX FIXED_ARGUMENTS_MAX FIXED_ARGUMENT_BYTES_MAX CATALOG_TOKENS_WARNED SEARCH_RESULTS SEARCH_RESULTS_MAX HOSTED_PROMPTS_PER_TENANT_MAX HOSTED_PROMPT_ARGUMENTS_MAX HOSTED_PROMPT_VALUES_MAX HOSTED_PROMPT_MESSAGES_MAX HOSTED_PROMPT_TEXT_BYTES_MAX HOSTED_PROMPT_NAME_BYTES_MAX \
    APPROVAL_TTL_MIN APPROVAL_TTL_DEFAULT APPROVAL_TTL_MAX APPROVAL_WINDOW_MAX APPROVAL_REASON_BYTES_MAX APPROVAL_ID_BYTES APPROVAL_POLL_INTERVAL APPROVAL_POLL_BATCH APPROVAL_ANSWER_MARGIN APPROVAL_KEPT APPROVAL_EXPIRED_KEPT POLICY_RULES_MAX POLICY_TESTS_MAX POLICY_PATTERNS_MAX POLICY_PATTERN_BYTES_MAX ACCESS_VIEWS_BYTES_MAX ACCESS_VIEW_ENTRY_BYTES ACCESS_SUBJECTS_MAX POLICY_REPORT_ROWS_MAX POLICY_REPORT_SAMPLES_MAX POLICY_REPORT_AGE_MAX REVOCATIONS_MAX REVOKED_SUBJECT_BYTES_MAX \
    SKIPPED_LOGGED_MAX PINS_STORED_AT_ONCE PINS_STORED_BYTES_AT_ONCE FINDINGS_MAX FINDING_POINTER_BYTES_MAX FINDING_EXCERPT_BYTES_MAX DESCRIPTION_BYTES_USUAL DEFAULT_BYTES_USUAL LIST_PAGE_BYTES_AT_ONCE_MAX CATALOG_BYTES_AT_ONCE_MAX LINK_LISTS_READ_MAX SESSION_CATALOGS_BYTES_MAX SESSION_CATALOG_COUNTED_BYTES_MAX REFRESH_DEBOUNCE TASK_ID_BYTES TASK_CLAIM_BATCH TASK_POLL_MIN TASK_POLL_MAX TASK_RESENDS_MAX TASK_PERMIT_HOLD_FIRST \
    TASK_POLLER_INTERVAL TASK_POLLER_INTERVAL_ALONE TASK_POLLER_BATCH STATUS_MESSAGE_CHARS_MAX STORE_RETRY_FIRST STORE_RETRY_MAX END_RETRY_FIRST END_RETRY_PAUSE_MAX \
    TASK_OUTCOME_TRIES TASK_RELEASE_TRIES TASK_OUTCOME_SUSPECT_BYTES COMMIT_SETTLES_WITHIN COMMIT_LOOK_MAX TASK_ORPHAN_SWEEP_INTERVAL \
    TASK_DEFER_FIRST TASK_DEFER_MAX TASKS_DEFERRED_MAX SESSION_ID_BYTES FIRST_CATALOG_WAIT REAPER_INTERVAL \
    OWNERS_REMEMBERED_MAX ABSENT_REMEMBERED_MAX ABSENT_REMEMBERED_FOR OWNER_RETRY_MIN OWNER_RETRY_DOUBLINGS OWNER_RETRY_JITTER \
    OWNER_SEARCH_EXTRA NAMED_REQUEST_BYTES_MAX SUBSCRIBE_ATTEMPTS_MAX DISPLAY_CHARS_MAX ELICITATION_ID_BYTES_MAX WRITE_BATCH_FRAMES \
    EVENT_ID_BYTES_MAX SESSION_DELETE_WAIT BACKOFF_FIRST BACKOFF_MAX STABLE_AFTER LATENCY_WEIGHT RESUME_ATTEMPTS_MAX RETRY_DEFAULT \
    RETRY_MIN ERROR_BODY_BYTES_MAX STREAM_DRAIN ACCEPT_QUEUE HTTP2_PIECE_BYTES EVENT_PIECE_BYTES RELAYED_WHOLE_BYTES_MAX \
    OUTBOX_BATCH_FRAMES OUTBOX_BATCH_BYTES FRAMES_IN_A_ROW HTTP_SSE_NAME_BYTES LAST_FRAMES_WAIT \
    LEASE_LOST_READY PAST_NAMES_MAX RECLAIM_BATCH STORE_PROBE_EVERY RENEWAL_RETRY_MAX RESEALED_AT_ONCE RESEAL_PAUSE RESEAL_RETRY SWEEP_INTERVAL SWEEP_ROWS SWEEP_EVENTS SWEEP_ROUNDS_MAX \
    CONFIG_READ_INTERVAL_MIN INCLUDED_RETRY_READINGS CREDENTIAL_READ_WAIT_MAX CREDENTIAL_READ_WAITERS_MAX ADMIN_PAGE_ROWS PERSIST_BATCH_MAX PERSIST_BATCH_BYTES_MAX PERSIST_SUSPECT_BYTES EVENT_BATCH_MAX \
    EVENT_BATCH_BYTES_MAX LOST_STREAMS_MAX TRIM_LOGGED_EVERY QUIET_LOGGED_EVERY_MIN CLOSING_UP_MAX MOVE_ON_MAX OWNER_NEWS_WAIT \
    LISTS_RETRY FLUSHED_AT_ONCE SEEN_STORED_EVERY_MAX EVENTS_FLUSH_WAIT RELEASED_AT_ONCE END_RETRY_MAX BUDGET_SETTLE_INTERVAL \
    PERMITS_RENEW_INTERVAL PERMITS_RETURN_INTERVAL PERMITS_REFUSED_FOR PERMITS_IDLE_RENEWALS PERMITS_KEPT PERMITS_RESERVE_REPORTERS PERMITS_REPORT_RENEWALS PERMIT_REQUESTS_BATCH_MAX PERMITS_WAIT_MAX VERDICT_KEPT DRAIN_REQUEST_WAIT COUNT_PAUSE_TIMES \
    BUDGET_REQUESTS_BATCH_MAX REPLICAS_COUNT_INTERVAL LIMIT_RETRY_AFTER OVERLOAD_RETRY OVERLOAD_SAMPLE_INTERVAL OVERLOAD_SAMPLES_IN_A_ROW \
    OUTBOX_STEP_BYTES RELAYED_CHECK_INTERVAL CLOSE_WAIT RETRIES_MAX RETRY_PAUSE_FIRST RETRY_PAUSE_MAX RETRIES_SAVED_MAX PACE_WEIGHT PACE_WEIGHT_MAX PACE_OUTLIER \
    PACE_GAP_USUAL PROBE_ANSWER_MAX \
    CONCURRENCY_MIN CONCURRENCY_ROUND CONCURRENCY_TOLERANCE CONCURRENCY_SLACK CONCURRENCY_SHARE_MAX CONCURRENCY_BACKS_OFF_TO CONCURRENCY_KINDS_MAX CONCURRENCY_KIND_IDLE CONCURRENCY_SAMPLE_ANSWERS SCHEMA_DEPTH_MAX \
    FAULTS_REPORTED_MAX FAULTS_FOUND_MAX FAULT_CHARS_MAX UNUSED_SCHEMAS_REPORTED_MAX ARGUMENT_BYTES_AT_ONCE_MAX \
    ARGUMENT_STEPS_AT_ONCE_MAX DUPLICATES_BYTES_AT_ONCE_MAX VALIDATION_THREADS_MAX VALIDATION_NICENESS VALIDATE_TIMEOUT_DEFAULT \
    VALIDATE_TIMEOUT_MIN CHILD_IDLE_CHECK_INTERVAL STATELESS_LISTS_CACHED_MAX STATELESS_LISTS_CACHED_BYTES_MAX SESSIONS_PER_POOL_MAX SESSION_POOL_GROW_INTERVAL \
    POOLED_SESSION_OPEN_MAX INPUT_GATHER_WAIT PREFLIGHT_PARAMS_MAX HANDSHAKES_END_WITHIN QUEUE_ACCEPTED_WITHIN LAST_REQUESTS_WITHIN FORWARDED_ANSWERED_WITHIN TUNNEL_BYTES ERA_SILENCE_MAX ERA_RETRIES_MAX \
    ELICITATION_ID_BYTES CAPABILITIES_REMEMBERED_MAX LISTEN_OVERLAP LISTEN_REFUSED_PAUSE LISTEN_STREAMS_MAX LIST_TTL_MIN CERTIFICATE_ENDS_SOON LOG_FILTER_TIME_MIN LOG_FILTER_TIME_DEFAULT SPAN_BATCH_MAX \
    SPAN_BATCH_WAIT SPAN_EXPORT_WAIT SPAN_FLUSH_WAIT AUDIT_BATCH_MAX AUDIT_BATCH_BYTES_MAX AUDIT_FLUSH_WAIT AUDIT_CHECKPOINT_ROWS AUDIT_PAGE_ROWS AUDIT_REFUSED_PRINCIPALS_MAX AUDIT_CHAINS_AT_ONCE RESERVE_DIVISOR \
    RESERVE_LIMIT_MIN RESERVE_SHARE_MIN LOG_FLUSH_WAIT SILENCE_SUSPECTED SUSPICION_INTERVAL OUTBOX_BYTES_TOTAL_DEFAULT \
    SIGN_IN_CLOSE_INTERVAL TOKENS_REMEMBERED_MAX INTROSPECTIONS_REMEMBERED_MAX EXPIRY_LOOK_INTERVAL KEY_SET_RETRY_MAX RETRY_AFTER_MIN OAUTH_METADATA_AGE_MAX UNNAMED_SERVER_AGE_MAX SUBJECT_ROWS_PER_PRINCIPAL GRANT_CACHED_MAX GRANTS_SOUGHT_AT_ONCE GRANT_LOOK_INTERVAL GRANT_LEASE GRANT_LEASE_SETTLES GRANT_WAIT_MAX GRANT_POLL_INTERVAL \
    CONSOLE_LOGIN_LIFE CONSOLE_COOKIE_BYTES_MAX PAGE_KEY_BYTES_MIN CONNECT_LOGIN_BYTES_MAX ACTIVITY_ENTRIES_MAX ACTIVITY_TEXT_CHARS_MAX OVERVIEW_TROUBLED_MAX TRIAL_SUBJECT_BYTES_MAX \
     SUBJECT_WAIT_MAX CLIENT_KEY_PERIOD CLIENT_KEY_SET_AGE_MAX PRINCIPAL_LISTS_CACHED_MAX PRINCIPAL_LISTS_AGE_MAX PRINCIPAL_LISTS_RETRY PRINCIPAL_LISTS_READ_MAX CONNECTION_NOTICE_WAIT CONNECTION_NOTICE_TRIES";

/// Returns what a client sees, and the metric for operators.
fn columns(effect: &Effect) -> [String; 2] {
    let refused = |kind: &ErrorKind| format!("`{}`, {}", kind.name(), kind.code());
    let by_code = |kind: &ErrorKind| match kind {
        ErrorKind::Timeout => TIMEOUTS.to_owned(),
        kind => format!("`mcp_errors_total{{code=\"{}\"}}`", kind.code()),
    };
    match effect {
        Shed => [
            refused(&ErrorKind::Overloaded),
            "`mcp_overload_refused_total`, `mcp_overloaded`".to_owned(),
        ],
        Crowded => [
            refused(&ErrorKind::Overloaded),
            "`mcp_calls_crowded_out_total`, `mcp_queue_depth`".to_owned(),
        ],
        Refused(kind) => [refused(kind), by_code(kind)],
        Scoped(kind, scope) => {
            [refused(kind), format!("`mcp_rate_limited_total{{scope=\"{scope}\"}}`")]
        }
        Other(what, metric) => [(*what).to_owned(), (*metric).to_owned()],
        Describes(what) => [(*what).to_owned(), String::new()],
    }
}

fn unit(path: &str, allowed: &str) -> &'static str {
    if path.contains("per_second") {
        return "a second";
    }
    match allowed.split(' ').nth(1) {
        Some("duration") => "time",
        Some("size") => "bytes",
        Some("whole") => "count",
        _ => "choice",
    }
}

fn settings() -> String {
    let keys = documented_keys(&SECTIONS);
    let mut out = "| key | default | unit | effect | metric | meaning |\n| --- | --- | --- | --- | --- | --- |\n".to_owned();
    for [path, default, allowed, meaning] in &keys {
        let row = KEYS.iter().find(|(key, _)| key == path);
        let (_, effect) =
            row.unwrap_or_else(|| panic!("{path} is in no row of KEYS in pages/limits.rs"));
        let [effect, metric] = columns(effect);
        let _ = writeln!(
            out,
            "| `{path}` | {default} | {} | {effect} | {metric} | {meaning} |",
            unit(path, allowed)
        );
    }
    for (path, _) in KEYS {
        assert!(keys.iter().any(|[key, ..]| key == path), "{path} is no longer a key");
    }
    out
}

/// Returns the comment of a constant.
fn meaning(name: &str) -> String {
    let lines: Vec<&str> = SOURCE.lines().collect();
    let at = lines
        .iter()
        .position(|line| line.starts_with(&format!("pub const {name}:")))
        .unwrap_or_else(|| panic!("no {name}"));
    let comment =
        lines[..at].iter().rev().map_while(|line| line.strip_prefix("/// ")).collect::<Vec<_>>();
    comment.into_iter().rev().collect::<Vec<_>>().join(" ")
}

fn fixed_limits() -> String {
    let mut out = "| name | value | effect | metric | meaning |\n| --- | --- | --- | --- | --- |\n"
        .to_owned();
    for Fixed { name, value, effect } in met() {
        let [effect, metric] = columns(&effect);
        let _ = writeln!(out, "| `{name}` | {value} | {effect} | {metric} | {} |", meaning(name));
    }
    out
}

#[test]
fn every_fixed_limit_is_in_one_list() {
    let (met, inner): (Vec<_>, Vec<_>) = (met(), INNER.split_whitespace().collect());
    let lines = SOURCE.lines();
    let names: Vec<&str> =
        lines.filter_map(|line| line.strip_prefix("pub const ")?.split(':').next()).collect();
    for name in &names {
        let lists = usize::from(met.iter().any(|limit| limit.name == *name))
            + usize::from(inner.contains(name));
        assert_eq!(
            lists, 1,
            "{name} of limits.rs is in {lists} of the two lists in pages/limits.rs"
        );
    }
    assert_eq!(names.len(), met.len() + inner.len(), "a limit is gone, or twice in a list");
}

#[test]
fn the_page_of_limits_is_up_to_date() {
    let text = format!(
        "# Limits\n\n\
        This page is generated from the tables that the broker reads.\n\n\
        Every queue, cache and rate of the broker has a limit. A request beyond a limit gets a refusal, or the broker drops the \
        excess by a documented rule. A refusal carries `data.kind` and `code` ([errors.md](errors.md)):\n\n\
        - Rates, sessions and connections are refused with 1003, HTTP status 429.\n\
        - An overloaded process refuses with 1004, HTTP status 503.\n\n\
        Both carry the time to wait: `data.retryAfterMs`, and on HTTP `Retry-After` in whole seconds, rounded up.\n\n\
        ## The order of checks\n\n\
        For a connection, the broker checks in this order:\n\n\
        1. the connections of the listener\n\
        2. the rate of the client's address\n\
        3. the connections of that address\n\n\
        `listen.admin` has limits of its own: 128 connections, and 64 of one address. Further connections wait. The broker closes \
        a connection of an address that has 64 already.\n\n\
        For a request:\n\n\
        1. the credential\n\
        2. overload; before the broker reads the body, where the body is large or its size is unknown\n\
        3. the phase of the session\n\
        4. the rate of the principal\n\
        5. the rate of the tenant\n\
        6. the rate of the backend, then of the tool, once the route is known\n\
        7. the calls in flight\n\n\
        A request over the rate of its principal uses nothing of the tenant's rate.\n\n\
        A GET that opens or resumes an event stream counts as a request, after `STREAM_OPENINGS_FREE_PER_MINUTE` free ones of its session.\n\n\
        ## Notifications\n\n\
        - A client's notification counts against the rates of its principal and tenant, as one request.\n\
        - The broker drops a notification over a rate. It counts in `mcp_dropped_notifications_total{{kind=\"rate_limited\"}}` and \
        in `mcp_rate_limited_total`. Its POST gets 429; other wires have no answer for it.\n\
        - One cancellation of each request in flight is free, and so is the first `notifications/initialized` of a session.\n\
        - In 2026-07-28 a connection does not name the principal of a notification. The notification counts for the principal of \
        the last request.\n\
        - Answers to questions do not count.\n\
        - At most one `notifications/roots/list_changed` waits for each backend of a session.\n\n\
        ## Clients that do not read\n\n\
        - The broker keeps waiting messages for a client that does not read. `limits.outbox_bytes` limits those of one client whose connection is its session. `limits.outbox_bytes_total` limits those of all clients together.\n\
        - Over HTTP, an answer or an event of 256 KiB or more counts until the client has taken all of it.\n\
        - If all clients together hold too much, the broker finds the tenant with the most waiting bytes, and its principal with the most. It disconnects the largest client of this principal. So a tenant with many small clients cannot displace the answers of another tenant.\n\
        - A replica that relays an answer of another one holds at most 64 KiB of it that its client has not taken. The same applies to each direction of a WebSocket whose session is at another replica. All these bytes together have at most `RELAYED_UNREAD_BYTES_MAX`. Beyond it, the same rule finds the client that the broker disconnects, within a second.\n\
        - Over HTTP/1.1 without TLS, a slow client may have read a part of a large answer. The broker frees this part after half a second without progress.\n\
        - Delivered events stay for `events.retain`. All together have at most `RETAINED_EVENTS_BYTES_MAX`. Beyond it, the tenant with the most delivered bytes loses those of its oldest stream. A client that resumes there gets `events_gone`, or a gap that the stream reports. Events that a connected client is about to get again are the last ones that a tenant loses. Undelivered events of a POST stream whose client left count too, if they have less than 256 KiB.\n\
        - Freed memory goes back to the system within about two seconds, also while the broker is idle.\n\n\
        ## Clients that do not end their messages\n\n\
        - A message of a client has `timeouts.request_read` from its first bytes to its end, over HTTP, TCP and WebSocket. After that the broker refuses the body, or refuses the message and closes the connection (WebSocket: 1008).\n\
        - Incomplete messages of one tenant's clients have at most `UNFINISHED_TENANT_BYTES_MAX` together. Beyond it, the broker reads no further from these clients until another message is complete. One message at a time may exceed the limit. A message that is not complete in time because of this gets `overloaded` (WebSocket: 1013).\n\
        - A complete message counts until its session has handled it. The session waits while its client does not read. It counts all messages of a text frame until the last one, and the queued POSTs of an HTTP+SSE stream. A POST that cannot be queued in time because of this gets `overloaded`.\n\
        - The first 8 KiB of a message do not count, and neither does a body of up to 64 KiB that arrives without a wait. A larger body needs memory for its next 1 MiB before the broker reads it. In the queue of an HTTP+SSE stream, that applies to the first message only. Up to 64 KiB of later messages on a connection do not count either.\n\
        - A buffer may have twice the size of its message, so a tenant can use about 160 MiB with incomplete and waiting messages.\n\
        - Over HTTP/2, the broker holds up to `HTTP2_STREAM_WINDOW_BYTES` of a body that waits. `HTTP2_WAITING_BODIES_MAX` bodies of a connection may wait. A further one gets `overloaded` at once. The other streams of the connection keep their windows.\n\
        - Over QUIC, bytes that the broker does not read yet do not count. A client without a session has at most 64 KiB of them. A client with one has at most 512 KiB, and 128 KiB on one stream. 1,000 such clients can thus hold 500 MiB for `timeouts.request_read` when their tenant has no memory left.\n\
        - A request that another replica forwards does not count, because that replica has the whole message.\n\n\
        ## Rates over sessions and replicas\n\n\
        - A rate of a principal covers all its sessions, connections, wires and keys.\n\
        - Replicas share rates through Redis. Each replica reserves a small part in advance and reports its use, so that no request waits for Redis. Three replicas together admit the same number of requests as one, within 2 in 100 over ten seconds.\n\
        - A single replica admits its share of a burst at once, and the rest within milliseconds.\n\
        - Without Redis each replica admits its share, by the number of leases in the database. While a configured Redis is \
        unavailable, `limits.without_redis` decides.\n\n\
        ## Sessions, calls and connections over replicas\n\n\
        `sessions_per_tenant`, `sessions_per_principal`, `calls_in_flight_per_tenant` and `connections_per_tenant` apply across all replicas that share a Redis. All other limits, except for rates, count on each replica.\n\n\
        - A replica takes permits in Redis before it uses them, so that all replicas together never use more than the limit. A \
        call below the permits that its replica holds does not wait for Redis. A call beyond them waits for one round trip, and so \
        does each new session and connection.\n\
        - For calls, a replica reserves at most 64 permits ahead, from the opening of a session on. All replicas together reserve \
        at most an eighth of the limit. A replica requests more permits when half of its reserve is used, and calls do not wait for \
        that. A reserve returns after a minute without calls.\n\
        - A limit below eight calls for each replica leaves no reserve. A call then waits for one round trip, unless its replica \
        has just finished another one.\n\
        - A changed limit is in force on all replicas within two seconds. Open sessions, calls and connections stay open.\n\
        - A permit that one replica frees is available to the others after 200 ms at the latest. A replica returns \
        a reserve that is more than its part within two seconds. With eight replicas and more, \
        this takes a second for each four of them.\n\
        - The permits of a replica that was killed are free after three seconds.\n\
        - A session that moves to another replica is never refused. It counts there, so a limit can be exceeded by the sessions \
        that move from a killed replica after its three seconds. The broker admits new ones only below the limit.\n\
        - A replica reports all its permits again after Redis lost its data, within one second. Until then the limit can be \
        exceeded by the permits that were not reported yet. The same applies to a replica that was frozen for more than three seconds.\n\
        - A WebSocket connection that is resumed through another replica counts at both.\n\
        - While a configured Redis is unavailable, `limits.without_redis` decides. With `local_share` each replica admits its \
        share, and at least one. Open sessions, calls and connections stay open, so N replicas can exceed a limit by (N - 1)/N of it. With `unlimited` \
        each replica admits the whole limit. With `refuse` each replica uses only its reserved permits.\n\
        - `mcp_rates_shared` is 0 during this time, and the log has one line for each change. When Redis is back, the replicas report their usage.\n\
        - Without Redis each replica admits its share, and at least one, by the number of leases in the database. One process \
        admits the whole limit.\n\n\
        ## Limits of a tenant or a backend\n\n\
        The defaults of `limits` apply to every tenant. The record of a tenant can set its own rates, sessions, calls and \
        connections, and the profile of message sizes for its clients (`message_profile`). The body of a backend has `limits` too: \
        `requests_per_second`, `burst`, `requests_per_second_per_tool`, `burst_per_tool`, and `tools` with rates of single tools:\n\n\
        ```json\n\
        {{\"requests_per_second\": 50, \"burst\": 100, \"tools\": {{\"search\": {{\"requests_per_second\": 2, \"burst\": 5}}}}}}\n\
        ```\n\n\
        `limits` of a backend also has `calls_in_flight`, `calls_queued`, `adaptive_concurrency` and `message_profile`.\n\n\
        ## Stored objects\n\n\
        | object | limit | beyond it |\n\
        | --- | --- | --- |\n\
        | tenants | {TENANTS_MAX} | 409 `too-many` |\n\
        | API keys of a tenant | {KEYS_PER_TENANT_MAX} | 409 `too-many` |\n\
        | backends of a tenant that the admin API stored; the configuration file has no limit | {BACKENDS_PER_TENANT_MAX} | 409 `too-many` |\n\
        | toolsets of a tenant | {TOOLSETS_PER_TENANT_MAX} | 409 `too-many` |\n\
        | hosted prompts of a tenant | {HOSTED_PROMPTS_PER_TENANT_MAX} | 409 `too-many` |\n\
        | operators that the admin API stored | {OPERATORS_MAX} | 409 `too-many` |\n\
        | operators of the configuration file | {DECLARED_OPERATORS_MAX} | the configuration is refused |\n\
        | revocations of a tenant | {REVOCATIONS_MAX} | 409 `too-many` |\n\
        | rules of an access policy | {POLICY_RULES_MAX} | 422 `invalid-policy` |\n\n\
        ## Settings\n\n{}\n\
        ## Fixed limits\n\n\
        These limits have no setting. The module `limits` of the source defines them.\n\n{}",
        settings(),
        fixed_limits(),
    );
    assert_current("limits.md", &text);
}
