//! Decisions about tasks (MCP 2025-11-25, Tasks): permitted requests, the form of tasks, their end
//! by an answer, and their recovery after a crash.
//!
//! Invariant: no decision causes a call to run twice, unless its tool declares that as harmless.

use std::time::Duration;

use bytes::Bytes;
use protocol::{
    envelope::{Kind, Message},
    error::{ErrorKind, Refusal},
    ids::{ApprovalId, EndpointName, RequestId, TaskId},
    json::{self, Document, Value, ValueKind},
    splice::Splice,
};
use records::{StoredTask, TaskStatus, TaskStep};
use serde::{Deserialize, Serialize};

use super::{catalog::ToolTraits, endpoint::Endpoint};
use crate::{
    limits::{
        IDEMPOTENCY_KEY_BYTES_MAX, STATUS_MESSAGE_CHARS_MAX, TASK_POLL_MAX, TASK_POLL_MIN,
        TASK_TTL_MIN,
    },
    stored_trace::StoredTrace,
    tool_error::is_tool_error,
    used_window::UsedWindow,
};

/// Member of `_meta` that names the task of a message.
pub const RELATED_TASK: &str = "io.modelcontextprotocol/related-task";
/// Member of `_meta` with which a client marks two requests as the same one.
pub const IDEMPOTENCY_KEY: &str = "dev.mcp-broker/idempotency-key";

/// A client's options for a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskOptions {
    pub ttl: Option<Duration>,
    pub idempotency_key: Option<String>,
}

impl TaskOptions {
    /// Reads `params.task` and the idempotency key of a `tools/call`.
    pub fn of(message: &Message) -> Result<Self, Refusal> {
        let wrong = |text: &str| Err(Refusal::new(ErrorKind::InvalidParams, text));
        let Some(ttl) = requested_ttl(message.bytes(message.fields.task).unwrap_or_default())
        else {
            return wrong(
                "params.task must be an object, and its ttl a number of milliseconds, not negative",
            );
        };
        Ok(Self { ttl, idempotency_key: idempotency_key(message)? })
    }
}

/// Returns the client's key that marks equal calls.
pub fn idempotency_key(message: &Message) -> Result<Option<String>, Refusal> {
    let Some(meta) = message.bytes(message.fields.meta).filter(|_| message.fields.meta_has_own)
    else {
        return Ok(None);
    };
    let document = parsed(meta).ok();
    let given = document.as_ref().and_then(|meta| meta.root().get(IDEMPOTENCY_KEY));
    match given
        .map(|key| key.as_str().filter(|key| (1..=IDEMPOTENCY_KEY_BYTES_MAX).contains(&key.len())))
    {
        None => Ok(None),
        Some(Some(key)) => Ok(Some(key.into_owned())),
        Some(None) => Err(Refusal::new(
            ErrorKind::InvalidParams,
            "the idempotency key must be a string of 1 to 256 bytes",
        )),
    }
}

/// Returns the wanted `ttl`. `None`: it is invalid. `Some(None)`: it is absent.
fn requested_ttl(task: &[u8]) -> Option<Option<Duration>> {
    let document = parsed(task).ok()?;
    let root = document.root();
    if root.kind() != ValueKind::Object {
        return None;
    }
    let Some(ttl) = root.get("ttl") else { return Some(None) };
    let milliseconds = ttl.as_f64().filter(|ttl| ttl.is_finite() && *ttl >= 0.0)?;
    // A number out of range becomes the longest duration. It is capped later.
    Some(Some(Duration::from_millis(milliseconds.min(u64::MAX as f64 / 2.0).ceil() as u64)))
}

/// Returns the time to live of a task: as requested, within the operator's limits.
pub fn effective_ttl(requested: Option<Duration>, usual: Duration, max: Duration) -> Duration {
    requested.unwrap_or(usual).min(max).max(TASK_TTL_MIN.min(max))
}

