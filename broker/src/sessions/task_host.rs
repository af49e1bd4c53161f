//! The host of tasks, as sessions see it. The task manager implements the trait.

use std::{fmt, pin::Pin, sync::Arc};

use protocol::{
    envelope::Message,
    error::Refusal,
    ids::{RequestId, TaskId},
};
use rules::routing::{Plan, TaskTarget};

use super::{
    session::{Reply, Session},
    stream::EventStream,
};

/// The answer to a request about tasks.
pub type TaskReply = Pin<Box<dyn Future<Output = Result<Reply, Refusal>> + Send>>;

/// A call that is to become a task.
#[derive(Debug)]
pub struct NewTask {
    pub message: Message,
    /// The id that the client gave the request.
    pub id: RequestId,
    pub plan: Plan,
    pub target: TaskTarget,
}

/// Answers requests that need the tasks of this process.
pub trait TaskService: fmt::Debug + Send + Sync {
    /// Creates a task from a call.
    fn create(self: Arc<Self>, session: Arc<Session>, task: NewTask) -> TaskReply;

    /// Cancels a task. The record shows the cancellation before the client gets the answer.
    fn cancel(self: Arc<Self>, session: Arc<Session>, task: TaskId) -> TaskReply;

    /// Waits for the outcome of a task. The task's questions go to the client on `stream`.
    fn outcome(
        self: Arc<Self>,
        session: Arc<Session>,
        task: TaskId,
        id: RequestId,
        stream: Arc<EventStream>,
    ) -> TaskReply;
}
