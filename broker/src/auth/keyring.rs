//! API keys of the data plane, as one immutable snapshot, and the revocations of tokens. The check
//! of a key takes no lock and reads no store.
//!
//! Invariant: a key verifies only while its tenant is enabled. Disabling a tenant therefore takes
//! effect at once.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use arc_swap::ArcSwap;
use aws_lc_rs::hmac;
use protocol::ids::{KeyId, PrincipalId, TenantId};
use records::{RevocationRecord, RevokedSubject};
use rules::maps::FastMap;

use super::{
    caller::{AuthenticatedCaller, Caller},
    credential_refresh::CredentialRefresh,
    expiry::CredentialExpiry,
    revocations::Revocations,
    root_secret::KeysError,
    secret_token::{SecretToken, token_id},
};

/// Prefix of every key, which secret scanners can find.
pub(super) const PREFIX: &str = "mcpb_";

/// Caller and hash of one API key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyEntry {
    pub caller: Caller,
    /// Time after which the key is not valid. `None`: it is valid without end.
    pub until: Option<CredentialExpiry>,
    pub hash: Vec<u8>,
}

/// All API keys, and the enabled tenants.
#[derive(Debug)]
pub struct Keyring {
    hasher: hmac::Key,
    snapshot: ArcSwap<KeyringSnapshot>,
    revocations: Arc<Revocations>,
    refresh: CredentialRefresh,
    /// Number of changes so far.
    version: AtomicU64,
}

/// Version of the keys and tenants. A result that was derived from them stays valid while the
/// version is the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyringVersion(u64);

#[derive(Debug, Clone, Default)]
struct KeyringSnapshot {
    keys: FastMap<KeyId, Arc<KeyEntry>>,
    enabled: HashSet<TenantId>,
}

impl Keyring {
    /// Returns an empty keyring. `hasher` is [`super::Keys::api_key`].
    pub fn new(hasher: hmac::Key) -> Self {
        Self {
            hasher,
            snapshot: ArcSwap::default(),
            revocations: Arc::default(),
            refresh: CredentialRefresh::default(),
            version: AtomicU64::new(0),
        }
    }

    /// Returns the current version. A caller reads it before it derives the result that it
    /// remembers with the version.
    pub fn version(&self) -> KeyringVersion {
        KeyringVersion(self.version.load(Ordering::Acquire))
    }

    /// Returns the caller of an API key. Returns `None` for every reason, so that a refusal reveals
    /// nothing.
    pub fn verify(&self, bearer: &str) -> Option<AuthenticatedCaller> {
        let id = token_id(PREFIX, bearer)?;
        let snapshot = self.snapshot.load();
        let entry = snapshot.keys.get(id)?;
        // Compares in constant time.
        hmac::verify(&self.hasher, bearer.as_bytes(), &entry.hash).ok()?;
        let is_valid = snapshot.enabled.contains(&entry.caller.tenant)
            && !entry.until.as_ref().is_some_and(CredentialExpiry::is_expired);
        is_valid.then(|| AuthenticatedCaller {
            caller: entry.caller.clone(),
            until: entry.until.clone(),
            recheck_at: None,
            exchangeable: None,
        })
    }

    /// Returns whether a bearer has the form of an API key.
    pub fn has_form(bearer: &str) -> bool {
        token_id(PREFIX, bearer).is_some()
    }

    /// Returns the reads of credentials that other replicas stored.
    pub fn refresh(&self) -> &CredentialRefresh {
        &self.refresh
    }

    /// Returns whether the tenant exists and is enabled. The rule applies to anonymous callers too.
    pub fn is_enabled(&self, tenant: &TenantId) -> bool {
        self.snapshot.load().enabled.contains(tenant)
    }

    /// Returns whether the key still exists.
    pub fn contains(&self, key: &KeyId) -> bool {
        self.snapshot.load().keys.contains_key(key)
    }

    /// Replaces all keys and tenants. Returns the keys that no longer exist.
    pub fn replace(
        &self,
        keys: impl IntoIterator<Item = KeyEntry>,
        enabled: impl IntoIterator<Item = TenantId>,
    ) -> Vec<KeyId> {
        let keys: FastMap<_, _> = keys
            .into_iter()
            .filter_map(|entry| Some((entry.caller.key.clone()?, Arc::new(entry))))
            .collect();
        let next = Arc::new(KeyringSnapshot { keys, enabled: enabled.into_iter().collect() });
        let before = self.snapshot.swap(next.clone());
        self.bump_version();
        before.keys.keys().filter(|key| !next.keys.contains_key(*key)).cloned().collect()
    }

