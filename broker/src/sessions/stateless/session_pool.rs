//! Pools of sessions for stateless requests, by principal, endpoint, transport and capabilities.
//!
//! A pooled session stays in memory while it is used. Its links stay open, so that a request costs
//! what one of a session does. Many requests share a pooled session at once. There is one
//! exception: some backends do not name the request for which they need input. A request to such a
//! backend gets an exclusive session.

use std::{
    hash::{Hash, Hasher},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::{Mutex, MutexGuard};
use protocol::{
    capabilities::ClientCapabilities,
    error::{ErrorKind, Refusal},
    ids::{BackendId, RequestId},
    version::Version,
};
use rules::{
    access::Subject,
    client_transport::Transport,
    endpoint::Endpoint,
    endpoint_info::EndpointInfo,
    limits::{
        LINK_IDLE_MAX, POOLED_SESSION_OPEN_MAX, POOLED_SESSION_WAIT_MAX,
        SESSION_POOL_GROW_INTERVAL, SESSIONS_PER_POOL_MAX, apps::EXTENSION_POOLS_MAX,
    },
    maps::FastMap,
    routing,
};
use tokio::sync::Notify;

use super::{StatelessClient, StatelessRequest};
use crate::{
    auth::Caller,
    sessions::{
        session::{Agreement, Session, SessionParams, TaskAcceptance, expiry},
        tenant::Tenant,
    },
};

#[derive(Debug, Clone, PartialEq, Eq)]
struct SessionPoolKey {
    caller: Caller,
    /// The rights of the requests that the sessions serve.
    subject: Arc<Subject>,
    endpoint: Endpoint,
    transport: Transport,
    /// Capabilities as backends get them, always in the same text.
    capabilities: ClientCapabilities,
    acceptance: TaskAcceptance,
    /// True if each session carries one request alone. Such a session may end with its request.
    alone: bool,
}

/// Hashes the caller and the endpoint. Each pair has at most a few dozen values of the other
/// fields.
impl Hash for SessionPoolKey {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.caller.hash(hasher);
        self.endpoint.hash(hasher);
    }
}

#[derive(Debug, Default)]
pub(super) struct SessionPools {
    pools: Mutex<FastMap<SessionPoolKey, SessionPool>>,
    /// Notified when an exclusive session is free again.
    freed: Arc<Notify>,
    /// Requests that wait for a session.
    waiting: Mutex<Vec<Weak<WaitingRequest>>>,
}

/// A request that waits for a session. It counts as a call in flight, because its message is in
/// memory.
#[derive(Debug)]
struct WaitingRequest {
    tenant: Arc<Tenant>,
    caller: Caller,
    endpoint: Endpoint,
    /// Set when its caller or endpoint ended.
    ended: AtomicBool,
    /// Set while it counts as a call.
    counts: AtomicBool,
}

impl Drop for WaitingRequest {
    fn drop(&mut self) {
        if *self.counts.get_mut() {
            self.tenant.close_call();
        }
    }
}

#[derive(Debug)]
struct SessionPool {
    members: Vec<Arc<PooledSession>>,
    /// Time of the newest session. `None`: the pool never had one.
    grown_at: Option<Instant>,
}

impl SessionPool {
    /// Returns whether the pool may open another session. The pause is longer while a session is
    /// just being opened.
    fn may_grow(&self) -> bool {
        let opening = self.members.iter().any(|one| !one.proved.load(Ordering::Relaxed));
        let pause = if opening { POOLED_SESSION_OPEN_MAX } else { SESSION_POOL_GROW_INTERVAL };
        self.grown_at.is_none_or(|at| at.elapsed() >= pause)
    }
}

#[derive(Debug)]
struct PooledSession {
    session: Arc<Session>,
    next_id: AtomicU64,
    /// Set while the session carries one request alone. It is set and read while `pools` is locked,
    /// and cleared at any time.
    alone: AtomicBool,
    /// Set when something came through the session, so its backend runs.
    proved: AtomicBool,
    /// Set when a request with another token than the first one used the session.
    has_other_tokens: AtomicBool,
    /// Set when the first token was revoked, so that the session only finishes requests with other
    /// tokens. It is set and read while `pools` is locked.
    finishing: AtomicBool,
}

