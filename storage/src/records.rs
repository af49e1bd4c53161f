//! The rows as the broker sees them. Settings are opaque here: their shape belongs to the broker's configuration, and what
//! is secret in them was sealed before it came.

use protocol::ids::{BackendId, KeyId, PrincipalId, TenantId};

/// Length of [`KeyRecord::hash`].
pub const HASH_BYTES: usize = 32;

/// A tenant and its settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantRecord {
    pub tenant: TenantId,
    /// JSON text.
    pub settings: String,
    /// When it was first stored; a later `put` keeps it.
    pub created_at_us: i64,
    pub updated_at_us: i64,
}

/// An API key. Only its hash is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRecord {
    pub key: KeyId,
    pub tenant: TenantId,
    pub principal: PrincipalId,
    /// What its owner calls it.
    pub name: String,
    /// Keyed hash of the whole key, [`HASH_BYTES`] long.
    pub hash: Vec<u8>,
    pub created_at_us: i64,
}

/// A backend of a tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendRecord {
    pub tenant: TenantId,
    pub backend: BackendId,
    /// Sealed by the caller.
    pub settings: Vec<u8>,
    /// When it was first stored; a later `put` keeps it.
    pub created_at_us: i64,
    pub updated_at_us: i64,
}
