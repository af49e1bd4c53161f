//! Finds tasks that this process owns by their record but does not carry out.
//!
//! A task becomes such an orphan in two ways. Its creation or claim was committed after the request
//! had given up, or its run ended as lost. No other process claims the task while this one lives.
//! This process therefore compares, every few seconds, the tasks it owns with the tasks it runs.
//!
//! Invariant: a task is recovered only when it was missing in two comparisons in a row. A task that
//! is missing once may be about to start, or may have just ended.

use std::{collections::HashSet, sync::Arc};

use protocol::ids::TaskId;
use rules::limits::TASK_ORPHAN_SWEEP_INTERVAL;

use super::{TaskManager, recovery};

/// Compares until the process drains.
pub(super) async fn sweep_orphans(tasks: Arc<TaskManager>) {
    let mut missing = HashSet::new();
    while tokio::time::timeout(
        TASK_ORPHAN_SWEEP_INTERVAL,
        tasks.shared.shutdown.draining.cancelled(),
    )
    .await
    .is_err()
    {
        missing = sweep_once(&tasks, missing).await;
    }
}

/// Compares once. `before` holds the tasks that were missing at the last comparison. Returns the
/// tasks that are missing now.
pub(super) async fn sweep_once(
    tasks: &Arc<TaskManager>,
    before: HashSet<TaskId>,
) -> HashSet<TaskId> {
    let persistence = &tasks.shared.persistence;
    // Without an answer of the store the comparison keeps its earlier state.
    let Ok(owned) = persistence
        .timed("list_unfinished_tasks", persistence.store.unfinished_tasks_of(&persistence.names()))
        .await
    else {
        return before;
    };
    let deferred: HashSet<TaskId> = tasks.deferred().unwrap_or_default().into_iter().collect();
    let missing =
        owned.into_iter().filter(|task| !tasks.is_active(task) && !deferred.contains(task));
    let (strays, missing): (HashSet<_>, HashSet<_>) =
        missing.partition(|task| before.contains(task));
    for task in strays {
        tasks.shared.running.spawn(adopt(tasks.clone(), task));
    }
    missing
}

async fn adopt(tasks: Arc<TaskManager>, task: TaskId) {
    let persistence = &tasks.shared.persistence;
    let Ok(found) = persistence.timed("get_full_task", persistence.store.full_task(&task)).await
    else {
        return;
    };
    match found {
        Some(found) if recovery::is_owned_here(&tasks.shared, &found.stored) => {
            tracing::warn!(
                task = super::digest(&task),
                "the broker recovers a task of this process that was not running"
            );
            recovery::recover(tasks, found).await;
        }
        Some(_) => {}
        // The store has deleted the task, or cannot read it. The deferral avoids repeated reads.
        None => drop(tasks.defer(&task)),
    }
}

/// Marks a task as being recovered until it is dropped.
pub(super) struct RecoveryGuard<'t> {
    tasks: &'t TaskManager,
    task: TaskId,
}

impl TaskManager {
    /// Marks a task as being recovered. Returns `None` if another recovery of it is under way.
    pub(super) fn start_recovery(&self, task: &TaskId) -> Option<RecoveryGuard<'_>> {
        let is_first = self.recovering.lock().insert(task.clone());
        is_first.then(|| RecoveryGuard { tasks: self, task: task.clone() })
    }

    /// Returns whether the task runs here, or is about to.
    pub(super) fn is_active(&self, task: &TaskId) -> bool {
        self.recovering.lock().contains(task) || self.run(task).is_some()
    }
}

impl Drop for RecoveryGuard<'_> {
    fn drop(&mut self) {
        self.tasks.recovering.lock().remove(&self.task);
    }
}
