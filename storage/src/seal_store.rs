//! Interface to the root keys, and to the values that the broker seals with a key derived from them.

use async_trait::async_trait;
use records::{RootSecretId, SealedValue, StoredRoot};

use crate::StoreError;

/// Root keys and sealed values. A sealed value begins with the number of the key that sealed it.
#[async_trait]
pub trait SealStore: Send + Sync {
    /// Returns the root key as each root secret seals it, the oldest one first.
    async fn roots(&self) -> Result<Vec<StoredRoot>, StoreError>;

    /// Adds a root key, unless there is one for its root secret.
    async fn add_root(&self, root: &StoredRoot) -> Result<(), StoreError>;

    /// Removes the root keys of all other root secrets, if there is one for this secret.
    async fn keep_root(&self, secret: &RootSecretId) -> Result<(), StoreError>;

    /// Returns values without an end that a key before this number sealed, at most `limit`, in the
    /// order of their rows. Leaves out the first ones, as many as `skip`.
    async fn sealed_before(
        &self,
        number: u8,
        skip: u32,
        limit: u32,
    ) -> Result<Vec<SealedValue>, StoreError>;

    /// Replaces the bytes of a value, unless the row holds others by now.
    async fn reseal(&self, value: &SealedValue, sealed: &[u8]) -> Result<(), StoreError>;
}
