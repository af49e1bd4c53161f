//! The broker's identity at the authorization server of a backend: a client that the operator
//! registered, a client ID metadata document, or dynamic registration (RFC 7591).
//!
//! Invariants:
//! - A registration and a configured credential belong to one issuer.
//! - A server that does not identify itself in its answers gets a separate redirect URI. The broker
//!   therefore does not take the answer of another server for its answer (RFC 9700, 4.4.2.2).

use std::time::Duration;

use bytes::Bytes;
use config::{
    ClientKey, Secret,
    spec::{BackendAuth, ClientAuthMethod},
};
use http::{
    HeaderValue, Method, Request, StatusCode, Uri,
    header::{ACCEPT, CONTENT_TYPE},
};
use http_body_util::Full;
use protocol::ids::TenantId;
use records::{GrantKey, SecretKey, SecretKind};
use rules::limits::oauth::REGISTRATION_BYTES_MAX;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use transport::parse_http_url;

use super::{
    client_keys::TenantKeys,
    discovery::DiscoveredServer,
    fetch::{OauthError, OauthFetcher, object},
    secret_text::digest_of,
    token_request::{AccessToken, request_token},
    vault::Vault,
};
use crate::auth::{ClientAuthentication, ClientCredential, now_us};

/// Paths of the broker as a client. Registrations have callbacks of their own below the first.
pub const CALLBACK_PATH: &str = "/oauth/callback";
pub const CLIENT_METADATA_PATH: &str = "/oauth/client-metadata.json";
pub const KEY_SET_PATH: &str = "/oauth/jwks.json";
/// Beginning of the paths of the client ID metadata documents with keys.
const KEY_CLIENTS_PATH: &str = "/oauth/clients/";
/// Member of a server's metadata: it identifies itself in each answer (RFC 9207).
pub(super) const SENDS_ISSUER: &str = "authorization_response_iss_parameter_supported";
/// Member of a server's metadata: it accepts client ID metadata documents.
const ACCEPTS_DOCUMENTS: &str = "client_id_metadata_document_supported";
const PRIVATE_KEY_JWT: &str = "private_key_jwt";
/// Longest life of a registration, which then is made again.
const REGISTRATION_LIFE: Duration = Duration::from_secs(10 * 365 * 24 * 3_600);

/// A client as it is stored. A configured one is stored without its credential.
#[derive(Clone, Serialize, Deserialize)]
struct StoredClient {
    issuer: String,
    client_id: String,
    client_secret: Option<String>,
    method: String,
}

/// The settings and stores from which the broker's client at a server follows.
pub(super) struct ClientSettings<'a> {
    pub(super) auth: &'a BackendAuth,
    pub(super) vault: &'a Vault,
    pub(super) fetcher: &'a OauthFetcher,
    pub(super) keys: &'a TenantKeys,
    /// Address of the broker for browsers.
    pub(super) base: String,
    pub(super) redirect_uri: String,
    pub(super) key: &'a GrantKey,
}

/// Returns the metadata of the broker as a client. `keys_of`: the tenant with whose keys the client
/// signs. Without one, it is a public client.
pub fn client_metadata(base: &str, keys_of: Option<&TenantId>) -> Value {
    let mut metadata = json!({
        "client_id": metadata_address(base, keys_of),
        "client_name": "mcp-broker",
        "redirect_uris": [format!("{base}{CALLBACK_PATH}")],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
        "application_type": application_type(base),
    });
    if let Some(tenant) = keys_of {
        metadata["token_endpoint_auth_method"] = json!("private_key_jwt");
        metadata["token_endpoint_auth_signing_alg"] = json!("ES256");
        metadata["jwks_uri"] = json!(format!("{base}{KEY_SET_PATH}?tenant={tenant}"));
    }
    metadata
}

fn metadata_address(base: &str, keys_of: Option<&TenantId>) -> String {
    match keys_of {
        None => format!("{base}{CLIENT_METADATA_PATH}"),
        Some(tenant) => format!("{base}{KEY_CLIENTS_PATH}{tenant}.json"),
    }
}

/// Returns the tenant whose client with keys has its metadata document at this path.
pub fn tenant_of_metadata(path: &str) -> Option<TenantId> {
    let name = path.strip_prefix(KEY_CLIENTS_PATH)?.strip_suffix(".json")?;
    TenantId::parse(name).ok()
}

/// Clients with a redirect URI on the same machine are native ones (OpenID Connect Registration
/// 1.0, 2).
fn application_type(base: &str) -> &'static str {
    if base.starts_with("https://") { "web" } else { "native" }
}

