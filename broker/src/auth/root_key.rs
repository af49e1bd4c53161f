//! The root key, from which all other keys derive, and the change of the root secret.
//!
//! The database holds the root key, sealed with each root secret that opens it. A change of the
//! secret therefore keeps API keys, sessions and the trust between replicas. It has two steps:
//!
//! 1. A replica starts with the new secret and with the previous one. It adds a row for the new
//!    secret, with one more seal key. It does not seal with that key, because replicas with the
//!    previous secret do not know it.
//! 2. A replica starts with the new secret alone. It removes the rows of other secrets, and seals
//!    with the newest seal key. What has no end is then sealed again ([`Control::reseal`]).
//!
//! A store of one process takes both steps at once, unless its database had no root key yet.
//! Invariant: a process seals with a key that every row of the database has.
//!
//! The root key of a new database is random. That of an older database is the root secret with
//! which it was used, because its API keys and grants depend on it.
//!
//! [`Control::reseal`]: crate::control::Control::reseal

use aws_lc_rs::rand;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use records::{ROOT_SECRET_ID_BYTES, RootSecretId, StoredRoot};
use serde::{Deserialize, Serialize};
use storage::{DurableStore, StoreError};

use super::{
    keys::{Keys, SealKey, derived},
    root_secret::{KeysError, RootSecrets},
};

/// Seal context: text that the cipher authenticates.
const SEAL_CONTEXT: &str = "root key";
/// Seal keys that are added at most. After so many changes the last one stays in use.
const ADDED_SEAL_KEYS_MAX: usize = 250;

/// The root key, with the seal keys that were added to it.
#[derive(Clone, Serialize, Deserialize)]
struct RootKey {
    /// Base64, as the seal keys.
    root: String,
    added_seal_keys: Vec<String>,
}

impl RootKey {
    fn new(root: &[u8]) -> Self {
        Self { root: STANDARD.encode(root), added_seal_keys: Vec::new() }
    }

    fn with_seal_key(&self) -> Result<Self, KeysError> {
        let mut next = self.clone();
        if next.added_seal_keys.len() < ADDED_SEAL_KEYS_MAX {
            next.added_seal_keys.push(STANDARD.encode(random()?));
        }
        Ok(next)
    }

    /// Returns the number of the newest seal key. The first one derives from the root key.
    fn newest_seal_key(&self) -> u8 {
        u8::try_from(1 + self.added_seal_keys.len()).unwrap_or(u8::MAX)
    }

    /// Seals the root key with a root secret.
    fn sealed(&self, secret: &[u8]) -> StoredRoot {
        let text = serde_json::to_vec(self).expect("a root key is plain texts");
        let sealed =
            seal_key(secret).seal(SEAL_CONTEXT, &text).expect("AES-GCM seals a short text");
        StoredRoot { secret: id(secret), seal_key: self.newest_seal_key(), sealed }
    }

    fn keys(&self, active: u8) -> Option<Keys> {
        let root = STANDARD.decode(&self.root).ok()?;
        let added =
            self.added_seal_keys.iter().map(|text| STANDARD.decode(text).ok()?.try_into().ok());
        let added = added.collect::<Option<Vec<[u8; 32]>>>()?;
        Some(Keys::with_seal_keys(&root, &added, active))
    }
}

/// The keys of a start, and the root key of a database that has no row for it yet.
pub struct OpenRoot {
    pub keys: Keys,
    unrecorded: Vec<StoredRoot>,
}

