//! What the broker asks of a store of its configuration. Called by `control` only, off the path of any message, so dynamic
//! dispatch and `async-trait` cost nothing that matters.

use async_trait::async_trait;
use protocol::ids::{BackendId, TenantId};

use crate::{AdminChange, AuditRecord, BackendRecord, KeyRecord, StoreError, TenantRecord};

/// Tenants, API keys and backends. Lists come ordered by name; a key or backend can only exist under its tenant. Every
/// change of them makes [`ConfigStore::config_version`] grow, in the same transaction.
#[async_trait]
pub trait ConfigStore: Send + Sync {
    /// Makes a change, and with it adds what the audit log tells of it: both are on disk when this returns `Ok`, or neither.
    /// False: there was nothing to change, and nothing is told.
    async fn change(
        &self,
        change: AdminChange<'_>,
        told: Option<&AuditRecord>,
    ) -> Result<bool, StoreError>;

    async fn tenants(&self) -> Result<Vec<TenantRecord>, StoreError>;

    /// Every tenant's keys.
    async fn keys(&self) -> Result<Vec<KeyRecord>, StoreError>;

    async fn keys_of(&self, tenant: &TenantId) -> Result<Vec<KeyRecord>, StoreError>;

    /// Every tenant's backends.
    async fn backends(&self) -> Result<Vec<BackendRecord>, StoreError>;

    /// Backends whose breakers are held open.
    async fn held_breakers(&self) -> Result<Vec<(TenantId, BackendId)>, StoreError>;

    /// Grows with every change of tenants, keys, backends and held breakers.
    async fn config_version(&self) -> Result<i64, StoreError>;

    /// Waits for what is being written and lets go of the database. Later calls fail with [`StoreError::Unavailable`].
    async fn close(&self);
}
