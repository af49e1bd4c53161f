//! Encodes and seals grants, registrations and one-time secrets for the store. Each seal is for one
//! row.
//!
//! Invariant: a grant opens for its tenant, backend, principal and issuer only.

use std::{sync::Arc, time::Duration};

use protocol::ids::{BackendId, TenantId};
use records::{GrantError, GrantKey, GrantRecord, GrantState, SecretKey, StoredGrant};
use rules::limits::oauth::{GRANTS_SOUGHT_AT_ONCE, GRANTS_SOUGHT_MAX};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::fetch::OauthError;
use crate::persistence::{Persistence, StoreError};

/// Grants and secrets of the broker. Clones share the store.
#[derive(Debug, Clone)]
pub(super) struct Vault(pub(super) Arc<Persistence>);

/// What a grant holds.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Grant {
    pub(super) access_token: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) refresh_token: Option<String>,
    /// The assertion of an identity provider about the principal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) id_token: Option<String>,
    /// Time from which a new access token is sought, in microseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) renew_at_us: Option<i64>,
    /// Scopes of the tokens.
    pub(super) scopes: Vec<String>,
    /// Scopes to request when the principal connects again.
    pub(super) wanted: Vec<String>,
    /// True if the backend demanded further scopes since the principal connected.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) lacks_scopes: bool,
    pub(super) resource: String,
    /// Redirect URI of the client that got the tokens. Another client cannot renew them.
    #[serde(default)]
    pub(super) redirect_uri: String,
    /// Client that got the tokens. Empty: an earlier version stored the grant.
    #[serde(default)]
    pub(super) client_id: String,
    /// URL of the backend that the tokens are for.
    pub(super) url: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) revocation_endpoint: Option<String>,
}

impl std::fmt::Debug for Grant {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Grant {{ url: {:?}, scopes: {:?} }}", self.url, self.scopes)
    }
}

/// What a row shows of its grant without being opened.
#[derive(Debug, Clone, Copy)]
pub(super) struct GrantStatus {
    state: GrantState,
    expires_at_us: Option<i64>,
    last_error: Option<GrantError>,
}

impl GrantStatus {
    /// Returns the status of a grant with a new token.
    pub(super) fn connected(expires_at_us: Option<i64>) -> Self {
        Self { state: GrantState::Connected, expires_at_us, last_error: None }
    }

    /// Returns the status of a grant that its principal must connect again.
    pub(super) fn lost(reason: GrantError) -> Self {
        Self { state: GrantState::Reconnect, expires_at_us: None, last_error: Some(reason) }
    }

    /// Returns the status of a stored grant.
    pub(super) fn of(record: &GrantRecord) -> Self {
        let GrantRecord { state, expires_at_us, last_error, .. } = *record;
        Self { state, expires_at_us, last_error }
    }
}

/// A grant with its row.
#[derive(Debug, Clone)]
pub(super) struct OpenGrant {
    pub(super) stored: StoredGrant,
    pub(super) grant: Grant,
}

fn away(error: StoreError) -> OauthError {
    OauthError::StoreUnavailable(format!("the database does not answer: {error}"))
}

/// Returns the name of a grant's row, without which it does not open.
pub fn grant_seal_context(key: &GrantKey, issuer: &str) -> String {
    let GrantKey { tenant, backend, principal } = key;
    format!("upstream grant\0{tenant}\0{backend}\0{}\0{issuer}", principal.as_str())
}

/// Returns the name of a secret's row, without which it does not open.
pub fn secret_seal_context(key: &SecretKey) -> String {
    format!("upstream {}\0{}\0{}", key.kind.name(), key.tenant, key.name)
}

impl Vault {
    /// Returns the grant of a principal. One that does not open counts as absent.
    pub(super) async fn grant(&self, key: &GrantKey) -> Result<Option<OpenGrant>, OauthError> {
        let found = self.0.run("get_grant", self.0.store.grant(key)).await.map_err(away)?;
        Ok(found.and_then(|stored| self.opened(stored)))
    }

    /// Returns the grant of the principal that connected first, among the grants of a backend that
    /// can be opened and are for this URL.
    pub(super) async fn first(
        &self,
        tenant: &TenantId,
        backend: &BackendId,
        url: &str,
    ) -> Result<Option<OpenGrant>, OauthError> {
        for skip in (0..GRANTS_SOUGHT_MAX).step_by(GRANTS_SOUGHT_AT_ONCE as usize) {
            let page = self.0.store.oldest_grants(tenant, backend, skip, GRANTS_SOUGHT_AT_ONCE);
            let page = self.0.run("list_oldest_grants", page).await.map_err(away)?;
            if page.is_empty() {
                break;
            }
            let mut opened = page.into_iter().filter_map(|stored| self.opened(stored));
            if let Some(first) = opened.find(|open| open.grant.url == url) {
                return Ok(Some(first));
            }
        }
        Ok(None)
    }

    /// Opens the grant of a row.
    pub(super) fn opened(&self, stored: StoredGrant) -> Option<OpenGrant> {
        let record = &stored.record;
        let text = self
            .0
            .seal
            .open(&grant_seal_context(&record.key, &record.issuer), &record.sealed)
            .ok()?;
        let grant = serde_json::from_slice(&text).ok()?;
        Some(OpenGrant { stored, grant })
    }