impl PooledSession {
    /// Ends the session, which no request uses, if it gets no further one or was idle for a while.
    fn end_if_unused(&self) -> bool {
        if self.finishing.load(Ordering::Relaxed) {
            self.session.end("the token that opened it was revoked");
            return true;
        }
        self.session.end_if_idle(POOLED_SESSION_IDLE_MAX)
    }
}

/// A slot of a pooled session for one request.
#[derive(Debug)]
pub(super) struct SessionLease {
    pooled_session: Arc<PooledSession>,
    freed: Option<Arc<Notify>>,
}

impl SessionLease {
    pub(super) fn session(&self) -> &Arc<Session> {
        &self.pooled_session.session
    }

    /// Notes that something came through the session.
    pub(super) fn prove(&self) {
        self.pooled_session.proved.store(true, Ordering::Relaxed);
    }

    /// Returns an id that no other request of the pooled session has.
    pub(super) fn next_id(&self) -> RequestId {
        RequestId::from_u64(self.pooled_session.next_id.fetch_add(1, Ordering::Relaxed))
    }
}

impl SessionLease {
    /// Returns whether no other request uses the session meanwhile.
    pub(super) fn is_alone(&self) -> bool {
        self.freed.is_some()
    }

    /// Retires an exclusive session whose request was given up while the backend may work on it.
    /// Later questions of the backend could not be separated from those of another request, so the
    /// session gets no other request.
    pub(super) fn retire(&self) {
        if self.is_alone() {
            self.session().record_abandoned_call();
        }
    }
}

impl Drop for SessionLease {
    fn drop(&mut self) {
        if let Some(freed) = &self.freed {
            if self.session().has_abandoned_call() {
                self.session().end("a cancelled request may still run at its backend");
            }
            self.pooled_session.alone.store(false, Ordering::Release);
            freed.notify_waiters();
        }
    }
}

/// Reason why a request gets no session now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LeaseObstacle {
    PoolsInUse,
    SessionsInUse,
}

impl LeaseObstacle {
    fn refusal(self) -> Refusal {
        let text = match self {
            Self::PoolsInUse => format!(
                "requests of this caller at this endpoint already use {EXTENSION_POOLS_MAX} different declarations of extensions, which is the limit"
            ),
            Self::SessionsInUse => format!(
                "{SESSIONS_PER_POOL_MAX} requests of this caller already use the backend, which is the limit: the backend cannot assign its questions to requests"
            ),
        };
        Refusal::new(ErrorKind::TooManyCalls, text)
    }
}

