//! Cache of the principals' access tokens in this process. With a cached token, a call needs
//! neither the database nor an authorization server. The cache also keeps the encoded head of a
//! POST with the token.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use http::{Request, header::AUTHORIZATION};
use parking_lot::Mutex;
use protocol::ids::PrincipalId;
use rules::limits::oauth::{GRANT_CACHED_MAX, GRANT_LOOK_INTERVAL};
use transport::{HttpClient, http_client::PreparedPost};

use super::machine::TokenHeader;
use crate::auth::now_us;

/// Tokens of one backend, by principal.
#[derive(Debug, Default)]
pub struct TokenCache {
    tokens: Mutex<HashMap<PrincipalId, CachedToken>>,
    /// Grows with every change of a token.
    changes: AtomicU64,
}

#[derive(Debug)]
struct CachedToken {
    header: TokenHeader,
    read_at: Instant,
    renew_at_us: Option<i64>,
    /// End of the token, as far as it is known.
    ends_at_us: Option<i64>,
}

/// A token at hand.
#[derive(Debug)]
pub struct UsableToken {
    pub header: TokenHeader,
    /// Time for which it stays the token of its principal, while the cache does not change. `None`:
    /// each request looks for it.
    pub stays: Option<TokenStay>,
}

/// Until when a token stays that of its principal.
#[derive(Debug, Clone, Copy)]
pub struct TokenStay {
    changes: u64,
    until: Instant,
}

impl TokenCache {
    /// Returns the token of a principal, unless it is due or another process may have changed it.
    pub fn get(&self, principal: &PrincipalId) -> Option<UsableToken> {
        let tokens = self.tokens.lock();
        let changes = self.changes();
        let cached = tokens.get(principal)?;
        let fresh_for = GRANT_LOOK_INTERVAL.checked_sub(cached.read_at.elapsed())?;
        let not_due_for = cached.renew_at_us.map(|at| at.saturating_sub(now_us()));
        let not_due_for = not_due_for.map_or(Some(Duration::MAX), |remaining| {
            Some(Duration::from_micros(remaining.try_into().ok()?))
        })?;
        let remaining = fresh_for.min(not_due_for);
        let until = (!remaining.is_zero()).then(|| Instant::now() + remaining)?;
        Some(UsableToken {
            header: cached.header.clone(),
            stays: Some(TokenStay { changes, until }),
        })
    }

    /// Uses the token of a principal for another interval, unless it has ended. For a time in which
    /// this process can neither find out whether it has changed nor get another one.
    pub(super) fn extend(&self, principal: &PrincipalId) -> Option<TokenHeader> {
        let mut tokens = self.tokens.lock();
        let cached = tokens.get_mut(principal)?;
        let now = now_us();
        if cached.ends_at_us.is_some_and(|at| at <= now) {
            return None;
        }
        // Else each request of the interval would wait for the database, one after the other.
        if cached.renew_at_us.is_some_and(|at| at <= now) {
            cached.renew_at_us = cached.ends_at_us;
        }
        cached.read_at = Instant::now();
        Some(cached.header.clone())
    }

    /// Returns a number that grows with every change of a token.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Remembers a token. `renew_at_us`: the time from which another one is sought, which is also
    /// its end.
    pub fn put(&self, principal: &PrincipalId, header: TokenHeader, renew_at_us: Option<i64>) {
        self.put_until(principal, header, renew_at_us, renew_at_us);
    }

    /// Remembers a token that ends later than another one is sought.
    pub(super) fn put_until(
        &self,
        principal: &PrincipalId,
        header: TokenHeader,
        renew_at_us: Option<i64>,
        ends_at_us: Option<i64>,
    ) {
        let mut tokens = self.tokens.lock();
        if tokens.len() >= GRANT_CACHED_MAX && !tokens.contains_key(principal) {
            tokens.clear();
        }
        let cached = CachedToken { header, read_at: Instant::now(), renew_at_us, ends_at_us };
        tokens.insert(principal.clone(), cached);
        self.changes.fetch_add(1, Ordering::Release);
    }

