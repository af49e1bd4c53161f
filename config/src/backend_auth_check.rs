//! Checks of the `auth` of a backend's body ([`super::backend_auth`]) that its types do not express.

use rules::link_sharing::LinkSharing;
use transport::parse_http_url;

use super::{
    ClientKey,
    backend_auth::{
        ActorToken, BackendAuth, BackendAuthKind, CatalogAuth, ClientAuthMethod, ExchangeGrant,
        MASK,
    },
    config_key::is_secret,
    field_error::{FieldError, join},
    private_url::is_private,
    spec::BackendSpec,
    transport_spec::TransportSpec,
};

const IDENTIFIER_BYTES_MAX: usize = 512;
const URL_BYTES_MAX: usize = 2 * 1024;
const SCOPES_MAX: usize = 64;
const SECRET_ALLOWED: &str = "1 to 4096 visible ASCII characters without spaces";

/// Checks the rules that the types do not express.
pub(super) fn check(spec: &BackendSpec, faults: &mut Vec<FieldError>) {
    let auth = &spec.auth;
    let mut fault = |name: &str, wrong: &str, allowed: &str| {
        faults.push(FieldError::new(join("auth", name), wrong, allowed));
    };
    let provider = auth.provider.as_ref();
    let secrets = [
        ("client_secret", &auth.client_secret),
        ("client_key", &auth.client_key),
        ("provider.client_secret", provider.map_or(&None, |known| &known.client_secret)),
    ];
    for (name, _) in secrets.iter().filter(|(_, secret)| secret.as_deref() == Some(MASK)) {
        fault(name, "is the mask that views show instead of a secret", "the secret itself");
    }
    match auth.kind {
        BackendAuthKind::OauthClient => check_client(spec, &mut fault),
        BackendAuthKind::OauthUser => check_user(spec, &mut fault),
        BackendAuthKind::TokenExchange | BackendAuthKind::Enterprise => {
            check_client(spec, &mut fault);
            check_links(spec, &mut fault);
        }
        kind => {
            if *auth != (BackendAuth { kind, ..BackendAuth::default() }) {
                fault("type", "takes no further members", "a type with tokens, or type alone");
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
    check_members(auth, fault);
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
    let is_identifier = |text: &String| {
        (1..=IDENTIFIER_BYTES_MAX).contains(&text.len()) && !text.chars().any(char::is_control)
    };
    let allowed = format!("1 to {IDENTIFIER_BYTES_MAX} bytes without control characters");
    let is_unknown = !auth.has_credential() && !auth.has_own_key();
    // A client without an id has its metadata document, or registers itself.
    let is_unregistered = auth.kind == BackendAuthKind::OauthUser && !auth.has_credential();
    match &auth.client_id {
        Some(id) if is_identifier(id) => {}
        Some(_) => fault("client_id", "is not the id of a client", &allowed),
        None if is_unregistered && auth.catalog_auth != CatalogAuth::Service => {}
        None => fault("client_id", "is missing", &allowed),
    }
    if auth.client_key_id.as_ref().is_some_and(|id| !is_identifier(id)) {
        fault("client_key_id", "is not the id of a key", &allowed);
    }
    match auth.kind {
        BackendAuthKind::OauthUser if is_unknown => {
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
        (1..=IDENTIFIER_BYTES_MAX).contains(&scope.len())
            && scope.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"\\".contains(&byte))
    };
    let mut check_scopes = |name: &str, scopes: &[String]| {
        if scopes.len() > SCOPES_MAX || !scopes.iter().all(is_scope) {
            let allowed = format!("at most {SCOPES_MAX} scopes of RFC 6749, without spaces");
            fault(name, "is not a list of scopes", &allowed);
        }
    };
    check_scopes("scopes", &auth.scopes);
    if let Some(provider) = &auth.provider {
        check_scopes("provider.scopes", &provider.scopes);
        check_issuer("provider.issuer", &provider.issuer, fault);
        if !is_identifier(&provider.client_id) {
            fault("provider.client_id", "is not the id of a client", &allowed);
        }
        if provider.client_secret.as_ref().is_some_and(|secret| !is_secret(secret)) {
            fault("provider.client_secret", "is empty, too long or not a secret", SECRET_ALLOWED);
        }
    }
    if let Some(issuer) = &auth.issuer {
        check_issuer("issuer", issuer, fault);
    }
    if auth.audience.as_ref().is_some_and(|audience| !is_identifier(audience)) {
        fault("audience", "is not an audience", &allowed);
    }
    if auth.resource.as_ref().is_some_and(|resource| !is_resource(resource)) {
        let allowed = "an absolute URI without fragment, as the authorization server knows it";
        fault("resource", "is not a resource", allowed);
    }
}

/// Checks that each member belongs to the kind.
fn check_members(auth: &BackendAuth, fault: &mut impl FnMut(&str, &str, &str)) {
    const OTHER: &str = "belongs to another type";
    if auth.kind == BackendAuthKind::TokenExchange && auth.issuer.is_none() {
        let allowed = "the issuer of the authorization server that gets the callers' tokens";
        fault("issuer", "is missing", allowed);
    }
    if auth.kind != BackendAuthKind::TokenExchange {
        if auth.grant != ExchangeGrant::default() {
            fault("grant", OTHER, "with type: token_exchange");
        }
        if auth.audience.is_some() {
            fault("audience", OTHER, "with type: token_exchange");
        }
        if auth.actor_token.is_some() {
            fault("actor_token", OTHER, "with type: token_exchange");
        }
    }
    if auth.actor_token.is_some() && auth.grant == ExchangeGrant::OnBehalfOf {
        fault("actor_token", "belongs to another grant", "with grant: token_exchange");
    }
    let has_key = auth.client_key.is_some() || auth.has_own_key();
    if auth.actor_token == Some(ActorToken::Jwt) && !has_key {
        fault("actor_token", "is jwt without a key", "client_key, or private_key_jwt");
    }
    if auth.grant == ExchangeGrant::OnBehalfOf && auth.scopes.is_empty() {
        fault("scopes", "is missing", "the scopes of the backend, such as api://x/.default");
    }
    let has_principals = auth.kind != BackendAuthKind::OauthClient;
    if !has_principals && auth.catalog_auth != CatalogAuth::default() {
        let allowed = "with type: oauth_user, token_exchange or enterprise";
        fault("catalog_auth", OTHER, allowed);
    }
    match (auth.catalog_auth == CatalogAuth::Declared, &auth.catalog) {
        (true, None) => fault("catalog", "is missing", "{tools, prompts, resources}"),
        (false, Some(_)) => {
            fault("catalog", "belongs to another catalog_auth", "with catalog_auth: declared")
        }
        (true, Some(catalog)) => catalog.check(fault),
        (false, None) => {}
    }
    let has_client = auth.has_credential() || auth.has_own_key();
    if auth.catalog_auth == CatalogAuth::Service && !has_client {
        fault("catalog_auth", "needs a credential of the broker", "client_id and a credential");
    }
    match (auth.kind == BackendAuthKind::Enterprise, &auth.provider) {
        (true, None) => fault("provider", "is missing", "{issuer, client_id}"),
        (false, Some(_)) => fault("provider", OTHER, "with type: enterprise"),
        _ => {}
    }
}

fn check_issuer(name: &str, issuer: &str, fault: &mut impl FnMut(&str, &str, &str)) {
    let allowed = "an https:// URL without query, as the authorization server writes it";
    match parse_http_url(issuer) {
        Ok(uri) if is_private(&uri) && !issuer.contains('?') => {}
        Ok(_) => fault(name, "has a query or does not use TLS", allowed),
        Err(error) => fault(name, &error.to_string(), allowed),
    }
}

/// Checks that no principal uses a link with the token of another one.
fn check_links(spec: &BackendSpec, fault: &mut impl FnMut(&str, &str, &str)) {
    if spec.links == LinkSharing::Shared {
        let wrong = "needs one link for each principal, but links: shared uses one link for all";
        fault("type", wrong, "links: auto or per-session");
    }
}

fn check_user(spec: &BackendSpec, fault: &mut impl FnMut(&str, &str, &str)) {
    check_client(spec, fault);
    check_links(spec, fault);
    if let Some(url) = &spec.auth.client_metadata_url {
        let is_https = parse_http_url(url).is_ok_and(|uri| uri.scheme_str() == Some("https"));
        if !is_https || spec.auth.client_id.is_some() {
            let allowed = "an https:// URL, without client_id";
            fault("client_metadata_url", "cannot be the client id of the broker", allowed);
        }
    }
}

fn check_credential(auth: &BackendAuth, fault: &mut impl FnMut(&str, &str, &str)) {
    const ONE: &str = "client_secret or client_key";
    if auth.has_own_key() {
        if auth.client_key_id.is_some() {
            fault("client_key_id", "is set without client_key", "client_key");
        }
        return;
    }
    match (&auth.client_secret, &auth.client_key, auth.token_endpoint_auth_method) {
        (Some(_), Some(_), _) => fault("client_key", "is set together with client_secret", ONE),
        (None, None, _) => fault("client_secret", "is missing", ONE),
        (Some(_), None, Some(ClientAuthMethod::PrivateKeyJwt)) => {
            fault("token_endpoint_auth_method", "needs a key", "client_key")
        }
        (Some(_), None, Some(ClientAuthMethod::None)) => fault(
            "token_endpoint_auth_method",
            "is none, but client_secret is set",
            "client_secret_basic",
        ),
        (None, Some(_), Some(method)) if method != ClientAuthMethod::PrivateKeyJwt => {
            fault("token_endpoint_auth_method", "needs a secret", "client_secret")
        }
        (Some(secret), None, _) => {
            if !is_secret(secret) {
                fault("client_secret", "is empty, too long or not a secret", SECRET_ALLOWED);
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

    use crate::{client_key, validation::parse_backend_spec};

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

    fn provider(more: Value) -> Value {
        let mut provider = json!({"issuer": "https://idp.example", "client_id": "c"});
        for (name, value) in more.as_object().unwrap() {
            provider[name] = value.clone();
        }
        provider
    }

    #[test]
    fn valid_auth_settings_are_read_and_show_no_secret() {
        let key = client_key::tests::pem();
        for good in [
            body(json!({"type": "none"})),
            client(json!({})),
            client(
                json!({"token_endpoint_auth_method": "client_secret_post", "scopes": ["a", "b:c"],
                "issuer": "https://as.example/t", "resource": "api://x"}),
            ),
            client(json!({"client_secret": null, "client_key": key, "client_key_id": "k"})),
            client(
                json!({"client_secret": null, "token_endpoint_auth_method": "private_key_jwt", "issuer_compare": "pathless_slash"}),
            ),
            client(json!({"type": "oauth_user", "catalog_auth": "service"})),
            client(
                json!({"type": "token_exchange", "issuer": "https://as.example", "audience": "urn:x"}),
            ),
            client(
                json!({"type": "token_exchange", "issuer": "https://as.example", "catalog_auth": "per_principal"}),
            ),
            client(
                json!({"type": "token_exchange", "issuer": "https://as.example", "actor_token": "access_token"}),
            ),
            client(
                json!({"type": "token_exchange", "issuer": "https://as.example", "client_secret": null, "client_key": key, "actor_token": "jwt"}),
            ),
            client(
                json!({"type": "oauth_user", "client_id": null, "client_secret": null, "token_endpoint_auth_method": "private_key_jwt"}),
            ),
            client(json!({"type": "oauth_user", "catalog_auth": "declared", "catalog": {
                "tools": [{"name": "a", "inputSchema": {"type": "object"}}],
                "resource_templates": [{"name": "t", "uriTemplate": "x://{a}"}]}})),
            client(
                json!({"type": "token_exchange", "issuer": "https://as.example", "grant": "on_behalf_of", "scopes": ["api://x/.default"]}),
            ),
            client(
                json!({"type": "enterprise", "provider": provider(json!({"client_secret": "hush"}))}),
            ),
        ] {
            let spec = parse_backend_spec(&good).unwrap_or_else(|faults| panic!("{faults:?}"));
            let stored = serde_json::to_value(&spec).unwrap();
            assert_eq!(parse_backend_spec(&stored).as_ref(), Ok(&spec));
            let shown = format!("{spec:?}{}", json!(spec.auth.masked()));
            assert!(!shown.contains("hush") && !shown.contains("PRIVATE"), "{shown}");
        }
    }

    #[test]
    fn faults_of_auth_settings_name_their_field() {
        let key = client_key::tests::pem();
        let mut plain = client(json!({}));
        plain["transport"]["url"] = json!("http://a.example/mcp");
        let mut twice = client(json!({}));
        twice["credentials"] = json!({"bearer": "b"});
        let mut shared = client(json!({"type": "token_exchange", "issuer": "https://as.example"}));
        shared["links"] = json!("shared");
        let user = |more: Value| {
            let mut body = client(more);
            body["auth"]["type"] = json!("oauth_user");
            body
        };
        let enterprise = |more| client(json!({"type": "enterprise", "provider": provider(more)}));
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
            (shared, "auth.type: needs one link for each principal"),
            (client(json!({"grant": "on_behalf_of"})), "auth.grant: belongs"),
            (client(json!({"audience": "x"})), "auth.audience: belongs"),
            (client(json!({"actor_token": "jwt"})), "auth.actor_token: belongs"),
            (
                client(
                    json!({"type": "token_exchange", "issuer": "https://as.example", "actor_token": "jwt"}),
                ),
                "auth.actor_token: is jwt without",
            ),
            (
                client(
                    json!({"type": "token_exchange", "issuer": "https://as.example", "actor_token": "access_token", "grant": "on_behalf_of", "scopes": ["a"]}),
                ),
                "auth.actor_token: belongs to another grant",
            ),
            (client(json!({"type": "token_exchange"})), "auth.issuer: is missing"),
            (client(json!({"catalog_auth": "service"})), "auth.catalog_auth: belongs"),
            (client(json!({"catalog_auth": "per_principal"})), "auth.catalog_auth: belongs"),
            (user(json!({"catalog_auth": "unknown"})), "auth.catalog_auth: "),
            (user(json!({"catalog_auth": "declared"})), "auth.catalog: is missing"),
            (user(json!({"catalog": {}})), "auth.catalog: belongs"),
            (
                user(json!({"catalog_auth": "declared", "catalog": {"tools": [{"name": "a"}]}})),
                "auth.catalog.tools: entry \"a\": ",
            ),
            (
                user(json!({"catalog_auth": "declared", "catalog": {"tools": 7}})),
                "auth.catalog.tools: is",
            ),
            (
                user(
                    json!({"catalog_auth": "declared", "catalog": {"prompts": [{"name": "a"}, {"name": "a"}]}}),
                ),
                "auth.catalog.prompts: has \"a\" twice",
            ),
            (
                user(json!({"catalog_auth": "declared", "catalog": {"resourceTemplates": []}})),
                "auth.catalog.resourceTemplates: is not a known",
            ),
            (client(json!({"provider": provider(json!({}))})), "auth.provider: belongs"),
            (client(json!({"type": "enterprise"})), "auth.provider: is missing"),
            (
                client(
                    json!({"type": "token_exchange", "issuer": "https://as.example", "grant": "on_behalf_of"}),
                ),
                "auth.scopes: is missing",
            ),
            (enterprise(json!({"issuer": "http://idp.example"})), "auth.provider.issuer: has a"),
            (enterprise(json!({"client_secret": ""})), "auth.provider.client_secret: is empty"),
            (
                enterprise(json!({"client_secret": "***"})),
                "auth.provider.client_secret: is the mask",
            ),
            (client(json!({"client_secret": "***"})), "auth.client_secret: is the mask"),
            (
                client(json!({"client_secret": null, "client_key": "***"})),
                "auth.client_key: is the mask",
            ),
            (enterprise(json!({"scopes": ["a b"]})), "auth.provider.scopes: "),
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
            (
                client(
                    json!({"client_secret": null, "client_key_id": "k", "token_endpoint_auth_method": "private_key_jwt"}),
                ),
                "auth.client_key_id: is set without",
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
