//! Listener for the wakeups about tasks that the replicas send, this one included.
//!
//! One listener serves the whole process. A wakeup is never more than a reason to read the store:
//! clients get only what the store holds. After lost wakeups every waiter reads the store.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use protocol::{handshake, ids::TaskId, method::Method};
use records::SessionKey;
use rules::{event_log::EventKind, tasks};
use tokio::sync::{
    broadcast::error::{RecvError, TryRecvError},
    mpsc,
};

use super::TaskManager;
use crate::{persistence::Wakeup, sessions::session::Session};

/// Most wakeups that are handled together.
const BATCH: usize = 256;
/// Most changes that wait to be sent to clients.
const STATUS_CHANGES_MAX: usize = 1_024;
/// Most tasks whose last sent status is kept.
const SENT_STATUSES_MAX: usize = 10_000;

/// Listens until the process ends.
pub(super) async fn listen(tasks: Arc<TaskManager>) {
    let mut subscription = tasks.shared.persistence.hot.subscribe();
    // Another task reads the store, so that a slow store does not delay the waiters.
    let (status_changes, changes) = mpsc::channel::<(TaskId, Arc<Session>)>(STATUS_CHANGES_MAX);
    tokio::spawn(notify_status(tasks.clone(), changes));
    loop {
        let mut wakeups = match subscription.recv().await {
            Ok(first) => vec![first],
            Err(RecvError::Lagged(_)) => {
                tasks.wake_all();
                continue;
            }
            Err(RecvError::Closed) => return,
        };
        while wakeups.len() < BATCH {
            match subscription.try_recv() {
                Ok(next) => wakeups.push(next),
                Err(TryRecvError::Lagged(_)) => tasks.wake_all(),
                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
            }
        }
        let mut changed = HashMap::new();
        for wake in wakeups {
            match wake {
                Wakeup::Task { task, session } => {
                    tasks.wake(&task);
                    changed.insert(task, session);
                }
                Wakeup::TaskNotification { session, frame } => {
                    relay_notification(&tasks, &session, frame)
                }
                Wakeup::Config | Wakeup::SessionEnd(_) | Wakeup::Verdict(_) => {} // others listen to these
            }
        }
        let here = changed
            .into_iter()
            .filter_map(|(task, session)| Some((task, tasks.shared.registry.get(&session)?)));
        for change in here {
            // Status notifications are not guaranteed (MCP 2025-11-25, Tasks), so a full queue
            // drops the change.
            let _full = status_changes.try_send(change);
        }
    }
}

/// Sends the new status of a task to the session that created it (MCP 2025-11-25, Tasks: status
/// notifications). Changes that arrive during a read of the store share the next read.
async fn notify_status(
    tasks: Arc<TaskManager>,
    mut changes: mpsc::Receiver<(TaskId, Arc<Session>)>,
) {
    let mut some = Vec::with_capacity(BATCH);
    while changes.recv_many(&mut some, BATCH).await > 0 {
        let sessions: HashMap<TaskId, Arc<Session>> = some.drain(..).collect();
        let changed: Vec<TaskId> = sessions.keys().cloned().collect();
        let Ok(snapshots) = tasks
            .shared
            .persistence
            .timed("get_task_snapshots", tasks.shared.persistence.store.task_snapshots(&changed))
            .await
        else {
            continue;
        };
        for stored in snapshots.iter().map(|snapshot| &snapshot.stored) {
            let Some(session) = sessions.get(&stored.record.task) else { continue };
            if tasks.record_if_new(&stored.record.task, stored.status) {
                let object = tasks::task_object(stored, tasks.shared.task_settings().poll_interval);
                session.deliver(
                    EventKind::Message,
                    handshake::notification(Method::TasksStatus, Some(object.as_bytes())),
                );
            }
        }
    }
}

/// Sends a notification of a task that another replica runs to a session that is here.
fn relay_notification(tasks: &TaskManager, session: &SessionKey, frame: Bytes) {
    let Some(session) = tasks.shared.registry.get(session) else { return };
    let task = tasks::decoded(frame.clone()).and_then(|message| {
        Some(TaskId::new(&*message.text(message.fields.meta_related_task_id)?))
    });
    let stream = task.and_then(|task| tasks.result_stream(&task, &session));
    tasks.deliver(&session, EventKind::Droppable, frame, stream);
}

impl TaskManager {
    /// Returns whether this status may follow the one that was sent last. If so, it counts as sent.
    fn record_if_new(&self, task: &TaskId, status: records::TaskStatus) -> bool {
        let mut inner = self.lock();
        let last = inner.notified_status.get(task).copied().unwrap_or(records::TaskStatus::Working);
        if !tasks::is_valid_transition(last, status) {
            return false;
        }
        if inner.notified_status.len() >= SENT_STATUSES_MAX
            && !inner.notified_status.contains_key(task)
        {
            // Status notifications are optional (MCP 2025-11-25, Tasks), so any task may lose its
            // entry.
            let any = inner.notified_status.keys().next().cloned();
            any.and_then(|any| inner.notified_status.remove(&any));
        }
        inner.notified_status.insert(task.clone(), status);
        true
    }
}

#[cfg(test)]
mod tests {
    use records::TaskStatus;

    use super::*;
    use crate::{broker::Broker, persistence::Stores};

    #[tokio::test]
    async fn the_sent_statuses_are_bounded_and_a_kept_one_is_not_sent_twice() {
        let tasks = &Broker::over(Stores::in_memory().await).tasks;
        for number in 0..SENT_STATUSES_MAX + 10 {
            let task = TaskId::new(number.to_string());
            assert!(tasks.record_if_new(&task, TaskStatus::InputRequired));
        }
        assert_eq!(tasks.lock().notified_status.len(), SENT_STATUSES_MAX);
        let kept = tasks.lock().notified_status.keys().next().unwrap().clone();
        assert!(!tasks.record_if_new(&kept, TaskStatus::InputRequired));
        assert!(tasks.record_if_new(&kept, TaskStatus::Completed));
        assert!(!tasks.record_if_new(&kept, TaskStatus::Completed));
        assert_eq!(tasks.lock().notified_status.len(), SENT_STATUSES_MAX);
    }
}
