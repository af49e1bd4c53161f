//! Cache of a connection between its requests: the results of checks on a repeated head, and a
//! timer. Paths that do not compare heads create a new cache for each request.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
};

use http::{HeaderMap, HeaderValue, header::ORIGIN};
use parking_lot::Mutex;
use protocol::{error::Refusal, ids::TenantId};
use rules::endpoint::Endpoint;
use tokio::{sync::Semaphore, time::Instant};

use super::{
    connection::ConnectionContext,
    headers::{self, names_stateless, session_id},
};
use crate::{
    admission::outbox_budget::UnreadOwner,
    auth::{AuthenticatedCaller, Caller, KeyringVersion},
    broker::Broker,
    reusable_timer::ReusableTimer,
    sessions::{session::Session, tenant::Tenant},
};

/// Values of a body that the headers of its head repeat.
pub(super) type MirroredValues<'a> = [Option<&'a [u8]>; 3];

/// Cache of a connection.
#[derive(Debug, Default)]
pub(in crate::listeners) struct ConnectionCache {
    pub(in crate::listeners) validated_head: ValidatedHead,
    /// [`ConnectionContext::waiting_bodies`].
    pub(super) waiting_bodies: Option<Arc<Semaphore>>,
    timer: Mutex<ReusableTimer>,
}

impl ConnectionCache {
    /// Returns a cache for one request of a connection.
    pub(super) fn of_connection(context: &ConnectionContext) -> Self {
        Self { waiting_bodies: context.waiting_bodies.clone(), ..Self::default() }
    }

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
            Poll::Ready(result) => Poll::Ready(Some(result)),
            Poll::Pending => self.poll_deadline(context, latest).map(|()| None),
        })
        .await
    }
}

/// Values of a body that headers repeat: revision, method and name.
type CachedValues = [Option<Box<[u8]>>; 3];

/// Results of the checks that depend on the head alone, after the head has passed them.
#[derive(Debug, Default)]
pub(in crate::listeners) struct ValidatedHead {
    /// True if later heads may be equal to this one.
    repeats: bool,
    summary: OnceLock<HeadSummary>,
    /// Endpoint that the path names.
    endpoint: OnceLock<Endpoint>,
    /// Values of the last body that the head was found to repeat.
    mirrored: Mutex<Option<CachedValues>>,
    /// Tenant of the caller.
    tenant: Mutex<Option<Arc<Tenant>>>,
    /// Session that the head named last, and that was found here for its caller.
    session: Mutex<Weak<Session>>,
    /// One more than the edition of the Origin and Host rules that the head has passed.
    guard_edition: AtomicU64,
    /// Caller of the credential, with the version of the keys at the check.
    caller: Mutex<Option<(KeyringVersion, AuthenticatedCaller)>>,
    /// Owner of the answers, once a caller was authenticated.
    unread_owner: OnceLock<UnreadOwner>,
    /// Headers for other replicas, with the caller that they name.
    forwarded_headers: Mutex<Option<Box<(Caller, HeaderMap)>>>,
}

#[derive(Debug)]
struct HeadSummary {
    session_id: Option<Box<str>>,
    /// True if the head names no revision, or one with sessions.
    fits_sessions: bool,
    names_stateless: bool,
    has_origin: bool,
}

impl ValidatedHead {
    /// Returns the entry of a head that may be repeated. The default entry is for a head that is
    /// not.
    fn repeating() -> Self {
        Self { repeats: true, ..Self::default() }
    }

    /// Returns the endpoint of the head, which `parse` finds for a new head.
    pub(super) fn endpoint(
        &self,
        parse: impl FnOnce() -> Result<Endpoint, Refusal>,
    ) -> Result<Endpoint, Refusal> {
        if let Some(endpoint) = self.endpoint.get() {
            return Ok(endpoint.clone());
        }
        let endpoint = parse()?;
        if self.repeats {
            let _set_once = self.endpoint.set(endpoint.clone());
        }
        Ok(endpoint)
    }

    /// Returns whether the head was found to repeat these values before.
    pub(super) fn mirrors(&self, values: MirroredValues<'_>) -> bool {
        let known = self.mirrored.lock();
        known.as_ref().is_some_and(|known| known.each_ref().map(Option::as_deref) == values)
    }

