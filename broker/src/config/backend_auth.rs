//! How the broker proves itself to a backend: the `auth` of its body.
//!
//! Invariants:
//! - `Debug` and the views show no secret.
//! - A token goes only to a backend over TLS, or on this machine.

use rules::link_sharing::LinkSharing;
use serde::{Deserialize, Serialize};
use transport::parse_http_url;
use utoipa::ToSchema;

use super::{
    ClientKey,
    config_key::is_secret,
    field_error::{FieldError, join},
    issuers::is_private,
    spec::{BackendSpec, TransportSpec},
};

const WORD_BYTES_MAX: usize = 512;
const URL_BYTES_MAX: usize = 2 * 1024;
const SCOPES_MAX: usize = 64;

/// How the broker proves itself to a backend.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BackendAuth {
    #[serde(rename = "type")]
    pub kind: BackendAuthKind,
    /// Id of the broker at the authorization server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_secret: Option<String>,
    /// Private key in PEM (PKCS #8) for `private_key_jwt`: RSA, P-256 or Ed25519.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_key: Option<String>,
    /// `kid` of the assertions that the key signs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_key_id: Option<String>,
    /// Absent: `private_key_jwt` with a key, otherwise `client_secret_basic`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_endpoint_auth_method: Option<ClientAuthMethod>,
    /// Scopes of the tokens. Absent: those that the backend names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<String>,
    /// The only authorization server that gets the credential. Absent: the first one that the
    /// backend names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issuer: Option<String>,
    /// Resource that the tokens are for. Absent: the one that the backend's metadata names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// Address of the client ID metadata document. Absent: that of the broker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_metadata_url: Option<String>,
}

/// Kind of proof.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BackendAuthKind {
    /// What `credentials` holds, if anything.
    #[default]
    None,
    /// `credentials.bearer`, which is required.
    Bearer,
    /// `credentials.headers`, which is required.
    Headers,
    /// Tokens that the broker gets as a client of its own (client credentials).
    OauthClient,
    /// Tokens of the account that each principal connects (authorization code).
    OauthUser,
}

/// Authentication of the broker at the token endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ClientAuthMethod {
    ClientSecretBasic,
    ClientSecretPost,
    PrivateKeyJwt,
    /// A public client. For `oauth_user` only.
    None,
}

impl std::fmt::Debug for BackendAuth {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "BackendAuth {{ kind: {:?}, client_id: {:?} }}", self.kind, self.client_id)
    }
}

impl BackendAuth {
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the settings without their secrets.
    pub fn without_secrets(&self) -> Self {
        Self { client_secret: None, client_key: None, ..self.clone() }
    }

    /// Returns the secrets, for redaction.
    pub fn secrets(&self) -> impl Iterator<Item = &String> {
        self.client_secret.iter().chain(&self.client_key)
    }
}

/// Checks the rules that the types do not express.
pub(super) fn check(spec: &BackendSpec, faults: &mut Vec<FieldError>) {
    let auth = &spec.auth;
    let mut fault = |name: &str, wrong: &str, allowed: &str| {
        faults.push(FieldError::new(join("auth", name), wrong, allowed));
    };
    match auth.kind {
        BackendAuthKind::OauthClient => check_client(spec, &mut fault),
        BackendAuthKind::OauthUser => check_user(spec, &mut fault),
        kind => {
            if *auth != (BackendAuth { kind, ..BackendAuth::default() }) {
                fault("type", "takes no further members", "type: oauth_client, or type alone");
            }
            if kind == BackendAuthKind::Bearer && spec.credentials.bearer.is_none() {
                fault("type", "is bearer without credentials.bearer", "credentials.bearer");
            }
            if kind == BackendAuthKind::Headers && spec.credentials.headers.is_empty() {
                fault("type", "is headers without credentials.headers", "credentials.headers");
            }
        }
    }
}

