//! One tenant at run time: its backends, its merged catalog, its counters. Nothing here is visible to another tenant.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use protocol::{
    error::{ErrorKind, Refusal},
    ids::{BackendId, PrincipalId, TenantId},
    method::Method,
};

use super::{session::Session, shared::Shared};
use crate::{
    admission::{concurrency_limit::TenantShare, rate_limiter::RateScope},
    backends::{backend::Backend, backend_admission::CallOwner},
    config::{MessageWire, spec::TenantSpec},
    limits::{PRINCIPALS_METERED_MAX, ROOM_RETRY},
    persistence::SessionKey,
    rules::{
        catalog::{Catalog, ListKind},
        deadlines::{self, CallDeadline, TimeoutSource},
        endpoint::Endpoint,
        gcra::Rate,
        shared_rate_limit::{RateLimiterMap, SharedRateLimiter},
    },
};

#[derive(Debug)]
pub struct Tenant {
    pub id: TenantId,
    /// Where tenants compete for room.
    pub share: TenantShare,
    shared: Arc<Shared>,
    spec: ArcSwap<TenantSpec>,
    meter: Arc<SharedRateLimiter>,
    principals: Mutex<RateLimiterMap<PrincipalId>>,
    catalog: ArcSwap<Catalog>,
    backends: Mutex<BTreeMap<BackendId, Arc<Backend>>>,
    /// Held while a new catalog is built, so that an older one never replaces a newer one.
    publishing: Mutex<()>,
    sessions: Mutex<HashMap<PrincipalId, Vec<std::sync::Weak<Session>>>>,
    session_count: AtomicUsize,
    calls: AtomicUsize,
    /// Connections that are sessions, and open GET streams.
    connections: Arc<AtomicUsize>,
    /// The tenant was removed. Set and read while `sessions` is locked.
    closed: AtomicBool,
}

impl Tenant {
    pub fn new(id: TenantId, spec: TenantSpec, shared: Arc<Shared>) -> Arc<Self> {
        let catalog = Catalog::build(id.clone(), shared.cursor_key.clone(), BTreeMap::new());
        let tenant = Self {
            spec: ArcSwap::from_pointee(TenantSpec::default()),
            meter: SharedRateLimiter::new(format!("tenant/{id}")),
            principals: Mutex::new(RateLimiterMap::new(
                PRINCIPALS_METERED_MAX,
                format!("principals/{id}"),
            )),
            connections: Arc::default(),
            catalog: ArcSwap::from_pointee(catalog),
            backends: Mutex::default(),
            publishing: Mutex::default(),
            sessions: Mutex::default(),
            session_count: AtomicUsize::new(0),
            calls: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            shared,
            share: TenantShare::of(id.clone()),
            id,
        };
        tenant.configure(spec);
        Arc::new(tenant)
    }

    /// Takes a new record; limits hold from the next request on.
    pub fn configure(&self, spec: TenantSpec) {
        self.spec.store(Arc::new(spec));
    }

    pub fn enabled(&self) -> bool {
        self.spec.load().enabled
    }

    /// Its share where tenants compete.
    pub fn weight(&self) -> u32 {
        self.spec.load().weight
    }

