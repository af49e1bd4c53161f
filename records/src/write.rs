//! Every change of sessions and tasks as a value, so that many of them can share one transaction.
//!
//! A write of an owner contains the epoch under which it owns the row. A write with an older epoch
//! changes nothing, because its sender lost the row to another replica. The store sets all times,
//! so the clocks of replicas need not agree.

use std::time::Duration;

use protocol::ids::TaskId;

use crate::{
    NodeName, SessionKey, SessionRecord, SubscriptionRecord, TaskLimit, TaskLimits, TaskRecord,
    TaskStatus, TaskStep,
};

/// One change. A batch contains at most one change for the same [`RowKey`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteOp {
    /// Creates a session, owned by `owner` under epoch 1. The same owner may repeat it if the
    /// outcome was lost.
    OpenSession {
        record: Box<SessionRecord>,
        owner: NodeName,
    },
    /// Replaces the given fields. `idle` is the time since the client was last heard from.
    UpdateSession {
        key: SessionKey,
        epoch: i64,
        idle: Duration,
        state: Option<Vec<u8>>,
        links: Option<Vec<u8>>,
    },
    /// Replaces the given fields and releases the session. The next claimant may own it, and later
    /// writes under this epoch are fenced.
    ReleaseSession {
        key: SessionKey,
        epoch: i64,
        idle: Duration,
        state: Vec<u8>,
        links: Vec<u8>,
    },
    /// Removes a session with its subscriptions.
    EndSession {
        key: SessionKey,
        epoch: i64,
    },
    Subscribe {
        key: SessionKey,
        epoch: i64,
        subscription: SubscriptionRecord,
    },
    Unsubscribe {
        key: SessionKey,
        epoch: i64,
        exposed_uri: String,
    },
    /// Creates a task, `working`, owned by `owner` under epoch 1, revision 1. Returns
    /// [`WriteOutcome::Duplicate`] when its idempotency key is taken. The same owner may repeat it
    /// if the outcome was lost, and the task is counted once.
    CreateTask {
        record: Box<TaskRecord>,
        owner: NodeName,
        limits: TaskLimits,
    },
    AdvanceTask {
        task: TaskId,
        epoch: i64,
        step: TaskStep,
    },
    /// Ends an unfinished task and closes its inputs. A write with an epoch is the owner's. A write
    /// without an epoch is a cancellation by any caller.
    EndTask {
        task: TaskId,
        epoch: Option<i64>,
        status: TaskStatus,
        message: Option<String>,
        outcome: Option<Vec<u8>>,
    },
    /// Releases a task. Any replica may continue it, and later writes under this epoch are fenced.
    ReleaseTask {
        task: TaskId,
        epoch: i64,
    },
    /// Adds an input that the task needs from its client. The task becomes `input_required`. May be
    /// repeated if the outcome was lost. The bytes of an input count for its tenant until the input
    /// is closed. `bytes_max` is [`TaskLimits::bytes`] of the tenant.
    RequestInput {
        task: TaskId,
        epoch: i64,
        number: i64,
        request: Vec<u8>,
        bytes_max: u64,
    },
    /// Stores the client's answer, from any replica. The first answer counts. Its bytes count as
    /// those of the input do.
    AnswerInput {
        task: TaskId,
        number: i64,
        answer: Vec<u8>,
        bytes_max: u64,
    },
    /// Closes an input, because the owner has taken the answer or no longer needs it. After the
    /// last open input the task is `working` again.
    CloseInput {
        task: TaskId,
        epoch: i64,
        number: i64,
    },
}

/// The row that a write changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RowKey<'a> {
    Session(&'a SessionKey),
    Task(&'a TaskId),
}

/// Result of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteOutcome {
    Done,
    /// A task was created at this time, by the store's clock.
    Created {
        at_us: i64,
    },
    /// The row has another owner now, or is gone.
    Fenced,
    /// The task is already finished, or the input already answered. Nothing was changed.
    AlreadyFinished,
    /// The row does not exist.
    NotFound,
    /// An earlier task with the same idempotency key.
    Duplicate(TaskId),
    /// The tenant has reached this limit.
    LimitReached(TaskLimit),
}

impl WriteOp {
    pub fn row_key(&self) -> RowKey<'_> {
        match self {
            Self::OpenSession { record, .. } => RowKey::Session(&record.key),
            Self::UpdateSession { key, .. }
            | Self::ReleaseSession { key, .. }
            | Self::EndSession { key, .. }
            | Self::Subscribe { key, .. }
            | Self::Unsubscribe { key, .. } => RowKey::Session(key),
            Self::CreateTask { record, .. } => RowKey::Task(&record.task),
            Self::AdvanceTask { task, .. }
            | Self::EndTask { task, .. }
            | Self::ReleaseTask { task, .. }
            | Self::RequestInput { task, .. }
            | Self::AnswerInput { task, .. }
            | Self::CloseInput { task, .. } => RowKey::Task(task),
        }
    }
}