/// Data that the broker needs to run a task, in addition to the request. Any replica can use it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskDetails {
    format: u8,
    /// Protocol revision of the client.
    pub version: String,
    /// `None`: the aggregated endpoint.
    pub endpoint: Option<EndpointName>,
    /// The client's capabilities, as sent.
    pub capabilities: String,
    /// The client's progress token, as JSON.
    pub progress_token: Option<String>,
    pub log_level: Option<String>,
    pub read_only: bool,
    pub idempotent: bool,
    /// `readOnlyHint` of the backend, if the endpoint lists a stricter one. `None`: as `read_only`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    declared_read_only: Option<bool>,
    /// `None` in the records of earlier builds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    destructive: Option<bool>,
    /// `None` in the records of earlier builds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    open_world: Option<bool>,
    /// Set when the call was in flight when it became a task. It may have been sent, whatever its
    /// step.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sent_before: bool,
    /// The client's name of the tool.
    pub tool: String,
    /// The backend's name of the tool, by which access rules name it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub native: Option<String>,
    /// Id of the request that created the task, for the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// The trace of that request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<StoredTrace>,
    /// Digest of the caller's token that is exchanged for the backend's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject_token: Option<String>,
    /// Id of the approval without which the call must not be sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<String>,
    /// The approval window by which the call passes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<UsedWindow>,
}

impl TaskDetails {
    pub const FORMAT: u8 = 1;
    /// Format of a call that was in flight. A build that does not know this format must not run it.
    const FORMAT_SENT_BEFORE: u8 = 2;
    /// Format of a call that needs an approval. A build that does not know it must not send it.
    const FORMAT_APPROVAL: u8 = 3;
    /// Format of a call that passes by a window. A build that does not know it would not compare the
    /// tool with the approved one.
    const FORMAT_WINDOW: u8 = 4;

    pub fn new(
        version: &str,
        endpoint: &Endpoint,
        capabilities: &[u8],
        traits: ToolTraits,
        tool: String,
    ) -> Self {
        Self {
            format: Self::FORMAT,
            version: version.to_owned(),
            endpoint: endpoint.stored_name(),
            capabilities: String::from_utf8_lossy(capabilities).into_owned(),
            progress_token: None,
            log_level: None,
            read_only: traits.read_only,
            idempotent: traits.idempotent,
            declared_read_only: None,
            destructive: Some(traits.destructive),
            open_world: Some(traits.open_world),
            sent_before: false,
            tool,
            native: None,
            request: None,
            trace: None,
            subject_token: None,
            approval: None,
            window: None,
        }
    }

    /// Marks a call that is in flight.
    #[must_use]
    pub fn sent_before(self) -> Self {
        Self { format: Self::FORMAT_SENT_BEFORE, sent_before: true, ..self }
    }

    /// Marks a call that is never sent again, because the endpoint lists its tool with stricter
    /// hints. A build that does not know the mark does not send it again either.
    #[must_use]
    pub fn never_repeated(self) -> Self {
        let declared_read_only = self.read_only.then_some(true);
        Self { declared_read_only, read_only: false, idempotent: false, ..self }
    }

    /// Marks a call that waits for an approval.
    #[must_use]
    pub fn with_approval(self, approval: &ApprovalId) -> Self {
        let approval = Some(approval.as_str().to_owned());
        Self { format: Self::FORMAT_APPROVAL, approval, ..self }
    }

    /// Marks a call that passes by an approval window.
    #[must_use]
    pub fn with_window(self, window: UsedWindow) -> Self {
        Self { format: Self::FORMAT_WINDOW, window: Some(window), ..self }
    }

    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("strings, numbers and flags are always JSON")
    }

    /// Decodes the details. `None`: a later version wrote them, or they are damaged.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok().filter(|details: &Self| {
            let format = match (details.sent_before, &details.approval, &details.window) {
                (false, None, None) => Self::FORMAT,
                (true, None, None) => Self::FORMAT_SENT_BEFORE,
                (false, Some(_), None) => Self::FORMAT_APPROVAL,
                (false, None, Some(_)) => Self::FORMAT_WINDOW,
                _ => return false,
            };
            details.format == format
        })
    }

    pub fn endpoint(&self) -> Endpoint {
        Endpoint::named(self.endpoint.as_ref())
    }

    /// Returns the annotations of the tool at the creation of the task, as its backend declared them
    /// and access rules use them. An unknown one has its worse value.
    pub fn traits(&self) -> ToolTraits {
        let worst = ToolTraits::default();
        ToolTraits {
            read_only: self.declared_read_only.unwrap_or(self.read_only),
            idempotent: self.idempotent,
            destructive: self.destructive.unwrap_or(worst.destructive),
            open_world: self.open_world.unwrap_or(worst.open_world),
            ..worst
        }
    }

    /// Returns whether the endpoint lists the tool as one whose second call has no further effect.
    pub fn is_repeatable(&self) -> bool {
        self.read_only || self.idempotent
    }
}