    pub fn insert(&self, entry: KeyEntry) {
        self.change(|snapshot| {
            if let Some(key) = &entry.caller.key {
                snapshot.keys.insert(key.clone(), Arc::new(entry.clone()));
            }
        });
    }

    pub fn remove(&self, key: &KeyId) {
        self.change(|snapshot| {
            snapshot.keys.remove(key);
        });
    }

    /// Enables or disables a tenant's keys.
    pub fn set_enabled(&self, tenant: &TenantId, enabled: bool) {
        self.change(|snapshot| {
            if enabled {
                snapshot.enabled.insert(tenant.clone());
            } else {
                snapshot.enabled.remove(tenant);
            }
        });
    }

    /// Removes a tenant, its keys and its revocations.
    pub fn remove_tenant(&self, tenant: &TenantId) {
        self.revocations.remove_tenant(tenant);
        self.change(|snapshot| {
            snapshot.enabled.remove(tenant);
            snapshot.keys.retain(|_, entry| entry.caller.tenant != *tenant);
        });
    }

    pub fn revocations(&self) -> &Arc<Revocations> {
        &self.revocations
    }

    /// Replaces all revocations. Returns those that an operator has made since.
    pub fn replace_revocations(&self, records: Vec<RevocationRecord>) -> Vec<RevocationRecord> {
        let made = self.revocations.replace(records);
        self.bump_version();
        made
    }

    /// Adds or replaces a revocation.
    pub fn insert_revocation(&self, record: RevocationRecord) {
        self.revocations.insert(record);
        self.bump_version();
    }

    pub fn remove_revocation(&self, tenant: &TenantId, subject: &RevokedSubject) {
        self.revocations.remove(tenant, subject);
        self.bump_version();
    }

    /// Increments the version after any change that affects sign-in. Results of older versions are
    /// no longer valid.
    pub fn bump_version(&self) {
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Copies, edits and publishes the snapshot. Changes are rare, and a reader must never wait for
    /// one.
    fn change(&self, edit: impl Fn(&mut KeyringSnapshot)) {
        self.snapshot.rcu(|current| {
            let mut next = KeyringSnapshot::clone(current);
            edit(&mut next);
            next
        });
        // After the swap: a reader that sees the new version sees the new keys.
        self.bump_version();
    }
}

/// A new key. Not `Debug`, because the text is the secret.
pub struct ApiKey {
    pub id: KeyId,
    /// `mcpb_{id}_{secret}`, shown once.
    pub text: String,
    pub hash: Vec<u8>,
}

impl ApiKey {
    pub fn mint(hasher: &hmac::Key) -> Result<Self, KeysError> {
        let SecretToken { id, text, hash } = SecretToken::mint(PREFIX, hasher)?;
        Ok(Self { id: KeyId::new(id), text, hash })
    }

