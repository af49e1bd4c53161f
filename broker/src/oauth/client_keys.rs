//! Keys that the broker makes for `private_key_jwt` (RFC 7523), and their publication as a key set
//! (RFC 7517).
//!
//! A key belongs to one tenant and one period. The key of the next period is published before it is
//! used, and the key of the last one is published after. So a server that caches the set has each
//! key in time, and nothing has to be done at a change of periods.
//!
//! Invariants:
//! - No tenant signs with the key of another one.
//! - All replicas use the same key: the first one that is stored counts.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use config::{
    ClientKey, Secret,
    spec::{BackendAuth, ClientAuthMethod},
};
use http::{Request, Uri};
use http_body_util::Full;
use parking_lot::Mutex;
use protocol::ids::TenantId;
use records::{SecretKey, SecretKind};
use rules::limits::oauth::{CLIENT_KEY_PERIOD, CLIENT_KEY_SET_AGE_MAX};
use serde_json::{Value, json};

use super::{fetch::OauthError, secret_text::digest_of, vault::Vault};
use crate::{
    auth::{ClientAuthentication, ClientCredential, now_us},
    persistence::Persistence,
};

/// Keys of all tenants.
#[derive(Debug)]
pub struct ClientKeys {
    vault: Vault,
    /// Key sets that were read a short time ago.
    published: Mutex<HashMap<TenantId, (Arc<Value>, Instant)>>,
}

impl ClientKeys {
    pub fn new(persistence: Arc<Persistence>) -> Self {
        Self { vault: Vault(persistence), published: Mutex::default() }
    }

    /// Returns the public keys of a tenant, which must exist.
    pub async fn key_set(&self, tenant: &TenantId) -> Result<Arc<Value>, OauthError> {
        let known = self.published.lock().get(tenant).cloned();
        if let Some((set, read_at)) = known
            && read_at.elapsed() < CLIENT_KEY_SET_AGE_MAX
        {
            return Ok(set);
        }
        let mut keys = Vec::new();
        for period in period() - 1..=period() + 1 {
            keys.extend(public_key(&self.key(tenant, period).await?).map(|(_, key)| key));
        }
        let set = Arc::new(json!({"keys": keys}));
        self.published.lock().insert(tenant.clone(), (set.clone(), Instant::now()));
        Ok(set)
    }

    /// Returns the key that a tenant signs with now.
    async fn current(&self, tenant: &TenantId) -> Result<ClientCredential, OauthError> {
        let key = self.key(tenant, period()).await?;
        let key_id = public_key(&key).map(|(id, _)| id);
        Ok(ClientCredential::Key { key, key_id })
    }

    /// Returns the key of a period, made if there is none.
    async fn key(&self, tenant: &TenantId, period: i64) -> Result<ClientKey, OauthError> {
        let unusable =
            || OauthError::Unavailable("the broker cannot create a client key".to_owned());
        let vault_key =
            SecretKey { kind: SecretKind::Key, tenant: tenant.clone(), name: period.to_string() };
        let pem = match self.vault.secret::<String>(&vault_key).await? {
            Some(pem) => pem,
            None => {
                let made = ClientKey::generate_pem().ok_or_else(unusable)?;
                self.vault.add_secret(&vault_key, made, CLIENT_KEY_PERIOD * 3).await?
            }
        };
        ClientKey::from_pem(&pem).ok_or_else(unusable)
    }
}

/// Returns the number of the present period.
fn period() -> i64 {
    let seconds = Duration::from_micros(u64::try_from(now_us()).unwrap_or_default()).as_secs();
    i64::try_from(seconds / CLIENT_KEY_PERIOD.as_secs()).unwrap_or_default()
}

/// Returns the id of a key, which is its thumbprint (RFC 7638), and its public part.
fn public_key(key: &ClientKey) -> Option<(String, Value)> {
    let (x, y) = key.public_point()?;
    let id = digest_of(&format!(r#"{{"crv":"P-256","kty":"EC","x":"{x}","y":"{y}"}}"#));
    let public = json!({
        "kty": "EC", "crv": "P-256", "x": x, "y": y, "kid": id, "alg": "ES256", "use": "sig",
    });
    Some((id, public))
}

/// Keys of one tenant.
#[derive(Debug, Clone)]
pub(super) struct TenantKeys {
    pub(super) keys: Arc<ClientKeys>,
    pub(super) tenant: TenantId,
}

impl TenantKeys {
    pub(super) async fn current(&self) -> Result<ClientCredential, OauthError> {
        self.keys.current(&self.tenant).await
    }
}

/// A client that an operator registered: with a credential of the settings, or with the key of the
/// tenant.
#[derive(Debug, Clone)]
pub(super) struct RegisteredClient {
    client_id: String,
    /// `None`: the key of the tenant.
    credential: Option<ClientCredential>,
    keys: TenantKeys,
}

impl RegisteredClient {
    pub(super) fn of(auth: &BackendAuth, keys: TenantKeys) -> Option<Self> {
        let secret = |text: &String| Secret::new(text.as_str());
        let credential = match (&auth.client_secret, &auth.client_key) {
            (Some(text), _) => Some(match auth.token_endpoint_auth_method {
                Some(ClientAuthMethod::ClientSecretPost) => ClientCredential::Post(secret(text)),
                _ => ClientCredential::Basic(secret(text)),
            }),
            (None, Some(pem)) => Some(ClientCredential::Key {
                key: ClientKey::from_pem(pem)?,
                key_id: auth.client_key_id.clone(),
            }),
            (None, None) if auth.has_own_key() => None,
            (None, None) => return None,
        };
        Some(Self { client_id: auth.client_id.clone()?, credential, keys })
    }

    /// Prepares a request to a token endpoint.
    pub(super) async fn post(
        &self,
        endpoint: &Uri,
        issuer: &str,
        form: Vec<(&str, String)>,
    ) -> Result<Request<Full<Bytes>>, OauthError> {
        signed(&self.authentication().await?, endpoint, issuer, form)
    }

    /// Returns an assertion that names the client, for a client with a key.
    pub(super) async fn assertion(&self, issuer: &str) -> Result<String, OauthError> {
        let unsigned =
            || OauthError::Unavailable("the broker cannot sign a client assertion".to_owned());
        self.authentication().await?.own_assertion(issuer).ok_or_else(unsigned)
    }

    async fn authentication(&self) -> Result<ClientAuthentication, OauthError> {
        let credential = match &self.credential {
            Some(credential) => credential.clone(),
            None => self.keys.current().await?,
        };
        Ok(ClientAuthentication::new(&self.client_id, credential))
    }
}

/// Prepares a request with the authentication of a client.
pub(super) fn signed(
    client: &ClientAuthentication,
    endpoint: &Uri,
    issuer: &str,
    form: Vec<(&str, String)>,
) -> Result<Request<Full<Bytes>>, OauthError> {
    client.post(endpoint, issuer, form).ok_or_else(|| {
        OauthError::Unavailable(
            "the broker cannot sign a client assertion for the request".to_owned(),
        )
    })
}
