//! The task manager as sessions know it.

use std::sync::Arc;

use protocol::ids::{RequestId, TaskId};

use super::TaskManager;
use crate::sessions::{
    session::Session,
    stream::EventStream,
    task_host::{NewTask, TaskReply, TaskService},
};

impl TaskService for TaskManager {
    fn create(self: Arc<Self>, session: Arc<Session>, task: NewTask) -> TaskReply {
        Box::pin(session.create_task(self, task))
    }

    fn cancel(self: Arc<Self>, session: Arc<Session>, task: TaskId) -> TaskReply {
        Box::pin(session.cancel_task(self, task))
    }

    fn outcome(
        self: Arc<Self>,
        session: Arc<Session>,
        task: TaskId,
        id: RequestId,
        stream: Arc<EventStream>,
    ) -> TaskReply {
        Box::pin(session.task_result(self, task, id, stream))
    }
}
