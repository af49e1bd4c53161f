//! What the admin API shows of tenants, keys and backends. Invariant: nothing here can hold a secret, save
//! [`KeyShown::key`], which exists for the one answer that shows a key to its owner.

use std::collections::BTreeMap;

use protocol::ids::{BackendId, TenantId};
use serde::{Deserialize, Serialize};
use storage::KeyRecord;
use utoipa::ToSchema;

use super::registry::{EntryOrigin, RegistryEntry};
use crate::{
    config::spec::{
        BackendBreaker, BackendLimits, BackendSpec, BackendTimeouts, BackendTls, LinkSharing,
        ProtocolChoice, ResourceRules, TenantLimits, TenantSpec, TenantTimeouts, ToolRules,
        TransportSpec,
    },
    telemetry::redaction,
    views::BackendStatus,
};

/// A tenant as it is in force.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TenantView {
    pub tenant: String,
    pub enabled: bool,
    pub weight: u32,
    pub limits: TenantLimits,
    #[serde(default)]
    pub timeouts: TenantTimeouts,
    /// `api`, or `config` for a tenant of the configuration file, which can only be changed there.
    pub source: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_at: Option<String>,
}

/// An API key, without the key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct KeyView {
    pub id: String,
    /// Whom the key speaks for.
    pub principal: String,
    pub name: String,
    pub created_at: String,
}

/// A key that was just made.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct KeyShown {
    #[serde(flatten)]
    pub info: KeyView,
    /// The key itself. Shown this once.
    pub key: String,
}

/// A backend: how it does, and how it was registered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BackendView {
    #[serde(flatten)]
    pub status: BackendStatus,
    /// Who tells: state, breaker, links and calls are those of this replica; each has its own.
    #[serde(default)]
    pub replica: String,
    pub settings: BackendSettings,
    /// `api`, or `config` for a backend of the configuration file, which can only be changed there.
    pub source: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_at: Option<String>,
}

/// How a backend was registered. Values that may be secret are masked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BackendSettings {
    pub transport: TransportSpec,
    /// Paths: what stands in the files is told nobody.
    #[serde(default, skip_serializing_if = "BackendTls::is_empty")]
    pub tls: BackendTls,
    pub links: LinkSharing,
    pub protocol: ProtocolChoice,
    pub timeouts: BackendTimeouts,
    #[serde(default)]
    pub breaker: BackendBreaker,
    #[serde(default, skip_serializing_if = "BackendLimits::is_empty")]
    pub limits: BackendLimits,
    pub credentials: CredentialsView,
    #[serde(default, skip_serializing_if = "ResourceRules::is_empty")]
    pub resources: ResourceRules,
    #[serde(default, skip_serializing_if = "ToolRules::is_empty")]
    pub tools: ToolRules,
}

/// Which credentials are set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CredentialsView {
    pub bearer: bool,
    /// Names of the further headers.
    pub headers: Vec<String>,
}

impl TenantView {
    pub(super) fn new(tenant: &TenantId, entry: &RegistryEntry<TenantSpec>) -> Self {
        let TenantSpec { enabled, weight, limits, timeouts } = entry.spec.clone();
        let (source, created_at, updated_at) = history(entry);
        Self {
            tenant: tenant.as_str().to_owned(),
            enabled,
            weight,
            limits,
            timeouts,
            source,
            created_at,
            updated_at,
        }
    }
}

impl KeyView {
    pub(super) fn new(record: &KeyRecord) -> Self {
        Self {
            id: record.key.as_str().to_owned(),
            principal: record.principal.as_str().to_owned(),
            name: record.name.clone(),
            created_at: moment(record.created_at_us),
        }
    }
}

impl BackendView {
    pub(super) fn new(
        tenant: &TenantId,
        backend: &BackendId,
        entry: &RegistryEntry<BackendSpec>,
        status: Option<BackendStatus>,
        replica: &str,
    ) -> Self {
        let spec = &entry.spec;
        let (source, created_at, updated_at) = history(entry);
        Self {
            status: status.unwrap_or_else(|| disabled(tenant, backend)),
            replica: replica.to_owned(),
            settings: BackendSettings {
                transport: redaction::transport(&spec.transport),
                tls: spec.tls.clone(),
                links: spec.links,
                protocol: spec.protocol,
                timeouts: spec.timeouts.clone(),
                breaker: spec.breaker.clone(),
                limits: spec.limits.clone(),
                credentials: CredentialsView {
                    bearer: spec.credentials.bearer.is_some(),
                    headers: spec.credentials.headers.keys().cloned().collect(),
                },
                resources: spec.resources.clone(),
                tools: spec.tools.clone(),
            },
            source,
            created_at,
            updated_at,
        }
    }
}

/// Registered, but the broker does not run it: its tenant is switched off.
fn disabled(tenant: &TenantId, backend: &BackendId) -> BackendStatus {
    BackendStatus {
        tenant: tenant.as_str().to_owned(),
        backend: backend.as_str().to_owned(),
        state: "disabled".to_owned(),
        protocol_version: None,
        server_name: None,
        server_version: None,
        tools: 0,
        prompts: 0,
        resources: 0,
        resource_templates: 0,
        links: 0,
        last_error: None,
        unchecked_tools: BTreeMap::new(),
        latency_ms: None,
        breaker: None,
        calls_in_flight: 0,
        calls_queued: 0,
        calls_max: 0,
        failed_attempts: 0,
        next_attempt_in_ms: None,
        sandbox: None,
        sandbox_missing: Vec::new(),
    }
}

/// Entries of the configuration file have no history: the file has.
fn history<Spec>(entry: &RegistryEntry<Spec>) -> (String, Option<String>, Option<String>) {
    let stored = entry.origin == EntryOrigin::Stored;
    let times = stored.then(|| (moment(entry.created_at_us), moment(entry.updated_at_us))).unzip();
    (entry.origin.name().to_owned(), times.0, times.1)
}

pub(super) fn moment(us: i64) -> String {
    // Out of range only if the store was edited by hand.
    jiff::Timestamp::from_microsecond(us).unwrap_or_default().to_string()
}
