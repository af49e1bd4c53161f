//! The root key of all other keys, and the values that the broker seals.

use protocol::ids::{BackendId, TenantId};

use crate::{GrantKey, SecretKey};

/// Length of a [`RootSecretId`].
pub const ROOT_SECRET_ID_BYTES: usize = 16;

/// Name of a root secret, derived from it.
pub type RootSecretId = [u8; ROOT_SECRET_ID_BYTES];

/// The root key, sealed with one root secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRoot {
    pub secret: RootSecretId,
    /// Number of the newest seal key that is sealed with it.
    pub seal_key: u8,
    pub sealed: Vec<u8>,
}

/// The row of a sealed value that has no end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SealedLocation {
    /// Settings of a stored backend.
    Backend { tenant: TenantId, backend: BackendId },
    /// Settings of a stored issuer.
    Issuer { tenant: TenantId, issuer: String },
    /// A grant, with its authorization server.
    Grant { key: GrantKey, issuer: String },
    /// A registration or a private key of the broker as a client.
    Secret(SecretKey),
}

/// A sealed value in its row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealedValue {
    pub location: SealedLocation,
    pub sealed: Vec<u8>,
}
