//! The source of a link's tokens: those of the broker, or those of the link's principal.

use std::sync::Arc;

use futures_util::{FutureExt, TryFutureExt, future::BoxFuture};
use protocol::ids::{BackendId, PrincipalId, TenantId};
use transport::HttpClient;

use super::{
    challenge::Challenge, fetch::OauthError, machine::MachineTokens, public_address::PublicAddress,
    user_tokens::UserTokens,
};
use crate::{
    config::spec::BackendSpec, metrics::Metrics, oauth::TokenHeader, persistence::Persistence,
};

/// Source of the tokens of one backend.
#[derive(Debug, Clone)]
pub enum TokenSource {
    /// All principals share the tokens.
    Machine(Arc<MachineTokens>),
    /// Each principal has tokens.
    User(Arc<UserTokens>),
}

/// What sources need of the process.
#[derive(Debug)]
pub struct OauthResources {
    pub http: HttpClient,
    pub durable: Arc<Persistence>,
    pub metrics: Arc<Metrics>,
    pub address: Arc<PublicAddress>,
}

impl TokenSource {
    /// Returns the source of a backend, if it wants tokens.
    pub fn of(
        tenant: &TenantId,
        backend: &BackendId,
        spec: &BackendSpec,
        resources: OauthResources,
    ) -> Option<Self> {
        let machine = MachineTokens::of(spec, &resources.http, resources.metrics.clone());
        machine
            .map(Self::Machine)
            .or_else(|| UserTokens::of(tenant, backend, spec, resources).map(Self::User))
    }

    pub fn user(&self) -> Option<&Arc<UserTokens>> {
        match self {
            Self::User(tokens) => Some(tokens),
            Self::Machine(_) => None,
        }
    }
}

/// Tokens of one link.
#[derive(Debug)]
pub struct LinkTokens {
    pub source: TokenSource,
    /// Principal of the link. `None` for the link that fetches the catalog.
    pub principal: Option<PrincipalId>,
}

impl LinkTokens {
    /// Returns the header for the next request.
    pub fn header(&self) -> BoxFuture<'_, Result<TokenHeader, OauthError>> {
        match &self.source {
            TokenSource::Machine(tokens) => tokens.header().boxed(),
            TokenSource::User(tokens) => tokens.header(self.principal.as_ref()).boxed(),
        }
    }

    /// Returns another header after the backend refused `refused` with 401, or with 403 for a lack
    /// of scopes. `None`: another one would not help.
    pub fn renewed<'t>(
        &'t self,
        refused: &'t TokenHeader,
        challenge: Option<Challenge>,
    ) -> BoxFuture<'t, Result<Option<TokenHeader>, OauthError>> {
        match &self.source {
            TokenSource::Machine(tokens) => tokens.renewed(refused, challenge).map_ok(Some).boxed(),
            TokenSource::User(tokens) => {
                tokens.renewed(self.principal.as_ref(), refused, challenge).boxed()
            }
        }
    }
}
