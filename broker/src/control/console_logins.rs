//! Logins of the console that ended, and what ends them at their issuers.
//!
//! A login is in its cookie, which every replica opens. Its end is therefore stored, under a digest of
//! its name, for as long as any replica would accept the cookie.

use std::time::Duration;

use protocol::ids::TenantId;
use records::{SecretKey, SecretKind};
use rules::limits::console::CONSOLE_LOGIN_LIFE;

use super::{Control, ControlError};
use crate::oauth::{IssuerLogin, digest_of};

/// Seal context: text that the cipher authenticates.
const SEAL_CONTEXT: &str = "console login at an issuer, for its end";

impl Control {
    /// Ends a login on every replica. `life`: time for which any replica would accept its cookie.
    /// Returns the address at which the browser ends its session at the issuer.
    pub async fn end_login(
        &self,
        login: &str,
        life: Duration,
    ) -> Result<Option<String>, ControlError> {
        let store = self.store();
        let ended = key(SecretKind::EndedLogin, login);
        self.query_store("put_secret", store.put_secret(&ended, &[], life)).await?;
        let at_issuer = key(SecretKind::IssuerLogin, login);
        let sealed = self.query_store("take_secret", store.take_secret(&at_issuer)).await?;
        let opened =
            sealed.and_then(|sealed| self.persistence().seal.open(SEAL_CONTEXT, &sealed).ok());
        let login = opened.and_then(|text| serde_json::from_slice::<IssuerLogin>(&text).ok());
        match login {
            Some(login) => Ok(self.broker.operator_logins().logout_address(&login).await),
            None => Ok(None),
        }
    }

    /// Returns whether the operator ended a login. While the database does not answer, no login
    /// counts as ended, because operators need the console then.
    pub async fn is_login_ended(&self, login: &str) -> bool {
        let ended = key(SecretKind::EndedLogin, login);
        let found = self.query_store("get_secret", self.store().secret(&ended)).await;
        found.unwrap_or_default().is_some()
    }

    /// Stores what ends a login at its issuer. Without it, the login ends at the broker only.
    pub async fn record_issuer_login(&self, login: &str, at_issuer: &IssuerLogin) {
        let text = serde_json::to_vec(at_issuer).expect("a login is plain texts");
        let Ok(sealed) = self.persistence().seal.seal(SEAL_CONTEXT, &text) else { return };
        let key = key(SecretKind::IssuerLogin, login);
        let put = self.store().put_secret(&key, &sealed, CONSOLE_LOGIN_LIFE);
        if let Err(error) = self.query_store("put_secret", put).await {
            tracing::warn!(%error, "a logout will not end this login at its issuer");
        }
    }
}

fn key(kind: SecretKind, login: &str) -> SecretKey {
    let tenant = TenantId::default_tenant();
    SecretKey { kind, tenant, name: digest_of(login) }
}
