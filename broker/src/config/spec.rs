//! Bodies shared by the configuration file and the admin API: what a tenant and a backend are.

use std::{collections::BTreeMap, net::IpAddr, path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};
use transport::tls::ClientIdentityFiles;
use utoipa::ToSchema;

use super::units::Ratio;
pub use super::{
    policy::{ResourceRules, ToolRules},
    sandbox::SandboxRules,
    stdio::StdioLimits,
};

/// A tenant: its switch, its weight and its own limits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TenantSpec {
    /// A disabled tenant's requests are refused as if its keys did not exist.
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

/// Limits of one tenant; an absent one takes the configuration's default.
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
    /// How large messages of its clients may be: the name of a profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_profile: Option<String>,
}

/// A backend: an MCP server the broker connects to.
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
    #[serde(default, skip_serializing_if = "ResourceRules::is_empty")]
    pub resources: ResourceRules,
    #[serde(default, skip_serializing_if = "ToolRules::is_empty")]
    pub tools: ToolRules,
    #[serde(default, skip_serializing_if = "SandboxRules::is_empty")]
    pub sandbox: SandboxRules,
}

/// How a backend is reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
pub enum TransportSpec {
    /// Streamable HTTP.
    Http { url: String },
    /// A socket: newline-delimited JSON.
    Tcp {
        /// `HOST:PORT`
        address: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tls: Option<TcpTls>,
    },
    /// WebSocket, a message per text frame.
    Websocket {
        /// `ws://` or `wss://`
        url: String,
    },
    /// QUIC, with TLS as ever, by the binding in docs/transports.md.
    Quic {
        /// `HOST:PORT`
        address: String,
        /// The name the certificate must have; the host of the address when absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        server_name: Option<String>,
        /// Whether requests have streams of their own; absent, the backend says so or not.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        streams: Option<bool>,
    },
    /// A child process that speaks newline-delimited JSON on its standard streams.
    Stdio {
        command: String,
        #[serde(default)]
        args: Vec<String>,
        #[serde(default)]
        env: BTreeMap<String, String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cwd: Option<String>,
        #[serde(default, skip_serializing_if = "StdioLimits::is_empty")]
        limits: StdioLimits,
    },
}

impl TransportSpec {
    /// The kind, as it is written in `type`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Http { .. } => "http",
            Self::Tcp { .. } => "tcp",
            Self::Websocket { .. } => "websocket",
            Self::Quic { .. } => "quic",
            Self::Stdio { .. } => "stdio",
        }
    }

    /// Whether TLS is spoken with it.
    pub fn has_tls(&self) -> bool {
        match self {
            Self::Http { url } => url.starts_with("https:"),
            Self::Websocket { url } => url.starts_with("wss:"),
            Self::Tcp { tls, .. } => tls.as_ref().and_then(TcpTls::settings).is_some(),
            Self::Quic { .. } => true,
            Self::Stdio { .. } => false,
        }
    }

    /// The address it is at, where that is not a host to be resolved, and the field that says so.
    pub fn address(&self) -> Option<(IpAddr, &'static str)> {
        match self {
            Self::Http { url } | Self::Websocket { url } => {
                let uri: http::Uri = url.parse().ok()?;
                Some((uri.host()?.trim_matches(['[', ']']).parse().ok()?, "transport.url"))
            }
            Self::Tcp { address, .. } | Self::Quic { address, .. } => {
                Some((split_host_port(address)?.0.parse().ok()?, "transport.address"))
            }
            Self::Stdio { .. } => None,
        }
    }
}

/// Whether a TCP backend speaks TLS. Its certificate is verified, always.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum TcpTls {
    Switch(bool),
    Settings(TlsSettings),
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TlsSettings {
    /// The name the certificate must have; the host of the address when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_name: Option<String>,
}

impl TcpTls {
    /// `None`: no TLS.
    pub fn settings(&self) -> Option<TlsSettings> {
        match self {
            Self::Switch(false) => None,
            Self::Switch(true) => Some(TlsSettings::default()),
            Self::Settings(settings) => Some(settings.clone()),
        }
    }
}

/// What the broker presents to a backend that asks for a certificate, on every wire with TLS.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BackendTls {
    /// Path of a PEM file: the certificate and what leads to its authority.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub client_cert: Option<PathBuf>,
    /// Path of a PEM file: its private key.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub client_key: Option<PathBuf>,
}

impl BackendTls {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The two files; `None` where nothing is presented.
    pub fn identity(&self) -> Option<ClientIdentityFiles> {
        let (Some(cert), Some(key)) = (&self.client_cert, &self.client_key) else { return None };
        Some(ClientIdentityFiles { cert: cert.clone(), key: key.clone() })
    }
}

/// A `ws` or `wss` URL as the `http` or `https` one that is as good or bad.
pub fn as_http_url(url: &str) -> Option<String> {
    let rest = url.strip_prefix("ws")?;
    (rest.starts_with("://") || rest.starts_with("s://")).then(|| format!("http{rest}"))
}

/// Whether it can be the name in a certificate.
pub fn is_server_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= HOST_BYTES_MAX
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.:".contains(&byte))
}

/// `HOST:PORT`, where the host may be an IPv6 address in brackets.
pub fn split_host_port(text: &str) -> Option<(&str, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_fine = match bare {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            !host.is_empty()
                && host.len() <= HOST_BYTES_MAX
                && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
        }
    };
    let port = Some(port)
        .filter(|port| port.bytes().all(|byte| byte.is_ascii_digit()))
        .and_then(|port| port.parse().ok())?;
    (is_fine && port > 0).then_some((bare.unwrap_or(host), port))
}

