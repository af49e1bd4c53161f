//! Recovery of tasks whose owner died, lost its lease, or released them.
//!
//! - A call that was not sent is sent.
//! - A task of the backend is watched further.
//! - A call that may have been carried out is sent again only where that is harmless. Otherwise its
//!   task ends with the outcome unknown.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use protocol::{
    error::{ErrorKind, Refusal},
    ids::TaskId,
};
use records::{FullTask, NodeName, StoredTask, TaskClaimScope, TaskStatus, WriteOp, WriteOutcome};
use rules::{
    limits::{TASK_CLAIM_BATCH, TASK_RUNS_MAX},
    tasks::{RecoveryAction, TaskOutcome, recovery_action},
};

use super::{
    TaskManager, observability,
    run::{RunPlan, RunState, StopReason, TaskRun},
    runner,
};
use crate::{
    persistence::{StoreRetry, Wakeup},
    sessions::shared::Shared,
    telemetry::request::{self, RequestTelemetry},
};

impl TaskManager {
    /// Continues the tasks that this process owns again under new epochs, after a lapse of its
    /// lease.
    pub fn resume_reclaimed(self: &Arc<Self>, tasks: Vec<(TaskId, i64)>) {
        let mut idle = Vec::new();
        for (task, epoch) in tasks {
            match self.run(&task) {
                Some(run) => run.set_epoch(epoch),
                None => idle.push((task, epoch)),
            }
        }
        // Their runs ended just now, or never started.
        if !idle.is_empty() {
            tokio::spawn(recover_all(self.clone(), idle));
        }
    }

    /// Releases the tasks that have not started, because the process drains.
    pub fn drain(&self) {
        self.all_runs()
            .iter()
            .for_each(|run| run.stop_if(StopReason::Released, RunState::is_unsent));
    }

    /// Releases all tasks to other processes, because the grace period is over.
    pub fn release_all(&self) {
        self.all_runs().iter().for_each(|run| run.stop(StopReason::Released));
    }
}

pub(super) async fn claim_unowned(tasks: Arc<TaskManager>) {
    loop {
        if tasks.shared.shutdown.is_draining() {
            return;
        }
        let (persistence, node) = (&tasks.shared.persistence, tasks.shared.persistence.node());
        let capacity = TASK_RUNS_MAX.saturating_sub(tasks.running());
        let scope = match persistence.is_shared() {
            true => persistence.lease.claim_scope(tasks.shared.config.session.lease),
            false => Some(TaskClaimScope::Unowned),
        };
        let limit = TASK_CLAIM_BATCH.min(u32::try_from(capacity).unwrap_or(u32::MAX));
        let mut found = 0;
        if let Some(scope) = scope.filter(|_| limit > 0) {
            let claimed = claim(&tasks, &node, scope, limit).await;
            found = claimed.len();
            for task in claimed {
                tasks.shared.running.spawn(recover(tasks.clone(), task));
            }
        }
        if found < TASK_CLAIM_BATCH as usize {
            tokio::select! {
                () = tokio::time::sleep(tasks.shared.config.session.lease / 2) => {}
                () = tasks.shared.shutdown.draining.cancelled() => return,
            }
        }
    }
}

/// Claims tasks of this scope for this process. If an answer was lost, the store returns the same tasks
/// again. If the process changed its name meanwhile, the claimed tasks may have another owner. They
/// are then reclaimed with the others of the old name, or claimed again.
async fn claim(
    tasks: &Arc<TaskManager>,
    node: &NodeName,
    scope: TaskClaimScope,
    limit: u32,
) -> Vec<FullTask> {
    let (persistence, Some(except)) = (&tasks.shared.persistence, tasks.deferred()) else {
        return Vec::new();
    };
    let claiming = persistence.store.claim_tasks(node, scope, limit, &except);
    let claim = persistence.timed("claim_tasks", claiming);
    let claimed = if persistence.is_shared() {
        // A claim that waited through an outage would come before the owners could renew their
        // leases.
        tokio::time::timeout(tasks.shared.config.session.lease / 2, claim).await.ok()
    } else {
        Some(claim.await)
    };
    claimed.and_then(Result::ok).filter(|_| persistence.node() == *node).unwrap_or_default()
}

/// Recovers tasks that this process owns under these epochs. Each task has its own recovery, because
/// the store may refuse a write of one task for long. A task that cannot be read waits for the next
/// round, so that it delays no other task.
async fn recover_all(manager: Arc<TaskManager>, mut tasks: Vec<(TaskId, i64)>) {
    let mut retry = StoreRetry::default();
    loop {
        let unread = Mutex::new(Vec::new());
        let recover_one = |(task, epoch): (TaskId, i64)| {
            let (manager, unread) = (manager.clone(), &unread);
            async move {
                match read_owned(&manager, &task, epoch).await {
                    Ok(Some(task)) => {
                        tokio::spawn(recover(manager, task));
                    }
                    Ok(None) => {}
                    Err(_) => unread.lock().push((task, epoch)),
                }
            }
        };
        stream::iter(tasks).for_each_concurrent(TASK_CLAIM_BATCH as usize, recover_one).await;
        tasks = unread.into_inner();
        if tasks.is_empty() {
            return;
        }
        retry.pause().await;
    }
}

