//! What a client asks about tasks: `tasks/get`, `tasks/result`, `tasks/list`, `tasks/cancel`, and its answers to what a task
//! needs (MCP 2025-11-25, TaskManager). All from the store, so any replica answers for any task.
//!
//! A task of somebody else is answered exactly like one that never was.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use protocol::{
    envelope::Message,
    error::{ErrorKind, Refusal},
    ids::{RequestId, TaskId},
};

use super::TaskManager;
use crate::{
    limits::{PAGE_ENTRIES, TASK_POLLER_INTERVAL, TASK_RESULT_WAIT_MAX},
    persistence::{SessionKey, StoredTask, TaskAudience, TaskListPosition, TaskStatus},
    rules::{
        cursor::{self, CursorScope},
        stateless_tasks::NO_SESSION,
        tasks::{self, TaskOutcome},
    },
    sessions::{
        session::{Session, local_requests::Reply},
        shared::Shared,
        stream::EventStream,
    },
};

fn not_found() -> Refusal {
    Refusal::new(ErrorKind::TaskNotFound, "no such task")
}

/// A task, if it is these people's.
pub(in crate::sessions) async fn load_visible(
    shared: &Shared,
    audience: &TaskAudience,
    task: &TaskId,
) -> Result<StoredTask, Refusal> {
    let found = shared.durable.timed("task", shared.durable.store.task(task)).await?;
    found.filter(|found| audience.may_see(&found.record)).ok_or_else(not_found)
}

impl Session {
    /// Nobody said who this client is: what it makes is its own only.
    pub(super) fn is_anonymous(&self) -> bool {
        self.caller.is_anonymous()
    }

    /// What made the tasks of this client: its session. Who comes without one is known by who it is alone.
    pub(super) fn creator_key(&self) -> SessionKey {
        if self.has_client { self.key } else { NO_SESSION }
    }

    pub(super) fn audience(&self) -> TaskAudience {
        TaskAudience {
            tenant: self.tenant.id.clone(),
            principal: self.caller.principal.clone(),
            session: self.creator_key(),
        }
    }

    async fn own_task(&self, task: &TaskId) -> Result<StoredTask, Refusal> {
        load_visible(&self.shared, &self.audience(), task).await
    }

    fn object(&self, task: &StoredTask) -> Bytes {
        tasks::object(task, self.shared.task_settings().poll_interval).into()
    }

    pub(in crate::sessions) async fn task_state(
        self: Arc<Self>,
        task: TaskId,
    ) -> Result<Reply, Refusal> {
        Ok(Reply::Result(self.object(&self.own_task(&task).await?)))
    }

    /// Cancelled is what the record says before the client hears of it; that the work stops is seen to afterwards.
    pub(in crate::sessions) async fn cancel_task(
        self: Arc<Self>,
        tasks: Arc<TaskManager>,
        task: TaskId,
    ) -> Result<Reply, Refusal> {
        let known = self.own_task(&task).await?;
        let over = |status: TaskStatus| {
            Refusal::new(ErrorKind::InvalidParams, format!("the task is {} already", status.name()))
        };
        if known.status.is_finished() {
            return Err(over(known.status));
        }
        let was_running = tasks.cancel_stored(&known).await?;
        let now = self.own_task(&task).await?;
        if was_running && now.status == TaskStatus::Cancelled {
            Ok(Reply::Result(self.object(&now)))
        } else {
            Err(over(now.status))
        }
    }

