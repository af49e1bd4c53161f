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
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use config::spec::{BackendAuth, IssuerComparison};
use http::HeaderValue;
use parking_lot::Mutex;
use protocol::ids::{BackendId, PrincipalId, TenantId};
use records::{GrantKey, GrantState};
use rules::limits::oauth::{
    GRANT_CACHED_MAX, GRANT_LOOK_INTERVAL, GRANT_POLL_INTERVAL, GRANT_WAIT_MAX,
    LOGIN_METADATA_PAUSE, OAUTH_METADATA_AGE_MAX, UNNAMED_SERVER_AGE_MAX,
};
use tokio_util::task::TaskTracker;

use super::{
    challenge::Challenge,
    client_keys::TenantKeys,
    discovery::{DiscoveredServer, ProtectedBackend},
    fetch::{ConnectReason, OauthError, OauthFetcher},
    lapsed_leases::LapsedLeases,
    machine::{MachineTokens, RenewedToken, TokenHeader},
    public_address::PublicAddress,
    refresh::Refresh,
    registration::{CALLBACK_PATH, ClientSettings},
    token_cache::{TokenCache, UsableToken},
    token_request::AccessToken,
    vault::{Grant, OpenGrant, Vault},
};
use crate::{
    auth::{ClientAuthentication, now_us},
    metrics::Metrics,
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
    pub(super) renewals: TaskTracker,
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

    /// Returns the parts of an answer that serve a purpose here. Some servers of backends send an ID
    /// token too.
    pub(super) fn usable(&self, token: AccessToken) -> AccessToken {
        let id_token = token.id_token.filter(|_| self.is_provider());
        AccessToken { id_token, ..token }
    }
}

/// What a process remembers of the tokens of a backend's principals.
#[derive(Debug, Default)]
pub(super) struct UserTokenState {
    server: Mutex<Option<(Arc<DiscoveredServer>, Instant)>>,
    /// The last search for a page, if it failed. The lock is held during a search.
    failed_search: tokio::sync::Mutex<Option<(OauthError, Instant)>>,
    cache: TokenCache,
    /// The principal that connected first, for a time in which the database is away.
    first_principal: Mutex<Option<PrincipalId>>,
    /// Grows with every account that was connected or has ended, as far as this process knows.
    account_changes: AtomicU64,
    pub(super) lapsed_leases: LapsedLeases,
    /// Puts the renewals of a principal in order. The locks hold no data.
    turns: Mutex<HashMap<PrincipalId, Arc<tokio::sync::Mutex<()>>>>,
}

impl UserTokens {
    /// Returns the address at which a person connects an account.
    pub fn connect_url(&self) -> Option<String> {
        self.address.base().map(|base| format!("{base}/connect/{}", self.backend_id))
    }

