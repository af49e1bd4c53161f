//! Connections for operators, and one-time links that sign a person in at the connect page.

use std::sync::Arc;

use protocol::ids::{PrincipalId, TenantId};
use records::{SecretKey, SecretKind, StoredGrant};
use rules::limits::oauth::CONNECT_LINK_LIFE;
use serde::{Deserialize, Serialize};

use super::{
    fetch::OauthError,
    secret_text::{digest_of, random_text},
    vault::Vault,
};
use crate::persistence::Persistence;

/// What a one-time link signs in to.
#[derive(Debug, Serialize, Deserialize)]
pub struct ConnectLink {
    pub principal: String,
    pub backend: String,
    /// Time of the store's clock. A revocation of the principal since then refuses the login too.
    #[serde(default)]
    pub created_at_us: i64,
}

/// Connections of all backends. Clones share the store.
#[derive(Debug, Clone)]
pub struct Connections(Vault);

impl Connections {
    pub fn new(persistence: Arc<Persistence>) -> Self {
        Self(Vault(persistence))
    }

    /// Returns the connections of a tenant, by backend and principal.
    pub async fn list(&self, tenant: &TenantId) -> Result<Vec<StoredGrant>, OauthError> {
        self.0.grants_of(tenant).await
    }

    /// Returns the time of the clock by which the store stamps revocations, in microseconds since
    /// 1970.
    pub async fn clock_us(&self) -> Result<i64, OauthError> {
        self.0.clock_us().await
    }

    /// Makes a link for a principal. Returns the secret of its address.
    pub async fn make_link(
        &self,
        tenant: &TenantId,
        principal: &PrincipalId,
        backend: &str,
    ) -> Result<String, OauthError> {
        let (seal, random) = (&self.0.0.seal, random_text());
        let sealed = seal.seal_for_a_while(&seal_context(tenant), &random, CONNECT_LINK_LIFE);
        let unsealed = |_| OauthError::Unavailable("the broker cannot seal a link".to_owned());
        let secret = format!("{tenant}.{}", sealed.map_err(unsealed)?);
        let link = ConnectLink {
            principal: principal.as_str().to_owned(),
            backend: backend.to_owned(),
            created_at_us: self.clock_us().await?,
        };
        self.0.put_secret(&vault_key(tenant, &secret), &link, CONNECT_LINK_LIFE).await?;
        Ok(secret)
    }

    /// Returns whether the broker made this secret and its life is not over, without a look at the
    /// store. The link may be used up. A link of an earlier build is unknown here.
    pub fn is_own_link(&self, secret: &str) -> bool {
        let parts = secret.split_once('.');
        parts.is_some_and(|(tenant, sealed)| {
            let tenant = TenantId::parse(tenant).ok();
            let opened = tenant.and_then(|tenant| {
                self.0.0.seal.open_unexpired::<String>(&seal_context(&tenant), sealed)
            });
            opened.is_some()
        })
    }

    /// Uses a link up. `None`: it is unknown, has expired or was used already.
    pub async fn take_link(
        &self,
        secret: &str,
    ) -> Result<Option<(TenantId, ConnectLink)>, OauthError> {
        let tenant = secret.split_once('.').and_then(|(tenant, _)| TenantId::parse(tenant).ok());
        let Some(tenant) = tenant else { return Ok(None) };
        let key = vault_key(&tenant, secret);
        // A stranger can send any text, and a write takes the turn of others.
        if self.0.secret::<ConnectLink>(&key).await?.is_none() {
            return Ok(None);
        }
        let link = self.0.take_secret(&key).await?;
        Ok(link.map(|link| (tenant, link)))
    }
}

fn seal_context(tenant: &TenantId) -> String {
    format!("connect link/{tenant}")
}

fn vault_key(tenant: &TenantId, secret: &str) -> SecretKey {
    SecretKey { kind: SecretKind::Link, tenant: tenant.clone(), name: digest_of(secret) }
}
