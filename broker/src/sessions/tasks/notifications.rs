//! Notifications of a running task to its client: progress, log messages and others.
//!
//! They go to the session that made the task, on whichever replica it is. Each task may send a few
//! per second. A notification is dropped where the session is not found.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use parking_lot::Mutex;
use rules::{event_log::EventKind, limits::TASK_NOTIFICATIONS_PER_SECOND};

use super::run::TaskRun;
use crate::{
    persistence::{TASK_NOTIFICATION_BYTES_MAX, Wakeup},
    sessions::{session::Session, stream::EventStream},
};

/// Limit of the notifications that one task sends.
#[derive(Debug, Default)]
pub(super) struct NotificationLimiter {
    state: Mutex<NotificationLimiterState>,
}

#[derive(Debug, Default)]
struct NotificationLimiterState {
    progress: Option<f64>,
    /// Set when the task is ending. No notification is sent after that (MCP 2025-11-25, Tasks: no
    /// progress after the end).
    silent: bool,
    /// Start of the second that `sent` counts.
    since: Option<Instant>,
    sent: u32,
}

impl NotificationLimiter {
    /// Returns whether progress of this value may go to the client (MCP: it increases with each
    /// notification).
    pub(super) fn progress_advances(&self, value: f64) -> bool {
        let mut state = self.state.lock();
        if state.progress.is_some_and(|last| value <= last) {
            return false;
        }
        state.progress = Some(value);
        true
    }

    pub(super) fn close(&self) {
        self.state.lock().silent = true;
    }

    fn try_acquire(&self, now: Instant) -> bool {
        let mut state = self.state.lock();
        if state.silent {
            return false;
        }
        if state
            .since
            .is_none_or(|since| now.saturating_duration_since(since) >= Duration::from_secs(1))
        {
            (state.since, state.sent) = (Some(now), 0);
        }
        state.sent += 1;
        state.sent <= TASK_NOTIFICATIONS_PER_SECOND
    }
}

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
                    .durable
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notifications_of_a_task_are_rate_limited_and_progress_only_rises() {
        let (limiter, now) = (NotificationLimiter::default(), Instant::now());
        let sent = (0..100).filter(|_| limiter.try_acquire(now)).count();
        assert_eq!(sent, TASK_NOTIFICATIONS_PER_SECOND as usize);
        assert!(limiter.try_acquire(now + Duration::from_secs(1)));
        limiter.close();
        assert!(!limiter.try_acquire(now + Duration::from_secs(5)));
        assert!(
            limiter.progress_advances(1.0)
                && !limiter.progress_advances(1.0)
                && limiter.progress_advances(1.5)
        );
    }
}
