//! Tokens of principals for one backend: from the vault, renewed by one process at a time.
//!
//! Invariants:
//! - Every look-up takes a principal. Only the catalog's link uses the grant of the principal that
//!   connected first.
//! - A rotated refresh token is on disk before its access token is used.
//! - A refresh token is used under a lease of its row. A result is written over the version that
//!   was leased only, so a process that is late changes nothing.
//! - A grant is for one URL of the backend, or for one identity provider.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{HeaderValue, Request};
use http_body_util::Full;
use parking_lot::Mutex;
use protocol::ids::{BackendId, PrincipalId, TenantId};
use records::{GrantError, GrantKey, GrantState};
use rules::limits::oauth::{
    GRANT_CACHED_MAX, GRANT_LEASE, GRANT_POLL_INTERVAL, GRANT_WAIT_MAX, OAUTH_FAILURE_PAUSE,
    OAUTH_METADATA_AGE_MAX,
};

use super::{
    challenge::Challenge,
    client_keys::{TenantKeys, signed},
    discovery::{DiscoveredServer, ProtectedBackend},
    fetch::{ConnectReason, OauthError, OauthFetcher},
    id_token::remaining_life,
    machine::{MachineTokens, RenewedToken, TokenHeader},
    public_address::PublicAddress,
    registration::{CALLBACK_PATH, ClientSettings},
    token_cache::{TokenCache, UsableToken},
    token_request::{AccessToken, request_token},
    vault::{Grant, GrantStatus, OpenGrant, Vault, now_us},
};
use crate::{
    auth::ClientAuthentication,
    config::spec::{BackendAuth, IssuerComparison},
    metrics::Metrics,
    persistence::fault_point,
};

/// Source of the tokens of one backend's principals.
#[derive(Debug)]
pub struct UserTokens {
    pub(super) tenant: TenantId,
    pub(super) backend_id: BackendId,
    pub(super) target: AuthorizationTarget,
    pub(super) auth: BackendAuth,
    pub(super) fetcher: OauthFetcher,
    pub(super) vault: Vault,
    pub(super) address: Arc<PublicAddress>,
    pub(super) keys: TenantKeys,
    /// Source of the tokens with which lists are fetched, if it is not a principal.
    pub(super) service: Option<Arc<MachineTokens>>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) state: UserTokenState,
}

/// Where principals have their accounts.
#[derive(Debug)]
pub(super) enum AuthorizationTarget {
    /// At the server that the backend names.
    Backend(ProtectedBackend),
    /// At an identity provider, for the backend with this URL.
    Provider { issuer: String, comparison: IssuerComparison, backend_url: String },
}

impl AuthorizationTarget {
    /// Returns the URL that a grant is for.
    pub(super) fn url(&self) -> &str {
        match self {
            Self::Backend(backend) => &backend.url,
            Self::Provider { backend_url, .. } => backend_url,
        }
    }

    pub(super) fn is_provider(&self) -> bool {
        matches!(self, Self::Provider { .. })
    }
}

/// What a process remembers of the tokens of a backend's principals.
#[derive(Debug, Default)]
pub(super) struct UserTokenState {
    server: Mutex<Option<(Arc<DiscoveredServer>, Instant)>>,
    cache: TokenCache,
    /// Puts the renewals of a principal in order. The locks hold no data.
    turns: Mutex<HashMap<PrincipalId, Arc<tokio::sync::Mutex<()>>>>,
}

/// What became of an attempt to use a refresh token.
enum Refresh {
    Done(Box<Grant>),
    /// Another process uses the refresh token.
    Leased,
    /// The row has changed meanwhile.
    Changed,
}

impl UserTokens {
    /// Returns the address at which a person connects an account.
    pub fn connect_url(&self) -> Option<String> {
        self.address.base().map(|base| format!("{base}/connect/{}", self.backend_id))
    }

    pub(super) fn key(&self, principal: &PrincipalId) -> GrantKey {
        GrantKey {
            tenant: self.tenant.clone(),
            backend: self.backend_id.clone(),
            principal: principal.clone(),
        }
    }

    /// Returns the header for a request of the principal, or of the catalog's link.
    pub(super) async fn header(
        self: &Arc<Self>,
        principal: Option<&PrincipalId>,
    ) -> Result<TokenHeader, OauthError> {
        if let (None, Some(service)) = (principal, &self.service) {
            return service.header().await;
        }
        let principal = self.resolved(principal).await?;
        if let Some(cached) = self.cached(&principal) {
            return Ok(cached.header);
        }
        let turn = self.turn(&principal);
        let _turn = turn.lock().await;
        match self.cached(&principal) {
            Some(cached) => Ok(cached.header),
            None => self.current(&principal, None).await.map(|current| current.header),
        }
    }

