//! Tasks in the form of the extension of 2026-07-28: their objects, the answers to their calls, and
//! the client's answers to their input requests.
//!
//! Stored tasks have the form of 2025-11-25. The two differ for a tool that reports an error: in
//! 2025-11-25 its task has failed. Here it is completed, and `failed` is only for errors of
//! JSON-RPC.

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
use records::{SessionKey, StoredTask, TaskInput, TaskStatus};

use super::{
    stateless,
    tasks::{self, RELATED_TASK, iso, status_message},
};

/// Replaces the session of a task without one. No session has this key.
pub const NO_SESSION: SessionKey = SessionKey::new([0; 32]);

/// Returns the refusal of a client that did not declare the extension, but needs it for its
/// request.
pub fn extension_required(text: &str) -> Refusal {
    capability_required(
        &format!("{{\"extensions\":{{{}:{{}}}}}}", json::quote(EXTENSION_TASKS)),
        text,
    )
}

/// Returns the result of a call that became a task: the members of the task.
pub fn created_result(task: &StoredTask, poll_interval: Duration) -> Bytes {
    // A task that is found again may be over. Its outcome is for `tasks/get`.
    format!("{{\"resultType\":\"task\",{}}}", members(task, task.status, poll_interval)).into()
}

/// The state of a task.
#[derive(Debug, Clone, Copy)]
pub struct TaskReport<'a> {
    pub task: &'a StoredTask,
    /// Stored outcome of a task that is over.
    pub outcome: Option<&'a [u8]>,
    /// Inputs that the task requested from its client.
    pub inputs: &'a [TaskInput],
    /// Names the request that is being answered, in an error.
    pub request_id: &'a str,
}

impl TaskReport<'_> {
    /// Returns the members of the task as in `tasks/get`, without braces.
    pub fn members(&self, poll_interval: Duration) -> String {
        let (status, more) = match self.task.status {
            TaskStatus::Working => (TaskStatus::Working, None),
            TaskStatus::InputRequired => match open_requests(self.inputs) {
                // All inputs are answered, and on their way to the backend.
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

    /// Returns the notification for the stream that the request with this id opened.
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
                "the broker cannot read the stored outcome of the task",
            );
            (TaskStatus::Failed, "error", refusal.to_error_json(self.request_id))
        })
    }
}

/// Returns the stored outcome of a task as a message.
fn response(outcome: &[u8]) -> Option<Message> {
    let rest = outcome.strip_prefix(b"{")?;
    tasks::decoded(Bytes::from([b"{\"jsonrpc\":\"2.0\",\"id\":0,", rest].concat()))
}

/// Returns the result as a plain call would get it, without the id of its task.
fn inlined_result(outcome: &Message) -> Option<Bytes> {
    let mut splice = Splice::new(&outcome.frame);
    splice.set_member(outcome.result?, outcome.fields.result_type, "resultType", b"\"complete\"");
    if let Some(meta) =
        outcome.fields.meta.filter(|_| outcome.fields.meta_related_task_id.is_some())
    {
        splice.retain_members(meta, |key| key != RELATED_TASK);
    }
    let converted = tasks::decoded(splice.finish())?;
    Some(converted.result?.slice(&converted.frame))
}

fn inlined_error(outcome: &Message) -> Option<Bytes> {
    outcome.error?;
    let converted = tasks::decoded(
        stateless::to_client_response(outcome, &RequestId::from_u64(0), None, b"{}").frame,
    )?;
    Some(converted.error?.slice(&converted.frame))
}

fn members(task: &StoredTask, status: TaskStatus, poll_interval: Duration) -> String {
    let record = &task.record;
    let message = status_message(task)
        .map(|text| format!(",\"statusMessage\":{}", json::quote(&text)))
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

/// Returns an input of a task as an input request. Its key contains the number, which is unique in
/// the task.
fn request_of(input: &TaskInput) -> Option<InputRequest> {
    let id = RequestId::from_u64(u64::try_from(input.number).ok()?);
    let question = tasks::decoded(tasks::with_id(&input.request, &id))?;
    stateless::input_request(&question).map(|(_, request)| request)
}

/// Returns the answers to open inputs of a task, by number, in the form for the store. Answers to
/// other inputs are left out: they were answered before, or are not needed any more.
pub fn match_answers(
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
        if !stateless::is_valid_answer(request.method, answer) {
            let text = format!(
                "params.inputResponses[\"{}\"] is not an answer to {}",
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

/// Returns the call with a `task` member, so that it is a task from its beginning.
pub fn to_task_request(call: &Message) -> Result<Message, Refusal> {
    let unreadable = || Refusal::new(ErrorKind::InvalidParams, "params is missing");
    let frame = Splice::new(&call.frame)
        .set_member(call.params.ok_or_else(unreadable)?, call.fields.task, "task", b"{}")
        .finish();
    tasks::decoded(frame).ok_or_else(unreadable)
}

/// Returns the answer to a call that is a task from its beginning, in the form for the client.
pub fn creation_response(frame: &Bytes, id: &RequestId, server_info: &[u8]) -> Option<Bytes> {
    let answer = tasks::decoded(frame.clone())?;
    let mut splice = Splice::new(&answer.frame);
    splice.replace(answer.id_span?, id.raw().to_vec());
    splice.set_meta(&answer, META_SERVER_INFO, server_info);
    Some(splice.finish())
}
