//! Access tokens with which callers came, for exchanges at authorization servers of backends. Only
//! tokens of issuers with `exchange: true` are noted.
//!
//! A token is sealed into the database too: another replica may carry out the call, and a task may
//! outlive the request. Tasks and sessions hold none.
//!
//! Invariants:
//! - Every look-up takes a principal. Only the link of the catalog uses the token of any caller.
//! - A token goes to a token endpoint only, never to a backend.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use protocol::ids::{PrincipalId, TenantId};
use records::{SecretKey, SecretKind};
use rules::limits::oauth::{GRANT_CACHED_MAX, GRANT_POLL_INTERVAL, SUBJECT_WAIT_MAX};
use serde::{Deserialize, Serialize};

use super::{
    fetch::OauthError,
    secret_text::digest_of,
    vault::{Vault, now_us},
};
use crate::{auth::ExchangeableToken, config::Secret, persistence::Persistence};

/// Tokens of the callers of all tenants.
#[derive(Debug)]
pub struct SubjectTokens {
    vault: Vault,
    seen: Mutex<HashMap<(TenantId, PrincipalId), SubjectToken>>,
    /// The last token of a principal that an authorization server did not accept.
    refused: Mutex<HashMap<(TenantId, PrincipalId), Secret>>,
}

/// A token that can be exchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SubjectToken {
    pub(super) text: Secret,
    pub(super) expires_at_us: i64,
}

/// A token as it is stored.
#[derive(Serialize, Deserialize)]
struct StoredSubject {
    text: String,
    expires_at_us: i64,
}

impl SubjectToken {
    fn is_live(&self) -> bool {
        self.expires_at_us > now_us()
    }
}

impl SubjectTokens {
    pub fn new(persistence: Arc<Persistence>) -> Self {
        Self { vault: Vault(persistence), seen: Mutex::default(), refused: Mutex::default() }
    }

    /// Returns whether a token of the principal is known that lives as long.
    pub fn has_token(
        &self,
        tenant: &TenantId,
        principal: &PrincipalId,
        token: &ExchangeableToken,
    ) -> bool {
        let of = (tenant.clone(), principal.clone());
        let seen = self.seen.lock();
        seen.get(&of).is_some_and(|known| known.expires_at_us >= token.expires_at_us)
    }

    /// Notes the token of a caller, unless a known one of the principal lives longer. Returns true if
    /// it is the first one of the principal here. Must be called inside the runtime.
    pub fn record(
        self: &Arc<Self>,
        tenant: &TenantId,
        principal: &PrincipalId,
        token: &ExchangeableToken,
    ) -> bool {
        let of = (tenant.clone(), principal.clone());
        let subject = SubjectToken { text: token.text.clone(), expires_at_us: token.expires_at_us };
        let before = {
            let mut seen = self.seen.lock();
            if seen.get(&of).is_some_and(|known| known.expires_at_us >= subject.expires_at_us) {
                return false;
            }
            if seen.len() >= GRANT_CACHED_MAX {
                seen.retain(|_, known| known.is_live());
            }
            if seen.len() >= GRANT_CACHED_MAX {
                seen.clear(); // they are in the database too
            }
            seen.insert(of, subject.clone())
        };
        let (all, of) = (self.clone(), (tenant.clone(), principal.clone()));
        tokio::spawn(async move {
            if let Err(error) = all.keep(&of, subject).await {
                tracing::warn!(%error, "a token for exchanges cannot be stored");
            }
        });
        before.is_none_or(|before| !before.is_live())
    }

    /// Stores a token, unless the stored one lives longer: another replica may have seen that one.
    async fn keep(
        &self,
        of: &(TenantId, PrincipalId),
        subject: SubjectToken,
    ) -> Result<(), OauthError> {
        let vault_key = &vault_key(&of.0, &of.1);
        let known = self.vault.secret::<StoredSubject>(vault_key).await?;
        let is_refused = |text: &str| {
            self.refused.lock().get(of).is_some_and(|refused| refused.expose() == text)
        };
        if known.is_some_and(|known| {
            known.expires_at_us >= subject.expires_at_us && !is_refused(&known.text)
        }) {
            return Ok(());
        }
        let remaining = u64::try_from(subject.expires_at_us.saturating_sub(now_us())).unwrap_or(0);
        let stored = StoredSubject {
            text: subject.text.expose().to_owned(),
            expires_at_us: subject.expires_at_us,
        };
        self.vault.put_secret(vault_key, &stored, Duration::from_micros(remaining)).await
    }

