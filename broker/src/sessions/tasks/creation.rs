//! A call becomes a task: first it is on disk, then its client is told, then it is carried out.
//!
//! A request that comes again (the client did not see the answer) finds its task. It is the same request when the same
//! session sends the same bytes under the same id, or when its sender gives it the same idempotency key.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use protocol::{
    envelope::Message,
    error::{ErrorKind, Refusal},
    ids::{BackendId, RequestId, TaskId},
    splice::Splice,
};

use super::{
    TaskManager, recovery,
    run::{RunPlan, TaskRun},
};
use crate::sessions::task_host::NewTask;
use crate::{
    config,
    limits::{
        COMMIT_LOOK_MAX, COMMIT_SETTLES_WITHIN, STORE_RETRY_FIRST, STORE_RETRY_MAX, TASK_ID_BYTES,
        TASK_REQUEST_BYTES_MAX, TASK_RUN_MAX, TASK_STORE_WAIT_MAX,
    },
    persistence::{
        self, FullTask, NodeName, StoreError, StoredTask, TaskLimit, TaskLimits, TaskRecord,
        TaskStatus, TaskStep, WriteOp, WriteOutcome, fault_point,
    },
    rules::{
        routing::{self, TaskTarget},
        stateless_tasks,
        tasks::{self, IDEMPOTENCY_KEY, TaskDetails, TaskOptions},
    },
    sessions::session::{Session, local_requests::Reply},
    telemetry::{request, traces::RequestTrace},
};

impl Session {
    /// Makes a task of a call.
    pub(in crate::sessions) async fn create_task(
        self: Arc<Self>,
        tasks: Arc<TaskManager>,
        NewTask { message, id, plan, target }: NewTask,
    ) -> Result<Reply, Refusal> {
        tasks.check_capacity()?;
        let settings = self.shared.task_settings().clone();
        let wish = TaskOptions::of(&message)?;
        let call = call_of(&message, &plan)?;
        let mut details = self.details(target);
        // Without a session nobody hears what is said beside the outcome (MCP 2026-07-28, TaskManager).
        if self.has_client {
            let token = message.bytes(message.fields.meta_progress_token);
            details.progress_token = token.map(|token| String::from_utf8_lossy(token).into_owned());
            details.log_level = self.log_level().map(|level| level.name().to_owned());
        }
        request::with_current(|request| note_origin(&mut details, request));
        let idempotency = Some(self.idempotency(&wish, &id, &call));
        let record =
            TaskRecord { idempotency, ..self.record_of(&call, plan.backend, &details, wish.ttl) };
        let owner = self.shared.durable.node();
        match self.store_task(&tasks, &record, &owner, &settings).await? {
            WriteOutcome::Created { at_us } => {
                Ok(self.created(tasks, record, at_us, &owner, &settings))
            }
            WriteOutcome::Duplicate(task) => {
                self.existing_task(&tasks, &task, &record, &settings).await
            }
            // It was made, by an attempt whose answer was lost, and this process took it along to another name since.
            WriteOutcome::Fenced => {
                self.existing_task(&tasks, &record.task, &record, &settings).await
            }
            WriteOutcome::LimitReached(limit) => Err(full(limit, &settings)),
            _ => Err(Refusal::new(ErrorKind::Internal, "the task could not be made")),
        }
    }

    /// What it takes to carry a call out as a task of this client.
    pub(super) fn details(&self, target: TaskTarget) -> TaskDetails {
        TaskDetails::new(
            self.version.as_str(),
            &self.endpoint,
            self.client.raw(),
            target.traits,
            target.tool,
        )
    }

    /// A task that is not stored yet.
    pub(super) fn record_of(
        &self,
        call: &Bytes,
        backend: BackendId,
        details: &TaskDetails,
        ttl: Option<Duration>,
    ) -> TaskRecord {
        let settings = self.shared.task_settings();
        TaskRecord {
            task: TaskId::new(URL_SAFE_NO_PAD.encode(rand::random::<[u8; TASK_ID_BYTES]>())),
            tenant: self.tenant.id.clone(),
            principal: self.caller.principal.clone(),
            session: self.creator_key(),
            private: self.is_anonymous(),
            backend,
            idempotency: None,
            details: details.encode(),
            request: call.to_vec(),
            ttl: Some(tasks::actual_ttl(ttl, settings.ttl, settings.ttl_max)),
        }
    }

    fn created(
        self: &Arc<Self>,
        tasks: Arc<TaskManager>,
        record: TaskRecord,
        at_us: i64,
        owner: &NodeName,
        settings: &config::TaskConfig,
    ) -> Reply {
        fault_point::passed("task.created");
        let stored = self.note_created(record, at_us, owner);
        let result = self.creation(&stored, settings);
        let (session, owner) = (self.clone(), owner.clone());
        Reply::ResultThen(result, Box::new(move || session.start_task(&tasks, stored, &owner)))
    }

