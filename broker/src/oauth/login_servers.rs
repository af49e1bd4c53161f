//! The last known metadata of the issuers at which people log in, and the number of logins that use
//! an issuer at the same time. Any peer can begin a login, so the broker limits its requests to an
//! issuer.
//!
//! Invariants:
//! - At most one request for the metadata of an issuer runs at a time in a process. A pause follows
//!   one that failed.
//! - A browser that gives up does not end the request that others wait for.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use config::spec::IssuerComparison;
use parking_lot::Mutex;
use rules::limits::{
    oauth::{
        LOGIN_METADATA_AGE_MAX, LOGIN_METADATA_PAUSE, LOGINS_AT_ONCE_MAX, LOGINS_PER_ISSUER_MAX,
    },
    tokens::ISSUERS_MAX,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{
    discovery::DiscoveredServer,
    fetch::{OauthError, OauthFetcher},
    registration::CALLBACK_PATH,
};

/// Path of the address to which an issuer sends an operator's browser back. An issuer may have one
/// of its own below it.
pub const CONSOLE_CALLBACK: &str = "/console/callback";

/// The issuers at which people log in.
#[derive(Debug)]
pub struct LoginServers {
    servers: Mutex<HashMap<String, LoginServer>>,
    /// Logins that use any issuer at the same time.
    permits: Arc<Semaphore>,
    /// Paths of redirect URIs, each with an issuer that does not identify itself in its answers.
    unnamed: Mutex<BTreeSet<(String, String)>>,
}

/// The right to use an issuer for a login.
#[derive(Debug)]
pub struct LoginPermit {
    _of_issuer: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

type Found = Result<Arc<DiscoveredServer>, OauthError>;

#[derive(Debug)]
struct LoginServer {
    /// The last result, and its time.
    found: Option<(Found, Instant)>,
    /// Puts the requests in order. It holds no data.
    turn: Arc<tokio::sync::Mutex<()>>,
    /// Logins that use the issuer at the same time. A slow one leaves permits to others.
    permits: Arc<Semaphore>,
}

impl Default for LoginServers {
    fn default() -> Self {
        let permits = Arc::new(Semaphore::new(LOGINS_AT_ONCE_MAX));
        Self { servers: Mutex::default(), permits, unnamed: Mutex::default() }
    }
}

impl Default for LoginServer {
    fn default() -> Self {
        let permits = Arc::new(Semaphore::new(LOGINS_PER_ISSUER_MAX));
        Self { found: None, turn: Arc::default(), permits }
    }
}

impl LoginServers {
    /// Returns the right to use an issuer of the configuration for a login. `None`: too many logins
    /// do.
    pub fn permit(&self, issuer: &str) -> Option<LoginPermit> {
        let of_issuer = self.entry(issuer, |server| server.permits.clone());
        let of_issuer = of_issuer.try_acquire_owned().ok()?;
        let of_all = self.permits.clone().try_acquire_owned().ok()?;
        Some(LoginPermit { _of_issuer: of_issuer, _of_all: of_all })
    }

    /// Returns the server of an issuer of the configuration.
    pub(super) async fn get(self: &Arc<Self>, fetcher: OauthFetcher, issuer: &str) -> Found {
        if let Some(known) = self.known(issuer) {
            return known;
        }
        let turn = self.entry(issuer, |server| server.turn.clone()).lock_owned().await;
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

    /// Warns at the first login at an issuer that does not identify itself in its answers (RFC
    /// 9207). Does so only if another such issuer has the same redirect URI.
    pub(super) fn warn_of_unnamed(&self, issuer: &str, redirect_uri: &str) {
        if let Some(other) = self.note_unnamed(issuer, redirect_uri) {
            tracing::warn!(
                issuer,
                other,
                "two issuers for logins do not send iss in their answers (RFC 9207): if one of them is hostile, it can get codes of the other; give one of them a callback of its own"
            );
        }
    }

    /// Notes an issuer that does not identify itself in its answers. Returns another such issuer with
    /// this redirect URI. `None`: none is known, or the issuer is noted already.
    fn note_unnamed(&self, issuer: &str, redirect_uri: &str) -> Option<String> {
        // The console may have several hosts and prefixes.
        let path = [CALLBACK_PATH, CONSOLE_CALLBACK].map(|path| redirect_uri.find(path));
        let path = &redirect_uri[path.into_iter().flatten().next().unwrap_or_default()..];
        let mut unnamed = self.unnamed.lock();
        if unnamed.len() > 2 * ISSUERS_MAX {
            // Some of them are configured no more.
            unnamed.clear();
        }
        if !unnamed.insert((path.to_owned(), issuer.to_owned())) {
            return None;
        }
        let other = unnamed.iter().find(|(known, other)| known == path && other != issuer);
        other.map(|(_, other)| other.clone())
    }

    /// Returns the last result, as long as it counts.
    fn known(&self, issuer: &str) -> Option<Found> {
        let servers = self.servers.lock();
        let (found, at) = servers.get(issuer)?.found.as_ref()?;
        (at.elapsed() < age_max(found)).then(|| found.clone())
    }

    fn entry<P>(&self, issuer: &str, part: impl FnOnce(&LoginServer) -> P) -> P {
        let mut servers = self.servers.lock();
        if servers.len() > ISSUERS_MAX {
            // Some of them are configured no more.
            servers.retain(|_, server| server.is_used());
        }
        part(servers.entry(issuer.to_owned()).or_default())
    }

    fn remember(&self, issuer: String, found: Found) {
        self.servers.lock().entry(issuer).or_default().found = Some((found, Instant::now()));
    }
}

impl LoginServer {
    fn is_used(&self) -> bool {
        Arc::strong_count(&self.turn) > 1 || Arc::strong_count(&self.permits) > 1
    }
}

/// Returns the time for which a result counts.
fn age_max(found: &Found) -> Duration {
    if found.is_ok() { LOGIN_METADATA_AGE_MAX } else { LOGIN_METADATA_PAUSE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issuers_that_do_not_name_themselves_are_reported_once_per_redirect_uri() {
        let servers = LoginServers::default();
        let (page, console) = ("https://mcp.example.com/oauth/callback", "/console/callback");
        let at = |host: &str| format!("https://{host}{console}");
        assert_eq!(servers.note_unnamed("https://a", page), None, "it is alone");
        assert_eq!(servers.note_unnamed("https://a", page), None);
        assert_eq!(servers.note_unnamed("https://b", &at("one")), None, "of the console alone");
        assert_eq!(servers.note_unnamed("https://b", page).as_deref(), Some("https://a"));
        assert_eq!(servers.note_unnamed("https://b", page), None, "it was reported");
        assert_eq!(servers.note_unnamed("https://a", page), None);
        assert_eq!(
            servers.note_unnamed("https://c", &at("two/below")).as_deref(),
            Some("https://b"),
            "the console at another host"
        );
        let own = format!("{page}/d");
        assert_eq!(servers.note_unnamed("https://d", &own), None, "its redirect URI is its own");
        assert_eq!(servers.note_unnamed("https://e", &own).as_deref(), Some("https://d"));
    }
}
