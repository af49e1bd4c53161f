//! Grants of principals at backends, and secrets of the broker as an OAuth client. What is secret
//! in them is sealed by the caller.

use std::time::Duration;

use protocol::ids::{BackendId, PrincipalId, TenantId};

use crate::named::named;

/// Key of a grant. A grant belongs to one principal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct GrantKey {
    pub tenant: TenantId,
    pub backend: BackendId,
    pub principal: PrincipalId,
}

named! {
    /// Whether a grant can be used.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum GrantState {
        Connected = "connected",
        /// The principal must connect again.
        Reconnect = "reconnect",
    }
}

named! {
    /// Reason why the last renewal of a grant's token failed.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum GrantError {
        /// The server does not accept the refresh token any more (`invalid_grant`, RFC 6749, 5.2).
        InvalidGrant = "invalid_grant",
        /// The server refuses the request, or its metadata does not permit it.
        Refused = "refused",
        /// The server cannot be reached, or gives no usable answer.
        Unavailable = "unavailable",
    }
}

/// A grant as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantRecord {
    pub key: GrantKey,
    pub issuer: String,
    /// Sealed by the caller, each time into other bytes.
    pub sealed: Vec<u8>,
    pub state: GrantState,
    /// End of the access token, if it is known.
    pub expires_at_us: Option<i64>,
    /// Reason why the last renewal failed. `None`: it did not fail since the last write.
    pub last_error: Option<GrantError>,
}

/// A grant as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredGrant {
    pub record: GrantRecord,
    /// Grows with every write.
    pub version: i64,
    /// Time that another process may still use the refresh token. Zero without a lease.
    pub remaining_lease: Duration,
    /// Whether a process took the lease and has not written since. The refresh token may be used
    /// up.
    pub is_lease_open: bool,
}

impl StoredGrant {
    /// Returns whether another process may still use the refresh token, if processes take the lease
    /// for `time`. A lease with more than twice that time is over: the clock was set back after it
    /// was taken. The tolerance is for small steps of the clock, and for waits in the store.
    pub fn is_leased_for(&self, time: Duration) -> bool {
        !self.remaining_lease.is_zero() && self.remaining_lease <= time.saturating_mul(2)
    }
}

/// Numbers of grants that cannot be used as they are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WeakGrants {
    /// The principal must connect again.
    pub reconnect: u64,
    /// The grant is connected, and its access token has ended.
    pub ended: u64,
}

/// Purpose of a stored secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecretKind {
    /// An authorization request that a browser began.
    Login,
    /// A one-time link that signs a principal in.
    Link,
    /// The broker's registration at an authorization server.
    Client,
    /// A private key of the broker as a client.
    Key,
    /// The access token with which a caller came.
    Subject,
    /// A login of the console that its operator ended.
    EndedLogin,
    /// What ends the login of an operator at an issuer.
    IssuerLogin,
}

impl SecretKind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Login => "login",
            Self::Link => "link",
            Self::Client => "client",
            Self::Key => "key",
            Self::Subject => "subject",
            Self::EndedLogin => "ended_login",
            Self::IssuerLogin => "issuer_login",
        }
    }
}

/// Key of a secret. The name is a digest or another text without secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretKey {
    pub kind: SecretKind,
    pub tenant: TenantId,
    pub name: String,
}
