//! Access tokens with which callers came, for exchanges at authorization servers of backends. Only
//! tokens whose issuer permits exchanges are noted.
//!
//! For each principal, the broker uses the token of its latest request. A token is sealed into the
//! database too ([`SubjectRows`]): another replica may carry out the call, and a task may outlive
//! the request. Tasks and requests between replicas hold only the digest.
//!
//! Invariants:
//! - Every look-up takes a principal. Only the link of the catalog uses the token of any caller.
//! - A token goes to a token endpoint of an issuer that its own issuer permits, never to a backend.
//! - A stored token is verified again before use. A revoked token is not used.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock, Weak},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use protocol::ids::{PrincipalId, TenantId};
use rules::limits::{
    TASK_RUN_MAX,
    oauth::{GRANT_CACHED_MAX, GRANT_POLL_INTERVAL, SUBJECT_WAIT_MAX},
};
use serde::{Deserialize, Serialize};

use super::{
    fetch::OauthError,
    subject_rows::{RowWrite, SubjectRows, row_of},
    vault::Vault,
};
use crate::{
    auth::{ExchangeableToken, SubjectDigest, TokenVerifier, now_us},
    persistence::Persistence,
};

type TokenOwner = (TenantId, PrincipalId);

/// Tokens of the callers of all tenants.
#[derive(Debug)]
pub struct SubjectTokens {
    vault: Vault,
    verifier: OnceLock<Weak<TokenVerifier>>,
    /// The token of the latest request of each principal.
    current: Mutex<HashMap<TokenOwner, CurrentToken>>,
    rows: Arc<SubjectRows>,
}

#[derive(Debug, Clone)]
struct CurrentToken {
    digest: SubjectDigest,
    /// `None` until it is read from the database.
    token: Option<Arc<ExchangeableToken>>,
}

/// A token as it is stored.
#[derive(Serialize, Deserialize)]
struct StoredSubject {
    text: String,
}

impl CurrentToken {
    fn live(&self) -> Option<&Arc<ExchangeableToken>> {
        self.token.as_ref().filter(|token| token.is_live())
    }
}

impl SubjectTokens {
    pub fn new(persistence: Arc<Persistence>) -> Self {
        Self {
            vault: Vault(persistence),
            verifier: OnceLock::new(),
            current: Mutex::default(),
            rows: Arc::default(),
        }
    }

    /// Sets what verifies stored tokens. Until then, none is used.
    pub fn set_verifier(&self, verifier: &Arc<TokenVerifier>) {
        let _set_once = self.verifier.set(Arc::downgrade(verifier));
    }

    /// Returns whether the principal's token is this one.
    pub fn is_current(
        &self,
        tenant: &TenantId,
        principal: &PrincipalId,
        token: &ExchangeableToken,
    ) -> bool {
        let of = (tenant.clone(), principal.clone());
        let current = self.current.lock();
        current.get(&of).and_then(CurrentToken::live).is_some_and(|known| **known == *token)
    }

    /// Notes the token of a request. Returns true if the principal had no live one here. Must be
    /// called inside the runtime.
    pub fn record(
        self: &Arc<Self>,
        tenant: &TenantId,
        principal: &PrincipalId,
        token: &Arc<ExchangeableToken>,
    ) -> bool {
        let of = (tenant.clone(), principal.clone());
        let next = CurrentToken { digest: token.digest.clone(), token: Some(token.clone()) };
        let before = self.replace(of.clone(), next);
        if let Some(write) = self.rows.write(tenant, principal, &token.digest) {
            let (all, token) = (self.clone(), token.clone());
            tokio::spawn(async move {
                if let Err(error) = all.keep(write, &token).await {
                    tracing::warn!(tenant = %of.0, %error, "a token for exchanges cannot be stored");
                }
            });
        }
        before.is_none_or(|before| before.live().is_none())
    }

    /// Notes that a token which another replica verified is that of the latest request.
    pub fn select(&self, tenant: &TenantId, principal: &PrincipalId, digest: &SubjectDigest) {
        let of = (tenant.clone(), principal.clone());
        let is_known = self.current.lock().get(&of).is_some_and(|known| known.digest == *digest);
        if !is_known {
            self.replace(of, CurrentToken { digest: digest.clone(), token: None });
        }
    }

    /// Notes the token of a task, unless a request of its principal came with another one.
    pub fn select_for_task(
        &self,
        tenant: &TenantId,
        principal: &PrincipalId,
        digest: &SubjectDigest,
    ) {
        let of = (tenant.clone(), principal.clone());
        if !self.current.lock().contains_key(&of) {
            self.replace(of, CurrentToken { digest: digest.clone(), token: None });
        }
    }

