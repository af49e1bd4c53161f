//! Authentication of callers, and the secrets for it. Listeners call the [`Keyring`], which
//! `control` fills from the store. They also call the [`TokenVerifier`], which fetches the issuers'
//! keys by itself.
//!
//! Invariants:
//! - The broker stores and remembers an API key as a keyed hash only. The key itself appears once,
//!   in the answer that created it.
//! - The broker stores nothing of a token, and remembers a keyed hash of it only.
//! - The principals of tokens differ from those of API keys and of certificates.

pub mod adapted;
mod auth_error;
mod caller;
mod expiry;
mod keyring;
mod keys;
mod principal_names;
mod settings;
mod signing;
mod token_digest;
mod tokens;

pub use self::{
    auth_error::{AuthError, UnknownSigningKey},
    caller::{ANONYMOUS, AuthenticatedCaller, Caller, DEFAULT_TENANT, RemotePeer},
    expiry::{CredentialExpiry, credential_expired},
    keyring::{ApiKey, KeyEntry, Keyring, KeyringVersion},
    keys::{Keys, KeysError, ROOT_FILE, SealError, SealKey},
    principal_names::{is_printable, reserved_reason},
    settings::AuthSettings,
    signing::SigningKey,
    tokens::{IssuerState, KeyFetcher, TokenVerifier},
};
