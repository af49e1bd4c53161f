//! Implementation of the task service of sessions by the task manager.

use std::sync::Arc;

use protocol::ids::{RequestId, TaskId};

use super::{TaskManager, creation::create_task, handlers};
use crate::sessions::{
    session::Session,
    stream::EventStream,
    task_host::{NewTask, TaskReply, TaskService},
};

impl TaskService for TaskManager {
    fn create(self: Arc<Self>, session: Arc<Session>, task: NewTask) -> TaskReply {
        Box::pin(create_task(session, self, task))
    }

    fn cancel(self: Arc<Self>, session: Arc<Session>, task: TaskId) -> TaskReply {
        Box::pin(handlers::cancel_task(session, self, task))
    }

    fn outcome(
        self: Arc<Self>,
        session: Arc<Session>,
        task: TaskId,
        id: RequestId,
        stream: Arc<EventStream>,
    ) -> TaskReply {
        Box::pin(handlers::task_result(session, self, task, id, stream))
    }
}
