//! The running broker: its tenants, its sessions, and what the listeners and the admin plane ask of it.

mod owned;

use std::{
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use bytes::Bytes;
use dashmap::DashMap;
use protocol::{
    envelope::Message,
    error::{ErrorKind, Refusal},
    handshake::{self, InitializeParams},
    ids::{BackendId, KeyId, PrincipalId, SessionId, TenantId},
    version::Version,
};
use transport::http_client::{HttpClient, HttpClientConfig, TlsSetupError};

use crate::{
    actors::{
        backend::{Backend, BackendState},
        catalog_refresh,
        session::{Agreement, Seat, Session},
        shared::Shared,
        tasks::Tasks,
        tenant::Tenant,
    },
    auth::{Caller, Keyring, Keys},
    config::{
        Config,
        spec::{BackendSpec, TenantSpec},
    },
    durable::{Durable, Stores, node::NodeSettings},
    limits::{CLIENT_TEXT_BYTES_MAX, CLOSE_WAIT, DISPLAY_CHARS_MAX, FIRST_CATALOG_WAIT, REAPER_INTERVAL},
    metrics::{Metrics, Side},
    placement::Placement,
    rules::{
        catalog::{BackendLists, Endpoint},
        offer::Offer,
    },
    views::{BackendStatus, SessionView, SubscriptionView},
};

/// What a broker is made of.
pub struct Parts {
    pub config: Arc<Config>,
    pub metrics: Arc<Metrics>,
    pub keys: Keys,
    pub keyring: Arc<Keyring>,
    pub stores: Stores,
}

#[derive(Debug)]
pub struct Broker {
    pub shared: Arc<Shared>,
    /// The other replicas, and which of them has a session that is not here.
    pub placement: Placement,
    keyring: Arc<Keyring>,
    tenants: DashMap<TenantId, Arc<Tenant>>,
    sessions: DashMap<SessionId, Arc<Session>>,
}

impl Broker {
    /// Starts the broker's own housekeeping; must be called inside the runtime.
    pub fn new(parts: Parts) -> Result<Arc<Broker>, TlsSetupError> {
        let http = HttpClient::new(HttpClientConfig {
            connect_timeout: parts.config.timeouts.connect,
            egress: parts.config.egress.clone(),
            ..HttpClientConfig::default()
        })?;
        let node = NodeSettings::fresh_name(&parts.config.node.id);
        let durable = Durable::new(parts.stores, node, parts.keys.seal, parts.metrics.clone());
        let placement = Placement::new(&parts.keys.peer)?;
        let broker = Arc::new(Broker {
            placement,
            shared: Shared::new(parts.config, parts.metrics, http, parts.keys.cursor, durable),
            keyring: parts.keyring,
            tenants: DashMap::new(),
            sessions: DashMap::new(),
        });
        let tenants = Arc::downgrade(&broker);
        broker.shared.tasks.find_tenants_by(Box::new(move |id| tenants.upgrade()?.tenant(id)));
        tokio::spawn(reap(Arc::downgrade(&broker)));
        Ok(broker)
    }

    // Tenants and backends.

    pub fn put_tenant(&self, id: &TenantId, spec: TenantSpec) {
        match self.tenants.entry(id.clone()) {
            dashmap::Entry::Occupied(known) => {
                let tenant = known.get().clone();
                drop(known);
                tenant.configure(spec);
                if !tenant.enabled() {
                    self.end_sessions_of(&tenant, "the tenant was disabled");
                }
            }
            dashmap::Entry::Vacant(free) => {
                free.insert(Tenant::new(id.clone(), spec, self.shared.clone()));
            }
        }
    }

    /// Ends the tenant's sessions and closes its backends.
    pub fn remove_tenant(&self, id: &TenantId) {
        let Some((_, tenant)) = self.tenants.remove(id) else { return };
        tenant.close();
        self.end_sessions_of(&tenant, "the tenant was removed");
        tenant.backends().iter().for_each(|backend| backend.close());
    }

    /// Ends what was opened with a key that is no longer good: its open streams would go on otherwise.
    pub fn end_sessions_of_key(&self, key: &KeyId) {
        let opened_with = self.all_sessions().into_iter().filter(|session| session.caller.key.as_ref() == Some(key));
        opened_with.for_each(|session| self.close_session(&session, "its key was revoked"));
    }

    /// Registers or replaces a backend; the same settings again change nothing.
    pub fn put_backend(&self, tenant: &TenantId, id: &BackendId, spec: BackendSpec) {
        let Some(tenant) = self.tenant(tenant) else { return };
        if tenant.backend(id).is_some_and(|known| known.spec == spec) {
            return;
        }
        let backend = Backend::new(tenant.id.clone(), id.clone(), spec, self.shared.clone());
        if let Some(replaced) = tenant.insert_backend(backend.clone()) {
            replaced.close();
            // Until the new one's lists are read, the old ones serve, marked stale.
            if let Some(lists) = replaced.lists.load_full() {
                backend.lists.store(Some(Arc::new(BackendLists { stale: true, ..(*lists).clone() })));
            }
            tenant.publish();
            for session in tenant.sessions() {
                self.shared.running.spawn(session.resubscribe(id.clone()));
            }
        }
        self.shared.running.spawn(catalog_refresh::run(Arc::downgrade(&tenant), backend));
    }

    pub fn remove_backend(&self, tenant: &TenantId, id: &BackendId) -> bool {
        let Some(tenant) = self.tenant(tenant) else { return false };
        let Some(backend) = tenant.remove_backend(id) else { return false };
        backend.close();
        tenant.publish();
        tenant.sessions().iter().for_each(|session| session.forget_subscriptions_of(id));
        for session in tenant.sessions().iter().filter(|session| session.endpoint == Endpoint::Single(id.clone())) {
            self.close_session(session, "its backend was removed");
        }
        true
    }

    pub fn backend(&self, tenant: &TenantId, id: &BackendId) -> Option<BackendStatus> {
        Some(self.tenant(tenant)?.backend(id)?.view())
    }

    pub fn backends(&self, tenant: &TenantId) -> Vec<BackendStatus> {
        self.tenant(tenant).map(|tenant| tenant.backends().iter().map(|backend| backend.view()).collect()).unwrap_or_default()
    }

    /// The backend's state once the first attempt to reach it is over, or when the time is.
    pub async fn settled(&self, tenant: &TenantId, id: &BackendId, within: Duration) -> Option<BackendStatus> {
        let backend = self.tenant(tenant)?.backend(id)?;
        backend.settled(within).await;
        Some(backend.view())
    }

    /// Reaches for the backend now.
    pub fn probe(&self, tenant: &TenantId, id: &BackendId) -> bool {
        let Some(backend) = self.tenant(tenant).and_then(|tenant| tenant.backend(id)) else { return false };
        backend.reconnect();
        true
    }

    pub fn tenant(&self, id: &TenantId) -> Option<Arc<Tenant>> {
        self.tenants.get(id).map(|tenant| tenant.clone())
    }

    // Callers and sessions.

    /// Who is calling. Without a credential that is nobody in particular of tenant `default`, where that is allowed.
    pub fn authenticate(&self, bearer: Option<&str>) -> Result<Caller, Refusal> {
        let caller = match bearer {
            Some(bearer) => self.keyring.verify(bearer).ok_or_else(key_required)?,
            None if self.shared.config.auth.required => return Err(key_required()),
            None => Caller { tenant: default_tenant(), principal: PrincipalId::new("anonymous"), key: None },
        };
        self.admit(caller)
    }

    /// A caller that has been authenticated, here or by another replica: its tenant must be served.
    pub fn admit(&self, caller: Caller) -> Result<Caller, Refusal> {
        let enabled = self.tenant(&caller.tenant).is_some_and(|tenant| tenant.enabled());
        if enabled { Ok(caller) } else { Err(key_required()) }
    }

    /// A session that lives in this process. An error if it is not the caller's own at this endpoint, which to the caller is
    /// as good as none.
    pub fn session_here(&self, id: &SessionId, caller: &Caller, endpoint: &Endpoint) -> Result<Option<Arc<Session>>, Refusal> {
        let Some(session) = self.sessions.get(id).map(|session| session.clone()) else { return Ok(None) };
        let is_own =
            session.caller.tenant == caller.tenant && session.caller.principal == caller.principal && session.endpoint == *endpoint;
        if is_own { Ok(Some(session)) } else { Err(no_session()) }
    }

    /// Performs the server's half of the handshake: the new session and the result of `initialize`.
    pub async fn open_session(
        &self,
        caller: Caller,
        endpoint: Endpoint,
        transport: &'static str,
        message: &Message,
    ) -> Result<(Arc<Session>, Bytes), Refusal> {
        self.admits_sessions()?;
        let params = InitializeParams::parse(message)?;
        if message.params.is_some_and(|params| params.len() > CLIENT_TEXT_BYTES_MAX) {
            let text = format!("what a client says about itself has at most {CLIENT_TEXT_BYTES_MAX} bytes");
            return Err(Refusal::new(ErrorKind::InvalidParams, text));
        }
        let tenant = self.tenant(&caller.tenant).ok_or_else(|| Refusal::new(ErrorKind::Unauthorized, "the tenant is gone"))?;
        tenant.take_budget()?;
        let offer = self.offer(&tenant, &endpoint).await?;
        let version = Version::answer_initialize(&params.requested);
        let offer = offer.known_in(version);
        let result = handshake::initialize_result(version, offer.capabilities.raw(), &offer.server_info, offer.instructions.as_deref());
        let agreement = Agreement {
            version,
            client: params.capabilities,
            client_name: display(&params.client_name),
            client_version: display(&params.client_version),
            advertised: offer.capabilities,
        };
        let seat = Seat { tenant: tenant.clone(), caller, endpoint, transport };
        let session = Session::open(seat, agreement, self.shared.clone());
        // Findable first: whoever removes the tenant or drains from here on sees it.
        self.sessions.insert(session.id.clone(), session.clone());
        if let Err(refusal) = tenant.open_session(&session).and_then(|()| self.admits_sessions()) {
            self.close_session(&session, "refused");
            return Err(refusal);
        }
        self.shared.metrics.version_negotiated(version, Side::Client);
        tracing::info!(session = %session.digest, tenant = %tenant.id, principal = %session.caller.principal, client = ?session.client_name, version = version.as_str(), "session opened");
        Ok((session, result))
    }

    fn admits_sessions(&self) -> Result<(), Refusal> {
        if self.draining() {
            return Err(Refusal::new(ErrorKind::Draining, "the broker is shutting down and takes no new sessions"));
        }
        Ok(())
    }

    /// What the endpoint can do, once its backends have had their first chance to say so.
    async fn offer(&self, tenant: &Tenant, endpoint: &Endpoint) -> Result<Offer, Refusal> {
        match endpoint {
            Endpoint::Aggregated => {
                let backends = tenant.backends();
                let settling = futures_util::future::join_all(backends.iter().map(|backend| backend.settled(FIRST_CATALOG_WAIT)));
                settling.await;
                Ok(Offer::aggregated(&tenant.catalog(), self.shared.task_settings().enabled))
            }
            Endpoint::Single(id) => {
                let backend = tenant.backend(id).ok_or_else(|| unknown_backend(id))?;
                if backend.state() == BackendState::Failed {
                    backend.reconnect();
                }
                backend.settled(backend.timeouts().control).await;
                let lists = backend.lists.load_full();
                let down = || Refusal::new(ErrorKind::BackendUnavailable, format!("backend {id} can not be reached"));
                let lists = lists.ok_or_else(down)?;
                Ok(Offer::single(&lists, self.shared.task_settings().enabled))
            }
        }
    }

    pub fn close_session(&self, session: &Arc<Session>, why: &str) {
        self.sessions.remove(&session.id);
        session.end(why);
    }

    fn end_sessions_of(&self, tenant: &Tenant, why: &str) {
        tenant.sessions().iter().for_each(|session| self.close_session(session, why));
    }

    fn all_sessions(&self) -> Vec<Arc<Session>> {
        self.sessions.iter().map(|entry| entry.value().clone()).collect()
    }

    // What operators see.

    pub fn sessions(&self, tenant: Option<&TenantId>) -> Vec<SessionView> {
        let of_tenant = |session: &Arc<Session>| tenant.is_none_or(|tenant| session.tenant.id == *tenant);
        let mut views: Vec<_> = self.all_sessions().into_iter().filter(of_tenant).map(|session| session.view()).collect();
        views.sort_by(|a, b| (&a.created_at, &a.id).cmp(&(&b.created_at, &b.id)));
        views
    }

    pub fn session(&self, digest: &str) -> Option<SessionView> {
        self.by_digest(digest).map(|session| session.view())
    }

    pub fn end_session(&self, digest: &str) -> bool {
        let Some(session) = self.by_digest(digest) else { return false };
        self.close_session(&session, "ended by an operator");
        true
    }

    fn by_digest(&self, digest: &str) -> Option<Arc<Session>> {
        self.sessions.iter().find(|entry| entry.value().digest == digest).map(|entry| entry.value().clone())
    }

    pub async fn cancel_task(&self, id: &str) -> Result<(), Refusal> {
        self.shared.tasks.cancel(&self.shared, id).await
    }

    /// Everything stored and declared is known: tasks that were left behind are looked for from now on.
    pub fn begin_tasks(&self) {
        Tasks::begin(&self.shared);
    }

    pub fn subscriptions(&self, tenant: Option<&TenantId>) -> Vec<SubscriptionView> {
        let tenants: Vec<_> = self.tenants.iter().map(|entry| entry.value().clone()).collect();
        let mut views = Vec::new();
        for wanted in tenants.iter().filter(|known| tenant.is_none_or(|tenant| known.id == *tenant)) {
            for backend in wanted.backends() {
                for (uri, sessions) in backend.links().iter().flat_map(|link| link.subscriptions.counts()) {
                    let (tenant, backend) = (wanted.id.to_string(), backend.id.to_string());
                    views.push(SubscriptionView { tenant, backend, uri, sessions });
                }
            }
        }
        views.sort_by(|a, b| (&a.tenant, &a.backend, &a.uri).cmp(&(&b.tenant, &b.backend, &b.uri)));
        views
    }

    // Going away.

    /// Takes nothing new from now on. Open GET streams are told when to come back.
    pub fn drain(&self) {
        if !self.shared.draining.is_cancelled() {
            tracing::info!("draining: no new sessions and calls");
            self.shared.draining.cancel();
            self.shared.tasks.drain();
            self.all_sessions().iter().for_each(|session| session.say_goodbye());
        }
    }

    pub fn draining(&self) -> bool {
        self.shared.draining.is_cancelled()
    }

    /// Resolves once a drain was asked for.
    pub async fn drain_requested(&self) {
        self.shared.draining.cancelled().await;
    }

    /// Waits for the calls in flight, then says goodbye to clients and backends. `true` when no call was cut.
    pub async fn finish_drain(&self, grace: Duration) -> bool {
        let calls = || self.all_sessions().iter().map(|session| session.calls_in_flight()).sum::<usize>();
        let in_flight = || calls() + self.shared.tasks.running();
        let all_done = async {
            while in_flight() > 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let clean = tokio::time::timeout(grace, all_done).await.is_ok();
        if !clean {
            tracing::warn!(calls = in_flight(), "the grace period is over, calls are cut");
        }
        self.shared.tasks.release_all();
        let released = async {
            while self.shared.tasks.running() > 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let _in_time = tokio::time::timeout(CLOSE_WAIT, released).await;
        self.all_sessions().iter().for_each(|session| self.close_session(session, "the broker shuts down"));
        self.tenants.iter().for_each(|tenant| tenant.value().backends().iter().for_each(|backend| backend.close()));
        self.shared.running.close();
        if tokio::time::timeout(CLOSE_WAIT, self.shared.running.wait()).await.is_err() {
            tracing::warn!(tasks = self.shared.running.len(), "some links did not close in time");
        }
        clean
    }
}

pub fn no_session() -> Refusal {
    Refusal::new(ErrorKind::SessionNotFound, "no such session: it ended or never was; initialize anew")
}

pub fn unknown_backend(id: &BackendId) -> Refusal {
    Refusal::new(ErrorKind::NotFound, format!("no endpoint for a backend named {id}"))
}

fn key_required() -> Refusal {
    Refusal::new(ErrorKind::Unauthorized, "a valid API key is required: Authorization: Bearer <key>")
}

fn default_tenant() -> TenantId {
    TenantId::parse("default").expect("the name follows the grammar")
}

/// A peer's text where people read it.
fn display(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(DISPLAY_CHARS_MAX).collect()
}

/// Once a second: idle sessions, unanswered questions, links nobody uses.
async fn reap(broker: Weak<Broker>) {
    let mut tick = tokio::time::interval(REAPER_INTERVAL);
    loop {
        tick.tick().await;
        let Some(broker) = broker.upgrade() else { return };
        let now = Instant::now();
        for session in broker.all_sessions() {
            session.tick(now);
            if session.end_if_idle(broker.shared.config.session.idle) {
                broker.sessions.remove(&session.id);
            }
        }
        let tenants: Vec<_> = broker.tenants.iter().map(|tenant| tenant.value().clone()).collect();
        tenants.iter().flat_map(|tenant| tenant.backends()).for_each(|backend| backend.close_idle_links(now));
    }
}
