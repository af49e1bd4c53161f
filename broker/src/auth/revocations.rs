//! Revocations of tokens: which valid tokens operators no longer want, and the ends of what such
//! tokens opened.
//!
//! `control` fills [`Revocations`] from the store. `tokens` asks it for each verified token, and a
//! connection or stream that a token opened waits for it.
//!
//! Invariant: a token is asked about by its own claims, so a revocation needs no list of tokens.

use std::{collections::BTreeMap, sync::Arc};

use arc_swap::ArcSwap;
use protocol::ids::{PrincipalId, TenantId};
use records::{RevocationRecord, RevokedSubject};
use rules::maps::FastMap;
use tokio::sync::watch;

/// What a revocation can name of a token.
#[derive(Debug)]
pub(super) struct RevocableClaims {
    pub(super) tenant: TenantId,
    pub(super) principal: PrincipalId,
    /// Claim `jti`.
    pub(super) id: Option<String>,
    /// Claim `iat`, in microseconds since 1970.
    pub(super) issued_at_us: Option<i64>,
}

/// Revocations of all tenants.
#[derive(Debug)]
pub struct Revocations {
    by_tenant: ArcSwap<FastMap<TenantId, RevokedSubjects>>,
    /// Number of changes so far.
    changes: watch::Sender<u64>,
}

type RevokedSubjects = BTreeMap<RevokedSubject, RevocationRecord>;

impl Default for Revocations {
    fn default() -> Self {
        Self { by_tenant: ArcSwap::default(), changes: watch::Sender::new(0) }
    }
}

impl Revocations {
    /// Returns the revocations of a tenant, in the order of their subjects.
    pub fn of_tenant(&self, tenant: &TenantId) -> Vec<RevocationRecord> {
        let all = self.by_tenant.load();
        all.get(tenant).into_iter().flat_map(|subjects| subjects.values().cloned()).collect()
    }

    /// Returns whether a stored session of a principal ended with the revocation of the principal,
    /// while no process had it. Both times are of the store's clock.
    pub fn ends_session_of(
        &self,
        tenant: &TenantId,
        principal: &PrincipalId,
        created_at_us: i64,
    ) -> bool {
        let all = self.by_tenant.load();
        let subject = RevokedSubject::Principal(principal.clone());
        let found = all.get(tenant).and_then(|subjects| subjects.get(&subject));
        found.is_some_and(|record| created_at_us <= record.stored_at_us)
    }

    /// Replaces all revocations. Returns those that an operator has made since: the new ones, the
    /// wider ones, and those that were made once more.
    pub(super) fn replace(&self, records: Vec<RevocationRecord>) -> Vec<RevocationRecord> {
        let mut next = FastMap::<TenantId, RevokedSubjects>::default();
        for record in records {
            let subjects = next.entry(record.tenant.clone()).or_default();
            subjects.insert(record.subject.clone(), record);
        }
        let before = self.by_tenant.swap(Arc::new(next.clone()));
        self.changes.send_modify(|count| *count += 1);
        let is_made = |record: &RevocationRecord| {
            let known = before.get(&record.tenant).and_then(|known| known.get(&record.subject));
            known.is_none_or(|known| {
                known.issued_before_us < record.issued_before_us
                    || known.stored_at_us < record.stored_at_us
            })
        };
        next.into_values().flat_map(BTreeMap::into_values).filter(is_made).collect()
    }

    /// Adds or replaces one revocation.
    pub(super) fn insert(&self, record: RevocationRecord) {
        self.edit(|all| {
            let subjects = all.entry(record.tenant.clone()).or_default();
            subjects.insert(record.subject.clone(), record.clone());
        });
    }

    pub(super) fn remove(&self, tenant: &TenantId, subject: &RevokedSubject) {
        self.edit(|all| {
            if let Some(subjects) = all.get_mut(tenant) {
                subjects.remove(subject);
            }
        });
    }

    /// Removes the revocations of a tenant that is gone.
    pub(super) fn remove_tenant(&self, tenant: &TenantId) {
        if self.by_tenant.load().contains_key(tenant) {
            self.edit(|all| drop(all.remove(tenant)));
        }
    }

    fn edit(&self, edit: impl Fn(&mut FastMap<TenantId, RevokedSubjects>)) {
        self.by_tenant.rcu(|current| {
            let mut next = FastMap::clone(current);
            edit(&mut next);
            next
        });
        // After the swap: who wakes up sees the change.
        self.changes.send_modify(|count| *count += 1);
    }

    /// Returns whether a token is revoked. A token that does not tell when it was issued counts as
    /// old.
    pub(super) fn refuses(&self, token: &RevocableClaims) -> bool {
        let all = self.by_tenant.load();
        let Some(subjects) = all.get(&token.tenant) else { return false };
        let by_id = token.id.clone().map(RevokedSubject::TokenId);
        let by_principal = RevokedSubject::Principal(token.principal.clone());
        by_id.is_some_and(|subject| subjects.contains_key(&subject))
            || subjects.get(&by_principal).is_some_and(|record| {
                token.issued_at_us.is_none_or(|issued_at| issued_at <= record.issued_before_us)
            })
    }