    pub(super) fn record_mirrored(&self, values: MirroredValues<'_>) {
        if self.repeats {
            *self.mirrored.lock() = Some(values.map(|value| value.map(Box::from)));
        }
    }

    /// Returns the tenant of the head's caller, or `None` if there is none.
    pub(super) fn tenant(&self, broker: &Broker, id: &TenantId) -> Option<Arc<Tenant>> {
        let mut known = self.tenant.lock();
        if let Some(tenant) = known.as_ref().filter(|known| known.id == *id && !known.is_removed())
        {
            return Some(tenant.clone());
        }
        let found = broker.tenant(id);
        if self.repeats {
            known.clone_from(&found);
        }
        found
    }

    /// Returns the session of an earlier request with this head. The caller of this method checks
    /// the session as if it had been looked up.
    pub(in crate::listeners) fn session(&self) -> Option<Arc<Session>> {
        self.session.lock().upgrade()
    }

    pub(in crate::listeners) fn cache_session(&self, session: &Arc<Session>) {
        if self.repeats {
            *self.session.lock() = Arc::downgrade(session);
        }
    }

    /// Returns whether the head has passed this edition of the Origin and Host rules.
    pub(super) fn passed_guard(&self, edition: u64) -> bool {
        self.guard_edition.load(Ordering::Relaxed) == edition + 1
    }

    pub(super) fn record_guard(&self, edition: u64) {
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
            has_origin: headers.contains_key(ORIGIN),
        });
    }

    pub(super) fn session_id<'a>(
        &'a self,
        headers: &'a HeaderMap,
    ) -> Result<Option<&'a str>, Refusal> {
        self.summary
            .get()
            .map_or_else(|| session_id(headers), |summary| Ok(summary.session_id.as_deref()))
    }

    /// Checks the named protocol version against those with sessions.
    pub(super) fn check_session_version(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        match self.summary.get() {
            Some(summary) if summary.fits_sessions => Ok(()),
            _ => headers::protocol_version(headers).map(drop),
        }
    }

    /// Returns the origin of the page that sent the request.
    pub(super) fn origin<'a>(&self, headers: &'a HeaderMap) -> Option<&'a HeaderValue> {
        match self.summary.get() {
            Some(summary) if !summary.has_origin => None,
            _ => headers.get(ORIGIN),
        }
    }

    /// Returns whether the head names 2026-07-28.
    pub(super) fn names_stateless(&self, headers: &HeaderMap) -> bool {
        self.summary
            .get()
            .map_or_else(|| names_stateless(headers), |summary| summary.names_stateless)
    }

    /// Returns the caller of the head's credential, if the keys are unchanged and the credential
    /// has not expired.
    pub(super) fn caller(&self, edition: KeyringVersion) -> Option<AuthenticatedCaller> {
        let known = self.caller.lock();
        known
            .as_ref()
            .filter(|(limited_to, caller)| *limited_to == edition && !caller.is_past())
            .map(|(_, caller)| caller.clone())
    }

    /// Stores the caller as the owner of the answers.
    pub(super) fn record_unread_owner(&self, caller: &Caller) {
        self.unread_owner.get_or_init(|| caller.into());
    }

    /// Returns the owner of the answers to requests with this head.
    pub(in crate::listeners) fn unread_owner(&self) -> UnreadOwner {
        self.unread_owner.get().cloned().unwrap_or_default()
    }

    /// Returns the headers for other replicas, which `build` creates for a new head or caller.
    pub(in crate::listeners) fn forwarded_headers(
        &self,
        caller: &Caller,
        build: impl FnOnce() -> HeaderMap,
    ) -> HeaderMap {
        let mut known = self.forwarded_headers.lock();
        let is_same =
            |known: &Caller| known == caller && Arc::ptr_eq(&known.subject, &caller.subject);
        if let Some(known) = known.as_ref().filter(|known| is_same(&known.0)) {
            return known.1.clone();
        }
        let headers = build();
        if self.repeats {
            *known = Some(Box::new((caller.clone(), headers.clone())));
        }
        headers
    }

    pub(super) fn cache_caller(&self, edition: KeyringVersion, caller: &AuthenticatedCaller) {
        if self.repeats {
            *self.caller.lock() = Some((edition, caller.clone()));
        }
    }
}
