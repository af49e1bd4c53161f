//! Interface to the store of grants at backends, and of secrets of the broker as an OAuth client.

use std::time::Duration;

use async_trait::async_trait;
use protocol::ids::{BackendId, TenantId};
use records::{GrantError, GrantKey, GrantRecord, GrantState, SecretKey, StoredGrant, WeakGrants};

use crate::StoreError;

/// Grants and secrets. They end with their tenant. Grants, and secrets of the kind `client`, also end
/// with their stored backend.
#[async_trait]
pub trait GrantStore: Send + Sync {
    async fn grant(&self, key: &GrantKey) -> Result<Option<StoredGrant>, StoreError>;

    /// Writes a grant and ends its lease. With `expected`, writes only over this version. Returns
    /// the new version, or `None` if the row is another one or gone. A grant that was removed and
    /// made again has none of its earlier versions.
    async fn put_grant(
        &self,
        record: &GrantRecord,
        expected: Option<i64>,
    ) -> Result<Option<i64>, StoreError>;

    /// Takes the right to use the refresh token of this version for a time. Returns false if
    /// another process has it, or the row has changed. A lease of which more than twice this time
    /// remains is over: the clock was set back after it was taken.
    async fn lease_grant(
        &self,
        key: &GrantKey,
        version: i64,
        lease: Duration,
    ) -> Result<bool, StoreError>;

    /// Writes why the renewal of this version failed. The next write of the grant removes it. A
    /// process with the lease can shorten it with `lease_ends_in`.
    async fn record_grant_error(
        &self,
        key: &GrantKey,
        version: i64,
        error: GrantError,
        lease_ends_in: Option<Duration>,
    ) -> Result<(), StoreError>;

    /// Removes and returns a grant, whatever its version.
    async fn remove_grant(&self, key: &GrantKey) -> Result<Option<StoredGrant>, StoreError>;

    /// Returns the grants of a tenant, by backend and principal.
    async fn grants_of(&self, tenant: &TenantId) -> Result<Vec<StoredGrant>, StoreError>;

    /// Returns connected grants of a backend, the oldest first: at most `limit`, after the first
    /// `skip`.
    async fn oldest_grants(
        &self,
        tenant: &TenantId,
        backend: &BackendId,
        skip: u32,
        limit: u32,
    ) -> Result<Vec<StoredGrant>, StoreError>;

    /// Returns the number of grants in each state.
    async fn grant_counts(&self) -> Result<Vec<(GrantState, u64)>, StoreError>;

    /// Returns for each tenant the number of grants that must be connected again, and of connected
    /// ones whose access token has ended. Tenants without any are left out.
    async fn weak_grants(&self) -> Result<Vec<(TenantId, WeakGrants)>, StoreError>;

    /// Writes a secret that expires after `life`. Removes expired ones. Of very many, some stay
    /// until a later write.
    async fn put_secret(
        &self,
        key: &SecretKey,
        sealed: &[u8],
        life: Duration,
    ) -> Result<(), StoreError>;

    /// Writes a secret unless there is one that has not expired.
    async fn add_secret(
        &self,
        key: &SecretKey,
        sealed: &[u8],
        life: Duration,
    ) -> Result<(), StoreError>;

    /// Returns a secret that has not expired.
    async fn secret(&self, key: &SecretKey) -> Result<Option<Vec<u8>>, StoreError>;

    /// Removes and returns a secret that has not expired. Only one caller gets it.
    async fn take_secret(&self, key: &SecretKey) -> Result<Option<Vec<u8>>, StoreError>;

    /// Returns the time of the clock by which rows are stored, in microseconds since 1970.
    async fn clock_us(&self) -> Result<i64, StoreError>;

    /// Removes a secret that has these bytes. Another one stays.
    async fn remove_secret(&self, key: &SecretKey, sealed: &[u8]) -> Result<(), StoreError>;
}