    pub(super) fn note_created(
        &self,
        record: TaskRecord,
        at_us: i64,
        owner: &NodeName,
    ) -> StoredTask {
        self.shared.metrics.task_transition(TaskStatus::Working.name());
        let stored = new_task(record, at_us, owner.clone());
        tracing::info!(task = super::digest(&stored.record.task), tenant = %self.tenant.id, principal = %self.caller.principal, backend = %stored.record.backend, "task made");
        stored
    }

    /// The result of a call that became this task.
    fn creation(&self, task: &StoredTask, settings: &config::TaskConfig) -> Bytes {
        match self.has_client {
            true => tasks::created(task, settings.poll_interval).into(),
            false => stateless_tasks::created(task, settings.poll_interval),
        }
    }

    /// The answer is on its way: now it is carried out. Unless the process changed its name meanwhile: then nobody knows
    /// whether the task is still ours, and it is found like any that was left behind.
    fn start_task(&self, tasks: &Arc<TaskManager>, stored: StoredTask, owner: &NodeName) {
        if self.shared.durable.node() != *owner {
            return;
        }
        if let Some(plan) = RunPlan::read(&stored.record) {
            let left = stored.record.ttl;
            let run = TaskRun::new(FullTask { stored, left }, plan, self.tenant.clone(), tasks);
            tasks.start(run, TaskStep::Queued);
        }
    }

    /// The task this request made before.
    async fn existing_task(
        &self,
        tasks: &Arc<TaskManager>,
        task: &TaskId,
        asked: &TaskRecord,
        settings: &config::TaskConfig,
    ) -> Result<Reply, Refusal> {
        let persistence = &self.shared.durable;
        let known = persistence.timed("whole_task", persistence.store.full_task(task)).await?;
        let known = known.filter(|known| self.audience().may_see(&known.stored.record));
        let whole = known.ok_or_else(|| {
            Refusal::new(ErrorKind::TaskNotFound, "the task this request made before is gone")
        })?;
        let known = whole.stored.clone();
        if known.record.backend != asked.backend
            || !is_same_call(&known.record.request, &asked.request)
        {
            return Err(Refusal::new(
                ErrorKind::InvalidParams,
                "the idempotency key belongs to another call",
            ));
        }
        // Its commit may have been long in coming, and nobody have waited for it any more.
        let is_stray = recovery::is_ours(&self.shared, &known) && !tasks.is_active(task);
        if is_stray && !self.shared.draining.is_cancelled() {
            self.shared.running.spawn(recovery::recover(tasks.clone(), whole));
        }
        Ok(Reply::Result(self.creation(&known, settings)))
    }

    /// Tries for a moment, unless the store is away. A client is told that nothing was done only where that is certain.
    async fn store_task(
        &self,
        tasks: &Arc<TaskManager>,
        record: &TaskRecord,
        owner: &NodeName,
        settings: &config::TaskConfig,
    ) -> Result<WriteOutcome, Refusal> {
        let limits = limits_of(settings);
        let mut wait = STORE_RETRY_FIRST;
        let give_up_at = Instant::now() + TASK_STORE_WAIT_MAX;
        let mut is_open = false;
        loop {
            let create = WriteOp::CreateTask {
                record: Box::new(record.clone()),
                owner: owner.clone(),
                limits,
            };
            let error = match self.shared.durable.commit(create).await {
                Ok(written) => return Ok(written),
                Err(error) => error,
            };
            is_open |= matches!(error, StoreError::OutcomeUnknown(_));
            let may_pass = matches!(error.cause(), StoreError::Busy { .. });
            if !may_pass || Instant::now() + wait > give_up_at {
                if !is_open {
                    return Err(persistence::refusal(&error));
                }
                self.shared.running.spawn(recover_if_committed(
                    tasks.clone(),
                    record.task.clone(),
                    record.ttl.unwrap_or(TASK_RUN_MAX),
                ));
                let text =
                    "the database did not say whether it stored the task: it may be carried out";
                return Err(Refusal::new(ErrorKind::OutcomeUnknown, text));
            }
            tokio::time::sleep(wait).await;
            wait *= 2;
        }
    }