    /// Returns the URL of the backend that the tokens are for.
    pub fn url(&self) -> &str {
        self.target.url()
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
            self.discovered(challenge).await?;
            if self.server_of(&open.stored.record.issuer).await?.is_none() {
                self.ended(&key, &open).await?;
            }
        }
        self.current(&principal, Some(refused)).await.map(Some)
    }

    /// Drops what this process remembers of a principal, whose account was connected or has ended.
    pub fn forget(&self, principal: &PrincipalId) {
        self.state.cache.remove(principal);
        self.state.account_changes.fetch_add(1, Ordering::Release);
    }

    /// Returns a number that grows with every account that was connected or has ended.
    pub(super) fn account_changes(&self) -> u64 {
        self.state.account_changes.load(Ordering::Acquire)
    }

    async fn resolved(&self, principal: Option<&PrincipalId>) -> Result<PrincipalId, OauthError> {
        match principal {
            Some(principal) => Ok(principal.clone()),
            None => self.first_principal().await,
        }
    }

    /// Returns the principal that connected first. A grant for another URL cannot be used here. But
    /// during a change of settings it can still be used by another replica.
    pub(super) async fn first_principal(&self) -> Result<PrincipalId, OauthError> {
        let url = self.target.url();
        let first = match self.vault.first(&self.tenant, &self.backend_id, url).await {
            Err(away @ OauthError::StoreUnavailable(_)) => {
                return self.state.first_principal.lock().clone().ok_or(away);
            }
            found => found?.map(|open| open.stored.record.key.principal),
        };
        self.state.first_principal.lock().clone_from(&first);
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
        if turns.len() >= GRANT_CACHED_MAX && !turns.contains_key(principal) {
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        }
        turns.entry(principal.clone()).or_default().clone()
    }

    /// Remembers the token of a grant. `ends_at_us`: its end, as far as it is known.
    pub(super) fn remember(
        &self,
        principal: &PrincipalId,
        grant: &Grant,
        ends_at_us: Option<i64>,
    ) -> Result<TokenHeader, OauthError> {
        let unusable =
            || OauthError::Refused("the access token is not a valid header value".to_owned());
        let header = bearer(&grant.access_token).ok_or_else(unusable)?;
        self.state.cache.put_until(principal, header.clone(), grant.renew_at_us, ends_at_us);
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
            let found = match self.vault.grant(&key).await {
                Err(away @ OauthError::StoreUnavailable(_)) if refused.is_none() => {
                    return self.state.cache.extend(principal).map(stored).ok_or(away);
                }
                found => found?,
            };
            self.state.cache.remove(principal);
            let open = self.connected_grant(found)?;
            let is_refused =
                refused.is_some() && bearer(&open.grant.access_token).as_ref() == refused;
            let is_due = open.grant.renew_at_us.is_some_and(|at| at <= now_us());
            let ends_at_us = open.stored.record.expires_at_us;
            let is_over = ends_at_us.is_some_and(|at| at <= now_us());
            if !is_refused && !is_due {
                return self.remember(principal, &open.grant, ends_at_us).map(stored);
            }
            let must_wait = is_refused || is_over;
            if open.grant.refresh_token.is_none() {
                if must_wait {
                    self.ended(&key, &open).await?;
                    continue;
                }
                return self.remember(principal, &open.grant, ends_at_us).map(stored);
            }
            let refreshed = match bearer(&open.grant.access_token).filter(|_| !must_wait) {
                Some(valid) => self.refresh_meanwhile(&key, &open, &valid).await,
                None => self.refresh(&key, &open).await,
            };
            match refreshed {
                Ok(Refresh::Done(grant)) => {
                    // The next look finds the end of its token.
                    let remembered = self.remember(principal, &grant, grant.renew_at_us);
                    return remembered.map(RenewedToken::issued);
                }
                Ok(Refresh::Changed) => continue,
                Ok(Refresh::Leased) => {}
                Err(error)
                    if !must_wait
                        && (error.is_temporary() || matches!(error, OauthError::Refused(_))) => {}
                Err(error) => return Err(error),
            }
            if !must_wait {
                return self.remember_briefly(principal, &open).map(stored);
            }
            if Instant::now() >= until {
                let text = "another process did not finish the renewal of the token in time";
                return Err(OauthError::Unavailable(text.to_owned()));
            }
            tokio::time::sleep(GRANT_POLL_INTERVAL).await;
        }
    }

    /// Returns a stored grant whose token the principal can use at this backend.
    fn connected_grant(&self, found: Option<OpenGrant>) -> Result<Arc<OpenGrant>, OauthError> {
        let open = found.ok_or(OauthError::Unconnected(ConnectReason::New))?;
        let is_connected = open.stored.record.state == GrantState::Connected;
        if !is_connected || open.grant.url != self.target.url() {
            return Err(OauthError::Unconnected(ConnectReason::Ended));
        }
        Ok(Arc::new(open))
    }

    /// Remembers the token of a grant for a second, because another process renews it.
    fn remember_briefly(
        &self,
        principal: &PrincipalId,
        open: &OpenGrant,
    ) -> Result<TokenHeader, OauthError> {
        let end_us = open.stored.record.expires_at_us;
        let header = self.remember(principal, &open.grant, end_us)?;
        self.state.cache.put_until(principal, header.clone(), Some(now_us() + 1_000_000), end_us);
        Ok(header)
    }

    /// Uses the refresh token of a grant. Until the grant changes, other requests of the principal
    /// use the access token, which is still valid.
    async fn refresh_meanwhile(
        self: &Arc<Self>,
        key: &GrantKey,
        open: &Arc<OpenGrant>,
        valid: &TokenHeader,
    ) -> Result<Refresh, OauthError> {
        let (principal, stored) = (&key.principal, &open.stored);
        let mut refreshing = pin!(self.refresh(key, open));
        let refreshed = loop {
            self.state.cache.put(principal, valid.clone(), stored.record.expires_at_us);
            // Looks again before the others have to.
            let look = tokio::time::timeout(GRANT_LOOK_INTERVAL / 2, &mut refreshing);
            if let Ok(refreshed) = look.await {
                break refreshed;
            }
            let found = self.vault.grant(key).await.ok().flatten();
            if found.is_none_or(|now| now.stored.version != stored.version) {
                self.state.cache.remove(principal);
                break refreshing.await;
            }
        };
        self.state.cache.remove(principal);
        refreshed
    }

    /// Returns the broker as the client at the server, for a request in the name of a principal.
    pub(super) async fn client(
        &self,
        principal: &PrincipalId,
    ) -> Result<(ClientAuthentication, Arc<DiscoveredServer>), OauthError> {
        let server = self.discovered(None).await?;
        let key = self.key(principal);
        let mut settings = self.settings(&key, None)?;
        settings.choose_redirect_uri(&server);
        let client = settings.client(&server).await?;
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
            && let Some(server) = self.known_server()
        {
            return Ok(server);
        }
        let found = match &self.target {
            AuthorizationTarget::Backend(backend) => {
                backend.discover(&self.fetcher, challenge, None).await
            }
            AuthorizationTarget::Provider { issuer, comparison, .. } => {
                DiscoveredServer::of_issuer(&self.fetcher, issuer, *comparison).await
            }
        };
        let found = Arc::new(found?);
        *self.state.server.lock() = Some((found.clone(), Instant::now()));
        Ok(found)
    }

    fn known_server(&self) -> Option<Arc<DiscoveredServer>> {
        let known = self.state.server.lock();
        let (server, found) = known.as_ref()?;
        let age_max = match server.is_named {
            true => OAUTH_METADATA_AGE_MAX,
            false => UNNAMED_SERVER_AGE_MAX,
        };
        (found.elapsed() < age_max).then(|| server.clone())
    }

    /// Returns the server with this issuer, of an earlier discovery. `None`: the backend names only
    /// others now. A backend without metadata names none: that may be a fault of the moment, so it
    /// ends no grant.
    pub(super) async fn server_of(
        &self,
        issuer: &str,
    ) -> Result<Option<Arc<DiscoveredServer>>, OauthError> {
        let known = self.discovered(None).await?;
        if known.issuer == issuer {
            return Ok(Some(known));
        }
        let AuthorizationTarget::Backend(backend) = &self.target else { return Ok(None) };
        let found = backend.discover(&self.fetcher, None, Some(issuer)).await?;
        match found {
            found if found.issuer == issuer => Ok(Some(Arc::new(found))),
            found if found.is_named => Ok(None),
            _ => {
                let text =
                    format!("the backend names no authorization server now, and named {issuer}");
                Err(OauthError::Unavailable(text))
            }
        }
    }

    /// Returns the server for a page that anyone can open any number of times. One search runs at a
    /// time, and a failure counts for a while.
    pub(super) async fn discovered_for_page(
        self: &Arc<Self>,
    ) -> Result<Arc<DiscoveredServer>, OauthError> {
        if let Some(server) = self.known_server() {
            return Ok(server);
        }
        let tokens = self.clone();
        // A browser that closes its connection does not end the search.
        let search = tokio::spawn(async move {
            let mut failed = tokens.state.failed_search.lock().await;
            if let Some(server) = tokens.known_server() {
                return Ok(server);
            }
            if let Some((error, at)) = &*failed
                && at.elapsed() < LOGIN_METADATA_PAUSE
            {
                return Err(error.clone());
            }
            let found = tokens.discovered(None).await;
            *failed = found.as_ref().err().map(|error| (error.clone(), Instant::now()));
            found
        });
        let ended = || OauthError::Unavailable("the search for the server ended early".to_owned());
        search.await.unwrap_or_else(|_| Err(ended()))
    }

    /// Finds the server of the backend again, and remembers it.
    pub(super) async fn discovered_now(&self) -> Result<Arc<DiscoveredServer>, OauthError> {
        *self.state.server.lock() = None;
        self.discovered(None).await
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
