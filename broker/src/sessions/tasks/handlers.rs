//! Requests of clients about tasks: `tasks/get`, `tasks/result`, `tasks/list`, `tasks/cancel`, and
//! answers to a task's questions (MCP 2025-11-25, Tasks). They use only the store, so any replica
//! answers for any task.
//!
//! A task of another client gets the same answer as a task that never existed.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use protocol::{
    envelope::{Kind, Message},
    error::{ErrorKind, Refusal},
    ids::{RequestId, TaskId},
    method::Method,
    stateless::downgrade,
};
use records::{StoredTask, TaskAudience, TaskListPosition, TaskRecord, TaskStatus};
use rules::{
    access::{AccessCheck, Object, Subject},
    cursor::{self, CursorScope},
    endpoint::Endpoint,
    limits::{PAGE_ENTRIES, TASK_POLLER_INTERVAL, TASK_RESULT_WAIT_MAX},
    stateless_tasks::NO_SESSION,
    tasks::{self, TaskDetails, TaskOutcome},
    tool_error::is_tool_error,
};

use super::{TaskManager, creator::TaskCreator};
use crate::{
    metrics::RequestOutcome,
    sessions::{
        access_checks,
        access_log::{self, CheckAttempt},
        session::{Session, local_requests::Reply, questions},
        stream::EventStream,
        tenant::Tenant,
    },
};

fn not_found() -> Refusal {
    Refusal::new(ErrorKind::TaskNotFound, "no such task")
}

/// Loads a task that this audience may see, and whose tool the subject may call.
pub(in crate::sessions) async fn load_visible(
    tenant: &Tenant,
    audience: &TaskAudience,
    subject: &Subject,
    task: &TaskId,
    attempt: CheckAttempt,
) -> Result<StoredTask, Refusal> {
    let persistence = &tenant.shared.persistence;
    let found = persistence.timed("get_task", persistence.store.task(task)).await?;
    let found = found.filter(|found| audience.may_see(&found.record)).ok_or_else(not_found)?;
    check_tool(tenant, subject, &found.record, attempt)?;
    Ok(found)
}

/// Refuses a task whose tool the subject may not call any more.
fn check_tool(
    tenant: &Tenant,
    subject: &Subject,
    record: &TaskRecord,
    attempt: CheckAttempt,
) -> Result<(), Refusal> {
    if access_checks::is_disabled("tasks/get") {
        return Ok(());
    }
    let endpoint = created_at(record);
    with_tool(tenant, &endpoint, record, |object| {
        access_log::check_tool(tenant, &endpoint, subject, object, not_found, attempt)
    })
}

/// Returns whether a list or a subscription may show a task to the subject. `check_name` is the
/// name of this check, which a test can disable.
pub(in crate::sessions) fn is_listed(
    tenant: &Tenant,
    subject: &Subject,
    record: &TaskRecord,
    check_name: &str,
) -> bool {
    let endpoint = created_at(record);
    let view = tenant.access(&endpoint, subject);
    let Some(view) = view.filter(|_| !access_checks::is_disabled(check_name)) else {
        return true;
    };
    let decide = |object: &Object<'_>| {
        AccessCheck::new(&view, subject).check_unlisted(Method::ToolsCall, object, not_found)
    };
    with_tool(tenant, &endpoint, record, decide).is_ok()
}

/// Returns the endpoint at which a task was created. Its toolset decides what the task may use.
fn created_at(record: &TaskRecord) -> Endpoint {
    let details = TaskDetails::decode(&record.details);
    details.map_or(Endpoint::Aggregated, |details| details.endpoint())
}

/// Checks the tool of a task. Without a policy there is nothing to check.
fn with_tool(
    tenant: &Tenant,
    endpoint: &Endpoint,
    record: &TaskRecord,
    check: impl FnOnce(&Object<'_>) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    if !tenant.has_policy(endpoint) {
        return Ok(());
    }
    let details = TaskDetails::decode(&record.details).ok_or_else(not_found)?;
    let name = details.native.as_deref().ok_or_else(not_found)?;
    let listed = tenant.catalog_of(&record.principal).traits(&record.backend, name);
    // The tool of a task may be unlisted for a while: its backend is away, or a pin holds it.
    let traits = listed.unwrap_or_else(|| details.traits());
    check(&Object::Tool { backend: &record.backend, name, traits })
}

async fn own_task(
    session: &Session,
    task: &TaskId,
    attempt: CheckAttempt,
) -> Result<StoredTask, Refusal> {
    let (audience, subject) = (TaskCreator::new(session).audience(), session.subject());
    load_visible(&session.tenant, &audience, &subject, task, attempt).await
}

fn object(session: &Session, task: &StoredTask) -> Bytes {
    tasks::task_object(task, session.shared.task_settings().poll_interval).into()
}

pub(in crate::sessions) async fn task_state(
    session: Arc<Session>,
    task: TaskId,
) -> Result<Reply, Refusal> {
    Ok(Reply::Result(object(&session, &own_task(&session, &task, CheckAttempt::First).await?)))
}

