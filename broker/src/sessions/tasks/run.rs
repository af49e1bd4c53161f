//! State of a task that this process carries out, shared by its runner and its link.
//!
//! It begins when a task is created or taken over, and ends with the run. The store holds the
//! record, and this state may be lost with the process. Every change goes through
//! [`TaskRun::commit`], under the epoch of the ownership.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use protocol::{
    capabilities::ClientCapabilities,
    error::{ErrorKind, Refusal},
    ids::TaskId,
    version::Version,
};
use records::{FullTask, TaskRecord, TaskStatus, TaskStep, WriteOp, WriteOutcome};
use rules::{
    endpoint::Endpoint,
    limits::{STORE_RETRY_MAX, TASK_RUN_MAX},
    link_sharing::LinkScope,
    log_level::LogLevel,
    tasks::TaskDetails,
};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{TaskManager, notification_limiter::NotificationLimiter, reply_route::ReplyRoute};
use crate::{
    backends::{
        backend::EffectiveTimeouts,
        backend_admission::CallOwner,
        link::{Link, LinkHold, LinkUser, connection::requester::SentRequest},
    },
    persistence::{StoreRetry, Wakeup},
    sessions::{session::Session, shared::Shared, tenant::Tenant},
    telemetry::{child_span::ChildSpan, request::RequestTelemetry},
};

/// Reason why a run ends before its call does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// A client or an operator cancelled the task.
    Cancelled,
    /// Another process owns the task now, or the task was deleted.
    Lost,
    /// This process drains, and another one continues the task.
    Released,
}

#[derive(Debug)]
pub struct TaskRun {
    pub(super) this: Weak<Self>,
    pub id: TaskId,
    pub record: TaskRecord,
    pub details: TaskDetails,
    /// Capabilities of the client that created the task.
    pub client: ClientCapabilities,
    pub version: Version,
    pub endpoint: Endpoint,
    pub tenant: Arc<Tenant>,
    pub shared: Arc<Shared>,
    pub(super) tasks: Arc<TaskManager>,
    epoch: AtomicI64,
    /// True if the record named a task of the backend when the run began.
    pub(super) was_delegated: bool,
    /// End of the task's time.
    pub deadline: Instant,
    stop: CancellationToken,
    /// Notified when something may have changed: an answer of the client, a message of the backend,
    /// the end of the task.
    pub(super) changed: Notify,
    /// Notified when the backend sent a message about its own task.
    pub(super) backend_notified: Notify,
    pub(super) notifications: NotificationLimiter,
    /// The request as the log, its trace and the audit log record it.
    pub(super) request: OnceLock<Arc<RequestTelemetry>>,
    state: Mutex<RunState>,
}

#[derive(Debug, Default)]
pub(super) struct RunState {
    pub(super) stop_reason: Option<StopReason>,
    /// Set when the call may be on its way to the backend, or may have been carried out there.
    pub(super) maybe_sent: bool,
    pub(super) link_hold: Option<LinkHold>,
    pub(super) sent_request: Option<SentRequest>,
    /// Set when the call was sent as a task, which has a cancellation of its own.
    pub(super) as_task: bool,
    /// Set when the call was sent as a task and the backend has not answered yet.
    pub(super) creating: bool,
    /// The backend's own task and its link.
    pub(super) backend_task: Option<TrackedBackendTask>,
    /// The backend's requests that wait for the client, by number.
    pub(super) inputs: BTreeMap<i64, OpenInput>,
    pub(super) inputs_opened: i64,
    /// Requests of the backend that are being stored, withdrawn ones included.
    pub(super) inputs_storing: usize,
}

impl RunState {
    pub(super) fn is_unsent(&self) -> bool {
        !self.maybe_sent && self.backend_task.is_none()
    }

    pub(super) fn keeps_backend_task(&self) -> bool {
        matches!(self.stop_reason, Some(StopReason::Released | StopReason::Lost))
            && self.backend_task.is_some()
    }
}

/// A task of the backend.
#[derive(Debug, Clone)]
pub(super) struct TrackedBackendTask {
    pub(super) id: String,
    pub(super) link: Arc<Link>,
    /// The step that still has to be stored.
    pub(super) unstored: Option<TaskStep>,
}

/// A request of the backend that waits for the client's answer.
#[derive(Debug, Clone)]
pub(super) struct OpenInput {
    pub(super) reply_route: ReplyRoute,
    pub(super) requested_at: Instant,
    /// Set when the store holds the question.
    pub(super) stored: bool,
    pub(super) span: Option<Arc<Mutex<Option<ChildSpan>>>>,
}

impl OpenInput {
    pub(super) fn take_span(&self) -> Option<ChildSpan> {
        self.span.as_ref()?.lock().take()
    }
}

/// The fixed parts of a task that a run needs.
pub(super) struct RunPlan {
    pub(super) details: TaskDetails,
    pub(super) client: ClientCapabilities,
    pub(super) version: Version,
}

