//! Tasks as rows: the client's request, the progress of the call, and the outcome.

use std::time::Duration;

use protocol::ids::{BackendId, PrincipalId, TaskId, TenantId};

use crate::{NodeName, SessionKey, named::named};

named! {
    /// MCP 2025-11-25, Tasks: task status.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum TaskStatus {
        Working = "working",
        InputRequired = "input_required",
        Completed = "completed",
        Failed = "failed",
        Cancelled = "cancelled",
    }
}

impl TaskStatus {
    /// Returns true if the task can no longer change.
    pub const fn is_finished(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }
}

/// Progress of the call behind a task. It decides what another process may do after this one died.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskStep {
    /// Nothing was sent. The task's owner sends it.
    Queued,
    /// The call was sent, or may have been. It is repeated only if the tool declares that repeating
    /// is harmless.
    Sent,
    /// The backend created its own task, whose outcome the broker can request.
    Delegated {
        /// The backend's id of the task.
        backend_task: String,
        /// Data for reaching the backend's session again, sealed.
        link: Vec<u8>,
    },
}

/// A client's request for a task. Never changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskRecord {
    pub task: TaskId,
    pub tenant: TenantId,
    pub principal: PrincipalId,
    /// The session that created it.
    pub session: SessionKey,
    /// True if only that session may see the task, because its client has no identity.
    pub private: bool,
    pub backend: BackendId,
    /// The call to send.
    pub request: Vec<u8>,
    /// Further data that the broker needs to carry it out. Opaque here.
    pub details: Vec<u8>,
    /// Key under which a repeated request finds the task again. Unique for a principal.
    pub idempotency: Option<Vec<u8>>,
    /// Time from creation after which the task is deleted, or `None` to keep it.
    pub ttl: Option<Duration>,
}

/// State of a task. A read of the state alone leaves long fields empty: `request` of the record, and
/// the `link` of a delegated step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredTask {
    pub record: TaskRecord,
    pub status: TaskStatus,
    /// Text for people.
    pub message: Option<String>,
    pub step: TaskStep,
    pub owner: Option<NodeName>,
    pub created_at_us: i64,
    /// Time of the last change of status.
    pub updated_at_us: i64,
    /// Grows with each owner.
    pub epoch: i64,
    /// Grows with each transition.
    pub revision: i64,
}

/// A task with all the data for carrying it out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FullTask {
    pub stored: StoredTask,
    /// Time left by the store's clock, or `None` without a limit.
    pub remaining_ttl: Option<Duration>,
}

/// State of a task, for callers that wait for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredTaskSnapshot {
    pub stored: StoredTask,
    pub inputs: InputCounts,
}

/// Counts of a task's inputs that are not closed. Two equal values mean that no input changed
/// between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InputCounts {
    pub newest: i64,
    pub open: u64,
    pub answered: u64,
}

/// One line of a task's history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskTransition {
    pub revision: i64,
    pub to: TaskStatus,
    pub at_us: i64,
    /// The epoch of the owner that made it. `None` for a change by a caller without ownership, such
    /// as a cancellation.
    pub epoch: Option<i64>,
}

/// A request of the backend to the client, without whose answer the task cannot continue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskInput {
    /// Number of the input within its task. Never used again there.
    pub number: i64,
    /// The request to the client, without an id.
    pub request: Vec<u8>,
    /// The client's answer: a JSON-RPC response without its id.
    pub answer: Option<Vec<u8>>,
}

/// Viewer of tasks: decides which tasks are visible.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskAudience {
    pub tenant: TenantId,
    pub principal: PrincipalId,
    /// Private tasks are visible to this session only.
    pub session: SessionKey,
}

impl TaskAudience {
    pub fn may_see(&self, record: &TaskRecord) -> bool {
        record.tenant == self.tenant
            && record.principal == self.principal
            && (!record.private || record.session == self.session)
    }
}

/// Limits of one tenant. A task counts with the bytes of its request, its details, its open inputs
/// with their answers, and its outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskLimits {
    pub running: u64,
    pub stored: u64,
    pub bytes: u64,
}

/// The tasks that a node may claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskClaimScope {
    /// Tasks that their owners released.
    Released,
    /// Released tasks, and tasks whose owners have no valid lease.
    Unowned,
}

/// The one of the [`TaskLimits`] that is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskLimit {
    Running,
    Stored,
    Bytes,
}

/// A position in a list of tasks, which are ordered by creation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskListPosition {
    pub created_at_us: i64,
    pub task: TaskId,
}
