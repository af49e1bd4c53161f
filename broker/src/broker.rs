//! The running broker: its tenants, its sessions, and its operations for listeners and the admin
//! plane.

mod adoption;
mod adoption_locks;
mod auth;
mod backend_changes;
mod drain;
mod housekeeping;
mod ownership;
mod pins;
mod policies;
mod revocations;
pub mod session_lookup;
mod session_opening;
mod sessions;
mod sign_in_failure_log;
mod sign_in_failures;
mod startup;
mod stateless;
mod toolsets;

use std::{sync::Arc, time::Duration};

use config::{Config, MessageWire, spec::TenantSpec};
use dashmap::DashMap;
use protocol::{
    error::{ErrorKind, Refusal},
    ids::{BackendId, SessionId, TenantId, ToolsetId},
};
use records::SessionKey;
use rules::{
    access::Policy,
    catalog::HostedPrompts,
    endpoint::Endpoint,
    sign_in_failures::{Plane, SignInFailureReason},
    toolsets::Toolsets,
};

use self::{
    adoption_locks::AdoptionLocks, auth::SignInWaits, sign_in_failure_log::SignInFailureLog,
};
pub use self::{
    auth::check_endpoint_of, backend_changes::BackendChanges, sessions::check_transport,
    toolsets::catalog_version,
};
use crate::{
    auth::{
        AuthError, AuthSettings, AuthenticatedCaller, Caller, CertificateThumbprint, Keyring,
        KeyringVersion, Keys, PresentedCertificate, RemotePeer, TokenVerifier,
    },
    backends::{prober, resources::BackendResources},
    maps::SharedMap,
    metrics::Metrics,
    oauth::LoginServers,
    persistence::{BackendVerdict, Stores},
    session_location::SessionLocator,
    sessions::{
        session::Session, shared::Shared, stateless::StatelessState, tasks::TaskManager,
        tenant::Tenant,
    },
    telemetry::ExporterHandle,
    views::{BackendStatus, SessionView, SubscriptionView},
};

/// Most tenants among which the capacity is shared at once after a change. With more, housekeeping
/// does it.
const SHARED_AT_ONCE: usize = 100;

/// Parts that a broker is made of.
pub struct BrokerParts {
    pub config: Arc<Config>,
    pub metrics: Arc<Metrics>,
    pub keys: Keys,
    pub keyring: Arc<Keyring>,
    pub stores: Stores,
}

#[derive(Debug)]
pub struct Broker {
    pub shared: Arc<Shared>,
    pub backend_resources: Arc<BackendResources>,
    /// State of stateless clients.
    pub stateless: Arc<StatelessState>,
    pub tasks: Arc<TaskManager>,
    /// The other replicas, and the location of sessions that are not here.
    pub session_locator: SessionLocator,
    keyring: Arc<Keyring>,
    auth: AuthSettings,
    tokens: Arc<TokenVerifier>,
    login_servers: Arc<LoginServers>,
    failed_sign_ins: SignInFailureLog,
    tenants: SharedMap<TenantId, Arc<Tenant>>,
    /// Access policies of tenants, also of those that are not running.
    policies: SharedMap<TenantId, Arc<Policy>>,
    /// Toolsets of tenants, also of those that are not running.
    toolsets: SharedMap<TenantId, Arc<Toolsets>>,
    /// Prompts that the broker hosts, by tenant.
    hosted_prompts: SharedMap<TenantId, Arc<HostedPrompts>>,
    sessions: SharedMap<SessionId, Arc<Session>>,
    /// Sessions that are over while the store may still have them. They are not adopted again.
    ending_sessions: DashMap<SessionKey, usize>,
    adoption_locks: AdoptionLocks,
    export: tokio::sync::Mutex<ExporterHandle>,
}

impl Broker {
    /// Exports the newest spans. Called last, when no client is served any more.
    pub async fn shutdown_traces(&self) {
        self.export.lock().await.end().await;
    }

    // Tenants and backends.

    /// Registers or changes a tenant. `created_at_us` is 0 for one of the configuration file.
    pub fn put_tenant(self: &Arc<Self>, id: &TenantId, spec: TenantSpec, created_at_us: i64) {
        match self.tenants.entry(id.clone()) {
            dashmap::Entry::Occupied(known) => {
                let tenant = known.get().clone();
                drop(known);
                tenant.configure(spec, created_at_us);
                if !tenant.enabled() {
                    self.stateless.end_of_tenant(id);
                    self.end_sessions_of(&tenant, "the tenant was disabled");
                }
            }
            dashmap::Entry::Vacant(free) => {
                let tenant = Tenant::new(id.clone(), spec, created_at_us, self.shared.clone());
                tenant.set_policy(self.policy(id));
                tenant.set_toolsets(self.toolsets(id));
                tenant.set_hosted_prompts(self.hosted_prompts(id));
                free.insert(tenant);
            }
        }
        // With many tenants, housekeeping does this in a moment, because one more makes little
        // difference.
        if self.tenants.len() <= SHARED_AT_ONCE {
            self.recompute_shares();
        }
    }

