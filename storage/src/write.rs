//! Every change of sessions and tasks as a value, so that many of them can share one transaction.
//!
//! A write of an owner carries the epoch it owns the row under. One that comes with an older epoch changes nothing: its
//! sender lost the row to another replica. Times are the store's own, so replicas need not agree on the hour.

use std::time::Duration;

use protocol::ids::TaskId;

use crate::{
    NodeName, SessionKey, SessionRecord, SubscriptionRecord, TaskLimit, TaskLimits, TaskRecord,
    TaskStatus, TaskStep,
};

/// One change. At most one of a batch may be about the same [`RowKey`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteOp {
    /// A new session, owned by `owner` under epoch 1. May be repeated by the same owner, when the outcome was lost.
    OpenSession {
        record: Box<SessionRecord>,
        owner: NodeName,
    },
    /// Replaces what is given. `idle`: how long ago its client was last heard of.
    UpdateSession {
        key: SessionKey,
        epoch: i64,
        idle: Duration,
        state: Option<Vec<u8>>,
        links: Option<Vec<u8>>,
    },
    /// The same, and gives the session away: whoever is asked for it next may own it, and later writes under this epoch are
    /// fenced.
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
    /// A new task, `working`, owned by `owner` under epoch 1, revision 1. [`WriteOutcome::Duplicate`] when its idempotency key is taken.
    /// May be repeated by the same owner, when the outcome was lost; the task is then counted once.
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
    /// Ends a task, if it is not over yet, and closes its inputs. With an epoch: its owner says how; without: anybody's cancellation.
    EndTask {
        task: TaskId,
        epoch: Option<i64>,
        status: TaskStatus,
        message: Option<String>,
        outcome: Option<Vec<u8>>,
    },
    /// Gives a task away: any replica may go on with it, and later writes under this epoch are fenced.
    ReleaseTask {
        task: TaskId,
        epoch: i64,
    },
    /// The task needs something from its client: it becomes `input_required`. May be repeated, when the outcome was lost.
    RequestInput {
        task: TaskId,
        epoch: i64,
        number: i64,
        request: Vec<u8>,
    },
    /// The client's answer, from whichever replica it came to. The first one counts.
    AnswerInput {
        task: TaskId,
        number: i64,
        answer: Vec<u8>,
    },
    /// The owner has taken the answer, or no longer needs it. With the last open one the task is `working` again.
    CloseInput {
        task: TaskId,
        epoch: i64,
        number: i64,
    },
}

/// What a write is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RowKey<'a> {
    Session(&'a SessionKey),
    Task(&'a TaskId),
}

/// What became of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteOutcome {
    Done,
    /// When a task was created, by the store's clock.
    Created {
        at_us: i64,
    },
    /// The row has another owner by now, or is gone.
    Fenced,
    /// The task is over (or the input answered) already; nothing was changed.
    AlreadyFinished,
    /// There is no such row.
    NotFound,
    /// The task that was created with the same idempotency key before.
    Duplicate(TaskId),
    /// The tenant has as many as it may.
    LimitReached(TaskLimit),
}

impl WriteOp {
    pub fn row(&self) -> RowKey<'_> {
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
