//! Operations on connections: accounts that principals connected at backends.

use std::sync::Arc;

use config::FieldError;
use protocol::ids::{BackendId, PrincipalId, TenantId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Control, ControlError, resource_views::moment, validation::no_backend};
use crate::{
    auth::is_printable,
    backends::principal_reads,
    oauth::{Connections, OauthError, UserTokens},
};

/// An account that a principal connected at a backend.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConnectionView {
    pub principal: String,
    pub backend: String,
    /// Authorization server that gave the tokens.
    pub issuer: String,
    /// `connected`, or `reconnect` if the principal must connect again.
    pub state: String,
    /// End of the access token, which the broker renews.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// Why the last renewal of the token failed: `invalid_grant` (the server does not accept the
    /// refresh token any more), `refused` or `unavailable`. Absent: it did not fail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

/// Result of a test of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConnectionTestView {
    /// Whether the backend accepted a handshake with the token of the principal.
    pub ok: bool,
    /// Why not: of the account, the authorization server or the backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A one-time address at which a person signs in to the connect page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConnectLinkView {
    pub url: String,
    /// Seconds for which it can be used.
    pub expires_in: u64,
}

impl Control {
    /// Returns the connections of a tenant, by backend and principal.
    pub async fn connections(
        &self,
        tenant: &TenantId,
    ) -> Result<Vec<ConnectionView>, ControlError> {
        self.check_tenant(tenant)?;
        let listed = self.all_connections().list(tenant).await.map_err(unavailable)?;
        Ok(listed
            .into_iter()
            .map(|stored| ConnectionView {
                principal: stored.record.key.principal.as_str().to_owned(),
                backend: stored.record.key.backend.to_string(),
                issuer: stored.record.issuer,
                state: stored.record.state.name().to_owned(),
                expires_at: stored.record.expires_at_us.map(moment),
                last_error: stored.record.last_error.map(|error| error.name().to_owned()),
            })
            .collect())
    }

    /// Tests the account of a principal at a backend.
    pub async fn test_connection(
        &self,
        tenant: &TenantId,
        principal: &str,
        backend: &BackendId,
    ) -> Result<ConnectionTestView, ControlError> {
        self.user_tokens(tenant, backend)?;
        let found = self.broker.tenant(tenant).and_then(|tenant| tenant.backend(backend));
        let name = backend.to_string();
        let found = found.ok_or(ControlError::NotFound { what: "backend", name })?;
        let error = principal_reads::test(&found, &PrincipalId::new(principal)).await.err();
        Ok(ConnectionTestView { ok: error.is_none(), error })
    }

    /// Ends a connection here, and at its authorization server if that can revoke tokens.
    pub async fn end_connection(
        &self,
        tenant: &TenantId,
        principal: &str,
        backend: &BackendId,
    ) -> Result<(), ControlError> {
        let tokens = self.user_tokens(tenant, backend)?;
        let ended = tokens.disconnect(&PrincipalId::new(principal)).await.map_err(unavailable)?;
        let name = format!("of {principal} at {backend}");
        if ended { Ok(()) } else { Err(ControlError::NotFound { what: "connection", name }) }
    }

    /// Makes a one-time address at which this principal connects an account.
    pub async fn connect_link(
        &self,
        tenant: &TenantId,
        principal: &str,
        backend: &BackendId,
    ) -> Result<ConnectLinkView, ControlError> {
        let tokens = self.user_tokens(tenant, backend)?;
        if principal.is_empty() || principal.len() > 512 || !is_printable(principal) {
            let fault = FieldError::new(
                "principal",
                "is not the name of a principal",
                "a principal as sessions show it",
            );
            return Err(ControlError::Invalid(fault));
        }
        let url = tokens.connect_url().ok_or_else(|| {
            let wrong = "has no address for browsers, because auth.resource is missing";
            ControlError::Invalid(FieldError::new(
                "backend",
                wrong,
                "auth.resource in the configuration file",
            ))
        })?;
        let connections = self.all_connections();
        let owner = PrincipalId::new(principal);
        let secret = connections.make_link(tenant, &owner, backend.as_str()).await;
        let secret = secret.map_err(unavailable)?;
        let page = url.trim_end_matches(backend.as_str()).trim_end_matches('/');
        Ok(ConnectLinkView {
            url: format!("{page}?link={secret}"),
            expires_in: rules::limits::oauth::CONNECT_LINK_LIFE.as_secs(),
        })
    }

    fn all_connections(&self) -> Connections {
        Connections::new(self.broker.shared.persistence.clone())
    }

    fn user_tokens(
        &self,
        tenant: &TenantId,
        backend: &BackendId,
    ) -> Result<Arc<UserTokens>, ControlError> {
        self.check_tenant(tenant)?;
        let found = self.broker.tenant(tenant).and_then(|tenant| tenant.backend(backend));
        let found = found.ok_or_else(|| no_backend(backend))?;
        let tokens = found.tokens.as_ref().and_then(|tokens| tokens.user().cloned());
        tokens.ok_or_else(|| ControlError::NoAccounts { backend: backend.clone() })
    }
}

fn unavailable(error: OauthError) -> ControlError {
    ControlError::Store(crate::persistence::StoreError::Unavailable { detail: error.to_string() })
}
