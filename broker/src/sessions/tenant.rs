//! One tenant at run time: its backends, its merged catalog, its counters. No other tenant sees any
//! of it.

mod budget;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use arc_swap::{ArcSwap, ArcSwapOption};
use parking_lot::Mutex;
use protocol::{
    error::{ErrorKind, Refusal},
    ids::{BackendId, PrincipalId, TenantId},
    method::Method,
};
use records::SessionKey;
use rules::{
    access::{AccessView, DecisionReport, DecisionRow, NotedDecision, Policy, Subject},
    catalog::{Catalog, HostedPrompts},
    deadlines::{self, CallDeadline, TimeoutSource},
    endpoint::Endpoint,
    limits::{PRINCIPALS_METERED_MAX, ROOM_RETRY},
    shared_rate_limit::{RateLimiterMap, SharedRateLimiter},
    toolsets::Toolsets,
};

use super::{access_doors, session::Session, shared::Shared, tenant_access::TenantCatalog};
use crate::{
    admission::concurrency_limit::TenantShare,
    backends::{backend::Backend, backend_admission::CallOwner},
    config::{MessageWire, spec::TenantSpec},
};

#[derive(Debug)]
pub struct Tenant {
    pub id: TenantId,
    /// The tenant's share where tenants compete for room.
    pub share: TenantShare,
    pub(super) shared: Arc<Shared>,
    spec: ArcSwap<TenantSpec>,
    meter: Arc<SharedRateLimiter>,
    principals: Mutex<RateLimiterMap<PrincipalId>>,
    pub(super) catalog: ArcSwap<TenantCatalog>,
    policy: ArcSwapOption<Policy>,
    toolsets: ArcSwap<Toolsets>,
    hosted_prompts: ArcSwap<HostedPrompts>,
    /// Decisions of the policy that refused, or that rules in shadow mode would change.
    decisions: Mutex<DecisionReport>,
    backends: Mutex<BTreeMap<BackendId, Arc<Backend>>>,
    /// Locked while a new catalog is built, so that an older one never replaces a newer one.
    pub(super) publishing: Mutex<()>,
    sessions: Mutex<HashMap<PrincipalId, Vec<Weak<Session>>>>,
    session_count: AtomicUsize,
    calls: AtomicUsize,
    /// Number of connections that are sessions, and of open GET streams.
    connections: Arc<AtomicUsize>,
    /// Set when the tenant was removed. Set and read while `sessions` is locked.
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
            catalog: ArcSwap::from_pointee(TenantCatalog::new(
                Arc::new(catalog),
                None,
                Arc::default(),
            )),
            policy: ArcSwapOption::empty(),
            toolsets: ArcSwap::default(),
            hosted_prompts: ArcSwap::default(),
            backends: Mutex::default(),
            decisions: Mutex::default(),
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

    /// Sets a new record. Its limits apply from the next request on.
    pub fn configure(&self, spec: TenantSpec) {
        self.spec.store(Arc::new(spec));
    }

    pub fn enabled(&self) -> bool {
        self.spec.load().enabled
    }

    /// Returns whether the tenant was removed. Another one may have its name.
    pub fn is_removed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Returns the tenant's weight where tenants compete.
    pub fn weight(&self) -> u32 {
        self.spec.load().weight
    }

