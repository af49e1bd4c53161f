//! Origin and Host rules: the web pages and host names from which a listener accepts requests (MCP
//! 2025-11-25, Transports: Security).

use std::net::SocketAddr;

use config::private_url::is_loopback_host;
use http::{
    HeaderMap, HeaderName, HeaderValue, Uri,
    header::{HOST, ORIGIN},
};
use protocol::error::{ErrorKind, Refusal};

use crate::auth::AuthSettings;

/// Origin and Host rules of one listener (MCP 2025-11-25, Transports: Security).
#[derive(Debug)]
pub(in crate::listeners) struct RequestGuard {
    loopback: bool,
    auth: AuthSettings,
}

impl RequestGuard {
    pub(super) fn new(auth: AuthSettings, local: SocketAddr) -> Self {
        Self { loopback: local.ip().is_loopback(), auth }
    }

    /// Returns the edition of the rules, which the caller reads before a check.
    pub(super) fn edition(&self) -> u64 {
        self.auth.edition()
    }

    /// Refuses requests of foreign web pages. The origin of a page must be allowed. On a loopback
    /// listener the Host must be a loopback name, which a rebound DNS name is not.
    pub(super) fn check_origin_and_host(
        &self,
        headers: &HeaderMap,
        uri: &Uri,
    ) -> Result<(), Refusal> {
        let is_repeated = |name: HeaderName| headers.get_all(name).iter().nth(1).is_some();
        if is_repeated(ORIGIN) || is_repeated(HOST) {
            return Err(Refusal::new(
                ErrorKind::HostRefused,
                "Origin and Host must each be given only once",
            ));
        }
        if let Some(origin) = headers.get(ORIGIN)
            && !self.allows_origin(origin)
        {
            return Err(Refusal::new(
                ErrorKind::OriginRefused,
                "this Origin is not allowed, see auth.allowed_origins",
            ));
        }
        let named = headers.get(HOST).and_then(|host| host.to_str().ok());
        if let (Some(authority), Some(host)) = (uri.authority(), named)
            && !authority.as_str().eq_ignore_ascii_case(host)
        {
            return Err(Refusal::new(
                ErrorKind::HostRefused,
                "the request names two different hosts",
            ));
        }
        let host = uri.authority().map(|authority| authority.as_str()).or(named);
        if self.loopback && !host.is_some_and(|host| self.allows_host(host)) {
            return Err(Refusal::new(
                ErrorKind::HostRefused,
                "this Host is not allowed, see auth.allowed_hosts",
            ));
        }
        Ok(())
    }

    pub(super) fn allows_origin(&self, origin: &HeaderValue) -> bool {
        let Ok(origin) = origin.to_str().map(str::to_ascii_lowercase) else { return false };
        let origins = &self.auth.load().allowed_origins;
        if origins.iter().any(|allowed| allowed.eq_ignore_ascii_case(&origin)) {
            return true;
        }
        let rest = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        self.loopback && rest.is_some_and(names_loopback)
    }

    fn allows_host(&self, host: &str) -> bool {
        names_loopback(host)
            || self.auth.load().allowed_hosts.iter().any(|allowed| {
                [Some(host), host_name(host)]
                    .into_iter()
                    .flatten()
                    .any(|host| allowed.eq_ignore_ascii_case(host))
            })
    }
}

/// Returns whether the host is a loopback name, with or without a port.
fn names_loopback(host: &str) -> bool {
    host_name(host).is_some_and(is_loopback_host)
}

/// Returns the host without its port, or `None` if the rest is not a port.
fn host_name(host: &str) -> Option<&str> {
    let end = if host.starts_with('[') {
        host.find(']')? + 1
    } else {
        host.find(':').unwrap_or(host.len())
    };
    let (name, port) = host.split_at(end);
    let port_is_fine = port.is_empty()
        || port.strip_prefix(':').is_some_and(|port| {
            port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok()
        });
    port_is_fine.then_some(name)
}

#[cfg(test)]
mod tests {
    use config::AuthConfig;

    use super::*;

    fn guard(local: &str, origins: &[&str]) -> RequestGuard {
        let auth = AuthConfig {
            allowed_origins: origins.iter().map(|&o| o.to_owned()).collect(),
            allowed_hosts: vec!["broker.internal".to_owned()],
            ..AuthConfig::default()
        };
        RequestGuard::new(AuthSettings::new(auth), local.parse().unwrap())
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    #[test]
    fn http_02_unlisted_origins_are_refused_in_every_spelling() {
        let guard = guard("127.0.0.1:80", &["https://app.example"]);
        for origin in [
            "http://evil.example",
            "null",
            "",
            "http://localhost.evil.example",
            "http://evil.example:80@localhost",
            "http://127.0.0.1.nip.io",
            "file://",
            "http://localhost:99999",
            "http://[::1",
            "localhost",
            "https://app.example.evil",
            "http://app.example",
            "http://0x7f.1",
            "http://localhost:+80",
        ] {
            assert!(
                guard
                    .check_origin_and_host(
                        &headers(&[("host", "localhost"), ("origin", origin)]),
                        &Uri::default()
                    )
                    .is_err(),
                "{origin}"
            );
        }
        for origin in [
            "http://localhost",
            "http://localhost:5173",
            "https://127.0.0.1:1",
            "http://[::1]:8080",
            "https://app.example",
        ] {
            assert!(
                guard
                    .check_origin_and_host(
                        &headers(&[("host", "localhost:8080"), ("origin", origin)]),
                        &Uri::default()
                    )
                    .is_ok(),
                "{origin}"
            );
        }
    }

    #[test]
    fn http_03_a_loopback_listener_answers_to_loopback_names_only() {
        let guard = guard("127.0.0.1:80", &[]);
        for host in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "localhost:x",
            "2130706433",
            "",
        ] {
            assert!(
                guard.check_origin_and_host(&headers(&[("host", host)]), &Uri::default()).is_err(),
                "{host}"
            );
        }
        for host in [
            "localhost",
            "LOCALHOST:80",
            "127.0.0.1:8080",
            "[::1]:8080",
            "127.9.9.9",
            "broker.internal:8080",
            "broker.internal",
        ] {
            assert!(
                guard.check_origin_and_host(&headers(&[("host", host)]), &Uri::default()).is_ok(),
                "{host}"
            );
        }
        assert!(
            guard
                .check_origin_and_host(
                    &headers(&[("host", "localhost"), ("host", "evil.example")]),
                    &Uri::default()
                )
                .is_err()
        );
        assert!(guard.check_origin_and_host(&HeaderMap::new(), &Uri::default()).is_err());
    }

    #[test]
    fn a_public_listener_trusts_listed_origins_only() {
        let guard = guard("10.0.0.1:80", &["https://app.example"]);
        assert!(
            guard
                .check_origin_and_host(
                    &headers(&[("host", "any.example"), ("origin", "http://localhost")]),
                    &Uri::default()
                )
                .is_err()
        );
        assert!(
            guard
                .check_origin_and_host(
                    &headers(&[("host", "any.example"), ("origin", "https://app.example")]),
                    &Uri::default()
                )
                .is_ok()
        );
    }
}
