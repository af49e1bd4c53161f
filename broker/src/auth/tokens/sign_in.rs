//! The issuers at which people sign in: at the connect page (`auth.issuers[].sign_in`), and at the
//! console (`auth.issuers[].admin.login`). What an ID token proves of a person at the connect page.
//!
//! Invariant: a person who signs in is the principal that the access tokens of the same issuer have.

use std::sync::Arc;

use config::{IssuerConfig, LoginClient};
use protocol::ids::TenantId;
use rules::{
    access::{Attribute, Subject},
    sign_in_failures::SignInFailureReason,
};

use super::{
    TokenVerifier,
    error::TokenError,
    issuer::TokenIssuer,
    jwt::{Claims, Jwt},
};
use crate::auth::{
    auth_error::{AuthError, UnknownSigningKey, token_not_valid},
    verified_token::VerifiedToken,
};

/// An issuer at which operators log in to the console.
#[derive(Debug, Clone)]
pub struct OperatorLoginIssuer {
    pub config: Arc<IssuerConfig>,
    pub client: LoginClient,
    /// Parameter that names the audience of the requested token, and its value. `None`: the issuer
    /// accepts none.
    pub audience: Option<(&'static str, String)>,
}

impl TokenVerifier {
    /// Returns the issuers at which people can sign in, by name.
    pub fn sign_in_issuers(&self) -> Vec<Arc<IssuerConfig>> {
        let issuers = self.issuers.load();
        let mut found: Vec<_> = issuers.values().map(|issuer| issuer.shared_config()).collect();
        found.retain(|issuer| issuer.sign_in.is_some());
        found.sort_by(|one, other| one.issuer.cmp(&other.issuer));
        found
    }

    /// Returns the issuers at which operators can log in, by name.
    pub fn operator_login_issuers(&self) -> Vec<OperatorLoginIssuer> {
        let issuers = self.issuers.load();
        let login = |issuer: &Arc<TokenIssuer>| {
            let config = issuer.shared_config();
            let mapping = config.operators.as_ref()?;
            let client = mapping.login.clone()?;
            let parameter = config.front.as_ref().map(|front| front.resource).unwrap_or_default();
            let audience = parameter.name().map(|name| (name, mapping.audience(issuer.resource())));
            Some(OperatorLoginIssuer { config, client, audience })
        };
        let mut found: Vec<_> = issuers.values().filter_map(login).collect();
        found.sort_by(|one, other| one.config.issuer.cmp(&other.config.issuer));
        found
    }

    /// Returns the claim that names the principals of an issuer: `sub`, unless it is configured.
    pub fn principal_claim(&self, issuer: &str) -> String {
        let issuers = self.issuers.load();
        let known = issuers.get(issuer).map(|issuer| issuer.config().principal_claim.clone());
        known.unwrap_or_else(|| "sub".to_owned())
    }

    /// Returns the tenant and the subject of an ID token that the broker requested with this nonce.
    /// Its scopes and client are unknown, because those of access tokens can differ.
    pub fn signed_in(
        &self,
        issuer: &str,
        nonce: &str,
        id_token: &str,
    ) -> Result<(TenantId, Subject), AuthError> {
        let refused = || AuthError::failed(token_not_valid(), SignInFailureReason::Token);
        let issuer = self.issuers.load().get(issuer).cloned().ok_or_else(refused)?;
        self.check_id_token(&issuer, nonce, id_token).map_err(|flaw| {
            if flaw == TokenError::UnknownKey {
                return AuthError::KeyUnknown(UnknownSigningKey(issuer));
            }
            tracing::warn!(issuer = issuer.name(), reason = %flaw, "an ID token is refused");
            refused()
        })
    }

    fn check_id_token(
        &self,
        issuer: &TokenIssuer,
        nonce: &str,
        id_token: &str,
    ) -> Result<(TenantId, Subject), TokenError> {
        let jwt = Jwt::parse(id_token)?;
        let (header, claims) = (jwt.header()?, jwt.claims()?);
        issuer.verify_signature(&header, &jwt)?;
        if claims.text("iss").as_deref() != Some(issuer.name()) {
            return Err(TokenError::Issuer);
        }
        let client = issuer.config().sign_in.as_ref().ok_or(TokenError::Issuer)?;
        if !is_for(&claims, &client.client_id) || claims.text("nonce").as_deref() != Some(nonce) {
            return Err(TokenError::Audience);
        }
        // An ID token is what is wanted here.
        let (_, issued_at) = issuer.check_life(true, &claims)?;
        let (tenant, principal) = (issuer.tenant(&claims)?, issuer.principal(&claims)?);
        if !self.keyring.is_enabled(&tenant) {
            return Err(TokenError::Tenant);
        }
        let token = VerifiedToken::new(
            tenant.clone(),
            principal.clone(),
            claims.text("jti"),
            issued_at,
            None,
            issuer.withdrawn.clone(),
            self.keyring.revocations().clone(),
        );
        if token.is_revoked() {
            return Err(TokenError::Revoked);
        }
        let subject = issuer.subject(principal, &claims);
        let (scopes, client) = (Attribute::Unknown, Attribute::Unknown);
        Ok((tenant, Subject { scopes, client, ..subject }))
    }
}

/// Returns whether an ID token is for this client (OpenID Connect Core 1.0, 3.1.3.7).
fn is_for(claims: &Claims<'_>, client_id: &str) -> bool {
    let audiences = claims.audiences();
    audiences.iter().any(|audience| audience == client_id)
        && (audiences.len() == 1 || claims.text("azp").as_deref() == Some(client_id))
}