    /// Returns the live token of a principal.
    pub(super) async fn of(
        &self,
        tenant: &TenantId,
        principal: &PrincipalId,
    ) -> Result<Option<SubjectToken>, OauthError> {
        let of = (tenant.clone(), principal.clone());
        let here = self.seen.lock().get(&of).filter(|known| known.is_live()).cloned();
        if here.is_some() {
            return Ok(here);
        }
        let stored = self.vault.secret::<StoredSubject>(&vault_key(tenant, principal)).await?;
        let subject = stored.map(|StoredSubject { text, expires_at_us }| SubjectToken {
            text: Secret::new(text.as_str()),
            expires_at_us,
        });
        Ok(subject.filter(SubjectToken::is_live))
    }

    /// Waits for a live token of a principal. One that another replica saw a moment ago may still be
    /// on its way to the database.
    pub(super) async fn arrival(&self, tenant: &TenantId, principal: &PrincipalId) {
        let until = Instant::now() + SUBJECT_WAIT_MAX;
        while let Ok(None) = self.of(tenant, principal).await
            && Instant::now() < until
        {
            tokio::time::sleep(GRANT_POLL_INTERVAL).await;
        }
    }

    /// Forgets a token that an authorization server does not accept. The next token of the principal
    /// replaces it in the database. Until then it stays there, because the server of another backend
    /// may accept it.
    pub(super) fn forget(&self, tenant: &TenantId, principal: &PrincipalId, text: &str) {
        let of = (tenant.clone(), principal.clone());
        let mut seen = self.seen.lock();
        if seen.get(&of).is_some_and(|known| known.text.expose() == text) {
            seen.remove(&of);
        }
        drop(seen);
        let mut refused = self.refused.lock();
        if refused.len() >= GRANT_CACHED_MAX {
            refused.clear(); // a lost entry only delays the replacement of a stored token
        }
        refused.insert(of, Secret::new(text));
    }

    /// Returns a principal of the tenant with a live token.
    pub(super) fn any_principal(&self, tenant: &TenantId) -> Option<PrincipalId> {
        let seen = self.seen.lock();
        let mut live = seen.iter().filter(|((of, _), known)| of == tenant && known.is_live());
        live.next().map(|((_, principal), _)| principal.clone())
    }
}

fn vault_key(tenant: &TenantId, principal: &PrincipalId) -> SecretKey {
    let name = digest_of(principal.as_str());
    SecretKey { kind: SecretKind::Subject, tenant: tenant.clone(), name }
}

#[cfg(test)]
mod tests {
    use records::NodeName;

    use super::*;
    use crate::{auth::Keys, metrics::Metrics, persistence::Stores};

    #[tokio::test]
    async fn a_stored_token_is_replaced_by_one_that_lives_longer_or_after_a_refusal() {
        let persistence = Persistence::new(
            Stores::in_memory().await,
            NodeName::new("test/0"),
            Keys::from_root(b"root").seal,
            Arc::new(Metrics::new(false)),
        );
        let of = (TenantId::parse("acme").unwrap(), PrincipalId::new("https://issuer.example ann"));
        let now = now_us();
        let token = |text: &str, minutes: i64| SubjectToken {
            text: Secret::new(text),
            expires_at_us: now + minutes * 60_000_000,
        };
        let stored = async || {
            let other_replica = SubjectTokens::new(persistence.clone());
            other_replica.of(&of.0, &of.1).await.unwrap().unwrap().text.expose().to_owned()
        };
        SubjectTokens::new(persistence.clone()).keep(&of, token("long", 60)).await.unwrap();
        let tokens = SubjectTokens::new(persistence.clone());
        tokens.keep(&of, token("short", 5)).await.unwrap();
        assert_eq!(stored().await, "long");
        tokens.forget(&of.0, &of.1, "long");
        tokens.keep(&of, token("short", 5)).await.unwrap();
        assert_eq!(stored().await, "short");
        tokens.keep(&of, token("longer", 90)).await.unwrap();
        assert_eq!(stored().await, "longer");
    }
}
