//! Access tokens of authorization servers (MCP 2025-11-25 and 2026-07-28, Authorization: the MCP
//! server's side). Listeners call [`TokenVerifier`] for a bearer that is not an API key.
//!
//! The verifier remembers a valid token until it expires, or until keys, tenants or key sets
//! change. A request with a remembered token costs about as much as one with an API key.
//!
//! Invariants:
//! - The broker keeps a keyed hash of a token, never the token, unless its issuer lets the broker
//!   exchange it.
//! - Neither an answer nor the log shows a token.
//! - The log names a reason only as far as an operator can act on it, and holds no text from
//!   strangers.

mod error;
mod fetch;
pub(super) mod introspection;
mod introspection_permits;
mod introspection_request;
pub(super) mod issuer;
mod jwt;
mod key_set;
pub(super) mod metadata;
mod operator;
pub(super) mod sign_in;
#[cfg(test)]
mod tests;
mod token_checks;

use std::sync::Arc;

use arc_swap::ArcSwap;
use config::IssuerConfig;
use rules::{
    limits::tokens::{AUTHORIZATION_FORWARDS_MAX, TOKENS_REMEMBERED_MAX},
    maps::FastMap,
    sign_in_failures::SignInFailureReason,
};

use tokio::sync::Semaphore;

use self::{
    error::TokenError,
    introspection::{Introspector, UncheckedToken},
    introspection_request::IntrospectionClient,
    issuer::TokenIssuer,
    jwt::Jwt,
};
pub use self::{
    fetch::{KeyFetcher, metadata_urls},
    jwt::has_one_reading,
};
use super::{
    auth_error::{AuthError, UnknownSigningKey, token_not_valid},
    caller::AuthenticatedCaller,
    keyring::{Keyring, KeyringVersion, PREFIX},
    token_digest::{TokenDigest, TokenDigester},
    verified_token::CertificateThumbprint,
};
use crate::{maps::SharedMap, metrics::Metrics};

type IssuersByName = FastMap<String, Arc<TokenIssuer>>;

/// State of an issuer in this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuerState {
    /// Number of keys that tokens can be verified with.
    pub keys: usize,
    /// Why the broker cannot stand in front of the issuer.
    pub fault: Option<String>,
}

/// The issuers, and the verified tokens that are remembered.
#[derive(Debug)]
pub struct TokenVerifier {
    /// The issuers in force, by their names.
    pub(super) issuers: ArcSwap<IssuersByName>,
    pub(super) fetcher: KeyFetcher,
    /// Permits of token requests that are forwarded to issuers at the same time.
    pub(super) forwards: Arc<Semaphore>,
    keyring: Arc<Keyring>,
    metrics: Arc<Metrics>,
    digester: TokenDigester,
    remembered: SharedMap<TokenDigest, (KeyringVersion, AuthenticatedCaller)>,
}

impl Drop for TokenVerifier {
    fn drop(&mut self) {
        self.issuers.load().values().for_each(|issuer| issuer.withdraw());
    }
}

impl TokenVerifier {
    /// Returns a verifier without issuers.
    pub fn new(keyring: Arc<Keyring>, fetcher: KeyFetcher, metrics: Arc<Metrics>) -> Self {
        Self {
            issuers: ArcSwap::default(),
            fetcher,
            forwards: Arc::new(Semaphore::new(AUTHORIZATION_FORWARDS_MAX)),
            keyring,
            metrics,
            digester: TokenDigester::default(),
            remembered: SharedMap::default(),
        }
    }

    /// Replaces the issuers. An issuer with the same settings stays, and one of which only
    /// credentials of the broker changed keeps its tokens. The tokens of any other earlier issuer
    /// expire now. Keys are fetched in the background, so this must be called inside the runtime.
    /// Without a resource no issuer is accepted.
    pub fn set_issuers(&self, resource: Option<&str>, configs: &[Arc<IssuerConfig>]) {
        let before = self.issuers.load_full();
        let configs = if resource.is_some() { configs } else { &[] };
        let resource = resource.unwrap_or_default();
        let (mut issuers, mut added) = (IssuersByName::default(), Vec::new());
        for config in configs {
            let earlier = before.get(&config.issuer);
            let same = earlier.filter(|issuer| issuer.is_of(config, resource));
            let issuer = same.cloned().unwrap_or_else(|| {
                let (config, introspector) = (config.clone(), self.introspector(config));
                let issuer = Arc::new(match earlier {
                    Some(earlier) => earlier.successor(config, introspector, resource),
                    None => TokenIssuer::new(config, introspector, resource),
                });
                added.push(issuer.clone());
                issuer
            });
            issuers.insert(config.issuer.clone(), issuer);
        }
        let is_kept = |issuer: &Arc<TokenIssuer>| {
            issuers.get(issuer.name()).is_some_and(|kept| Arc::ptr_eq(kept, issuer))
        };
        let removed: Vec<_> = before.values().filter(|issuer| !is_kept(issuer)).cloned().collect();
        if added.is_empty() && removed.is_empty() {
            return;
        }
        let issuers = Arc::new(issuers);
        self.issuers.store(Arc::clone(&issuers));
        // After the store: a token of a removed issuer is verified again, and refused.
        self.keyring.bump_version();
        for issuer in removed {
            if issuers.get(issuer.name()).is_some_and(|next| next.continues(&issuer)) {
                issuer.replace();
                continue;
            }
            tracing::info!(
                issuer = issuer.name(),
                "the broker stopped accepting tokens of a removed issuer"
            );
            issuer.withdraw();
        }
        for issuer in added {
            self.run_issuer(issuer);
        }
    }

