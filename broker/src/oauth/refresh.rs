//! The use of a refresh token, under a lease of the grant's row. The broker writes the result only
//! over the version that it leased.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use records::{GrantError, GrantKey, StoredGrant};
use rules::limits::oauth::{GRANT_LEASE, GRANT_POLL_INTERVAL, GRANT_WAIT_MAX, OAUTH_FAILURE_PAUSE};

use super::{
    client_keys::signed,
    discovery::DiscoveredServer,
    fetch::{ConnectReason, OauthError},
    id_token::remaining_life,
    registration::ClientSettings,
    token_request::AccessToken,
    user_tokens::{UserTokens, for_resource},
    vault::{Grant, GrantStatus, OpenGrant},
};
use crate::{
    auth::{ClientAuthentication, now_us},
    persistence::fault_point,
};

/// What became of an attempt to use a refresh token.
pub(super) enum Refresh {
    Done(Box<Grant>),
    /// Another process uses the refresh token.
    Leased,
    /// The row has changed meanwhile.
    Changed,
}

/// A request that uses a refresh token, with its client.
struct RefreshRequest<'o> {
    settings: ClientSettings<'o>,
    server: Arc<DiscoveredServer>,
    client: ClientAuthentication,
    request: Request<Full<Bytes>>,
}

impl UserTokens {
    /// Uses the refresh token, under the lease of the row. Neither a cancelled caller nor a drain
    /// stops this, because the server may have replaced the refresh token already.
    pub(super) async fn refresh(
        self: &Arc<Self>,
        key: &GrantKey,
        open: &Arc<OpenGrant>,
    ) -> Result<Refresh, OauthError> {
        let (tokens, key, open) = (self.clone(), key.clone(), open.clone());
        let renewals = tokens.renewals.clone();
        let refreshing = renewals.spawn(async move { tokens.refresh_once(&key, &open).await });
        let ended = || OauthError::Unavailable("the renewal of the token ended early".to_owned());
        refreshing.await.unwrap_or_else(|_| Err(ended()))
    }

    async fn refresh_once(&self, key: &GrantKey, open: &OpenGrant) -> Result<Refresh, OauthError> {
        let record = &open.stored.record;
        if open.stored.is_leased_for(GRANT_LEASE) || self.leaves_to_holder(&open.stored) {
            return Ok(Refresh::Leased);
        }
        let prepared = match self.refresh_request(open).await {
            Ok(prepared) => prepared,
            Err(error) => {
                self.count_failed(&error);
                return match error {
                    OauthError::InvalidGrant(_) => self.ended(key, open).await,
                    error => Err(self.failed(key, open, error, None).await),
                };
            }
        };
        if !self.vault.lease(key, open.stored.version, GRANT_LEASE).await? {
            return Ok(Refresh::Leased);
        }
        let RefreshRequest { settings, server, client, request } = prepared;
        match settings.token(&server, &client, request).await {
            Ok(token) => {
                let token = self.target.usable(token);
                fault_point::hit("grant.refreshed");
                self.metrics.oauth.requested("granted");
                let client_id = client.client_id().to_owned();
                let grant = Grant { client_id, ..with_token(open.grant.clone(), &token) };
                let status = GrantStatus::connected(end_of(&token));
                let saved = self.saved(key, &record.issuer, &grant, status, open.stored.version);
                if saved.await?.is_some() {
                    return Ok(Refresh::Done(Box::new(grant)));
                }
                // If the connection has ended meanwhile, nothing else knows the new tokens.
                if self.vault.grant(key).await?.is_none() {
                    self.revoke_as(&client, &server, &grant).await;
                }
                Ok(Refresh::Changed)
            }
            Err(error) => {
                self.count_failed(&error);
                match error {
                    OauthError::InvalidGrant(_) => self.ended(key, open).await,
                    error => Err(self.failed(key, open, error, Some(OAUTH_FAILURE_PAUSE)).await),
                }
            }
        }
    }

    /// Counts a token request without a token. An outage of the database says nothing about the
    /// server.
    pub(super) fn count_failed(&self, error: &OauthError) {
        if !matches!(error, OauthError::StoreUnavailable(_)) {
            let outcome = if error.is_temporary() { "unavailable" } else { "refused" };
            self.metrics.oauth.requested(outcome);
        }
    }

    /// Returns whether the holder of a lapsed lease may still write its result.
    pub(super) fn leaves_to_holder(&self, stored: &StoredGrant) -> bool {
        let (principal, leases) = (&stored.record.key.principal, &self.state.lapsed_leases);
        stored.is_lease_open
            && self.vault.is_shared()
            && !leases.is_settled(principal, stored.version, Instant::now())
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
    async fn refresh_request<'o>(
        &'o self,
        open: &'o OpenGrant,
    ) -> Result<RefreshRequest<'o>, OauthError> {
        let (record, grant) = (&open.stored.record, &open.grant);
        let server = self.server_of(&record.issuer).await?.ok_or_else(|| {
            let text =
                format!("the backend names another authorization server than {}", record.issuer);
            OauthError::InvalidGrant(text)
        })?;
        let settings = self.settings(&record.key, Some(&grant.redirect_uri))?;
        let client = settings.client_of_tokens(&server, &grant.client_id).await?;
        let mut form = vec![
            ("grant_type", "refresh_token".to_owned()),
            ("refresh_token", grant.refresh_token.clone().unwrap_or_default()),
        ];
        form.extend(for_resource(&grant.resource));
        let request = signed(&client, &server.token_endpoint, &server.issuer, form)?;
        Ok(RefreshRequest { settings, server, client, request })
    }

    /// Marks a grant that cannot be used any more, unless it has changed meanwhile.
    pub(super) async fn ended(
        &self,
        key: &GrantKey,
        open: &OpenGrant,
    ) -> Result<Refresh, OauthError> {
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
        match put.await? {
            Some(_) => Err(OauthError::Unconnected(ConnectReason::Ended)),
            None => Ok(Refresh::Changed),
        }
    }
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