fn check_client(spec: &BackendSpec, fault: &mut impl FnMut(&str, &str, &str)) {
    let auth = &spec.auth;
    match &spec.transport {
        TransportSpec::Http { url } => {
            if parse_http_url(url).is_ok_and(|uri| !is_private(&uri)) {
                let wrong = "sends tokens to a backend without TLS";
                fault("type", wrong, "a transport.url with https://, or on this machine");
            }
        }
        _ => fault("type", "is for HTTP backends only", "transport.type: http"),
    }
    let names_authorization =
        spec.credentials.headers.keys().any(|name| name.eq_ignore_ascii_case("authorization"));
    if spec.credentials.bearer.is_some() || names_authorization {
        fault("type", "is set together with a token in credentials", "one of the two");
    }
    let is_word = |text: &String| {
        (1..=WORD_BYTES_MAX).contains(&text.len()) && !text.chars().any(char::is_control)
    };
    let words = format!("1 to {WORD_BYTES_MAX} bytes without control characters");
    match &auth.client_id {
        Some(id) if is_word(id) => {}
        Some(_) => fault("client_id", "is not the id of a client", &words),
        None if auth.kind == BackendAuthKind::OauthUser && !has_credential(auth) => {}
        None => fault("client_id", "is missing", &words),
    }
    if auth.client_key_id.as_ref().is_some_and(|id| !is_word(id)) {
        fault("client_key_id", "is not the id of a key", &words);
    }
    match auth.kind {
        BackendAuthKind::OauthUser if !has_credential(auth) => {
            if auth
                .token_endpoint_auth_method
                .is_some_and(|method| method != ClientAuthMethod::None)
            {
                fault("token_endpoint_auth_method", "needs a credential", "none");
            }
        }
        _ => check_credential(auth, fault),
    }
    let is_scope = |scope: &String| {
        (1..=WORD_BYTES_MAX).contains(&scope.len())
            && scope.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"\\".contains(&byte))
    };
    if auth.scopes.len() > SCOPES_MAX || !auth.scopes.iter().all(is_scope) {
        let allowed = format!("at most {SCOPES_MAX} scopes of RFC 6749, without spaces");
        fault("scopes", "is not a list of scopes", &allowed);
    }
    if let Some(issuer) = &auth.issuer {
        let allowed = "an https:// URL without query, as the authorization server writes it";
        match parse_http_url(issuer) {
            Ok(uri) if is_private(&uri) && !issuer.contains('?') => {}
            Ok(_) => fault("issuer", "has a query or is reached without TLS", allowed),
            Err(error) => fault("issuer", &error.to_string(), allowed),
        }
    }
    if auth.resource.as_ref().is_some_and(|resource| !is_resource(resource)) {
        let allowed = "an absolute URI without fragment, as the authorization server knows it";
        fault("resource", "is not a resource", allowed);
    }
}

fn has_credential(auth: &BackendAuth) -> bool {
    auth.client_secret.is_some() || auth.client_key.is_some()
}

fn check_user(spec: &BackendSpec, fault: &mut impl FnMut(&str, &str, &str)) {
    check_client(spec, fault);
    if spec.links == LinkSharing::Shared {
        let wrong = "gives each principal a token, but links: shared is one link for all";
        fault("type", wrong, "links: auto or per-session");
    }
    if let Some(url) = &spec.auth.client_metadata_url {
        let is_https = parse_http_url(url).is_ok_and(|uri| uri.scheme_str() == Some("https"));
        if !is_https || spec.auth.client_id.is_some() {
            let allowed = "an https:// URL, without client_id";
            fault("client_metadata_url", "cannot be the id of the broker", allowed);
        }
    }
}

fn check_credential(auth: &BackendAuth, fault: &mut impl FnMut(&str, &str, &str)) {
    const ONE: &str = "client_secret or client_key";
    match (&auth.client_secret, &auth.client_key, auth.token_endpoint_auth_method) {
        (Some(_), Some(_), _) => fault("client_key", "is set together with client_secret", ONE),
        (None, None, _) => fault("client_secret", "is missing", ONE),
        (Some(_), None, Some(ClientAuthMethod::PrivateKeyJwt)) => {
            fault("token_endpoint_auth_method", "needs a key", "client_key")
        }
        (Some(_), None, Some(ClientAuthMethod::None)) => {
            fault("token_endpoint_auth_method", "is none with a secret", "client_secret_basic")
        }
        (None, Some(_), Some(method)) if method != ClientAuthMethod::PrivateKeyJwt => {
            fault("token_endpoint_auth_method", "needs a secret", "client_secret")
        }
        (Some(secret), None, _) => {
            if !is_secret(secret) {
                let allowed = "1 to 4096 visible ASCII characters without spaces";
                fault("client_secret", "is empty, too long or not a secret", allowed);
            }
            if auth.client_key_id.is_some() {
                fault("client_key_id", "is set without client_key", "client_key");
            }
        }
        (None, Some(pem), _) => {
            if ClientKey::from_pem(pem).is_none() {
                let allowed = "a key in PEM (PKCS #8): RSA, P-256 or Ed25519";
                fault("client_key", "is not a key that can be used", allowed);
            }
        }
    }
}