    /// One page of the tasks this client may see; the cursor names the last task of the page before.
    pub(in crate::sessions) async fn list_tasks(
        self: Arc<Self>,
        cursor: Option<String>,
    ) -> Result<Reply, Refusal> {
        let scope = CursorScope {
            tenant: self.tenant.id.as_str(),
            endpoint: self.caller.principal.as_str(),
            list: "tasks",
        };
        let key = &self.shared.cursor_key;
        let bad_cursor =
            || Refusal::new(ErrorKind::CursorInvalid, "the cursor is not one this list gave out");
        let after = cursor
            .map(|cursor| {
                cursor::open(key, scope, &cursor)
                    .and_then(|last| parse_cursor(&last))
                    .ok_or_else(bad_cursor)
            })
            .transpose()?;
        let durable = &self.shared.durable;
        let limit = u32::try_from(PAGE_ENTRIES + 1).unwrap_or(u32::MAX);
        let mut found = durable
            .timed(
                "tasks_for",
                durable.store.tasks_visible_to(&self.audience(), after.as_ref(), limit),
            )
            .await?;
        let more = found.len() > PAGE_ENTRIES;
        found.truncate(PAGE_ENTRIES);
        let objects: Vec<Bytes> = found.iter().map(|task| self.object(task)).collect();
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

    /// Blocks until the task is over, and then says what the call would have been answered with. What the task needs from
    /// the client meanwhile is asked on the stream of this request.
    pub(in crate::sessions) async fn task_result(
        self: Arc<Self>,
        tasks: Arc<TaskManager>,
        task: TaskId,
        id: RequestId,
        stream: Arc<EventStream>,
    ) -> Result<Reply, Refusal> {
        self.own_task(&task).await?; // a foreign task is not even waited for
        let waiting = tasks.wait_for(&task, Arc::downgrade(&self), &stream);
        let mut shown =
            ForwardedInputs { session: self.clone(), stream, questions: HashMap::new() };
        let outcome = self.outcome_of(&task, &waiting.one, &mut shown).await;
        drop(waiting);
        let response = tasks::response(&outcome?, &id, &task);
        let response = response.ok_or_else(|| {
            Refusal::new(ErrorKind::Internal, "what is stored of the task can not be read")
        })?;
        if response.bytes(response.fields.error_code) == Some(b"-32042") {
            self.note_elicitations_required(&response);
        }
        Ok(Reply::Frame(response.frame))
    }

    async fn outcome_of(
        self: &Arc<Self>,
        id: &TaskId,
        waiting: &super::TaskWaiter,
        shown: &mut ForwardedInputs,
    ) -> Result<Vec<u8>, Refusal> {
        let give_up = Instant::now() + TASK_RESULT_WAIT_MAX;
        let mut may_have_changed = true;
        loop {
            if may_have_changed {
                match self.result_or_forward_inputs(id, shown).await {
                    Ok(Some(outcome)) => return Ok(outcome),
                    Ok(None) => may_have_changed = false,
                    // The store is away: whoever waits goes on waiting, and asks again.
                    Err(refusal) if refusal.kind != ErrorKind::TaskNotFound => {}
                    Err(refusal) => return Err(refusal),
                }
            }
            if Instant::now() >= give_up {
                return Err(Refusal::new(
                    ErrorKind::Timeout,
                    "the task is not over yet, ask for its result again",
                ));
            }
            // A word comes with each change, from who makes it or from `poller`.
            may_have_changed |=
                tokio::time::timeout(TASK_POLLER_INTERVAL, waiting.changed.notified())
                    .await
                    .is_ok();
            if waiting.stream.as_ref().is_some_and(|stream| stream.is_unreachable()) {
                return Err(Refusal::new(
                    ErrorKind::Timeout,
                    "nobody waits for the task here any more",
                ));
            }
        }
    }

    /// How the task ended; if it has not, its client is shown what it needs.
    async fn result_or_forward_inputs(
        self: &Arc<Self>,
        id: &TaskId,
        shown: &mut ForwardedInputs,
    ) -> Result<Option<Vec<u8>>, Refusal> {
        let durable = &self.shared.durable;
        let task = self.own_task(id).await?;
        if task.status.is_finished() {
            let outcome = durable.timed("task_outcome", durable.store.task_outcome(id)).await?;
            return Ok(Some(
                outcome.unwrap_or_else(|| TaskOutcome::cancelled(&crate::request_id()).outcome),
            ));
        }
        let inputs = match task.status {
            TaskStatus::InputRequired => {
                durable.timed("task_inputs", durable.store.open_task_inputs(id)).await?
            }
            _ => Vec::new(),
        };
        shown.follow(&task, &inputs);
        Ok(None)
    }
}

/// The questions of a task that one waiting request shows to its client.
struct ForwardedInputs {
    session: Arc<Session>,
    stream: Arc<EventStream>,
    /// By their number within the task: the number the client knows.
    questions: HashMap<i64, u64>,
}

impl ForwardedInputs {
    fn follow(&mut self, task: &StoredTask, inputs: &[crate::persistence::TaskInput]) {
        let open = |number: &i64| {
            inputs.iter().any(|input| input.number == *number && input.answer.is_none())
        };
        let session = &self.session;
        self.questions.retain(|number, question| {
            let stays = open(number);
            if !stays {
                session.withdraw_question(*question, "the task no longer needs the answer");
            }
            stays
        });
        for input in inputs.iter().filter(|input| input.answer.is_none()) {
            if self.questions.contains_key(&input.number) {
                continue;
            }
            // One that cannot be shown to this client may be shown to another.
            if let Some(question) = session.send_task_input(&task.record, input, &self.stream) {
                self.questions.insert(input.number, question);
            }
        }
    }
}

impl Drop for ForwardedInputs {
    fn drop(&mut self) {
        self.questions.values().for_each(|question| {
            self.session.withdraw_question(*question, "the task is not waited for any more")
        });
    }
}

/// Where a list goes on, out of a cursor of ours.
fn parse_cursor(text: &str) -> Option<TaskListPosition> {
    let (created_at_us, task) = text.split_once(' ')?;
    Some(TaskListPosition { created_at_us: created_at_us.parse().ok()?, task: TaskId::new(task) })
}

/// The task a request is about.
pub(in crate::sessions) fn named_task(message: &Message) -> Result<TaskId, Refusal> {
    let id = message.text(message.fields.task_id);
    id.map(|id| TaskId::new(&*id))
        .ok_or_else(|| Refusal::new(ErrorKind::InvalidParams, "params.taskId must be a string"))
}

const _: () = assert!(TASK_POLLER_INTERVAL.as_millis() < Duration::from_secs(5).as_millis()); // a lost word must not be felt
