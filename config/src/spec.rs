//! Bodies that the configuration file and the admin API share: tenants and backends.

use std::{collections::BTreeMap, time::Duration};

use rules::link_sharing::LinkSharing;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use super::{
    backend_auth::{
        ActorToken, BackendAuth, BackendAuthKind, CatalogAuth, ClientAuthMethod, ExchangeGrant,
        IdentityProvider, IssuerComparison,
    },
    backend_tls::BackendTls,
    declared_catalog::DeclaredCatalog,
    pins::{PinRules, PinSettings},
    policy::{ResourceRules, ToolRules},
    roots::{ConfiguredRoot, RootMode, RootRules},
    sandbox::SandboxRules,
    transport_spec::{
        ProtocolChoice, StdioLimits, TcpTls, TlsSettings, TransportSpec, as_http_url,
        is_server_name, split_host_port,
    },
};
use super::{
    serde_units::{durations, optional_duration},
    units::{DurationText, Ratio},
};

/// A tenant: its switch, its weight and its own limits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TenantSpec {
    /// If false, the tenant's requests are refused as if its keys did not exist.
    pub enabled: bool,
    /// Share of a busy broker relative to other tenants, 1 to 1000.
    pub weight: u32,
    pub limits: TenantLimits,
    #[serde(skip_serializing_if = "TenantTimeouts::is_empty")]
    pub timeouts: TenantTimeouts,
}

impl Default for TenantSpec {
    fn default() -> Self {
        Self {
            enabled: true,
            weight: 1,
            limits: TenantLimits::default(),
            timeouts: TenantTimeouts::default(),
        }
    }
}

/// Limits of one tenant. An absent one has the configuration's default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TenantLimits {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_second: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_second_per_principal: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst_per_principal: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_second_per_backend: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst_per_backend: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_second_per_tool: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst_per_tool: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections_per_tenant: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sessions_per_tenant: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sessions_per_principal: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls_in_flight_per_tenant: Option<usize>,
    /// Name of the profile for the message sizes of its clients.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_profile: Option<String>,
}

/// A backend: an MCP server that the broker connects to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BackendSpec {
    pub transport: TransportSpec,
    #[serde(default, skip_serializing_if = "BackendTls::is_empty")]
    pub tls: BackendTls,
    #[serde(default)]
    pub links: LinkSharing,
    #[serde(default)]
    pub protocol: ProtocolChoice,
    #[serde(default)]
    pub timeouts: BackendTimeouts,
    #[serde(default, skip_serializing_if = "BackendBreaker::is_empty")]
    pub breaker: BackendBreaker,
    #[serde(default, skip_serializing_if = "BackendLimits::is_empty")]
    pub limits: BackendLimits,
    #[serde(default)]
    pub credentials: Credentials,
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

impl BackendSpec {
    /// Returns whether both settings are the same except for the list of roots, which can change
    /// while the backend runs.
    pub fn differs_in_roots_alone(&self, other: &Self) -> bool {
        let mut alike = other.clone();
        alike.roots.list.clone_from(&self.roots.list);
        *self == alike
    }
}

/// Deadlines of one backend. An absent one has the configuration's default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BackendTimeouts {
    #[serde(with = "optional_duration", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = DurationText)]
    pub call: Option<Duration>,
    #[serde(with = "optional_duration", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = DurationText)]
    pub control: Option<Duration>,
    #[serde(with = "optional_duration", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = DurationText)]
    pub initialize: Option<Duration>,
    /// Maximum total time of a call, which progress does not extend.
    #[serde(with = "optional_duration", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = DurationText)]
    pub call_max: Option<Duration>,
    /// Deadlines by method. They have precedence over `call` and `control`.
    #[serde(with = "durations", skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = BTreeMap<String, DurationText>)]
    pub methods: BTreeMap<String, Duration>,
    /// Deadlines by tool, under the backend's own names. They have precedence over `methods`.
    #[serde(with = "durations", skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = BTreeMap<String, DurationText>)]
    pub tools: BTreeMap<String, Duration>,
}

/// Deadlines of one tenant's requests. An absent one has the configuration's default. Those of a
/// backend have precedence.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TenantTimeouts {
    #[serde(with = "optional_duration", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = DurationText)]
    pub call: Option<Duration>,
    #[serde(with = "optional_duration", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = DurationText)]
    pub control: Option<Duration>,
    #[serde(with = "optional_duration", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = DurationText)]
    pub call_max: Option<Duration>,
    /// Deadlines by method. They have precedence over `call` and `control`.
    #[serde(with = "durations", skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = BTreeMap<String, DurationText>)]
    pub methods: BTreeMap<String, Duration>,
}

impl TenantTimeouts {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Circuit breaker of one backend. An absent setting has the configuration's default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BackendBreaker {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Consecutive failures that open it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failures: Option<u32>,
    /// Share of failures in the window that opens it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>, minimum = 0.01, maximum = 1, example = 0.5)]
    pub error_ratio: Option<Ratio>,
    /// Minimum number of calls in the window before the share counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<u32>,
    #[serde(with = "optional_duration", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = DurationText)]
    pub window: Option<Duration>,
    /// Maximum wait for the first probe.
    #[serde(with = "optional_duration", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = DurationText)]
    pub probe_after: Option<Duration>,
    /// Longest wait between two probes.
    #[serde(with = "optional_duration", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = DurationText)]
    pub probe_max: Option<Duration>,
}

impl BackendBreaker {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Limits of one backend. An absent one has the tenant's value, then the configuration's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BackendLimits {
    /// Rate of requests to the backend. 0 is unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_second: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
    /// Rate of calls of each of its tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_second_per_tool: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst_per_tool: Option<u32>,
    /// Rates of some of its tools, by the backend's own names.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub tools: BTreeMap<String, RateSpec>,
    /// Maximum number of concurrent calls. Further calls wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls_in_flight: Option<usize>,
    /// Maximum number of waiting calls. Further calls are refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls_queued: Option<usize>,
    /// True if the broker sends fewer concurrent calls while the backend is slower than it can be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adaptive_concurrency: Option<bool>,
    /// Name of the profile for the sizes of its messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_profile: Option<String>,
}

impl BackendLimits {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Rate of one tool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RateSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_second: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
}

/// Credentials of the broker at a backend. Never a client's own token. No answer of the admin API
/// shows them.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Credentials {
    /// Sent as `Authorization: Bearer …` (HTTP).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bearer: Option<String>,
    /// Further request headers (HTTP).
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            out,
            "Credentials {{ bearer: {}, headers: {:?} }}",
            if self.bearer.is_some() { "…" } else { "none" },
            self.headers.keys()
        )
    }
}
