//! The target of a load: an address on any wire, written as a URL.

use std::{fmt, str::FromStr};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    Http,
    WebSocket,
    Tcp,
    Quic,
}

/// `http://host:port/mcp/name`, `ws://host:port/ws/name`, `wss://…`, `tcp://host:port/name`,
/// `tls://…`, `quic://host:port/name`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub wire: Wire,
    /// True with TLS. QUIC always has it.
    pub encrypted: bool,
    /// `host:port`.
    pub address: String,
    /// Path with its leading slash.
    pub path: String,
    text: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetError(String);

impl std::error::Error for TargetError {}

impl fmt::Display for TargetError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let forms = "http://HOST:PORT/mcp/BACKEND, ws[s]://HOST:PORT/ws/BACKEND, tcp|tls|quic://HOST:PORT[/BACKEND]";
        write!(out, "{}; a target is one of {forms}", self.0)
    }
}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        let fault = |what: String| TargetError(format!("{text:?} {what}"));
        let (scheme, rest) =
            text.split_once("://").ok_or_else(|| fault("has no scheme".to_owned()))?;
        let (wire, encrypted) = match scheme {
            "http" => (Wire::Http, false),
            "ws" => (Wire::WebSocket, false),
            "wss" => (Wire::WebSocket, true),
            "tcp" => (Wire::Tcp, false),
            "tls" => (Wire::Tcp, true),
            "quic" => (Wire::Quic, true),
            _ => return Err(fault(format!("has the unknown scheme {scheme:?}"))),
        };
        let (address, path) = rest.find('/').map_or((rest, "/"), |at| rest.split_at(at));
        let port = address
            .rsplit_once(':')
            .and_then(|(host, port)| port.parse::<u16>().ok().filter(|_| !host.is_empty()));
        if port.is_none() {
            return Err(fault("names no host and port".to_owned()));
        }
        Ok(Self {
            wire,
            encrypted,
            address: address.to_owned(),
            path: path.to_owned(),
            text: text.to_owned(),
        })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

impl Target {
    /// Returns the backend that a connection on a wire without paths has to name in its first
    /// message.
    pub fn named_backend(&self) -> Option<&str> {
        let name = self.path.trim_matches('/');
        (matches!(self.wire, Wire::Tcp | Wire::Quic) && !name.is_empty()).then_some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_of_every_wire_are_read() {
        let target: Target = "tcp://127.0.0.1:81/fast".parse().unwrap();
        assert_eq!(
            (target.wire, target.address.as_str(), target.named_backend()),
            (Wire::Tcp, "127.0.0.1:81", Some("fast"))
        );
        let target: Target = "http://[::1]:80/mcp/fast".parse().unwrap();
        assert_eq!(
            (target.wire, target.address.as_str(), target.path.as_str()),
            (Wire::Http, "[::1]:80", "/mcp/fast")
        );
        assert_eq!(target.named_backend(), None);
        let target: Target = "quic://localhost:82".parse().unwrap();
        assert_eq!(
            (target.wire, target.encrypted, target.named_backend()),
            (Wire::Quic, true, None)
        );
    }

    #[test]
    fn an_invalid_target_is_reported_with_the_valid_forms() {
        for text in [
            "localhost:80",
            "ftp://localhost:80",
            "http://localhost/mcp",
            "tcp://:80",
            "https://localhost:443/mcp",
        ] {
            let error = text.parse::<Target>().unwrap_err().to_string();
            assert!(error.contains(text) && error.contains("tcp|tls|quic://HOST:PORT"), "{error}");
        }
    }
}
