//! Access tokens of authorization servers (MCP 2025-11-25 and 2026-07-28, Authorization: the MCP server's side). Listeners ask
//! [`TokenVerifier`] for what is no API key.
//!
//! A token that was checked is remembered until it ends, or keys, tenants or key sets change: a request with one costs about what
//! one with an API key does. Invariants: what is kept of a token is a keyed hash; neither an answer nor the log tells a token, or
//! more of why it is refused than an operator can do something about; no text of a stranger is logged.

mod fetch;
mod issuer;
mod jwt;
mod key_set;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use tokio_util::sync::{CancellationToken, DropGuard};

pub use self::fetch::KeyFetcher;
pub(super) use self::issuer::TokenIssuer;
use self::jwt::Jwt;
use super::{
    AuthError, AuthenticatedCaller, Keyring, UnknownSigningKey,
    auth_error::token_not_valid,
    keyring::{KeyringVersion, PREFIX},
    token_digest::{TokenDigest, TokenDigester},
};
use crate::{
    config::AuthConfig, limits::tokens::TOKENS_REMEMBERED_MAX, maps::SharedMap, metrics::Metrics,
    rules::sign_in_failures::SignInFailureReason,
};

/// The issuers, and what is known of their tokens.
#[derive(Debug)]
pub struct TokenVerifier {
    issuers: Vec<Arc<TokenIssuer>>,
    keyring: Arc<Keyring>,
    metrics: Arc<Metrics>,
    recall: TokenDigester,
    remembered: SharedMap<TokenDigest, (KeyringVersion, AuthenticatedCaller)>,
    /// Ends the fetching.
    _life: DropGuard,
}

/// What is wrong with a token: for operators, in the log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum TokenError {
    #[error("it is longer than a token may be")]
    TooLong,
    #[error("it is not in the form of a JWT")]
    Form,
    #[error("it has a critical header")]
    Critical,
    #[error("its type is not one of an access token")]
    Type,
    #[error("it is an ID token, not an access token")]
    IdToken,
    #[error("it is bound to a key or a certificate (cnf), and the binding cannot be checked here")]
    Bound,
    #[error("its algorithm is not one that is taken")]
    Algorithm,
    #[error("no issuer of that name is configured")]
    Issuer,
    #[error("its key is not among those of the issuer")]
    UnknownKey,
    #[error("its key does not fit its algorithm, or is not the only one that does")]
    KeyUnfit,
    #[error("its signature is wrong")]
    Signature,
    #[error("a time in it can not be read")]
    Time,
    #[error("it does not say when it expires")]
    NoExpiry,
    #[error("it has expired")]
    Expired,
    #[error("it is not valid yet")]
    NotYet,
    #[error("it is for another audience")]
    Audience,
    #[error("it names no tenant that is served")]
    Tenant,
    #[error("it names a tenant that auth.issuers[].tenants does not list")]
    UnlistedTenant,
    #[error("it names no principal, or one that is too long or has characters that are not seen")]
    Principal,
    #[error("it lacks a scope")]
    Scope,
}

impl TokenVerifier {
    /// Fetches keys from now on, in the background; must be called inside the runtime. `None` without issuers.
    pub fn new(
        auth: &AuthConfig,
        keyring: Arc<Keyring>,
        fetcher: KeyFetcher,
        metrics: Arc<Metrics>,
    ) -> Option<Self> {
        let resource = auth.resource.as_deref()?;
        if auth.issuers.is_empty() {
            return None;
        }
        let life = CancellationToken::new();
        let issuers: Vec<_> = auth
            .issuers
            .iter()
            .map(|issuer| Arc::new(TokenIssuer::new(issuer.clone(), resource)))
            .collect();
        metrics.tokens.issuers(issuers.len());
        for issuer in &issuers {
            let keeping = issuer.clone().keep(fetcher.clone(), keyring.clone(), metrics.clone());
            let ended = life.clone().cancelled_owned();
            tokio::spawn(async move {
                tokio::select! {
                    () = keeping => {}
                    () = ended => {}
                }
            });
        }
        let remembered = SharedMap::default();
        Some(Self {
            issuers,
            keyring,
            metrics,
            recall: TokenDigester::default(),
            remembered,
            _life: life.drop_guard(),
        })
    }

