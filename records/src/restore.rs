//! What ended in a database that was restored from an older copy.

/// Numbers of rows that must not continue as the copy has them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RestoreSummary {
    /// Sessions that are gone.
    pub sessions: u64,
    /// Unfinished tasks. Their calls count as sent.
    pub tasks: u64,
    /// Approvals and windows that permit no call any more.
    pub approvals: u64,
}