/// Returns whether the text is an absolute URI without fragment (RFC 8707, 2).
pub fn is_resource(text: &str) -> bool {
    let has_scheme = text.split_once(':').is_some_and(|(scheme, rest)| {
        !rest.is_empty()
            && scheme.starts_with(|first: char| first.is_ascii_alphabetic())
            && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
    });
    has_scheme
        && text.len() <= URL_BYTES_MAX
        && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#')
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::config::{client_key, validation::parse_backend_spec};

    fn body(auth: Value) -> Value {
        json!({"transport": {"type": "http", "url": "https://a.example/mcp"}, "auth": auth})
    }

    fn client(more: Value) -> Value {
        let mut auth = json!({"type": "oauth_client", "client_id": "c", "client_secret": "hush"});
        for (name, value) in more.as_object().unwrap() {
            auth[name] = value.clone();
        }
        body(auth)
    }

    #[test]
    fn good_ways_of_proof_are_read_and_show_no_secret() {
        let key = client_key::tests::pem();
        for good in [
            body(json!({"type": "none"})),
            client(json!({})),
            client(
                json!({"token_endpoint_auth_method": "client_secret_post", "scopes": ["a", "b:c"],
                "issuer": "https://as.example/t", "resource": "api://x"}),
            ),
            client(json!({"client_secret": null, "client_key": key, "client_key_id": "k"})),
        ] {
            let spec = parse_backend_spec(&good).unwrap_or_else(|faults| panic!("{faults:?}"));
            let stored = serde_json::to_value(&spec).unwrap();
            assert_eq!(parse_backend_spec(&stored).as_ref(), Ok(&spec));
            let shown = format!("{spec:?}{}", json!(spec.auth.without_secrets()));
            assert!(!shown.contains("hush") && !shown.contains("PRIVATE"), "{shown}");
        }
    }

    #[test]
    fn faults_of_a_proof_name_their_field() {
        let key = client_key::tests::pem();
        let mut plain = client(json!({}));
        plain["transport"]["url"] = json!("http://a.example/mcp");
        let mut twice = client(json!({}));
        twice["credentials"] = json!({"bearer": "b"});
        let mut pipe = client(json!({}));
        pipe["transport"] = json!({"type": "stdio", "command": "x"});
        for (wrong, fault) in [
            (body(json!({})), "auth.type: is missing"),
            (body(json!({"type": "magic"})), "auth.type: "),
            (body(json!({"type": "bearer"})), "auth.type: is bearer without"),
            (body(json!({"type": "headers"})), "auth.type: is headers without"),
            (body(json!({"type": "none", "client_id": "c"})), "auth.type: takes no further"),
            (plain, "auth.type: sends tokens to a backend without TLS"),
            (twice, "auth.type: is set together"),
            (pipe, "auth.type: is for HTTP"),
            (client(json!({"client_id": null})), "auth.client_id: is missing"),
            (client(json!({"client_id": "\n"})), "auth.client_id: is not"),
            (client(json!({"client_secret": null})), "auth.client_secret: is missing"),
            (client(json!({"client_secret": ""})), "auth.client_secret: is empty"),
            (client(json!({"client_key": key})), "auth.client_key: is set together"),
            (client(json!({"client_secret": null, "client_key": "x"})), "auth.client_key: is not"),
            (client(json!({"client_key_id": "k"})), "auth.client_key_id: is set without"),
            (
                client(json!({"client_secret_file": "/x"})),
                "auth.client_secret_file: is not a known",
            ),
            (
                client(json!({"token_endpoint_auth_method": "private_key_jwt"})),
                "auth.token_endpoint_auth_method: needs a key",
            ),
            (client(json!({"scopes": ["a b"]})), "auth.scopes: "),
            (client(json!({"issuer": "http://as.example"})), "auth.issuer: has a query or"),
            (client(json!({"issuer": "javascript:x"})), "auth.issuer: "),
            (client(json!({"resource": "https://a.example/#x"})), "auth.resource: is not"),
        ] {
            let faults = parse_backend_spec(&wrong).unwrap_err();
            let found = faults.iter().any(|found| found.to_string().starts_with(fault));
            assert!(found, "{fault}: {faults:?}");
            assert!(!format!("{faults:?}").contains("hush"));
        }
    }
}