impl ClientSettings<'_> {
    /// Returns the client for a server. Registers it if that is necessary.
    pub(super) async fn client(
        &self,
        server: &DiscoveredServer,
    ) -> Result<ClientAuthentication, OauthError> {
        if let Some(known) = self.known_client(server).await? {
            return Ok(known);
        }
        let (made, life) = self.register(server).await?;
        let vault_key = self.registration_key(server);
        self.registered(&self.vault.add_secret(&vault_key, made, life).await?).await
    }

    /// Returns the client that got tokens or a code. No other client can use them, so this never
    /// registers another one. `client_id` is empty if an earlier version of the broker got them.
    pub(super) async fn client_of_tokens(
        &self,
        server: &DiscoveredServer,
        client_id: &str,
    ) -> Result<ClientAuthentication, OauthError> {
        let registered = match self.auth.client_id {
            // The server may accept metadata documents since the broker registered there.
            None if !client_id.is_empty() => self.registration(server).await?,
            _ => None,
        };
        let client = match registered.filter(|client| client.client_id == client_id) {
            Some(client) => Some(self.registered(&client).await?),
            None => self.known_client(server).await?,
        };
        let is_same =
            |known: &ClientAuthentication| client_id.is_empty() || known.client_id() == client_id;
        let gone = || {
            let text = format!("the client that got the tokens at {} is gone", server.issuer);
            OauthError::InvalidGrant(text)
        };
        client.filter(is_same).ok_or_else(gone)
    }

    /// Returns the configured client, the one of a metadata document, or the registered one.
    async fn known_client(
        &self,
        server: &DiscoveredServer,
    ) -> Result<Option<ClientAuthentication>, OauthError> {
        if let Some(id) = &self.auth.client_id {
            self.bind(&server.issuer, id).await?;
            let credential = match self.auth.has_own_key() {
                true => self.keys.current().await?,
                false => configured(self.auth, server)?,
            };
            return Ok(Some(ClientAuthentication::new(id, credential)));
        }
        if let Some(id) = self.document(server) {
            let credential = match self.auth.has_own_key() {
                true => self.keys.current().await?,
                false => ClientCredential::None,
            };
            return Ok(Some(ClientAuthentication::new(&id, credential)));
        }
        match self.registration(server).await? {
            Some(client) => self.registered(&client).await.map(Some),
            None => Ok(None),
        }
    }

    async fn registration(
        &self,
        server: &DiscoveredServer,
    ) -> Result<Option<StoredClient>, OauthError> {
        self.vault.secret(&self.registration_key(server)).await
    }

    async fn registered(&self, client: &StoredClient) -> Result<ClientAuthentication, OauthError> {
        let secret = || Secret::new(client.client_secret.as_deref().unwrap_or_default());
        let credential = match client.method.as_str() {
            "client_secret_basic" => ClientCredential::Basic(secret()),
            "client_secret_post" => ClientCredential::Post(secret()),
            PRIVATE_KEY_JWT => self.keys.current().await?,
            _ => ClientCredential::None,
        };
        Ok(ClientAuthentication::new(&client.client_id, credential))
    }

    /// Sends a token request of this client. If the server has lost the registration of the
    /// broker, the next request makes another one. No grant of the old one is valid then.
    pub(super) async fn token(
        &self,
        server: &DiscoveredServer,
        client: &ClientAuthentication,
        request: Request<Full<Bytes>>,
    ) -> Result<AccessToken, OauthError> {
        match request_token(self.fetcher, request).await {
            Err(OauthError::InvalidClient(text)) if self.is_registration(server, client) => {
                let refused = |known: &StoredClient| known.client_id == client.client_id();
                self.vault.remove_secret(&self.registration_key(server), refused).await?;
                Err(OauthError::InvalidGrant(text))
            }
            Err(OauthError::InvalidClient(text)) => Err(OauthError::Refused(text)),
            answered => answered,
        }
    }

    /// Chooses the redirect URI of a new authorization request. Clients share one only at servers
    /// that identify themselves in each answer (RFC 9207). The answer of another server then counts
    /// for none of them (RFC 9700, 4.4).
    pub(super) fn choose_redirect_uri(&mut self, server: &DiscoveredServer) {
        let GrantKey { tenant, backend, .. } = self.key;
        let own = if self.auth.client_id.is_some() {
            format!("{tenant}/{backend}")
        } else if server.flag(SENDS_ISSUER) {
            return;
        } else {
            digest_of(&format!("callback {tenant} {backend} {}", server.issuer))
        };
        self.redirect_uri = format!("{}{CALLBACK_PATH}/{own}", self.base);
    }

    /// Returns whether the broker has registered this client itself.
    fn is_registration(&self, server: &DiscoveredServer, client: &ClientAuthentication) -> bool {
        self.auth.client_id.is_none()
            && self.document(server).as_deref() != Some(client.client_id())
    }

    /// Returns the key of the registration at a server. A client of an earlier address is kept,
    /// because only it can renew its tokens.
    fn registration_key(&self, server: &DiscoveredServer) -> SecretKey {
        let kind = if self.auth.has_own_key() { " keys" } else { "" };
        self.vault_key(format!(
            "{} {} {}{kind}",
            self.key.backend, server.issuer, self.redirect_uri
        ))
    }

    fn vault_key(&self, name: String) -> SecretKey {
        SecretKey { kind: SecretKind::Client, tenant: self.key.tenant.clone(), name }
    }

    /// Keeps a configured credential with the first issuer that got it.
    async fn bind(&self, issuer: &str, client_id: &str) -> Result<(), OauthError> {
        if self.auth.issuer.is_some() {
            return Ok(()); // discovery holds to it
        }
        let vault_key = self.vault_key(format!("{} configured {client_id}", self.key.backend));
        let bound = match self.vault.secret::<String>(&vault_key).await? {
            Some(bound) => bound,
            None => self.vault.add_secret(&vault_key, issuer.to_owned(), REGISTRATION_LIFE).await?,
        };
        if bound == issuer {
            return Ok(());
        }
        Err(OauthError::Refused(format!(
            "the backend names the authorization server {issuer} now, but the credential belongs to {bound}: change auth"
        )))
    }

    /// Returns the address of the client ID metadata document, if the server accepts one. Backends
    /// share the document and its redirect URI, so the server must identify itself in each answer.
    fn document(&self, server: &DiscoveredServer) -> Option<String> {
        self.metadata_url().filter(|_| server.flag(ACCEPTS_DOCUMENTS) && server.flag(SENDS_ISSUER))
    }

    /// Returns the address of the client ID metadata document, which must be an https one.
    fn metadata_url(&self) -> Option<String> {
        let own = metadata_address(&self.base, self.keys_of());
        let url = self.auth.client_metadata_url.clone().unwrap_or(own);
        let uri = parse_http_url(&url).ok()?;
        (uri.scheme_str() == Some("https")).then_some(url)
    }

    /// Returns the tenant with whose keys the client signs, if it does.
    fn keys_of(&self) -> Option<&TenantId> {
        self.auth.has_own_key().then_some(&self.key.tenant)
    }

    /// Registers the broker. Returns the client and its life.
    async fn register(
        &self,
        server: &DiscoveredServer,
    ) -> Result<(StoredClient, Duration), OauthError> {
        let endpoint = self.registration_endpoint(server)?;
        let wanted = self.wanted_method(server);
        let request = self.registration_request(&endpoint, wanted);
        let (status, answer) = self.fetcher.send(request).await?;
        let refused =
            || OauthError::Refused(format!("{endpoint} answers {status} to a registration"));
        let is_made = [StatusCode::CREATED, StatusCode::OK].contains(&status);
        let answer = object(&answer).filter(|_| is_made).ok_or_else(refused)?;
        let client_secret =
            text_member(&answer, "client_secret").filter(|secret| !secret.is_empty());
        let method = registered_method(&answer, client_secret.is_some(), wanted, &endpoint)?;
        // A client without a secret stays, and so does one whose secret ends at 0 (RFC 7591, 3.2.1).
        let ends_at = client_secret.as_ref().and(answer.get("client_secret_expires_at"));
        let ends_at = ends_at.and_then(Value::as_i64).filter(|seconds| *seconds != 0);
        let life = ends_at.map_or(REGISTRATION_LIFE, remaining);
        let client_id = text_member(&answer, "client_id").ok_or_else(refused)?;
        let secret_bytes = client_secret.as_ref().map_or(0, String::len);
        if client_id.len() + secret_bytes > REGISTRATION_BYTES_MAX {
            return Err(OauthError::Refused(format!(
                "{endpoint} returned a client of more than {REGISTRATION_BYTES_MAX} bytes"
            )));
        }
        let client =
            StoredClient { issuer: server.issuer.clone(), client_id, client_secret, method };
        Ok((client, life))
    }

    fn registration_endpoint(&self, server: &DiscoveredServer) -> Result<Uri, OauthError> {
        let endpoint =
            server.text("registration_endpoint").and_then(|url| self.fetcher.permitted(url));
        endpoint.ok_or_else(|| {
            let why = match server.flag(ACCEPTS_DOCUMENTS) && !server.flag(SENDS_ISSUER) {
                true => " and does not announce that its answers name it (RFC 9207)",
                false => "",
            };
            OauthError::Refused(format!(
                "{} registers no clients{why}: register the broker there and set auth.client_id",
                server.issuer
            ))
        })
    }

    /// Returns the authentication method that the broker requests for the client.
    fn wanted_method(&self, server: &DiscoveredServer) -> &'static str {
        let supported = server.texts("token_endpoint_auth_methods_supported");
        let methods = ["client_secret_basic", "client_secret_post", "none"];
        match self.keys_of() {
            Some(_) => PRIVATE_KEY_JWT,
            None => methods
                .into_iter()
                .find(|method| supported.iter().any(|known| known == method))
                .unwrap_or("client_secret_basic"),
        }
    }

    fn registration_request(&self, endpoint: &Uri, wanted: &str) -> Request<Full<Bytes>> {
        let mut body = client_metadata(&self.base, self.keys_of());
        body["token_endpoint_auth_method"] = json!(wanted);
        body["redirect_uris"] = json!([self.redirect_uri]);
        if let Some(members) = body.as_object_mut() {
            members.remove("client_id");
        }
        let mut request = Request::new(Full::new(Bytes::from(body.to_string())));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = endpoint.clone();
        let json = HeaderValue::from_static("application/json");
        request.headers_mut().insert(CONTENT_TYPE, json.clone());
        request.headers_mut().insert(ACCEPT, json);
        request
    }
}

