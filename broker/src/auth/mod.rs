//! Authentication of callers, and the secrets for it. Listeners call the [`Keyring`], which
//! `control` fills from the store. They also call the [`TokenVerifier`], which fetches the issuers'
//! keys by itself.
//!
//! Invariants:
//! - The broker stores and remembers an API key or an operator's token as a keyed hash only. The
//!   text itself appears once, in the answer that created it.
//! - The broker stores nothing of a token, and remembers a keyed hash of it only. Two exceptions
//!   are stored sealed: a token of an issuer with `exchange: true`, and the ID token of an
//!   operator's login.
//! - The principals of tokens differ from those of API keys and of certificates.

pub mod adapted;
mod auth_error;
mod caller;
mod client_authentication;
mod credential_refresh;
mod expiry;
mod keyring;
mod keys;
mod operator_tokens;
mod principal_names;
mod revocations;
mod root_key;
mod root_secret;
mod secret_token;
mod settings;
mod signing;
mod token_digest;
mod tokens;
mod verified_token;

pub use self::{
    auth_error::{AuthError, UnknownSigningKey},
    caller::{
        ANONYMOUS, AuthenticatedCaller, Caller, ExchangeableToken, PresentedCertificate,
        RemotePeer, SubjectDigest,
    },
    client_authentication::{ClientAuthentication, ClientCredential, form_encoded},
    credential_refresh::{CredentialRead, CredentialRefresh},
    expiry::{CredentialExpiry, credential_expired, unless_revoked, until_ended},
    keyring::{ApiKey, KeyEntry, Keyring, KeyringVersion},
    keys::{Keys, SealError, SealKey, now_us, unix_seconds},
    operator_tokens::{OperatorEntry, OperatorTokens},
    principal_names::{OPERATOR_PREFIX, is_printable, reserved_reason},
    root_key::OpenRoot,
    root_secret::{KeysError, RootSecrets},
    secret_token::SecretToken,
    settings::AuthSettings,
    signing::SigningKey,
    tokens::{
        IssuerState, KeyFetcher, TokenVerifier, has_one_reading, introspection::UncheckedToken,
        metadata_urls, sign_in::OperatorLoginIssuer,
    },
    verified_token::{CertificateThumbprint, ForwardedClaims, VerifiedToken},
};
