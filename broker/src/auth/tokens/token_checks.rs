//! Checks of a token against its issuer: signature, life, audience, tenant, principal and scopes.
//!
//! Invariant: only a token without another fault gets an answer about scopes.

use std::{sync::Arc, time::SystemTime};

use config::TenantMapping;
use protocol::{
    error::{ErrorKind, Refusal},
    ids::{PrincipalId, TenantId},
};
use rules::{
    access::{Subject, SubjectAttributes},
    limits::tokens::{TOKEN_LEEWAY, TOKEN_PRINCIPAL_BYTES_MAX},
};

use super::{
    error::TokenError,
    introspection::{ActiveToken, Introspected},
    issuer::TokenIssuer,
    jwt::{Claims, Header, Jwt},
};
use crate::auth::{
    caller::{AuthenticatedCaller, Caller},
    expiry::CredentialExpiry,
    keyring::Keyring,
    principal_names::is_printable,
    token_digest::TokenDigest,
    verified_token::VerifiedToken,
};

impl TokenIssuer {
    /// Verifies algorithm, type and signature of a token.
    pub(super) fn verify(&self, header: &Header, jwt: &Jwt<'_>) -> Result<(), TokenError> {
        if !self.config.algorithms.contains(&header.algorithm) {
            return Err(TokenError::Algorithm);
        }
        if self.config.requires_access_token_type && !header.is_access_token {
            return Err(TokenError::Type);
        }
        self.keys.load().verify(header, jwt)
    }

    /// Verifies algorithm and signature of an ID token.
    pub(super) fn verify_signature(
        &self,
        header: &Header,
        jwt: &Jwt<'_>,
    ) -> Result<(), TokenError> {
        if !self.config.algorithms.contains(&header.algorithm) {
            return Err(TokenError::Algorithm);
        }
        self.keys.load().verify(header, jwt)
    }

    /// Returns the caller of a token that is not a JWT, from the answer of the issuer.
    pub(super) fn authenticate_opaque(
        &self,
        digest: &TokenDigest,
        keyring: &Keyring,
    ) -> Result<AuthenticatedCaller, TokenError> {
        let active = self.introspected(digest)?;
        let claims = Claims::parse(&active.claims)?;
        self.check_kind(&claims)?;
        self.authenticate(false, &claims, Some(&active), keyring)
    }

    /// Returns the remembered answer of the issuer about an active token.
    fn introspected(&self, digest: &TokenDigest) -> Result<ActiveToken, TokenError> {
        let introspector = self.introspector.as_ref().ok_or(TokenError::Form)?;
        match introspector.remembered(digest) {
            Introspected::Active(active) => Ok(active),
            Introspected::Inactive => Err(TokenError::Inactive),
            Introspected::Unknown => Err(TokenError::NotIntrospected),
        }
    }

    /// Checks the claims of a JWT whose signature was verified. Then the issuer is asked, if it has
    /// to be: strangers cannot make the broker ask about a token that its issuer did not
    /// sign.
    pub(super) fn authenticate_jwt(
        &self,
        header: &Header,
        claims: &Claims<'_>,
        digest: &TokenDigest,
        keyring: &Keyring,
    ) -> Result<AuthenticatedCaller, TokenError> {
        let proven = self.authenticate(header.is_access_token, claims, None, keyring)?;
        let accepts = |audience: &String| self.config.accepts_audience(&self.resource, audience);
        match self.check_introspection(digest, claims, accepts)? {
            Some(active) => {
                self.authenticate(header.is_access_token, claims, Some(&active), keyring)
            }
            None => Ok(proven),
        }
    }

    /// Checks the claims of a token and returns its caller.
    fn authenticate(
        &self,
        is_access_token: bool,
        claims: &Claims<'_>,
        introspected: Option<&ActiveToken>,
        keyring: &Keyring,
    ) -> Result<AuthenticatedCaller, TokenError> {
        let bound_to = claims.bound_certificate()?;
        let (until, issued_at) = self.check_life(is_access_token, claims)?;
        let reported_end = introspected.and_then(ActiveToken::ends_at);
        let until = reported_end.map_or(until, |end| end.min(until));
        if !claims
            .audiences()
            .iter()
            .any(|audience| self.config.accepts_audience(&self.resource, audience))
        {
            return Err(TokenError::Audience);
        }
        let tenant = self.tenant(claims)?;
        if !keyring.is_enabled(&tenant) {
            return Err(TokenError::Tenant);
        }
        let principal = self.principal(claims)?;
        // Last: only a token without another fault gets an answer about scopes.
        let scopes = claims.scopes().unwrap_or_default();
        if !self.config.scopes.iter().all(|needed| scopes.contains(needed)) {
            return Err(TokenError::Scope);
        }
        let (recheck_at, ended) =
            introspected.map(|active| (active.fresh_until, active.ended.clone())).unzip();
        let token = VerifiedToken::new(
            tenant.clone(),
            principal.clone(),
            claims.text("jti"),
            issued_at,
            bound_to,
            self.withdrawn.clone(),
            keyring.revocations().clone(),
        );
        let token = Arc::new(token.ending_with(ended));
        if token.is_revoked() {
            return Err(TokenError::Revoked);
        }
        let caller = Caller::of_subject(tenant, self.subject(principal, claims));
        Ok(AuthenticatedCaller {
            caller: Caller { token: Some(token.clone()), ..caller },
            until: Some(CredentialExpiry::of_token(until, token)),
            recheck_at,
            exchangeable: None,
        })
    }

