//! Introspection of an issuer's tokens (RFC 7662): `introspection` and `check` of an entry of
//! `auth.issuers`. Read by [`super::issuers`].
//!
//! Invariants:
//! - The endpoint is reached over TLS, except on this machine.
//! - A client of the endpoint has exactly one kind of credential.

use std::time::Duration;

use http::Uri;
use serde::Deserialize;
use utoipa::ToSchema;

use super::{
    Secret,
    client_key::ClientKey,
    config_key::KeyKind,
    config_reader::read_secret_file,
    field_error::{FieldError, element, join},
    issuer_reader::IssuerReader,
    range::check_duration,
    serde_units::optional_duration,
    units::DurationText,
};

/// Time for which an answer is used, unless `ttl` sets another.
const TTL_USUAL: Duration = Duration::from_secs(60);
const TTL: KeyKind =
    KeyKind::Duration { min: Duration::from_secs(1), max: Duration::from_secs(3_600) };
const IDENTIFIER_BYTES_MAX: usize = 512;
const SECRET_ALLOWED: &str = "client_secret or client_secret_file";
const CHECKS: &str = "signature, introspect";

/// Introspection endpoint of an issuer, and how the broker authenticates there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IntrospectionConfig {
    pub endpoint: Uri,
    pub client_id: String,
    pub credential: IntrospectionCredential,
    /// Longest time for which an answer is used.
    pub ttl: Duration,
    /// True if JWTs are introspected too, after the check of their signature.
    pub includes_jwts: bool,
}

/// Credential of the broker at an introspection endpoint (OpenID Connect Core 1.0, 9).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IntrospectionCredential {
    /// `client_secret_basic`
    Basic(Secret),
    /// `client_secret_post`
    Post(Secret),
    /// `private_key_jwt`: a private key, and its `kid`.
    PrivateKeyJwt { key: ClientKey, key_id: Option<String> },
}

/// `introspection` as written.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct IntrospectionEntry {
    endpoint: String,
    client_id: String,
    client_secret: Option<String>,
    client_secret_file: Option<String>,
    client_key_file: Option<String>,
    client_key_id: Option<String>,
    auth: Option<String>,
    #[serde(default, with = "optional_duration")]
    #[schema(value_type = DurationText)]
    ttl: Option<Duration>,
}

impl IssuerReader<'_> {
    /// Reads `introspection` and `check`. Returns `None` without introspection, or after a fault.
    pub(super) fn introspection(
        &mut self,
        entry: Option<IntrospectionEntry>,
        check: Option<&str>,
    ) -> Option<IntrospectionConfig> {
        let includes_jwts = match check {
            None | Some("signature") => false,
            Some("introspect") => true,
            Some(_) => {
                self.fault("check", "is not a known check for JWTs", CHECKS);
                false
            }
        };
        let Some(entry) = entry else {
            if includes_jwts {
                self.fault(
                    "introspection",
                    "is missing, but check needs it",
                    "a map with endpoint",
                );
            }
            return None;
        };
        let endpoint = self.url("introspection.endpoint", &entry.endpoint);
        let is_fit = |text: &str| {
            (1..=IDENTIFIER_BYTES_MAX).contains(&text.len()) && !text.chars().any(char::is_control)
        };
        if !is_fit(&entry.client_id) {
            let allowed = format!("1 to {IDENTIFIER_BYTES_MAX} bytes without control characters");
            self.fault("introspection.client_id", "is not the id of a client", &allowed);
        }
        let path = join(&self.path, "introspection.ttl");
        check_duration(path, entry.ttl, TTL, self.faults);
        let credential = self.credential(&entry);
        Some(IntrospectionConfig {
            endpoint: endpoint?,
            credential: credential?,
            ttl: entry.ttl.unwrap_or(TTL_USUAL),
            client_id: entry.client_id,
            includes_jwts,
        })
    }

    fn credential(&mut self, entry: &IntrospectionEntry) -> Option<IntrospectionCredential> {
        let method = entry.auth.as_deref().unwrap_or("basic");
        if method == "private_key_jwt" {
            if entry.client_secret.is_some() || entry.client_secret_file.is_some() {
                let wrong = "is private_key_jwt, which has no client_secret";
                self.fault("introspection.auth", wrong, "client_key_file without a secret");
            }
            return self.private_key(entry);
        }
        if !["basic", "post"].contains(&method) {
            let allowed = "basic, post, private_key_jwt";
            self.fault("introspection.auth", "is not a known authentication method", allowed);
            return None;
        }
        if entry.client_key_file.is_some() || entry.client_key_id.is_some() {
            let wrong = "belongs to auth: private_key_jwt";
            self.fault("introspection.client_key_file", wrong, SECRET_ALLOWED);
        }
        let secret = match (&entry.client_secret, &entry.client_secret_file) {
            (Some(text), None) => Ok(Secret::new(text.as_str())),
            (None, Some(file)) => read_secret_file(file, 1),
            (Some(_), Some(_)) => Err("is set together with client_secret_file".to_owned()),
            (None, None) => Err("is missing".to_owned()),
        };
        let secret = secret
            .and_then(|secret| match secret.expose().is_empty() {
                true => Err("is empty".to_owned()),
                false => Ok(secret),
            })
            .map_err(|wrong| {
                let name = match (&entry.client_secret, &entry.client_secret_file) {
                    (None, Some(_)) => "introspection.client_secret_file",
                    _ => "introspection.client_secret",
                };
                self.fault(name, &wrong, SECRET_ALLOWED);
            })
            .ok()?;
        Some(match method {
            "post" => IntrospectionCredential::Post(secret),
            _ => IntrospectionCredential::Basic(secret),
        })
    }

    fn private_key(&mut self, entry: &IntrospectionEntry) -> Option<IntrospectionCredential> {
        const PATH: &str = "introspection.client_key_file";
        const ALLOWED: &str = "a file with a key in PEM (PKCS #8): RSA, P-256 or Ed25519";
        let key = match &entry.client_key_file {
            None => Err("is missing, but auth: private_key_jwt needs it".to_owned()),
            Some(file) => ClientKey::read(file),
        };
        let key = key.map_err(|wrong| self.fault(PATH, &wrong, ALLOWED)).ok()?;
        let key_id = entry.client_key_id.clone();
        Some(IntrospectionCredential::PrivateKeyJwt { key, key_id })
    }
}