impl SessionPools {
    /// Leases a slot for a request.
    pub(super) async fn lease(
        &self,
        stateless_client: &StatelessClient,
        request: &StatelessRequest,
        offer: &EndpointInfo,
    ) -> Result<SessionLease, Refusal> {
        let client = request.meta.capabilities.downgraded();
        let alone = client.can_answer() && cannot_attribute_requests(stateless_client, request);
        let wanted = SessionPoolKey {
            caller: stateless_client.caller.clone(),
            subject: stateless_client.caller.subject.clone(),
            endpoint: stateless_client.endpoint.clone(),
            transport: stateless_client.transport,
            acceptance: TaskAcceptance::of(
                request.meta.tasks && offer.capabilities.tasks_tools_call,
            ),
            capabilities: client,
            alone,
        };
        // A free slot needs no wait.
        if let Ok(lease) = self.try_lease(stateless_client, &wanted, offer) {
            return Ok(lease);
        }
        let waiting = self.start_waiting(stateless_client, &wanted).await?;
        let give_up = Instant::now() + POOLED_SESSION_WAIT_MAX;
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            // The caller itself may have been revoked meanwhile. A repeated request is
            // authenticated again.
            if waiting.ended.load(Ordering::Acquire) {
                return Err(Refusal::new(
                    ErrorKind::TooManyCalls,
                    "the rights of the caller or the endpoint changed while the request waited for a session at the backend, try again",
                ));
            }
            let obstacle = match self.try_lease(stateless_client, &wanted, offer) {
                Ok(lease) => return Ok(lease),
                Err(obstacle) => obstacle,
            };
            // A session may become free soon, or the pool may grow.
            let _freed = tokio::time::timeout(SESSION_POOL_GROW_INTERVAL, freed).await;
            if Instant::now() >= give_up {
                return Err(obstacle.refusal());
            }
        }
    }

    /// Registers a request that waits, so that the end of its caller or endpoint ends the wait.
    async fn start_waiting(
        &self,
        client: &StatelessClient,
        wanted: &SessionPoolKey,
    ) -> Result<Arc<WaitingRequest>, Refusal> {
        let waiting = Arc::new(WaitingRequest {
            tenant: client.tenant.clone(),
            caller: wanted.caller.clone(),
            endpoint: wanted.endpoint.clone(),
            ended: AtomicBool::new(false),
            counts: AtomicBool::new(false),
        });
        // First, so that the end of its caller in the meantime is noticed.
        {
            let mut all = self.waiting.lock();
            all.retain(|one| one.strong_count() > 0);
            all.push(Arc::downgrade(&waiting));
        }
        let _permit = client.tenant.wait_for_call().await;
        client.tenant.open_call()?;
        waiting.counts.store(true, Ordering::Relaxed);
        Ok(waiting)
    }

    fn try_lease(
        &self,
        client: &StatelessClient,
        wanted: &SessionPoolKey,
        offer: &EndpointInfo,
    ) -> Result<SessionLease, LeaseObstacle> {
        let alone = wanted.alone;
        let mut pools = self.lock();
        let pool = match pools.get_mut(wanted) {
            Some(pool) => pool,
            None => {
                if !has_capacity(&mut pools, wanted) {
                    return Err(LeaseObstacle::PoolsInUse);
                }
                let new = || SessionPool { members: Vec::new(), grown_at: None };
                pools.entry(wanted.clone()).or_insert_with(new)
            }
        };
        // A session with other capabilities than the endpoint has now only finishes its requests.
        // One of a removed tenant serves no later tenant of the name.
        let usable = |one: &&Arc<PooledSession>| {
            // The flag is read first: it is cleared after its session has ended.
            let is_taken = alone && one.alone.load(Ordering::Acquire);
            let is_ending = one.session.is_leaving() || one.finishing.load(Ordering::Relaxed);
            let is_of_tenant = Arc::ptr_eq(&one.session.tenant, &client.tenant);
            let is_current = is_of_tenant && one.session.agreement.advertised == offer.capabilities;
            !is_taken && !is_ending && is_current
        };
        let known = pool.members.iter().find(usable).cloned();
        if known.is_none() {
            pool.members.retain(|one| !one.session.is_leaving());
        }
        let pooled_session = match known {
            Some(known) => known,
            None if pool.members.len() >= SESSIONS_PER_POOL_MAX => {
                return Err(LeaseObstacle::SessionsInUse);
            }
            // Most requests are short, and each exclusive session may cost a process.
            None if alone && !pool.may_grow() => return Err(LeaseObstacle::SessionsInUse),
            None => {
                let made = Arc::new(PooledSession {
                    session: open(client, wanted, offer),
                    next_id: AtomicU64::new(1),
                    alone: AtomicBool::new(false),
                    proved: AtomicBool::new(false),
                    has_other_tokens: AtomicBool::new(false),
                    finishing: AtomicBool::new(false),
                });
                pool.members.push(made.clone());
                pool.grown_at = Some(Instant::now());
                made
            }
        };
        if alone {
            pooled_session.alone.store(true, Ordering::Release);
        }
        if !shows_same_token(&pooled_session.session.caller, &client.caller) {
            pooled_session.has_other_tokens.store(true, Ordering::Relaxed);
        }
        pooled_session.session.touch();
        Ok(SessionLease { pooled_session, freed: alone.then(|| self.freed.clone()) })
    }

    pub(super) fn all(&self) -> Vec<Arc<Session>> {
        self.lock().values().flat_map(|pool| &pool.members).map(|one| one.session.clone()).collect()
    }

    /// Ends the sessions that were idle for a while.
    pub(super) fn tick(&self, now: Instant) {
        self.all().iter().for_each(|session| expiry::expire(session, now));
        self.retain(|one, _| {
            !one.session.is_leaving() && (Arc::strong_count(one) > 1 || !one.end_if_unused())
        });
    }

    /// Ends what these callers use, because their credential was revoked. Requests with other tokens
    /// of a principal finish in the session that a revoked token opened. The requests of the revoked
    /// token end by themselves.
    pub(super) fn end_of_callers(&self, is_meant: impl Fn(&Caller) -> bool) {
        self.end_waiting(|caller, _| is_meant(caller));
        self.retain(|one, _| {
            let caller = &one.session.caller;
            if !is_meant(caller) {
                return true;
            }
            let is_shared = caller.token.is_some() && one.has_other_tokens.load(Ordering::Relaxed);
            if is_shared && Arc::strong_count(one) > 1 {
                one.finishing.store(true, Ordering::Relaxed);
                return true;
            }
            one.session.end("its credential was revoked");
            false
        });
    }

    fn end_waiting(&self, is_meant: impl Fn(&Caller, &Endpoint) -> bool) {
        for one in self.waiting.lock().iter().filter_map(Weak::upgrade) {
            if is_meant(&one.caller, &one.endpoint) {
                one.ended.store(true, Ordering::Release);
            }
        }
    }

    pub(super) fn end(&self, is_meant: impl Fn(&Caller, &Endpoint) -> bool) {
        self.end_waiting(&is_meant);
        self.retain(|one, key| {
            let ends = is_meant(&key.caller, &key.endpoint);
            if ends {
                one.session.end("its caller or endpoint was removed");
            }
            !ends
        });
    }

    fn retain(&self, is_kept: impl Fn(&Arc<PooledSession>, &SessionPoolKey) -> bool) {
        let mut pools = self.lock();
        pools.retain(|key, pool| {
            pool.members.retain(|one| is_kept(one, key));
            !pool.members.is_empty()
        });
    }

    fn lock(&self) -> MutexGuard<'_, FastMap<SessionPoolKey, SessionPool>> {
        self.pools.lock()
    }
}

