//! Stand-ins: sessions for requests that stand alone, kept by principal, endpoint, wire and set of capabilities.
//!
//! A stand-in is kept in memory as long as it is used, so that its links stay open and a request costs what one of a session
//! does. Many requests go through one at once, but a backend whose wire cannot tell on whose account it asks something back
//! gets one that carries no other request meanwhile.

use std::{
    hash::{Hash, Hasher},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::{Mutex, MutexGuard};
use protocol::{
    capabilities::ClientCapabilities,
    error::{ErrorKind, Refusal},
    ids::RequestId,
    version::Version,
};
use tokio::sync::Notify;

use super::{StatelessClient, StatelessRequest, exchange::backend_of};
use crate::{
    auth::Caller,
    limits::{
        LINK_IDLE_MAX, POOLED_SESSION_OPEN_MAX, POOLED_SESSION_WAIT_MAX,
        SESSION_POOL_GROW_INTERVAL, SESSIONS_PER_POOL_MAX,
    },
    maps::FastMap,
    rules::{client_transport::Transport, endpoint::Endpoint, endpoint_info::EndpointInfo},
    sessions::session::{Agreement, Session, SessionParams},
};

#[derive(Debug, Clone, PartialEq, Eq)]
struct SessionPoolKey {
    caller: Caller,
    endpoint: Endpoint,
    transport: Transport,
    /// As backends are told of them, always in the same words.
    capabilities: ClientCapabilities,
    /// Its calls may become tasks.
    tasks: bool,
    /// Each carries one request alone, and may end with it: nobody else's goes through it.
    alone: bool,
}

/// Whose it is, and where: of the rest there are a few dozen for each of these.
impl Hash for SessionPoolKey {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.caller.hash(hasher);
        self.endpoint.hash(hasher);
    }
}

#[derive(Debug, Default)]
pub(super) struct SessionPools {
    pools: Mutex<FastMap<SessionPoolKey, SessionPool>>,
    /// One that carried a request alone is free again.
    freed: Arc<Notify>,
    /// How often callers, tenants or endpoints came to their end.
    ends: AtomicU64,
}

#[derive(Debug)]
struct SessionPool {
    members: Vec<Arc<PooledSession>>,
    grown_at: Instant,
}

impl SessionPool {
    /// One that is only just being opened is waited for longer.
    fn may_grow(&self) -> bool {
        let opening = self.members.iter().any(|one| !one.proved.load(Ordering::Relaxed));
        let pause = if opening { POOLED_SESSION_OPEN_MAX } else { SESSION_POOL_GROW_INTERVAL };
        self.members.is_empty() || self.grown_at.elapsed() >= pause
    }
}

#[derive(Debug)]
struct PooledSession {
    session: Arc<Session>,
    next_id: AtomicU64,
    /// Carries one request alone. Set and read while `pools` is locked.
    alone: AtomicBool,
    /// Something came through it: what is behind it runs.
    proved: AtomicBool,
}

/// A place in a stand-in for one request.
#[derive(Debug)]
pub(super) struct SessionLease {
    stand_in: Arc<PooledSession>,
    freed: Option<Arc<Notify>>,
}

impl SessionLease {
    pub(super) fn session(&self) -> &Arc<Session> {
        &self.stand_in.session
    }

    /// Something came of a request.
    pub(super) fn prove(&self) {
        self.stand_in.proved.store(true, Ordering::Relaxed);
    }

    /// An id no other request of the stand-in has.
    pub(super) fn next_id(&self) -> RequestId {
        RequestId::from_u64(self.stand_in.next_id.fetch_add(1, Ordering::Relaxed))
    }
}

impl SessionLease {
    /// Nothing else goes through it meanwhile.
    pub(super) fn is_alone(&self) -> bool {
        self.freed.is_some()
    }

    /// Its request is given up while its backend may be at it. What that asks from now on can be told from what it asks for
    /// another request only where there is no other: nobody goes through this one any more.
    pub(super) fn retire(&self) {
        if self.is_alone() {
            self.session().note_abandoned_call();
        }
    }
}

impl Drop for SessionLease {
    fn drop(&mut self) {
        if let Some(freed) = &self.freed {
            if self.session().has_abandoned_call() {
                self.session().end("a request was given up that its backend may be at");
            }
            self.stand_in.alone.store(false, Ordering::Release);
            freed.notify_waiters();
        }
    }
}