/// A host name (RFC 1035).
const HOST_BYTES_MAX: usize = 253;

/// Who shares a link to a backend.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LinkSharing {
    /// Shared where that is safe, a link of its own where it is not.
    #[default]
    Auto,
    /// One link for the whole tenant: for servers without per-user state.
    Shared,
    /// Never shared.
    PerSession,
}

/// In which era of MCP a backend is spoken to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ProtocolChoice {
    /// It is asked which one it speaks: 2026-07-28 where it can, else a revision with `initialize`.
    #[default]
    Auto,
    /// A revision with `initialize`, up to 2025-11-25.
    Legacy,
    /// 2026-07-28, where each request stands alone.
    Modern,
}

/// Deadlines for one backend; an absent one takes the configuration's default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BackendTimeouts {
    #[serde(with = "optional_duration", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "30s")]
    pub call: Option<Duration>,
    #[serde(with = "optional_duration", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "5s")]
    pub control: Option<Duration>,
    #[serde(with = "optional_duration", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "30s")]
    pub initialize: Option<Duration>,
    /// End of every call, however often progress renewed its deadline.
    #[serde(with = "optional_duration", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "1h")]
    pub call_max: Option<Duration>,
    /// By method; comes before `call` and `control`.
    #[serde(with = "durations", skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = BTreeMap<String, String>)]
    pub methods: BTreeMap<String, Duration>,
    /// By tool, as the backend names it; comes before `methods`.
    #[serde(with = "durations", skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = BTreeMap<String, String>)]
    pub tools: BTreeMap<String, Duration>,
}

/// Deadlines of one tenant's requests; an absent one takes the configuration's default. Those of a backend come before them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TenantTimeouts {
    #[serde(with = "optional_duration", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "30s")]
    pub call: Option<Duration>,
    #[serde(with = "optional_duration", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "5s")]
    pub control: Option<Duration>,
    #[serde(with = "optional_duration", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "1h")]
    pub call_max: Option<Duration>,
    /// By method; comes before `call` and `control`.
    #[serde(with = "durations", skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = BTreeMap<String, String>)]
    pub methods: BTreeMap<String, Duration>,
}

impl TenantTimeouts {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The circuit breaker of one backend; what is absent takes the configuration's default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BackendBreaker {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Failures in a row that open it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failures: Option<u32>,
    /// Share of failures in the window that opens it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>, example = 0.5)]
    pub error_ratio: Option<Ratio>,
    /// Calls in the window before the share counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<u32>,
    #[serde(with = "optional_duration", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "10s")]
    pub window: Option<Duration>,
    /// Wait for the first probe, at most.
    #[serde(with = "optional_duration", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "1s")]
    pub probe_after: Option<Duration>,
    /// Longest wait between two probes.
    #[serde(with = "optional_duration", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "3s")]
    pub probe_max: Option<Duration>,
}

impl BackendBreaker {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Limits of one backend; an absent one takes the tenant's, then the configuration's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BackendLimits {
    /// Requests to the backend; 0 is unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_second: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
    /// Calls of each of its tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_second_per_tool: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst_per_tool: Option<u32>,
    /// Some of its tools, by the backend's own names.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub tools: BTreeMap<String, RateSpec>,
    /// Calls at the same time; further ones wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls_in_flight: Option<usize>,
    /// Calls that wait; further ones are refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls_queued: Option<usize>,
    /// Whether fewer calls go at the same time while the backend is slower than it can be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adaptive_concurrency: Option<bool>,
    /// How large its messages may be: the name of a profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_profile: Option<String>,
}

impl BackendLimits {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A rate of its own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RateSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_second: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
}

/// What the broker shows a backend to be let in. Never a client's own token. Shown by no answer of the admin API.
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

/// Durations as text: `250ms`, `30s`, `5m`, `2h`.
pub(crate) mod optional_duration {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(
        value: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(duration) => to.serialize_str(&crate::config::units::format_duration(*duration)),
            None => to.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        let text: Option<String> = Option::deserialize(from)?;
        text.map(|text| crate::config::units::parse_duration(&text).map_err(D::Error::custom))
            .transpose()
    }
}

/// The same by name.
pub(crate) mod durations {
    use std::{collections::BTreeMap, time::Duration};

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use crate::config::units::{format_duration, parse_duration};

    pub(crate) fn serialize<S: Serializer>(
        map: &BTreeMap<String, Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_map(map.iter().map(|(name, duration)| (name, format_duration(*duration))))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<BTreeMap<String, Duration>, D::Error> {
        let texts: BTreeMap<String, String> = BTreeMap::deserialize(from)?;
        texts
            .into_iter()
            .map(|(name, text)| Ok((name, parse_duration(&text).map_err(D::Error::custom)?)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_a_port() {
        for (text, host, port) in [
            ("127.0.0.1:80", "127.0.0.1", 80),
            ("[::1]:7", "::1", 7),
            ("tools.internal:65535", "tools.internal", 65535),
        ] {
            assert_eq!(split_host_port(text), Some((host, port)), "{text}");
        }
        for text in [
            "",
            ":1",
            "a",
            "a:",
            "a:0",
            "a:+1",
            "a:65536",
            "::1:7",
            "[::1]",
            "[a]:1",
            "a b:1",
            "u@h:1",
            "http://h:1",
            "h:1/",
        ] {
            assert_eq!(split_host_port(text), None, "{text}");
        }
    }
}
