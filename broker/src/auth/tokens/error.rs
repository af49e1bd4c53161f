//! Reasons for the refusal of a token, for operators and in the log.

/// Reason for the refusal of a token, for operators and in the log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(in crate::auth) enum TokenError {
    #[error("the token exceeds the size limit")]
    TooLong,
    #[error("the token is not a JWT")]
    Form,
    #[error("the token has a critical header")]
    Critical,
    #[error("the token type is not that of an access token")]
    Type,
    #[error("the token is an ID token, not an access token")]
    IdToken,
    #[error("the token is bound (cnf) by another method than a client certificate")]
    Bound,
    #[error("the connection does not present the certificate that the token is bound to")]
    Certificate,
    #[error("an operator revoked the token")]
    Revoked,
    #[error("the issuer reports the token as inactive")]
    Inactive,
    #[error("the token needs introspection by its issuer")]
    NotIntrospected,
    #[error("the broker does not accept the signature algorithm of the token")]
    Algorithm,
    #[error("the issuer of the token is not configured")]
    Issuer,
    #[error("the signing key of the token is not among the keys of its issuer")]
    UnknownKey,
    #[error("the key does not match the algorithm of the token, or several keys match")]
    KeyUnfit,
    #[error("the signature of the token is not valid")]
    Signature,
    #[error("a time in the token is not valid")]
    Time,
    #[error("the token has no expiry time")]
    NoExpiry,
    #[error("the token has expired")]
    Expired,
    #[error("the token is not valid yet")]
    NotYet,
    #[error("the token is for another audience")]
    Audience,
    #[error("the token names no tenant of this broker")]
    Tenant,
    #[error("the token names a tenant that auth.issuers[].tenants does not list")]
    UnlistedTenant,
    #[error("the principal in the token is missing or too long, or has invisible characters")]
    Principal,
    #[error("the token lacks a required scope")]
    Scope,
}