impl SessionPools {
    /// A place for a request to this backend.
    pub(super) async fn lease(
        &self,
        visitor: &StatelessClient,
        request: &StatelessRequest,
        offer: &EndpointInfo,
    ) -> Result<SessionLease, Refusal> {
        let client = request.meta.capabilities.known_before_modern();
        let alone = client.can_answer() && cannot_tell_who_asked(visitor, request);
        let wanted = SessionPoolKey {
            caller: visitor.caller.clone(),
            endpoint: visitor.endpoint.clone(),
            transport: visitor.transport,
            tasks: request.meta.tasks && offer.capabilities.tasks_tools_call,
            capabilities: client,
            alone,
        };
        // Nobody waits who need not.
        let ends = self.ends.load(Ordering::Acquire);
        if let Some(lease) = self.try_lease(visitor, &wanted, offer) {
            return Ok(lease);
        }
        let give_up = Instant::now() + POOLED_SESSION_WAIT_MAX;
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            // It may have been this caller's: who comes again is asked for its key again.
            if self.ends.load(Ordering::Acquire) != ends {
                return Err(Refusal::new(
                    ErrorKind::TooManyCalls,
                    "the request waited too long for a place at the backend, try again",
                ));
            }
            if let Some(lease) = self.try_lease(visitor, &wanted, offer) {
                return Ok(lease);
            }
            // Freed soon, or there may be one more.
            let _freed = tokio::time::timeout(SESSION_POOL_GROW_INTERVAL, freed).await;
            if Instant::now() >= give_up {
                let text = format!(
                    "{SESSIONS_PER_POOL_MAX} requests of this caller wait for the backend already, which can not tell them apart when it asks back"
                );
                return Err(Refusal::new(ErrorKind::TooManyCalls, text));
            }
        }
    }

    fn try_lease(
        &self,
        visitor: &StatelessClient,
        wanted: &SessionPoolKey,
        offer: &EndpointInfo,
    ) -> Option<SessionLease> {
        let alone = wanted.alone;
        let mut pools = self.lock();
        let pool = match pools.get_mut(wanted) {
            Some(pool) => pool,
            None => pools
                .entry(wanted.clone())
                .or_insert_with(|| SessionPool { members: Vec::new(), grown_at: Instant::now() }),
        };
        // One that offers something else by now finishes what it has.
        let usable = |one: &&Arc<PooledSession>| {
            // The place first: it is given back after its session has ended.
            !(alone && one.alone.load(Ordering::Acquire) || one.session.is_leaving())
                && one.session.advertised == offer.capabilities
        };
        let stand_in = match pool.members.iter().find(usable) {
            Some(known) => known.clone(),
            None if pool.members.len() >= SESSIONS_PER_POOL_MAX => return None,
            // Most requests are short, and each of these may be a process.
            None if alone && !pool.may_grow() => return None,
            None => {
                let made = Arc::new(PooledSession {
                    session: open(visitor, wanted, offer),
                    next_id: AtomicU64::new(1),
                    alone: AtomicBool::new(false),
                    proved: AtomicBool::new(false),
                });
                pool.members.push(made.clone());
                pool.grown_at = Instant::now();
                made
            }
        };
        if alone {
            stand_in.alone.store(true, Ordering::Release);
        }
        stand_in.session.touch();
        Some(SessionLease { stand_in, freed: alone.then(|| self.freed.clone()) })
    }

    pub(super) fn all(&self) -> Vec<Arc<Session>> {
        self.lock().values().flat_map(|pool| &pool.members).map(|one| one.session.clone()).collect()
    }

    /// Ends those that nobody used for a while.
    pub(super) fn tick(&self, now: Instant) {
        self.all().iter().for_each(|session| session.tick(now));
        self.retain(|one, _| {
            !one.session.is_leaving()
                && (Arc::strong_count(one) > 1 || !one.session.end_if_idle(STAND_IN_IDLE))
        });
    }

    pub(super) fn end(&self, is_meant: impl Fn(&Caller, &Endpoint) -> bool) {
        self.ends.fetch_add(1, Ordering::AcqRel);
        self.retain(|one, key| {
            let ends = is_meant(&key.caller, &key.endpoint);
            if ends {
                one.session.end("who it was for is gone");
            }
            !ends
        });
    }

    fn retain(&self, stays: impl Fn(&Arc<PooledSession>, &SessionPoolKey) -> bool) {
        let mut pools = self.lock();
        pools.retain(|key, pool| {
            pool.members.retain(|one| stays(one, key));
            !pool.members.is_empty()
        });
    }

    fn lock(&self) -> MutexGuard<'_, FastMap<SessionPoolKey, SessionPool>> {
        self.pools.lock()
    }
}

/// As long as links are kept that nobody uses.
const STAND_IN_IDLE: Duration = LINK_IDLE_MAX;

/// Whether the backend that the request goes to cannot say on whose account it asks something.
fn cannot_tell_who_asked(visitor: &StatelessClient, request: &StatelessRequest) -> bool {
    let backend = backend_of(&request.message, &visitor.endpoint, &visitor.tenant.catalog());
    backend
        .and_then(|backend| visitor.tenant.backend(&backend))
        .is_some_and(|backend| backend.has_unattributed_requests())
}

fn open(visitor: &StatelessClient, wanted: &SessionPoolKey, offer: &EndpointInfo) -> Arc<Session> {
    let seat = SessionParams {
        tenant: visitor.tenant.clone(),
        caller: visitor.caller.clone(),
        endpoint: visitor.endpoint.clone(),
        transport: visitor.transport,
    };
    Session::pooled(
        seat,
        agreement(wanted.capabilities.clone(), offer),
        wanted.tasks,
        visitor.shared.clone(),
    )
}

/// What a session without a handshake agrees on: the latest revision that has sessions.
pub(super) fn agreement(client: ClientCapabilities, offer: &EndpointInfo) -> Agreement {
    Agreement {
        version: Version::LATEST_WITH_SESSIONS,
        client,
        client_name: String::new(),
        client_version: String::new(),
        advertised: offer.capabilities.clone(),
    }
}
