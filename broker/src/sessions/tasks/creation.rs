//! Creation of a task from a call: the store commits the task, then the client gets the answer,
//! then the run starts.
//!
//! A client repeats a request if it did not get the answer. The repeated request finds its task in
//! two cases. The same session sends the same bytes under the same id, or the sender gives the same
//! idempotency key.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use protocol::{
    envelope::Message,
    error::{ErrorKind, Refusal},
    ids::{RequestId, TaskId},
    splice::Splice,
};
use records::{
    FullTask, NodeName, StoredTask, TaskLimits, TaskRecord, TaskStep, WriteOp, WriteOutcome,
};
use rules::{
    limits::{
        COMMIT_LOOK_MAX, COMMIT_SETTLES_WITHIN, STORE_RETRY_FIRST, STORE_RETRY_MAX,
        TASK_REQUEST_BYTES_MAX, TASK_RUN_MAX, TASK_STORE_WAIT_MAX,
    },
    routing, stateless_tasks,
    tasks::{self, IDEMPOTENCY_KEY, TaskDetails, TaskOptions},
    used_window::UsedWindow,
};

use super::{
    TaskManager,
    creator::TaskCreator,
    recovery,
    run::{RunPlan, TaskRun},
};
use crate::{
    persistence::{self, StoreError, fault_point},
    sessions::{
        approvals::{HeldCall, OpenedApproval},
        session::{Session, local_requests::Reply},
        task_host::NewTask,
        task_limits::task_limit_refusal,
    },
    telemetry::{request, traces::RequestTrace},
};

/// Creates a task from a call.
pub(super) async fn create_task(
    session: Arc<Session>,
    tasks: Arc<TaskManager>,
    task: NewTask,
) -> Result<Reply, Refusal> {
    tasks.check_capacity()?;
    let settings = session.shared.task_settings().clone();
    TaskCreation { session, tasks, settings }.create(task).await
}

/// One call on its way to a task.
struct TaskCreation {
    session: Arc<Session>,
    tasks: Arc<TaskManager>,
    settings: config::TaskConfig,
}

