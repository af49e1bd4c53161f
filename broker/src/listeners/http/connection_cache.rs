//! Cache of a connection between its requests: the results of checks on a repeated head, and a
//! timer. Paths that do not compare heads create a new cache for each request.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
};

use http::HeaderMap;
use parking_lot::Mutex;
use protocol::error::Refusal;
use tokio::time::Instant;

use super::headers::{self, names_stateless, session_id};
use crate::{
    auth::{AuthenticatedCaller, KeyringVersion},
    reusable_timer::ReusableTimer,
};

/// Cache of a connection.
#[derive(Debug, Default)]
pub(in crate::listeners) struct ConnectionCache {
    pub(super) validated_head: ValidatedHead,
    timer: Mutex<ReusableTimer>,
}

impl ConnectionCache {
    /// Starts a new entry for a different head, which may be repeated.
    pub(super) fn reset_head(&mut self) {
        self.validated_head = ValidatedHead::repeating();
    }

    /// Becomes ready at `at`. For one task, which waits for one deadline at a time.
    pub(super) fn poll_deadline(&self, context: &mut Context<'_>, at: Instant) -> Poll<()> {
        self.timer.lock().poll_deadline(context, at)
    }

    /// Returns the result of `work`, or `None` if it is not ready by `latest`.
    pub(super) async fn with_deadline<T>(
        &self,
        latest: Instant,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        let mut work = pin!(work);
        poll_fn(|context| match work.as_mut().poll(context) {
            Poll::Ready(brought) => Poll::Ready(Some(brought)),
            Poll::Pending => self.poll_deadline(context, latest).map(|()| None),
        })
        .await
    }
}

/// Results of the checks that depend on the head alone, after the head has passed them.
#[derive(Debug, Default)]
pub(super) struct ValidatedHead {
    /// True if later heads may be equal to this one.
    repeats: bool,
    summary: OnceLock<HeadSummary>,
    /// One more than the edition of the Origin and Host rules that the head has passed.
    guard_edition: AtomicU64,
    /// Caller of the credential, with the version of the keys at the check.
    caller: Mutex<Option<(KeyringVersion, AuthenticatedCaller)>>,
}

#[derive(Debug)]
struct HeadSummary {
    session_id: Option<Box<str>>,
    /// True if the head names no revision, or one with sessions.
    fits_sessions: bool,
    names_stateless: bool,
}

impl ValidatedHead {
    /// Returns the entry of a head that may be repeated. The default entry is for a head that is
    /// not.
    fn repeating() -> Self {
        Self { repeats: true, ..Self::default() }
    }

    /// Returns whether the head has passed this edition of the Origin and Host rules.
    pub(super) fn passed_guard(&self, edition: u64) -> bool {
        self.guard_edition.load(Ordering::Relaxed) == edition + 1
    }

    pub(super) fn note_guard(&self, edition: u64) {
        self.guard_edition.store(edition + 1, Ordering::Relaxed);
    }

    pub(super) fn is_validated(&self) -> bool {
        self.summary.get().is_some()
    }

    /// Stores the results of a head that has passed its checks.
    pub(super) fn record(&self, headers: &HeaderMap) {
        // A head with an invalid session id is refused each time.
        let Some(Ok(session_id)) = self.repeats.then(|| session_id(headers)) else { return };
        let (fits_sessions, names_stateless) =
            (headers::protocol_version(headers).is_ok(), names_stateless(headers));
        let _set_once = self.summary.set(HeadSummary {
            session_id: session_id.map(Into::into),
            fits_sessions,
            names_stateless,
        });
    }

    pub(super) fn session_id<'a>(
        &'a self,
        headers: &'a HeaderMap,
    ) -> Result<Option<&'a str>, Refusal> {
        self.summary
            .get()
            .map_or_else(|| session_id(headers), |said| Ok(said.session_id.as_deref()))
    }

    /// Checks the named protocol version against those with sessions.
    pub(super) fn check_session_version(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        match self.summary.get() {
            Some(said) if said.fits_sessions => Ok(()),
            _ => headers::protocol_version(headers).map(drop),
        }
    }

    /// Returns whether the head names 2026-07-28.
    pub(super) fn names_stateless(&self, headers: &HeaderMap) -> bool {
        self.summary.get().map_or_else(|| names_stateless(headers), |said| said.names_stateless)
    }

    /// Returns the caller of the head's credential, if the keys are unchanged and the credential
    /// has not expired.
    pub(super) fn caller(&self, edition: KeyringVersion) -> Option<AuthenticatedCaller> {
        let known = self.caller.lock();
        known
            .as_ref()
            .filter(|(known_in, caller)| *known_in == edition && !caller.is_past())
            .map(|(_, caller)| caller.clone())
    }

    pub(super) fn cache_caller(&self, edition: KeyringVersion, caller: &AuthenticatedCaller) {
        if self.repeats {
            *self.caller.lock() = Some((edition, caller.clone()));
        }
    }
}
