//! Tasks in the words of the extension of 2026-07-28: how one is shown, what its call is answered with, and the client's
//! answers to what it needs.
//!
//! What is stored is in the words of 2025-11-25. The two differ where a tool reports an error: there its task has failed,
//! here it is completed, and `failed` is for errors of JSON-RPC alone.

use std::time::Duration;

use bytes::Bytes;
use protocol::{
    envelope::Message,
    error::{ErrorKind, Refusal},
    handshake,
    ids::RequestId,
    json,
    method::Method,
    splice::Splice,
    stateless::{
        EXTENSION_TASKS, META_SERVER_INFO, META_SUBSCRIPTION_ID,
        inputs::{InputRequest, InputResponses, requests_json},
        request::capability_required,
    },
};

use super::{
    stateless,
    tasks::{self, RELATED_TASK, iso},
};
use crate::persistence::{SessionKey, StoredTask, TaskInput, TaskStatus};

/// Stands for the session of a task that was made without one. No session has this key.
pub const NO_SESSION: SessionKey = SessionKey::new([0; 32]);

/// The refusal of who asks about tasks, or calls what only runs as one, and does not declare the extension.
pub fn not_declared(text: &str) -> Refusal {
    capability_required(
        &format!("{{\"extensions\":{{{}:{{}}}}}}", json::quote(EXTENSION_TASKS)),
        text,
    )
}

/// The result of a call that became a task: the task, flat.
pub fn created(task: &StoredTask, poll_interval: Duration) -> Bytes {
    // One that is found again may be over; what came of it is for who asks.
    format!("{{\"resultType\":\"task\",{}}}", members(task, task.status, poll_interval)).into()
}

/// How a task stands.
#[derive(Debug, Clone, Copy)]
pub struct TaskReport<'a> {
    pub task: &'a StoredTask,
    /// Of a task that is over: what is stored of its end.
    pub outcome: Option<&'a [u8]>,
    /// Of one that waits for its client: what for.
    pub inputs: &'a [TaskInput],
}

impl TaskReport<'_> {
    /// The members of the task as `tasks/get` shows it, without braces.
    pub fn members(&self, poll_interval: Duration) -> String {
        let (status, more) = match self.task.status {
            TaskStatus::Working => (TaskStatus::Working, None),
            TaskStatus::InputRequired => match open_requests(self.inputs) {
                // All of it is answered, and on its way to the backend.
                open if open.is_empty() => (TaskStatus::Working, None),
                open => (
                    TaskStatus::InputRequired,
                    Some(("inputRequests", requests_json(&open).into())),
                ),
            },
            TaskStatus::Cancelled => (TaskStatus::Cancelled, None),
            TaskStatus::Completed | TaskStatus::Failed => {
                let (status, member, body) = self.end();
                (status, Some((member, body)))
            }
        };
        let mut out = members(self.task, status, poll_interval);
        if let Some((member, body)) = more {
            out.push_str(&format!(",\"{member}\":{}", String::from_utf8_lossy(&body)));
        }
        out
    }

    /// The whole notification for the stream that the request with this id opened.
    pub fn notification(&self, subscription: &RequestId, poll_interval: Duration) -> Bytes {
        let params = format!(
            "{{{},\"_meta\":{{\"{META_SUBSCRIPTION_ID}\":{subscription}}}}}",
            self.members(poll_interval)
        );
        handshake::notification(Method::TasksNotification, Some(params.as_bytes()))
    }

    fn end(&self) -> (TaskStatus, &'static str, Bytes) {
        let outcome = self.outcome.and_then(response);
        let result = outcome
            .as_ref()
            .and_then(inlined_result)
            .map(|result| (TaskStatus::Completed, "result", result));
        let error = outcome
            .as_ref()
            .and_then(inlined_error)
            .map(|error| (TaskStatus::Failed, "error", error));
        result.or(error).unwrap_or_else(|| {
            let refusal = Refusal::new(
                ErrorKind::Internal,
                "what is stored of the task's end can not be read",
            );
            (TaskStatus::Failed, "error", refusal.to_error_json(&crate::request_id()))
        })
    }
}

/// What is stored of a task's end, as a message.
fn response(outcome: &[u8]) -> Option<Message> {
    let rest = outcome.strip_prefix(b"{")?;
    tasks::decoded(Bytes::from([b"{\"jsonrpc\":\"2.0\",\"id\":0,", rest].concat()))
}

