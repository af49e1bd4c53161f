//! Operators that sign in with a token of an issuer (`auth.issuers[].admin`).
//!
//! Invariants:
//! - A token for MCP clients has another audience, so its holder is not an operator.
//! - Such a token is verified for each request and never remembered.

use std::sync::Arc;

use config::OperatorMapping;
use rules::{
    operators::{Operator, Role, Scope},
    sign_in_failures::SignInFailureReason,
};

use super::{
    TokenVerifier,
    error::TokenError,
    issuer::TokenIssuer,
    jwt::{Claims, Header, Jwt},
    unchecked,
};
use crate::auth::{
    auth_error::{AuthError, UnknownSigningKey, token_not_valid},
    token_digest::TokenDigest,
};

impl TokenVerifier {
    /// Returns whether a bearer has the form of a token that [`Self::verify_operator`] verifies.
    pub fn can_be_operator(&self, bearer: &str) -> bool {
        Jwt::is_meant(bearer)
            && self.issuers.load().values().any(|issuer| issuer.config().operators.is_some())
    }

    /// Returns the operator of a token.
    pub fn verify_operator(&self, bearer: &str) -> Result<Operator, AuthError> {
        self.check_operator(bearer).map_err(|(flaw, issuer)| {
            let name = issuer.as_ref().map(|issuer| issuer.name());
            tracing::debug!(issuer = name, reason = %flaw, "an operator's token is refused");
            match (flaw, issuer) {
                (TokenError::UnknownKey, Some(issuer)) => {
                    AuthError::KeyUnknown(UnknownSigningKey(issuer))
                }
                (TokenError::NotIntrospected, Some(issuer)) => {
                    unchecked(&issuer, self.digester.digest(bearer))
                }
                _ => AuthError::failed(token_not_valid(), SignInFailureReason::AdminToken),
            }
        })
    }

    fn check_operator(
        &self,
        bearer: &str,
    ) -> Result<Operator, (TokenError, Option<Arc<TokenIssuer>>)> {
        let nameless = |flaw| (flaw, None);
        let jwt = Jwt::parse(bearer).map_err(nameless)?;
        let header = jwt.header().map_err(nameless)?;
        let claims = jwt.claims().map_err(nameless)?;
        let issuers = self.issuers.load();
        let issuer = claims.text("iss").and_then(|name| issuers.get(&name));
        let issuer = issuer.ok_or((TokenError::Issuer, None))?;
        let operator = issuer.verify(&header, &jwt).and_then(|()| {
            let operator = issuer.operator(&header, &claims)?;
            issuer.check_operator_introspection(&self.digester.digest(bearer), &claims)?;
            Ok(operator)
        });
        operator.map_err(|flaw| (flaw, Some(issuer.clone())))
    }
}

impl TokenIssuer {
    fn operator_mapping(&self) -> Result<&OperatorMapping, TokenError> {
        self.config().operators.as_ref().ok_or(TokenError::Issuer)
    }

    /// Checks the issuer's answer about an operator's token, if introspection is required.
    fn check_operator_introspection(
        &self,
        digest: &TokenDigest,
        claims: &Claims<'_>,
    ) -> Result<(), TokenError> {
        let mapping = self.operator_mapping()?;
        let is_ours = |audience: &String| mapping.accepts_audience(self.resource(), audience);
        self.check_introspection(digest, claims, is_ours).map(drop)
    }

    /// Checks the claims of a verified token and returns its operator.
    fn operator(&self, header: &Header, claims: &Claims<'_>) -> Result<Operator, TokenError> {
        let mapping = self.operator_mapping()?;
        self.check_life(header.is_access_token, claims)?;
        if claims.bound_certificate()?.is_some() {
            return Err(TokenError::Certificate); // the admin plane asks for no certificate
        }
        let is_ours = |audience: &String| mapping.accepts_audience(self.resource(), audience);
        if !claims.audiences().iter().any(is_ours) {
            return Err(TokenError::Audience);
        }
        let name = self.principal(claims)?.as_str().to_owned();
        let values = claims.values(&mapping.claim).unwrap_or_default();
        let (role, scope): (Role, Scope) = mapping.grant(&values).ok_or(TokenError::Tenant)?;
        Ok(Operator { name, role, scope, groups: values })
    }
}
