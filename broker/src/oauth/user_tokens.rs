//! Tokens of principals for one backend: from the vault, renewed by one process at a time.
//!
//! Invariants:
//! - Every look-up takes a principal. Only the catalog's link uses the grant of the principal that
//!   connected first.
//! - A rotated refresh token is on disk before its access token is used.
//! - A refresh token is used under a lease of its row. A result is written over the version that
//!   was leased only, so a process that is late changes nothing.
//! - A grant is for one URL of the backend.

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
use records::{GrantKey, GrantState};
use rules::limits::oauth::{
    GRANT_CACHED_MAX, GRANT_LEASE, GRANT_LOOK_INTERVAL, GRANT_POLL_INTERVAL, GRANT_WAIT_MAX,
    OAUTH_METADATA_AGE_MAX,
};

use super::{
    challenge::Challenge,
    discovery::{DiscoveredServer, ProtectedBackend},
    fetch::{ConnectReason, OauthError, OauthFetcher},
    machine::{TokenHeader, configured_headers},
    public_address::PublicAddress,
    registration::ClientSettings,
    token_request::{AccessToken, request_token},
    token_source::OauthResources,
    vault::{Grant, OpenGrant, Vault, now_us},
};
use crate::{
    config::spec::{BackendAuth, BackendAuthKind, BackendSpec, TransportSpec},
    metrics::Metrics,
    persistence::fault_point,
};

/// Source of the tokens of one backend's principals.
#[derive(Debug)]
pub struct UserTokens {
    pub(super) tenant: TenantId,
    pub(super) backend_id: BackendId,
    pub(super) backend: ProtectedBackend,
    pub(super) auth: BackendAuth,
    pub(super) fetcher: OauthFetcher,
    pub(super) vault: Vault,
    pub(super) address: Arc<PublicAddress>,
    metrics: Arc<Metrics>,
    server: Mutex<Option<(Arc<DiscoveredServer>, Instant)>>,
    cache: Mutex<HashMap<PrincipalId, CachedToken>>,
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

#[derive(Debug, Clone)]
struct CachedToken {
    header: TokenHeader,
    read_at: Instant,
    renew_at_us: Option<i64>,
}

impl UserTokens {
    pub(super) fn of(
        tenant: &TenantId,
        backend: &BackendId,
        spec: &BackendSpec,
        resources: OauthResources,
    ) -> Option<Arc<Self>> {
        let (BackendAuthKind::OauthUser, TransportSpec::Http { url }) =
            (spec.auth.kind, &spec.transport)
        else {
            return None;
        };
        Some(Arc::new(Self {
            tenant: tenant.clone(),
            backend_id: backend.clone(),
            backend: ProtectedBackend {
                url: url.clone(),
                headers: configured_headers(spec),
                issuer: spec.auth.issuer.clone(),
                resource: spec.auth.resource.clone(),
            },
            auth: spec.auth.clone(),
            fetcher: OauthFetcher::new(resources.http, url),
            vault: Vault(resources.durable),
            address: resources.address,
            metrics: resources.metrics,
            server: Mutex::default(),
            cache: Mutex::default(),
            turns: Mutex::default(),
        }))
    }

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
        &self,
        principal: Option<&PrincipalId>,
    ) -> Result<TokenHeader, OauthError> {
        let principal = self.resolved(principal).await?;
        if let Some(cached) = self.cached(&principal) {
            return Ok(cached);
        }
        let turn = self.turn(&principal);
        let _turn = turn.lock().await;
        match self.cached(&principal) {
            Some(cached) => Ok(cached),
            None => self.current(&principal, None).await,
        }
    }

