//! Access tokens of callers, which the broker exchanges at the authorization servers of backends.
//! It keeps only tokens whose issuer permits exchanges.
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
    secret_text::digest_of,
    subject_rows::{RowWrite, SubjectRows, make_room, rows_of},
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

    /// Returns false if the token is known not to be live any more.
    fn may_be_live(&self) -> bool {
        self.token.as_ref().is_none_or(|token| token.is_live())
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

    /// Returns whether a request with this token needs no [`record`](Self::record): the principal's
    /// token is this one, and it needs no write.
    pub fn is_current(
        &self,
        tenant: &TenantId,
        principal: &PrincipalId,
        token: &ExchangeableToken,
    ) -> bool {
        self.is_latest(tenant, principal, token) && self.rows.has(tenant, principal, &token.digest)
    }

    /// Returns whether the principal's token is this one.
    pub(super) fn is_latest(
        &self,
        tenant: &TenantId,
        principal: &PrincipalId,
        token: &ExchangeableToken,
    ) -> bool {
        let of = (tenant.clone(), principal.clone());
        let current = self.current.lock();
        current.get(&of).and_then(CurrentToken::live).is_some_and(|known| **known == *token)
    }

    /// Notes the token of a request, and stores it if it needs a write. Returns true if the
    /// principal had no live one here. Must be called inside the runtime.
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

    /// Drops what this process remembers of a removed tenant, whose rows are gone. A later tenant of
    /// the name must not use its tokens.
    pub fn forget_tenant(&self, tenant: &TenantId) {
        self.current.lock().retain(|(of, _), _| of != tenant);
        self.rows.forget_tenant(tenant);
    }

    fn replace(&self, of: TokenOwner, next: CurrentToken) -> Option<CurrentToken> {
        let mut current = self.current.lock();
        if !current.contains_key(&of) {
            make_room(&mut current, GRANT_CACHED_MAX, is_of(&of.0), CurrentToken::may_be_live);
        }
        current.insert(of, next)
    }

    async fn keep(&self, write: RowWrite, token: &ExchangeableToken) -> Result<(), OauthError> {
        let remaining = u64::try_from(token.expires_at_us.saturating_sub(now_us())).unwrap_or(0);
        let remaining = Duration::from_micros(remaining);
        // No task runs longer. A later request with the token writes it again.
        let life = remaining.min(TASK_RUN_MAX);
        let lasts = if life < remaining { life / 2 } else { life };
        let stored = || StoredSubject { text: token.text.expose().to_owned() };
        let mut first_holder = None;
        for row in &write.choices {
            let holder = self.vault.add_secret(row, stored(), life).await?;
            if holder.text == token.text.expose() {
                if life < remaining {
                    self.vault.put_secret(row, &stored(), life).await?; // it may be an earlier one
                }
                write.done(lasts, None);
                return Ok(());
            }
            first_holder.get_or_insert(holder);
        }
        let [first, ..] = &write.choices;
        self.vault.put_secret(first, &stored(), life).await?;
        let replaced = first_holder.map(|holder| digest_of(&holder.text).into());
        write.done(lasts, replaced);
        Ok(())
    }

    /// Returns the text of the stored token with this digest.
    async fn stored(
        &self,
        tenant: &TenantId,
        principal: &PrincipalId,
        digest: &SubjectDigest,
    ) -> Result<Option<String>, OauthError> {
        for row in rows_of(tenant, principal, digest) {
            let found = self.vault.secret::<StoredSubject>(&row).await?;
            if let Some(StoredSubject { text }) = found
                && *digest_of(&text) == **digest
            {
                return Ok(Some(text));
            }
        }
        Ok(None)
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
        let stored = self.stored(tenant, principal, &known.digest).await?;
        let verifier = self.verifier.get().and_then(Weak::upgrade);
        let (Some(text), Some(verifier)) = (stored, verifier) else { return Ok(None) };
        let Some(proven) = verifier.verify_again(&text).await else { return Ok(None) };
        let is_owner = (&proven.caller.tenant, &proven.caller.principal) == (tenant, principal);
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

/// Returns what tells whether a token is one of a tenant.
fn is_of(tenant: &TenantId) -> impl Fn(&TokenOwner) -> bool {
    move |(of, _)| of == tenant
}

#[cfg(test)]
mod tests {
    use rules::limits::oauth::{SUBJECT_ROWS_PER_PRINCIPAL, SUBJECT_WRITES_PER_TENANT_MAX};
    use testkit::eventually;

    use super::*;
    use crate::{
        auth::Keys,
        metrics::Metrics,
        persistence::{Stores, node::NodeSettings},
    };

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
            make_room(&mut map, capacity, is_of(&tenant(needs_room)), CurrentToken::may_be_live);
            assert_eq!(counts(&map), left, "{needs_room} {capacity}");
        }
        let mut map = filled();
        make_room(&mut map, 32, is_of(&tenant("another")), CurrentToken::may_be_live);
        assert_eq!(map.len(), 30, "others give room to a tenant without entries");
    }

    async fn persistence() -> Arc<Persistence> {
        let (node, seal) = (NodeSettings::fresh_name("a"), Keys::from_root(b"root").seal);
        let metrics = Arc::new(Metrics::new(false));
        Persistence::new(Stores::in_memory().await, node, seal, metrics)
    }

    fn acme_and_ann() -> (TenantId, PrincipalId) {
        (TenantId::parse("acme").unwrap(), PrincipalId::new("ann"))
    }

    /// The first request with a token finds too many writes. A later one has to store the token,
    /// though it is known.
    #[tokio::test]
    async fn a_token_that_was_not_stored_is_stored_at_a_later_request() {
        let (acme, ann) = acme_and_ann();
        let tokens = Arc::new(SubjectTokens::new(persistence().await));
        let write = |number: usize| {
            tokens.rows.write(&acme, &PrincipalId::new(format!("user{number}")), &"x".into())
        };
        let others: Vec<RowWrite> = (0..SUBJECT_WRITES_PER_TENANT_MAX).filter_map(write).collect();
        assert_eq!(others.len(), SUBJECT_WRITES_PER_TENANT_MAX);
        let token = ExchangeableToken::for_test("the token");
        assert!(tokens.record(&acme, &ann, &token), "there was none");
        assert!(tokens.is_latest(&acme, &ann, &token));
        assert!(!tokens.is_current(&acme, &ann, &token), "it is not stored");
        drop(others);
        assert!(!tokens.record(&acme, &ann, &token), "there was one");
        assert!(tokens.is_current(&acme, &ann, &token), "it is stored now");
        eventually("the stored token", || async {
            match tokens.stored(&acme, &ann, &token.digest).await {
                Ok(Some(_)) => Ok(()),
                other => Err(other),
            }
        })
        .await;
    }

    #[tokio::test]
    async fn a_later_tenant_of_a_name_has_no_token_of_an_earlier_one() {
        let (acme, ann) = acme_and_ann();
        let (tokens, zoo) =
            (Arc::new(SubjectTokens::new(persistence().await)), TenantId::parse("zoo").unwrap());
        let token = ExchangeableToken::for_test("the token");
        for tenant in [&acme, &zoo] {
            tokens.record(tenant, &ann, &token);
            assert!(tokens.is_current(tenant, &ann, &token));
        }
        tokens.forget_tenant(&acme);
        assert_eq!(tokens.digest_of(&acme, &ann), None);
        assert!(tokens.any_principal(&acme).is_none());
        let again = tokens.rows.write(&acme, &ann, &token.digest);
        assert!(again.is_some(), "the rows of the earlier tenant are gone");
        assert!(tokens.is_current(&zoo, &ann, &token), "of another tenant");
    }

    async fn keep(tokens: &SubjectTokens, token: &ExchangeableToken) {
        let (acme, ann) = acme_and_ann();
        let write = tokens.rows.write(&acme, &ann, &token.digest).expect("it is not stored");
        tokens.keep(write, token).await.unwrap();
    }

    async fn is_stored(tokens: &SubjectTokens, token: &ExchangeableToken) -> bool {
        let (acme, ann) = acme_and_ann();
        let text = tokens.stored(&acme, &ann, &token.digest).await.unwrap();
        text.inspect(|text| assert_eq!(text, token.text.expose())).is_some()
    }

    #[tokio::test]
    async fn tokens_of_a_principal_at_two_replicas_do_not_replace_each_other() {
        let (acme, ann) = acme_and_ann();
        let shared = persistence().await;
        let replicas = [(); 2].map(|()| Arc::new(SubjectTokens::new(shared.clone())));
        let best = |token: &ExchangeableToken| rows_of(&acme, &ann, &token.digest)[0].clone();
        let one = ExchangeableToken::for_test("one");
        let other = (0..)
            .map(|number: u32| ExchangeableToken::for_test(&number.to_string()))
            .find(|other| best(other) == best(&one))
            .unwrap();
        keep(&replicas[0], &one).await;
        keep(&replicas[1], &other).await;
        for replica in &replicas {
            assert!(is_stored(replica, &one).await && is_stored(replica, &other).await);
        }
    }

    #[tokio::test]
    async fn a_token_without_a_free_row_replaces_one_that_is_then_stored_again() {
        let (acme, ann) = acme_and_ann();
        let tokens = Arc::new(SubjectTokens::new(persistence().await));
        let all: Vec<_> = (0..3 * SUBJECT_ROWS_PER_PRINCIPAL)
            .map(|number| ExchangeableToken::for_test(&number.to_string()))
            .collect();
        for token in &all {
            keep(&tokens, token).await;
            assert!(is_stored(&tokens, token).await);
        }
        let mut stored = 0;
        for token in &all {
            let is_stored = is_stored(&tokens, token).await;
            assert_eq!(tokens.rows.has(&acme, &ann, &token.digest), is_stored);
            stored += usize::from(is_stored);
        }
        assert!(stored <= SUBJECT_ROWS_PER_PRINCIPAL, "{stored}");
        let replaced = all.iter().find(|token| !tokens.rows.has(&acme, &ann, &token.digest));
        let replaced = replaced.expect("there are more tokens than rows");
        keep(&tokens, replaced).await;
        assert!(is_stored(&tokens, replaced).await);
    }
}
