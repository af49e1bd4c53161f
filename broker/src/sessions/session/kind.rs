//! The use of a session: by one client, or by stateless requests of several clients.

/// Use of a session.
#[derive(Debug, Clone, Copy)]
pub enum SessionKind {
    /// One client, which has the id.
    Client,
    /// Stateless requests of several clients. The session is not stored, and its clients cannot
    /// resume streams.
    Pooled(TaskAcceptance),
}

impl SessionKind {
    /// Returns whether a client has the id of the session.
    pub fn has_client(self) -> bool {
        matches!(self, Self::Client)
    }

    pub fn accepts_tasks(self) -> bool {
        matches!(self, Self::Pooled(TaskAcceptance::Accepted))
    }
}

/// Whether a client accepts a task as the answer to its call (MCP 2026-07-28, Tasks).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskAcceptance {
    Accepted,
    Declined,
}

impl TaskAcceptance {
    pub fn of(accepts: bool) -> Self {
        match accepts {
            true => Self::Accepted,
            false => Self::Declined,
        }
    }
}