    /// Returns another header after a refusal.
    pub(super) async fn renewed(
        &self,
        principal: Option<&PrincipalId>,
        refused: &TokenHeader,
        challenge: Option<Challenge>,
    ) -> Result<Option<TokenHeader>, OauthError> {
        let principal = self.resolved(principal).await?;
        let turn = self.turn(&principal);
        let _turn = turn.lock().await;
        if let Some(challenge) = challenge.as_ref().filter(|challenge| challenge.wants_scopes()) {
            return self.step_up(&principal, challenge).await;
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
    pub(super) fn forget(&self, principal: &PrincipalId) {
        self.cache.lock().remove(principal);
    }

    async fn resolved(&self, principal: Option<&PrincipalId>) -> Result<PrincipalId, OauthError> {
        match principal {
            Some(principal) => Ok(principal.clone()),
            None => {
                let first = self.vault.first(&self.key(&PrincipalId::new(""))).await?;
                let first = first.map(|open| open.stored.record.key.principal);
                first.ok_or(OauthError::Unconnected(ConnectReason::New))
            }
        }
    }

    fn cached(&self, principal: &PrincipalId) -> Option<TokenHeader> {
        let cache = self.cache.lock();
        let cached = cache.get(principal)?;
        let is_fresh = cached.read_at.elapsed() < GRANT_LOOK_INTERVAL;
        let is_due = cached.renew_at_us.is_some_and(|at| at <= now_us());
        (is_fresh && !is_due).then(|| cached.header.clone())
    }

    fn turn(&self, principal: &PrincipalId) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.turns.lock();
        if turns.len() >= GRANT_CACHED_MAX {
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        }
        turns.entry(principal.clone()).or_default().clone()
    }

    fn remember(&self, principal: &PrincipalId, grant: &Grant) -> Result<TokenHeader, OauthError> {
        let unusable = || OauthError::Refused("the token is not a header".to_owned());
        let header = bearer(&grant.access_token).ok_or_else(unusable)?;
        let cached = CachedToken {
            header: header.clone(),
            read_at: Instant::now(),
            renew_at_us: grant.renew_at_us,
        };
        let mut cache = self.cache.lock();
        if cache.len() >= GRANT_CACHED_MAX {
            cache.clear();
        }
        cache.insert(principal.clone(), cached);
        Ok(header)
    }

    /// Returns the token of the stored grant, renewed if it is due or is the refused one. The
    /// caller has the turn of the principal.
    async fn current(
        &self,
        principal: &PrincipalId,
        refused: Option<&TokenHeader>,
    ) -> Result<TokenHeader, OauthError> {
        let key = self.key(principal);
        let until = Instant::now() + GRANT_WAIT_MAX;
        loop {
            self.forget(principal);
            let new = OauthError::Unconnected(ConnectReason::New);
            let open = self.vault.grant(&key).await?.ok_or(new)?;
            if open.stored.record.state != GrantState::Connected
                || open.grant.url != self.backend.url
            {
                return Err(OauthError::Unconnected(ConnectReason::Ended));
            }
            let is_refused =
                refused.is_some() && bearer(&open.grant.access_token).as_ref() == refused;
            let is_due = open.grant.renew_at_us.is_some_and(|at| at <= now_us());
            let is_over = open.stored.record.expires_at_us.is_some_and(|at| at <= now_us());
            if !is_refused && !is_due {
                return self.remember(principal, &open.grant);
            }
            let must_wait = is_refused || is_over;
            if open.grant.refresh_token.is_none() {
                if must_wait {
                    return Err(self.ended(&key, &open).await);
                }
                return self.remember(principal, &open.grant);
            }
            match self.refresh(&key, &open).await {
                Ok(Refresh::Done(grant)) => return self.remember(principal, &grant),
                Ok(Refresh::Changed) => continue,
                Ok(Refresh::Leased) => {}
                Err(OauthError::Unavailable(_) | OauthError::Refused(_)) if !must_wait => {}
                Err(error) => return Err(error),
            }
            if !must_wait {
                let header = self.remember(principal, &open.grant)?;
                // Looks again before the interval is over, because another process renews it.
                if let Some(cached) = self.cache.lock().get_mut(principal) {
                    cached.renew_at_us = Some(now_us() + 1_000_000);
                }
                return Ok(header);
            }
            if Instant::now() >= until {
                let text = "another process renews the token and does not finish";
                return Err(OauthError::Unavailable(text.to_owned()));
            }
            tokio::time::sleep(GRANT_POLL_INTERVAL).await;
        }
    }

    /// Uses the refresh token, under the lease of the row.
    async fn refresh(&self, key: &GrantKey, open: &OpenGrant) -> Result<Refresh, OauthError> {
        let record = &open.stored.record;
        if !open.stored.lease_left.is_zero() {
            return Ok(Refresh::Leased);
        }
        let request = match self.refresh_request(open).await {
            Err(OauthError::InvalidGrant(_)) => return Err(self.ended(key, open).await),
            prepared => prepared?,
        };
        if !self.vault.lease(key, open.stored.version, GRANT_LEASE).await? {
            return Ok(Refresh::Leased);
        }
        match request_token(&self.fetcher, request).await {
            Ok(token) => {
                fault_point::hit("grant.refreshed");
                self.metrics.oauth.requested("granted");
                let grant = with_token(open.grant.clone(), &token);
                let ends = (GrantState::Connected, end_of(&token));
                let version =
                    self.saved(key, &record.issuer, &grant, ends, open.stored.version).await?;
                Ok(version.map_or(Refresh::Changed, |_| Refresh::Done(Box::new(grant))))
            }
            Err(OauthError::InvalidGrant(_)) => {
                self.metrics.oauth.requested("refused");
                Err(self.ended(key, open).await)
            }
            Err(error) => {
                self.metrics.oauth.requested("unavailable");
                Err(error)
            }
        }
    }

    /// Writes a renewed grant. Tries for a while, because the old refresh token may be used up.
    async fn saved(
        &self,
        key: &GrantKey,
        issuer: &str,
        grant: &Grant,
        ends: (GrantState, Option<i64>),
        version: i64,
    ) -> Result<Option<i64>, OauthError> {
        let until = Instant::now() + GRANT_WAIT_MAX;
        loop {
            match self.vault.put(key, issuer, grant, ends, Some(version)).await {
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
        let client = self.settings(&record.key)?.client(&server).await?;
        let form = vec![
            ("grant_type", "refresh_token".to_owned()),
            ("refresh_token", grant.refresh_token.clone().unwrap_or_default()),
            ("resource", grant.resource.clone()),
        ];
        let request = client.post(&server.token_endpoint, &server.issuer, form);
        request
            .ok_or_else(|| OauthError::Unavailable("no client assertion can be signed".to_owned()))
    }

    pub(super) fn settings<'a>(
        &'a self,
        key: &'a GrantKey,
    ) -> Result<ClientSettings<'a>, OauthError> {
        let unknown = || {
            OauthError::Refused(
                "browsers cannot reach the broker: set auth.resource to its address".to_owned(),
            )
        };
        Ok(ClientSettings {
            auth: &self.auth,
            vault: &self.vault,
            fetcher: &self.fetcher,
            base: self.address.base().ok_or_else(unknown)?,
            key,
        })
    }

    /// Returns the server of the backend. After a challenge it is sought again.
    pub(super) async fn discovered(
        &self,
        challenge: Option<Challenge>,
    ) -> Result<Arc<DiscoveredServer>, OauthError> {
        if challenge.is_none()
            && let Some((server, found)) = &*self.server.lock()
            && found.elapsed() < OAUTH_METADATA_AGE_MAX
        {
            return Ok(server.clone());
        }
        let found = Arc::new(self.backend.discover(&self.fetcher, challenge).await?);
        *self.server.lock() = Some((found.clone(), Instant::now()));
        Ok(found)
    }

    /// Finds the server of the backend again, and remembers it.
    pub(super) async fn discovered_now(&self) -> Result<Arc<DiscoveredServer>, OauthError> {
        *self.server.lock() = None;
        self.discovered(None).await
    }

    /// Marks a grant that cannot be used any more, unless it has changed.
    async fn ended(&self, key: &GrantKey, open: &OpenGrant) -> OauthError {
        self.forget(&key.principal);
        let record = &open.stored.record;
        let lost = Grant { access_token: String::new(), refresh_token: None, ..open.grant.clone() };
        let ends = (GrantState::Reconnect, None);
        let put = self.vault.put(key, &record.issuer, &lost, ends, Some(open.stored.version));
        match put.await {
            Ok(_) => OauthError::Unconnected(ConnectReason::Ended),
            Err(error) => error,
        }
    }

    /// Notes the scopes that the backend demands. `None` if the grant has them.
    async fn step_up(
        &self,
        principal: &PrincipalId,
        challenge: &Challenge,
    ) -> Result<Option<TokenHeader>, OauthError> {
        let key = self.key(principal);
        let new = OauthError::Unconnected(ConnectReason::New);
        let open = self.vault.grant(&key).await?.ok_or(new)?;
        let held = &open.grant.scopes;
        if challenge.scopes.iter().all(|scope| held.contains(scope)) {
            return Ok(None);
        }
        let mut wanted = held.clone();
        wanted.extend(challenge.scopes.iter().filter(|scope| !held.contains(scope)).cloned());
        let record = &open.stored.record;
        let grant = Grant { wanted, ..open.grant.clone() };
        let ends = (record.state, record.expires_at_us);
        // A lost race only loses the note: the next refusal makes it again.
        self.vault.put(&key, &record.issuer, &grant, ends, Some(open.stored.version)).await?;
        Err(OauthError::Unconnected(ConnectReason::Scopes))
    }
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
    let renew_at_us = token.life.map(|life| now_us().saturating_add(micros(life.mul_f64(part))));
    Grant {
        access_token: token.text.clone(),
        refresh_token: token.refresh_token.clone().or(grant.refresh_token.clone()),
        renew_at_us,
        scopes: token.scopes.clone().unwrap_or_else(|| grant.scopes.clone()),
        ..grant
    }
}

pub(super) fn end_of(token: &AccessToken) -> Option<i64> {
    token.life.map(|life| now_us().saturating_add(micros(life)))
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}