    /// Returns another header after a refusal.
    pub(super) async fn renewed(
        self: &Arc<Self>,
        principal: Option<&PrincipalId>,
        refused: &TokenHeader,
        challenge: Option<Challenge>,
    ) -> Result<Option<RenewedToken>, OauthError> {
        if let (None, Some(service)) = (principal, &self.service) {
            return service.renewed(refused, challenge).await.map(Some);
        }
        let principal = self.resolved(principal).await?;
        let turn = self.turn(&principal);
        let _turn = turn.lock().await;
        if let Some(challenge) = challenge.as_ref().filter(|challenge| challenge.wants_scopes()) {
            let header = self.step_up(&principal, refused, challenge).await?;
            return Ok(header.map(|header| RenewedToken { header, is_new: false }));
        }
        let key = self.key(&principal);
        if let Some(open) = self.vault.grant(&key).await?
            && open.stored.record.state == GrantState::Connected
            && bearer(&open.grant.access_token).as_ref() == Some(refused)
        {
            // The backend may have another authorization server now.
            let found = self.discovered(challenge).await?;
            if found.issuer != open.stored.record.issuer {
                return Err(self.ended(&key, &open).await);
            }
        }
        self.current(&principal, Some(refused)).await.map(Some)
    }

    /// Drops what this process remembers of a principal.
    pub fn forget(&self, principal: &PrincipalId) {
        self.state.cache.remove(principal);
    }

    async fn resolved(&self, principal: Option<&PrincipalId>) -> Result<PrincipalId, OauthError> {
        match principal {
            Some(principal) => Ok(principal.clone()),
            None => self.first_principal().await,
        }
    }

    /// Returns the principal that connected first.
    pub(super) async fn first_principal(&self) -> Result<PrincipalId, OauthError> {
        let first = self.vault.first(&self.key(&PrincipalId::new(""))).await?;
        let first = first.map(|open| open.stored.record.key.principal);
        first.ok_or(OauthError::Unconnected(ConnectReason::New))
    }

    pub(super) fn cached(&self, principal: &PrincipalId) -> Option<UsableToken> {
        self.state.cache.get(principal)
    }

    /// Returns a number that grows with every change of a token.
    pub(super) fn changes(&self) -> u64 {
        self.state.cache.changes()
    }

