//! The authorization server of a backend as it was found last, for a credential of the operator's.
//!
//! Invariant: the credential goes to the issuer of the settings, or else to the first one that was
//! found.

use std::{sync::Arc, time::Instant};

use parking_lot::Mutex;
use rules::limits::oauth::OAUTH_METADATA_AGE_MAX;

use super::{
    challenge::Challenge,
    discovery::{DiscoveredServer, ProtectedBackend},
    fetch::{OauthError, OauthFetcher},
};

/// The server of one backend.
#[derive(Debug)]
pub(super) struct ServerCache {
    backend: ProtectedBackend,
    state: Mutex<ServerCacheState>,
}

#[derive(Debug, Default)]
struct ServerCacheState {
    server: Option<(Arc<DiscoveredServer>, Instant)>,
    /// The issuer that got the credential.
    bound_to: Option<String>,
}

impl ServerCache {
    pub(super) fn of(backend: ProtectedBackend) -> Self {
        Self { backend, state: Mutex::default() }
    }

    /// Returns the server, sought again after a challenge or when its metadata is old.
    pub(super) async fn get(
        &self,
        fetcher: &OauthFetcher,
        challenge: Option<Challenge>,
    ) -> Result<Arc<DiscoveredServer>, OauthError> {
        let known = self.state.lock().server.clone();
        if let (Some((server, found)), None) = (known, &challenge)
            && found.elapsed() < OAUTH_METADATA_AGE_MAX
        {
            return Ok(server);
        }
        let challenge = challenge.filter(|challenge| *challenge != Challenge::default());
        let found = Arc::new(self.backend.discover(fetcher, challenge).await?);
        let mut state = self.state.lock();
        match &state.bound_to {
            Some(bound) if *bound != found.issuer => {
                return Err(OauthError::Refused(format!(
                    "the backend names the authorization server {} now, but the credential belongs to {bound}: change auth",
                    found.issuer
                )));
            }
            _ => state.bound_to = Some(found.issuer.clone()),
        }
        state.server = Some((found.clone(), Instant::now()));
        Ok(found)
    }
}

/// Returns the scopes to request: those of the settings or of discovery. After a challenge, those
/// that the last token had, and those of the challenge.
pub(super) fn chosen_scopes(
    configured: &[String],
    server: &DiscoveredServer,
    held: Vec<String>,
    challenge: Option<&Challenge>,
) -> Vec<String> {
    let named = if configured.is_empty() { &server.scopes } else { configured };
    let wanted = challenge.filter(|challenge| challenge.wants_scopes());
    let mut scopes: Vec<String> = match wanted {
        Some(challenge) => held.into_iter().chain(challenge.scopes.clone()).collect(),
        None if held.is_empty() => named.to_vec(),
        None => held,
    };
    let mut seen = std::collections::HashSet::new();
    scopes.retain(|scope| seen.insert(scope.clone()));
    scopes
}
