//! What a client without a session asks about tasks (MCP 2026-07-28, extension of tasks). All from the store, so any replica
//! answers, for whoever is the same principal of the same tenant; a task of anybody else is answered like one that never was.

use bytes::Bytes;
use protocol::{
    envelope::Message,
    error::{ErrorKind, Refusal},
    method::Method,
    stateless::{inputs::InputResponses, results},
};

use super::{StatelessClient, StatelessRequest};
use crate::{
    persistence::{
        StoredTask, TaskAudience, TaskInput, TaskStatus, Wakeup, WriteOp, WriteOutcome, fault_point,
    },
    rules::stateless_tasks::{self, NO_SESSION, TaskReport},
    sessions::tasks::{load_visible, named_task},
};

/// Whether it is one of the requests of the extension.
pub fn is_about_tasks(method: Method) -> bool {
    matches!(method, Method::TasksGet | Method::TasksUpdate | Method::TasksCancel)
}

/// A task, with what belongs to how it stands.
pub(super) struct LoadedTask {
    pub(super) task: StoredTask,
    outcome: Option<Vec<u8>>,
    pub(super) inputs: Vec<TaskInput>,
}

impl LoadedTask {
    pub(super) fn standing(&self) -> TaskReport<'_> {
        TaskReport { task: &self.task, outcome: self.outcome.as_deref(), inputs: &self.inputs }
    }
}

impl StatelessClient {
    /// The whole answer to a request about a task.
    pub async fn answer_about_task(&self, request: &StatelessRequest) -> Result<Bytes, Refusal> {
        let absent = || Refusal::new(ErrorKind::MethodNotFound, "tasks are not offered here");
        let server_info = self.stateless.tasks_offered_by(self).ok_or_else(absent)?;
        let members = self.about_task(request).await?;
        Ok(results::complete_response(&request.id, &members, None, &server_info))
    }

    async fn about_task(&self, request: &StatelessRequest) -> Result<Vec<u8>, Refusal> {
        let method = request.message.method;
        if !request.meta.tasks {
            return Err(stateless_tasks::not_declared(
                "tasks are for requests that declare their extension",
            ));
        }
        let task =
            load_visible(&self.shared, &self.audience(), &named_task(&request.message)?).await?;
        match method {
            Method::TasksGet => {
                let seen = self.seen(task).await?;
                Ok(seen.standing().members(self.shared.task_settings().poll_interval).into_bytes())
            }
            // What is over stays as it is, and the answer is the same (same extension, Task Cancellation).
            Method::TasksCancel if task.status.is_finished() => Ok(Vec::new()),
            Method::TasksCancel => self.tasks.cancel_stored(&task).await.map(|_| Vec::new()),
            _ => self.update(&task, &request.message).await.map(|()| Vec::new()),
        }
    }

    pub(super) fn audience(&self) -> TaskAudience {
        TaskAudience {
            tenant: self.tenant.id.clone(),
            principal: self.caller.principal.clone(),
            session: NO_SESSION,
        }
    }

    /// What is to be shown of it.
    pub(super) async fn seen(&self, task: StoredTask) -> Result<LoadedTask, Refusal> {
        let (durable, id) = (&self.shared.durable, &task.record.task);
        let (mut outcome, mut inputs) = (None, Vec::new());
        match task.status {
            TaskStatus::Completed | TaskStatus::Failed => {
                outcome = durable.timed("task_outcome", durable.store.task_outcome(id)).await?
            }
            TaskStatus::InputRequired => {
                inputs = durable.timed("task_inputs", durable.store.open_task_inputs(id)).await?
            }
            TaskStatus::Working | TaskStatus::Cancelled => {}
        }
        Ok(LoadedTask { task, outcome, inputs })
    }

    /// Stores what the client answers to what the task needs: all of it before it is acknowledged. The first answer to each
    /// counts, so that to say it again does no harm.
    async fn update(&self, task: &StoredTask, message: &Message) -> Result<(), Refusal> {
        if message.fields.input_responses.is_none() {
            return Err(Refusal::new(ErrorKind::InvalidParams, "params.inputResponses is missing"));
        }
        let (durable, id) = (&self.shared.durable, &task.record.task);
        let responses = InputResponses::parse(message)?;
        if task.status != TaskStatus::InputRequired || responses.answers.is_empty() {
            return Ok(());
        }
        let inputs = durable.timed("task_inputs", durable.store.open_task_inputs(id)).await?;
        let mut stored = false;
        for (number, answer) in stateless_tasks::answers(&inputs, &responses)? {
            match durable.write(WriteOp::AnswerInput { task: id.clone(), number, answer }).await? {
                WriteOutcome::Done => stored = true,
                _ => self.shared.metrics.dropped_answer("late"),
            }
        }
        if stored {
            fault_point::passed("task.input.answered");
            durable.hot.wake(Wakeup::Task { task: id.clone(), session: task.record.session });
        }
        Ok(())
    }
}
