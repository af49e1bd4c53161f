//! Outcome of a task's run. The work returns it, and the runner stores it.

use protocol::{envelope::Message, error::Refusal};
use rules::{approvals::ApprovalNotice, tasks::BackendTask};

use super::run::StopReason;

/// Outcome of a run.
#[derive(Debug)]
pub(super) enum RunOutcome {
    /// The backend's answer, and the last state of its own task, if it had one.
    Answered(Message, Option<BackendTask>),
    /// An answer that is in the client's terms already.
    Translated(Message),
    Refused(Refusal),
    /// The call was not sent, because it lacked the approval of a person.
    NotApproved(ApprovalNotice),
    /// The backend cancelled its own task.
    CancelledByBackend,
    TimedOut,
    Stopped(StopReason),
}