/// Recovery of a task whose broker crashed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecoveryAction {
    /// Send the call for the first time, or again if that is harmless.
    Send,
    /// The call may have run: report that its outcome is unknown.
    Unknown,
    /// The backend has a task for the call: poll that.
    Poll,
}

pub fn recovery_action(step: &TaskStep, details: &TaskDetails) -> RecoveryAction {
    match step {
        TaskStep::Queued if !details.sent_before => RecoveryAction::Send,
        TaskStep::Queued | TaskStep::Sent if details.is_repeatable() => RecoveryAction::Send,
        TaskStep::Queued | TaskStep::Sent => RecoveryAction::Unknown,
        TaskStep::Delegated { .. } => RecoveryAction::Poll,
    }
}

/// Returns whether a task may change from one status to the other (MCP 2025-11-25, Tasks: Task
/// Status Lifecycle).
pub fn is_valid_transition(from: TaskStatus, to: TaskStatus) -> bool {
    !from.is_finished() && from != to
}

/// The end of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskOutcome {
    pub status: TaskStatus,
    pub message: Option<String>,
    /// `{"result":…}` or `{"error":…}`: the answer that the plain call would have got.
    pub outcome: Vec<u8>,
}

impl TaskOutcome {
    /// Ends a task by this answer, which is in the client's form already.
    pub fn from_answer(answer: &Message, bytes_max: usize) -> Result<Self, Refusal> {
        let (member, body) = match answer.kind {
            Kind::Error => ("error", answer.bytes(answer.error)),
            _ => ("result", answer.bytes(answer.result)),
        };
        let outcome = [b"{\"", member.as_bytes(), b"\":", body.unwrap_or(b"{}"), b"}"].concat();
        if outcome.len() > bytes_max {
            let text = format!(
                "the result exceeds the {bytes_max} bytes that the broker stores of one result"
            );
            return Err(Refusal::new(ErrorKind::ResultTooLarge, text));
        }
        let (status, message) = match answer.kind {
            Kind::Error => (
                TaskStatus::Failed,
                answer.text(answer.fields.error_message).map(|text| for_people(&text)),
            ),
            // MCP 2025-11-25, Tasks: a tool result with `isError` fails its task.
            _ if is_tool_error(answer) => {
                (TaskStatus::Failed, Some("the tool reported an error".to_owned()))
            }
            _ => (TaskStatus::Completed, None),
        };
        Ok(Self { status, message, outcome })
    }

    /// Ends a task by an error of the broker, which could not get an answer.
    pub fn from_refusal(refusal: &Refusal, request_id: &str) -> Self {
        let outcome = [b"{\"error\":", &*refusal.to_error_json(request_id), b"}"].concat();
        Self { status: TaskStatus::Failed, message: Some(for_people(&refusal.message)), outcome }
    }

    /// Ends a task on request. The result of its call stays unknown.
    pub fn cancelled(request_id: &str) -> Self {
        let refusal = Refusal::new(ErrorKind::InvalidRequest, "the task was cancelled")
            .with("status", TaskStatus::Cancelled.name());
        Self {
            status: TaskStatus::Cancelled,
            message: Some("cancelled on request".to_owned()),
            ..Self::from_refusal(&refusal, request_id)
        }
    }
}

fn for_people(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(STATUS_MESSAGE_CHARS_MAX).collect()
}

