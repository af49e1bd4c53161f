//! Changes that operators make, as values. A store makes a change and adds its audit record in one
//! transaction.

use protocol::ids::{BackendId, KeyId, TenantId};

use crate::{
    ApprovalDecision, AuditRetentionTerms, BackendRecord, CatalogDocumentKind,
    CatalogDocumentRecord, KeyRecord, OperatorRecord, PinApproval, PinBlock, PolicyRecord,
    RevocationRecord, RevokedSubject, SessionKey, TenantRecord, TokenIssuerRecord,
};

/// One change. `ConfigStore::apply` of a store makes it.
#[derive(Debug, Clone, Copy)]
pub enum AdminChange<'a> {
    /// Creates or replaces a tenant. An existing tenant keeps its `created_at_us`.
    PutTenant(&'a TenantRecord),
    /// Creates a tenant. An existing tenant of that name stays as it is.
    AddTenant(&'a TenantRecord),
    /// Removes a tenant with all its keys and backends. Also removes its sessions and tasks if the
    /// store holds any: another tenant of the same name must not find them.
    DeleteTenant(&'a TenantId),
    /// Creates a key. Returns `StoreError::Exists` when any tenant
    /// already has a key with this id.
    PutKey(&'a KeyRecord),
    /// Removes a key of this tenant. Keys of other tenants with this name stay.
    DeleteKey(&'a TenantId, &'a KeyId),
    /// Creates or replaces a backend. An existing backend keeps its `created_at_us`.
    PutBackend(&'a BackendRecord),
    DeleteBackend(&'a TenantId, &'a BackendId),
    /// Creates or replaces the policy of a tenant. An existing policy keeps its `created_at_us`.
    PutPolicy(&'a PolicyRecord),
    DeletePolicy(&'a TenantId),
    /// Creates or replaces a document of a tenant's catalog. An existing one keeps its
    /// `created_at_us`.
    PutCatalogDocument(&'a CatalogDocumentRecord),
    DeleteCatalogDocument(&'a TenantId, CatalogDocumentKind, &'a str),
    /// Creates an operator. Returns `StoreError::Exists` for a name or an id that another operator
    /// has.
    PutOperator(&'a OperatorRecord),
    /// Removes the operator with this id.
    DeleteOperator(&'a str),
    /// Creates or replaces a revocation. A replaced one keeps its `created_at_us`.
    PutRevocation(&'a RevocationRecord),
    DeleteRevocation(&'a TenantId, &'a RevokedSubject),
    /// Creates or replaces an issuer of a tenant. An existing one keeps its `created_at_us`.
    PutTokenIssuer(&'a TokenIssuerRecord),
    DeleteTokenIssuer(&'a TenantId, &'a str),
    /// Holds the breaker of a backend open. The backend may be registered anywhere. Changes nothing
    /// if the breaker is already held.
    HoldBreaker(&'a TenantId, &'a BackendId),
    ReleaseBreaker(&'a TenantId, &'a BackendId),
    /// Requests the end of a session from its owner. Removes a session without a live owner.
    EndSession(&'a SessionKey),
    /// Sets the retention of the audit log. Takes effect only if the stored version is the one
    /// before, or if none is stored.
    PutAuditTerms(&'a AuditRetentionTerms),
    /// Approves definitions. Changes nothing if the hash of one is not the one that was seen last.
    ApprovePins(&'a PinApproval),
    /// Blocks objects. Changes nothing if one of them was never seen.
    BlockPins(&'a PinBlock),
    /// Decides about a call that waits. Changes nothing unless the approval is pending and has not
    /// expired.
    DecideApproval(&'a ApprovalDecision),
}

impl AdminChange<'_> {
    /// Name of the change, for logs and metrics.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::PutTenant(_) => "put_tenant",
            Self::AddTenant(_) => "add_tenant",
            Self::DeleteTenant(_) => "delete_tenant",
            Self::PutKey(_) => "put_key",
            Self::DeleteKey(..) => "delete_key",
            Self::PutBackend(_) => "put_backend",
            Self::DeleteBackend(..) => "delete_backend",
            Self::PutPolicy(_) => "put_policy",
            Self::DeletePolicy(_) => "delete_policy",
            Self::PutCatalogDocument(_) => "put_catalog_document",
            Self::DeleteCatalogDocument(..) => "delete_catalog_document",
            Self::PutOperator(_) => "put_operator",
            Self::DeleteOperator(_) => "delete_operator",
            Self::PutRevocation(_) => "put_revocation",
            Self::DeleteRevocation(..) => "delete_revocation",
            Self::PutTokenIssuer(_) => "put_token_issuer",
            Self::DeleteTokenIssuer(..) => "delete_token_issuer",
            Self::HoldBreaker(..) => "hold_breaker",
            Self::ReleaseBreaker(..) => "release_breaker",
            Self::EndSession(_) => "ask_session_end",
            Self::PutAuditTerms(_) => "put_audit_terms",
            Self::ApprovePins(_) => "approve_pins",
            Self::BlockPins(_) => "block_pins",
            Self::DecideApproval(_) => "decide_approval",
        }
    }

    /// Returns the tenant that must exist before the record or row can exist.
    pub const fn required_tenant(&self) -> Option<&TenantId> {
        match self {
            Self::PutKey(record) => Some(&record.tenant),
            Self::PutBackend(record) => Some(&record.tenant),
            Self::PutPolicy(record) => Some(&record.tenant),
            Self::PutCatalogDocument(record) => Some(&record.tenant),
            Self::PutRevocation(record) => Some(&record.tenant),
            Self::PutTokenIssuer(record) => Some(&record.tenant),
            _ => None,
        }
    }
}
