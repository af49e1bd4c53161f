//! Tokens for a backend that the broker gets for itself, by the grant `client_credentials`. All
//! links of the backend share them.
//!
//! Invariants:
//! - At most one token request per backend runs at a time in a process.
//! - The credential goes to the issuer of the settings, or else to the first one that was used.

use std::{sync::Arc, time::Instant};

use config::spec::BackendSpec;
use http::HeaderValue;
use parking_lot::Mutex;
use rules::limits::oauth::OAUTH_FAILURE_PAUSE;

use super::{
    challenge::Challenge,
    client_keys::{RegisteredClient, TenantKeys},
    discovery::ProtectedBackend,
    fetch::{OauthError, OauthFetcher},
    scopes::chosen_scopes,
    server_cache::ServerCache,
    token_request::{AccessToken, request_token},
};
use crate::metrics::Metrics;

/// Value of `Authorization` for a backend.
pub type TokenHeader = HeaderValue;

/// A token that replaces a refused one.
#[derive(Debug)]
pub struct RenewedToken {
    pub header: TokenHeader,
    /// Whether the authorization server issued it after the refusal. Otherwise another process or
    /// request may have got it before.
    pub is_new: bool,
}

impl RenewedToken {
    pub(super) fn issued(header: TokenHeader) -> Self {
        Self { header, is_new: true }
    }
}

/// Source of the tokens of one backend.
#[derive(Debug)]
pub struct MachineTokens {
    fetcher: OauthFetcher,
    server: ServerCache,
    client: RegisteredClient,
    /// Scopes that the operator configured.
    scopes: Vec<String>,
    state: Mutex<TokenState>,
    /// Puts token requests in order. It holds no data.
    requesting: Arc<tokio::sync::Mutex<()>>,
    metrics: Arc<Metrics>,
}

#[derive(Debug, Default)]
struct TokenState {
    token: Option<AccessToken>,
    /// Scopes of the last token and of the challenges since.
    scopes: Vec<String>,
    failed: Option<(OauthError, Instant)>,
}

impl MachineTokens {
    /// Creates the source for a backend whose body has a credential of the broker.
    pub(super) fn of(
        spec: &BackendSpec,
        fetcher: OauthFetcher,
        keys: TenantKeys,
        metrics: Arc<Metrics>,
    ) -> Option<Arc<Self>> {
        Some(Arc::new(Self {
            fetcher,
            server: ServerCache::of(ProtectedBackend::of(spec)?),
            client: RegisteredClient::of(&spec.auth, keys)?,
            scopes: spec.auth.scopes.clone(),
            state: Mutex::default(),
            requesting: Arc::default(),
            metrics,
        }))
    }

    /// Returns the header of a token that is not due.
    pub(super) fn held(&self) -> Option<TokenHeader> {
        let state = self.state.lock();
        let token = state.token.as_ref()?;
        let is_due = token.ends.is_some_and(|ends| Instant::now() >= ends.renew_at);
        (!is_due).then(|| token.header.clone())
    }

    /// Returns the header for the next request to the backend.
    pub async fn header(self: &Arc<Self>) -> Result<TokenHeader, OauthError> {
        let now = Instant::now();
        let held = self.state.lock().token.clone();
        let (still_good, is_due) = match &held {
            None => (None, true),
            Some(token) => match token.ends {
                None => (Some(token.header.clone()), false),
                Some(ends) => {
                    ((now < ends.expires_at).then(|| token.header.clone()), now >= ends.renew_at)
                }
            },
        };
        match still_good {
            Some(header) if !is_due => Ok(header),
            // The token is renewed in the background, and requests use it as long as it lives.
            Some(header) => {
                if let Ok(turn) = self.requesting.clone().try_lock_owned()
                    && self.recent_failure().is_none()
                {
                    let tokens = self.clone();
                    tokio::spawn(async move {
                        let _turn = turn;
                        let _recorded = tokens.request(None).await;
                    });
                }
                Ok(header)
            }
            None => {
                let _turn = self.requesting.lock().await;
                let refused = held.as_ref().map(|token| &token.header);
                self.unless_changed(refused, None).await.map(|current| current.header)
            }
        }
    }

    /// Returns the token itself, for a request to an authorization server.
    pub(super) async fn text(self: &Arc<Self>) -> Result<String, OauthError> {
        let header = self.header().await?;
        let text = header.to_str().ok().and_then(|text| text.strip_prefix("Bearer "));
        let unusable = || OauthError::Refused("the token is not text".to_owned());
        text.map(str::to_owned).ok_or_else(unusable)
    }

    /// Returns another header after the backend refused `refused`. The backend's servers are sought
    /// again.
    pub async fn renewed(
        &self,
        refused: &TokenHeader,
        challenge: Option<Challenge>,
    ) -> Result<RenewedToken, OauthError> {
        let _turn = self.requesting.lock().await;
        self.unless_changed(Some(refused), Some(challenge.unwrap_or_default())).await
    }

    async fn unless_changed(
        &self,
        refused: Option<&TokenHeader>,
        challenge: Option<Challenge>,
    ) -> Result<RenewedToken, OauthError> {
        let current = self.state.lock().token.as_ref().map(|token| token.header.clone());
        if let Some(current) = current
            && refused != Some(&current)
        {
            return Ok(RenewedToken { header: current, is_new: false });
        }
        match self.recent_failure() {
            Some(error) => Err(error),
            None => self.request(challenge).await.map(RenewedToken::issued),
        }
    }

    /// Returns the error of the last token request, if the next one has to wait.
    fn recent_failure(&self) -> Option<OauthError> {
        let failed = self.state.lock().failed.clone();
        failed.filter(|(_, at)| at.elapsed() < OAUTH_FAILURE_PAUSE).map(|(error, _)| error)
    }

    /// Gets a token. The caller has the turn.
    async fn request(&self, challenge: Option<Challenge>) -> Result<TokenHeader, OauthError> {
        let requested = self.requested(challenge).await;
        let mut state = self.state.lock();
        match requested {
            Ok(token) => {
                self.metrics.oauth.requested("granted");
                let header = token.header.clone();
                (state.token, state.failed) = (Some(token), None);
                Ok(header)
            }
            Err(error) => {
                let outcome = if error.is_temporary() { "unavailable" } else { "refused" };
                self.metrics.oauth.requested(outcome);
                state.failed = Some((error.clone(), Instant::now()));
                Err(error)
            }
        }
    }

    async fn requested(&self, challenge: Option<Challenge>) -> Result<AccessToken, OauthError> {
        let server = self.server.get(&self.fetcher, challenge.clone()).await?;
        let held = self.state.lock().scopes.clone();
        let scopes = chosen_scopes(&self.scopes, &server.scopes, held, challenge.as_ref());
        let mut form = vec![
            ("grant_type", "client_credentials".to_owned()),
            ("resource", server.resource.clone()),
        ];
        if !scopes.is_empty() {
            form.push(("scope", scopes.join(" ")));
        }
        let request = self.client.post(&server.token_endpoint, &server.issuer, form).await?;
        let token = request_token(&self.fetcher, request).await?;
        self.state.lock().scopes = scopes;
        Ok(token)
    }
}
