//! Results of calls that were too long for their clients. They belong to one principal.

use protocol::ids::{BackendId, PrincipalId, TenantId};

/// Key of a result. Only its principal finds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResultKey {
    pub tenant: TenantId,
    pub principal: PrincipalId,
    /// Random text.
    pub id: String,
}

/// A result as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptResult {
    pub key: ResultKey,
    /// The backend and the tool that gave it, by the backend's name.
    pub backend: BackendId,
    pub tool: String,
    pub mime_type: String,
    /// Bytes of a page at most.
    pub page_bytes: u32,
    pub body: Vec<u8>,
}

/// Bounds of stored results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResultLimits {
    /// Bytes of one principal. Its oldest results free capacity.
    pub principal_bytes: u64,
    /// Bytes of one tenant.
    pub tenant_bytes: u64,
}
