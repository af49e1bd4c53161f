//! Start of a broker: its HTTP clients, its tables, and its housekeeping.

use std::sync::Arc;

use config::Config;
use dashmap::DashMap;
use rules::catalog::MarkKey;
use transport::{
    egress::EgressPolicy,
    http_client::{HttpClient, HttpClientConfig, TlsSetupError},
};

use super::{
    Broker, BrokerParts, adoption_locks::AdoptionLocks, housekeeping,
    sign_in_failure_log::SignInFailureLog, sign_in_failures,
};
use crate::{
    auth::{AuthSettings, KeyFetcher, TokenVerifier},
    context::Context,
    maps::SharedMap,
    persistence::{Persistence, node::NodeSettings},
    session_location::SessionLocator,
    sessions::{deadline_list::DeadlineList, shared::Shared, tasks::TaskManager},
    telemetry,
};
#[cfg(test)]
use crate::{
    auth::{Caller, Keyring, Keys},
    metrics::Metrics,
    persistence::Stores,
};
#[cfg(test)]
use config::spec::TenantSpec;

impl Broker {
    /// Starts the broker and its housekeeping. Must be called inside the runtime.
    pub fn new(parts: BrokerParts) -> Result<Arc<Broker>, TlsSetupError> {
        let http = backend_client(&parts.config)?;
        let node = NodeSettings::fresh_name(&parts.config.node.id);
        let persistence =
            Persistence::new(parts.stores, node, parts.keys.seal, parts.metrics.clone());
        let session_locator = SessionLocator::new(&parts.keys.peer)?;
        let to_collector = unrestricted_client()?;
        // This client also serves the issuers, whose addresses the operator configures too.
        let fetcher = KeyFetcher::new(to_collector.clone(), http.clone());
        let tokens = TokenVerifier::new(parts.keyring.clone(), fetcher, parts.metrics.clone());
        let tokens = Arc::new(tokens);
        let declared = &parts.config.auth;
        tokens.set_issuers(declared.resource.as_deref(), &declared.issuers);
        let auth = AuthSettings::new(declared.clone());
        let (traces, export) = telemetry::start_export(
            &parts.config.telemetry.traces,
            &parts.config.node.id,
            to_collector,
            parts.metrics.clone(),
        );
        let shared = Shared::new(Context::new(
            parts.config,
            parts.metrics,
            http,
            parts.keys.cursor,
            MarkKey::new(parts.keys.catalog_marks),
            persistence,
            traces,
        ));
        shared.oauth.subjects.set_verifier(&tokens);
        let tasks = TaskManager::new(shared.clone());
        shared.set_task_host(tasks.clone());
        let broker = Arc::new(Broker {
            session_locator,
            tasks,
            shared,
            backend_resources: Arc::default(),
            stateless: Arc::default(),
            export: tokio::sync::Mutex::new(export),
            keyring: parts.keyring,
            auth,
            tokens,
            login_servers: Arc::default(),
            failed_sign_ins: SignInFailureLog::default(),
            tenants: SharedMap::default(),
            policies: SharedMap::default(),
            toolsets: SharedMap::default(),
            hosted_prompts: SharedMap::default(),
            sessions: SharedMap::default(),
            ending_sessions: DashMap::new(),
            adoption_locks: AdoptionLocks::default(),
        });
        let tenants = Arc::downgrade(&broker);
        broker.tasks.set_tenant_lookup(Box::new(move |id| tenants.upgrade()?.tenant(id)));
        spawn_housekeeping(&broker);
        broker.shared.limiters.overload.watch(&broker.shared.config.overload);
        Ok(broker)
    }
}

/// Returns the HTTP client for backends, to which the policy of outgoing connections applies.
fn backend_client(config: &Config) -> Result<HttpClient, TlsSetupError> {
    HttpClient::new(HttpClientConfig {
        connect_timeout: config.timeouts.connect,
        egress: config.egress.clone(),
        ..HttpClientConfig::default()
    })
}

/// Returns the HTTP client for addresses that the operator configures, so the policy for backends
/// does not apply.
fn unrestricted_client() -> Result<HttpClient, TlsSetupError> {
    let everywhere = EgressPolicy {
        allow: vec!["0.0.0.0/0".parse(), "::/0".parse()].into_iter().flatten().collect(),
        ..EgressPolicy::default()
    };
    HttpClient::new(HttpClientConfig {
        egress: Arc::new(everywhere),
        ..HttpClientConfig::default()
    })
}

/// Starts the tasks that run as long as the broker.
fn spawn_housekeeping(broker: &Arc<Broker>) {
    let persistence = Arc::downgrade(&broker.shared.persistence);
    tokio::spawn(housekeeping::run(Arc::downgrade(broker)));
    tokio::spawn(sign_in_failures::run_reports(Arc::downgrade(broker)));
    tokio::spawn(DeadlineList::run(Arc::downgrade(&broker.shared.deadlines)));
    tokio::spawn(broker.shared.limiters.rates.clone().keep(persistence.clone()));
    tokio::spawn(broker.shared.limiters.permits.clone().keep(persistence));
}

#[cfg(test)]
impl Broker {
    /// Starts a broker with the tenant `default` alone and the default configuration.
    pub fn over(stores: Stores) -> Arc<Self> {
        let keys = Keys::from_root(b"root");
        let keyring = Arc::new(Keyring::new(keys.api_key.clone()));
        let (config, metrics) = (Arc::new(Config::default()), Arc::new(Metrics::new(false)));
        let broker = Self::new(BrokerParts { config, metrics, keys, keyring, stores })
            .expect("nothing of the system is needed");
        broker.put_tenant(&Caller::anonymous().tenant, TenantSpec::default(), 0);
        broker
    }
}
