//! TaskManager that are this process's own by the record and that nobody here carries out: what made or claimed them was committed
//! after whoever asked for it had given up, or their run ended as another's. Nobody else takes them while this process lives,
//! so every few seconds what it owns is compared with what it does.
//!
//! Invariant: only what was missing at two looks in a row is taken up: at one it may be just about to begin, or just over.

use std::{collections::HashSet, sync::Arc};

use protocol::ids::TaskId;

use super::{TaskManager, recovery};
use crate::limits::TASK_ORPHAN_SWEEP_INTERVAL;

/// Compares until the process ends.
pub(super) async fn sweep_orphans(tasks: Arc<TaskManager>) {
    let mut missing = HashSet::new();
    while tokio::time::timeout(TASK_ORPHAN_SWEEP_INTERVAL, tasks.shared.draining.cancelled())
        .await
        .is_err()
    {
        missing = sweep_once(&tasks, missing).await;
    }
}

/// `before`: what was missing at the last look. Returns what is at this one.
pub(super) async fn sweep_once(
    tasks: &Arc<TaskManager>,
    before: HashSet<TaskId>,
) -> HashSet<TaskId> {
    let durable = &tasks.shared.durable;
    // Until somebody can ask, nothing is known.
    let Ok(owned) =
        durable.timed("tasks_of", durable.store.unfinished_tasks_of(&durable.names())).await
    else {
        return before;
    };
    let left_alone: HashSet<TaskId> = tasks.deferred().unwrap_or_default().into_iter().collect();
    let missing =
        owned.into_iter().filter(|task| !tasks.is_active(task) && !left_alone.contains(task));
    let (strays, missing): (HashSet<_>, HashSet<_>) =
        missing.partition(|task| before.contains(task));
    for task in strays {
        tasks.shared.running.spawn(adopt(tasks.clone(), task));
    }
    missing
}

async fn adopt(tasks: Arc<TaskManager>, task: TaskId) {
    let durable = &tasks.shared.durable;
    let Ok(found) = durable.timed("whole_task", durable.store.full_task(&task)).await else {
        return;
    };
    match found {
        Some(found) if recovery::is_ours(&tasks.shared, &found.stored) => {
            tracing::warn!(
                task = super::digest(&task),
                "a task of this process was carried out by nobody"
            );
            recovery::recover(tasks, found).await;
        }
        Some(_) => {}
        // Deleted just now, or it cannot be read, which need not be found out every time.
        None => drop(tasks.defer(&task)),
    }
}

/// A task on its way to be carried out, for as long as this lives.
pub(super) struct RecoveryGuard<'t> {
    tasks: &'t TaskManager,
    task: TaskId,
}

impl TaskManager {
    /// `None`: somebody is at it.
    pub(super) fn begin_recovery(&self, task: &TaskId) -> Option<RecoveryGuard<'_>> {
        let is_first = self.recovering.lock().insert(task.clone());
        is_first.then(|| RecoveryGuard { tasks: self, task: task.clone() })
    }

    /// It runs here, or is about to.
    pub(super) fn is_active(&self, task: &TaskId) -> bool {
        self.recovering.lock().contains(task) || self.run(task).is_some()
    }
}

impl Drop for RecoveryGuard<'_> {
    fn drop(&mut self) {
        self.tasks.recovering.lock().remove(&self.task);
    }
}