    pub(super) fn remove(&self, principal: &PrincipalId) {
        let mut tokens = self.tokens.lock();
        tokens.remove(principal);
        self.changes.fetch_add(1, Ordering::Release);
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
pub struct LinkPosts(Mutex<Option<LastPost>>);

#[derive(Debug)]
struct LastPost {
    post: LinkPost,
    stays: Option<TokenStay>,
}

impl LinkPosts {
    /// Returns the head that was used last, if its token is still that of the principal. `changes`:
    /// those of the cache by now.
    pub fn last(&self, changes: u64) -> Option<LinkPost> {
        let last = self.0.lock();
        let known = last.as_ref()?;
        let stays = known.stays.filter(|stays| stays.changes == changes)?;
        (Instant::now() < stays.until).then(|| known.post.clone())
    }

    /// Returns the head with this token. `bare` makes the POST without it.
    pub fn with(
        &self,
        client: &HttpClient,
        UsableToken { header, stays }: UsableToken,
        bare: impl FnOnce() -> Request<()>,
    ) -> Option<LinkPost> {
        let mut last = self.0.lock();
        if let Some(known) = last.as_mut().filter(|known| known.post.header == header) {
            known.stays = stays;
            return Some(known.post.clone());
        }
        let mut post = bare();
        post.headers_mut().insert(AUTHORIZATION, header.clone());
        let post = LinkPost { header, prepared: Arc::new(client.prepare(post)?) };
        *last = Some(LastPost { post: post.clone(), stays });
        Some(post)
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use transport::HttpClientConfig;

    use super::*;

    fn post(cache: &TokenCache, posts: &LinkPosts, principal: &PrincipalId) -> Option<LinkPost> {
        let client = HttpClient::new(HttpClientConfig::default()).unwrap();
        let bare = || Request::post("http://127.0.0.1:9/mcp").body(()).unwrap();
        posts.with(&client, cache.get(principal)?, bare)
    }

    #[test]
    fn the_cached_head_is_used_until_a_token_changes_or_needs_renewal() {
        let (cache, posts) = (TokenCache::default(), LinkPosts::default());
        let (ann, bob) = (PrincipalId::new("ann"), PrincipalId::new("bob"));
        let token = |text| HeaderValue::from_static(text);
        assert!(posts.last(cache.changes()).is_none());
        cache.put(&ann, token("Bearer 1"), None);
        assert_eq!(post(&cache, &posts, &ann).unwrap().header, "Bearer 1");
        assert_eq!(posts.last(cache.changes()).unwrap().header, "Bearer 1");
        cache.put(&bob, token("Bearer b"), None);
        assert!(posts.last(cache.changes()).is_none(), "any change needs another look");
        assert_eq!(post(&cache, &posts, &ann).unwrap().header, "Bearer 1");
        assert!(posts.last(cache.changes()).is_some());
        cache.put(&ann, token("Bearer 2"), Some(now_us()));
        assert!(posts.last(cache.changes()).is_none());
        assert!(cache.get(&ann).is_none(), "it is due");
        cache.put(&ann, token("Bearer 3"), Some(i64::MAX));
        assert_eq!(post(&cache, &posts, &ann).unwrap().header, "Bearer 3");
        assert_eq!(cache.extend(&ann).unwrap(), "Bearer 3");
        assert!(cache.extend(&bob).is_some() && cache.extend(&PrincipalId::new("cat")).is_none());
        cache.put(&bob, token("Bearer c"), Some(now_us()));
        assert!(cache.extend(&bob).is_none(), "it has ended");
        cache.put_until(&bob, token("Bearer d"), Some(now_us()), Some(i64::MAX));
        assert!(cache.get(&bob).is_none(), "it is due");
        assert_eq!(cache.extend(&bob).unwrap(), "Bearer d", "and valid to its end");
        assert_eq!(cache.get(&bob).unwrap().header, "Bearer d", "for another interval");
        cache.remove(&ann);
        assert!(cache.extend(&ann).is_none());
        assert!(posts.last(cache.changes()).is_none() && cache.get(&ann).is_none());
    }

    #[test]
    fn another_token_of_a_known_principal_displaces_no_other_one() {
        let cache = TokenCache::default();
        let principal = |number: usize| PrincipalId::new(number.to_string());
        let put = |number| cache.put(&principal(number), HeaderValue::from_static("Bearer"), None);
        (0..GRANT_CACHED_MAX).for_each(put);
        put(0);
        assert!(cache.extend(&principal(GRANT_CACHED_MAX - 1)).is_some());
        put(GRANT_CACHED_MAX);
        assert!(cache.tokens.lock().len() <= GRANT_CACHED_MAX, "it is bounded");
        assert!(cache.extend(&principal(GRANT_CACHED_MAX)).is_some());
    }
}
