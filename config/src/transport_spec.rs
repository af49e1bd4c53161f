//! How a backend is reached: the `transport` of its body, and the addresses in it.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    serde_units::{optional_duration, optional_size},
    units::{DurationText, SizeText},
};

/// Protocol revisions that the broker uses with a backend.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ProtocolChoice {
    /// The broker asks the backend: 2026-07-28 if supported, otherwise a revision with
    /// `initialize`.
    #[default]
    Auto,
    /// A revision with `initialize`, up to 2025-11-25.
    Legacy,
    /// 2026-07-28, where each request is independent.
    Modern,
}

/// Transport of a backend.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
pub enum TransportSpec {
    /// Streamable HTTP.
    Http { url: String },
    /// HTTP+SSE of 2024-11-05. The broker also detects it behind `http`.
    Sse {
        /// URL of the event stream
        url: String,
    },
    /// TCP with newline-delimited JSON.
    Tcp {
        /// `HOST:PORT`
        address: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tls: Option<TcpTls>,
    },
    /// WebSocket with one message per text frame.
    Websocket {
        /// `ws://` or `wss://`
        url: String,
    },
    /// QUIC, which always uses TLS, with the binding in docs/transports.md.
    Quic {
        /// `HOST:PORT`
        address: String,
        /// Name that the certificate must have. Absent: the host of the address.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        server_name: Option<String>,
        /// True if each request has a stream of its own. Absent: the backend's handshake decides.
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

/// Limits of one backend's child processes. An absent one has the configuration's default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StdioLimits {
    /// Private memory of each process.
    #[serde(with = "optional_size", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<SizeText>)]
    pub memory: Option<usize>,
    /// Processes and threads of the children's user, all together. Does not apply to root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<u32>,
    /// Open descriptors of each process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_files: Option<u32>,
    /// Processor time of each process.
    #[serde(with = "optional_duration", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = DurationText)]
    pub cpu: Option<Duration>,
    /// Time without a request after which a child is ended. The next request starts another.
    #[serde(with = "optional_duration", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = DurationText)]
    pub idle: Option<Duration>,
    /// Age at which a child is ended as soon as no request waits for it. The next request starts
    /// another.
    #[serde(with = "optional_duration", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = DurationText)]
    pub lifetime: Option<Duration>,
}

impl StdioLimits {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl TransportSpec {
    /// Returns the transport as written in `type`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Http { .. } => "http",
            Self::Sse { .. } => "sse",
            Self::Tcp { .. } => "tcp",
            Self::Websocket { .. } => "websocket",
            Self::Quic { .. } => "quic",
            Self::Stdio { .. } => "stdio",
        }
    }

    /// Returns whether the transport uses TLS.
    pub fn has_tls(&self) -> bool {
        match self {
            Self::Http { url } | Self::Sse { url } => url.starts_with("https:"),
            Self::Websocket { url } => url.starts_with("wss:"),
            Self::Tcp { tls, .. } => tls.as_ref().and_then(TcpTls::settings).is_some(),
            Self::Quic { .. } => true,
            Self::Stdio { .. } => false,
        }
    }

    /// Returns the address and its field, if the transport names an IP address and not a host.
    pub fn address(&self) -> Option<(IpAddr, &'static str)> {
        match self {
            Self::Http { url } | Self::Sse { url } | Self::Websocket { url } => {
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

/// TLS of a TCP backend: false, true or settings. The certificate is always verified.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum TcpTls {
    Switch(bool),
    Settings(TlsSettings),
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TlsSettings {
    /// Name that the certificate must have. Absent: the host of the address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_name: Option<String>,
}

impl TcpTls {
    /// Returns the TLS settings, or `None` without TLS.
    pub fn settings(&self) -> Option<TlsSettings> {
        match self {
            Self::Switch(false) => None,
            Self::Switch(true) => Some(TlsSettings::default()),
            Self::Settings(settings) => Some(settings.clone()),
        }
    }
}

/// Converts a `ws` or `wss` URL into an `http` or `https` URL with the same validity.
pub fn as_http_url(url: &str) -> Option<String> {
    let rest = url.strip_prefix("ws")?;
    (rest.starts_with("://") || rest.starts_with("s://")).then(|| format!("http{rest}"))
}

/// Returns whether the text can be the name in a certificate.
pub fn is_server_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= HOST_BYTES_MAX
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.:".contains(&byte))
}

/// Splits `HOST:PORT`, where the host may be an IPv6 address in brackets.
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

/// Longest host name, in bytes (RFC 1035).
const HOST_BYTES_MAX: usize = 253;

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
