//! Listens to what other replicas (and this one) say about tasks, and hands it on to whoever is here.
//!
//! One task of its own for the whole process. A word is never more than a reason to look: what is told to a client is read
//! from the store. Words that were missed are made up for by looking at everything.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use protocol::{handshake, ids::TaskId, method::Method};
use tokio::sync::{
    broadcast::error::{RecvError, TryRecvError},
    mpsc,
};

use super::TaskManager;
use crate::{
    persistence::{SessionKey, Wakeup},
    rules::{event_log::EventKind, tasks},
    sessions::session::Session,
};

/// Words taken together.
const BATCH: usize = 256;
/// Changes that wait to be told.
const TO_TELL_MAX: usize = 1_024;
/// TaskManager of which is known what their clients were told last.
const TOLD_MAX: usize = 10_000;

/// Listens until the process ends.
pub(super) async fn listen(tasks: Arc<TaskManager>) {
    let mut wakes = tasks.shared.durable.hot.wakes();
    // Read beside the listening: a slow store does not hold up who waits for a word.
    let (to_tell, changes) = mpsc::channel::<(TaskId, Arc<Session>)>(TO_TELL_MAX);
    tokio::spawn(notify_status(tasks.clone(), changes));
    loop {
        let mut words = match wakes.recv().await {
            Ok(first) => vec![first],
            Err(RecvError::Lagged(_)) => {
                tasks.wake_all();
                continue;
            }
            Err(RecvError::Closed) => return,
        };
        while words.len() < BATCH {
            match wakes.try_recv() {
                Ok(next) => words.push(next),
                Err(TryRecvError::Lagged(_)) => tasks.wake_all(),
                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
            }
        }
        let mut changed = HashMap::new();
        for wake in words {
            match wake {
                Wakeup::Task { task, session } => {
                    tasks.wake(&task);
                    changed.insert(task, session);
                }
                Wakeup::TaskNotification { session, frame } => {
                    relay_notification(&tasks, &session, frame)
                }
                Wakeup::Config | Wakeup::SessionEnd(_) => {} // others listen to these
            }
        }
        let here = changed
            .into_iter()
            .filter_map(|(task, session)| Some((task, tasks.shared.registry.get(&session)?)));
        for change in here {
            // Notifications of a status are no promise (MCP 2025-11-25, TaskManager), so none is better than a late one.
            let _full = to_tell.try_send(change);
        }
    }
}

/// Tells sessions that made a task how it stands, where that is news (MCP 2025-11-25, TaskManager: status notifications). Whatever
/// changed while the store was asked is asked for together.
async fn notify_status(
    tasks: Arc<TaskManager>,
    mut changes: mpsc::Receiver<(TaskId, Arc<Session>)>,
) {
    let mut some = Vec::with_capacity(BATCH);
    while changes.recv_many(&mut some, BATCH).await > 0 {
        let sessions: HashMap<TaskId, Arc<Session>> = some.drain(..).collect();
        let changed: Vec<TaskId> = sessions.keys().cloned().collect();
        let Ok(looks) = tasks
            .shared
            .durable
            .timed("look_at", tasks.shared.durable.store.task_snapshots(&changed))
            .await
        else {
            continue;
        };
        for stored in looks.iter().map(|look| &look.stored) {
            let Some(session) = sessions.get(&stored.record.task) else { continue };
            if tasks.note_if_new(&stored.record.task, stored.status) {
                let object = tasks::object(stored, tasks.shared.task_settings().poll_interval);
                session.deliver(
                    EventKind::Message,
                    handshake::notification(Method::TasksStatus, Some(object.as_bytes())),
                );
            }
        }
    }
}

/// A word of a task that is carried out elsewhere, for a session that lives here.
fn relay_notification(tasks: &TaskManager, session: &SessionKey, frame: Bytes) {
    let Some(session) = tasks.shared.registry.get(session) else { return };
    let task = tasks::decoded(frame.clone()).and_then(|message| {
        Some(TaskId::new(&*message.text(message.fields.meta_related_task_id)?))
    });
    let stream = task.and_then(|task| tasks.result_stream(&task, &session));
    tasks.deliver(&session, EventKind::Droppable, frame, stream);
}

impl TaskManager {
    /// Whether this status may be told after the one that was told last. It counts as told then.
    fn note_if_new(&self, task: &TaskId, status: crate::persistence::TaskStatus) -> bool {
        let mut inner = self.lock();
        let last = inner
            .notified_status
            .get(task)
            .copied()
            .unwrap_or(crate::persistence::TaskStatus::Working);
        if !tasks::may_follow(last, status) {
            return false;
        }
        if inner.notified_status.len() >= TOLD_MAX {
            inner.notified_status.retain(|_, told| !told.is_finished());
        }
        inner.notified_status.insert(task.clone(), status);
        true
    }
}