/// Cancels a task. The record shows the cancellation before the client gets the answer, and the run
/// stops afterwards.
pub(in crate::sessions) async fn cancel_task(
    session: Arc<Session>,
    tasks: Arc<TaskManager>,
    task: TaskId,
) -> Result<Reply, Refusal> {
    let known = own_task(&session, &task, CheckAttempt::First).await?;
    let over = |status: TaskStatus| {
        Refusal::new(ErrorKind::InvalidParams, format!("the task is {} already", status.name()))
    };
    if known.status.is_finished() {
        return Err(over(known.status));
    }
    let was_running = tasks.cancel_stored(&known).await?;
    let now = own_task(&session, &task, CheckAttempt::Repeated).await?;
    if was_running && now.status == TaskStatus::Cancelled {
        Ok(Reply::Result(object(&session, &now)))
    } else {
        Err(over(now.status))
    }
}

/// Returns one page of the tasks this client may see. The cursor names the last task of the page
/// before.
pub(in crate::sessions) async fn list_tasks(
    session: Arc<Session>,
    cursor: Option<String>,
) -> Result<Reply, Refusal> {
    let scope = CursorScope {
        tenant: session.tenant.id.as_str(),
        endpoint: session.caller.principal.as_str(),
        list: "tasks",
    };
    let key = &session.shared.cursor_key;
    let bad_cursor = || {
        Refusal::new(ErrorKind::CursorInvalid, "the broker did not issue the cursor for this list")
    };
    let after = cursor
        .map(|cursor| {
            cursor::open(key, scope, &cursor)
                .and_then(|last| parse_cursor(&last))
                .ok_or_else(bad_cursor)
        })
        .transpose()?;
    let persistence = &session.shared.persistence;
    let limit = u32::try_from(PAGE_ENTRIES + 1).unwrap_or(u32::MAX);
    let mut found = persistence
        .timed(
            "list_visible_tasks",
            persistence.store.tasks_visible_to(
                &TaskCreator::new(&session).audience(),
                after.as_ref(),
                limit,
            ),
        )
        .await?;
    let more = found.len() > PAGE_ENTRIES;
    found.truncate(PAGE_ENTRIES);
    let subject = session.subject();
    let is_permitted =
        |task: &&StoredTask| is_listed(&session.tenant, &subject, &task.record, "tasks/list");
    let objects: Vec<Bytes> =
        found.iter().filter(is_permitted).map(|task| object(&session, task)).collect();
    let mut body = b"{\"tasks\":[".to_vec();
    body.extend_from_slice(&objects.join(&b','));
    body.push(b']');
    if let Some(last) = found.last().filter(|_| more) {
        let last = format!("{} {}", last.created_at_us, last.record.task);
        body.extend_from_slice(
            format!(",\"nextCursor\":\"{}\"", cursor::seal(key, scope, &last)).as_bytes(),
        );
    }
    body.push(b'}');
    Ok(Reply::Result(body.into()))
}

/// Waits until the task is over, and returns the answer of its call. The stream of this request
/// carries the task's questions to the client meanwhile.
pub(in crate::sessions) async fn task_result(
    session: Arc<Session>,
    tasks: Arc<TaskManager>,
    task: TaskId,
    id: RequestId,
    stream: Arc<EventStream>,
) -> Result<Reply, Refusal> {
    // A foreign task is not even waited for.
    let stored = own_task(&session, &task, CheckAttempt::First).await?;
    let waiting = tasks.wait_for(&task, Arc::downgrade(&session), &stream);
    let mut forwarded_inputs = ForwardedInputs {
        tasks: tasks.clone(),
        task: task.clone(),
        session: session.clone(),
        stream,
        questions: HashMap::new(),
    };
    let outcome = outcome_of(&session, &task, &waiting.one, &mut forwarded_inputs).await;
    drop(waiting);
    let response = tasks::response(&outcome?, &id, &task);
    let response = response.ok_or_else(|| {
        Refusal::new(ErrorKind::Internal, "the broker cannot read the stored outcome of the task")
    })?;
    if response.bytes(response.fields.error_code) == Some(b"-32042") {
        questions::record_elicitations_required(&session, &response);
    }
    let counted = counted_outcome(&response);
    // The outcome has the form for the client that created the task.
    let frame = match stored.record.session == NO_SESSION && session.kind.has_client() {
        true => downgrade::downgrade_answer(&response, Method::ToolsCall),
        false => response.frame,
    };
    Ok(Reply::Frame(frame, counted))
}

/// Returns how the answer with the outcome of a task counts. An error with a number of the broker is
/// a refusal.
fn counted_outcome(response: &Message) -> RequestOutcome {
    if response.kind != Kind::Error {
        return match is_tool_error(response) {
            true => RequestOutcome::ToolError,
            false => RequestOutcome::Ok,
        };
    }
    let code = downgrade::error_code(response).filter(|code| *code > 0);
    match code.is_some_and(|code| ErrorKind::ALL.iter().any(|kind| kind.code() == code)) {
        true => RequestOutcome::Refused,
        false => RequestOutcome::Error,
    }
}