/// Returns the response to `tasks/result` of a task with this outcome. `None` if the stored outcome
/// cannot be read.
pub fn response(outcome: &[u8], id: &RequestId, task: &TaskId) -> Option<Message> {
    let rest = outcome.strip_prefix(b"{")?;
    let frame = Bytes::from([b"{\"jsonrpc\":\"2.0\",\"id\":", id.raw(), b",", rest].concat());
    let message = decoded(frame)?;
    let frame = Splice::new(&message.frame)
        .set_meta(&message, RELATED_TASK, &related_task_meta(task))
        .finish();
    decoded(frame)
}

/// Returns the value of [`RELATED_TASK`].
pub fn related_task_meta(task: &TaskId) -> Vec<u8> {
    format!("{{\"taskId\":{}}}", json::quote(task.as_str())).into_bytes()
}

/// Decodes a frame of the broker, or one that was decoded before.
pub fn decoded(frame: Bytes) -> Option<Message> {
    let limits = json::Limits::with_bytes_max(frame.len());
    Message::decode(frame, &limits).ok()
}

/// Returns the task object for its client.
pub fn task_object(task: &StoredTask, poll_interval: Duration) -> String {
    let record = &task.record;
    let message = status_message(task)
        .map(|text| format!(",\"statusMessage\":{}", json::quote(&text)))
        .unwrap_or_default();
    let ttl = record.ttl.map_or_else(|| "null".to_owned(), |ttl| ttl.as_millis().to_string());
    format!(
        "{{\"taskId\":{},\"status\":\"{}\"{message},\"createdAt\":\"{}\",\"lastUpdatedAt\":\"{}\",\"ttl\":{ttl},\"pollInterval\":{}}}",
        json::quote(record.task.as_str()),
        task.status.name(),
        iso(task.created_at_us),
        iso(task.updated_at_us),
        poll_interval.as_millis(),
    )
}

/// Returns the text about the status of a task, if there is one.
pub fn status_message(task: &StoredTask) -> Option<String> {
    let waits = || {
        let is_waiting = task.step == TaskStep::Queued && !task.status.is_finished();
        let details = TaskDetails::decode(&task.record.details).filter(|_| is_waiting);
        let approval = details?.approval?;
        Some(format!("waits for the approval of a person: {approval}"))
    };
    task.message.clone().or_else(waits)
}

/// Returns the result of a call that became a task.
pub fn created_result(task: &StoredTask, poll_interval: Duration) -> String {
    let related = String::from_utf8_lossy(&related_task_meta(&task.record.task)).into_owned();
    format!(
        "{{\"task\":{},\"_meta\":{{\"{RELATED_TASK}\":{related}}}}}",
        task_object(task, poll_interval)
    )
}

/// Returns the time in ISO 8601, in UTC.
pub fn iso(at_us: i64) -> String {
    jiff::Timestamp::from_microsecond(at_us).unwrap_or(jiff::Timestamp::UNIX_EPOCH).to_string()
}

/// The state of a backend's own task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendTask {
    pub id: String,
    pub status: TaskStatus,
    pub message: Option<String>,
    pub poll_interval: Option<Duration>,
}

impl BackendTask {
    /// Reads a task object, or the result that holds one as `task`. `None` if it has no id or no
    /// known status: a wait for the end of such a task would never end.
    pub fn read(text: &[u8]) -> Option<Self> {
        let document = parsed(text).ok()?;
        let root = document.root();
        let task = root.get("task").filter(|task| task.get("taskId").is_some()).unwrap_or(root);
        let text_of = |key: &str| task.get(key).and_then(|value| value.as_str()).map(String::from);
        Some(Self {
            id: text_of("taskId")?,
            status: TaskStatus::parse(&text_of("status")?)?,
            message: text_of("statusMessage").map(|text| for_people(&text)),
            poll_interval: task
                .get("pollInterval")
                .or_else(|| task.get("pollIntervalMs"))
                .and_then(milliseconds)
                .map(|wait| wait.clamp(TASK_POLL_MIN, TASK_POLL_MAX)),
        })
    }
}

