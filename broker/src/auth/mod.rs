//! Who is calling, and the secrets that prove it. Listeners ask the [`Keyring`], which `control` fills from the store, and
//! [`TokenVerifier`], which fetch their keys by themselves.
//!
//! Invariants: what is stored or kept in memory of an API key is a keyed hash; the key itself exists only in the answer that
//! showed it once, and with its owner. Of a token nothing is stored, and no more is kept. No token's principal is the principal of
//! an API key or of a certificate.

mod auth_error;
mod caller;
mod expiry;
mod keyring;
mod keys;
mod principal_names;
mod signing;
mod token_digest;
mod tokens;

pub use self::{
    auth_error::{AuthError, UnknownSigningKey},
    caller::{ANONYMOUS, AuthenticatedCaller, Caller, DEFAULT_TENANT, RemotePeer},
    expiry::{CredentialExpiry, outlived},
    keyring::{ApiKey, KeyEntry, Keyring, KeyringVersion},
    keys::{Keys, KeysError, ROOT_FILE, SealError, SealKey},
    principal_names::{is_printable, reserved},
    signing::SigningKey,
    tokens::{KeyFetcher, TokenVerifier},
};