impl TaskCreation {
    fn creator(&self) -> TaskCreator<'_> {
        TaskCreator::new(&self.session)
    }

    async fn create(
        self,
        NewTask { message, id, plan, target }: NewTask,
    ) -> Result<Reply, Refusal> {
        let options = TaskOptions::of(&message)?;
        let call = call_of(&message, &plan)?;
        let mut details = self.creator().details(target);
        // A client without a session gets no notifications of the task (MCP 2026-07-28, Tasks).
        if self.session.kind.has_client() {
            let token = message.bytes(message.fields.meta_progress_token);
            details.progress_token = token.map(|token| String::from_utf8_lossy(token).into_owned());
            details.log_level = self.session.log_level().map(|level| level.name().to_owned());
        }
        request::with_current(|request| record_origin(&mut details, request));
        let key = self.idempotency(&options, &id, &call);
        let backend = plan.backend.clone();
        let record_with = |details: &TaskDetails| TaskRecord {
            idempotency: Some(key.clone()),
            ..self.creator().record(&call, backend.clone(), details, options.ttl)
        };
        if let Some(held) = HeldCall::of_plan(&self.session, &message, &plan)? {
            // A repeated request needs no second approval.
            if let Some(task) = self.task_of_key(&key).await? {
                return self.existing(&task, &record_with(&details)).await;
            }
            details = self.hold(details, &held).await?;
        }
        let record = record_with(&details);
        let owner = self.session.shared.persistence.node();
        match self.store(&record, &owner).await? {
            WriteOutcome::Created { at_us } => Ok(self.created(record, at_us, owner)),
            WriteOutcome::Duplicate(task) => self.existing(&task, &record).await,
            // An earlier attempt created the task, and its answer was lost. Since then this process
            // has reclaimed the task under another name.
            WriteOutcome::Fenced => self.existing(&record.task, &record).await,
            WriteOutcome::LimitReached(limit) => Err(task_limit_refusal(limit, &self.settings)),
            _ => Err(Refusal::new(ErrorKind::Internal, "the broker could not create the task")),
        }
    }

    /// Returns the task that an earlier copy of the request created.
    async fn task_of_key(&self, key: &[u8]) -> Result<Option<TaskId>, Refusal> {
        let Session { shared, tenant, caller, .. } = &*self.session;
        let persistence = &shared.persistence;
        let task = persistence.store.task_of_key(&tenant.id, &caller.principal, key);
        persistence.timed("find_task_by_key", task).await
    }

    /// Requests the approval of the call. The record names it, so that no process sends the call
    /// before. For a call that passes by a window, the record has the tool of the window.
    async fn hold(&self, details: TaskDetails, held: &HeldCall) -> Result<TaskDetails, Refusal> {
        let (id, details) = match held.open(&self.session).await? {
            OpenedApproval::Approval(opened) => {
                (opened.record.id.clone(), details.with_approval(&opened.record.id))
            }
            OpenedApproval::Window(id) => {
                let window = UsedWindow::new(&id, held.binding());
                (id, details.with_window(window))
            }
        };
        let _outside = request::with_current(|request| request.record_approval(&id));
        Ok(details)
    }

    /// Answers with the new task. Its run starts once the answer is on its way.
    fn created(self, record: TaskRecord, at_us: i64, owner: NodeName) -> Reply {
        fault_point::hit("task.created");
        let stored = self.creator().record_stored(record, at_us, &owner);
        let result = self.result(&stored);
        Reply::ResultThen(result, Box::new(move || self.start(stored, &owner)))
    }

    /// Returns the result of a call that became this task.
    fn result(&self, task: &StoredTask) -> Bytes {
        match self.session.kind.has_client() {
            true => tasks::created_result(task, self.settings.poll_interval).into(),
            false => stateless_tasks::created_result(task, self.settings.poll_interval),
        }
    }

    /// Starts the run, because the answer is on its way. If the process has changed its name
    /// meanwhile, the task may belong to another process. In that case the orphan sweep or a claim
    /// finds it.
    fn start(&self, stored: StoredTask, owner: &NodeName) {
        if self.session.shared.persistence.node() != *owner {
            return;
        }
        if let Some(plan) = RunPlan::read(&stored.record) {
            let remaining_ttl = stored.record.ttl;
            let run = TaskRun::new(
                FullTask { stored, remaining_ttl },
                plan,
                self.session.tenant.clone(),
                &self.tasks,
            );
            self.tasks.start(run, TaskStep::Queued);
        }
    }

    /// Answers with the task that an earlier copy of this request created.
    async fn existing(&self, task: &TaskId, requested: &TaskRecord) -> Result<Reply, Refusal> {
        let persistence = &self.session.shared.persistence;
        let found = persistence.timed("get_full_task", persistence.store.full_task(task)).await?;
        let found = found.filter(|found| self.creator().audience().may_see(&found.stored.record));
        let found_task = found.ok_or_else(|| {
            Refusal::new(
                ErrorKind::TaskNotFound,
                "the task that this request created earlier does not exist now",
            )
        })?;
        let stored_task = found_task.stored.clone();
        if stored_task.record.backend != requested.backend
            || !is_same_call(&stored_task.record.request, &requested.request)
        {
            return Err(Refusal::new(
                ErrorKind::InvalidParams,
                "the idempotency key belongs to another call",
            ));
        }
        // The commit may have come after its request had given up, so that no run started.
        let has_no_run = recovery::is_owned_here(&self.session.shared, &stored_task)
            && !self.tasks.is_active(task);
        if has_no_run && !self.session.shared.shutdown.is_draining() {
            self.session.shared.running.spawn(recovery::recover(self.tasks.clone(), found_task));
        }
        Ok(Reply::Result(self.result(&stored_task)))
    }

    /// Stores the task, and retries for a moment while the store is busy. The refusal denies the
    /// creation only where that is certain.
    async fn store(&self, record: &TaskRecord, owner: &NodeName) -> Result<WriteOutcome, Refusal> {
        let limits = limits_of(&self.settings);
        let mut wait = STORE_RETRY_FIRST;
        let give_up_at = Instant::now() + TASK_STORE_WAIT_MAX;
        let mut is_open = false;
        loop {
            let create = WriteOp::CreateTask {
                record: Box::new(record.clone()),
                owner: owner.clone(),
                limits,
            };
            let error = match self.session.shared.persistence.commit(create).await {
                Ok(written) => return Ok(written),
                Err(error) => error,
            };
            is_open |= matches!(error, StoreError::OutcomeUnknown(_));
            let may_pass = matches!(error.cause(), StoreError::Busy { .. });
            if !may_pass || Instant::now() + wait > give_up_at {
                if !is_open {
                    return Err(persistence::refusal(&error));
                }
                self.session.shared.running.spawn(recover_if_committed(
                    self.tasks.clone(),
                    record.task.clone(),
                    record.ttl.unwrap_or(TASK_RUN_MAX),
                ));
                let text =
                    "the database did not confirm that it stored the task: the task may still run";
                return Err(Refusal::new(ErrorKind::OutcomeUnknown, text));
            }
            tokio::time::sleep(wait).await;
            wait *= 2;
        }
    }

    /// Returns the key under which a repeated request finds its task. Anonymous clients share no
    /// keys with one another.
    fn idempotency(&self, options: &TaskOptions, id: &RequestId, request: &[u8]) -> Vec<u8> {
        match &options.idempotency_key {
            // Clients with neither a credential nor a session cannot be distinguished, so each
            // request is unique.
            Some(_) if self.creator().is_anonymous() && !self.session.kind.has_client() => {
                hash(b"request", &[self.session.key.as_bytes(), id.raw(), request])
            }
            Some(key) if self.creator().is_anonymous() => {
                hash(b"key of a session", &[self.creator().key().as_bytes(), key.as_bytes()])
            }
            Some(key) => hash(b"key", &[key.as_bytes()]),
            None => hash(b"request", &[self.session.key.as_bytes(), id.raw(), request]),
        }
    }
}

