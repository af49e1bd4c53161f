//! Cache of a backend's authorization server, for token requests with a credential of the operator.
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
        let found = Arc::new(self.backend.discover(fetcher, challenge, None).await?);
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
