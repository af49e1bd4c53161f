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
