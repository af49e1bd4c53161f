//! Access tokens of authorization servers (MCP 2025-11-25 and 2026-07-28, Authorization: the MCP
//! server's side). Listeners call [`TokenVerifier`] for a bearer that is not an API key.
//!
//! The verifier remembers a valid token until it expires, or until keys, tenants or key sets
//! change. A request with a remembered token costs about as much as one with an API key.
//!
//! Invariants:
//! - The broker keeps a keyed hash of a token, never the token.
//! - Neither an answer nor the log shows a token.
//! - The log names a reason only as far as an operator can act on it, and holds no text from
//!   strangers.

mod error;
mod fetch;
pub(super) mod introspection;
mod introspection_request;
pub(super) mod issuer;
mod jwt;
mod key_set;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use rules::{limits::tokens::TOKENS_REMEMBERED_MAX, sign_in_failures::SignInFailureReason};
use tokio_util::sync::{CancellationToken, DropGuard};

pub use self::fetch::KeyFetcher;
use self::{
    error::TokenError,
    introspection::{Introspector, UncheckedToken},
    introspection_request::IntrospectionClient,
    issuer::TokenIssuer,
    jwt::Jwt,
};
use super::{
    auth_error::{AuthError, UnknownSigningKey, token_not_valid},
    caller::{AuthenticatedCaller, CertificateThumbprint},
    keyring::{Keyring, KeyringVersion, PREFIX},
    token_digest::{TokenDigest, TokenDigester},
};
use crate::{config::AuthConfig, maps::SharedMap, metrics::Metrics};

/// The issuers, and the verified tokens that are remembered.
#[derive(Debug)]
pub struct TokenVerifier {
    issuers: Vec<Arc<TokenIssuer>>,
    keyring: Arc<Keyring>,
    metrics: Arc<Metrics>,
    digester: TokenDigester,
    remembered: SharedMap<TokenDigest, (KeyringVersion, AuthenticatedCaller)>,
    /// Stops the fetches on drop.
    _life: DropGuard,
}

impl TokenVerifier {
    /// Starts to fetch keys in the background. Must be called inside the runtime. Returns `None`
    /// without issuers.
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
            .map(|issuer| {
                let introspector = issuer.introspection.as_ref().map(|config| {
                    let name = &issuer.issuer;
                    let client = IntrospectionClient::new(fetcher.trusting(), name, config);
                    Introspector::new(name, config, client, metrics.clone())
                });
                Arc::new(TokenIssuer::new(issuer.clone(), introspector, resource))
            })
            .collect();
        metrics.tokens.issuers(issuers.len());
        for issuer in &issuers {
            let keeping =
                issuer.clone().run_refresh(fetcher.clone(), keyring.clone(), metrics.clone());
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
            digester: TokenDigester::default(),
            remembered,
            _life: life.drop_guard(),
        })
    }

    /// Returns the caller of a token on a connection with this certificate. Not for API keys.
    pub fn verify(
        &self,
        bearer: &str,
        certificate: Option<CertificateThumbprint>,
    ) -> Result<AuthenticatedCaller, AuthError> {
        // Read first, because the result is valid for this version only.
        let edition = self.keyring.version();
        let digest = self.digester.digest(bearer);
        if let Some(known) = self.remembered.get(&digest)
            && known.0 == edition
            && !known.1.is_past()
        {
            let known = known.1.clone();
            return self.of_connection(bearer, known, certificate);
        }
        match self.check(bearer, &digest) {
            Ok(proven) => {
                self.metrics.tokens.verified();
                self.remember(digest, edition, &proven);
                self.of_connection(bearer, proven, certificate)
            }
            Err((TokenError::NotIntrospected, Some(issuer))) => Err(unchecked(issuer, digest)),
            Err((flaw, issuer)) => Err(self.denied(bearer, &flaw, issuer)),
        }
    }

    /// Refuses a valid token that is bound to the certificate of another connection.
    fn of_connection(
        &self,
        bearer: &str,
        proven: AuthenticatedCaller,
        certificate: Option<CertificateThumbprint>,
    ) -> Result<AuthenticatedCaller, AuthError> {
        match &proven.caller.token {
            Some(token) if !token.fits(certificate) => {
                Err(self.denied(bearer, &TokenError::Certificate, None))
            }
            _ => Ok(proven),
        }
    }

    fn check(
        &self,
        bearer: &str,
        digest: &TokenDigest,
    ) -> Result<AuthenticatedCaller, (TokenError, Option<&Arc<TokenIssuer>>)> {
        if bearer.starts_with(PREFIX) {
            return Err((TokenError::Form, None));
        }
        let jwt = match Jwt::parse(bearer) {
            Ok(jwt) => jwt,
            Err(TokenError::Form) if !Jwt::is_meant(bearer) => {
                let opaque = self.issuers.iter().find(|issuer| issuer.introspector.is_some());
                let issuer = opaque.ok_or((TokenError::Form, None))?;
                let proven = issuer.authenticate_opaque(digest, &self.keyring);
                return proven.map_err(|flaw| (flaw, Some(issuer)));
            }
            Err(flaw) => return Err((flaw, None)),
        };
        let header = jwt.header().map_err(|flaw| (flaw, None))?;
        let claims = jwt.claims().map_err(|flaw| (flaw, None))?;
        let named = claims.text("iss");
        let issuer = self
            .issuers
            .iter()
            .find(|issuer| Some(issuer.name()) == named.as_deref())
            .ok_or((TokenError::Issuer, None))?;
        let proven = issuer
            .verify(&header, &jwt)
            .and_then(|()| issuer.authenticate_jwt(&header, &claims, digest, &self.keyring));
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
            // The check follows the signature check, so the token was valid earlier.
            (TokenError::Expired, _) => SignInFailureReason::ExpiredToken,
            _ if bearer.starts_with(PREFIX) => SignInFailureReason::ApiKey,
            _ => SignInFailureReason::Token,
        };
        self.metrics.tokens.refused();
        AuthError::failed(token_not_valid(), reason)
    }

    /// Counts the final refusal of a token whose signing key or whose state stays unknown.
    pub fn into_final_refusal(&self, denied: AuthError) -> AuthError {
        if let AuthError::KeyUnknown(_) | AuthError::NotIntrospected(_) = denied {
            self.metrics.tokens.refused();
        }
        denied
    }

    /// Remembers verified tokens only, so that strangers take no memory.
    fn remember(&self, digest: TokenDigest, edition: KeyringVersion, proven: &AuthenticatedCaller) {
        if self.remembered.len() >= TOKENS_REMEMBERED_MAX {
            self.remembered.retain(|_, (known_in, known)| *known_in == edition && !known.is_past());
        }
        if self.remembered.len() >= TOKENS_REMEMBERED_MAX {
            self.remembered.clear(); // too many valid tokens: each is verified again
        }
        self.remembered.insert(digest, (edition, proven.clone()));
    }
}

/// Returns the denial of a token whose issuer has to be asked first.
fn unchecked(issuer: &TokenIssuer, digest: TokenDigest) -> AuthError {
    match issuer.introspector.clone() {
        Some(introspector) => AuthError::NotIntrospected(UncheckedToken { introspector, digest }),
        None => AuthError::failed(token_not_valid(), SignInFailureReason::Token),
    }
}
