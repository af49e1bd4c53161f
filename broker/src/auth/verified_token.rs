//! A token after its verification: what a revocation can name of it, and the certificate that it is
//! bound to. It is neither the token nor anything that could be shown instead of it.

use std::{sync::Arc, time::SystemTime};

use protocol::ids::{PrincipalId, TenantId};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::revocations::{RevocableClaims, Revocations};

/// SHA-256 of a certificate in DER (RFC 8705, 3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CertificateThumbprint(pub [u8; 32]);

/// What a revocation can name of a token, for another replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForwardedClaims {
    /// Claim `jti`.
    id: Option<String>,
    /// Claim `iat`, in microseconds since 1970.
    issued_at_us: Option<i64>,
}

/// A verified token.
#[derive(Debug)]
pub struct VerifiedToken {
    claims: RevocableClaims,
    /// The only certificate with which the token is valid (RFC 8705, 3).
    bound_to: Option<CertificateThumbprint>,
    /// Cancelled when the issuer calls the token inactive. `None`: the issuer is not asked.
    ended: Option<Arc<CancellationToken>>,
    /// Cancelled when tokens of the issuer are not accepted any more.
    withdrawn: Arc<CancellationToken>,
    revocations: Arc<Revocations>,
}

impl VerifiedToken {
    pub(super) fn new(
        tenant: TenantId,
        principal: PrincipalId,
        id: Option<String>,
        issued_at: Option<SystemTime>,
        bound_to: Option<CertificateThumbprint>,
        withdrawn: Arc<CancellationToken>,
        revocations: Arc<Revocations>,
    ) -> Self {
        let since = |at: SystemTime| at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let micros = |at| i64::try_from(since(at).as_micros()).unwrap_or(i64::MAX);
        let issued_at_us = issued_at.map(micros);
        let claims = RevocableClaims { tenant, principal, id, issued_at_us };
        Self { claims, bound_to, ended: None, withdrawn, revocations }
    }

    /// Returns the token that another replica has verified. That replica ends its requests when the
    /// issuer withdraws it.
    pub fn forwarded(
        tenant: TenantId,
        principal: PrincipalId,
        claims: ForwardedClaims,
        revocations: &Arc<Revocations>,
    ) -> Self {
        let ForwardedClaims { id, issued_at_us } = claims;
        let claims = RevocableClaims { tenant, principal, id, issued_at_us };
        let (withdrawn, revocations) = (Arc::default(), revocations.clone());
        Self { claims, bound_to: None, ended: None, withdrawn, revocations }
    }

    /// Returns the claims for a replica to which the caller is forwarded.
    pub fn claims_to_forward(&self) -> ForwardedClaims {
        let RevocableClaims { id, issued_at_us, .. } = &self.claims;
        ForwardedClaims { id: id.clone(), issued_at_us: *issued_at_us }
    }

    /// Returns the token with what is cancelled when its issuer calls it inactive.
    pub(super) fn ending_with(self, ended: Option<Arc<CancellationToken>>) -> Self {
        Self { ended, ..self }
    }

    /// Returns whether an operator revoked the token, its issuer called it inactive, or the issuer
    /// is not accepted any more.
    pub fn is_revoked(&self) -> bool {
        self.withdrawn.is_cancelled()
            || self.ended.as_ref().is_some_and(|ended| ended.is_cancelled())
            || self.revocations.refuses(&self.claims)
    }

    /// Resolves when the token is revoked.
    pub(super) async fn revoked(&self) {
        let ended = async {
            match &self.ended {
                Some(ended) => ended.cancelled().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.revocations.refusal_of(&self.claims) => {}
            () = ended => {}
            () = self.withdrawn.cancelled() => {}
        }
    }

    /// Returns whether the token has this id (`jti`).
    pub fn has_id(&self, id: &str) -> bool {
        self.claims.id.as_deref() == Some(id)
    }

    /// Returns whether the token is valid on a connection with this certificate, or without one.
    pub(super) fn fits(&self, certificate: Option<CertificateThumbprint>) -> bool {
        self.bound_to.is_none_or(|bound_to| certificate == Some(bound_to))
    }
}
