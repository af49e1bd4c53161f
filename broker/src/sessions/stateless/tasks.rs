//! Requests of stateless clients about tasks (MCP 2026-07-28, extension of tasks). They use only
//! the store, so any replica answers, for the same principal of the same tenant. A task of another
//! client gets the same answer as a task that never existed.

use bytes::Bytes;
use protocol::{
    envelope::Message,
    error::{ErrorKind, Refusal},
    method::Method,
    stateless::{inputs::InputResponses, results},
};
use records::{StoredTask, TaskAudience, TaskInput, TaskStatus, WriteOp, WriteOutcome};
use rules::{
    catalog::TaskSupport,
    endpoint_info::EndpointInfo,
    routing,
    stateless_tasks::{self, NO_SESSION, TaskReport},
    tasks,
};

use super::{StatelessClient, StatelessRequest};
use crate::{
    persistence::{Wakeup, fault_point},
    sessions::{
        access_log::CheckAttempt,
        task_limits::task_limit_refusal,
        tasks::{load_visible, named_task},
    },
};

/// Returns whether the method belongs to the extension.
pub fn is_about_tasks(method: Method) -> bool {
    matches!(method, Method::TasksGet | Method::TasksUpdate | Method::TasksCancel)
}

/// A task with the parts that its status needs.
pub(super) struct LoadedTask {
    pub(super) task: StoredTask,
    outcome: Option<Vec<u8>>,
    pub(super) inputs: Vec<TaskInput>,
}

impl LoadedTask {
    pub(super) fn report<'a>(&'a self, request_id: &'a str) -> TaskReport<'a> {
        let outcome = self.outcome.as_deref();
        TaskReport { task: &self.task, outcome, inputs: &self.inputs, request_id }
    }
}

impl StatelessClient {
    /// Returns the whole answer to a request about a task.
    pub async fn answer_about_task(&self, request: &StatelessRequest) -> Result<Bytes, Refusal> {
        let absent =
            || Refusal::new(ErrorKind::MethodNotFound, "this endpoint does not offer tasks");
        let server_info = self.stateless.tasks_offered_by(self).ok_or_else(absent)?;
        let members = self.about_task(request).await?;
        Ok(results::complete_response(&request.id, &members, None, &server_info))
    }

    /// Returns whether the call is a task from its start. The request must declare tasks. In
    /// addition its tool only runs as a task, or it waits for the approval of a person, or the
    /// request has an idempotency key. The key lets the client repeat the call.
    pub(super) fn shall_be_a_task(
        &self,
        request: &StatelessRequest,
        offer: &EndpointInfo,
    ) -> Result<bool, Refusal> {
        let message = &request.message;
        if message.method != Method::ToolsCall {
            return Ok(false);
        }
        let support = routing::task_support(message, &self.endpoint, &self.visible_catalog());
        let offered = offer.capabilities.tasks_tools_call;
        if offered && !request.meta.tasks && support == Some(TaskSupport::Required) {
            return Err(stateless_tasks::extension_required(
                "this tool runs only as a task, but the request does not declare the tasks extension",
            ));
        }
        if !offered || !request.meta.tasks || support == Some(TaskSupport::Forbidden) {
            return Ok(false);
        }
        Ok(support == Some(TaskSupport::Required)
            || tasks::idempotency_key(message)?.is_some()
            || self.needs_approval(message))
    }

    async fn about_task(&self, request: &StatelessRequest) -> Result<Vec<u8>, Refusal> {
        let method = request.message.method;
        if !request.meta.tasks {
            return Err(stateless_tasks::extension_required(
                "requests about tasks must declare the tasks extension",
            ));
        }
        let task = load_visible(
            &self.tenant,
            &self.audience(),
            &self.caller.subject,
            &named_task(&request.message)?,
            CheckAttempt::First,
        )
        .await?;
        match method {
            Method::TasksGet => {
                let (seen, request_id) = (self.seen(task).await?, crate::request_id());
                let poll_interval = self.shared.task_settings().poll_interval;
                Ok(seen.report(&request_id).members(poll_interval).into_bytes())
            }
            // A finished task stays as it is, and the answer is the same (same extension, Task
            // Cancellation).
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

    /// Loads the parts of a task that its status needs.
    pub(super) async fn seen(&self, task: StoredTask) -> Result<LoadedTask, Refusal> {
        let (persistence, id) = (&self.shared.persistence, &task.record.task);
        let (mut outcome, mut inputs) = (None, Vec::new());
        match task.status {
            TaskStatus::Completed | TaskStatus::Failed => {
                outcome = persistence
                    .timed("get_task_outcome", persistence.store.task_outcome(id))
                    .await?
            }
            TaskStatus::InputRequired => {
                inputs = persistence
                    .timed("list_task_inputs", persistence.store.open_task_inputs(id))
                    .await?
            }
            TaskStatus::Working | TaskStatus::Cancelled => {}
        }
        Ok(LoadedTask { task, outcome, inputs })
    }

    /// Stores the client's answers to a task's questions, before they are acknowledged. The first
    /// answer to each counts, so a repetition is harmless.
    async fn update(&self, task: &StoredTask, message: &Message) -> Result<(), Refusal> {
        if message.fields.input_responses.is_none() {
            return Err(Refusal::new(ErrorKind::InvalidParams, "params.inputResponses is missing"));
        }
        let (persistence, id) = (&self.shared.persistence, &task.record.task);
        let responses = InputResponses::parse(message)?;
        if task.status != TaskStatus::InputRequired || responses.answers.is_empty() {
            return Ok(());
        }
        let inputs =
            persistence.timed("list_task_inputs", persistence.store.open_task_inputs(id)).await?;
        let mut stored = false;
        let mut outcome = Ok(());
        let settings = self.shared.task_settings();
        let bytes_max = settings.bytes_per_tenant as u64;
        for (number, answer) in stateless_tasks::match_answers(&inputs, &responses)? {
            let task = id.clone();
            let write = WriteOp::AnswerInput { task, number, answer, bytes_max };
            match persistence.write(write).await {
                Ok(WriteOutcome::Done) => stored = true,
                Ok(WriteOutcome::LimitReached(limit)) => {
                    outcome = Err(task_limit_refusal(limit, settings));
                    break;
                }
                Ok(_) => self.shared.metrics.dropped_answer("late"),
                Err(refusal) => {
                    outcome = Err(refusal);
                    break;
                }
            }
        }
        // Answers that were stored before a failure count, so they are announced.
        if stored {
            fault_point::hit("task.input.answered");
            persistence
                .hot
                .publish(Wakeup::Task { task: id.clone(), session: task.record.session });
        }
        outcome
    }
}