    pub fn entry(&self, tenant: TenantId, principal: PrincipalId) -> KeyEntry {
        KeyEntry {
            caller: Caller::new(tenant, principal, Some(self.id.clone())),
            until: None,
            hash: self.hash.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::Keys;

    fn tenant(name: &str) -> TenantId {
        TenantId::parse(name).unwrap()
    }

    fn ring() -> (Keyring, ApiKey) {
        let keys = Keys::from_root(b"a root secret for tests");
        let ring = Keyring::new(keys.api_key.clone());
        let key = ApiKey::mint(&keys.api_key).unwrap();
        ring.insert(key.entry(tenant("acme"), PrincipalId::new("ann")));
        ring.set_enabled(&tenant("acme"), true);
        (ring, key)
    }

    #[test]
    fn a_key_is_accepted_by_its_full_text_until_it_is_disabled_or_removed() {
        let (ring, key) = ring();
        (0..2).for_each(|_| assert!(ring.verify(&key.text).is_some()));
        let mut other = key.text.clone();
        let last = other.pop();
        other.push(if last == Some('a') { 'b' } else { 'a' });
        (0..2).for_each(|_| assert_eq!(ring.verify(&other), None));
        ring.set_enabled(&tenant("acme"), false);
        assert_eq!(ring.verify(&key.text), None);
        ring.set_enabled(&tenant("acme"), true);
        assert!(ring.verify(&key.text).is_some());
        ring.remove(&key.id);
        assert_eq!(ring.verify(&key.text), None);
        // The id of another key, with another secret.
        let entry = key.entry(tenant("acme"), PrincipalId::new("ann"));
        ring.insert(KeyEntry { hash: vec![0; entry.hash.len()], ..entry });
        assert_eq!(ring.verify(&key.text), None);
    }

    #[test]
    fn a_key_identifies_its_tenant_and_principal() {
        let (ring, key) = ring();
        let caller = ring.verify(&key.text).unwrap();
        assert_eq!(
            (caller.caller.tenant.as_str(), caller.caller.principal.as_str(), caller.caller.key),
            ("acme", "ann", Some(key.id))
        );
    }

    #[test]
    fn new_keys_have_the_documented_form_and_are_unique() {
        let hasher = Keys::from_root(b"root").api_key;
        let texts: HashSet<String> =
            (0..100).map(|_| ApiKey::mint(&hasher).unwrap().text).collect();
        assert_eq!(texts.len(), 100);
        for text in texts {
            let parts: Vec<&str> = text.split('_').collect();
            assert_eq!(
                (parts.len(), parts[0], parts[1].len(), parts[2].len()),
                (3, "mcpb", 12, 43),
                "{text}"
            );
        }
    }

    #[test]
    fn a_key_with_any_changed_character_is_refused() {
        let (ring, key) = ring();
        for at in 0..key.text.len() {
            let mut bytes = key.text.clone().into_bytes();
            bytes[at] = if bytes[at] == b'x' { b'y' } else { b'x' };
            assert_eq!(ring.verify(&String::from_utf8(bytes).unwrap()), None, "at {at}");
        }
    }

    #[test]
    fn text_that_is_not_a_key_is_refused() {
        let (ring, key) = ring();
        let longer = format!("{}x", key.text);
        for text in [
            "",
            "mcpb_",
            "mcpb__",
            "mcpb_é",
            "Bearer x",
            &key.text[..key.text.len() - 1],
            &longer,
            &key.text.to_uppercase(),
        ] {
            assert_eq!(ring.verify(text), None, "{text}");
        }
    }

    #[test]
    fn a_key_hashed_with_another_root_is_refused() {
        let (_, key) = ring();
        let other = Keyring::new(Keys::from_root(b"another root").api_key);
        other.insert(key.entry(tenant("acme"), PrincipalId::new("ann")));
        other.set_enabled(&tenant("acme"), true);
        assert_eq!(other.verify(&key.text), None);
    }

    #[test]
    fn keys_of_disabled_and_unknown_tenants_do_not_verify() {
        let (ring, key) = ring();
        ring.set_enabled(&tenant("acme"), false);
        assert_eq!(ring.verify(&key.text), None);
        assert!(!ring.is_enabled(&tenant("acme")));
        ring.set_enabled(&tenant("acme"), true);
        assert!(ring.verify(&key.text).is_some());
        ring.remove_tenant(&tenant("acme"));
        ring.set_enabled(&tenant("acme"), true);
        assert_eq!(
            ring.verify(&key.text),
            None,
            "a new tenant of the same name does not inherit keys"
        );
    }

    #[test]
    fn a_revoked_key_is_refused_and_others_stay() {
        let (ring, key) = ring();
        let other = ApiKey::mint(&Keys::from_root(b"a root secret for tests").api_key).unwrap();
        ring.insert(other.entry(tenant("acme"), PrincipalId::new("bob")));
        ring.remove(&key.id);
        assert_eq!(ring.verify(&key.text), None);
        assert_eq!(ring.verify(&other.text).unwrap().caller.principal.as_str(), "bob");
    }

    #[test]
    fn replacing_the_keyring_removes_the_old_keys() {
        let (ring, key) = ring();
        ring.replace(
            [key.entry(tenant("umbrella"), PrincipalId::new("eve"))],
            [tenant("umbrella")],
        );
        assert_eq!(ring.verify(&key.text).unwrap().caller.tenant.as_str(), "umbrella");
        ring.replace([], [tenant("umbrella")]);
        assert_eq!(ring.verify(&key.text), None);
    }
}