fn text_member(answer: &Map<String, Value>, name: &str) -> Option<String> {
    answer.get(name).and_then(Value::as_str).map(str::to_owned)
}

/// Returns the method by which a registered client authenticates. Refuses one for which the client
/// lacks its key or secret.
fn registered_method(
    answer: &Map<String, Value>,
    has_secret: bool,
    wanted: &str,
    endpoint: &Uri,
) -> Result<String, OauthError> {
    let is_named = has_secret || wanted == PRIVATE_KEY_JWT;
    let method = text_member(answer, "token_endpoint_auth_method")
        .unwrap_or_else(|| if is_named { wanted } else { "none" }.to_owned());
    if wanted == PRIVATE_KEY_JWT && method != PRIVATE_KEY_JWT {
        return Err(OauthError::Refused(format!(
            "{endpoint} does not register clients with private_key_jwt"
        )));
    }
    if !has_secret && !["none", PRIVATE_KEY_JWT].contains(&method.as_str()) {
        return Err(OauthError::Refused(format!("{endpoint} returned no client_secret")));
    }
    Ok(method)
}

/// Returns the time until a moment, which is at most the life of a registration.
fn remaining(until_seconds: i64) -> Duration {
    let remaining = until_seconds.saturating_mul(1_000_000).saturating_sub(now_us());
    Duration::from_micros(u64::try_from(remaining).unwrap_or(0)).min(REGISTRATION_LIFE)
}

