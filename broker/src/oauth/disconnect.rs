//! The end of a connected account: the broker removes the grant, and revokes its tokens at the
//! authorization server if the server supports that (RFC 7009).
//!
//! Invariant: the broker revokes tokens as the client that got them.

use std::{sync::Arc, time::Instant};

use protocol::ids::PrincipalId;
use records::{GrantKey, StoredGrant};
use rules::limits::oauth::GRANT_POLL_INTERVAL;

use super::{
    connect::STORED_WITHIN,
    discovery::DiscoveredServer,
    fetch::OauthError,
    user_tokens::UserTokens,
    vault::{Grant, OpenGrant},
};
use crate::auth::ClientAuthentication;

/// An account that has just been connected, with the client that got its tokens.
pub struct ConnectedAccount {
    pub(super) key: GrantKey,
    pub(super) grant: Grant,
    pub(super) client: ClientAuthentication,
    pub(super) server: Arc<DiscoveredServer>,
}

impl UserTokens {
    /// Ends a connection here, and at the authorization server if it can (RFC 7009). Returns false
    /// if there was none. A cancelled caller does not stop this.
    pub async fn disconnect(self: &Arc<Self>, principal: &PrincipalId) -> Result<bool, OauthError> {
        let (tokens, principal) = (self.clone(), principal.clone());
        let ending = self.renewals.spawn(async move { tokens.disconnect_now(&principal).await });
        let ended = || OauthError::Unavailable("the end of the connection broke off".to_owned());
        ending.await.unwrap_or_else(|_| Err(ended()))
    }

    async fn disconnect_now(&self, principal: &PrincipalId) -> Result<bool, OauthError> {
        let key = self.key(principal);
        let known = self.vault.grant(&key).await?;
        let removed = self.removed(&key).await;
        self.forget(principal);
        let was_connected = matches!(removed, Ok(Some(_))) || known.is_some();
        // Another process may have renewed the tokens since the grant was read. Without a row, the
        // answer to its removal was lost.
        if let Some(open) = self.open_removed(&removed).or(known) {
            self.revoke_tokens(&key, &open.grant, &open.stored.record.issuer).await;
        }
        removed.map(|_row| was_connected)
    }

    /// Removes a grant. Tries for a while, because its tokens are revoked afterwards.
    async fn removed(&self, key: &GrantKey) -> Result<Option<StoredGrant>, OauthError> {
        let until = Instant::now() + STORED_WITHIN;
        loop {
            match self.vault.take(key).await {
                Err(_) if Instant::now() < until => tokio::time::sleep(GRANT_POLL_INTERVAL).await,
                taken => return taken,
            }
        }
    }

    /// Opens the grant of a removed row.
    fn open_removed(&self, removed: &Result<Option<StoredGrant>, OauthError>) -> Option<OpenGrant> {
        let stored = removed.as_ref().ok()?.clone()?;
        self.vault.opened(stored)
    }

    /// Revokes the tokens of a grant that is gone here, if the authorization server can (RFC 7009).
    async fn revoke_tokens(&self, key: &GrantKey, grant: &Grant, issuer: &str) {
        if let Ok(settings) = self.settings(key, Some(&grant.redirect_uri))
            && let Ok(server) = self.discovered(None).await
            && server.issuer == issuer
            && let Ok(client) = settings.client_of_tokens(&server, &grant.client_id).await
        {
            self.revoke_as(&client, &server, grant).await;
        }
    }

    /// Revokes tokens as the client that got them.
    pub(super) async fn revoke_as(
        &self,
        client: &ClientAuthentication,
        server: &DiscoveredServer,
        grant: &Grant,
    ) {
        let endpoint = grant.revocation_endpoint.as_deref();
        let token = grant.refresh_token.as_ref().filter(|token| !token.is_empty());
        let token = token.unwrap_or(&grant.access_token).clone();
        if let Some(endpoint) = endpoint.and_then(|url| self.fetcher.permitted(url))
            && let Some(request) = client.post(&endpoint, &server.issuer, vec![("token", token)])
        {
            let _best_effort = self.fetcher.send(request).await;
        }
    }

    /// Ends the connection of an account that may not be connected any more. The backend, and with
    /// it the registration of the client, may be gone.
    pub async fn take_back(&self, account: &ConnectedAccount) -> Result<(), OauthError> {
        let ConnectedAccount { key, grant, client, server } = account;
        let removed = self.removed(key).await;
        self.forget(&key.principal);
        self.revoke_as(client, server, grant).await;
        if let Some(other) = self.open_removed(&removed)
            && other.grant != *grant
        {
            self.revoke_tokens(key, &other.grant, &other.stored.record.issuer).await;
        }
        removed.map(|_row| ())
    }
}
