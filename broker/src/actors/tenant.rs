//! One tenant at run time: its backends, its merged catalog, its counters. Nothing here is visible to another tenant.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use arc_swap::ArcSwap;
use protocol::{
    error::{ErrorKind, Refusal},
    ids::{BackendId, PrincipalId, TenantId},
    method::Method,
};

use super::{backend::Backend, session::Session, shared::Shared, sync::lock};
use crate::{
    config::spec::TenantSpec,
    rules::{
        budget::Budget,
        catalog::{Catalog, Endpoint, ListKind},
        deadlines::{self, Deadline, Said},
    },
};

#[derive(Debug)]
pub struct Tenant {
    pub id: TenantId,
    shared: Arc<Shared>,
    spec: ArcSwap<TenantSpec>,
    budget: ArcSwap<Option<Budget>>,
    catalog: ArcSwap<Catalog>,
    backends: Mutex<BTreeMap<BackendId, Arc<Backend>>>,
    /// Held while a new catalog is built, so that an older one never replaces a newer one.
    publishing: Mutex<()>,
    sessions: Mutex<HashMap<PrincipalId, Vec<std::sync::Weak<Session>>>>,
    session_count: AtomicUsize,
    calls: AtomicUsize,
    /// The tenant was removed. Set and read while `sessions` is locked.
    closed: AtomicBool,
}

impl Tenant {
    pub fn new(id: TenantId, spec: TenantSpec, shared: Arc<Shared>) -> Arc<Self> {
        let catalog = Catalog::build(id.clone(), shared.cursor_key.clone(), BTreeMap::new());
        let tenant = Self {
            id,
            spec: ArcSwap::from_pointee(TenantSpec::default()),
            budget: ArcSwap::from_pointee(None),
            catalog: ArcSwap::from_pointee(catalog),
            backends: Mutex::default(),
            publishing: Mutex::default(),
            sessions: Mutex::default(),
            session_count: AtomicUsize::new(0),
            calls: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            shared,
        };
        tenant.configure(spec);
        Arc::new(tenant)
    }

    /// Takes a new record; limits hold from the next request on.
    pub fn configure(&self, spec: TenantSpec) {
        let common = &self.shared.config.limits;
        let rate = spec.limits.requests_per_second.unwrap_or(common.requests_per_second);
        let burst = spec.limits.burst.unwrap_or(common.burst);
        self.budget.store(Arc::new(Budget::new(rate, burst)));
        self.spec.store(Arc::new(spec));
    }

    pub fn enabled(&self) -> bool {
        self.spec.load().enabled
    }

    /// Its share where tenants compete.
    pub fn weight(&self) -> u32 {
        self.spec.load().weight
    }

    /// How long a request may take: as the backend says, or the tenant, or the configuration.
    pub fn deadline(&self, backend: Option<&Backend>, method: Method, tool: Option<&str>) -> Deadline {
        let spec = self.spec.load();
        let (own, common) = (&spec.timeouts, &self.shared.config.timeouts);
        let of_backend = backend.map_or_else(Said::default, |backend| {
            let said = &backend.spec.timeouts;
            Said { tools: Some(&said.tools), methods: Some(&said.methods), call: said.call, control: said.control, total: said.call_max }
        });
        let of_tenant = Said { tools: None, methods: Some(&own.methods), call: own.call, control: own.control, total: own.call_max };
        let (call, control, total) = (Some(common.call), Some(common.control), Some(common.call_max));
        let of_all = Said { tools: None, methods: Some(&common.methods), call, control, total };
        deadlines::of(method, tool, &[of_backend, of_tenant, of_all])
    }

    pub fn catalog(&self) -> Arc<Catalog> {
        self.catalog.load_full()
    }

    pub fn backend(&self, id: &BackendId) -> Option<Arc<Backend>> {
        lock(&self.backends).get(id).cloned()
    }

    pub fn backends(&self) -> Vec<Arc<Backend>> {
        lock(&self.backends).values().cloned().collect()
    }

    /// Adds or replaces a backend; returns the one it replaced.
    pub fn insert_backend(&self, backend: Arc<Backend>) -> Option<Arc<Backend>> {
        lock(&self.backends).insert(backend.id.clone(), backend)
    }

