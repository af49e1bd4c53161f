//! Settings of sign-in that are replaced while the broker runs, and the admission of callers to
//! their tenants.

use std::sync::Arc;

use arc_swap::Guard;
use config::{AuthConfig, IssuerConfig};
use protocol::{error::Refusal, ids::TenantId};
use rules::{
    access::Subject, endpoint::Endpoint, operators::Operator, sign_in_failures::SignInFailureReason,
};

use super::{Broker, key_required, unknown_backend, unknown_toolset};
use crate::{
    auth::{
        AuthError, AuthSettings, AuthenticatedCaller, Caller, ExchangeableToken, ForwardedClaims,
        IssuerState, VerifiedToken, adapted::AdaptedIssuer,
    },
    backends::backend::{Backend, BackendState},
    oauth::{LoginPermit, OperatorLogins, ProvenSignIn, SignIns, TokenSource},
    sessions::tenant::Tenant,
};

/// What a denied sign-in has waited for already. A token can need its key first, and then the
/// answer of its issuer.
#[derive(Default)]
pub(super) struct SignInWaits {
    has_fetched: bool,
    has_introspected: bool,
}

impl SignInWaits {
    /// Waits for what the token lacks. Returns false if nothing more can help. `check_address`
    /// refuses an address that guesses tokens: it causes no request to an issuer.
    pub(super) async fn wait_for(
        &mut self,
        denied: &AuthError,
        bearer: &str,
        check_address: impl FnOnce() -> Result<(), Refusal>,
    ) -> Result<bool, Refusal> {
        match denied {
            AuthError::KeyUnknown(key) if !std::mem::replace(&mut self.has_fetched, true) => {
                key.wait_for_keys().await;
            }
            AuthError::NotIntrospected(token)
                if !std::mem::replace(&mut self.has_introspected, true) =>
            {
                check_address()?;
                token.check_active(bearer).await?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

impl Broker {
    /// Returns whether a bearer can be an operator's token of an issuer.
    pub fn can_be_operator(&self, bearer: &str) -> bool {
        self.tokens.can_be_operator(bearer)
    }

    /// Returns the operator of a token of an issuer.
    pub async fn authenticate_operator(&self, bearer: &str) -> Result<Operator, AuthError> {
        let mut waits = SignInWaits::default();
        loop {
            let denied = match self.tokens.verify_operator(bearer) {
                Ok(operator) => return Ok(operator),
                Err(denied) => denied,
            };
            if !waits.wait_for(&denied, bearer, || Ok(())).await? {
                return Err(denied);
            }
        }
    }

    /// Returns what carries out logins of operators at issuers.
    pub fn operator_logins(&self) -> OperatorLogins {
        let issuers = self.tokens.operator_login_issuers();
        OperatorLogins::new(issuers, self.tokens.clients(), self.login_servers.clone())
    }

    /// Returns the right to use an issuer for a login of a browser. `None`: too many logins do.
    pub fn login_permit(&self, issuer: &str) -> Option<LoginPermit> {
        let permit = self.login_servers.permit(issuer);
        if permit.is_none() {
            self.shared.metrics.rate_limited("logins");
        }
        permit
    }

    /// Admits a caller to its tenant as [`Broker::admit_authenticated`] does. `None`: the tenant is
    /// gone.
    pub fn admit_to(
        &self,
        tenant: Option<&Tenant>,
        proven: AuthenticatedCaller,
    ) -> Result<AuthenticatedCaller, AuthError> {
        if !tenant.is_some_and(Tenant::enabled) {
            return Err(AuthError::failed(key_required(), SignInFailureReason::Tenant));
        }
        match (&proven.exchangeable, &proven.caller.subject_token) {
            (Some(token), _) => self.record_exchangeable(&proven.caller, token),
            // Another replica verified and stored it.
            (None, Some(digest)) => {
                let Caller { tenant, principal, .. } = &proven.caller;
                self.shared.oauth.subjects.select(tenant, principal, digest);
            }
            (None, None) => {}
        }
        Ok(proven)
    }

    /// Notes the token of a request, if it can be exchanged. With the first one of a principal,
    /// backends whose lists are unknown are tried again.
    fn record_exchangeable(&self, caller: &Caller, token: &Arc<ExchangeableToken>) {
        let subjects = &self.shared.oauth.subjects;
        if subjects.is_current(&caller.tenant, &caller.principal, token) {
            return;
        }
        let Some(tenant) = self.tenant(&caller.tenant) else { return };
        let mut backends = tenant.backends();
        backends.retain(|backend| backend.tokens.as_ref().is_some_and(TokenSource::needs_callers));
        if !backends.is_empty() && subjects.record(&caller.tenant, &caller.principal, token) {
            backends.iter().for_each(|one| one.principal_lists.expire_of(&caller.principal));
            backends.retain(|backend| backend.health.state() != BackendState::Ready);
            backends.iter().for_each(|backend| backend.reconnect());
        }
    }

    /// Returns what carries out sign-ins of people.
    pub fn sign_ins(&self) -> SignIns {
        let (clients, servers) = (self.tokens.clients(), self.login_servers.clone());
        SignIns::new(clients, servers, self.shared.oauth.address.clone())
    }

    /// Returns the issuers at which people can sign in.
    pub fn sign_in_issuers(&self) -> Vec<Arc<IssuerConfig>> {
        self.tokens.sign_in_issuers()
    }

    /// Returns the claim that names the principals of an issuer.
    pub fn principal_claim(&self, issuer: &str) -> String {
        self.tokens.principal_claim(issuer)
    }

    /// Returns the tenant and the subject of a person who signed in, if the tenant is enabled. The
    /// signing key of the ID token may have to be fetched first.
    pub async fn signed_in(&self, person: &ProvenSignIn) -> Option<(TenantId, Subject)> {
        let ProvenSignIn { issuer, nonce, id_token, .. } = person;
        let mut read = self.tokens.signed_in(issuer, nonce, id_token);
        if let Err(AuthError::KeyUnknown(key)) = &read {
            key.wait_for_keys().await;
            read = self.tokens.signed_in(issuer, nonce, id_token);
        }
        if let Err(AuthError::KeyUnknown(_)) = &read {
            tracing::warn!(
                issuer,
                "an ID token is refused: its key is not among those of the issuer"
            );
        }
        let (tenant, subject) = read.ok()?;
        self.tenant(&tenant).is_some_and(|tenant| tenant.enabled()).then_some((tenant, subject))
    }

    /// Returns the token of a caller that another replica has verified.
    pub fn forwarded_token(&self, caller: &Caller, claims: ForwardedClaims) -> VerifiedToken {
        let (tenant, principal) = (caller.tenant.clone(), caller.principal.clone());
        VerifiedToken::forwarded(tenant, principal, claims, self.keyring.revocations())
    }

    /// Returns the settings of sign-in in force.
    pub fn auth(&self) -> Guard<Arc<AuthConfig>> {
        self.auth.load()
    }

    /// Returns the settings of sign-in, for a listener that follows them.
    pub fn auth_settings(&self) -> AuthSettings {
        self.auth.clone()
    }

    /// Puts settings of sign-in into force. Connections whose token has a removed or changed issuer
    /// end as if the token had expired. Must be called inside the runtime.
    pub fn set_auth(&self, next: AuthConfig) {
        if **self.auth.load() == next {
            return;
        }
        self.shared.oauth.address.set_resource(next.resource.as_deref());
        self.tokens.set_issuers(next.resource.as_deref(), &next.issuers);
        self.auth.replace(next);
    }

    /// Returns the issuer whose authorization server for clients has this id.
    pub fn adapted_issuer(&self, id: &str) -> Option<AdaptedIssuer> {
        self.tokens.adapted(id)
    }

    /// Returns the state of an issuer in force.
    pub fn issuer_state(&self, issuer: &str) -> Option<IssuerState> {
        self.tokens.issuer_state(issuer)
    }
}

/// Refuses an endpoint whose backend or toolset the tenant does not have. `None`: the tenant is
/// gone.
pub fn check_endpoint_of(
    tenant: Option<&Tenant>,
    caller: &Caller,
    endpoint: &Endpoint,
) -> Result<(), Refusal> {
    match endpoint {
        Endpoint::Aggregated => Ok(()),
        Endpoint::Single(id) => {
            let is_known = tenant.is_some_and(|tenant| {
                tenant.backend(id).is_some() && tenant.may_use_backend(&caller.subject, id)
            });
            if is_known { Ok(()) } else { Err(unknown_backend(id)) }
        }
        Endpoint::Toolset(id) => {
            let is_known = tenant.is_some_and(|tenant| {
                tenant.toolsets().get(id).is_some() && may_use_any(tenant, caller, endpoint)
            });
            if is_known { Ok(()) } else { Err(unknown_toolset(id)) }
        }
    }
}

/// Returns whether the caller may use an object of any backend at an endpoint. An endpoint without
/// backends has nothing to hide.
fn may_use_any(tenant: &Tenant, caller: &Caller, endpoint: &Endpoint) -> bool {
    let backends = tenant.backends_at(endpoint);
    let may_use = |backend: &Arc<Backend>| tenant.may_use_backend(&caller.subject, &backend.id);
    backends.is_empty() || backends.iter().any(may_use)
}
