//! One tenant at run time: its backends, its merged catalog, its counters. No other tenant sees any
//! of it.

mod budget;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use config::{MessageWire, spec::TenantSpec};
use parking_lot::Mutex;
use protocol::{
    error::{ErrorKind, Refusal},
    ids::{BackendId, PrincipalId, TenantId},
    method::Method,
};
use records::SessionKey;
use rules::{
    access::{AccessView, DecisionReport, DecisionRow, Policy, RecordedDecision, Subject},
    byte_window::ByteWindow,
    catalog::{Catalog, HostedPrompts},
    deadlines::{self, CallDeadline, TimeoutSource},
    endpoint::Endpoint,
    limits::{LIMIT_RETRY_AFTER, PRINCIPALS_METERED_MAX, replicas::CALL_PERMITS_RESERVED_MAX},
    shared_permits::SharedPermits,
    toolsets::Toolsets,
};
use transport::message_bound::{MessageBound, MessageBudget};

use super::{
    access_checks,
    published_catalog::PublishedCatalog,
    session::Session,
    shared::Shared,
    stream::TenantRetained,
    tenant_access::TenantCatalog,
    tenant_sessions::{SessionLimits, TenantSessions},
};
use crate::{
    admission::{
        concurrency_limit::TenantShare, nested_rates::NestedRates, permit_limiter::WaitingCaller,
    },
    auth::Caller,
    backends::{backend::Backend, backend_admission::CallOwner},
    metrics::TenantCounts,
};

pub use crate::admission::permit_limiter::SharedPermit;

/// Time at which a tenant was created, in microseconds since 1970. 0: the configuration file
/// declares the tenant.
#[derive(Debug)]
pub struct TenantGeneration(AtomicI64);