impl OpenRoot {
    /// Opens the root key of the database, and takes the next step of a change of the secret.
    pub async fn open(secrets: &RootSecrets, store: &dyn DurableStore) -> Result<Self, KeysError> {
        let RootSecrets { current, previous, newly_created } = secrets;
        let mut roots = store.roots().await?;
        if roots.is_empty() && !is_new(store).await? {
            // Another process may have stored a root key meanwhile, and used it.
            roots = store.roots().await?;
            if roots.is_empty() {
                return Self::of_earlier_release(secrets);
            }
        }
        if open(&roots, current).is_none() {
            let known = previous.as_ref().and_then(|secret| open(&roots, secret));
            let root = match known {
                Some((_, known)) => known.with_seal_key()?,
                None if roots.is_empty() => RootKey::new(&random()?),
                None if *newly_created => return Err(KeysError::SecretMissing),
                None => return Err(KeysError::OtherSecret),
            };
            store.add_root(&root.sealed(current)).await?;
            roots = store.roots().await?; // another process may have been faster
        }
        let (index, root) = open(&roots, current).ok_or(KeysError::OtherSecret)?;
        if index > 0 && index + 1 == roots.len() {
            if previous.is_none() || store.is_exclusive() {
                store.keep_root(&roots[index].secret).await?;
                roots = store.roots().await?;
                tracing::info!("the database now accepts only the current root secret");
            } else {
                tracing::warn!(
                    "both root secrets open the database: remove node.secret_previous when every replica has the new secret"
                );
            }
        }
        let active = roots.iter().map(|root| root.seal_key).min().unwrap_or_default();
        let keys = root.keys(active).ok_or(KeysError::OtherSecret)?;
        Ok(Self { keys, unrecorded: Vec::new() })
    }

    /// Takes the root secret as the root key.
    fn of_earlier_release(secrets: &RootSecrets) -> Result<Self, KeysError> {
        let RootSecrets { current, previous, newly_created } = secrets;
        let root = RootKey::new(previous.as_ref().unwrap_or(current));
        let mut unrecorded = Vec::new();
        if let Some(previous) = previous {
            unrecorded.push(root.sealed(previous));
            unrecorded.push(root.with_seal_key()?.sealed(current));
        } else {
            unrecorded.push(root.sealed(current));
        }
        let keys = root.keys(root.newest_seal_key()).ok_or(KeysError::OtherSecret)?;
        let newly_created = *newly_created && previous.is_none();
        Ok(Self { keys: Keys { newly_created, ..keys }, unrecorded })
    }

    /// Stores the root key of a database of an earlier release. Called after the root key has opened
    /// what is stored.
    pub async fn record(&self, store: &dyn DurableStore) -> Result<(), StoreError> {
        for root in &self.unrecorded {
            store.add_root(root).await?;
        }
        Ok(())
    }
}

/// Returns the root key that a secret opens, with the index of its row.
fn open(roots: &[StoredRoot], secret: &[u8]) -> Option<(usize, RootKey)> {
    let id = id(secret);
    let index = roots.iter().position(|root| root.secret == id)?;
    let text = seal_key(secret).open(SEAL_CONTEXT, &roots[index].sealed).ok()?;
    Some((index, serde_json::from_slice(&text).ok()?))
}

/// Returns whether nothing that depends on a root key is stored. Sessions and tasks are those of
/// replicas that derive the trust in each other from it.
async fn is_new(store: &dyn DurableStore) -> Result<bool, StoreError> {
    Ok(store.keys().await?.is_empty()
        && store.operators().await?.is_empty()
        && store.sealed_before(u8::MAX, 0, 1).await?.is_empty()
        && store.audit_chains(None, 1).await?.is_empty()
        && store.list_sessions(None, None, 1).await?.is_empty()
        && store.list_tasks(None, None, None, 1).await?.is_empty())
}

fn id(secret: &[u8]) -> RootSecretId {
    let id = derived(secret, "name of the root secret");
    *id.first_chunk::<ROOT_SECRET_ID_BYTES>().expect("a derived key is longer")
}

fn seal_key(secret: &[u8]) -> SealKey {
    SealKey::single(&derived(secret, "root key at rest"))
}

fn random() -> Result<[u8; 32], KeysError> {
    let mut bytes = [0; 32];
    rand::fill(&mut bytes).map_err(|_| KeysError::NoRandomness)?;
    Ok(bytes)
}
