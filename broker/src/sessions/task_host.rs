//! The host of tasks, as sessions know it. The task manager implements the trait.

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

/// The answer to a request, once the host of tasks has it.
pub type TaskReply = Pin<Box<dyn Future<Output = Result<Reply, Refusal>> + Send>>;

/// A call that is to be a task.
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
    /// Makes a task of a call.
    fn create(self: Arc<Self>, session: Arc<Session>, task: NewTask) -> TaskReply;

    /// Cancels a task. The record says so before the client gets the answer.
    fn cancel(self: Arc<Self>, session: Arc<Session>, task: TaskId) -> TaskReply;

    /// Waits for the outcome of a task. On `stream` the client is asked what the task needs.
    fn outcome(
        self: Arc<Self>,
        session: Arc<Session>,
        task: TaskId,
        id: RequestId,
        stream: Arc<EventStream>,
    ) -> TaskReply;
}