    /// Writes a grant, over the expected version only if there is one. Returns the new version.
    pub(super) async fn put(
        &self,
        key: &GrantKey,
        issuer: &str,
        grant: &Grant,
        GrantStatus { state, expires_at_us, last_error }: GrantStatus,
        expected: Option<i64>,
    ) -> Result<Option<i64>, OauthError> {
        let text = serde_json::to_vec(grant).unwrap_or_default();
        let unsealed = |_| OauthError::Unavailable("the broker cannot encrypt a grant".to_owned());
        let record = GrantRecord {
            key: key.clone(),
            issuer: issuer.to_owned(),
            sealed: self.0.seal.seal(&grant_seal_context(key, issuer), &text).map_err(unsealed)?,
            state,
            expires_at_us,
            last_error,
        };
        let put = self.0.store.put_grant(&record, expected);
        self.0.run("put_grant", put).await.map_err(away)
    }

    /// Returns whether other processes may use the same grants.
    pub(super) fn is_shared(&self) -> bool {
        self.0.is_shared()
    }

    pub(super) async fn lease(
        &self,
        key: &GrantKey,
        version: i64,
        time: Duration,
    ) -> Result<bool, OauthError> {
        let lease = self.0.store.lease_grant(key, version, time);
        self.0.run("lease_grant", lease).await.map_err(away)
    }

    /// Notes why the renewal of this version failed, for operators, and shortens the lease of this
    /// process. An error of the store is only in the log.
    pub(super) async fn record_error(
        &self,
        key: &GrantKey,
        version: i64,
        error: GrantError,
        lease_ends_in: Option<Duration>,
    ) {
        let update = self.0.store.record_grant_error(key, version, error, lease_ends_in);
        if let Err(error) = self.0.run("record_grant_error", update).await {
            let GrantKey { tenant, backend, .. } = key;
            tracing::debug!(%tenant, %backend, %error, "the error of a grant could not be stored");
        }
    }

    /// Removes and returns the row of a grant.
    pub(super) async fn take(&self, key: &GrantKey) -> Result<Option<StoredGrant>, OauthError> {
        self.0.run("remove_grant", self.0.store.remove_grant(key)).await.map_err(away)
    }

    /// Returns the time of the clock by which the store stamps rows, in microseconds since 1970.
    pub(super) async fn clock_us(&self) -> Result<i64, OauthError> {
        self.0.run("read_clock", self.0.store.clock_us()).await.map_err(away)
    }

    pub(super) async fn grants_of(
        &self,
        tenant: &TenantId,
    ) -> Result<Vec<StoredGrant>, OauthError> {
        self.0.run("list_grants", self.0.store.grants_of(tenant)).await.map_err(away)
    }

    pub(super) async fn put_secret(
        &self,
        key: &SecretKey,
        value: &impl Serialize,
        life: Duration,
    ) -> Result<(), OauthError> {
        let sealed = self.sealed_secret(key, value)?;
        let put = self.0.store.put_secret(key, &sealed, life);
        self.0.run("put_secret", put).await.map_err(away)
    }

    /// Writes a secret unless there is one. Returns the one that is there then: another process may
    /// have been first.
    pub(super) async fn add_secret<T: Serialize + DeserializeOwned>(
        &self,
        key: &SecretKey,
        value: T,
        life: Duration,
    ) -> Result<T, OauthError> {
        let sealed = self.sealed_secret(key, &value)?;
        let add = self.0.store.add_secret(key, &sealed, life);
        self.0.run("add_secret", add).await.map_err(away)?;
        if let Some(first) = self.secret(key).await? {
            return Ok(first);
        }
        // The row belongs to another key, or the life of the secret is over already.
        self.put_secret(key, &value, life).await?;
        Ok(value)
    }

    fn sealed_secret(
        &self,
        key: &SecretKey,
        value: &impl Serialize,
    ) -> Result<Vec<u8>, OauthError> {
        let text = serde_json::to_vec(value).unwrap_or_default();
        let unsealed = |_| OauthError::Unavailable("the broker cannot encrypt a secret".to_owned());
        self.0.seal.seal(&secret_seal_context(key), &text).map_err(unsealed)
    }

    pub(super) async fn secret<T: DeserializeOwned>(
        &self,
        key: &SecretKey,
    ) -> Result<Option<T>, OauthError> {
        let found = self.0.run("get_secret", self.0.store.secret(key)).await.map_err(away)?;
        Ok(found.and_then(|sealed| self.opened_secret(key, &sealed)))
    }

    /// Takes a secret, which then exists no more.
    pub(super) async fn take_secret<T: DeserializeOwned>(
        &self,
        key: &SecretKey,
    ) -> Result<Option<T>, OauthError> {
        let found = self.0.run("take_secret", self.0.store.take_secret(key)).await.map_err(away)?;
        Ok(found.and_then(|sealed| self.opened_secret(key, &sealed)))
    }

    /// Removes a secret if it is the meant one.
    pub(super) async fn remove_secret<T: DeserializeOwned>(
        &self,
        key: &SecretKey,
        is_meant: impl FnOnce(&T) -> bool + Send,
    ) -> Result<(), OauthError> {
        let found = self.0.run("get_secret", self.0.store.secret(key)).await.map_err(away)?;
        let Some(sealed) = found else { return Ok(()) };
        if !self.opened_secret(key, &sealed).as_ref().is_some_and(is_meant) {
            return Ok(());
        }
        let remove = self.0.store.remove_secret(key, &sealed);
        self.0.run("remove_secret", remove).await.map_err(away)
    }

    fn opened_secret<T: DeserializeOwned>(&self, key: &SecretKey, sealed: &[u8]) -> Option<T> {
        let text = self.0.seal.open(&secret_seal_context(key), sealed).ok()?;
        serde_json::from_slice(&text).ok()
    }
}