    fn turn(&self, principal: &PrincipalId) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.state.turns.lock();
        if turns.len() >= GRANT_CACHED_MAX {
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        }
        turns.entry(principal.clone()).or_default().clone()
    }

    pub(super) fn remember(
        &self,
        principal: &PrincipalId,
        grant: &Grant,
    ) -> Result<TokenHeader, OauthError> {
        let unusable = || OauthError::Refused("the token is not a header".to_owned());
        let header = bearer(&grant.access_token).ok_or_else(unusable)?;
        self.state.cache.put(principal, header.clone(), grant.renew_at_us);
        Ok(header)
    }

    /// Returns the token of the stored grant, renewed if it is due or is the refused one. The
    /// caller has the turn of the principal.
    async fn current(
        self: &Arc<Self>,
        principal: &PrincipalId,
        refused: Option<&TokenHeader>,
    ) -> Result<RenewedToken, OauthError> {
        let key = self.key(principal);
        let stored = |header| RenewedToken { header, is_new: false };
        let until = Instant::now() + GRANT_WAIT_MAX;
        loop {
            self.forget(principal);
            let new = OauthError::Unconnected(ConnectReason::New);
            let open = Arc::new(self.vault.grant(&key).await?.ok_or(new)?);
            if open.stored.record.state != GrantState::Connected
                || open.grant.url != self.target.url()
            {
                return Err(OauthError::Unconnected(ConnectReason::Ended));
            }
            let is_refused =
                refused.is_some() && bearer(&open.grant.access_token).as_ref() == refused;
            let is_due = open.grant.renew_at_us.is_some_and(|at| at <= now_us());
            let is_over = open.stored.record.expires_at_us.is_some_and(|at| at <= now_us());
            if !is_refused && !is_due {
                return self.remember(principal, &open.grant).map(stored);
            }
            let must_wait = is_refused || is_over;
            if open.grant.refresh_token.is_none() {
                if must_wait {
                    return Err(self.ended(&key, &open).await);
                }
                return self.remember(principal, &open.grant).map(stored);
            }
            match self.refresh(&key, &open).await {
                Ok(Refresh::Done(grant)) => {
                    return self.remember(principal, &grant).map(RenewedToken::issued);
                }
                Ok(Refresh::Changed) => continue,
                Ok(Refresh::Leased) => {}
                Err(OauthError::Unavailable(_) | OauthError::Refused(_)) if !must_wait => {}
                Err(error) => return Err(error),
            }
            if !must_wait {
                let header = self.remember(principal, &open.grant)?;
                // Looks again before the interval is over, because another process renews it.
                self.state.cache.put(principal, header.clone(), Some(now_us() + 1_000_000));
                return Ok(stored(header));
            }
            if Instant::now() >= until {
                let text = "another process renews the token and does not finish";
                return Err(OauthError::Unavailable(text.to_owned()));
            }
            tokio::time::sleep(GRANT_POLL_INTERVAL).await;
        }
    }

    /// Uses the refresh token, under the lease of the row. A caller that is cancelled does not stop
    /// this, because the server may have replaced the refresh token already.
    async fn refresh(
        self: &Arc<Self>,
        key: &GrantKey,
        open: &Arc<OpenGrant>,
    ) -> Result<Refresh, OauthError> {
        let (tokens, key, open) = (self.clone(), key.clone(), open.clone());
        let refreshing = tokio::spawn(async move { tokens.refresh_once(&key, &open).await });
        let ended = || OauthError::Unavailable("the renewal of the token ended early".to_owned());
        refreshing.await.unwrap_or_else(|_| Err(ended()))
    }

    async fn refresh_once(&self, key: &GrantKey, open: &OpenGrant) -> Result<Refresh, OauthError> {
        let record = &open.stored.record;
        if !open.stored.remaining_lease.is_zero() {
            return Ok(Refresh::Leased);
        }
        let request = match self.refresh_request(open).await {
            Ok(request) => request,
            Err(OauthError::InvalidGrant(_)) => return Err(self.ended(key, open).await),
            Err(error) => return Err(self.failed(key, open, error, None).await),
        };
        if !self.vault.lease(key, open.stored.version, GRANT_LEASE).await? {
            return Ok(Refresh::Leased);
        }
        match request_token(&self.fetcher, request).await {
            Ok(token) => {
                fault_point::hit("grant.refreshed");
                self.metrics.oauth.requested("granted");
                let grant = with_token(open.grant.clone(), &token);
                let status = GrantStatus::connected(end_of(&token));
                let version =
                    self.saved(key, &record.issuer, &grant, status, open.stored.version).await?;
                Ok(version.map_or(Refresh::Changed, |_| Refresh::Done(Box::new(grant))))
            }
            Err(OauthError::InvalidGrant(_)) => {
                self.metrics.oauth.requested("refused");
                Err(self.ended(key, open).await)
            }
            Err(error) => {
                self.metrics.oauth.requested("unavailable");
                Err(self.failed(key, open, error, Some(OAUTH_FAILURE_PAUSE)).await)
            }
        }
    }

    /// Notes why a renewal failed that may succeed later. `lease_ends_in`: the remaining time of
    /// the lease that this process has.
    async fn failed(
        &self,
        key: &GrantKey,
        open: &OpenGrant,
        error: OauthError,
        lease_ends_in: Option<Duration>,
    ) -> OauthError {
        let kind = match error {
            OauthError::Refused(_) => GrantError::Refused,
            _ => GrantError::Unavailable,
        };
        if open.stored.record.last_error != Some(kind) || lease_ends_in.is_some() {
            self.vault.record_error(key, open.stored.version, kind, lease_ends_in).await;
        }
        error
    }

    /// Writes a renewed grant. Tries for a while, because the old refresh token may be used up.
    async fn saved(
        &self,
        key: &GrantKey,
        issuer: &str,
        grant: &Grant,
        status: GrantStatus,
        version: i64,
    ) -> Result<Option<i64>, OauthError> {
        let until = Instant::now() + GRANT_WAIT_MAX;
        loop {
            match self.vault.put(key, issuer, grant, status, Some(version)).await {
                Err(_) if Instant::now() < until => tokio::time::sleep(GRANT_POLL_INTERVAL).await,
                written => return written,
            }
        }
    }

    /// Prepares the request that uses the refresh token.
    async fn refresh_request(&self, open: &OpenGrant) -> Result<Request<Full<Bytes>>, OauthError> {
        let (record, grant) = (&open.stored.record, &open.grant);
        let server = self.discovered(None).await?;
        if server.issuer != record.issuer {
            let text = format!("the backend names another server than {}", record.issuer);
            return Err(OauthError::InvalidGrant(text));
        }
        let settings = self.settings(&record.key, Some(&grant.redirect_uri))?;
        let client = settings.client(&server).await?;
        let mut form = vec![
            ("grant_type", "refresh_token".to_owned()),
            ("refresh_token", grant.refresh_token.clone().unwrap_or_default()),
        ];
        form.extend(for_resource(&grant.resource));
        signed(&client, &server.token_endpoint, &server.issuer, form)
    }

    /// Returns the broker as the client at the server, for a request in the name of a principal.
    pub(super) async fn client(
        &self,
        principal: &PrincipalId,
    ) -> Result<(ClientAuthentication, Arc<DiscoveredServer>), OauthError> {
        let server = self.discovered(None).await?;
        let client = self.settings(&self.key(principal), None)?.client(&server).await?;
        Ok((client, server))
    }

    /// Returns what decides about the client. `redirect_uri`: that of an earlier request.
    pub(super) fn settings<'a>(
        &'a self,
        key: &'a GrantKey,
        redirect_uri: Option<&str>,
    ) -> Result<ClientSettings<'a>, OauthError> {
        let unknown = || {
            OauthError::Refused(
                "browsers cannot reach the broker: set auth.resource to its address".to_owned(),
            )
        };
        let base = self.address.base().ok_or_else(unknown)?;
        let own = || format!("{base}{CALLBACK_PATH}");
        Ok(ClientSettings {
            redirect_uri: redirect_uri.map_or_else(own, str::to_owned),
            auth: &self.auth,
            vault: &self.vault,
            fetcher: &self.fetcher,
            keys: &self.keys,
            base,
            key,
        })
    }

    /// Returns the server of the backend. After a challenge it is sought again.
    pub(super) async fn discovered(
        &self,
        challenge: Option<Challenge>,
    ) -> Result<Arc<DiscoveredServer>, OauthError> {
        if challenge.is_none()
            && let Some((server, found)) = &*self.state.server.lock()
            && found.elapsed() < OAUTH_METADATA_AGE_MAX
        {
            return Ok(server.clone());
        }
        let found = match &self.target {
            AuthorizationTarget::Backend(backend) => {
                backend.discover(&self.fetcher, challenge).await
            }
            AuthorizationTarget::Provider { issuer, comparison, .. } => {
                DiscoveredServer::of_issuer(&self.fetcher, issuer, *comparison).await
            }
        };
        let found = Arc::new(found?);
        *self.state.server.lock() = Some((found.clone(), Instant::now()));
        Ok(found)
    }

    /// Finds the server of the backend again, and remembers it.
    pub(super) async fn discovered_now(&self) -> Result<Arc<DiscoveredServer>, OauthError> {
        *self.state.server.lock() = None;
        self.discovered(None).await
    }

    /// Marks a grant that cannot be used any more, unless it has changed.
    pub(super) async fn ended(&self, key: &GrantKey, open: &OpenGrant) -> OauthError {
        self.forget(&key.principal);
        let record = &open.stored.record;
        let lost = Grant {
            access_token: String::new(),
            refresh_token: None,
            id_token: None,
            ..open.grant.clone()
        };
        let status = GrantStatus::lost(GrantError::InvalidGrant);
        let put = self.vault.put(key, &record.issuer, &lost, status, Some(open.stored.version));
        match put.await {
            Ok(_) => OauthError::Unconnected(ConnectReason::Ended),
            Err(error) => error,
        }
    }
}