    /// Checks that a token is an access token within its life. Returns its end, with the leeway for
    /// clocks, and the time of its issue.
    pub(super) fn check_life(
        &self,
        is_access_token: bool,
        claims: &Claims<'_>,
    ) -> Result<(SystemTime, Option<SystemTime>), TokenError> {
        if !is_access_token && claims.are_of_id_token() {
            return Err(TokenError::IdToken);
        }
        let (until, issued_at) = check_times(claims)?;
        Ok((until.ok_or(TokenError::NoExpiry)?, issued_at))
    }

    /// Returns the principal of a token, in the format that `auth::reserved_reason` recognizes.
    pub(super) fn principal(&self, claims: &Claims<'_>) -> Result<PrincipalId, TokenError> {
        let is_usable =
            |name: &String| name.len() <= TOKEN_PRINCIPAL_BYTES_MAX && is_printable(name);
        let name = claims.text(&self.config.principal_claim).filter(is_usable);
        let name = name.ok_or(TokenError::Principal)?;
        Ok(PrincipalId::new(format!("{} {name}", self.config.issuer)))
    }

    /// Checks that the issuer reports the JWT as active, and that the answer does not contradict the
    /// token. Its members are optional (RFC 7662, 2.2). `None`: introspection is not required.
    pub(super) fn check_introspection(
        &self,
        digest: &TokenDigest,
        claims: &Claims<'_>,
        accepts_audience: impl Fn(&String) -> bool,
    ) -> Result<Option<ActiveToken>, TokenError> {
        if !self.introspector.as_ref().is_some_and(|introspector| introspector.includes_jwts) {
            return Ok(None);
        }
        let active = self.introspected(digest)?;
        let answer = Claims::parse(&active.claims)?;
        self.check_kind(&answer)?;
        check_times(&answer)?;
        if answer.has("aud") && !answer.audiences().iter().any(accepts_audience) {
            return Err(TokenError::Audience);
        }
        let bound_to = answer.bound_certificate()?;
        if bound_to.is_some() && bound_to != claims.bound_certificate()? {
            return Err(TokenError::Bound);
        }
        Ok(Some(active))
    }

    /// Checks that an answer is of this issuer, if it names one, and about an access token.
    fn check_kind(&self, answer: &Claims<'_>) -> Result<(), TokenError> {
        if answer.has("iss") && answer.text("iss").as_deref() != Some(self.name()) {
            return Err(TokenError::Issuer);
        }
        match answer.are_of_other_token() {
            true => Err(TokenError::Type),
            false => Ok(()),
        }
    }

    /// Returns the attributes of a token that access rules look at.
    pub(super) fn subject(&self, principal: PrincipalId, claims: &Claims<'_>) -> Subject {
        let groups = self.config.groups_claim.as_deref().and_then(|path| claims.values(path));
        let client = ["azp", "client_id"].into_iter().find_map(|name| claims.text(name));
        let attributes = SubjectAttributes {
            groups,
            scopes: claims.scopes(),
            client: client.map(|client| vec![client]),
        };
        attributes.subject(principal, None)
    }

    pub(super) fn tenant(&self, claims: &Claims<'_>) -> Result<TenantId, TokenError> {
        let (name, tenants) = match &self.config.tenant {
            TenantMapping::Fixed(tenant) => return Ok(tenant.clone()),
            TenantMapping::Claim { name, tenants } => (name, tenants),
        };
        let tenant = claims
            .text(name)
            .and_then(|name| TenantId::parse(&name).ok())
            .ok_or(TokenError::Tenant)?;
        if tenants.is_empty() || tenants.contains(&tenant) {
            Ok(tenant)
        } else {
            Err(TokenError::UnlistedTenant)
        }
    }

    /// Returns a refusal with all required scopes (MCP 2025-11-25, Runtime Insufficient Scope
    /// Errors).
    pub(super) fn scope_missing(&self) -> Refusal {
        Refusal::new(ErrorKind::InsufficientScope, "the token lacks a required scope")
            .with("scope", self.config.scopes.join(" "))
    }
}

/// Checks the times of claims. Returns the end, with the leeway for clocks, and the time of the
/// issue.
fn check_times(
    claims: &Claims<'_>,
) -> Result<(Option<SystemTime>, Option<SystemTime>), TokenError> {
    let now = SystemTime::now();
    let until = claims.moment("exp")?.map(|end| end + TOKEN_LEEWAY);
    if until.is_some_and(|until| until <= now) {
        return Err(TokenError::Expired);
    }
    let (latest, issued_at) = (now + TOKEN_LEEWAY, claims.moment("iat")?);
    if [claims.moment("nbf")?, issued_at].into_iter().flatten().any(|start| start > latest) {
        return Err(TokenError::NotYet);
    }
    Ok((until, issued_at))
}