fn milliseconds(value: Value<'_>) -> Option<Duration> {
    value
        .as_f64()
        .filter(|wait| wait.is_finite() && *wait >= 0.0)
        .map(|wait| Duration::from_millis(wait.min(1e12) as u64))
}

/// Returns whether the answer means an unknown task. MCP 2025-11-25, Tasks: an unknown or expired
/// id is answered with invalid params.
pub fn is_unknown_task(answer: &Message) -> bool {
    answer.kind == Kind::Error && answer.bytes(answer.fields.error_code) == Some(b"-32602")
}

/// Returns a backend's request in the form for the store: without its id, and with the broker's
/// task id.
pub fn input_request(request: &Message, task: &TaskId) -> Bytes {
    let mut splice = Splice::new(&request.frame);
    splice.set_meta(request, RELATED_TASK, &related_task_meta(task));
    let spliced = splice.finish();
    without_id(&spliced)
}

/// Returns a client's response in the form for the store.
pub fn input_answer(response: &Message) -> Bytes {
    without_id(&response.frame)
}

fn without_id(frame: &Bytes) -> Bytes {
    let whole = json::Span { start: 0, end: frame.len() as u32 };
    let trimmed = frame.trim_ascii();
    if trimmed.len() != frame.len() {
        return without_id(&Bytes::copy_from_slice(trimmed));
    }
    Splice::new(frame).remove_member(whole, "id").finish()
}

/// Returns a stored message with an id.
pub fn with_id(kept: &[u8], id: &RequestId) -> Bytes {
    let rest = kept.strip_prefix(b"{").unwrap_or(kept);
    Bytes::from([b"{\"id\":", id.raw(), b",", rest].concat())
}

