//! Ends of credentials: the time at which each expires, or the revocation of a token.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use rules::limits::tokens::EXPIRY_LOOK_INTERVAL;

use super::verified_token::VerifiedToken;

/// End of a credential.
#[derive(Debug, Clone)]
pub struct CredentialExpiry {
    /// Wall-clock time, as issuers have no other clock.
    at: SystemTime,
    /// Token that may be revoked before. `None` for an API key, which is removed instead.
    token: Option<Arc<VerifiedToken>>,
}

/// Returns what `work` returns, or `None` once the credential has ended.
pub async fn until_ended<T>(
    until: Option<&CredentialExpiry>,
    work: impl Future<Output = T>,
) -> Option<T> {
    let Some(until) = until else { return Some(work.await) };
    if until.is_ended() {
        return None;
    }
    tokio::select! {
        biased;
        done = work => Some(done),
        () = until.clone().ended() => None,
    }
}

/// Returns what `work` returns, or `None` once the token of the credential has been revoked.
pub async fn unless_revoked<T>(
    until: Option<&CredentialExpiry>,
    work: impl Future<Output = T>,
) -> Option<T> {
    let token = until.and_then(|until| until.token.as_ref());
    let Some(token) = token else { return Some(work.await) };
    tokio::select! {
        biased;
        done = work => Some(done),
        // Boxed, because most requests have no token.
        () = Box::pin(token.revoked()) => None,
    }
}

impl PartialEq for CredentialExpiry {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for CredentialExpiry {}

impl CredentialExpiry {
    pub fn new(at: SystemTime) -> Self {
        Self { at, token: None }
    }

    pub(super) fn of_token(at: SystemTime, token: Arc<VerifiedToken>) -> Self {
        Self { at, token: Some(token) }
    }

    /// Returns whether the time has passed. Who asks again after each change of the keyring need
    /// not ask about revocations.
    pub fn is_expired(&self) -> bool {
        self.remaining().is_none()
    }

    /// Returns whether the time has passed, or the token was revoked.
    pub fn is_ended(&self) -> bool {
        self.is_expired() || self.token.as_ref().is_some_and(|token| token.is_revoked())
    }

    /// Resolves after the expiry time, or after the revocation of the token. Reads the clock at
    /// intervals, because the clock may be set and the machine may sleep.
    pub async fn ended(self) {
        let expired = async {
            while let Some(remaining) = self.remaining() {
                tokio::time::sleep(remaining.min(EXPIRY_LOOK_INTERVAL)).await;
            }
        };
        match &self.token {
            None => expired.await,
            Some(token) => tokio::select! {
                () = expired => {}
                () = token.revoked() => {}
            },
        }
    }

    /// Returns the time in microseconds since 1970.
    pub(super) fn at_us(&self) -> i64 {
        let since = self.at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
    }

    fn remaining(&self) -> Option<Duration> {
        self.at.duration_since(SystemTime::now()).ok().filter(|remaining| !remaining.is_zero())
    }
}

/// Resolves when the credential expires or is revoked. Never resolves for a credential without an
/// expiry time.
pub async fn credential_expired(until: Option<CredentialExpiry>) {
    match until {
        // Boxed: most connections have no expiry time.
        Some(until) => Box::pin(until.ended()).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_past_credential_expires_at_once_and_one_without_expiry_never() {
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
