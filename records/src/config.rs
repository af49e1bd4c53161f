//! The rows as the broker sees them. Settings are opaque here. The broker's configuration defines
//! their shape, and the broker seals the secrets in them.

use protocol::ids::{BackendId, KeyId, PrincipalId, TenantId};

use crate::named::named;

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

/// What an operator put into the catalog of a tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CatalogDocumentRecord {
    pub tenant: TenantId,
    pub kind: CatalogDocumentKind,
    /// Unique among the documents of the kind.
    pub name: String,
    /// JSON text.
    pub document: String,
    /// Time of the first write. A later `put` keeps it.
    pub created_at_us: i64,
    pub updated_at_us: i64,
}

named! {
    /// The kinds of documents in a catalog.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum CatalogDocumentKind {
        Toolset = "toolset",
        Prompt = "prompt",
    }
}

/// An operator of the admin plane. Only the hash of the token is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperatorRecord {
    /// Id of the operator, a part of the token.
    pub operator: String,
    /// Name in the audit log. No two operators have the same name.
    pub name: String,
    /// Keyed hash of the whole token, [`HASH_BYTES`] long.
    pub hash: Vec<u8>,
    /// JSON text: role, tenants and backends.
    pub settings: String,
    pub created_at_us: i64,
}

/// Tokens that are refused although they are valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RevocationRecord {
    pub tenant: TenantId,
    pub subject: RevokedSubject,
    /// Tokens of a principal that were issued before this time are refused.
    pub issued_before_us: i64,
    pub created_at_us: i64,
    /// Time of the last write by the clock of the store, which also has the creation of sessions. A
    /// write need not set it.
    pub stored_at_us: i64,
}

/// The tokens of a revocation.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RevokedSubject {
    /// Every token of a principal.
    Principal(PrincipalId),
    /// The token with this id (`jti`).
    TokenId(String),
}

impl RevokedSubject {
    /// Returns the kind and the text under which a store keeps the subject.
    pub fn parts(&self) -> (&'static str, &str) {
        match self {
            Self::Principal(principal) => ("principal", principal.as_str()),
            Self::TokenId(id) => ("jti", id),
        }
    }

    /// Returns the subject of stored parts. Returns `None` for an unknown kind.
    pub fn of_parts(kind: &str, text: &str) -> Option<Self> {
        match kind {
            "principal" => Some(Self::Principal(PrincipalId::new(text))),
            "jti" => Some(Self::TokenId(text.to_owned())),
            _ => None,
        }
    }
}

/// An issuer of tokens that belongs to one tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenIssuerRecord {
    pub tenant: TenantId,
    /// Name of the issuer in the admin API.
    pub issuer: String,
    /// Sealed by the caller.
    pub settings: Vec<u8>,
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
