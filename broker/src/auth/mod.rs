//! Who is calling, and the secrets that prove it. Listeners ask the [`Keyring`]; `control` fills it from the store.
//!
//! Invariant: what is stored or kept in memory of an API key is a keyed hash; the key itself exists only in the answer that
//! showed it once, and with its owner.

mod keyring;
mod keys;

use protocol::ids::{KeyId, PrincipalId, TenantId};

pub use self::{
    keyring::{ApiKey, Edition, KeyEntry, Keyring},
    keys::{Keys, KeysError, SealError, SealKey},
};

/// The tenant of callers without a key, where those are let in. It always exists.
pub const DEFAULT_TENANT: &str = "default";
/// The principal of callers without a key.
pub const ANONYMOUS: &str = "anonymous";

/// For whom a request is done. Everything the broker keeps for a client is keyed by the tenant and the principal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Caller {
    pub tenant: TenantId,
    pub principal: PrincipalId,
    /// The API key shown; none for an anonymous caller.
    pub key: Option<KeyId>,
}

impl Caller {
    /// A caller without a key, for listeners that let those in.
    pub fn anonymous() -> Self {
        let tenant = TenantId::parse(DEFAULT_TENANT).expect("the constant is a legal name");
        Self { tenant, principal: PrincipalId::new(ANONYMOUS), key: None }
    }
}
