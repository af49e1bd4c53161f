//! The source of a link's tokens: those of the broker, or those of the link's principal.

use std::sync::Arc;

use config::spec::{
    ActorToken, BackendAuth, BackendAuthKind, BackendSpec, CatalogAuth, IdentityProvider,
};
use futures_util::{FutureExt, TryFutureExt, future::BoxFuture};
use protocol::ids::{BackendId, PrincipalId, TenantId};
use tokio_util::task::TaskTracker;
use transport::HttpClient;

use super::{
    challenge::Challenge,
    client_keys::{ClientKeys, RegisteredClient, TenantKeys},
    discovery::ProtectedBackend,
    exchanged::{Actor, ExchangedTokens, SubjectOrigin},
    fetch::{OauthError, OauthFetcher},
    machine::MachineTokens,
    public_address::PublicAddress,
    server_cache::ServerCache,
    subject_tokens::SubjectTokens,
    user_tokens::{AuthorizationTarget, UserTokens},
    vault::Vault,
};
use crate::{
    metrics::Metrics,
    oauth::{RenewedToken, TokenHeader, UsableToken},
    persistence::Persistence,
};

/// Source of the tokens of one backend.
#[derive(Debug, Clone)]
pub enum TokenSource {
    /// All principals share the tokens.
    Machine(Arc<MachineTokens>),
    /// Each principal connects an account.
    User(Arc<UserTokens>),
    /// Each principal has tokens that are made of another one.
    Exchanged(Arc<ExchangedTokens>),
}

/// What the sources of one process share.
#[derive(Debug, Clone)]
pub struct OauthResources {
    pub http: HttpClient,
    pub persistence: Arc<Persistence>,
    pub metrics: Arc<Metrics>,
    /// Address of the broker for browsers.
    pub address: Arc<PublicAddress>,
    /// Keys that the broker makes as a client of authorization servers.
    pub client_keys: Arc<ClientKeys>,
    /// Tokens of callers that can be exchanged.
    pub subjects: Arc<SubjectTokens>,
    /// Uses of refresh tokens. The process waits for them before it ends.
    pub renewals: TaskTracker,
}

/// The backend that a source is made for.
struct SourceSettings<'s> {
    tenant: &'s TenantId,
    backend: &'s BackendId,
    spec: &'s BackendSpec,
    protected_backend: ProtectedBackend,
    resources: OauthResources,
}

impl TokenSource {
    /// Returns the source of a backend, if it wants tokens.
    pub fn of(
        tenant: &TenantId,
        backend: &BackendId,
        spec: &BackendSpec,
        resources: OauthResources,
    ) -> Option<Self> {
        let protected_backend = ProtectedBackend::of(spec)?;
        let settings = SourceSettings { tenant, backend, spec, protected_backend, resources };
        match spec.auth.kind {
            BackendAuthKind::None | BackendAuthKind::Bearer | BackendAuthKind::Headers => None,
            BackendAuthKind::OauthClient => settings.machine().map(Self::Machine),
            BackendAuthKind::OauthUser => Some(Self::User(settings.users())),
            BackendAuthKind::TokenExchange => {
                let origin = SubjectOrigin::Callers {
                    tokens: settings.resources.subjects.clone(),
                    tenant: tenant.clone(),
                    grant: spec.auth.grant,
                    audience: spec.auth.audience.clone(),
                    actor: settings.actor(),
                };
                settings.exchanged(origin).map(Self::Exchanged)
            }
            BackendAuthKind::Enterprise => {
                let provider = settings.provider(spec.auth.provider.as_ref()?);
                settings.exchanged(SubjectOrigin::Provider(provider)).map(Self::Exchanged)
            }
        }
    }

    /// Returns what manages the accounts of principals, if they connect any.
    pub fn user(&self) -> Option<&Arc<UserTokens>> {
        match self {
            Self::User(tokens) => Some(tokens),
            Self::Exchanged(tokens) => tokens.provider(),
            Self::Machine(_) => None,
        }
    }

    /// Returns whether each principal has tokens of its own.
    pub fn is_per_principal(&self) -> bool {
        !matches!(self, Self::Machine(_))
    }

    /// Returns whether the tokens are made of those of callers.
    pub fn needs_callers(&self) -> bool {
        matches!(self, Self::Exchanged(tokens) if tokens.provider().is_none())
    }
}