    /// Sets the tenants that share the capacity for calls.
    fn recompute_shares(&self) {
        let enabled = self.tenants.iter().filter(|tenant| tenant.enabled());
        self.shared.limiters.calls.set_shares(enabled.map(|tenant| tenant.weight()));
    }

    /// Ends the tenant's sessions and closes its backends.
    pub fn remove_tenant(self: &Arc<Self>, id: &TenantId) {
        // A later tenant of the name starts without them.
        self.policies.remove(id);
        self.toolsets.remove(id);
        self.hosted_prompts.remove(id);
        let Some((_, tenant)) = self.tenants.remove(id) else { return };
        tenant.close();
        self.shared.oauth.subjects.forget_tenant(id);
        self.stateless.end_of_tenant(id);
        self.end_sessions_of(&tenant, "the tenant was removed");
        tenant.backends().iter().for_each(|backend| backend.close());
    }

    pub fn backend(&self, tenant: &TenantId, id: &BackendId) -> Option<BackendStatus> {
        Some(self.tenant(tenant)?.backend(id)?.view())
    }

    pub fn backends(&self, tenant: &TenantId) -> Vec<BackendStatus> {
        self.tenant(tenant)
            .map(|tenant| tenant.backends().iter().map(|backend| backend.view()).collect())
            .unwrap_or_default()
    }

    /// Returns the backend's state after the first attempt to reach it, or after `within`.
    pub async fn wait_for_backend(
        &self,
        tenant: &TenantId,
        id: &BackendId,
        within: Duration,
    ) -> Option<BackendStatus> {
        let backend = self.tenant(tenant)?.backend(id)?;
        backend.wait_first_attempt(within).await;
        Some(backend.view())
    }

    /// Connects to the backend now, and waits until its lists are read again.
    pub async fn probe(&self, tenant: &TenantId, id: &BackendId, within: Duration) {
        let Some(backend) = self.tenant(tenant).and_then(|tenant| tenant.backend(id)) else {
            return;
        };
        backend.probe_breaker().await;
        backend.reconnect();
        backend.wait_list_refresh(within).await;
    }

    /// Opens or closes the breaker of a backend in this process.
    pub fn set_breaker(&self, tenant: &TenantId, id: &BackendId, open: bool) -> bool {
        let Some(backend) = self.tenant(tenant).and_then(|tenant| tenant.backend(id)) else {
            return false;
        };
        backend.set_breaker(open);
        true
    }

    /// Handles another replica's verdict about a backend.
    pub fn receive_verdict(&self, verdict: &BackendVerdict) {
        if verdict.node == self.shared.persistence.node().as_str() {
            return;
        }
        let tenant = self.tenant(&verdict.tenant);
        if let Some(backend) = tenant.and_then(|tenant| tenant.backend(&verdict.backend)) {
            prober::receive_verdict(&backend, verdict);
        }
    }

    pub fn tenant(&self, id: &TenantId) -> Option<Arc<Tenant>> {
        self.tenants.get(id).map(|tenant| tenant.clone())
    }

    /// Refuses an endpoint whose backend or toolset is not one of the caller's tenant.
    pub fn check_endpoint(&self, caller: &Caller, endpoint: &Endpoint) -> Result<(), Refusal> {
        check_endpoint_of(self.tenant(&caller.tenant).as_deref(), caller, endpoint)
    }

    /// Returns the size limit of this caller's messages on this wire.
    pub fn message_bytes(&self, caller: &Caller, wire: MessageWire) -> usize {
        self.tenant(&caller.tenant)
            .map_or(self.shared.config.limits.message_bytes, |tenant| tenant.message_bytes(wire))
    }

    // Callers and sessions.

    /// Authenticates a caller. Without a credential it is the anonymous caller of tenant `default`,
    /// where that is allowed.
    fn authenticate(
        &self,
        bearer: Option<&str>,
        certificate: Option<CertificateThumbprint>,
    ) -> Result<AuthenticatedCaller, AuthError> {
        let proven = match bearer {
            Some(bearer) => match self.keyring.verify(bearer) {
                Some(caller) => caller,
                None if self.tokens.has_issuers() => self.tokens.verify(bearer, certificate)?,
                None => {
                    return Err(AuthError::failed(key_required(), SignInFailureReason::ApiKey));
                }
            },
            None if self.shared.config.auth.required => {
                return Err(AuthError::failed(key_required(), SignInFailureReason::Missing));
            }
            None => Caller::anonymous().into(),
        };
        self.admit_authenticated(proven)
    }

    /// Returns the version of the keys that callers are checked against.
    pub fn keyring_version(&self) -> KeyringVersion {
        self.keyring.version()
    }

    /// Authenticates a caller on a connection that may have a client certificate. A key or token
    /// has precedence.
    pub fn authenticate_connection(
        &self,
        bearer: Option<&str>,
        presented: PresentedCertificate<'_>,
    ) -> Result<AuthenticatedCaller, AuthError> {
        match (bearer, presented.caller) {
            (None, Some(caller)) => self.admit_authenticated(caller.clone().into()),
            _ => self.authenticate(bearer, presented.thumbprint),
        }
    }