    /// Returns what asks the issuer about tokens.
    fn introspector(&self, issuer: &IssuerConfig) -> Option<Introspector> {
        let (name, config) = (&issuer.issuer, issuer.introspection.as_ref()?);
        let client = IntrospectionClient::new(self.fetcher.trusting(), name, config);
        Some(Introspector::new(name, config, client, self.metrics.clone()))
    }

    /// Fetches the keys of an issuer until it is withdrawn or replaced.
    fn run_issuer(&self, issuer: Arc<TokenIssuer>) {
        if !issuer.has_keys() {
            self.metrics.tokens.has_keys(false);
        }
        let (fetcher, keyring, metrics) =
            (self.fetcher.clone(), self.keyring.clone(), self.metrics.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = issuer.clone().run_refresh(fetcher, keyring, metrics.clone()) => {}
                () = issuer.ended() => {}
            }
            if !issuer.has_keys() {
                metrics.tokens.has_keys(true); // it counts no more
            }
        });
    }

    /// Returns the state of an issuer in force.
    pub fn issuer_state(&self, issuer: &str) -> Option<IssuerState> {
        let issuers = self.issuers.load();
        let issuer = issuers.get(issuer)?;
        let metadata = issuer.metadata();
        let fault = metadata.as_deref().and_then(|read| read.as_ref().err());
        Some(IssuerState { keys: issuer.key_count(), fault: fault.map(ToString::to_string) })
    }

    /// Returns the clients that reach the issuers.
    pub fn clients(&self) -> KeyFetcher {
        self.fetcher.clone()
    }

    /// Returns whether tokens of any issuer are accepted.
    pub fn has_issuers(&self) -> bool {
        !self.issuers.load().is_empty()
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
            Err((TokenError::NotIntrospected, Some(issuer))) => Err(unchecked(&issuer, digest)),
            Err((flaw, issuer)) => Err(self.denied(bearer, &flaw, issuer)),
        }
    }

    /// Verifies a token that a client showed earlier, perhaps to another replica. Returns `None` if
    /// it is not accepted any more.
    pub async fn verify_again(&self, bearer: &str) -> Option<AuthenticatedCaller> {
        let digest = self.digester.digest(bearer);
        let (mut has_fetched, mut has_introspected) = (false, false);
        loop {
            match self.check(bearer, &digest) {
                Ok(proven) => return Some(proven),
                Err((TokenError::UnknownKey, Some(issuer))) if !has_fetched => {
                    has_fetched = true;
                    UnknownSigningKey(issuer).wait_for_keys().await;
                }
                Err((TokenError::NotIntrospected, Some(issuer))) if !has_introspected => {
                    has_introspected = true;
                    let introspector = issuer.introspector.clone()?;
                    let unchecked = UncheckedToken { introspector, digest };
                    unchecked.check_active(bearer).await.ok()?;
                }
                Err(_) => return None,
            }
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
    ) -> Result<AuthenticatedCaller, (TokenError, Option<Arc<TokenIssuer>>)> {
        if bearer.starts_with(PREFIX) {
            return Err((TokenError::Form, None));
        }
        let jwt = match Jwt::parse(bearer) {
            Ok(jwt) => jwt,
            Err(TokenError::Form) if !Jwt::is_meant(bearer) => {
                let issuers = self.issuers.load();
                let opaque = issuers.values().find(|issuer| issuer.introspector.is_some());
                let issuer = opaque.ok_or((TokenError::Form, None))?;
                let proven = issuer.authenticate_opaque(digest, &self.keyring);
                let proven = proven.map(|proven| kept(proven, bearer, issuer));
                return proven.map_err(|flaw| (flaw, Some(issuer.clone())));
            }
            Err(flaw) => return Err((flaw, None)),
        };
        let header = jwt.header().map_err(|flaw| (flaw, None))?;
        let claims = jwt.claims().map_err(|flaw| (flaw, None))?;
        let named = claims.text("iss");
        let issuers = self.issuers.load();
        let issuer = named.and_then(|name| issuers.get(&name)).ok_or((TokenError::Issuer, None))?;
        let proven = issuer
            .verify(&header, &jwt)
            .and_then(|()| issuer.authenticate_jwt(&header, &claims, digest, &self.keyring));
        let proven = proven.map(|proven| kept(proven, bearer, issuer));
        proven.map_err(|flaw| (flaw, Some(issuer.clone())))
    }

    fn denied(
        &self,
        bearer: &str,
        flaw: &TokenError,
        issuer: Option<Arc<TokenIssuer>>,
    ) -> AuthError {
        let name = issuer.as_ref().map(|issuer| issuer.name());
        tracing::debug!(issuer = name, reason = %flaw, "a token is refused");
        let reason = match (flaw, issuer) {
            (TokenError::UnknownKey, Some(issuer)) => {
                return AuthError::KeyUnknown(UnknownSigningKey(issuer));
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
            self.remembered
                .retain(|_, (limited_to, known)| *limited_to == edition && !known.is_past());
        }
        if self.remembered.len() >= TOKENS_REMEMBERED_MAX {
            self.remembered.clear(); // too many valid tokens: each is verified again
        }
        self.remembered.insert(digest, (edition, proven.clone()));
    }
}

/// Returns the caller with its token, if the issuer permits that the token is exchanged.
fn kept(proven: AuthenticatedCaller, bearer: &str, issuer: &TokenIssuer) -> AuthenticatedCaller {
    let destinations = &issuer.config().exchange;
    if destinations.is_empty() { proven } else { proven.with_token(bearer, destinations) }
}

/// Returns the denial of a token whose issuer has to be asked first.
fn unchecked(issuer: &TokenIssuer, digest: TokenDigest) -> AuthError {
    match issuer.introspector.clone() {
        Some(introspector) => AuthError::NotIntrospected(UncheckedToken { introspector, digest }),
        None => AuthError::failed(token_not_valid(), SignInFailureReason::Token),
    }
}