    /// Returns what a backend needs to know of a call of this principal.
    pub fn call_owner<'a>(
        &'a self,
        principal: &'a PrincipalId,
        session: &'a SessionKey,
    ) -> CallOwner<'a> {
        CallOwner { share: &self.share, weight: self.weight(), principal, session }
    }

    /// How large a message of its clients may be on this wire.
    pub fn message_bytes(&self, wire: MessageWire) -> usize {
        self.shared
            .config
            .limits
            .message_sizes
            .of(self.spec.load().limits.message_profile.as_deref(), wire)
    }

    /// How long a request may take: as the backend says, or the tenant, or the configuration.
    pub fn deadline(
        &self,
        backend: Option<&Backend>,
        method: Method,
        tool: Option<&str>,
    ) -> CallDeadline {
        let spec = self.spec.load();
        let (own, common) = (&spec.timeouts, &self.shared.config.timeouts);
        let of_backend = backend.map_or_else(TimeoutSource::default, |backend| {
            let said = &backend.spec.timeouts;
            TimeoutSource {
                tools: Some(&said.tools),
                methods: Some(&said.methods),
                call: said.call,
                control: said.control,
                total: said.call_max,
            }
        });
        let of_tenant = TimeoutSource {
            tools: None,
            methods: Some(&own.methods),
            call: own.call,
            control: own.control,
            total: own.call_max,
        };
        let (call, control, total) =
            (Some(common.call), Some(common.control), Some(common.call_max));
        let of_all =
            TimeoutSource { tools: None, methods: Some(&common.methods), call, control, total };
        deadlines::of(method, tool, &[of_backend, of_tenant, of_all])
    }

    pub fn catalog(&self) -> Arc<Catalog> {
        self.catalog.load_full()
    }

    pub fn backend(&self, id: &BackendId) -> Option<Arc<Backend>> {
        self.backends.lock().get(id).cloned()
    }

    pub fn backends(&self) -> Vec<Arc<Backend>> {
        self.backends.lock().values().cloned().collect()
    }

    /// Adds or replaces a backend; returns the one it replaced.
    pub fn insert_backend(&self, backend: Arc<Backend>) -> Option<Arc<Backend>> {
        self.backends.lock().insert(backend.id.clone(), backend)
    }

    pub fn remove_backend(&self, id: &BackendId) -> Option<Arc<Backend>> {
        self.backends.lock().remove(id)
    }

    /// Builds the catalog anew from the backends' lists and tells every session whose lists differ now.
    pub fn publish_catalog(&self) {
        let _order = self.publishing.lock();
        let lists = self
            .backends()
            .into_iter()
            .filter_map(|backend| Some((backend.id.clone(), backend.lists.load_full()?)))
            .collect();
        let catalog =
            Arc::new(Catalog::build(self.id.clone(), self.shared.cursor_key.clone(), lists));
        let before = self.catalog.swap(catalog.clone());
        let mut changed: HashMap<Endpoint, Vec<ListKind>> = HashMap::new();
        for session in self.sessions() {
            let endpoint = session.endpoint.clone();
            let lists = changed
                .entry(endpoint)
                .or_insert_with(|| catalog.changed_lists(&before, &session.endpoint));
            if !lists.is_empty() {
                session.on_lists_changed(lists);
            }
        }
    }

    /// Registers a session, if the tenant and its principal may have another.
    pub fn open_session(&self, session: &Arc<Session>) -> Result<(), Refusal> {
        let common = &self.shared.config.limits;
        let own_limits = &self.spec.load().limits;
        let tenant_max = own_limits.sessions_per_tenant.unwrap_or(common.sessions_per_tenant);
        let principal_max =
            own_limits.sessions_per_principal.unwrap_or(common.sessions_per_principal);
        let mut sessions = self.sessions.lock();
        if self.closed.load(Ordering::Relaxed) {
            return Err(Refusal::new(ErrorKind::Unauthorized, "the tenant is gone"));
        }
        if self.session_count.load(Ordering::Relaxed) >= tenant_max {
            self.shared.metrics.rate_limited("sessions_per_tenant");
            return Err(too_many_sessions("tenant", tenant_max));
        }
        let own = sessions.entry(session.caller.principal.clone()).or_default();
        if own.len() >= principal_max {
            self.shared.metrics.rate_limited("sessions_per_principal");
            return Err(too_many_sessions("principal", principal_max));
        }
        own.push(Arc::downgrade(session));
        self.session_count.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Registers a session that was opened elsewhere, however many there are: its client was let in. `false`: the tenant is
    /// gone.
    pub fn adopt_session(&self, session: &Arc<Session>) -> bool {
        let mut sessions = self.sessions.lock();
        if self.closed.load(Ordering::Relaxed) {
            return false;
        }
        sessions.entry(session.caller.principal.clone()).or_default().push(Arc::downgrade(session));
        self.session_count.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// The tenant is removed: it takes no session any more.
    pub fn close(&self) {
        let _sessions = self.sessions.lock();
        self.closed.store(true, Ordering::Relaxed);
    }

    pub fn close_session(&self, session: &Arc<Session>) {
        let mut sessions = self.sessions.lock();
        let Some(own) = sessions.get_mut(&session.caller.principal) else { return };
        let before = own.len();
        own.retain(|other| other.as_ptr() != Arc::as_ptr(session));
        if own.len() < before {
            self.session_count.fetch_sub(1, Ordering::Relaxed);
        }
        if own.is_empty() {
            sessions.remove(&session.caller.principal);
        }
    }

    pub fn sessions(&self) -> Vec<Arc<Session>> {
        self.sessions.lock().values().flatten().filter_map(std::sync::Weak::upgrade).collect()
    }

    /// Takes one request's worth of the principal's rate, then of the tenant's.
    pub fn take_budget(&self, principal: &PrincipalId) -> Result<(), Refusal> {
        let rates = &self.shared.rates;
        // First, so that who asks too much takes nothing from others of the tenant.
        let own = self.principal_rate().map(|rate| (self.principal_meter(principal), rate));
        if let Some((meter, rate)) = &own {
            rates.take(RateScope::Principal, meter, *rate)?;
        }
        let Some(rate) = self.rate() else { return Ok(()) };
        rates.take(RateScope::Tenant, &self.meter, rate).inspect_err(|_| {
            if let Some((meter, rate)) = &own {
                rates.give_back(meter, *rate);
            }
        })
    }

    /// The same for a notification of the principal, which has no answer: one that is not taken is counted and dropped.
    pub fn take_notification_budget(&self, principal: &PrincipalId) -> Result<(), Refusal> {
        self.take_budget(principal)
            .inspect_err(|_| self.shared.metrics.dropped_notification("rate_limited"))
    }

    /// Gives back what [`Tenant::take_budget`] took.
    pub fn give_back_budget(&self, principal: &PrincipalId) {
        if let Some(rate) = self.principal_rate() {
            self.shared.rates.give_back(&self.principal_meter(principal), rate);
        }
        if let Some(rate) = self.rate() {
            self.shared.rates.give_back(&self.meter, rate);
        }
    }

    /// Takes one request's worth of what may go to this backend, and to this tool of it.
    pub fn take_backend_budget(
        &self,
        backend: &Backend,
        tool: Option<&str>,
    ) -> Result<(), Refusal> {
        backend.take_budget(&self.spec.load().limits, tool)
    }

    fn rate(&self) -> Option<Rate> {
        let (own, common) = (&self.spec.load().limits, &self.shared.config.limits);
        Rate::new(
            own.requests_per_second.unwrap_or(common.requests_per_second),
            own.burst.unwrap_or(common.burst),
        )
    }

    fn principal_rate(&self) -> Option<Rate> {
        let (own, common) = (&self.spec.load().limits, &self.shared.config.limits);
        let per_second = own
            .requests_per_second_per_principal
            .unwrap_or(common.requests_per_second_per_principal);
        Rate::new(per_second, own.burst_per_principal.unwrap_or(common.burst_per_principal))
    }

    fn principal_meter(&self, principal: &PrincipalId) -> Arc<SharedRateLimiter> {
        let name = || format!("principal/{}/{}", self.id, principal.as_str());
        self.principals.lock().of(principal, self.shared.rates.now(), name)
    }

    /// A place for a connection that is a session, or for an open GET stream.
    pub fn acquire_connection(&self) -> Result<ConnectionPermit, Refusal> {
        let max = self
            .spec
            .load()
            .limits
            .connections_per_tenant
            .unwrap_or(self.shared.config.limits.connections_per_tenant);
        let place = ConnectionPermit(self.connections.clone());
        if place.0.fetch_add(1, Ordering::Relaxed) < max {
            return Ok(place);
        }
        self.shared.metrics.rate_limited("connections_per_tenant");
        let text = format!("the tenant has {max} connections and streams open, which is its limit");
        Err(Refusal::new(ErrorKind::TooManyConnections, text).retry_after(ROOM_RETRY))
    }

    /// Counts a call in, if there is room.
    pub fn open_call(&self) -> Result<(), Refusal> {
        let max = self
            .spec
            .load()
            .limits
            .calls_in_flight_per_tenant
            .unwrap_or(self.shared.config.limits.calls_in_flight_per_tenant);
        if self.calls.fetch_add(1, Ordering::Relaxed) >= max {
            self.calls.fetch_sub(1, Ordering::Relaxed);
            self.shared.metrics.rate_limited("calls_in_flight_per_tenant");
            return Err(Refusal::new(
                ErrorKind::TooManyCalls,
                format!("the tenant has {max} calls in flight, which is its limit"),
            ));
        }
        Ok(())
    }

    pub fn close_call(&self) {
        self.calls.fetch_sub(1, Ordering::Relaxed);
    }

    pub fn calls_in_flight(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }
}

fn too_many_sessions(whose: &str, max: usize) -> Refusal {
    Refusal::new(
        ErrorKind::TooManySessions,
        format!("the {whose} has {max} sessions, which is its limit"),
    )
    .retry_after(ROOM_RETRY)
}

/// One connection's place among its tenant's. Dropped with it.
#[derive(Debug)]
pub struct ConnectionPermit(Arc<AtomicUsize>);

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