    /// Authenticates a denied client once more. Another replica may have stored its API key a
    /// moment ago. Its token may have a key that has to be fetched first, or an issuer that has to
    /// be asked.
    pub async fn retry_authentication(
        &self,
        denied: AuthError,
        bearer: Option<&str>,
        presented: PresentedCertificate<'_>,
        remote: RemotePeer,
    ) -> Result<AuthenticatedCaller, Refusal> {
        let (mut denied, mut waits) = (denied, SignInWaits::default());
        let shown = bearer.unwrap_or_default();
        if Keyring::has_form(shown) {
            // Not only for an unknown id, so that the time of a refusal does not reveal the ids.
            self.check_address(remote)?;
            if self.keyring.refresh().wait().await {
                denied = match self.authenticate_connection(bearer, presented) {
                    Ok(proven) => return Ok(proven),
                    Err(denied) => denied,
                };
            }
        }
        while waits.wait_for(&denied, shown, || self.check_address(remote)).await? {
            denied = match self.authenticate_connection(bearer, presented) {
                Ok(proven) => return Ok(proven),
                Err(denied) => denied,
            };
        }
        let denied = self.tokens.into_final_refusal(denied);
        Err(self.refuse(denied, Plane::Data, remote))
    }

    /// Admits a caller as [`Broker::admit`] does, and keeps the end of its credential.
    pub fn admit_authenticated(
        &self,
        proven: AuthenticatedCaller,
    ) -> Result<AuthenticatedCaller, AuthError> {
        let tenant = self.tenant(&proven.caller.tenant);
        self.admit_to(tenant.as_deref(), proven)
    }

    /// Admits an authenticated caller if its tenant is enabled. Another replica may have
    /// authenticated it.
    pub fn admit(&self, caller: Caller) -> Result<Caller, Refusal> {
        let enabled = self.tenant(&caller.tenant).is_some_and(|tenant| tenant.enabled());
        if enabled { Ok(caller) } else { Err(key_required()) }
    }

    // Views for operators.

    pub fn sessions(&self, tenant: Option<&TenantId>) -> Vec<SessionView> {
        let of_tenant =
            |session: &Arc<Session>| tenant.is_none_or(|tenant| session.tenant.id == *tenant);
        let mut views: Vec<_> = self
            .all_sessions()
            .into_iter()
            .filter(of_tenant)
            .map(|session| session.view())
            .collect();
        views.sort_by(|a, b| (&a.created_at, &a.id).cmp(&(&b.created_at, &b.id)));
        views
    }

    pub fn session(&self, digest: &str) -> Option<SessionView> {
        self.session_by_digest(digest).map(|session| session.view())
    }

    pub fn end_session(self: &Arc<Self>, digest: &str) -> bool {
        let Some(session) = self.session_by_digest(digest) else { return false };
        self.close_session(&session, "ended by an operator");
        true
    }

    fn session_by_digest(&self, digest: &str) -> Option<Arc<Session>> {
        self.sessions
            .iter()
            .find(|entry| entry.value().digest == digest)
            .map(|entry| entry.value().clone())
    }

    pub async fn cancel_task(&self, id: &str) -> Result<(), Refusal> {
        self.tasks.cancel(id).await
    }

    /// Starts the workers of tasks. Called when all stored and declared tenants and backends are
    /// known.
    pub fn start_tasks(&self) {
        self.tasks.start_workers();
    }

    pub fn subscriptions(&self, tenant: Option<&TenantId>) -> Vec<SubscriptionView> {
        let tenants: Vec<_> = self.tenants.iter().map(|entry| entry.value().clone()).collect();
        let mut views = Vec::new();
        for wanted in tenants.iter().filter(|known| tenant.is_none_or(|tenant| known.id == *tenant))
        {
            for backend in wanted.backends() {
                for (uri, sessions) in
                    backend.links.all().iter().flat_map(|link| link.subscriptions.counts())
                {
                    let (tenant, backend) = (wanted.id.to_string(), backend.id.to_string());
                    views.push(SubscriptionView { tenant, backend, uri, sessions });
                }
            }
        }
        views.sort_by(|a, b| (&a.tenant, &a.backend, &a.uri).cmp(&(&b.tenant, &b.backend, &b.uri)));
        views
    }
}

pub fn tenant_gone() -> Refusal {
    Refusal::new(ErrorKind::Unauthorized, "the tenant of the credential does not exist")
}

pub fn unknown_backend(id: &BackendId) -> Refusal {
    Refusal::new(ErrorKind::NotFound, format!("no endpoint for a backend named {id}"))
}

fn unknown_toolset(id: &ToolsetId) -> Refusal {
    Refusal::new(ErrorKind::NotFound, format!("no endpoint for a toolset named {id}"))
}

fn key_required() -> Refusal {
    Refusal::new(
        ErrorKind::Unauthorized,
        "a valid API key or token is required: Authorization: Bearer <key>",
    )
}
