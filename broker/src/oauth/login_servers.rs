//! The last known metadata of the issuers at which people log in, and the number of logins that use
//! an issuer at the same time. A stranger can begin a login, so an issuer gets few requests,
//! whatever browsers send.
//!
//! Invariants:
//! - At most one request for the metadata of an issuer runs at a time in a process. A pause follows
//!   one that failed.
//! - A browser that gives up does not end the request that others wait for.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rules::limits::{
    oauth::{LOGIN_METADATA_AGE_MAX, LOGIN_METADATA_PAUSE, LOGINS_AT_ONCE_MAX},
    tokens::ISSUERS_MAX,
};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::{
    discovery::DiscoveredServer,
    fetch::{OauthError, OauthFetcher},
};
use crate::config::spec::IssuerComparison;

/// The issuers at which people log in.
#[derive(Debug)]
pub struct LoginServers {
    servers: Mutex<HashMap<String, LoginServer>>,
    /// Logins that use an issuer at the same time.
    permits: Semaphore,
}

type Found = Result<Arc<DiscoveredServer>, OauthError>;

#[derive(Debug, Default)]
struct LoginServer {
    /// The last result, and its time.
    found: Option<(Found, Instant)>,
    /// Puts the requests in order. It holds no data.
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Default for LoginServers {
    fn default() -> Self {
        Self { servers: Mutex::default(), permits: Semaphore::new(LOGINS_AT_ONCE_MAX) }
    }
}

impl LoginServers {
    /// Returns the right to use an issuer for a login. `None`: too many logins do.
    pub fn permit(&self) -> Option<SemaphorePermit<'_>> {
        self.permits.try_acquire().ok()
    }

    /// Returns the server of an issuer of the configuration.
    pub(super) async fn get(self: &Arc<Self>, fetcher: OauthFetcher, issuer: &str) -> Found {
        if let Some(known) = self.known(issuer) {
            return known;
        }
        let turn = self.turn(issuer).lock_owned().await;
        if let Some(known) = self.known(issuer) {
            return known;
        }
        let (servers, issuer) = (self.clone(), issuer.to_owned());
        let fetching = tokio::spawn(async move {
            let _turn = turn;
            let found =
                DiscoveredServer::of_issuer(&fetcher, &issuer, IssuerComparison::Exact).await;
            let found = found.map(Arc::new);
            servers.remember(issuer, found.clone());
            found
        });
        let ended = || OauthError::Unavailable("the search for the issuer ended early".to_owned());
        fetching.await.unwrap_or_else(|_| Err(ended()))
    }

    /// Returns the last result, as long as it counts.
    fn known(&self, issuer: &str) -> Option<Found> {
        let servers = self.servers.lock();
        let (found, at) = servers.get(issuer)?.found.as_ref()?;
        (at.elapsed() < age_max(found)).then(|| found.clone())
    }

    fn turn(&self, issuer: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut servers = self.servers.lock();
        if servers.len() > ISSUERS_MAX {
            // Some of them are configured no more.
            servers.retain(|_, server| Arc::strong_count(&server.turn) > 1);
        }
        servers.entry(issuer.to_owned()).or_default().turn.clone()
    }

    fn remember(&self, issuer: String, found: Found) {
        self.servers.lock().entry(issuer).or_default().found = Some((found, Instant::now()));
    }
}

/// Returns the time for which a result counts.
fn age_max(found: &Found) -> Duration {
    if found.is_ok() { LOGIN_METADATA_AGE_MAX } else { LOGIN_METADATA_PAUSE }
}
