//! Who is calling, and the secrets that prove it. Listeners ask the [`Keyring`], which `control` fills from the store, and
//! [`TokenVerifier`], which fetch their keys by themselves.
//!
//! Invariants: what is stored or kept in memory of an API key is a keyed hash; the key itself exists only in the answer that
//! showed it once, and with its owner. Of a token nothing is stored, and no more is kept. No token's principal is the principal of
//! an API key or of a certificate.

mod auth_error;
mod expiry;
mod keyring;
mod keys;
mod principal_names;
mod signing;
mod token_digest;
mod tokens;

use std::net::IpAddr;

use protocol::ids::{KeyId, PrincipalId, TenantId};

pub use self::{
    auth_error::{AuthError, UnknownSigningKey},
    expiry::{CredentialExpiry, outlived},
    keyring::{ApiKey, KeyEntry, Keyring, KeyringVersion},
    keys::{Keys, KeysError, ROOT_FILE, SealError, SealKey},
    principal_names::{is_printable, reserved},
    signing::SigningKey,
    tokens::{KeyFetcher, TokenVerifier},
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
    /// The API key shown; none for a caller with a token or certificate, and for an anonymous one.
    pub key: Option<KeyId>,
}

impl Caller {
    /// A caller without a key, for listeners that let those in.
    pub fn anonymous() -> Self {
        let tenant = TenantId::parse(DEFAULT_TENANT).expect("the constant is a legal name");
        Self { tenant, principal: PrincipalId::new(ANONYMOUS), key: None }
    }

    /// Nobody in particular: neither a key nor a token or certificate says who it is.
    pub fn is_anonymous(&self) -> bool {
        self.key.is_none() && self.principal.as_str() == ANONYMOUS
    }
}

/// The other end of a connection, before it has shown who it is.
#[derive(Debug, Clone, Copy, Default)]
pub struct RemotePeer {
    /// `None`: not known.
    pub address: Option<IpAddr>,
    /// It has shown a certificate of an authority that is taken, and the certificate names no principal of ours.
    pub certificate_is_foreign: bool,
}

/// A caller, and until when it has shown who it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthenticatedCaller {
    pub caller: Caller,
    /// None: for as long as its key or certificate is good, which is known otherwise.
    pub until: Option<CredentialExpiry>,
}

impl From<Caller> for AuthenticatedCaller {
    fn from(caller: Caller) -> Self {
        Self { caller, until: None }
    }
}

impl AuthenticatedCaller {
    pub fn is_past(&self) -> bool {
        self.until.is_some_and(CredentialExpiry::is_past)
    }
}
