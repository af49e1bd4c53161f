//! Clock of one call: its time limits, and the times of its last events.

use std::{
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use rules::{deadlines::CallDeadline, limits::approvals::APPROVAL_ANSWER_MARGIN};

use crate::sessions::deadline_list::DeadlineStatus;

/// Time limits and times of one call. The idle time does not pass while the client has questions of
/// the backend to answer.
#[derive(Debug)]
pub(super) struct CallClock {
    started_at: Instant,
    deadline: CallDeadline,
    /// Milliseconds after `started_at` of the backend's last message for the call.
    touched_ms: AtomicU64,
    /// Milliseconds after `started_at` at which the request was sent.
    sent_ms: AtomicU64,
    /// Questions of the backend that the client has not answered yet.
    open_questions: AtomicUsize,
}

impl CallClock {
    pub(super) fn new(started_at: Instant, deadline: CallDeadline) -> Self {
        Self {
            started_at,
            deadline,
            touched_ms: AtomicU64::new(0),
            sent_ms: AtomicU64::new(0),
            open_questions: AtomicUsize::new(0),
        }
    }

    pub(super) fn elapsed(&self) -> Duration {
        Duration::from_millis(self.ms_at(Instant::now()))
    }

    /// Returns the time from the start of the call until `now`.
    pub(super) fn elapsed_at(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.started_at)
    }

    /// Restarts the idle time.
    pub(super) fn touch(&self) {
        self.touched_ms.store(self.ms_at(Instant::now()), Ordering::Relaxed);
    }

    pub(super) fn record_sent(&self, at: Instant) {
        self.sent_ms.store(self.ms_at(at), Ordering::Relaxed);
    }

    pub(super) fn elapsed_since_sent(&self) -> Duration {
        let sent = Duration::from_millis(self.sent_ms.load(Ordering::Relaxed));
        self.elapsed().saturating_sub(sent)
    }

    /// Returns whether the backend sent nothing since the request was sent, not even a question.
    pub(super) fn is_silent_since_sent(&self) -> bool {
        self.touched_ms.load(Ordering::Relaxed) <= self.sent_ms.load(Ordering::Relaxed)
            && self.open_questions.load(Ordering::Relaxed) == 0
    }

    pub(super) fn question_opened(&self) {
        self.open_questions.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn question_closed(&self) {
        self.open_questions.fetch_sub(1, Ordering::Relaxed);
        self.touch();
    }

    pub(super) fn idle_timeout(&self) -> Duration {
        self.deadline.idle
    }

    /// Returns the deadline of a call for which nothing happens.
    pub(super) fn first_deadline(&self) -> Instant {
        self.started_at + self.shortest_timeout()
    }

    /// Returns the time until which the call waits for a permit. `held` is the time for which it
    /// waited for an approval before.
    pub(super) fn permit_deadline(&self, held: Duration) -> Instant {
        self.started_at + held + self.deadline.idle
    }

    /// Returns the time at which the client gets an answer although the call waits for an approval.
    pub(super) fn approval_deadline(&self) -> Instant {
        let lasts = self.shortest_timeout();
        self.started_at + (lasts - APPROVAL_ANSWER_MARGIN.min(lasts / 4))
    }

    /// Returns the deadline: the idle time after the last event, and never beyond the total time.
    pub(super) fn deadline_status(&self, now: Instant) -> DeadlineStatus {
        let CallDeadline { idle, total } = self.deadline;
        if self.open_questions.load(Ordering::Relaxed) > 0 {
            self.touched_ms.store(self.ms_at(now), Ordering::Relaxed);
        }
        let touched = Duration::from_millis(self.touched_ms.load(Ordering::Relaxed));
        match self.started_at.checked_add(touched.saturating_add(idle).min(total)) {
            Some(due) if now < due => DeadlineStatus::At(due),
            Some(_) => DeadlineStatus::Passed,
            None => DeadlineStatus::Never,
        }
    }

    fn shortest_timeout(&self) -> Duration {
        self.deadline.idle.min(self.deadline.total)
    }

    fn ms_at(&self, at: Instant) -> u64 {
        u64::try_from(self.elapsed_at(at).as_millis()).unwrap_or(u64::MAX)
    }
}
