//! Retry timer of tasks: the wait for a backend that cannot be reached.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use protocol::error::{ErrorKind, Refusal};
use rules::limits::{BACKOFF_FIRST, BACKOFF_MAX};

use super::run::TaskRun;
use crate::backends::link::{Link, connection::Connection};

/// Timer of the wait for an unreachable backend. It lasts as long as a call may take, counted from
/// the first failure.
pub(super) struct RetryTimer {
    lasts: Duration,
    until: Option<Instant>,
    wait: Duration,
}

impl RetryTimer {
    pub(super) fn new(lasts: Duration) -> Self {
        Self { lasts, until: None, wait: BACKOFF_FIRST }
    }

    /// Waits until the next try. Returns false when the whole time is over.
    pub(super) async fn wait(&mut self, hint: Option<Duration>) -> bool {
        let until = *self.until.get_or_insert_with(|| Instant::now() + self.lasts);
        let remaining = until.saturating_duration_since(Instant::now());
        tokio::time::sleep(hint.unwrap_or(self.wait).min(BACKOFF_MAX).min(remaining)).await;
        self.wait = (self.wait * 2).min(BACKOFF_MAX);
        !remaining.is_zero()
    }

    /// Starts over, because the backend answers again.
    pub(super) fn reset(&mut self) {
        *self = Self::new(self.lasts);
    }
}

/// Returns a connection to the backend, and waits for one while the backend is unavailable.
pub(super) async fn connect(
    run: &Arc<TaskRun>,
    retry_timer: &mut RetryTimer,
) -> Result<(Arc<Link>, Arc<Connection>), Refusal> {
    loop {
        let refusal = match run.link() {
            Ok(link) => match link.backend.check_breaker() {
                Ok(()) => match link.connection().await {
                    Ok(connection) => return Ok((link, connection)),
                    Err(refusal) => refusal,
                },
                Err(refusal) => refusal,
            },
            Err(refusal) => refusal,
        };
        if refusal.kind != ErrorKind::BackendUnavailable
            || !retry_timer.wait(refusal.retry_after).await
        {
            return Err(refusal);
        }
    }
}