/// Returns the member that names the resource of a request. Tokens of an identity provider are for
/// none.
pub(super) fn for_resource(resource: &str) -> Option<(&'static str, String)> {
    (!resource.is_empty()).then(|| ("resource", resource.to_owned()))
}

/// Returns the header of a token.
fn bearer(token: &str) -> Option<TokenHeader> {
    let mut header = HeaderValue::from_str(&format!("Bearer {token}")).ok()?;
    header.set_sensitive(true);
    Some(header)
}

/// Returns the grant with a new token. A server that sends no refresh token keeps the old one.
pub(super) fn with_token(grant: Grant, token: &AccessToken) -> Grant {
    // Some time before the end, and not the same for all grants of a moment.
    let part = rand::random_range(0.7..0.85);
    let renew_at_us = life(token).map(|life| now_us().saturating_add(micros(life.mul_f64(part))));
    Grant {
        access_token: token.text.clone(),
        refresh_token: token.refresh_token.clone().or(grant.refresh_token.clone()),
        id_token: token.id_token.clone().or(grant.id_token.clone()),
        renew_at_us,
        scopes: token.scopes.clone().unwrap_or_else(|| grant.scopes.clone()),
        ..grant
    }
}

pub(super) fn end_of(token: &AccessToken) -> Option<i64> {
    life(token).map(|life| now_us().saturating_add(micros(life)))
}

/// Returns the life of an answer: that of its access token, or of its ID token if that ends first.
fn life(token: &AccessToken) -> Option<Duration> {
    let of_id_token = token.id_token.as_deref().and_then(remaining_life);
    token.life.into_iter().chain(of_id_token).min()
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}