/// Returns an unfinished task that this process owns under this epoch.
async fn read_owned(
    tasks: &Arc<TaskManager>,
    task: &TaskId,
    epoch: i64,
) -> Result<Option<FullTask>, Refusal> {
    let persistence = &tasks.shared.persistence;
    let stored = persistence.timed("get_full_task", persistence.store.full_task(task)).await?;
    Ok(stored.filter(|task| task.stored.epoch == epoch && !task.stored.status.is_finished()))
}

/// Returns whether this process owns an unfinished task.
pub(super) fn is_owned_here(shared: &Shared, stored: &StoredTask) -> bool {
    !stored.status.is_finished()
        && stored.owner.as_ref().is_some_and(|owner| shared.persistence.is_own_name(owner))
}

/// Continues a task that this process owns. The task may run here already.
pub(super) async fn recover(tasks: Arc<TaskManager>, task: FullTask) {
    let stored = &task.stored;
    let Some(_recovering) = tasks.start_recovery(&stored.record.task) else { return };
    if let Some(run) = tasks.run(&stored.record.task) {
        run.set_epoch(stored.epoch); // it has been running here all along
        return;
    }
    let tenant = tasks.tenant(&stored.record.tenant);
    let known = tenant.filter(|tenant| tenant.backend(&stored.record.backend).is_some());
    let Some((plan, tenant)) = RunPlan::read(&stored.record).zip(known) else {
        return defer(&tasks, stored).await;
    };
    close_inputs(&tasks, stored).await;
    let after = recovery_action(&stored.step, &plan.details);
    tracing::info!(task = super::digest(&stored.record.task), tenant = %stored.record.tenant, backend = %stored.record.backend, ?after, "the broker takes over a task");
    match after {
        RecoveryAction::Send | RecoveryAction::Poll => {
            let step = stored.step.clone();
            tasks.start(TaskRun::new(task, plan, tenant, &tasks), step);
        }
        RecoveryAction::Unknown => {
            let text = format!(
                "the broker that called backend {} ended before the answer came; the call may or may not have been carried out",
                stored.record.backend
            );
            let request = observability::request_of(
                &tasks.shared,
                Some(&tenant),
                &stored.record,
                &plan.details,
            );
            let refusal = Refusal::new(ErrorKind::OutcomeUnknown, text);
            request::scope(request.clone(), give_up(&tasks, stored, &refusal, &request)).await;
        }
    }
}

/// Leaves a task to other processes. A later version wrote it, or its tenant or backend is not
/// known here. If no process can carry it out, it ends with its time to live.
async fn defer(tasks: &Arc<TaskManager>, stored: &StoredTask) {
    let task = stored.record.task.clone();
    if tasks.defer(&task) {
        tracing::warn!(
            task = super::digest(&task),
            tenant = %stored.record.tenant,
            backend = %stored.record.backend,
            "the broker cannot run a task: the task is unreadable, or its tenant or backend is unknown"
        );
    }
    store_until_done(tasks, &WriteOp::ReleaseTask { task, epoch: stored.epoch }).await;
}

/// Closes the questions of a previous owner, because their answers cannot reach the backend any
/// more.
async fn close_inputs(tasks: &Arc<TaskManager>, stored: &StoredTask) {
    if stored.status != TaskStatus::InputRequired {
        return;
    }
    let (persistence, task) = (&tasks.shared.persistence, &stored.record.task);
    let mut retry = StoreRetry::default();
    let inputs = loop {
        match persistence.timed("list_task_inputs", persistence.store.open_task_inputs(task)).await
        {
            Ok(inputs) => break inputs,
            Err(_) => retry.pause().await,
        }
    };
    for input in inputs {
        store_until_done(
            tasks,
            &WriteOp::CloseInput { task: task.clone(), epoch: stored.epoch, number: input.number },
        )
        .await;
    }
    persistence.hot.publish(Wakeup::Task { task: task.clone(), session: stored.record.session });
}

/// Ends a task without its answer. `request` is the request that created the task.
async fn give_up(
    tasks: &Arc<TaskManager>,
    stored: &StoredTask,
    refusal: &Refusal,
    request: &RequestTelemetry,
) {
    let request_id =
        tasks.shared.record_refusal(refusal, None, Some(stored.record.tenant.as_str()));
    let TaskOutcome { status, message, outcome } = TaskOutcome::from_refusal(refusal, &request_id);
    let task = stored.record.task.clone();
    let change = WriteOp::EndTask {
        task: task.clone(),
        epoch: Some(stored.epoch),
        status,
        message,
        outcome: Some(outcome),
    };
    let is_stored = match store_until_done(tasks, &change).await {
        WriteOutcome::Done => true,
        // The store may have taken an earlier try whose answer was lost.
        WriteOutcome::AlreadyFinished => {
            runner::ended_under(&tasks.shared, &task, stored.epoch).await.is_some()
        }
        _ => false,
    };
    if is_stored {
        tasks.shared.metrics.task_transition(status.name());
        observability::record_end(&tasks.shared, request, status);
        tasks.shared.persistence.hot.publish(Wakeup::Task { task, session: stored.record.session });
    }
}

/// Stores a change, and retries until the store takes it. No other process would store it while
/// this one lives.
async fn store_until_done(tasks: &Arc<TaskManager>, change: &WriteOp) -> WriteOutcome {
    let mut retry = StoreRetry::default();
    loop {
        match tasks.shared.persistence.write(change.clone()).await {
            Ok(written) => return written,
            Err(_) => retry.pause().await,
        }
    }
}
