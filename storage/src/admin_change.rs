//! What operators change, as a value: a store makes a change and tells of it in the audit log in one transaction.

use protocol::ids::{BackendId, KeyId, TenantId};

use crate::{AuditRetentionTerms, BackendRecord, KeyRecord, SessionKey, TenantRecord};

/// One change. [`ConfigStore::admin_change`](crate::ConfigStore::change) makes it.
#[derive(Debug, Clone, Copy)]
pub enum AdminChange<'a> {
    /// Creates or replaces; `created_at_us` of an existing tenant stays as it was.
    PutTenant(&'a TenantRecord),
    /// Creates a tenant, unless there is one of that name, which stays as it is.
    AddTenant(&'a TenantRecord),
    /// Removes a tenant with all its keys and backends, and its sessions and tasks where the store holds any: another tenant of
    /// the same name must not find them.
    DeleteTenant(&'a TenantId),
    /// Creates a key. [`StoreError::Exists`](crate::StoreError::Exists) when its id is taken, in whatever tenant.
    PutKey(&'a KeyRecord),
    /// Removes a key of this tenant, whoever else may have one of this name.
    DeleteKey(&'a TenantId, &'a KeyId),
    /// Creates or replaces; `created_at_us` of an existing backend stays as it was.
    PutBackend(&'a BackendRecord),
    DeleteBackend(&'a TenantId, &'a BackendId),
    /// Holds the breaker of a backend open, wherever the backend is registered. There is nothing to change where it is held.
    HoldBreaker(&'a TenantId, &'a BackendId),
    ReleaseBreaker(&'a TenantId, &'a BackendId),
    /// Asks its owner to end a session; one without a live owner ends here.
    EndSession(&'a SessionKey),
    /// Says how long the audit log is kept, where the version before is the one that is stored, or none is.
    PutAuditTerms(&'a AuditRetentionTerms),
}

impl AdminChange<'_> {
    /// What the store does, for people and for metrics.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::PutTenant(_) => "put_tenant",
            Self::AddTenant(_) => "add_tenant",
            Self::DeleteTenant(_) => "delete_tenant",
            Self::PutKey(_) => "put_key",
            Self::DeleteKey(..) => "delete_key",
            Self::PutBackend(_) => "put_backend",
            Self::DeleteBackend(..) => "delete_backend",
            Self::HoldBreaker(..) => "hold_breaker",
            Self::ReleaseBreaker(..) => "release_breaker",
            Self::EndSession(_) => "ask_session_end",
            Self::PutAuditTerms(_) => "put_audit_terms",
        }
    }

    /// Whose record or row can only exist below this tenant.
    pub(crate) const fn required_tenant(&self) -> Option<&TenantId> {
        match self {
            Self::PutKey(record) => Some(&record.tenant),
            Self::PutBackend(record) => Some(&record.tenant),
            _ => None,
        }
    }
}
