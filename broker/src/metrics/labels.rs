//! Closed sets of label values.

/// Outcome of a client's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestOutcome {
    Ok,
    /// A result with `isError: true`.
    ToolError,
    /// The backend answered with a JSON-RPC error.
    Error,
    /// The broker answered with an error of its own.
    Refused,
    Cancelled,
    Timeout,
}

impl RequestOutcome {
    pub(super) const ALL: [Self; 6] =
        [Self::Ok, Self::ToolError, Self::Error, Self::Refused, Self::Cancelled, Self::Timeout];

    pub const fn label(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::ToolError => "tool_error",
            Self::Error => "error",
            Self::Refused => "refused",
            Self::Cancelled => "cancelled",
            Self::Timeout => "timeout",
        }
    }
}

/// Side of the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Client,
    Backend,
}

impl Side {
    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Backend => "backend",
        }
    }
}

/// Kinds of dropped notifications.
pub(super) const DROPPED_NOTIFICATIONS: &[&str] = &[
    "elicitation",
    "noise",
    "policy",
    "progress",
    "rate_limited",
    "repeated",
    "request",
    "slow_client",
    "task",
    "to_backend",
    "unattributed",
    "unknown",
    "updated",
];

/// Reasons of dropped answers.
pub(super) const DROPPED_ANSWERS: &[&str] = &["client_unknown_id", "late", "unknown_id"];

/// Limits that a request or a connection can reach, and the scopes of rates.
pub(super) const LIMITS_REACHED: &[&str] = &[
    "approvals",
    "backend",
    "calls_in_flight_per_session",
    "calls_in_flight_per_tenant",
    "connections",
    "connections_per_address",
    "connections_per_second_per_address",
    "connections_per_tenant",
    "descriptors",
    "logins",
    "outbox_bytes",
    "outbox_bytes_total",
    "principal",
    "quic_request_bytes",
    "sessions_per_principal",
    "sessions_per_tenant",
    "sign_in_failures",
    "tenant",
    "tool",
];

/// Those of [`LIMITS_REACHED`] by which a request of a tenant is refused.
pub(super) const TENANT_LIMITS_REACHED: [&str; 10] = [
    "approvals",
    "backend",
    "calls_in_flight_per_session",
    "calls_in_flight_per_tenant",
    "connections_per_tenant",
    "principal",
    "sessions_per_principal",
    "sessions_per_tenant",
    "tenant",
    "tool",
];

/// Transports of backends, as the `type` of their settings.
pub(super) const BACKEND_TRANSPORTS: &[&str] =
    &["http", "sse", "tcp", "websocket", "quic", "stdio"];

/// Queues that are measured.
pub(super) const QUEUES: &[&str] = &["backend_calls", "calls", "http_one_way", "persister", "pipe"];

/// Kinds of stored entries that expire.
pub(super) const EXPIRED: &[&str] =
    &["approvals", "audit", "events", "results", "sessions", "tasks"];

/// Values of `mcp_links{backend_transport}`, for the test that compares them with the settings.
#[cfg(test)]
pub(crate) const LINK_TRANSPORTS: &[&str] = BACKEND_TRANSPORTS;

/// Functions of [`super::Metrics`] that take a label value as text, and the values.
#[cfg(test)]
pub(crate) const TEXT_LABELS: [(&str, &[&str]); 5] = [
    ("dropped_notification", DROPPED_NOTIFICATIONS),
    ("dropped_answer", DROPPED_ANSWERS),
    ("rate_limited", LIMITS_REACHED),
    ("queue_depth", QUEUES),
    ("expired", EXPIRED),
];

/// Outcome of forwarding a request to another replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForwardOutcome {
    Answered,
    /// The replica is unreachable, and nothing was sent.
    Unreachable,
    /// The replica does not have the session.
    NotThere,
    /// The connection broke before the answer.
    Broken,
}

impl ForwardOutcome {
    pub(super) const ALL: [Self; 4] =
        [Self::Answered, Self::Unreachable, Self::NotThere, Self::Broken];

    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Unreachable => "unreachable",
            Self::NotThere => "not_there",
            Self::Broken => "broken",
        }
    }
}

/// Direction from the broker's view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    In,
    Out,
}

impl Direction {
    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::In => "in",
            Self::Out => "out",
        }
    }
}