async fn outcome_of(
    session: &Arc<Session>,
    id: &TaskId,
    waiting: &super::TaskWaiter,
    forwarded_inputs: &mut ForwardedInputs,
) -> Result<Vec<u8>, Refusal> {
    let give_up = Instant::now() + TASK_RESULT_WAIT_MAX;
    let mut may_have_changed = true;
    loop {
        if may_have_changed {
            match result_or_forward_inputs(session, id, forwarded_inputs).await {
                Ok(Some(outcome)) => return Ok(outcome),
                Ok(None) => may_have_changed = false,
                // The store is away, so the request keeps waiting and reads again.
                Err(refusal) if refusal.kind != ErrorKind::TaskNotFound => {}
                Err(refusal) => return Err(refusal),
            }
        }
        if Instant::now() >= give_up {
            return Err(Refusal::new(
                ErrorKind::Timeout,
                "the task has not ended yet, request its result again",
            ));
        }
        // Each change causes a notification, from its author or from `poller`.
        may_have_changed |=
            tokio::time::timeout(TASK_POLLER_INTERVAL, waiting.changed.notified()).await.is_ok();
        if waiting.stream.as_ref().is_some_and(|stream| stream.is_unreachable()) {
            return Err(Refusal::new(
                ErrorKind::Timeout,
                "no client can read the stream that waited for the task",
            ));
        }
    }
}

/// Returns the outcome of the task. If the task is not over, the client gets its open questions.
async fn result_or_forward_inputs(
    session: &Arc<Session>,
    id: &TaskId,
    forwarded_inputs: &mut ForwardedInputs,
) -> Result<Option<Vec<u8>>, Refusal> {
    let persistence = &session.shared.persistence;
    let task = own_task(session, id, CheckAttempt::Repeated).await?;
    if task.status.is_finished() {
        let outcome =
            persistence.timed("get_task_outcome", persistence.store.task_outcome(id)).await?;
        return Ok(Some(
            outcome.unwrap_or_else(|| TaskOutcome::cancelled(&crate::request_id()).outcome),
        ));
    }
    let inputs = match task.status {
        TaskStatus::InputRequired => {
            persistence.timed("list_task_inputs", persistence.store.open_task_inputs(id)).await?
        }
        _ => Vec::new(),
    };
    forwarded_inputs.follow(&task, &inputs);
    Ok(None)
}

/// Questions of a task that one waiting request has sent to its client.
struct ForwardedInputs {
    tasks: Arc<TaskManager>,
    task: TaskId,
    session: Arc<Session>,
    stream: Arc<EventStream>,
    /// The client's question numbers, by the number within the task.
    questions: HashMap<i64, u64>,
}

impl ForwardedInputs {
    fn follow(&mut self, task: &StoredTask, inputs: &[records::TaskInput]) {
        let open = |number: &i64| {
            inputs.iter().any(|input| input.number == *number && input.answer.is_none())
        };
        let session = &self.session;
        self.questions.retain(|number, question| {
            let is_open = open(number);
            if !is_open {
                questions::withdraw(session, *question, "the task no longer needs the answer");
            }
            is_open
        });
        for input in inputs.iter().filter(|input| input.answer.is_none()) {
            if self.questions.contains_key(&input.number) {
                continue;
            }
            // A question that this client cannot get may still go to another client.
            if let Some(question) =
                questions::send_task_input(session, &task.record, input, &self.stream)
            {
                self.questions.insert(input.number, question);
            }
        }
    }
}

impl Drop for ForwardedInputs {
    fn drop(&mut self) {
        self.questions.values().for_each(|question| {
            questions::withdraw(&self.session, *question, "no request waits for the task now")
        });
        // Another waiting request of the client sends the questions again.
        if !self.questions.is_empty() {
            self.tasks.wake_waiters(&self.task);
        }
    }
}

/// Reads the position in the list from a cursor of the broker.
fn parse_cursor(text: &str) -> Option<TaskListPosition> {
    let (created_at_us, task) = text.split_once(' ')?;
    Some(TaskListPosition { created_at_us: created_at_us.parse().ok()?, task: TaskId::new(task) })
}

/// Returns the task that a request names.
pub(in crate::sessions) fn named_task(message: &Message) -> Result<TaskId, Refusal> {
    let id = message.text(message.fields.task_id);
    id.map(|id| TaskId::new(&*id))
        .ok_or_else(|| Refusal::new(ErrorKind::InvalidParams, "params.taskId must be a string"))
}

const _: () = assert!(TASK_POLLER_INTERVAL.as_millis() < Duration::from_secs(5).as_millis()); // a lost wakeup must not be noticed