pub(super) fn limits_of(settings: &config::TaskConfig) -> TaskLimits {
    TaskLimits {
        running: settings.running_per_tenant as u64,
        stored: settings.stored_per_tenant as u64,
        bytes: settings.bytes_per_tenant as u64,
    }
}

/// Notes the name and trace of the request that created the task.
pub(super) fn record_origin(details: &mut TaskDetails, request: &request::RequestTelemetry) {
    details.request = Some(request.name.to_string());
    details.trace = request.tracing.as_deref().map(RequestTrace::to_stored);
}

/// Returns the call as its backend gets it: with the backend's name of the tool, and without the
/// members that only the broker reads.
pub(super) fn call_of(message: &Message, plan: &routing::Plan) -> Result<Bytes, Refusal> {
    let mut splice = Splice::new(&message.frame);
    for (span, text) in &plan.edits {
        splice.replace(*span, text.clone());
    }
    if let Some(params) = message.params {
        splice.remove_member(params, "task");
    }
    if let Some(meta) =
        message.fields.meta.filter(|meta| meta.of(&message.frame).first() == Some(&b'{'))
    {
        splice.remove_member(meta, IDEMPOTENCY_KEY);
    }
    let request = splice.finish();
    if request.len() > TASK_REQUEST_BYTES_MAX {
        let text =
            format!("a call that becomes a task must have at most {TASK_REQUEST_BYTES_MAX} bytes");
        return Err(Refusal::new(ErrorKind::MessageTooLarge, text)
            .with("size", request.len())
            .with("maxSize", TASK_REQUEST_BYTES_MAX));
    }
    Ok(request)
}

/// Returns whether two calls name the same tool with the same arguments.
fn is_same_call(one: &[u8], other: &[u8]) -> bool {
    let read = |request: &[u8]| tasks::decoded(Bytes::copy_from_slice(request));
    let (Some(one), Some(other)) = (read(one), read(other)) else { return false };
    let same = |part: fn(&Message) -> Option<protocol::json::Span>| {
        one.bytes(part(&one)) == other.bytes(part(&other))
    };
    same(|message| message.fields.name) && same(|message| message.fields.arguments)
}

/// Hashes the parts. Each part's length is hashed with it, so that no two lists of parts are the
/// same bytes.
fn hash(purpose: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    let mut context = aws_lc_rs::digest::Context::new(&aws_lc_rs::digest::SHA256);
    for part in [purpose].iter().chain(parts) {
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part);
    }
    context.finish().as_ref().to_vec()
}

/// Recovers a task whose creation had an unknown outcome. If the store has the task, a repeated
/// request may have returned it to the client, so this process carries it out.
async fn recover_if_committed(tasks: Arc<TaskManager>, task: TaskId, ttl: Duration) {
    if let Some(found) = await_commit(&tasks, &task, ttl).await
        && recovery::is_owned_here(&tasks.shared, &found.stored)
    {
        recovery::recover(tasks, found).await;
    }
}

/// Waits for a creation of unknown outcome to appear, and returns the task if it does. A commit can
/// wait for a standby, and is visible to no reader until then, which may take long.
pub(super) async fn await_commit(
    tasks: &Arc<TaskManager>,
    task: &TaskId,
    ttl: Duration,
) -> Option<FullTask> {
    let started_at = Instant::now();
    let mut wait = STORE_RETRY_MAX;
    // The wait ends with the process, because the next owner finds the task.
    while tokio::time::timeout(wait, tasks.shared.shutdown.draining.cancelled()).await.is_err() {
        match tasks
            .shared
            .persistence
            .timed("get_full_task", tasks.shared.persistence.store.full_task(task))
            .await
        {
            Ok(Some(found)) => return Some(found),
            Ok(None) if started_at.elapsed() >= ttl => return None,
            Ok(None) | Err(_) => {}
        }
        if started_at.elapsed() >= COMMIT_SETTLES_WITHIN {
            wait = (wait * 2).min(COMMIT_LOOK_MAX);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_separates_its_parts() {
        assert_ne!(hash(b"x", &[b"ab", b"c"]), hash(b"x", &[b"a", b"bc"]));
        assert_ne!(hash(b"x", &[b"a"]), hash(b"y", &[b"a"]));
        assert_eq!(hash(b"x", &[b"a"]), hash(b"x", &[b"a"]));
    }

    #[test]
    fn a_backend_gets_the_call_without_members_of_the_broker() {
        let text = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"task":{"ttl":1},"name":"x","_meta":{"dev.mcp-broker/idempotency-key":"k","progressToken":1}}}"#;
        let message = tasks::decoded(Bytes::from_static(text.as_bytes())).unwrap();
        let plan = routing::Plan {
            backend: protocol::ids::BackendId::parse("b").unwrap(),
            edits: vec![],
            arguments: None,
            result_tokens: None,
            drop_task: false,
            target: routing::BackendTarget::Other,
            approval: None,
        };
        let sent: serde_json::Value =
            serde_json::from_slice(&call_of(&message, &plan).unwrap()).unwrap();
        assert_eq!(sent["params"], serde_json::json!({"name": "x", "_meta": {"progressToken": 1}}));
    }
}
