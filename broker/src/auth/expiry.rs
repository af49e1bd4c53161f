//! Until when it holds what a caller has shown.

use std::time::{Duration, SystemTime};

use crate::limits::tokens::EXPIRY_LOOK_INTERVAL;

/// The end of a credential, by the clock of the wall: whoever gave it out had no other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CredentialExpiry(SystemTime);

impl CredentialExpiry {
    pub fn new(at: SystemTime) -> Self {
        Self(at)
    }

    pub fn is_past(self) -> bool {
        self.left().is_none()
    }

    /// Resolves when it is past. Looks at the clock now and then: it may be set, and a machine may sleep.
    pub async fn passed(self) {
        while let Some(left) = self.left() {
            tokio::time::sleep(left.min(EXPIRY_LOOK_INTERVAL)).await;
        }
    }

    fn left(self) -> Option<Duration> {
        self.0.duration_since(SystemTime::now()).ok().filter(|left| !left.is_zero())
    }
}

/// Resolves when what was shown holds no longer; never, where it has no end.
pub async fn outlived(until: Option<CredentialExpiry>) {
    match until {
        // Boxed: most connections have none.
        Some(until) => Box::pin(until.passed()).await,
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
            CredentialExpiry::new(now).is_past()
                && !CredentialExpiry::new(now + Duration::from_secs(60)).is_past()
        );
        outlived(Some(CredentialExpiry::new(now))).await;
        outlived(Some(CredentialExpiry::new(now + Duration::from_millis(20)))).await;
        let never = tokio::time::timeout(Duration::from_millis(1), outlived(None)).await;
        assert!(never.is_err());
    }
}