/// Returns whether the caller may have another pool. Clients choose the settings of extensions
/// freely, so the pools of one caller that differ in them are bounded. An unused one frees
/// capacity.
fn has_capacity(
    pools: &mut MutexGuard<'_, FastMap<SessionPoolKey, SessionPool>>,
    wanted: &SessionPoolKey,
) -> bool {
    let is_other = |key: &SessionPoolKey| {
        key.capabilities.has_extensions()
            && (&key.caller, &key.endpoint) == (&wanted.caller, &wanted.endpoint)
    };
    if !wanted.capabilities.has_extensions()
        || pools.keys().filter(|key| is_other(key)).count() < EXTENSION_POOLS_MAX
    {
        return true;
    }
    let is_unused = |pool: &SessionPool| pool.members.iter().all(|one| Arc::strong_count(one) == 1);
    let unused = pools.iter().find(|(key, pool)| is_other(key) && is_unused(pool));
    let Some(pool) = unused.map(|(key, _)| key.clone()).and_then(|key| pools.remove(&key)) else {
        return false;
    };
    pool.members.iter().for_each(|one| {
        one.session.end("its session pool was removed to free capacity for another pool")
    });
    true
}

/// Returns whether two callers with one principal showed the same token, or none.
fn shows_same_token(one: &Caller, other: &Caller) -> bool {
    match (&one.token, &other.token) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        (None, None) => true,
        _ => false,
    }
}

/// Idle time of a pooled session, which is that of unused links.
const POOLED_SESSION_IDLE_MAX: Duration = LINK_IDLE_MAX;

/// Returns whether the backend of the request does not name the request for which it needs input.
fn cannot_attribute_requests(client: &StatelessClient, request: &StatelessRequest) -> bool {
    let catalog = client.visible_catalog();
    let is_unattributed = |backend: &BackendId| {
        client.tenant.backend(backend).is_some_and(|backend| backend.has_unattributed_requests())
    };
    match routing::backend_of(&request.message, &client.endpoint, &catalog) {
        Some(backend) => is_unattributed(&backend),
        // The calls of a batch may go to any backend.
        None => {
            routing::is_batch(&request.message, &client.endpoint, &catalog)
                && catalog.backends.keys().any(is_unattributed)
        }
    }
}

