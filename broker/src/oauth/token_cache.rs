//! Tokens of principals that this process has at hand, so that a call asks neither the database nor a
//! server. And the heads of POSTs with them, encoded once.

use std::{collections::HashMap, sync::Arc, time::Instant};

use http::{Request, header::AUTHORIZATION};
use parking_lot::Mutex;
use protocol::ids::PrincipalId;
use rules::limits::oauth::{GRANT_CACHED_MAX, GRANT_LOOK_INTERVAL};
use transport::{HttpClient, http_client::PreparedPost};

use super::{machine::TokenHeader, vault::now_us};

/// Tokens of one backend, by principal.
#[derive(Debug, Default)]
pub struct TokenCache(Mutex<HashMap<PrincipalId, CachedToken>>);

#[derive(Debug)]
struct CachedToken {
    header: TokenHeader,
    read_at: Instant,
    renew_at_us: Option<i64>,
}

impl TokenCache {
    /// Returns the token of a principal, unless it is due or another process may have changed it.
    pub fn get(&self, principal: &PrincipalId) -> Option<TokenHeader> {
        let cache = self.0.lock();
        let cached = cache.get(principal)?;
        let is_fresh = cached.read_at.elapsed() < GRANT_LOOK_INTERVAL;
        let is_due = cached.renew_at_us.is_some_and(|at| at <= now_us());
        (is_fresh && !is_due).then(|| cached.header.clone())
    }

    /// Remembers a token. `renew_at_us`: the time from which another one is sought.
    pub fn put(&self, principal: &PrincipalId, header: TokenHeader, renew_at_us: Option<i64>) {
        let mut cache = self.0.lock();
        if cache.len() >= GRANT_CACHED_MAX {
            cache.clear();
        }
        let cached = CachedToken { header, read_at: Instant::now(), renew_at_us };
        cache.insert(principal.clone(), cached);
    }

    pub(super) fn remove(&self, principal: &PrincipalId) {
        self.0.lock().remove(principal);
    }
}

/// Head of a link's POST with its token, encoded once.
#[derive(Debug, Clone)]
pub struct LinkPost {
    pub header: TokenHeader,
    pub prepared: Arc<PreparedPost>,
}

/// The head with the token that was used last.
#[derive(Debug, Default)]
pub struct LinkPosts(Mutex<Option<LinkPost>>);

impl LinkPosts {
    /// Returns the head with this token. `bare` makes the POST without it.
    pub fn get(
        &self,
        client: &HttpClient,
        header: TokenHeader,
        bare: impl FnOnce() -> Request<()>,
    ) -> Option<LinkPost> {
        let mut last = self.0.lock();
        if let Some(known) = last.as_ref().filter(|known| known.header == header) {
            return Some(known.clone());
        }
        let mut post = bare();
        post.headers_mut().insert(AUTHORIZATION, header.clone());
        let made = LinkPost { header, prepared: Arc::new(client.prepare(post)?) };
        *last = Some(made.clone());
        Some(made)
    }
}
