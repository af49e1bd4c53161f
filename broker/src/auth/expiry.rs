//! Expiry times of credentials.

use std::time::{Duration, SystemTime};

use rules::limits::tokens::EXPIRY_LOOK_INTERVAL;

/// Expiry time of a credential. It is wall-clock time, as issuers have no other clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CredentialExpiry(SystemTime);

impl CredentialExpiry {
    pub fn new(at: SystemTime) -> Self {
        Self(at)
    }

    pub fn is_expired(self) -> bool {
        self.remaining().is_none()
    }

    /// Resolves after the expiry time. Reads the clock at intervals, because the clock may be set
    /// and the machine may sleep.
    pub async fn expired(self) {
        while let Some(left) = self.remaining() {
            tokio::time::sleep(left.min(EXPIRY_LOOK_INTERVAL)).await;
        }
    }

    fn remaining(self) -> Option<Duration> {
        self.0.duration_since(SystemTime::now()).ok().filter(|left| !left.is_zero())
    }
}

/// Resolves when the credential expires. Never resolves for a credential without an expiry time.
pub async fn credential_expired(until: Option<CredentialExpiry>) {
    match until {
        // Boxed: most connections have no expiry time.
        Some(until) => Box::pin(until.expired()).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_past_is_over_at_once_and_what_has_no_end_never() {
        let now = SystemTime::now();
        assert!(
            CredentialExpiry::new(now).is_expired()
                && !CredentialExpiry::new(now + Duration::from_secs(60)).is_expired()
        );
        credential_expired(Some(CredentialExpiry::new(now))).await;
        credential_expired(Some(CredentialExpiry::new(now + Duration::from_millis(20)))).await;
        let never = tokio::time::timeout(Duration::from_millis(1), credential_expired(None)).await;
        assert!(never.is_err());
    }
}