fn open(client: &StatelessClient, wanted: &SessionPoolKey, offer: &EndpointInfo) -> Arc<Session> {
    let params = SessionParams {
        tenant: client.tenant.clone(),
        caller: client.caller.clone(),
        endpoint: client.endpoint.clone(),
        transport: client.transport,
    };
    Session::pooled(
        params,
        agreement(wanted.capabilities.clone(), offer),
        wanted.acceptance,
        client.shared.clone(),
    )
}

/// Returns the agreement of a session without a handshake: the latest revision that has sessions.
pub(super) fn agreement(client: ClientCapabilities, offer: &EndpointInfo) -> Agreement {
    Agreement {
        version: Version::LATEST_WITH_SESSIONS,
        client,
        client_name: String::new(),
        client_version: String::new(),
        advertised: offer.capabilities.clone(),
    }
}

#[cfg(test)]
mod tests {
    use config::spec::TenantSpec;

    use super::*;
    use crate::{
        broker::Broker,
        persistence::Stores,
        sessions::stateless::tests::{anonymous_client, empty_offer},
    };

    fn pool_key(client: &StatelessClient, capabilities: &str) -> SessionPoolKey {
        SessionPoolKey {
            caller: client.caller.clone(),
            subject: client.caller.subject.clone(),
            endpoint: client.endpoint.clone(),
            transport: client.transport,
            capabilities: ClientCapabilities::parse(capabilities.as_bytes()).unwrap(),
            acceptance: TaskAcceptance::Declined,
            alone: false,
        }
    }

    /// A request can begin before the removal of its tenant, and open a session after it.
    #[tokio::test]
    async fn a_session_of_a_removed_tenant_serves_no_later_tenant_of_the_name() {
        let broker = Broker::over(Stores::in_memory().await);
        let (earlier, offer) = (anonymous_client(&broker), empty_offer());
        let (id, spec) = (earlier.tenant.id.clone(), TenantSpec::default());
        let tenant = Tenant::new(id, spec, 1, broker.shared.clone());
        let later = StatelessClient { tenant, ..earlier.clone() };
        let (pools, wanted) = (SessionPools::default(), pool_key(&earlier, "{}"));
        let lease = |client: &StatelessClient| pools.try_lease(client, &wanted, &offer).unwrap();
        let leases = [lease(&earlier), lease(&later), lease(&earlier), lease(&later)];
        for (leased, client) in leases.iter().zip([&earlier, &later, &earlier, &later]) {
            assert!(Arc::ptr_eq(&leased.session().tenant, &client.tenant));
        }
        assert!(Arc::ptr_eq(leases[1].session(), leases[3].session()), "one of its own");
    }

    #[tokio::test]
    async fn a_request_with_too_many_declarations_of_extensions_is_told_of_that_limit() {
        let broker = Broker::over(Stores::in_memory().await);
        let (client, offer) = (anonymous_client(&broker), empty_offer());
        let pools = SessionPools::default();
        let lease = |number: usize| {
            let declared = format!(r#"{{"extensions":{{"com.example/one":{{"n":{number}}}}}}}"#);
            pools.try_lease(&client, &pool_key(&client, &declared), &offer)
        };
        let mut leases: Vec<_> =
            (0..EXTENSION_POOLS_MAX).map(|number| lease(number).unwrap()).collect();
        let obstacle = lease(EXTENSION_POOLS_MAX).unwrap_err();
        assert_eq!(obstacle, LeaseObstacle::PoolsInUse);
        let refusal = obstacle.refusal();
        assert_eq!(refusal.kind, ErrorKind::TooManyCalls);
        assert!(refusal.message.contains("declarations of extensions"), "{}", refusal.message);
        drop(leases.pop());
        assert!(lease(EXTENSION_POOLS_MAX).is_ok(), "an unused pool makes room");
    }
}
