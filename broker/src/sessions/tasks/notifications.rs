//! Notifications of a running task to its client: progress, log messages and others.
//!
//! They go to the session that created the task, on whichever replica it is. Each task may send a few
//! per second. A notification is dropped where the session is not found.

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use rules::event_log::EventKind;

use super::run::TaskRun;
use crate::{
    persistence::{TASK_NOTIFICATION_BYTES_MAX, Wakeup},
    sessions::{session::Session, stream::EventStream},
};

impl TaskRun {
    pub(super) fn send(&self, kind: EventKind, frame: Bytes) {
        if self.is_stopped() || !self.notifications.try_acquire(Instant::now()) {
            self.shared.metrics.dropped_notification("task");
            return;
        }
        match self.creator() {
            Some(session) => self.tasks.deliver(
                &session,
                kind,
                frame,
                self.tasks.result_stream(&self.id, &session),
            ),
            None if frame.len() <= TASK_NOTIFICATION_BYTES_MAX => {
                self.shared
                    .persistence
                    .hot
                    .publish(Wakeup::TaskNotification { session: self.record.session, frame });
            }
            None => self.shared.metrics.dropped_notification("task"),
        }
    }
}

impl super::TaskManager {
    /// Sends a notification on `stream`, where the client waits for the task. Otherwise the session
    /// chooses a stream.
    pub(super) fn deliver(
        &self,
        session: &Arc<Session>,
        kind: EventKind,
        frame: Bytes,
        stream: Option<Arc<EventStream>>,
    ) {
        match stream.filter(|stream| !stream.is_unreachable()) {
            Some(stream) => session.push_to(&stream, kind, frame),
            None => session.deliver(kind, frame),
        }
    }
}