impl SourceSettings<'_> {
    fn fetcher(&self) -> OauthFetcher {
        OauthFetcher::new(self.resources.http.clone(), &self.protected_backend.url)
    }

    fn keys(&self) -> TenantKeys {
        TenantKeys { keys: self.resources.client_keys.clone(), tenant: self.tenant.clone() }
    }

    fn machine(&self) -> Option<Arc<MachineTokens>> {
        let metrics = self.resources.metrics.clone();
        MachineTokens::of(self.spec, self.fetcher(), self.keys(), metrics)
    }

    /// Returns the source of the tokens with which lists are fetched, if it is the broker.
    fn service(&self) -> Option<Arc<MachineTokens>> {
        let is_service = self.spec.auth.catalog_auth == CatalogAuth::Service;
        is_service.then(|| self.machine()).flatten()
    }

    /// Returns what names the broker as the acting party of exchanges.
    fn actor(&self) -> Option<Actor> {
        match self.spec.auth.actor_token? {
            ActorToken::AccessToken => self.machine().map(Actor::Client),
            ActorToken::Jwt => Some(Actor::Signed),
        }
    }

    fn users(&self) -> Arc<UserTokens> {
        let service = self.service();
        let target = AuthorizationTarget::Backend(self.protected_backend.clone().or_own_server());
        self.accounts(target, self.spec.auth.clone(), service)
    }

    /// Returns the accounts at an identity provider, where the broker is another client.
    fn provider(&self, provider: &IdentityProvider) -> Arc<UserTokens> {
        let mut scopes = vec!["openid".to_owned()];
        scopes.extend(provider.scopes.iter().filter(|scope| *scope != "openid").cloned());
        let auth = BackendAuth {
            kind: BackendAuthKind::OauthUser,
            client_id: Some(provider.client_id.clone()),
            client_secret: provider.client_secret.clone(),
            issuer: Some(provider.issuer.clone()),
            scopes,
            ..BackendAuth::default()
        };
        let target = AuthorizationTarget::Provider {
            issuer: provider.issuer.clone(),
            comparison: self.spec.auth.issuer_compare,
            backend_url: self.protected_backend.url.clone(),
        };
        self.accounts(target, auth, None)
    }

    fn accounts(
        &self,
        target: AuthorizationTarget,
        auth: BackendAuth,
        service: Option<Arc<MachineTokens>>,
    ) -> Arc<UserTokens> {
        Arc::new(UserTokens {
            tenant: self.tenant.clone(),
            backend_id: self.backend.clone(),
            target,
            auth,
            fetcher: self.fetcher(),
            vault: Vault(self.resources.persistence.clone()),
            address: self.resources.address.clone(),
            renewals: self.resources.renewals.clone(),
            keys: self.keys(),
            service,
            metrics: self.resources.metrics.clone(),
            state: Default::default(),
        })
    }

    fn exchanged(&self, origin: SubjectOrigin) -> Option<Arc<ExchangedTokens>> {
        Some(Arc::new(ExchangedTokens {
            fetcher: self.fetcher(),
            server: ServerCache::of(self.protected_backend.clone()),
            client: RegisteredClient::of(&self.spec.auth, self.keys())?,
            scopes: self.spec.auth.scopes.clone(),
            origin,
            service: self.service(),
            metrics: self.resources.metrics.clone(),
            state: Default::default(),
        }))
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
    /// Returns the token for the next request, if it is at hand and not due.
    pub fn held(&self) -> Option<UsableToken> {
        let sought_each_time = |header| UsableToken { header, stays: None };
        match (&self.source, &self.principal) {
            (TokenSource::Machine(tokens), _) => tokens.held().map(sought_each_time),
            (TokenSource::User(tokens), Some(principal)) => tokens.cached(principal),
            (TokenSource::Exchanged(tokens), Some(principal)) => {
                tokens.held(principal).map(sought_each_time)
            }
            (_, None) => None,
        }
    }

    /// Returns a number that grows with every change of a token that stays.
    pub fn changes(&self) -> u64 {
        match &self.source {
            TokenSource::User(tokens) => tokens.changes(),
            TokenSource::Machine(_) | TokenSource::Exchanged(_) => 0,
        }
    }

    /// Returns the header for the next request.
    pub fn header(&self) -> BoxFuture<'_, Result<TokenHeader, OauthError>> {
        let principal = self.principal.as_ref();
        match &self.source {
            TokenSource::Machine(tokens) => tokens.header().boxed(),
            TokenSource::User(tokens) => tokens.header(principal).boxed(),
            TokenSource::Exchanged(tokens) => tokens.header(principal).boxed(),
        }
    }

    /// Returns another header after the backend refused `refused` with 401, or with 403 for a lack
    /// of scopes. `None`: another one would not help.
    pub fn renewed<'t>(
        &'t self,
        refused: &'t TokenHeader,
        challenge: Option<Challenge>,
    ) -> BoxFuture<'t, Result<Option<RenewedToken>, OauthError>> {
        let principal = self.principal.as_ref();
        match &self.source {
            TokenSource::Machine(tokens) => tokens.renewed(refused, challenge).map_ok(Some).boxed(),
            TokenSource::User(tokens) => tokens.renewed(principal, refused, challenge).boxed(),
            TokenSource::Exchanged(tokens) => {
                tokens.renewed(principal, refused, challenge).map_ok(Some).boxed()
            }
        }
    }
}