/// Returns the configured credential. Without a configured method, the one that the server takes.
fn configured(
    auth: &BackendAuth,
    server: &DiscoveredServer,
) -> Result<ClientCredential, OauthError> {
    let unusable = || OauthError::Refused("auth.client_key cannot be read".to_owned());
    if let Some(pem) = &auth.client_key {
        let key = ClientKey::from_pem(pem).ok_or_else(unusable)?;
        return Ok(ClientCredential::Key { key, key_id: auth.client_key_id.clone() });
    }
    let Some(secret) = auth.client_secret.as_deref().map(Secret::new) else {
        return Ok(ClientCredential::None);
    };
    Ok(secret_credential(secret, auth.token_endpoint_auth_method, server))
}

/// Returns the credential of a client with a secret.
pub(super) fn secret_credential(
    secret: Secret,
    method: Option<ClientAuthMethod>,
    server: &DiscoveredServer,
) -> ClientCredential {
    let supported = server.texts("token_endpoint_auth_methods_supported");
    let takes = |method: &str| supported.iter().any(|known| known == method);
    let post = match method {
        Some(method) => method == ClientAuthMethod::ClientSecretPost,
        None => takes("client_secret_post") && !takes("client_secret_basic"),
    };
    if post { ClientCredential::Post(secret) } else { ClientCredential::Basic(secret) }
}