/// Checks that at most one issuer takes tokens that name no issuer. A token must not be shown to an
/// authorization server that did not issue it.
pub(super) fn check_only_one<'i>(
    issuers: impl Iterator<Item = &'i Option<IntrospectionConfig>>,
    path: &str,
    faults: &mut Vec<FieldError>,
) {
    let mut with = issuers.enumerate().filter(|(_, introspection)| introspection.is_some());
    if let Some((at, _)) = with.nth(1) {
        let path = join(&element(path, at), "introspection");
        faults.push(FieldError::new(
            path,
            "is set for a second issuer, and an opaque token does not name its issuer",
            "introspection of one issuer",
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{client_key, load_from};

    fn with(more: &str) -> String {
        format!(
            "auth: {{resource: 'https://mcp.example.com', issuers: [{{issuer: 'https://a.example', tenant: acme, {more}}}]}}"
        )
    }

    #[test]
    fn introspection_has_an_endpoint_and_one_credential() {
        let of = |more: &str| {
            let config = load_from(&with(more), []).unwrap();
            config.auth.issuers[0].introspection.clone().unwrap()
        };
        let basic =
            of("introspection: {endpoint: 'https://a.example/i', client_id: b, client_secret: s}");
        assert_eq!(basic.credential, IntrospectionCredential::Basic(Secret::new("s")));
        assert!(basic.ttl == TTL_USUAL && !basic.includes_jwts);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("secret");
        std::fs::write(&file, "from-a-file\n").unwrap();
        let post = of(&format!(
            "check: introspect, introspection: {{endpoint: 'http://127.0.0.1:9/i', client_id: b, client_secret_file: '{}', auth: post, ttl: 5s}}",
            file.display()
        ));
        assert_eq!(post.credential, IntrospectionCredential::Post(Secret::new("from-a-file")));
        assert!(post.ttl == Duration::from_secs(5) && post.includes_jwts);
        assert!(!format!("{post:?}").contains("from-a-file"));
        std::fs::write(&file, client_key::tests::pem()).unwrap();
        let key = of(&format!(
            "introspection: {{endpoint: 'https://a.example/i', client_id: b, client_key_file: '{}', client_key_id: k, auth: private_key_jwt}}",
            file.display()
        ));
        assert!(matches!(key.credential, IntrospectionCredential::PrivateKeyJwt { .. }));
    }

    #[test]
    fn faults_of_introspection_name_their_key() {
        let endpoint = "endpoint: 'https://a.example/i', client_id: b";
        for (more, fault) in [
            ("introspection: {client_id: b}".to_owned(), "introspection.endpoint: is missing"),
            (
                "introspection: {endpoint: 'http://a.example/i', client_id: b, client_secret: s}"
                    .to_owned(),
                "introspection.endpoint: does not use TLS",
            ),
            (format!("introspection: {{{endpoint}}}"), "introspection.client_secret: is missing"),
            (
                format!("introspection: {{{endpoint}, client_secret: s, client_secret_file: /x}}"),
                "introspection.client_secret: is set together",
            ),
            (
                format!("introspection: {{{endpoint}, client_secret_file: /no/such/file}}"),
                "introspection.client_secret_file: \"/no/such/file\" cannot be read",
            ),
            (
                format!("introspection: {{{endpoint}, client_secret: s, auth: none}}"),
                "introspection.auth: is not a known",
            ),
            (
                format!("introspection: {{{endpoint}, auth: private_key_jwt}}"),
                "introspection.client_key_file: is missing",
            ),
            (
                format!("introspection: {{{endpoint}, client_secret: s, client_key_file: /x}}"),
                "introspection.client_key_file: belongs to",
            ),
            (
                format!("introspection: {{{endpoint}, client_secret: s, ttl: 2h}}"),
                "introspection.ttl: is out of range",
            ),
            (
                "introspection: {endpoint: 'https://a.example/i', client_id: '', client_secret: s}"
                    .to_owned(),
                "introspection.client_id: is not the id",
            ),
            ("check: introspect".to_owned(), "introspection: is missing, but check"),
            ("check: never".to_owned(), "check: is not a known check"),
        ] {
            let faults = load_from(&with(&more), []).expect_err(&more).to_string();
            let wanted = format!("auth.issuers[0].{fault}");
            assert!(faults.lines().any(|line| line.starts_with(&wanted)), "{more}: {faults}");
        }
        let one = format!("tenant: acme, introspection: {{{endpoint}, client_secret: s}}");
        let two = format!(
            "auth: {{resource: 'https://mcp.example.com', issuers: [{{issuer: 'https://a.example', {one}}}, {{issuer: 'https://b.example', {one}}}]}}"
        );
        let faults = load_from(&two, []).unwrap_err().to_string();
        assert!(faults.contains("auth.issuers[1].introspection: is set for a second"), "{faults}");
    }
}
