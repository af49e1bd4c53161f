//! The rows as the broker sees them. Settings are opaque here. The broker's configuration defines
//! their shape, and the broker seals the secrets in them.

use protocol::ids::{BackendId, KeyId, PrincipalId, TenantId};

/// Length of [`KeyRecord::hash`].
pub const HASH_BYTES: usize = 32;

/// A tenant and its settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantRecord {
    pub tenant: TenantId,
    /// JSON text.
    pub settings: String,
    /// Time of the first write. A later `put` keeps it.
    pub created_at_us: i64,
    pub updated_at_us: i64,
}

/// An API key. Only its hash is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRecord {
    pub key: KeyId,
    pub tenant: TenantId,
    pub principal: PrincipalId,
    /// Name that the owner gave it.
    pub name: String,
    /// Keyed hash of the whole key, [`HASH_BYTES`] long.
    pub hash: Vec<u8>,
    /// JSON text: what access rules look at, and the time of expiry.
    pub attributes: String,
    pub created_at_us: i64,
}

/// The access policy of a tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyRecord {
    pub tenant: TenantId,
    /// JSON text.
    pub document: String,
    /// Time of the first write. A later `put` keeps it.
    pub created_at_us: i64,
    pub updated_at_us: i64,
}

/// A backend of a tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendRecord {
    pub tenant: TenantId,
    pub backend: BackendId,
    /// Sealed by the caller.
    pub settings: Vec<u8>,
    /// Time of the first write. A later `put` keeps it.
    pub created_at_us: i64,
    pub updated_at_us: i64,
}