impl TenantGeneration {
    pub fn us(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
pub struct Tenant {
    pub id: TenantId,
    /// The tenant's share where tenants compete for capacity.
    pub share: TenantShare,
    pub(super) shared: Arc<Shared>,
    spec: ArcSwap<TenantSpec>,
    /// Tells the tenant from a later one of the same name.
    pub generation: TenantGeneration,
    /// The rates of the tenant and of its principals.
    rates: NestedRates<PrincipalId>,
    pub(super) published: PublishedCatalog,
    /// Decisions of the policy that refused, or that rules in shadow mode would change.
    decisions: Mutex<DecisionReport>,
    backends: Mutex<BTreeMap<BackendId, Arc<Backend>>>,
    sessions: TenantSessions<Session>,
    calls: Arc<SharedPermits>,
    /// Connections that are sessions, and open GET streams.
    connections: Arc<SharedPermits>,
    /// Memory for incomplete messages of its clients.
    pub message_budget: MessageBudget,
    /// Delivered events of its clients.
    pub(super) retained: Arc<TenantRetained>,
    /// Bytes of its events that the event log takes.
    pub(super) logged_events: Arc<Mutex<ByteWindow>>,
    pub counts: TenantCounts,
}

impl Tenant {
    pub fn new(
        id: TenantId,
        spec: TenantSpec,
        created_at_us: i64,
        shared: Arc<Shared>,
    ) -> Arc<Self> {
        let catalog = Catalog::build(id.clone(), shared.cursor_key.clone(), BTreeMap::new());
        let tenant = Self {
            spec: ArcSwap::from_pointee(TenantSpec::default()),
            generation: TenantGeneration(AtomicI64::new(created_at_us)),
            rates: NestedRates::new(
                format!("tenant/{id}"),
                PRINCIPALS_METERED_MAX,
                format!("principals/{id}"),
            ),
            connections: shared.limiters.permits.permits(format!("connections/{id}"), 0),
            published: PublishedCatalog::new(catalog),
            backends: Mutex::default(),
            decisions: Mutex::default(),
            sessions: TenantSessions::new(id.clone(), shared.limiters.permits.clone()),
            calls: shared
                .limiters
                .permits
                .permits(format!("calls/{id}"), CALL_PERMITS_RESERVED_MAX),
            message_budget: MessageBudget::new(shared.unfinished_tenant_bytes),
            retained: shared.retained_budget.new_tenant(),
            logged_events: Arc::new(Mutex::new(shared.logged_events_window())),
            counts: TenantCounts::new(shared.metrics.clone(), id.clone()),
            shared,
            share: TenantShare::of(id.clone()),
            id,
        };
        tenant.configure(spec, created_at_us);
        Arc::new(tenant)
    }

    /// Sets a new record. Its limits apply from the next request on.
    pub fn configure(&self, spec: TenantSpec, created_at_us: i64) {
        self.generation.0.store(created_at_us, Ordering::Relaxed);
        self.spec.store(Arc::new(spec));
        self.shared.limiters.permits.set_max(&self.calls, self.calls_max());
    }

    pub fn enabled(&self) -> bool {
        self.spec.load().enabled
    }

    /// Returns whether the tenant was removed. Another one may have its name.
    pub fn is_removed(&self) -> bool {
        self.sessions.is_closed()
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

    /// Returns the bounds of the incomplete messages of one connection.
    pub fn message_bound(&self) -> MessageBound {
        let time_max = self.shared.config.timeouts.request_read;
        MessageBound::new(self.message_budget.clone(), time_max)
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
            let configured = &backend.spec.timeouts;
            TimeoutSource {
                tools: Some(&configured.tools),
                methods: Some(&configured.methods),
                call: configured.call,
                control: configured.control,
                total: configured.call_max,
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
        self.published.load_full()
    }

    /// Returns the whole catalog. For what a client sees, use [`Self::visible_catalog`].
    pub fn full_catalog(&self) -> Arc<Catalog> {
        self.published.snapshot().full.clone()
    }

    /// Returns the whole catalog with the lists that backends show to a principal.
    pub fn catalog_of(&self, principal: &PrincipalId) -> Arc<Catalog> {
        self.published.snapshot().of(principal).full.clone()
    }

    /// Returns the catalog that a caller sees at an endpoint. An operator's trial sees no lists that
    /// backends show to its subject alone.
    pub fn visible_catalog(&self, endpoint: &Endpoint, caller: &Caller) -> Arc<Catalog> {
        self.published.snapshot().of(&caller.principal).at(endpoint).visible(&caller.subject)
    }

    /// Returns the view of a subject at an endpoint. `None`: nothing restricts what it sees.
    pub fn access(&self, endpoint: &Endpoint, subject: &Subject) -> Option<Arc<AccessView>> {
        self.published.snapshot().of(&subject.principal).at(endpoint).view(subject)
    }

    /// Returns whether anything restricts what subjects can use at an endpoint.
    pub fn has_policy(&self, endpoint: &Endpoint) -> bool {
        self.published.snapshot().at(endpoint).has_policy()
    }

    /// Returns whether the policy lets a subject use any object of a backend.
    pub fn may_use_backend(&self, subject: &Subject, backend: &BackendId) -> bool {
        access_checks::is_disabled("endpoint")
            || self.published.snapshot().may_use_backend(subject, backend)
    }

    /// Returns the toolsets in force.
    pub fn toolsets(&self) -> Arc<Toolsets> {
        self.published.toolsets()
    }

    /// Adds a decision to the report. `now` is the time since 1970.
    pub(super) fn record_decision(
        &self,
        now: Duration,
        recorded: &RecordedDecision,
        subject: &Subject,
    ) {
        self.decisions.lock().record(now, recorded, subject.principal.as_str());
    }

    /// Returns the decisions since a time.
    pub fn decisions(&self, since: Duration) -> Vec<DecisionRow> {
        self.decisions.lock().rows(since)
    }

    /// Puts an access policy into force, and notifies every session whose lists differ now.
    pub fn set_policy(&self, policy: Option<Arc<Policy>>) {
        self.published.changes.run(|| {
            self.published.set_policy(policy);
            self.publish(self.full_catalog());
        });
    }

    /// Puts toolsets into force, and notifies every session whose lists differ now.
    pub fn set_toolsets(&self, toolsets: Arc<Toolsets>) {
        self.published.changes.run(|| {
            self.published.set_toolsets(toolsets);
            self.publish(self.full_catalog());
        });
    }

    /// Puts hosted prompts into force, and notifies every session whose lists differ now.
    pub fn set_hosted_prompts(&self, prompts: Arc<HostedPrompts>) {
        self.published.set_hosted_prompts(prompts);
        self.publish_catalog();
    }

    /// Publishes a catalog, and notifies every session whose lists differ now. Must be called in a
    /// change of [`CatalogChanges`](super::catalog_changes::CatalogChanges).
    fn publish(&self, catalog: Arc<Catalog>) {
        let next = Arc::new(self.published.next(catalog).for_backends(&self.backends()));
        next.prepare(self.sessions().iter().map(|session| &session.endpoint));
        let before = self.published.replace(next.clone());
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
        self.published.changes.run(|| {
            let lists = self
                .backends()
                .into_iter()
                .filter_map(|backend| Some((backend.id.clone(), backend.lists.load_full()?)))
                .collect();
            let (id, key) = (self.id.clone(), self.shared.cursor_key.clone());
            let (hosted, config) = (self.published.hosted_prompts(), &self.shared.config);
            let catalog = Catalog::with_hosted(id, key, lists, hosted, config.limits.batch_calls);
            let names = config.compat.app_names;
            self.publish(Arc::new(if names { catalog } else { catalog.without_app_names() }));
        });
    }

    fn session_limits(&self) -> SessionLimits {
        let (own, common) = (&self.spec.load().limits, &self.shared.config.limits);
        SessionLimits {
            tenant: own.sessions_per_tenant.unwrap_or(common.sessions_per_tenant),
            principal: own.sessions_per_principal.unwrap_or(common.sessions_per_principal),
        }
    }

    /// Registers a session, if the tenant and its principal may have another.
    pub async fn open_session(&self, session: &Arc<Session>) -> Result<(), Refusal> {
        self.shared.limiters.permits.expect_use(&self.calls, self.calls_max());
        let principal = &session.caller.principal;
        let refused = |scope| self.counts.rate_limited(scope);
        let limits = self.session_limits();
        self.sessions.open(session, principal, Session::is_leaving, limits, refused).await
    }

    /// Registers a session that was opened elsewhere. The limits do not apply, because its client
    /// was admitted. Returns false if the tenant is gone.
    pub fn adopt_session(&self, session: &Arc<Session>) -> bool {
        self.shared.limiters.permits.expect_use(&self.calls, self.calls_max());
        self.sessions.adopt(session, &session.caller.principal, self.session_limits())
    }

    /// Closes the tenant for new sessions, because it is removed. Ends its metrics.
    pub fn close(&self) {
        self.sessions.close();
        self.counts.close();
    }

    pub fn close_session(&self, session: &Arc<Session>) {
        self.sessions.remove(session, &session.caller.principal);
    }

    pub fn sessions(&self) -> Vec<Arc<Session>> {
        self.sessions.all()
    }

    /// Returns the sessions of a principal that live here.
    pub fn sessions_of(&self, principal: &PrincipalId) -> Vec<Arc<Session>> {
        self.sessions.of(principal)
    }

    /// Returns the principals with sessions that live here.
    pub(super) fn principals_here(&self) -> Vec<PrincipalId> {
        self.sessions.principals()
    }

    /// Returns the number of sessions that live here.
    pub fn session_count(&self) -> usize {
        self.sessions.count()
    }

    /// Takes a permit for a connection that is a session, or for an open GET stream.
    pub async fn acquire_connection(&self) -> Result<SharedPermit, Refusal> {
        let max = self
            .spec
            .load()
            .limits
            .connections_per_tenant
            .unwrap_or(self.shared.config.limits.connections_per_tenant);
        self.shared.limiters.permits.take(&self.connections, max).await.map_err(|_none| {
            self.counts.rate_limited("connections_per_tenant");
            let text =
                format!("the tenant has {max} connections and streams open, which is its limit");
            Refusal::new(ErrorKind::TooManyConnections, text).retry_after(LIMIT_RETRY_AFTER)
        })
    }

    fn calls_max(&self) -> usize {
        let own = self.spec.load().limits.calls_in_flight_per_tenant;
        own.unwrap_or(self.shared.config.limits.calls_in_flight_per_tenant)
    }

    /// Waits until this replica has a permit for one more call, or gets none. The returned value
    /// keeps the permit for [`Tenant::open_call`], which refuses if there is none.
    pub async fn wait_for_call(&self) -> Option<WaitingCaller<'_>> {
        let limiter = &self.shared.limiters.permits;
        if !limiter.is_shared() {
            return None;
        }
        match limiter.wait_for_permit(&self.calls, self.calls_max()) {
            Ok(ready) => ready,
            // Boxed, because a wait is rare and would enlarge the future of every call.
            Err(waiting) => Some(Box::pin(limiter.wait_for_report(&self.calls, waiting)).await),
        }
    }

    /// Counts a call in, if there is capacity.
    pub fn open_call(&self) -> Result<(), Refusal> {
        let max = self.calls_max();
        self.shared.limiters.permits.try_take(&self.calls, max).map_err(|_none| {
            self.counts.rate_limited("calls_in_flight_per_tenant");
            Refusal::new(
                ErrorKind::TooManyCalls,
                format!("the tenant has {max} calls in flight, which is its limit"),
            )
        })?;
        self.counts.calls_in_flight(1);
        Ok(())
    }

    pub fn close_call(&self) {
        self.shared.limiters.permits.release(&self.calls);
        self.counts.calls_in_flight(-1);
    }

    pub fn calls_in_flight(&self) -> usize {
        self.calls.in_use() as usize
    }
}