    /// Returns the digest of the principal's token.
    pub fn digest_of(&self, tenant: &TenantId, principal: &PrincipalId) -> Option<SubjectDigest> {
        let current = self.current.lock();
        current.get(&(tenant.clone(), principal.clone())).map(|known| known.digest.clone())
    }

    fn replace(&self, of: TokenOwner, next: CurrentToken) -> Option<CurrentToken> {
        let mut current = self.current.lock();
        if !current.contains_key(&of) {
            make_room(&mut current, &of.0, GRANT_CACHED_MAX);
        }
        current.insert(of, next)
    }

    async fn keep(&self, write: RowWrite, token: &ExchangeableToken) -> Result<(), OauthError> {
        let remaining = u64::try_from(token.expires_at_us.saturating_sub(now_us())).unwrap_or(0);
        // No task runs longer, and each request with the token writes it again.
        let life = Duration::from_micros(remaining).min(TASK_RUN_MAX);
        let stored = StoredSubject { text: token.text.expose().to_owned() };
        self.vault.put_secret(&write.key, &stored, life).await?;
        write.done();
        Ok(())
    }

    /// Returns the live token of a principal.
    pub(super) async fn of(
        &self,
        tenant: &TenantId,
        principal: &PrincipalId,
    ) -> Result<Option<Arc<ExchangeableToken>>, OauthError> {
        let of = (tenant.clone(), principal.clone());
        let Some(known) = self.current.lock().get(&of).cloned() else { return Ok(None) };
        if let Some(live) = known.live() {
            return Ok(Some(live.clone()));
        }
        let row = row_of(tenant, principal, &known.digest);
        let stored = self.vault.secret::<StoredSubject>(&row).await?;
        let verifier = self.verifier.get().and_then(Weak::upgrade);
        let (Some(StoredSubject { text }), Some(verifier)) = (stored, verifier) else {
            return Ok(None);
        };
        let Some(proven) = verifier.verify_again(&text).await else { return Ok(None) };
        let is_owner = (&proven.caller.tenant, &proven.caller.principal) == (tenant, principal);
        // Another token of the principal may have replaced it.
        let is_meant = |token: &Arc<ExchangeableToken>| {
            is_owner && token.digest == known.digest && token.is_live()
        };
        let Some(token) = proven.exchangeable.filter(is_meant) else { return Ok(None) };
        if let Some(current) = self.current.lock().get_mut(&of)
            && current.digest == token.digest
        {
            current.token = Some(token.clone());
        }
        Ok(Some(token))
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

    /// Returns a principal of the tenant with a live token.
    pub(super) fn any_principal(&self, tenant: &TenantId) -> Option<PrincipalId> {
        let current = self.current.lock();
        let mut live =
            current.iter().filter(|((of, _), known)| of == tenant && known.live().is_some());
        live.next().map(|((_, principal), _)| principal.clone())
    }
}

/// Makes room for an entry of a tenant in a full map: removes the tokens that are not live any more,
/// then a sixteenth of the entries, those of the tenant before those of others.
fn make_room(current: &mut HashMap<TokenOwner, CurrentToken>, tenant: &TenantId, capacity: usize) {
    if current.len() < capacity {
        return;
    }
    current.retain(|_, known| known.token.as_ref().is_none_or(|token| token.is_live()));
    let room = (capacity / 16).max(1);
    let excess = (current.len() + room).saturating_sub(capacity);
    let (own, others): (Vec<_>, Vec<_>) = current.keys().partition(|(of, _)| of == tenant);
    let removed: Vec<TokenOwner> = own.into_iter().chain(others).take(excess).cloned().collect();
    for of in &removed {
        current.remove(of);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_map_loses_entries_of_the_tenant_that_needs_room_before_others() {
        let tenant = |name: &str| TenantId::parse(name).unwrap();
        let filled = || -> HashMap<TokenOwner, CurrentToken> {
            let of = |name: &str, at: usize| (tenant(name), PrincipalId::new(format!("user{at}")));
            let owners = (0..20).map(|at| of("acme", at)).chain((0..12).map(|at| of("zoo", at)));
            owners.map(|of| (of, CurrentToken { digest: "a".into(), token: None })).collect()
        };
        let counts = |map: &HashMap<TokenOwner, CurrentToken>| {
            let of = |name: &str| map.keys().filter(|(of, _)| of.as_str() == name).count();
            (of("acme"), of("zoo"))
        };
        for (needs_room, capacity, left) in
            [("acme", 33, (20, 12)), ("acme", 32, (18, 12)), ("zoo", 32, (20, 10))]
        {
            let mut map = filled();
            make_room(&mut map, &tenant(needs_room), capacity);
            assert_eq!(counts(&map), left, "{needs_room} {capacity}");
        }
        let mut map = filled();
        make_room(&mut map, &tenant("another"), 32);
        assert_eq!(map.len(), 30, "others give room to a tenant without entries");
    }
}
