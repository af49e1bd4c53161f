//! Expiry times of credentials.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use rules::limits::tokens::EXPIRY_LOOK_INTERVAL;
use tokio_util::sync::CancellationToken;

/// Expiry time of a credential. It is wall-clock time, as issuers have no other clock. The
/// credential expires earlier if its issuer is withdrawn.
#[derive(Debug, Clone)]
pub struct CredentialExpiry {
    at: SystemTime,
    withdrawn: Option<Arc<CancellationToken>>,
}

impl PartialEq for CredentialExpiry {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for CredentialExpiry {}

impl CredentialExpiry {
    pub fn new(at: SystemTime) -> Self {
        Self { at, withdrawn: None }
    }

    /// Returns the expiry of a credential that is valid until `withdrawn` is cancelled at the
    /// latest.
    pub fn withdrawable(at: SystemTime, withdrawn: Arc<CancellationToken>) -> Self {
        Self { at, withdrawn: Some(withdrawn) }
    }

    pub fn is_expired(&self) -> bool {
        self.is_withdrawn() || self.remaining().is_none()
    }

    /// Resolves after the expiry time. Reads the clock at intervals, because the clock may be set
    /// and the machine may sleep.
    pub async fn expired(self) {
        while let Some(left) = self.remaining() {
            let pause = tokio::time::sleep(left.min(EXPIRY_LOOK_INTERVAL));
            match &self.withdrawn {
                None => pause.await,
                Some(withdrawn) => tokio::select! {
                    () = pause => {}
                    () = withdrawn.cancelled() => return,
                },
            }
        }
    }

    fn is_withdrawn(&self) -> bool {
        self.withdrawn.as_ref().is_some_and(|withdrawn| withdrawn.is_cancelled())
    }

    fn remaining(&self) -> Option<Duration> {
        self.at.duration_since(SystemTime::now()).ok().filter(|left| !left.is_zero())
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
        let (later, withdrawn) =
            (now + Duration::from_secs(60), Arc::<CancellationToken>::default());
        let until = CredentialExpiry::withdrawable(later, withdrawn.clone());
        assert!(!until.is_expired());
        withdrawn.cancel();
        assert!(until.is_expired());
        credential_expired(Some(until)).await;
        let never = tokio::time::timeout(Duration::from_millis(1), credential_expired(None)).await;
        assert!(never.is_err());
    }
}
