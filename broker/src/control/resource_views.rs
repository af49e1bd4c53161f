//! Views of tenants, keys and backends for the admin API.
//!
//! Invariant: only [`KeyShown::key`] can hold a secret, in the one answer that shows a key to its
//! owner.

use std::collections::BTreeMap;

use config::spec::{
    BackendAuth, BackendBreaker, BackendLimits, BackendSpec, BackendTimeouts, BackendTls,
    PinSettings, ProtocolChoice, ResourceRules, RootRules, SandboxRules, TenantLimits, TenantSpec,
    TenantTimeouts, ToolRules, TransportSpec,
};
use protocol::ids::{BackendId, TenantId};
use records::KeyRecord;
use rules::link_sharing::LinkSharing;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    key_attributes::KeyAttributes,
    registry::{EntryOrigin, RegistryEntry},
};
use crate::{telemetry::redaction, views::BackendStatus};

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

/// An API key, without its secret text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct KeyView {
    pub id: String,
    /// Principal of the key.
    pub principal: String,
    pub name: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Absent: the key does not expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    pub created_at: String,
}

/// A key that was just created.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct KeyShown {
    #[serde(flatten)]
    pub info: KeyView,
    /// The key itself. Only this answer contains it.
    pub key: String,
}

/// Status and settings of a backend.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BackendView {
    #[serde(flatten)]
    pub status: BackendStatus,
    /// Name of the replica that answers. State, breaker, links and calls are its own.
    #[serde(default)]
    pub replica: String,
    pub settings: BackendSettings,
    /// `api`, or `config` for a backend of the configuration file, which can only be changed there,
    /// or `demo` for the one of `mcp-broker demo`, which cannot be changed.
    pub source: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_at: Option<String>,
}

/// Settings of a backend. Values that may be secret are masked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BackendSettings {
    pub transport: TransportSpec,
    /// Paths of the certificate files. The contents of the files are never shown.
    #[serde(default, skip_serializing_if = "BackendTls::is_empty")]
    pub tls: BackendTls,
    pub links: LinkSharing,
    pub protocol: ProtocolChoice,
    pub timeouts: BackendTimeouts,
    #[serde(default)]
    pub breaker: BackendBreaker,
    #[serde(default, skip_serializing_if = "BackendLimits::is_empty")]
    pub limits: BackendLimits,
    /// Absent without credentials, as in the body of PUT.
    #[serde(default, skip_serializing_if = "CredentialsView::is_empty")]
    pub credentials: CredentialsView,
    /// How the broker proves itself, without secrets.
    #[serde(default, skip_serializing_if = "BackendAuth::is_none")]
    pub auth: BackendAuth,
    #[serde(default, skip_serializing_if = "ResourceRules::is_empty")]
    pub resources: ResourceRules,
    #[serde(default, skip_serializing_if = "RootRules::is_empty")]
    pub roots: RootRules,
    #[serde(default, skip_serializing_if = "ToolRules::is_empty")]
    pub tools: ToolRules,
    #[serde(default, skip_serializing_if = "SandboxRules::is_empty")]
    pub sandbox: SandboxRules,
    #[serde(default, skip_serializing_if = "PinSettings::is_default")]
    pub pins: PinSettings,
}

impl BackendSettings {
    /// Names every member, so that one that is added cannot be forgotten here. Else an operator who
    /// stores the settings that were read would remove it.
    pub fn new(spec: &BackendSpec) -> Self {
        let BackendSpec {
            transport,
            tls,
            links,
            protocol,
            timeouts,
            breaker,
            limits,
            credentials,
            auth,
            resources,
            roots,
            tools,
            sandbox,
            pins,
        } = spec.clone();
        Self {
            transport: redaction::transport(&transport),
            tls,
            links,
            protocol,
            timeouts,
            breaker,
            limits,
            credentials: CredentialsView {
                bearer: credentials.bearer.is_some(),
                headers: credentials.headers.into_keys().collect(),
            },
            auth: auth.masked(),
            resources,
            roots,
            tools,
            sandbox,
            pins,
        }
    }
}

/// Configured credentials, without their values.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CredentialsView {
    pub bearer: bool,
    /// Names of the further headers.
    pub headers: Vec<String>,
}

impl CredentialsView {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
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
        // A key whose attributes cannot be read is refused as an expired one.
        let expired = || KeyAttributes { expires_at_us: Some(0), ..KeyAttributes::default() };
        let attributes: KeyAttributes =
            serde_json::from_str(&record.attributes).unwrap_or_else(|_| expired());
        Self {
            id: record.key.as_str().to_owned(),
            principal: record.principal.as_str().to_owned(),
            name: record.name.clone(),
            groups: attributes.groups,
            scopes: attributes.scopes,
            labels: attributes.labels,
            expires_at: attributes.expires_at_us.map(moment),
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
        let (source, created_at, updated_at) = history(entry);
        Self {
            status: status.unwrap_or_else(|| disabled(tenant, backend)),
            replica: replica.to_owned(),
            settings: BackendSettings::new(&entry.spec),
            source,
            created_at,
            updated_at,
        }
    }
}

/// Returns the status of a registered backend that does not run because its tenant is disabled.
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
        sandbox_unreachable: Vec::new(),
    }
}

/// Returns source and times of an entry. Entries of the configuration file have no times.
fn history<Spec>(entry: &RegistryEntry<Spec>) -> (String, Option<String>, Option<String>) {
    let stored = entry.origin == EntryOrigin::Stored;
    let times = stored.then(|| (moment(entry.created_at_us), moment(entry.updated_at_us))).unzip();
    (entry.origin.name().to_owned(), times.0, times.1)
}

pub(super) fn moment(us: i64) -> String {
    // Out of range only if the store was edited by hand.
    jiff::Timestamp::from_microsecond(us).unwrap_or_default().to_string()
}
