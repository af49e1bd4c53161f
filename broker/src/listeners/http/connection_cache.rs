//! What a connection keeps from one request to the next: what is known of a head that is said again and again, so that it is found
//! out once, and a timer. Where heads are not compared it is made anew for each.

use std::{
    future::poll_fn,
    pin::pin,
    sync::OnceLock,
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

/// What a connection keeps.
#[derive(Debug, Default)]
pub(in crate::listeners) struct ConnectionCache {
    pub(super) validated_head: ValidatedHead,
    alarm: Mutex<ReusableTimer>,
}

impl ConnectionCache {
    /// Another head is said from now on, and may be said again.
    pub(super) fn reset_head(&mut self) {
        self.validated_head = ValidatedHead::repeating();
    }

    /// Ready from `at` on. For one task, which waits for one thing at a time.
    pub(super) fn poll_deadline(&self, context: &mut Context<'_>, at: Instant) -> Poll<()> {
        self.alarm.lock().poll_until(context, at)
    }

    /// What `work` brings. `None`: it did not come by `latest`.
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

/// A head that was found right in all that is seen of it alone, once it was.
#[derive(Debug, Default)]
pub(super) struct ValidatedHead {
    /// More heads may say the same.
    repeats: bool,
    said: OnceLock<HeadSummary>,
    /// Who shows this credential, as of this edition of the keys.
    caller: Mutex<Option<(KeyringVersion, AuthenticatedCaller)>>,
}

#[derive(Debug)]
struct HeadSummary {
    session_id: Option<Box<str>>,
    /// No revision, or one that sessions speak.
    fits_sessions: bool,
    names_stateless: bool,
}

impl ValidatedHead {
    /// A head that may be said again. (The default is one that is not.)
    fn repeating() -> Self {
        Self { repeats: true, ..Self::default() }
    }

    pub(super) fn is_validated(&self) -> bool {
        self.said.get().is_some()
    }

    /// The head has passed its checks.
    pub(super) fn record(&self, headers: &HeaderMap) {
        // A head whose session is named in no way that is allowed is refused each time.
        let Some(Ok(session_id)) = self.repeats.then(|| session_id(headers)) else { return };
        let (fits_sessions, names_stateless) =
            (headers::protocol_version(headers).is_ok(), names_stateless(headers));
        let _set_once = self.said.set(HeadSummary {
            session_id: session_id.map(Into::into),
            fits_sessions,
            names_stateless,
        });
    }

    pub(super) fn session_id<'a>(
        &'a self,
        headers: &'a HeaderMap,
    ) -> Result<Option<&'a str>, Refusal> {
        self.said.get().map_or_else(|| session_id(headers), |said| Ok(said.session_id.as_deref()))
    }

    /// Checks the revision that the client names against that of its session.
    pub(super) fn check_session_version(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        match self.said.get() {
            Some(said) if said.fits_sessions => Ok(()),
            _ => headers::protocol_version(headers).map(drop),
        }
    }

    /// It says that the message is of 2026-07-28.
    pub(super) fn names_stateless(&self, headers: &HeaderMap) -> bool {
        self.said.get().map_or_else(|| names_stateless(headers), |said| said.names_stateless)
    }

    /// Who shows the head's credential, where that was found out with the same keys, and holds still.
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
