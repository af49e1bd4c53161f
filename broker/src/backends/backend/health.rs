//! The health of one backend: whether it is reachable, its last error and its latency.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use protocol::error::Refusal;
use rules::limits::LATENCY_WEIGHT;
use tokio::sync::watch;

use crate::sandbox::ConfinementLevel;

/// Reachability of a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackendState {
    /// Not reached yet. The current attempt is not over.
    Connecting,
    Ready,
    /// Unreachable now. The broker serves its last good lists.
    Degraded,
    /// Unreachable since it was registered.
    Failed,
}

impl BackendState {
    pub fn name(self) -> &'static str {
        match self {
            BackendState::Connecting => "connecting",
            BackendState::Ready => "ready",
            BackendState::Degraded => "degraded",
            BackendState::Failed => "failed",
        }
    }
}

/// The reachability of a backend, and its mean latency.
#[derive(Debug)]
pub struct BackendHealth {
    state: watch::Sender<BackendState>,
    details: Mutex<HealthDetails>,
    latency_us: AtomicU64,
}

/// The health of a backend in the words of operators.
#[derive(Debug, Clone, Default)]
pub(super) struct HealthDetails {
    last_error: Option<String>,
    /// The unexpected end of a child process since the backend was ready last.
    child_end: Option<String>,
    /// Set when the log has a line about the current outage.
    down_logged: bool,
    /// Consecutive failures of the link that failed last. `next_attempt` is the time of its next
    /// attempt.
    pub(super) failed_attempts: u32,
    pub(super) next_attempt: Option<Instant>,
    /// The confinement of its children, known since the first start.
    pub(super) sandbox: Option<ConfinementLevel>,
}

impl HealthDetails {
    /// Returns the last error, with the end of a child process if one ended.
    pub(super) fn last_error_shown(&self) -> Option<String> {
        match (&self.last_error, &self.child_end) {
            (Some(error), Some(end)) => Some(format!("{error}; {end}")),
            (error, end) => error.as_ref().or(end.as_ref()).cloned(),
        }
    }
}

impl Default for BackendHealth {
    fn default() -> Self {
        Self {
            state: watch::Sender::new(BackendState::Connecting),
            details: Mutex::default(),
            latency_us: AtomicU64::new(0),
        }
    }
}

impl BackendHealth {
    pub fn state(&self) -> BackendState {
        *self.state.borrow()
    }

    pub fn set_state(&self, state: BackendState) {
        if state == BackendState::Ready {
            let mut details = self.details.lock();
            (details.last_error, details.child_end, details.down_logged) = (None, None, false);
        }
        self.state.send_replace(state);
    }

    /// Returns a backend that failed to [`BackendState::Connecting`].
    pub(super) fn retry_failed(&self) {
        self.state.send_if_modified(|state| {
            let failed = *state == BackendState::Failed;
            if failed {
                *state = BackendState::Connecting;
            }
            failed
        });
    }

    /// Waits until the first attempt to reach the backend is over.
    pub(super) async fn first_attempt_over(&self) {
        let mut state = self.state.subscribe();
        let _over = state.wait_for(|state| *state != BackendState::Connecting).await;
    }

    pub(super) fn record_error(&self, redacted: String) {
        self.details.lock().last_error = Some(redacted);
    }

    /// Notes an outage. Returns its cause, unless the log has a line about this outage.
    pub(super) fn record_outage(&self, refusal: &Refusal) -> Option<String> {
        let mut details = self.details.lock();
        let was_logged = std::mem::replace(&mut details.down_logged, true);
        let cause = || details.last_error.clone().unwrap_or_else(|| refusal.to_string());
        (!was_logged).then(cause)
    }

    /// Stores the number of failed attempts to open a link and the time of the next one. Both are
    /// reset once a link is open.
    pub fn record_attempts(&self, failed: u32, next: Option<Instant>) {
        let mut details = self.details.lock();
        (details.failed_attempts, details.next_attempt) = (failed, next);
    }

    /// Stores the confinement of a child that starts now.
    pub fn record_sandbox(&self, level: ConfinementLevel) {
        self.details.lock().sandbox = Some(level);
    }

    /// Stores the unexpected end of a child process. Operators see `how` unchanged.
    pub fn record_child_end(&self, mut how: String) {
        let mut details = self.details.lock();
        let unreachable = details.sandbox.iter().flat_map(|level| &level.unreachable);
        for why in unreachable {
            how += &format!("; {why}");
        }
        details.child_end = Some(how);
    }

    pub(super) fn record_latency(&self, time: Duration) {
        let sample = u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1);
        let before = self.latency_us.load(Ordering::Relaxed);
        let mean = if before == 0 {
            sample
        } else {
            (before * (LATENCY_WEIGHT - 1) + sample) / LATENCY_WEIGHT
        };
        self.latency_us.store(mean, Ordering::Relaxed);
    }

    /// Returns twice the mean latency, or zero while no latency is known.
    pub fn expected_latency(&self) -> Duration {
        Duration::from_micros(self.latency_us.load(Ordering::Relaxed).saturating_mul(2))
    }

    /// Returns the mean latency, once one is known.
    pub(super) fn latency_ms(&self) -> Option<f64> {
        let latency = self.latency_us.load(Ordering::Relaxed);
        (latency > 0).then_some(latency as f64 / 1000.0)
    }

    pub(super) fn details(&self) -> HealthDetails {
        self.details.lock().clone()
    }
}