impl RunPlan {
    /// Reads the plan. `None` if a later version wrote the record, or if it is damaged.
    pub(super) fn read(record: &TaskRecord) -> Option<Self> {
        let details = TaskDetails::decode(&record.details)?;
        let client = ClientCapabilities::parse(details.capabilities.as_bytes()).ok()?;
        let version = Version::parse(&details.version)?;
        Some(Self { details, client, version })
    }
}

impl TaskRun {
    pub(super) fn new(
        task: FullTask,
        plan: RunPlan,
        tenant: Arc<Tenant>,
        tasks: &Arc<TaskManager>,
    ) -> Arc<Self> {
        let FullTask { stored, remaining_ttl } = task;
        if let Some(digest) = &plan.details.subject_token {
            let TaskRecord { tenant, principal, .. } = &stored.record;
            tasks.shared.oauth.subjects.select_for_task(tenant, principal, &digest.as_str().into());
        }
        let remaining_ttl =
            remaining_ttl.map_or(TASK_RUN_MAX, |remaining_ttl| remaining_ttl.min(TASK_RUN_MAX));
        Arc::new_cyclic(|this| Self {
            this: this.clone(),
            id: stored.record.task.clone(),
            endpoint: plan.details.endpoint(),
            was_delegated: matches!(stored.step, TaskStep::Delegated { .. }),
            record: stored.record,
            details: plan.details,
            client: plan.client,
            version: plan.version,
            tenant,
            shared: tasks.shared.clone(),
            tasks: tasks.clone(),
            epoch: AtomicI64::new(stored.epoch),
            deadline: Instant::now() + remaining_ttl,
            stop: CancellationToken::new(),
            changed: Notify::new(),
            backend_notified: Notify::new(),
            notifications: NotificationLimiter::default(),
            request: OnceLock::new(),
            state: Mutex::default(),
        })
    }

    pub fn epoch(&self) -> i64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Sets a higher epoch under which this process owns the task.
    pub(super) fn set_epoch(&self, epoch: i64) {
        self.epoch.fetch_max(epoch, Ordering::AcqRel);
        self.changed.notify_waiters();
    }

    /// Stops the run. The first reason counts.
    pub fn stop(&self, why: StopReason) {
        self.stop_if(why, |_| true);
    }

    /// Stops the run if `stands` accepts its state. The state stays locked in between.
    pub(super) fn stop_if(&self, why: StopReason, stands: impl FnOnce(&RunState) -> bool) {
        let mut state = self.lock();
        if stands(&state) {
            state.stop_reason.get_or_insert(why);
            drop(state);
            self.stop.cancel();
        }
    }

    pub(super) async fn stopped(&self) -> StopReason {
        self.stop.cancelled().await;
        self.lock().stop_reason.unwrap_or(StopReason::Lost)
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Returns whether the backend's task continues with another process. Its open questions are
    /// then not refused.
    pub(super) fn keeps_backend_task(&self) -> bool {
        self.lock().keeps_backend_task()
    }

    /// Returns whether the task waits for answers of its client.
    pub(super) fn has_open_inputs(&self) -> bool {
        !self.lock().inputs.is_empty()
    }

    /// Returns the owner that the call counts for.
    pub(super) fn caller(&self) -> CallOwner<'_> {
        self.tenant.call_owner(&self.record.principal, &self.record.session)
    }

    pub fn timeouts(&self) -> EffectiveTimeouts {
        let common = &self.shared.config.timeouts;
        let usual = EffectiveTimeouts {
            call: common.call,
            control: common.control,
            initialize: common.initialize,
        };
        self.tenant.backend(&self.record.backend).map_or(usual, |backend| backend.timeouts())
    }

    /// Returns the session that created the task, if it is here.
    pub fn creator(&self) -> Option<Arc<Session>> {
        self.shared.registry.get(&self.record.session)
    }

    pub fn stored_log_level(&self) -> Option<LogLevel> {
        self.details.log_level.as_deref().and_then(LogLevel::parse)
    }

    /// Returns the client's progress token, as the client sent it.
    pub fn progress_token(&self) -> Option<Bytes> {
        self.details.progress_token.as_ref().map(|token| Bytes::copy_from_slice(token.as_bytes()))
    }

    /// Returns the link for the call: that of the session that created the task, so that the backend
    /// sees one client. The task gets a link of its own if that session is not here.
    pub(super) fn link(self: &Arc<Self>) -> Result<Arc<Link>, Refusal> {
        let backend = &self.record.backend;
        if let Some(link) = self.creator().and_then(|session| session.link_to(backend).ok())
            && self.hold_link(&link)
        {
            return Ok(link);
        }
        let gone = || {
            Refusal::new(
                ErrorKind::BackendUnavailable,
                format!("backend {backend} is not registered"),
            )
        };
        let known = self.tenant.backend(backend).ok_or_else(gone)?;
        let link = loop {
            let link = known.link_for_task(self.link_user()).ok_or_else(gone)?;
            if self.hold_link(&link) {
                break link;
            }
        };
        link.adapt_level(self.stored_log_level());
        Ok(link)
    }