    /// What makes a repeated request the same one. A client without a name of its own shares none with others.
    fn idempotency(&self, wish: &TaskOptions, id: &RequestId, request: &[u8]) -> Vec<u8> {
        match &wish.idempotency_key {
            // Nothing tells those apart who have neither a key nor a session: each request is one of its own.
            Some(_) if self.is_anonymous() && !self.has_client => {
                hash(b"request", &[self.key.as_bytes(), id.raw(), request])
            }
            Some(key) if self.is_anonymous() => {
                hash(b"key of a session", &[self.creator_key().as_bytes(), key.as_bytes()])
            }
            Some(key) => hash(b"key", &[key.as_bytes()]),
            None => hash(b"request", &[self.key.as_bytes(), id.raw(), request]),
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

/// The request that made the task.
pub(super) fn note_origin(details: &mut TaskDetails, request: &request::RequestTelemetry) {
    details.request = Some(request.name.to_string());
    details.trace = request.tracing.as_ref().map(RequestTrace::carried);
}

/// The call as its backend gets it: its own name of the tool, and nothing that is between the client and the broker.
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
            format!("a call that is to be a task has at most {TASK_REQUEST_BYTES_MAX} bytes");
        return Err(Refusal::new(ErrorKind::MessageTooLarge, text)
            .with("size", request.len())
            .with("maxSize", TASK_REQUEST_BYTES_MAX));
    }
    Ok(request)
}

/// The same tool with the same arguments.
fn is_same_call(one: &[u8], other: &[u8]) -> bool {
    let read = |request: &[u8]| tasks::decoded(Bytes::copy_from_slice(request));
    let (Some(one), Some(other)) = (read(one), read(other)) else { return false };
    let same = |part: fn(&Message) -> Option<protocol::json::Span>| {
        one.bytes(part(&one)) == other.bytes(part(&other))
    };
    same(|message| message.fields.name) && same(|message| message.fields.arguments)
}

fn new_task(record: TaskRecord, at_us: i64, owner: NodeName) -> StoredTask {
    StoredTask {
        record,
        status: TaskStatus::Working,
        message: None,
        step: TaskStep::Queued,
        owner: Some(owner),
        created_at_us: at_us,
        updated_at_us: at_us,
        epoch: 1,
        revision: 1,
    }
}

/// The length of each part is hashed with it, so that no two lists of parts are the same bytes.
fn hash(purpose: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    let mut context = aws_lc_rs::digest::Context::new(&aws_lc_rs::digest::SHA256);
    for part in [purpose].iter().chain(parts) {
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part);
    }
    context.finish().as_ref().to_vec()
}

fn full(limit: TaskLimit, settings: &config::TaskConfig) -> Refusal {
    let text = match limit {
        TaskLimit::Running => format!(
            "the tenant has {} tasks running, which is its limit",
            settings.running_per_tenant
        ),
        TaskLimit::Stored => {
            format!("the tenant has {} tasks, which is its limit", settings.stored_per_tenant)
        }
        TaskLimit::Bytes => format!(
            "the tenant's tasks have {} bytes, which is its limit",
            settings.bytes_per_tenant
        ),
    };
    Refusal::new(ErrorKind::TaskLimit, text)
}

/// Nobody knows whether the task was made. If it was, its client may have been led to it when it asked again, so it is carried
/// out like any other.
async fn recover_if_committed(tasks: Arc<TaskManager>, task: TaskId, ttl: Duration) {
    if let Some(found) = await_commit(&tasks, &task, ttl).await
        && recovery::is_ours(&tasks.shared, &found.stored)
    {
        recovery::recover(tasks, found).await;
    }
}

/// The task, if it was made. A commit that waits (for a standby, say) is seen by nobody until it is through, which may be long.
pub(super) async fn await_commit(
    tasks: &Arc<TaskManager>,
    task: &TaskId,
    ttl: Duration,
) -> Option<FullTask> {
    let begun = Instant::now();
    let mut wait = STORE_RETRY_MAX;
    // Whoever comes after this process finds it, too.
    while tokio::time::timeout(wait, tasks.shared.draining.cancelled()).await.is_err() {
        match tasks
            .shared
            .durable
            .timed("whole_task", tasks.shared.durable.store.full_task(task))
            .await
        {
            Ok(Some(found)) => return Some(found),
            Ok(None) if begun.elapsed() >= ttl => return None,
            Ok(None) | Err(_) => {}
        }
        if begun.elapsed() >= COMMIT_SETTLES_WITHIN {
            wait = (wait * 2).min(COMMIT_LOOK_MAX);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_run_together() {
        assert_ne!(hash(b"x", &[b"ab", b"c"]), hash(b"x", &[b"a", b"bc"]));
        assert_ne!(hash(b"x", &[b"a"]), hash(b"y", &[b"a"]));
        assert_eq!(hash(b"x", &[b"a"]), hash(b"x", &[b"a"]));
    }

    #[test]
    fn a_backend_gets_the_call_without_what_is_ours() {
        let text = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"task":{"ttl":1},"name":"x","_meta":{"dev.mcp-broker/idempotency-key":"k","progressToken":1}}}"#;
        let message = tasks::decoded(Bytes::from_static(text.as_bytes())).unwrap();
        let plan = routing::Plan {
            backend: protocol::ids::BackendId::parse("b").unwrap(),
            edits: vec![],
            drop_task: false,
            names: routing::Named::Other,
        };
        let sent: serde_json::Value =
            serde_json::from_slice(&call_of(&message, &plan).unwrap()).unwrap();
        assert_eq!(sent["params"], serde_json::json!({"name": "x", "_meta": {"progressToken": 1}}));
    }
}
