//! Interface to the store of the configuration. Only `control` calls it, off the message path, so
//! the cost of dynamic dispatch and `async-trait` does not matter.

use async_trait::async_trait;
use protocol::ids::{BackendId, TenantId};
use records::{
    AdminChange, AuditRecord, BackendRecord, CatalogDocumentRecord, KeyRecord, OperatorRecord,
    PolicyRecord, RevocationRecord, TenantRecord, TokenIssuerRecord,
};

use crate::StoreError;

/// Tenants, API keys, backends, policies, documents of catalogs, operators, revocations and issuers. Lists are ordered by
/// name. All but tenants and operators can exist only under their tenant. Every change of them increases [`ConfigStore::config_version`] in the same
/// transaction.
#[async_trait]
pub trait ConfigStore: Send + Sync {
    /// Makes a change and adds its audit record, whatever changed before. [`Self::apply_at`] tells
    /// the rest.
    async fn apply(
        &self,
        change: AdminChange<'_>,
        audit_record: Option<&AuditRecord>,
    ) -> Result<bool, StoreError> {
        self.apply_at(None, change, audit_record).await
    }

    /// Makes a change and adds its audit record. With a version, fails with
    /// [`StoreError::Outdated`] if [`Self::config_version`] is another one: no other change comes
    /// between the read of that version and this change. When this returns `Ok`, both are on disk.
    /// Returns false if the change had no effect. Then it adds no record. After
    /// [`StoreError::OutcomeUnknown`] both may be on disk, or may get there later. After any other
    /// error both are not. An attempt to remove a tenant clears it first, even if it fails.
    async fn apply_at(
        &self,
        version: Option<i64>,
        change: AdminChange<'_>,
        audit_record: Option<&AuditRecord>,
    ) -> Result<bool, StoreError>;

    /// Removes the sessions and tasks of a tenant that is about to be removed. This can take long,
    /// and the removal after it is short.
    async fn clear_tenant(&self, tenant: &TenantId) -> Result<(), StoreError>;

    async fn tenants(&self) -> Result<Vec<TenantRecord>, StoreError>;

    /// Returns the keys of all tenants.
    async fn keys(&self) -> Result<Vec<KeyRecord>, StoreError>;

    async fn keys_of(&self, tenant: &TenantId) -> Result<Vec<KeyRecord>, StoreError>;

    /// Returns the backends of all tenants.
    async fn backends(&self) -> Result<Vec<BackendRecord>, StoreError>;

    /// Returns the access policies of all tenants.
    async fn policies(&self) -> Result<Vec<PolicyRecord>, StoreError>;

    /// Returns the documents of the catalogs of all tenants, without those of unknown kinds.
    async fn catalog_documents(&self) -> Result<Vec<CatalogDocumentRecord>, StoreError>;

    /// Returns the operators.
    async fn operators(&self) -> Result<Vec<OperatorRecord>, StoreError>;

    /// Returns the revocations of all tenants, without those of unknown kinds.
    async fn revocations(&self) -> Result<Vec<RevocationRecord>, StoreError>;

    /// Returns the issuers of all tenants.
    async fn token_issuers(&self) -> Result<Vec<TokenIssuerRecord>, StoreError>;

    /// Returns the backends whose breakers are held open.
    async fn held_breakers(&self) -> Result<Vec<(TenantId, BackendId)>, StoreError>;

    /// Returns a number that grows with every change of these lists and of held breakers.
    async fn config_version(&self) -> Result<i64, StoreError>;

    /// Waits for writes in progress and closes the database. Later calls fail with
    /// [`StoreError::Unavailable`].
    async fn close(&self);
}