fn parsed(text: &[u8]) -> Result<Document<'_>, json::JsonError> {
    Document::parse(text, &json::Limits::with_bytes_max(text.len()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use protocol::ids::{BackendId, PrincipalId, TenantId};
    use records::{ApprovalBinding, SessionKey, TaskRecord};
    use serde_json::{Value as Json, json};

    use super::*;

    fn message(value: &Json) -> Message {
        decoded(Bytes::from(value.to_string())).unwrap()
    }

    fn options_of(task: Json, meta: Json) -> Result<TaskOptions, Refusal> {
        TaskOptions::of(&message(
            &json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "x", "task": task, "_meta": meta}}),
        ))
    }

    fn stored() -> StoredTask {
        let record = TaskRecord {
            task: TaskId::new("abc"),
            tenant: TenantId::parse("acme").unwrap(),
            principal: PrincipalId::new("p"),
            session: SessionKey::new([1; 32]),
            private: false,
            backend: BackendId::parse("b").unwrap(),
            request: vec![],
            details: vec![],
            idempotency: None,
            ttl: Some(Duration::from_secs(60)),
        };
        StoredTask {
            record,
            status: TaskStatus::Working,
            message: None,
            step: TaskStep::Queued,
            owner: None,
            created_at_us: 1_767_225_600_000_000,
            updated_at_us: 1_767_225_601_500_000,
            epoch: 1,
            revision: 1,
        }
    }

    #[test]
    fn task_12_the_ttl_is_a_number_that_is_not_negative() {
        assert_eq!(
            options_of(json!({}), json!({})).unwrap(),
            TaskOptions { ttl: None, idempotency_key: None }
        );
        assert_eq!(
            options_of(json!({"ttl": 1500}), json!({})).unwrap().ttl,
            Some(Duration::from_millis(1500))
        );
        assert_eq!(
            options_of(json!({"ttl": 0.5}), json!({})).unwrap().ttl,
            Some(Duration::from_millis(1))
        );
        for bad in
            [json!({"ttl": -1}), json!({"ttl": "5"}), json!({"ttl": null}), json!(7), json!([])]
        {
            assert_eq!(
                options_of(bad.clone(), json!({})).unwrap_err().kind,
                ErrorKind::InvalidParams,
                "{bad}"
            );
        }
        assert!(
            options_of(json!({"ttl": 1e300}), json!({})).unwrap().ttl
                > Some(Duration::from_secs(1 << 40))
        );
    }

    #[test]
    fn an_idempotency_key_is_a_short_string() {
        assert_eq!(
            options_of(json!({}), json!({IDEMPOTENCY_KEY: "k"}))
                .unwrap()
                .idempotency_key
                .as_deref(),
            Some("k")
        );
        for bad in [json!(""), json!(1), json!("x".repeat(257))] {
            assert!(options_of(json!({}), json!({IDEMPOTENCY_KEY: bad})).is_err());
        }
    }

    #[test]
    fn f_31_only_a_harmless_task_call_is_sent_again() {
        let details = |idempotent| {
            let traits = ToolTraits { idempotent, ..ToolTraits::default() };
            TaskDetails::new("2025-11-25", &Endpoint::Aggregated, b"{}", traits, "x".to_owned())
        };
        assert_eq!(recovery_action(&TaskStep::Queued, &details(false)), RecoveryAction::Send);
        assert_eq!(recovery_action(&TaskStep::Sent, &details(true)), RecoveryAction::Send);
        assert_eq!(recovery_action(&TaskStep::Sent, &details(false)), RecoveryAction::Unknown);
        // The call was sent before a record of the task existed.
        assert_eq!(
            recovery_action(&TaskStep::Queued, &details(false).sent_before()),
            RecoveryAction::Unknown
        );
        assert_eq!(
            recovery_action(&TaskStep::Queued, &details(true).sent_before()),
            RecoveryAction::Send
        );
        let mirrored = TaskStep::Delegated { backend_task: "t".to_owned(), link: vec![] };
        assert_eq!(
            [false, true].map(|harmless| recovery_action(&mirrored, &details(harmless))),
            [RecoveryAction::Poll; 2]
        );
    }

    #[test]
    fn task_details_are_read_back_and_a_later_format_is_refused() {
        let traits = ToolTraits { idempotent: true, ..ToolTraits::default() };
        let mut details = TaskDetails::new(
            "2025-11-25",
            &Endpoint::Aggregated,
            br#"{"sampling":{}}"#,
            traits,
            "b__x".to_owned(),
        );
        details.progress_token = Some("\"mine\"".to_owned());
        assert_eq!(TaskDetails::decode(&details.encode()).as_ref(), Some(&details));
        assert!(details.is_repeatable());
        details.format = 2;
        assert_eq!(TaskDetails::decode(&details.encode()), None);
    }

    #[test]
    fn task_details_have_the_annotations_of_the_tool() {
        let traits = ToolTraits {
            read_only: true,
            destructive: false,
            open_world: false,
            ..ToolTraits::default()
        };
        let details =
            TaskDetails::new("2025-11-25", &Endpoint::Aggregated, b"{}", traits, "x".to_owned());
        let read = TaskDetails::decode(&details.encode()).unwrap();
        assert_eq!(read.traits(), traits);
        // An earlier build wrote two of them.
        let mut earlier: Json = serde_json::from_slice(&details.encode()).unwrap();
        for member in ["destructive", "open_world"] {
            assert!(earlier.as_object_mut().unwrap().remove(member).is_some(), "{member}");
        }
        let read = TaskDetails::decode(earlier.to_string().as_bytes()).unwrap();
        assert_eq!(read.traits(), ToolTraits { read_only: true, ..ToolTraits::default() });
    }

    #[test]
    fn f_31_a_task_call_is_not_sent_again_if_its_endpoint_lists_stricter_hints() {
        let traits = ToolTraits { read_only: true, idempotent: true, ..ToolTraits::default() };
        let details = |traits| {
            TaskDetails::new("2025-11-25", &Endpoint::Aggregated, b"{}", traits, "x".to_owned())
        };
        let strict = details(traits).never_repeated();
        let read = TaskDetails::decode(&strict.encode()).unwrap();
        assert_eq!(recovery_action(&TaskStep::Sent, &read), RecoveryAction::Unknown);
        assert!(read.traits().read_only, "access rules use the hint of the backend");
        let writing = details(ToolTraits::default());
        assert_eq!(writing.clone().never_repeated(), writing, "it is not sent again anyway");
    }

    #[test]
    fn an_earlier_build_does_not_read_the_task_of_an_approval_window() {
        let traits = ToolTraits::default();
        let details =
            TaskDetails::new("2025-11-25", &Endpoint::Aggregated, b"{}", traits, "x".to_owned());
        let binding = ApprovalBinding {
            tenant: TenantId::parse("acme").unwrap(),
            principal: PrincipalId::new("ann"),
            backend: BackendId::parse("pay").unwrap(),
            tool: "send".to_owned(),
            definition: [7; 32],
            pin: None,
            arguments_hash: [0; 32],
        };
        let window = UsedWindow::new(&ApprovalId::new("apr_1"), &binding);
        let details = details.with_window(window.clone());
        let read = TaskDetails::decode(&details.encode()).unwrap();
        assert_eq!((read.format, read.window), (TaskDetails::FORMAT_WINDOW, Some(window)));
        let mut earlier: Json = serde_json::from_slice(&details.encode()).unwrap();
        earlier["format"] = json!(TaskDetails::FORMAT);
        assert_eq!(TaskDetails::decode(earlier.to_string().as_bytes()), None);
    }

    #[test]
    fn task_04_the_task_object_has_all_members_of_the_schema() {
        let object: Json =
            serde_json::from_str(&task_object(&stored(), Duration::from_millis(500))).unwrap();
        let expected = json!({"taskId": "abc", "status": "working", "createdAt": "2026-01-01T00:00:00Z",
            "lastUpdatedAt": "2026-01-01T00:00:01.5Z", "ttl": 60000, "pollInterval": 500});
        assert_eq!(object, expected);
        let mut unlimited = stored();
        (unlimited.record.ttl, unlimited.message) = (None, Some("a \"word\"".to_owned()));
        let shown: Json =
            serde_json::from_str(&super::task_object(&unlimited, Duration::ZERO)).unwrap();
        assert_eq!((&shown["ttl"], &shown["statusMessage"]), (&Json::Null, &json!("a \"word\"")));
        let created: Json =
            serde_json::from_str(&created_result(&stored(), Duration::ZERO)).unwrap();
        assert_eq!(created["_meta"][RELATED_TASK]["taskId"], "abc");
    }

    #[test]
    fn task_07_task_18_an_answer_ends_a_task_and_is_returned_unchanged() {
        for (body, status) in [
            (r#""result":{"content":[], "x": 1.50}"#, TaskStatus::Completed),
            (r#""result":{"content":[],"isError":true}"#, TaskStatus::Failed),
            (r#""error":{"code":-32050,"message":"broke","data":{"why":1}}"#, TaskStatus::Failed),
        ] {
            let answer =
                decoded(Bytes::from(format!(r#"{{"jsonrpc":"2.0","id":9,{body}}}"#))).unwrap();
            let ended = TaskOutcome::from_answer(&answer, 1_000).unwrap();
            assert_eq!(
                (ended.status, ended.outcome.as_slice()),
                (status, format!("{{{body}}}").as_bytes())
            );
            let response =
                response(&ended.outcome, &RequestId::from_u64(5), &TaskId::new("abc")).unwrap();
            let shown: Json = serde_json::from_slice(&response.frame).unwrap();
            assert_eq!(shown["id"], 5);
            let meta = &shown["result"]["_meta"][RELATED_TASK]["taskId"];
            assert_eq!(meta.as_str(), shown.get("result").map(|_| "abc"), "an error has no _meta");
        }
        let long =
            decoded(Bytes::from_static(br#"{"jsonrpc":"2.0","id":9,"result":{"content":[]}}"#))
                .unwrap();
        assert_eq!(
            TaskOutcome::from_answer(&long, 10).unwrap_err().kind,
            ErrorKind::ResultTooLarge
        );
    }

    #[test]
    fn task_08_a_related_task_of_the_backends_is_replaced() {
        let outcome = br#"{"result":{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"theirs"},"kept":1}}}"#;
        let shown: Json = serde_json::from_slice(
            &response(outcome, &RequestId::from_u64(1), &TaskId::new("ours")).unwrap().frame,
        )
        .unwrap();
        assert_eq!(shown["result"]["_meta"], json!({RELATED_TASK: {"taskId": "ours"}, "kept": 1}));
    }

    #[test]
    fn a_backends_task_is_read_from_an_answer_and_from_a_notification() {
        let flat =
            br#"{"taskId":"t","status":"completed","statusMessage":"done","pollInterval":1}"#;
        let read = BackendTask::read(flat).unwrap();
        assert_eq!(
            (read.id.as_str(), read.status, read.poll_interval),
            ("t", TaskStatus::Completed, Some(TASK_POLL_MIN))
        );
        for other in [
            r#"{"task":{"taskId":"t","status":"odd"}}"#,
            r#"{"taskId":"t","status":null}"#,
            r#"{"taskId":"t","status":5}"#,
            r#"{"taskId":"t"}"#,
            r#"{"taskId":5,"status":"working"}"#,
            "{}",
        ] {
            assert_eq!(BackendTask::read(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn task_13_a_question_is_stored_without_its_id_and_gets_a_new_one() {
        let request = message(
            &json!({"jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": {"message": "?"}}),
        );
        let kept = input_request(&request, &TaskId::new("abc"));
        let kept_json: Json = serde_json::from_slice(&kept).unwrap();
        assert!(
            kept_json.get("id").is_none()
                && kept_json["params"]["_meta"][RELATED_TASK]["taskId"] == "abc",
            "{kept_json}"
        );
        let question: Json =
            serde_json::from_slice(&with_id(&kept, &RequestId::from_u64(3))).unwrap();
        assert_eq!(
            (question["id"].as_u64(), question["method"].as_str()),
            (Some(3), Some("elicitation/create"))
        );
        let answer =
            decoded(Bytes::from_static(b" {\"id\":3,\"jsonrpc\":\"2.0\",\"result\":{}}\n"))
                .unwrap();
        let back: Json = serde_json::from_slice(&with_id(
            &input_answer(&answer),
            &RequestId::from_raw(Bytes::from_static(b"\"q\"")),
        ))
        .unwrap();
        assert_eq!(back, json!({"jsonrpc": "2.0", "id": "q", "result": {}}));
    }

    proptest! {
        #[test]
        fn task_06_a_finished_task_never_changes(steps in prop::collection::vec(0_usize..5, 0..40)) {
            let mut status = TaskStatus::Working;
            let mut ended = None;
            for step in steps {
                let next = TaskStatus::ALL[step];
                if is_valid_transition(status, next) {
                    prop_assert!(ended.is_none());
                    status = next;
                }
                if status.is_finished() {
                    prop_assert_eq!(*ended.get_or_insert(status), status);
                }
            }
        }

        #[test]
        fn task_12_the_actual_ttl_is_within_bounds(requested in prop::option::of(0_u64..10_000_000), usual in 1_u64..1_000_000, max in 1_u64..1_000_000) {
            let ms = Duration::from_millis;
            let actual = effective_ttl(requested.map(ms), ms(usual), ms(max));
            prop_assert!(actual <= ms(max) && actual >= TASK_TTL_MIN.min(ms(max)));
        }

        #[test]
        fn a_stored_result_is_returned_unchanged(text in "\\PC{0,40}", number in any::<i64>()) {
            let answer = message(&json!({"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "text", "text": text}], "n": number}}));
            let ended = TaskOutcome::from_answer(&answer, 10_000).unwrap();
            let shown = response(&ended.outcome, &RequestId::from_u64(2), &TaskId::new("t")).unwrap();
            let mut shown: Json = serde_json::from_slice(shown.bytes(shown.result).unwrap()).unwrap();
            shown.as_object_mut().unwrap().remove("_meta");
            prop_assert_eq!(shown, json!({"content": [{"type": "text", "text": text}], "n": number}));
        }
    }
}
