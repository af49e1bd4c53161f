//! Tasks as rows: what a client asked for, how far the call behind it has got, and how it ended.

use std::time::Duration;

use async_trait::async_trait;
use protocol::ids::{BackendId, PrincipalId, TaskId, TenantId};

use crate::{NodeName, SessionKey, StoreError};

/// MCP 2025-11-25, Tasks: task status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TaskStatus {
    Working,
    InputRequired,
    Completed,
    Failed,
    Cancelled,
}

impl TaskStatus {
    pub const ALL: [Self; 5] =
        [Self::Working, Self::InputRequired, Self::Completed, Self::Failed, Self::Cancelled];

    /// As it is on the wire and in the database.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Working => "working",
            Self::InputRequired => "input_required",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.name() == text)
    }

    /// Such a task never changes again.
    pub const fn is_finished(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }
}

/// How far the call behind a task has got; decides what another process may do after this one died.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskStep {
    /// Nothing was sent: whoever owns the task sends it.
    Queued,
    /// It was sent, or may have been: repeated only where the tool says that repeating is harmless.
    Sent,
    /// The backend made a task of its own, whose outcome can be asked for.
    Delegated {
        /// The backend's id of it.
        backend_task: String,
        /// What it takes to reach the backend's session again, sealed.
        link: Vec<u8>,
    },
}

/// What a client asked for. Never changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskRecord {
    pub task: TaskId,
    pub tenant: TenantId,
    pub principal: PrincipalId,
    /// The session that made it.
    pub session: SessionKey,
    /// Only that session may see it: nobody said who its client is.
    pub private: bool,
    pub backend: BackendId,
    /// The call, as it is to be sent.
    pub request: Vec<u8>,
    /// What else the broker needs to carry it out; opaque here.
    pub details: Vec<u8>,
    /// Finds the task again when its client repeats the request. Unique for a principal.
    pub idempotency: Option<Vec<u8>>,
    /// Time from creation after which it is deleted; `None`: never.
    pub ttl: Option<Duration>,
}

/// A task as it stands. Where the store was asked for how it stands only, and not for what it takes to carry it out, `request`
/// and `details` of the record and the `link` of a mirrored step are empty: they may be long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredTask {
    pub record: TaskRecord,
    pub status: TaskStatus,
    /// For people.
    pub message: Option<String>,
    pub step: TaskStep,
    pub owner: Option<NodeName>,
    pub created_at_us: i64,
    /// When it last changed its status.
    pub updated_at_us: i64,
    /// Grows with each owner.
    pub epoch: i64,
    /// Grows with each transition.
    pub revision: i64,
}

/// A task with all it takes to carry it out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FullTask {
    pub stored: StoredTask,
    /// How long it still has, by the store's clock; `None`: for ever.
    pub left: Option<Duration>,
}

/// How a task stands, for whoever waits for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredTaskSnapshot {
    pub stored: StoredTask,
    pub inputs: InputCounts,
}

/// What there is of a task's questions to its client that are not closed. Two looks are equal where nothing happened to them.
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
    /// The epoch under which it was made; `None`: by somebody who does not own the task, such as a cancellation.
    pub epoch: Option<i64>,
}

/// Something the backend needs from the client before the task can go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskInput {
    /// Names it within its task; never used again there.
    pub number: i64,
    /// The request to the client, without an id.
    pub request: Vec<u8>,
    /// The client's answer: a JSON-RPC response without its id.
    pub answer: Option<Vec<u8>>,
}

/// Whose tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskAudience {
    pub tenant: TenantId,
    pub principal: PrincipalId,
    /// Private tasks are shown to this session only.
    pub session: SessionKey,
}

impl TaskAudience {
    pub fn may_see(&self, record: &TaskRecord) -> bool {
        record.tenant == self.tenant
            && record.principal == self.principal
            && (!record.private || record.session == self.session)
    }
}

/// What one tenant may have. A task counts with the bytes of its request, its details and its outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskLimits {
    pub running: u64,
    pub stored: u64,
    pub bytes: u64,
}

/// Which of the [`TaskLimits`] is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskLimit {
    Running,
    Stored,
    Bytes,
}

/// A place in a list of tasks, which are ordered by creation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskListPosition {
    pub created_at_us: i64,
    pub task: TaskId,
}

/// Claims and reads tasks. Their owners change them by [`DurableStore::write`](crate::DurableStore::write).
#[async_trait]
pub trait TaskStore: Send + Sync {
    /// Returns the state of a task, without what its owner needs to carry it out.
    async fn task(&self, task: &TaskId) -> Result<Option<StoredTask>, StoreError>;

    /// Returns the states of many tasks, in no order. Tasks that do not exist are left out.
    async fn task_snapshots(&self, tasks: &[TaskId])
    -> Result<Vec<StoredTaskSnapshot>, StoreError>;

    /// Returns everything about a task except for its outcome.
    async fn full_task(&self, task: &TaskId) -> Result<Option<FullTask>, StoreError>;

    /// Returns how a task ended; `None` while it runs.
    async fn task_outcome(&self, task: &TaskId) -> Result<Option<Vec<u8>>, StoreError>;

    /// Returns a page of the tasks that this audience may see, oldest first.
    async fn tasks_visible_to(
        &self,
        audience: &TaskAudience,
        after: Option<&TaskListPosition>,
        limit: u32,
    ) -> Result<Vec<StoredTask>, StoreError>;

    /// Returns a page of tasks for operators, oldest first.
    async fn list_tasks(
        &self,
        tenant: Option<&TenantId>,
        status: Option<TaskStatus>,
        after: Option<&TaskListPosition>,
        limit: u32,
    ) -> Result<Vec<StoredTask>, StoreError>;

    /// Makes `node` the owner of up to `limit` unfinished tasks whose owners' leases have lapsed, and returns them, oldest first.
    /// It never returns tasks that `node` owns already, because they run there, whatever became of its lease. It never
    /// returns any of `except`, which `node` cannot carry out. If the answer to a call is lost, the first call after its
    /// commit returns its tasks.
    async fn claim_tasks(
        &self,
        node: &NodeName,
        limit: u32,
        except: &[TaskId],
    ) -> Result<Vec<FullTask>, StoreError>;

    /// Returns the unfinished tasks that any of these nodes owns.
    async fn unfinished_tasks_of(&self, nodes: &[NodeName]) -> Result<Vec<TaskId>, StoreError>;

    /// Returns the inputs of a task that are not closed, by number: the task waits for them, or has not taken them yet.
    async fn open_task_inputs(&self, task: &TaskId) -> Result<Vec<TaskInput>, StoreError>;

    /// Returns the transitions of a task, oldest first.
    async fn task_transitions(&self, task: &TaskId) -> Result<Vec<TaskTransition>, StoreError>;

    /// Deletes up to `limit` tasks whose time is over, whatever their status, and returns their ids.
    async fn expire_tasks(&self, limit: u32) -> Result<Vec<TaskId>, StoreError>;

    /// Counts the tasks in each status, in the order of [`TaskStatus::ALL`].
    async fn task_counts(&self) -> Result<Vec<(TaskStatus, u64)>, StoreError>;
}
