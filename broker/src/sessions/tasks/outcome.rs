//! How the run of a task ends: said by whoever carries it out, settled by the runner.

use protocol::{envelope::Message, error::Refusal};

use super::run::StopReason;
use crate::rules::tasks::BackendTask;

/// How a run ended.
#[derive(Debug)]
pub(super) enum RunOutcome {
    /// With the backend's answer, and what it said of its own task, if it had one.
    Answered(Message, Option<BackendTask>),
    /// With an answer that is in the client's terms already.
    Translated(Message),
    Refused(Refusal),
    /// The backend gave up its own task.
    CancelledByBackend,
    TimedOut,
    Stopped(StopReason),
}