    /// Resolves when the token is revoked.
    pub(super) async fn refusal_of(&self, token: &RevocableClaims) {
        let mut changes = self.changes.subscribe();
        while !self.refuses(token) {
            if changes.changed().await.is_err() {
                return; // unreachable: `self` has the sender
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::auth::verified_token::VerifiedToken;

    fn tenant(name: &str) -> TenantId {
        TenantId::parse(name).unwrap()
    }

    fn principal(name: &str) -> RevokedSubject {
        RevokedSubject::Principal(PrincipalId::new(name))
    }

    fn record(name: &str, subject: RevokedSubject, issued_before_us: i64) -> RevocationRecord {
        RevocationRecord {
            tenant: tenant(name),
            subject,
            issued_before_us,
            created_at_us: 0,
            stored_at_us: 0,
        }
    }

    fn token(all: &Arc<Revocations>, id: Option<&str>, issued_at: Option<u64>) -> VerifiedToken {
        let issued_at = issued_at.map(|at| SystemTime::UNIX_EPOCH + Duration::from_secs(at));
        VerifiedToken::new(
            tenant("acme"),
            PrincipalId::new("https://a ann"),
            id.map(str::to_owned),
            issued_at,
            None,
            Arc::default(),
            all.clone(),
        )
    }

    #[test]
    fn a_revocation_applies_to_one_token_or_to_older_tokens_of_a_principal() {
        let all = Arc::new(Revocations::default());
        let [old, same, new] = [9, 10, 11].map(|at| token(&all, Some("t"), Some(at)));
        let unknown = token(&all, None, None);
        assert!(![&old, &same, &new, &unknown].iter().any(|token| token.is_revoked()));
        all.insert(record("acme", principal("https://a ann"), 10_000_000));
        assert!(old.is_revoked() && same.is_revoked() && !new.is_revoked());
        assert!(unknown.is_revoked(), "a token that hides its age is taken for an old one");
        all.remove(&tenant("acme"), &principal("https://a ann"));
        assert!(!old.is_revoked() && !unknown.is_revoked());
        all.insert(record("acme", RevokedSubject::TokenId("t".to_owned()), 0));
        assert!(new.is_revoked() && !unknown.is_revoked());
        all.remove_tenant(&tenant("acme"));
        assert!(!new.is_revoked());
        all.insert(record("umbrella", principal("https://a ann"), i64::MAX));
        all.insert(record("acme", principal("https://a eve"), i64::MAX));
        assert!(!old.is_revoked(), "of another tenant and of another principal");
    }

    #[test]
    fn a_stored_session_ends_with_a_revocation_by_the_clock_of_the_store() {
        let all = Revocations::default();
        let (acme, ann) = (tenant("acme"), PrincipalId::new("ann"));
        // The clock of the revoking replica is late, or ahead.
        for issued_before_us in [5, 500] {
            let record = record("acme", principal("ann"), issued_before_us);
            all.insert(RevocationRecord { stored_at_us: 100, ..record });
            let ended = [99, 100, 101].map(|at| all.ends_session_of(&acme, &ann, at));
            assert_eq!(ended, [true, true, false], "{issued_before_us}");
        }
    }

    #[test]
    fn a_token_that_another_replica_verified_is_revoked_by_its_claims() {
        let all = Arc::new(Revocations::default());
        let forwarded = |id: Option<&str>, issued_at: u64| {
            let claims = token(&all, id, Some(issued_at)).claims_to_forward();
            let ann = PrincipalId::new("https://a ann");
            VerifiedToken::forwarded(tenant("acme"), ann, claims, &all)
        };
        let [named, old, new] = [forwarded(Some("t"), 11), forwarded(None, 9), forwarded(None, 11)];
        assert!(![&named, &old, &new].iter().any(|token| token.is_revoked()));
        all.insert(record("acme", RevokedSubject::TokenId("t".to_owned()), 0));
        assert!(named.has_id("t") && named.is_revoked() && !old.is_revoked());
        all.insert(record("acme", principal("https://a ann"), 10_000_000));
        assert!(old.is_revoked() && !new.is_revoked());
    }

    #[test]
    fn only_revocations_made_since_are_reported() {
        let all = Revocations::default();
        let one = record("acme", principal("p"), 5);
        assert_eq!(all.replace(vec![one.clone()]).len(), 1);
        assert_eq!(all.replace(vec![one.clone()]), []);
        let later = RevocationRecord { issued_before_us: 6, ..one };
        assert_eq!(all.replace(vec![later.clone()])[0].issued_before_us, 6);
        assert_eq!(all.replace(vec![later.clone()]), []);
        // Another replica stored the same revocation once more, and ended what it names.
        let again = RevocationRecord { stored_at_us: 1, ..later };
        assert_eq!(all.replace(vec![again.clone()]), std::slice::from_ref(&again));
        assert_eq!(all.replace(vec![again]), []);
        assert_eq!(all.replace(Vec::new()), []);
        assert!(all.of_tenant(&tenant("acme")).is_empty());
    }

    #[tokio::test]
    async fn a_waiting_token_is_notified_only_of_its_own_revocation() {
        let all = Arc::new(Revocations::default());
        let token = token(&all, Some("t"), Some(10));
        let mut revoked = Box::pin(token.revoked());
        let brief = Duration::from_millis(5);
        assert!(tokio::time::timeout(brief, &mut revoked).await.is_err());
        all.insert(record("acme", RevokedSubject::TokenId("u".to_owned()), 0));
        assert!(tokio::time::timeout(brief, &mut revoked).await.is_err());
        all.insert(record("acme", RevokedSubject::TokenId("t".to_owned()), 0));
        revoked.await;
    }
}
