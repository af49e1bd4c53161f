//! The host of tasks, as the sessions below it know it.

use std::{fmt, pin::Pin, sync::Arc};

use protocol::{
    envelope::Message,
    error::Refusal,
    ids::{RequestId, TaskId},
};

use super::{
    session::{Reply, Session},
    stream::EventStream,
};
use crate::rules::routing::{Plan, TaskTarget};

/// What a request for the host of tasks resolves to: the answer.
pub type TaskReply = Pin<Box<dyn Future<Output = Result<Reply, Refusal>> + Send>>;

/// A call that is to be a task.
#[derive(Debug)]
pub struct NewTask {
    pub message: Message,
    /// As the client numbered it.
    pub id: RequestId,
    pub plan: Plan,
    pub target: TaskTarget,
}

/// Takes requests that need the tasks of this process.
pub trait TaskHost: fmt::Debug + Send + Sync {
    /// Makes a task of a call.
    fn create(self: Arc<Self>, session: Arc<Session>, task: NewTask) -> TaskReply;

    /// Cancelled is what the record says before the client hears of it; that the work stops is seen to afterwards.
    fn cancel(self: Arc<Self>, session: Arc<Session>, task: TaskId) -> TaskReply;

    /// Blocks until the task is over. `stream`: where the client is asked what the task needs.
    fn outcome(
        self: Arc<Self>,
        session: Arc<Session>,
        task: TaskId,
        id: RequestId,
        stream: Arc<EventStream>,
    ) -> TaskReply;
}