    pub fn remove_backend(&self, id: &BackendId) -> Option<Arc<Backend>> {
        lock(&self.backends).remove(id)
    }

    /// Builds the catalog anew from the backends' lists and tells every session whose lists differ now.
    pub fn publish(&self) {
        let _order = lock(&self.publishing);
        let lists = self.backends().into_iter().filter_map(|backend| Some((backend.id.clone(), backend.lists.load_full()?))).collect();
        let catalog = Arc::new(Catalog::build(self.id.clone(), self.shared.cursor_key.clone(), lists));
        let before = self.catalog.swap(catalog.clone());
        let mut changed: HashMap<Endpoint, Vec<ListKind>> = HashMap::new();
        for session in self.sessions() {
            let endpoint = session.endpoint.clone();
            let lists = changed.entry(endpoint).or_insert_with(|| catalog.changed_lists(&before, &session.endpoint));
            if !lists.is_empty() {
                session.lists_changed(lists);
            }
        }
    }

    /// Registers a session, if the tenant and its principal may have another.
    pub fn open_session(&self, session: &Arc<Session>) -> Result<(), Refusal> {
        let common = &self.shared.config.limits;
        let tenant_max = self.spec.load().limits.sessions_per_tenant.unwrap_or(common.sessions_per_tenant);
        let mut sessions = lock(&self.sessions);
        if self.closed.load(Ordering::Relaxed) {
            return Err(Refusal::new(ErrorKind::Unauthorized, "the tenant is gone"));
        }
        if self.session_count.load(Ordering::Relaxed) >= tenant_max {
            return Err(too_many_sessions("tenant", tenant_max));
        }
        let own = sessions.entry(session.caller.principal.clone()).or_default();
        if own.len() >= common.sessions_per_principal {
            return Err(too_many_sessions("principal", common.sessions_per_principal));
        }
        own.push(Arc::downgrade(session));
        self.session_count.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Registers a session that was opened elsewhere, however many there are: its client was let in. `false`: the tenant is
    /// gone.
    pub fn adopt_session(&self, session: &Arc<Session>) -> bool {
        let mut sessions = lock(&self.sessions);
        if self.closed.load(Ordering::Relaxed) {
            return false;
        }
        sessions.entry(session.caller.principal.clone()).or_default().push(Arc::downgrade(session));
        self.session_count.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// The tenant is removed: it takes no session any more.
    pub fn close(&self) {
        let _sessions = lock(&self.sessions);
        self.closed.store(true, Ordering::Relaxed);
    }

    pub fn close_session(&self, session: &Arc<Session>) {
        let mut sessions = lock(&self.sessions);
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
        lock(&self.sessions).values().flatten().filter_map(std::sync::Weak::upgrade).collect()
    }

    /// Takes one request's worth of the tenant's budget.
    pub fn take_budget(&self) -> Result<(), Refusal> {
        match &**self.budget.load() {
            Some(budget) => budget.take(self.shared.uptime()).map_err(|wait| {
                self.shared.metrics.rate_limited("tenant");
                Refusal::new(ErrorKind::RateLimited, "the tenant's request rate is used up").retry_after(wait)
            }),
            None => Ok(()),
        }
    }

    /// Gives back what [`Tenant::take_budget`] took.
    pub fn give_back_budget(&self) {
        if let Some(budget) = &**self.budget.load() {
            budget.give_back();
        }
    }

    /// Counts a call in, if there is room.
    pub fn open_call(&self) -> Result<(), Refusal> {
        let max = self.spec.load().limits.calls_in_flight_per_tenant.unwrap_or(self.shared.config.limits.calls_in_flight_per_tenant);
        if self.calls.fetch_add(1, Ordering::Relaxed) >= max {
            self.calls.fetch_sub(1, Ordering::Relaxed);
            return Err(Refusal::new(ErrorKind::TooManyCalls, format!("the tenant has {max} calls in flight, which is its limit")));
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
    Refusal::new(ErrorKind::TooManySessions, format!("the {whose} has {max} sessions, which is its limit"))
}
