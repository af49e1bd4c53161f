//! Looks at every task that somebody here waits for, or that runs here, with one question to the store for all of them: for
//! words that were lost, and while no words come from other replicas.
//!
//! Invariant: whoever began to wait before it read a task misses no change of it. What is seen for the first time, and what
//! is not as it was seen last, is a reason to look for everybody who waits.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use protocol::ids::TaskId;

use super::{TaskManager, run::StopReason};
use crate::{
    actors::shared::Shared,
    limits::{TASK_POLLER_BATCH, TASK_POLLER_INTERVAL, TASK_POLLER_INTERVAL_ALONE},
    persistence::{InputCounts, StoredTaskSnapshot},
};

/// How often runs that ask their client nothing are looked after: only somebody else may have ended their task.
const QUIET_RUNS_EVERY: u64 = 5;

/// What was seen of a task: revision, epoch, questions. `None`: it was not there.
type TaskSnapshot = Option<(i64, i64, InputCounts)>;

/// Looks until the process ends.
pub(super) async fn poll(shared: Arc<Shared>) {
    let mut seen: HashMap<TaskId, TaskSnapshot> = HashMap::new();
    for round in 1_u64.. {
        let connected = shared.durable.hot.is_connected();
        tokio::time::sleep(if connected {
            TASK_POLLER_INTERVAL
        } else {
            TASK_POLLER_INTERVAL_ALONE
        })
        .await;
        let wanted = shared.tasks.tasks_to_poll(round.is_multiple_of(QUIET_RUNS_EVERY));
        // Runs that were not asked for this time are remembered.
        seen.retain(|task, _| wanted.contains(task) || shared.tasks.run(task).is_some());
        let wanted: Vec<TaskId> = wanted.into_iter().collect();
        for some in wanted.chunks(TASK_POLLER_BATCH) {
            // What the store does not tell now it tells later.
            let Ok(looks) =
                shared.durable.timed("look_at", shared.durable.store.look_at(some)).await
            else {
                break;
            };
            apply_looks(&shared.tasks, some, looks, &mut seen);
        }
    }
}

fn apply_looks(
    tasks: &TaskManager,
    asked: &[TaskId],
    looks: Vec<StoredTaskSnapshot>,
    seen: &mut HashMap<TaskId, TaskSnapshot>,
) {
    let mut found: HashMap<TaskId, StoredTaskSnapshot> =
        looks.into_iter().map(|look| (look.stored.record.task.clone(), look)).collect();
    for task in asked {
        let look = found.remove(task);
        let is_over = look.as_ref().is_none_or(|look| look.stored.status.is_finished());
        let now = look.map(|look| (look.stored.revision, look.stored.epoch, look.inputs));
        let has_changed = seen.insert(task.clone(), now) != Some(now);
        if has_changed {
            tasks.wake_waiters(task);
        }
        if let Some(run) = tasks.run(task) {
            if is_over {
                run.stop(StopReason::Cancelled); // somebody else ended the task, or deleted it
            } else if has_changed && run.has_open_inputs() {
                run.changed.notify_waiters();
            }
        }
    }
}

impl TaskManager {
    /// Tasks that are waited for, and those that run here: all of them, or those with questions to their client.
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
