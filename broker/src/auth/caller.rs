//! Callers of requests, and the properties of the remote end of their connections.

use std::{
    hash::{Hash, Hasher},
    net::IpAddr,
    sync::Arc,
};

use aws_lc_rs::digest::{SHA256, digest};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use config::Secret;
use protocol::ids::{KeyId, PrincipalId, TenantId};
use rules::access::Subject;
use tokio::time::Instant;

use super::{
    expiry::CredentialExpiry,
    keys::now_us,
    verified_token::{CertificateThumbprint, VerifiedToken},
};

/// Principal of callers without a credential.
pub const ANONYMOUS: &str = "anonymous";

/// Tenant, principal and key of a request. The broker keys all client state by the tenant and the
/// principal.
#[derive(Debug, Clone)]
pub struct Caller {
    pub tenant: TenantId,
    pub principal: PrincipalId,
    /// API key of the caller. `None` for a caller with a token or certificate, and for an anonymous
    /// one.
    pub key: Option<KeyId>,
    /// Attributes that access rules look at. They can differ between two requests of one caller, so
    /// they are not a part of its identity.
    pub subject: Arc<Subject>,
    /// Token that the caller showed, as far as a revocation can name it. Not a part of its identity
    /// either.
    pub token: Option<Arc<VerifiedToken>>,
    /// Name of the token, if it can be exchanged. Another replica may have verified it. Not a part
    /// of its identity either.
    pub subject_token: Option<SubjectDigest>,
}

impl PartialEq for Caller {
    fn eq(&self, other: &Self) -> bool {
        (&self.tenant, &self.principal, &self.key) == (&other.tenant, &other.principal, &other.key)
    }
}

impl Eq for Caller {}

impl Hash for Caller {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.tenant, &self.principal, &self.key).hash(state);
    }
}

impl Caller {
    /// Returns a caller without groups, scopes and client.
    pub fn new(tenant: TenantId, principal: PrincipalId, key: Option<KeyId>) -> Self {
        let subject = Subject { key, ..Subject::of_principal(principal) };
        Self::of_subject(tenant, subject)
    }

    /// Returns the caller that a subject is in a tenant.
    pub fn of_subject(tenant: TenantId, subject: Subject) -> Self {
        let (principal, key) = (subject.principal.clone(), subject.key.clone());
        Self {
            tenant,
            principal,
            key,
            subject: Arc::new(subject),
            token: None,
            subject_token: None,
        }
    }

    /// Returns the caller without a credential, for listeners that accept one.
    pub fn anonymous() -> Self {
        let tenant = TenantId::default_tenant();
        Self::new(tenant, PrincipalId::new(ANONYMOUS), None)
    }

    /// Returns whether the caller's token has been revoked since it was verified.
    pub fn is_revoked(&self) -> bool {
        self.token.as_ref().is_some_and(|token| token.is_revoked())
    }

    /// Returns whether the caller has shown neither a key, nor a token, nor a certificate.
    pub fn is_anonymous(&self) -> bool {
        self.key.is_none() && self.principal.as_str() == ANONYMOUS
    }
}

/// Remote end of a connection before sign-in.
#[derive(Debug, Clone, Copy, Default)]
pub struct RemotePeer {
    /// `None` when the address is unknown.
    pub address: Option<IpAddr>,
    /// True if the client presented a certificate of a trusted authority that names no principal of
    /// the broker.
    pub certificate_is_foreign: bool,
    /// The client's certificate, whether or not it names a principal.
    pub certificate: Option<CertificateThumbprint>,
}

/// Certificate that the client of a connection presented.
#[derive(Debug, Clone, Copy, Default)]
pub struct PresentedCertificate<'a> {
    /// Caller that it names.
    pub caller: Option<&'a Caller>,
    pub thumbprint: Option<CertificateThumbprint>,
}

/// A caller, and the time at which its credential expires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthenticatedCaller {
    pub caller: Caller,
    /// `None` for an API key or a certificate: the broker checks the validity of those elsewhere.
    pub until: Option<CredentialExpiry>,
    /// Time at which the issuer of the token is asked again. `None`: it is not asked.
    pub recheck_at: Option<Instant>,
    /// The token itself, if its issuer lets the broker exchange it.
    pub exchangeable: Option<Arc<ExchangeableToken>>,
}

/// A valid access token that the broker may exchange for one of a backend. `Debug` does not show it.
#[derive(Debug)]
pub struct ExchangeableToken {
    pub text: Secret,
    /// Name of the token, by which replicas and tasks refer to it.
    pub digest: SubjectDigest,
    pub expires_at_us: i64,
    /// Issuers of the authorization servers to which the broker may send it.
    pub destinations: Vec<String>,
    verified: Arc<VerifiedToken>,
}

impl PartialEq for ExchangeableToken {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl Eq for ExchangeableToken {}

impl ExchangeableToken {
    /// Returns whether the broker still accepts the token: it has not expired, no operator revoked
    /// it, and the settings of its issuer are the same.
    pub fn is_live(&self) -> bool {
        self.expires_at_us > now_us() && !self.verified.is_revoked()
    }

    /// Returns a token that is valid for an hour.
    #[cfg(test)]
    pub fn for_test(text: &str) -> Arc<Self> {
        let (tenant, principal) = (TenantId::default_tenant(), PrincipalId::new("ann"));
        let (withdrawn, revocations) = (Arc::default(), Arc::default());
        let verified =
            VerifiedToken::new(tenant, principal, None, None, None, withdrawn, revocations);
        Arc::new(Self {
            text: Secret::new(text),
            digest: URL_SAFE_NO_PAD.encode(digest(&SHA256, text.as_bytes())).into(),
            expires_at_us: now_us() + 3_600_000_000,
            destinations: Vec::new(),
            verified: Arc::new(verified),
        })
    }
}

/// SHA-256 of an access token in base64url. It is not the token, and cannot be shown instead of it.
pub type SubjectDigest = Arc<str>;

impl From<Caller> for AuthenticatedCaller {
    fn from(caller: Caller) -> Self {
        Self { caller, until: None, recheck_at: None, exchangeable: None }
    }
}

impl AuthenticatedCaller {
    /// Returns the caller with its token, so that the token can be exchanged.
    pub(super) fn with_token(self, token: &str, destinations: &[String]) -> Self {
        let ends = self.until.as_ref().map(CredentialExpiry::at_us);
        let Some((expires_at_us, verified)) = ends.zip(self.caller.token.clone()) else {
            return self;
        };
        let digest = URL_SAFE_NO_PAD.encode(digest(&SHA256, token.as_bytes()));
        let digest = SubjectDigest::from(digest);
        let exchangeable = Arc::new(ExchangeableToken {
            text: Secret::new(token),
            digest: digest.clone(),
            expires_at_us,
            destinations: destinations.to_vec(),
            verified,
        });
        let caller = Caller { subject_token: Some(digest), ..self.caller };
        Self { caller, exchangeable: Some(exchangeable), ..self }
    }

    /// Returns whether the credential has expired, or has to be checked again.
    pub fn is_past(&self) -> bool {
        self.until.as_ref().is_some_and(CredentialExpiry::is_expired)
            || self.recheck_at.is_some_and(|at| at <= Instant::now())
    }
}