    /// Whose token this is. Not for API keys.
    pub fn verify(&self, bearer: &str) -> Result<AuthenticatedCaller, AuthError> {
        // Before all that is found out with it.
        let edition = self.keyring.edition();
        let digest = self.recall.digest(bearer);
        if let Some(known) = self.remembered.get(&digest)
            && known.0 == edition
            && !known.1.is_past()
        {
            return Ok(known.1.clone());
        }
        match self.checked(bearer) {
            Ok(proven) => {
                self.metrics.tokens.verified();
                self.remember(digest, edition, &proven);
                Ok(proven)
            }
            Err((flaw, issuer)) => Err(self.denied(bearer, &flaw, issuer)),
        }
    }

    fn checked(
        &self,
        bearer: &str,
    ) -> Result<AuthenticatedCaller, (TokenError, Option<&Arc<TokenIssuer>>)> {
        if bearer.starts_with(PREFIX) {
            return Err((TokenError::Form, None));
        }
        let (jwt, header) = Jwt::parse(bearer)
            .and_then(|jwt| jwt.header().map(|header| (jwt, header)))
            .map_err(|flaw| (flaw, None))?;
        let claims = jwt.claims().map_err(|flaw| (flaw, None))?;
        let named = claims.text("iss");
        let issuer = self
            .issuers
            .iter()
            .find(|issuer| Some(issuer.name()) == named.as_deref())
            .ok_or((TokenError::Issuer, None))?;
        let proven = issuer
            .verify(&header, &jwt)
            .and_then(|()| issuer.proven(&header, &claims, &self.keyring));
        proven.map_err(|flaw| (flaw, Some(issuer)))
    }

    fn denied(
        &self,
        bearer: &str,
        flaw: &TokenError,
        issuer: Option<&Arc<TokenIssuer>>,
    ) -> AuthError {
        let name = issuer.map(|issuer| issuer.name());
        tracing::debug!(issuer = name, reason = %flaw, "a token is refused");
        let reason = match (flaw, issuer) {
            (TokenError::UnknownKey, Some(issuer)) => {
                return AuthError::KeyUnknown(UnknownSigningKey(issuer.clone()));
            }
            (TokenError::Scope, Some(issuer)) => {
                self.metrics.tokens.lacks_scope();
                return AuthError::Refused { refusal: issuer.scope_missing(), failure: None };
            }
            // Found out behind the signature, so the token was good once.
            (TokenError::Expired, _) => SignInFailureReason::ExpiredToken,
            _ if bearer.starts_with(PREFIX) => SignInFailureReason::ApiKey,
            _ => SignInFailureReason::Token,
        };
        self.metrics.tokens.refused();
        AuthError::failed(token_not_valid(), reason)
    }

    /// The last word about a token whose key is not known, after all.
    pub fn refused(&self, denied: AuthError) -> AuthError {
        if let AuthError::KeyUnknown(_) = denied {
            self.metrics.tokens.refused();
        }
        denied
    }

    /// Only what was verified is kept, so that strangers take no room.
    fn remember(&self, digest: TokenDigest, edition: KeyringVersion, proven: &AuthenticatedCaller) {
        if self.remembered.len() >= TOKENS_REMEMBERED_MAX {
            self.remembered.retain(|_, (known_in, known)| *known_in == edition && !known.is_past());
        }
        if self.remembered.len() >= TOKENS_REMEMBERED_MAX {
            self.remembered.clear(); // so many are good: each is found out anew
        }
        self.remembered.insert(digest, (edition, proven.clone()));
    }
}
