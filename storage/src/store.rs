//! What the broker asks of a store of its configuration. Called by `control` only, off the path of any message, so dynamic
//! dispatch and `async-trait` cost nothing that matters.

use async_trait::async_trait;
use protocol::ids::{BackendId, KeyId, TenantId};

use crate::{BackendRecord, KeyRecord, StoreError, TenantRecord};

/// Tenants, API keys and backends. Lists come ordered by name; a key or backend can only exist under its tenant. Every
/// change makes [`ConfigStore::config_version`] grow, in the same transaction.
#[async_trait]
pub trait ConfigStore: Send + Sync {
    async fn tenants(&self) -> Result<Vec<TenantRecord>, StoreError>;

    /// Creates or replaces; `created_at_us` of an existing tenant stays as it was.
    async fn put_tenant(&self, record: &TenantRecord) -> Result<(), StoreError>;

    /// Creates a tenant, unless there is one of that name. False: there is, and it stays as it is.
    async fn add_tenant(&self, record: &TenantRecord) -> Result<bool, StoreError>;

    /// Removes a tenant with all its keys and backends, and its sessions and tasks where the store holds any: another tenant of
    /// the same name must not find them. False: there was none.
    async fn delete_tenant(&self, tenant: &TenantId) -> Result<bool, StoreError>;

    /// Every tenant's keys.
    async fn keys(&self) -> Result<Vec<KeyRecord>, StoreError>;

    async fn keys_of(&self, tenant: &TenantId) -> Result<Vec<KeyRecord>, StoreError>;

    /// Creates a key. [`StoreError::Exists`] when its id is taken, in whatever tenant.
    async fn put_key(&self, record: &KeyRecord) -> Result<(), StoreError>;

    /// Removes a key of this tenant. False: this tenant has no such key, whoever else may have it.
    async fn delete_key(&self, tenant: &TenantId, key: &KeyId) -> Result<bool, StoreError>;

    /// Every tenant's backends.
    async fn backends(&self) -> Result<Vec<BackendRecord>, StoreError>;

    /// Creates or replaces; `created_at_us` of an existing backend stays as it was.
    async fn put_backend(&self, record: &BackendRecord) -> Result<(), StoreError>;

    /// False: there was none.
    async fn delete_backend(&self, tenant: &TenantId, backend: &BackendId) -> Result<bool, StoreError>;

    /// Grows with every change of tenants, keys and backends.
    async fn config_version(&self) -> Result<i64, StoreError>;

    /// Waits for what is being written and lets go of the database. Later calls fail with [`StoreError::Unavailable`].
    async fn close(&self);
}
