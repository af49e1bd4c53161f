//! Poller of the tasks that run here, or that a client waits for here, with one query for all of
//! them. It makes up for lost notifications, and replaces them while other replicas cannot send
//! any.
//!
//! Invariant: a waiter that registered before it read a task misses no change of it. The poller
//! wakes all waiters of a task when it first sees the task, and whenever the task differs from the
//! last look.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use protocol::ids::TaskId;
use records::{InputCounts, StoredTaskSnapshot};
use rules::limits::{TASK_POLLER_BATCH, TASK_POLLER_INTERVAL, TASK_POLLER_INTERVAL_ALONE};

use super::{TaskManager, run::StopReason};

/// Rounds between two looks at runs that need no input of their client. Only another process or a
/// client can end their task.
const QUIET_RUNS_EVERY: u64 = 5;

/// State of a task at the last look: revision, epoch, questions. `None` if the store did not have
/// it.
type TaskSnapshot = Option<(i64, i64, InputCounts)>;

/// Polls until the process ends.
pub(super) async fn poll(tasks: Arc<TaskManager>) {
    let mut seen: HashMap<TaskId, TaskSnapshot> = HashMap::new();
    for round in 1_u64.. {
        let connected = tasks.shared.persistence.hot.is_connected();
        tokio::time::sleep(if connected {
            TASK_POLLER_INTERVAL
        } else {
            TASK_POLLER_INTERVAL_ALONE
        })
        .await;
        let wanted = tasks.tasks_to_poll(round.is_multiple_of(QUIET_RUNS_EVERY));
        // Runs that this round leaves out keep their last state.
        seen.retain(|task, _| wanted.contains(task) || tasks.run(task).is_some());
        let wanted: Vec<TaskId> = wanted.into_iter().collect();
        for some in wanted.chunks(TASK_POLLER_BATCH) {
            // If the store fails, the next round reads again.
            let Ok(snapshots) = tasks
                .shared
                .persistence
                .timed("get_task_snapshots", tasks.shared.persistence.store.task_snapshots(some))
                .await
            else {
                break;
            };
            apply_snapshots(&tasks, some, snapshots, &mut seen);
        }
    }
}

fn apply_snapshots(
    tasks: &TaskManager,
    polled: &[TaskId],
    snapshots: Vec<StoredTaskSnapshot>,
    seen: &mut HashMap<TaskId, TaskSnapshot>,
) {
    let mut found: HashMap<TaskId, StoredTaskSnapshot> = snapshots
        .into_iter()
        .map(|snapshot| (snapshot.stored.record.task.clone(), snapshot))
        .collect();
    for task in polled {
        let snapshot = found.remove(task);
        let is_over = snapshot.as_ref().is_none_or(|snapshot| snapshot.stored.status.is_finished());
        let now = snapshot
            .map(|snapshot| (snapshot.stored.revision, snapshot.stored.epoch, snapshot.inputs));
        let has_changed = seen.insert(task.clone(), now) != Some(now);
        if has_changed {
            tasks.wake_waiters(task);
        }
        if let Some(run) = tasks.run(task) {
            if is_over {
                run.stop(StopReason::Cancelled); // another replica ended the task, or deleted it
            } else if has_changed && run.has_open_inputs() {
                run.changed.notify_waiters();
            }
        }
    }
}

impl TaskManager {
    /// Returns the tasks that a client waits for, and those that run here. Without `all_runs`, only
    /// runs with open questions count.
    fn tasks_to_poll(&self, all_runs: bool) -> HashSet<TaskId> {
        let inner = self.lock();
        let waited = inner
            .waiting
            .iter()
            .filter(|(_, waiting)| waiting.iter().any(|one| one.strong_count() > 0));
        let runs =
            inner.running.values().filter(|running| all_runs || running.run.has_open_inputs());
        waited
            .map(|(task, _)| task.clone())
            .chain(runs.map(|running| running.run.id.clone()))
            .collect()
    }
}
