//! Reasons for the refusal of a token, for operators and in the log.

/// Reason for the refusal of a token, for operators and in the log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(in crate::auth) enum TokenError {
    #[error("it is longer than a token may be")]
    TooLong,
    #[error("it is not in the form of a JWT")]
    Form,
    #[error("it has a critical header")]
    Critical,
    #[error("its type is not one of an access token")]
    Type,
    #[error("it is an ID token, not an access token")]
    IdToken,
    #[error("it is bound (cnf) by something else than the certificate of a connection")]
    Bound,
    #[error("it is bound to a certificate, and the connection does not have that one")]
    Certificate,
    #[error("an operator revoked it")]
    Revoked,
    #[error("its issuer calls it inactive")]
    Inactive,
    #[error("its issuer has to be asked about it")]
    NotIntrospected,
    #[error("its algorithm is not one that is taken")]
    Algorithm,
    #[error("no issuer of that name is configured")]
    Issuer,
    #[error("its key is not among those of the issuer")]
    UnknownKey,
    #[error("its key does not fit its algorithm, or is not the only one that does")]
    KeyUnfit,
    #[error("its signature is wrong")]
    Signature,
    #[error("a time in it cannot be read")]
    Time,
    #[error("it does not say when it expires")]
    NoExpiry,
    #[error("it has expired")]
    Expired,
    #[error("it is not valid yet")]
    NotYet,
    #[error("it is for another audience")]
    Audience,
    #[error("it names no tenant that is served")]
    Tenant,
    #[error("it names a tenant that auth.issuers[].tenants does not list")]
    UnlistedTenant,
    #[error("it names no principal, or one that is too long or has characters that are not seen")]
    Principal,
    #[error("it lacks a scope")]
    Scope,
}
