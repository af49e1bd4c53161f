//! The attempts of a link to open a connection, and their effects on the link and its backend.
//!
//! Invariant: one attempt runs at a time, because its caller holds the turn (`Link::opening`).

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use config::units::format_duration;
use protocol::error::{ErrorKind, Refusal};
use rules::limits::{ERA_RETRIES_MAX, STABLE_AFTER};

use super::{
    Link, backoff::Backoff, connection::Connection, connection_guard::ConnectionGuard,
    failure::Failure,
};

/// Reason for which no connection was opened.
enum OpenError {
    /// The back-off does not permit an attempt yet.
    Waiting(Refusal),
    Failed(Failure),
}

impl Link {
    /// Returns the open connection, or makes one attempt to open one.
    pub(super) async fn open_once(self: Arc<Self>) -> Result<Arc<Connection>, Refusal> {
        if let Some(connection) = self.live() {
            return Ok(connection);
        }
        if !self.has_no_client() {
            self.backend.check_breaker()?;
        }
        if let Some(last) = self.current.swap(None) {
            record_end(&self, last);
        }
        let opened = tokio::select! {
            biased;
            () = self.closed.cancelled() => return Err(closed_refusal(&self)),
            opened = self.open_in_time() => opened,
        };
        match opened {
            Ok(connection) => self.start_using(connection).await,
            Err(OpenError::Waiting(refusal)) => Err(refusal),
            Err(OpenError::Failed(failure)) => Err(record_failed_open(&self, &failure)),
        }
    }

    /// Makes a new connection the one of the link, and restores the state of the last one on it.
    async fn start_using(
        self: &Arc<Self>,
        connection: Arc<Connection>,
    ) -> Result<Arc<Connection>, Refusal> {
        self.forget_own_lists();
        self.current.store(Some(connection.clone()));
        self.backend.link_opened(self, &connection);
        self.backend.health.record_attempts(self.backoff.lock().failures, None);
        self.record_backend_session(&connection);
        if self.is_closed() {
            // The close of the link came before this connection was stored.
            self.end_connection(&connection).await;
            return Err(closed_refusal(self));
        }
        self.driver.restore(self, &connection).await;
        Ok(connection)
    }

    async fn open_in_time(self: &Arc<Self>) -> Result<Arc<Connection>, OpenError> {
        let delay = self.backoff.lock().delay(&self.backend.id);
        tokio::time::sleep(delay.map_err(OpenError::Waiting)?).await;
        let limit = self.backend.timeouts().initialize;
        match tokio::time::timeout(limit, open_in_matching_era(self)).await {
            // No call has started, so the outcome is not unknown.
            Ok(Err(Failure::Unclear(text))) => Err(OpenError::Failed(Failure::busy(text))),
            Ok(opened) => opened.map_err(OpenError::Failed),
            Err(_) => {
                let text = format!("no answer to initialize within {}", format_duration(limit));
                Err(OpenError::Failed(Failure::NotSent(text)))
            }
        }
    }

    /// Opens a connection that closes when it is dropped. A failure of it changes nothing of the
    /// backend.
    pub(in crate::backends) async fn open_probe(
        self: &Arc<Self>,
    ) -> Result<ConnectionGuard, Failure> {
        let silent = || Failure::NotSent("no answer to initialize".to_owned());
        let limit = self.backend.timeouts().initialize;
        let opened = tokio::time::timeout(limit, self.driver.open(self)).await;
        let connection = opened.map_err(|_| silent())??;
        Ok(ConnectionGuard::new(&connection, &self.backend.context.running))
    }

    /// Returns whether the last failed attempt to connect does not show an unhealthy backend. The
    /// backend refused the connection, or the broker lacked a token or a child process.
    pub fn is_last_failure_harmless(&self) -> bool {
        self.backoff.lock().is_harmless
    }
}

/// Counts the end of the last connection in the back-off, and closes that connection.
fn record_end(link: &Link, last: Arc<Connection>) {
    // A backend that forgot its sessions is reachable and reports that at once. One that
    // forgets each new session gets pauses.
    let lived = last.opened.elapsed();
    if !last.is_forgotten()
        || lived < STABLE_AFTER && link.was_forgotten.swap(true, Ordering::Relaxed)
    {
        link.backoff.lock().record_lifetime(lived);
    }
    if lived >= STABLE_AFTER {
        link.was_forgotten.store(false, Ordering::Relaxed);
    }
    // The last connection may have ended abruptly. Its orderly close runs in the background. A
    // connection whose writing failed closes itself, after its last answers.
    if last.is_closed() {
        link.backend.context.running.spawn(async move { last.close().await });
    }
}

/// Opens a connection. Repeats a failed attempt that changed which era the backend is known to
/// support.
async fn open_in_matching_era(link: &Arc<Link>) -> Result<Arc<Connection>, Failure> {
    let mut retries = ERA_RETRIES_MAX;
    loop {
        let useful = link.backend.era.retries_useful();
        match link.driver.open(link).await {
            Err(_) if retries > 0 && link.backend.era.retries_useful() != useful => {
                retries -= 1;
            }
            opened => return opened,
        }
    }
}

/// Counts a failed attempt, and returns the refusal for the request that caused it.
fn record_failed_open(link: &Link, failure: &Failure) -> Refusal {
    link.backoff.lock().record_failed_attempt(failure);
    // The catalog's link retries without end. Its failures count only while the backend is
    // suspected.
    let counts = !link.has_no_client() || link.backend.admission.is_suspected();
    if counts && failure.counts_for_breaker() {
        link.backend.record_failure(Duration::ZERO);
    }
    let Backoff { failures, not_before, .. } = *link.backoff.lock();
    link.backend.health.record_attempts(failures, not_before);
    link.backend.report_failure(failure)
}

fn closed_refusal(link: &Link) -> Refusal {
    Refusal::new(
        ErrorKind::BackendUnavailable,
        format!("the link to backend {} is closed", link.backend.id),
    )
}