/// As a plain call would have been answered; the task it belongs to is said once already.
fn inlined_result(outcome: &Message) -> Option<Bytes> {
    let mut splice = Splice::new(&outcome.frame);
    splice.set_member(outcome.result?, outcome.fields.result_type, "resultType", b"\"complete\"");
    if let Some(meta) =
        outcome.fields.meta.filter(|_| outcome.fields.meta_related_task_id.is_some())
    {
        splice.retain_members(meta, |key| key != RELATED_TASK);
    }
    let told = tasks::decoded(splice.finish())?;
    Some(told.result?.slice(&told.frame))
}

fn inlined_error(outcome: &Message) -> Option<Bytes> {
    outcome.error?;
    let told =
        tasks::decoded(stateless::answer(outcome, &RequestId::from_u64(0), None, b"{}").frame)?;
    Some(told.error?.slice(&told.frame))
}

fn members(task: &StoredTask, status: TaskStatus, poll_interval: Duration) -> String {
    let record = &task.record;
    let message = task
        .message
        .as_ref()
        .map(|text| format!(",\"statusMessage\":{}", json::quote(text)))
        .unwrap_or_default();
    let ttl = record.ttl.map_or_else(|| "null".to_owned(), |ttl| ttl.as_millis().to_string());
    format!(
        "\"taskId\":{},\"status\":\"{}\"{message},\"createdAt\":\"{}\",\"lastUpdatedAt\":\"{}\",\"ttlMs\":{ttl},\"pollIntervalMs\":{}",
        json::quote(record.task.as_str()),
        status.name(),
        iso(task.created_at_us),
        iso(task.updated_at_us),
        poll_interval.as_millis(),
    )
}

fn open_requests(inputs: &[TaskInput]) -> Vec<InputRequest> {
    inputs.iter().filter(|input| input.answer.is_none()).filter_map(request_of).collect()
}

/// What a task needs as an input request. Its key holds the number, which no other of the task ever has.
fn request_of(input: &TaskInput) -> Option<InputRequest> {
    let id = RequestId::from_u64(u64::try_from(input.number).ok()?);
    let question = tasks::decoded(tasks::with_id(&input.request, &id))?;
    stateless::input_request(&question).map(|(_, request)| request)
}

/// The answers among these to what a task waits for, by its number, as they are kept. What answers nothing that is open is
/// left out (it was answered before, or is not needed any more).
pub fn answers(
    inputs: &[TaskInput],
    responses: &InputResponses,
) -> Result<Vec<(i64, Vec<u8>)>, Refusal> {
    let mut found = Vec::new();
    for input in inputs.iter().filter(|input| input.answer.is_none()) {
        let Some(request) = request_of(input) else { continue };
        let Some((_, answer)) = responses.answers.iter().find(|(key, _)| *key == request.key)
        else {
            continue;
        };
        if !stateless::is_answer(request.method, answer) {
            let text = format!(
                "params.inputResponses[\"{}\"] is no answer to {}",
                request.key, request.method
            );
            return Err(Refusal::new(ErrorKind::InvalidParams, text));
        }
        found.push((
            input.number,
            [b"{\"jsonrpc\":\"2.0\",\"result\":", answer.as_ref(), b"}"].concat(),
        ));
    }
    Ok(found)
}

/// The call as one that shall be a task from its beginning.
pub fn as_task(call: &Message) -> Result<Message, Refusal> {
    let unreadable = || Refusal::new(ErrorKind::InvalidParams, "params is missing");
    let frame = Splice::new(&call.frame)
        .set_member(call.params.ok_or_else(unreadable)?, call.fields.task, "task", b"{}")
        .finish();
    tasks::decoded(frame).ok_or_else(unreadable)
}

/// The answer to a call that was to be a task from its beginning, for the client.
pub fn creation(frame: &Bytes, id: &RequestId, server_info: &[u8]) -> Option<Bytes> {
    let answer = tasks::decoded(frame.clone())?;
    let mut splice = Splice::new(&answer.frame);
    splice.replace(answer.id_span?, id.raw().to_vec());
    splice.set_meta(&answer, META_SERVER_INFO, server_info);
    Some(splice.finish())
}
