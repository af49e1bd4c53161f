//! The limit of the notifications that one task sends.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rules::limits::TASK_NOTIFICATIONS_PER_SECOND;

use crate::sessions::progress::ProgressSeries;

/// Limit of the notifications that one task sends.
#[derive(Debug, Default)]
pub(super) struct NotificationLimiter {
    state: Mutex<NotificationLimiterState>,
    pub(super) progress: ProgressSeries,
}

#[derive(Debug, Default)]
struct NotificationLimiterState {
    /// Set when the task is ending. No notification is sent after that (MCP 2025-11-25, Tasks: no
    /// progress after the end).
    silent: bool,
    /// Start of the second that `sent` counts.
    since: Option<Instant>,
    sent: u32,
}

impl NotificationLimiter {
    pub(super) fn close(&self) {
        self.state.lock().silent = true;
    }

    pub(super) fn try_acquire(&self, now: Instant) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notifications_of_a_task_are_rate_limited() {
        let (limiter, now) = (NotificationLimiter::default(), Instant::now());
        let sent = (0..100).filter(|_| limiter.try_acquire(now)).count();
        assert_eq!(sent, TASK_NOTIFICATIONS_PER_SECOND as usize);
        assert!(limiter.try_acquire(now + Duration::from_secs(1)));
        limiter.close();
        assert!(!limiter.try_acquire(now + Duration::from_secs(5)));
    }
}