    /// Returns the owner of a call of this principal, for a backend.
    pub fn call_owner<'a>(
        &'a self,
        principal: &'a PrincipalId,
        session: &'a SessionKey,
    ) -> CallOwner<'a> {
        CallOwner { share: &self.share, weight: self.weight(), principal, session }
    }

    /// Returns the size limit of a client's message on this wire.
    pub fn message_bytes(&self, wire: MessageWire) -> usize {
        self.shared
            .config
            .limits
            .message_sizes
            .of(self.spec.load().limits.message_profile.as_deref(), wire)
    }

    /// Returns the time limits of a request, as set by the backend, the tenant, or the
    /// configuration.
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
        deadlines::resolve(method, tool, &[of_backend, of_tenant, of_all])
    }

    /// Returns the catalog with the policy that restricts it, as one snapshot.
    pub fn catalog(&self) -> Arc<TenantCatalog> {
        self.catalog.load_full()
    }

    /// Returns the whole catalog. For what a client sees, use [`Self::visible_catalog`].
    pub fn full_catalog(&self) -> Arc<Catalog> {
        self.catalog.load().full.clone()
    }

    /// Returns the whole catalog with the lists that backends show to a principal.
    pub fn catalog_of(&self, principal: &PrincipalId) -> Arc<Catalog> {
        self.catalog.load().of(principal).full.clone()
    }

    /// Returns the catalog that a subject sees at an endpoint.
    pub fn visible_catalog(&self, endpoint: &Endpoint, subject: &Subject) -> Arc<Catalog> {
        self.catalog.load().of(&subject.principal).at(endpoint).visible(subject)
    }

    /// Returns the view of a subject at an endpoint. `None`: nothing restricts what it sees.
    pub fn access(&self, endpoint: &Endpoint, subject: &Subject) -> Option<Arc<AccessView>> {
        self.catalog.load().of(&subject.principal).at(endpoint).view(subject)
    }

    /// Returns whether anything restricts what subjects can use at an endpoint.
    pub fn has_policy(&self, endpoint: &Endpoint) -> bool {
        self.catalog.load().at(endpoint).has_policy()
    }

    /// Returns whether the policy lets a subject use any object of a backend.
    pub fn may_use_backend(&self, subject: &Subject, backend: &BackendId) -> bool {
        access_doors::is_open("endpoint") || self.catalog.load().may_use_backend(subject, backend)
    }

    /// Returns the toolsets in force.
    pub fn toolsets(&self) -> Arc<Toolsets> {
        self.toolsets.load_full()
    }

    /// Adds a decision to the report. `now` is the time since 1970.
    pub(super) fn note_decision(&self, now: Duration, noted: &NotedDecision, subject: &Subject) {
        self.decisions.lock().note(now, noted, subject.principal.as_str());
    }

    /// Returns the decisions since a time.
    pub fn decisions(&self, since: Duration) -> Vec<DecisionRow> {
        self.decisions.lock().rows(since)
    }

    /// Puts an access policy into force, and notifies every session whose lists differ now.
    pub fn set_policy(&self, policy: Option<Arc<Policy>>) {
        let _order = self.publishing.lock();
        self.policy.store(policy);
        self.publish(self.full_catalog());
    }

    /// Puts toolsets into force, and notifies every session whose lists differ now.
    pub fn set_toolsets(&self, toolsets: Arc<Toolsets>) {
        let _order = self.publishing.lock();
        self.toolsets.store(toolsets);
        self.publish(self.full_catalog());
    }

    /// Puts hosted prompts into force, and notifies every session whose lists differ now.
    pub fn set_hosted_prompts(&self, prompts: Arc<HostedPrompts>) {
        self.hosted_prompts.store(prompts);
        self.publish_catalog();
    }

    /// Publishes a catalog under the policy and toolsets in force. The caller holds `publishing`.
    fn publish(&self, catalog: Arc<Catalog>) {
        let (policy, toolsets) = (self.policy.load_full(), self.toolsets.load_full());
        let next = TenantCatalog::new(catalog, policy, toolsets).for_backends(&self.backends());
        let next = Arc::new(next);
        let before = self.catalog.swap(next.clone());
        self.announce_changes(&before, &next);
    }

    pub fn backend(&self, id: &BackendId) -> Option<Arc<Backend>> {
        self.backends.lock().get(id).cloned()
    }

    pub fn backends(&self) -> Vec<Arc<Backend>> {
        self.backends.lock().values().cloned().collect()
    }

    /// Returns the backends that an endpoint can show.
    pub fn backends_at(&self, endpoint: &Endpoint) -> Vec<Arc<Backend>> {
        match endpoint {
            Endpoint::Aggregated => self.backends(),
            Endpoint::Single(id) => self.backend(id).into_iter().collect(),
            Endpoint::Toolset(id) => {
                let toolsets = self.toolsets();
                let Some(toolset) = toolsets.get(id) else { return Vec::new() };
                self.backends().into_iter().filter(|one| toolset.may_have(&one.id)).collect()
            }
        }
    }

    /// Adds or replaces a backend. Returns the one it replaced.
    pub fn insert_backend(&self, backend: Arc<Backend>) -> Option<Arc<Backend>> {
        self.backends.lock().insert(backend.id.clone(), backend)
    }

    pub fn remove_backend(&self, id: &BackendId) -> Option<Arc<Backend>> {
        self.backends.lock().remove(id)
    }

    /// Rebuilds the catalog, and notifies every session whose lists differ now.
    pub fn publish_catalog(&self) {
        let _order = self.publishing.lock();
        let lists = self
            .backends()
            .into_iter()
            .filter_map(|backend| Some((backend.id.clone(), backend.lists.load_full()?)))
            .collect();
        let (id, key) = (self.id.clone(), self.shared.cursor_key.clone());
        let (hosted, config) = (self.hosted_prompts.load_full(), &self.shared.config);
        let catalog = Catalog::with_hosted(id, key, lists, hosted, config.limits.batch_calls);
        let names = config.compat.app_names;
        self.publish(Arc::new(if names { catalog } else { catalog.without_app_names() }));
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

    /// Registers a session that was opened elsewhere. The limits do not apply, because its client
    /// was admitted. Returns false if the tenant is gone.
    pub fn adopt_session(&self, session: &Arc<Session>) -> bool {
        let mut sessions = self.sessions.lock();
        if self.closed.load(Ordering::Relaxed) {
            return false;
        }
        sessions.entry(session.caller.principal.clone()).or_default().push(Arc::downgrade(session));
        self.session_count.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Closes the tenant for new sessions, because it is removed.
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
        self.sessions.lock().values().flatten().filter_map(Weak::upgrade).collect()
    }

    /// Returns the sessions of a principal that live here.
    pub fn sessions_of(&self, principal: &PrincipalId) -> Vec<Arc<Session>> {
        let sessions = self.sessions.lock();
        sessions.get(principal).into_iter().flatten().filter_map(Weak::upgrade).collect()
    }

    /// Returns the principals with sessions that live here.
    pub(super) fn principals_here(&self) -> Vec<PrincipalId> {
        self.sessions.lock().keys().cloned().collect()
    }

    /// Returns the number of sessions that live here.
    pub fn session_count(&self) -> usize {
        self.session_count.load(Ordering::Relaxed)
    }

    /// Takes a place for a connection that is a session, or for an open GET stream.
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

/// One connection's place among its tenant's. Dropping it frees the place.
#[derive(Debug)]
pub struct ConnectionPermit(Arc<AtomicUsize>);

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