    fn link_user(&self) -> LinkUser<'_> {
        LinkUser {
            own: LinkScope::Task(self.id.clone()),
            principal: &self.record.principal,
            client: &self.client,
        }
    }

    /// Keeps the link open for this task. Returns `false` if the link is closed.
    pub(super) fn hold_link(self: &Arc<Self>, link: &Arc<Link>) -> bool {
        let known =
            self.lock().link_hold.as_ref().is_some_and(|hold| Arc::ptr_eq(&hold.link, link));
        if known {
            return !link.is_closed();
        }
        let Some(hold) = link.hold(self.this.clone()) else { return false };
        let before = self.lock().link_hold.replace(hold);
        drop(before); // it locks its link
        true
    }

    /// Returns the link that carries the requests of the task.
    pub(super) fn held_link(&self) -> Option<Arc<Link>> {
        self.lock().link_hold.as_ref().map(|hold| hold.link.clone())
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, RunState> {
        self.state.lock()
    }

    // Changes of the record.

    /// Stores a change of this task, and retries until the store takes it. Returns `Err` if the
    /// task is over or has another owner; the run then stops.
    pub(super) async fn commit(&self, change: impl Fn(i64) -> WriteOp) -> Result<(), StopReason> {
        self.try_commit(change, u32::MAX).await.map(drop)
    }

    /// Stores that the task has reached a step, as [`Self::commit`] does.
    pub(super) async fn commit_step(&self, step: TaskStep) -> Result<(), StopReason> {
        let task = &self.id;
        let change = |epoch| WriteOp::AdvanceTask { task: task.clone(), epoch, step: step.clone() };
        self.commit(change).await
    }

    /// Stores a change of this task, and returns its outcome. Returns `Ok(None)` if the store was
    /// too busy for it `busy_max` times.
    pub(super) async fn try_commit(
        &self,
        change: impl Fn(i64) -> WriteOp,
        mut busy_max: u32,
    ) -> Result<Option<WriteOutcome>, StopReason> {
        let mut retry = StoreRetry::default();
        loop {
            let epoch = self.epoch();
            match self.shared.persistence.write(change(epoch)).await {
                Ok(WriteOutcome::AlreadyFinished) => {
                    return Err(self.stopped_by(StopReason::Cancelled));
                }
                Ok(WriteOutcome::Fenced | WriteOutcome::NotFound) => {
                    match self.is_still_owned(epoch).await {
                        Ok(true) => {}
                        Ok(false) => return Err(self.stopped_by(StopReason::Lost)),
                        Err(_) => tokio::time::sleep(STORE_RETRY_MAX).await,
                    }
                }
                Ok(outcome) => return Ok(Some(outcome)),
                Err(refusal) if refusal.kind == ErrorKind::StoreBusy && busy_max <= 1 => {
                    return Ok(None);
                }
                // The change may have been stored. Storing it twice has no further effect.
                Err(refusal) => {
                    tracing::debug!(task = %self.digest(), %refusal, "the broker could not store a step of a task and tries again");
                    busy_max -= u32::from(refusal.kind == ErrorKind::StoreBusy);
                    retry.pause().await;
                }
            }
        }
    }

    fn stopped_by(&self, why: StopReason) -> StopReason {
        self.stop(why);
        self.lock().stop_reason.unwrap_or(why)
    }

    /// Returns whether the task is owned under another epoch now, after a lapse of the lease.
    /// `Ok(false)`: another process owns it.
    async fn is_still_owned(&self, epoch: i64) -> Result<bool, Refusal> {
        if self.epoch() != epoch {
            return Ok(true);
        }
        let persistence = &self.shared.persistence;
        let Some(found) = persistence.timed("get_task", persistence.store.task(&self.id)).await?
        else {
            return Ok(false);
        };
        let is_owned = found.owner.as_ref().is_some_and(|owner| persistence.is_own_name(owner));
        if is_owned {
            self.set_epoch(found.epoch);
        }
        Ok(is_owned && self.epoch() != epoch)
    }

    /// Wakes the waiters for this task, here and on other replicas.
    pub(super) fn announce(&self) {
        self.shared
            .persistence
            .hot
            .publish(Wakeup::Task { task: self.id.clone(), session: self.record.session });
    }

    pub(super) fn count_transition(&self, to: TaskStatus) {
        self.shared.metrics.task_transition(to.name());
    }

    /// Names the task in the log, because some callers need only the id to see the task.
    pub fn digest(&self) -> String {
        super::digest(&self.id)
    }

    pub(super) fn remaining_time(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }
}
