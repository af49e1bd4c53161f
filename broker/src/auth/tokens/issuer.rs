//! One authorization server and its keys. [`super::token_checks`] checks its tokens.
//!
//! One task fetches the keys: at the start, at intervals, and when a token names an unknown key.
//! Strangers can send such tokens at any rate, so fetches have a minimum interval of a few seconds.
//!
//! Invariant: a set that the issuer returns replaces the one before, even if it is empty. Without a
//! usable answer the keys stay in use up to their maximum age.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use arc_swap::{ArcSwap, ArcSwapOption};
use config::TenantMapping;
use parking_lot::{Mutex, MutexGuard};
use rules::{
    limits::tokens::{
        AUTHORIZATION_FORWARDS_PER_ISSUER_MAX, KEY_SET_FETCH_MAX, KEY_SET_PAUSE_MIN,
        KEY_SET_REFRESH_INTERVAL, KEY_SET_RETRY_MAX, KEY_SET_WAIT_MAX, KEY_SET_WAITING_MAX,
    },
    local_rate_limit::{LocalRateLimiter, one_per},
};
use tokio::{
    sync::{Notify, Semaphore, watch},
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    fetch::{FetchError, KeyFetcher},
    introspection::Introspector,
    key_set::KeySet,
    metadata::{IssuerMetadata, MetadataFault},
};
use crate::{auth::keyring::Keyring, metrics::Metrics};

#[derive(Debug)]
pub(in crate::auth) struct TokenIssuer {
    pub(super) config: Arc<config::IssuerConfig>,
    /// Endpoint that is asked about tokens.
    pub(super) introspector: Option<Arc<Introspector>>,
    /// The broker's public URL.
    pub(super) resource: String,
    pub(super) keys: ArcSwap<KeySet>,
    /// Metadata of an adapted issuer, or why it cannot be used. `None` before the first fetch.
    metadata: ArcSwapOption<FetchedMetadata>,
    /// True if at least one key can verify tokens.
    has_keys: AtomicBool,
    fetches: Mutex<KeyFetches>,
    /// Start of the clock of `fetches`.
    started: Instant,
    /// Signals that a request waits for newer keys.
    wanted: Notify,
    /// Number of completed fetches.
    over: watch::Sender<u64>,
    waiting: Semaphore,
    /// Token requests that are forwarded to an adapted issuer at the same time.
    pub(in crate::auth) forwards: Semaphore,
    /// Cancelled when its tokens are not accepted any more.
    pub(super) withdrawn: Arc<CancellationToken>,
    /// Cancelled when another issuer continues with its tokens.
    replaced: CancellationToken,
}

/// The metadata of an adapted issuer, or why it cannot be used.
pub(in crate::auth) type FetchedMetadata = Result<Arc<IssuerMetadata>, MetadataFault>;

/// State of the key fetches.
#[derive(Debug)]
struct KeyFetches {
    is_running: bool,
    /// Start of the fetch that returned the keys in use, or of the issuer before the first one.
    fetched_at: Instant,
    /// Limits the starts of fetches.
    rate: LocalRateLimiter,
}

impl TokenIssuer {
    pub(super) fn new(
        config: Arc<config::IssuerConfig>,
        introspector: Option<Introspector>,
        resource: &str,
    ) -> Self {
        Self {
            config,
            introspector: introspector.map(Arc::new),
            resource: resource.to_owned(),
            keys: ArcSwap::default(),
            metadata: ArcSwapOption::empty(),
            has_keys: AtomicBool::new(false),
            // The task begins with a fetch.
            fetches: Mutex::new(KeyFetches {
                is_running: true,
                fetched_at: Instant::now(),
                rate: LocalRateLimiter::new(one_per(KEY_SET_PAUSE_MIN)),
            }),
            started: Instant::now(),
            wanted: Notify::new(),
            over: watch::Sender::new(0),
            waiting: Semaphore::new(KEY_SET_WAITING_MAX),
            forwards: Semaphore::new(AUTHORIZATION_FORWARDS_PER_ISSUER_MAX),
            withdrawn: Arc::default(),
            replaced: CancellationToken::new(),
        }
    }

    /// Returns an issuer with changed settings that continues with the keys of this one, up to
    /// their maximum age. If only credentials of the broker changed, it continues with the tokens
    /// too: what they opened stays open.
    pub(super) fn successor(
        &self,
        config: Arc<config::IssuerConfig>,
        introspector: Option<Introspector>,
        resource: &str,
    ) -> Self {
        let keeps_tokens =
            self.resource == resource && self.config.differs_in_credentials_only(&config);
        let introspector = introspector.map(|next| match &self.introspector {
            Some(earlier) if keeps_tokens => next.with_answers_of(earlier),
            _ => next,
        });
        let mut next = Self::new(config, introspector, resource);
        if keeps_tokens {
            next.withdrawn = Arc::clone(&self.withdrawn);
        }
        if next.config.has_keys_of(&self.config) {
            let keys = self.keys.load_full();
            next.has_keys = AtomicBool::new(!keys.is_empty());
            next.keys = ArcSwap::new(keys);
            next.metadata =
                ArcSwapOption::new(self.metadata().filter(|_| next.config.front.is_some()));
            next.fetches.get_mut().fetched_at = self.fetches().fetched_at;
        }
        next
    }

    /// Returns whether the issuer continues with the tokens of an earlier one.
    pub(super) fn continues(&self, earlier: &Self) -> bool {
        Arc::ptr_eq(&self.withdrawn, &earlier.withdrawn)
    }

    /// Returns whether the issuer was made of equal settings.
    pub(super) fn is_of(&self, config: &config::IssuerConfig, resource: &str) -> bool {
        *self.config == *config && self.resource == resource
    }

    /// Ends the fetches, and expires the tokens that were verified.
    pub(super) fn withdraw(&self) {
        self.withdrawn.cancel();
    }

    /// Ends the fetches, because an issuer that continues with the tokens has its own.
    pub(super) fn replace(&self) {
        self.replaced.cancel();
    }

    /// Resolves once the issuer is withdrawn or replaced.
    pub(super) async fn ended(&self) {
        tokio::select! {
            () = self.withdrawn.cancelled() => {}
            () = self.replaced.cancelled() => {}
        }
    }

    pub(super) fn has_keys(&self) -> bool {
        self.has_keys.load(Ordering::Relaxed)
    }

    pub(super) fn key_count(&self) -> usize {
        self.keys.load().len()
    }

    pub(in crate::auth) fn config(&self) -> &config::IssuerConfig {
        &self.config
    }

    pub(super) fn shared_config(&self) -> Arc<config::IssuerConfig> {
        self.config.clone()
    }

    pub(in crate::auth) fn resource(&self) -> &str {
        &self.resource
    }

    /// Returns the metadata of an adapted issuer, once it was fetched.
    pub(in crate::auth) fn metadata(&self) -> Option<Arc<FetchedMetadata>> {
        self.metadata.load_full()
    }

    pub(super) fn name(&self) -> &str {
        &self.config.issuer
    }

    // Keys of the issuer.

    /// Waits for a running fetch, or for one that the rate permits now.
    pub(in crate::auth) async fn wait_for_fetch(&self) {
        let Ok(_permit) = self.waiting.try_acquire() else { return };
        let mut over = self.over.subscribe();
        let (is_running, is_due) = {
            let fetches = self.fetches();
            (fetches.is_running, fetches.rate.is_free(self.started.elapsed()))
        };
        match (is_running, is_due) {
            (true, _) => {}
            (false, true) => self.wanted.notify_one(),
            (false, false) => return,
        }
        let _in_time = timeout(KEY_SET_WAIT_MAX, over.changed()).await;
    }

    /// Fetches the keys again and again. Never returns.
    pub(super) async fn run_refresh(
        self: Arc<Self>,
        fetcher: KeyFetcher,
        keyring: Arc<Keyring>,
        metrics: Arc<Metrics>,
    ) {
        if matches!(&self.config.tenant, TenantMapping::Claim { tenants, .. } if tenants.is_empty())
        {
            tracing::warn!(
                issuer = self.name(),
                "tokens of this issuer can name every tenant; set auth.issuers[].tenants to limit them"
            );
        }
        let mut failures = 0_u32;
        loop {
            let started = self.start_fetch().await;
            let fetched_at = self.fetches().fetched_at;
            // Before the fetch, which may take long.
            self.expire_keys(fetched_at, &keyring, &metrics);
            let fetched = timeout(KEY_SET_FETCH_MAX, fetcher.key_set(&self.config))
                .await
                .unwrap_or(Err(FetchError::Late));
            metrics.tokens.fetched(fetched.is_ok());
            if self.config.front.is_some() {
                self.fetch_metadata(&fetcher).await;
            }
            let pause = match fetched {
                Ok(keys) => {
                    if failures > 0 {
                        tracing::info!(
                            issuer = self.name(),
                            "the keys of an issuer can be fetched again"
                        );
                    }
                    failures = 0;
                    self.fetches().fetched_at = started;
                    self.install_keys(keys, &keyring, &metrics);
                    // Keys with a short maximum age are fetched before they expire.
                    KEY_SET_REFRESH_INTERVAL.min(self.config.keys_max_age / 2)
                }
                Err(error) => {
                    if failures == 0 {
                        tracing::warn!(issuer = self.name(), %error, "the keys of an issuer cannot be fetched; the last ones are used until keys_max_age");
                    } else {
                        tracing::debug!(issuer = self.name(), %error, "the keys of an issuer cannot be fetched");
                    }
                    failures = failures.saturating_add(1);
                    retry_pause(failures).min(self.expire_keys(fetched_at, &keyring, &metrics))
                }
            };
            self.fetches().is_running = false;
            self.over.send_modify(|count| *count += 1);
            tokio::select! {
                () = sleep(pause) => {}
                () = self.wanted.notified() => {}
            }
        }
    }

    /// Fetches the metadata of an adapted issuer. The last one stays when the fetch fails.
    async fn fetch_metadata(&self, fetcher: &KeyFetcher) {
        let fetched = timeout(KEY_SET_FETCH_MAX, fetcher.metadata(&self.config))
            .await
            .unwrap_or(Err(FetchError::Late));
        let read = match fetched {
            Ok(read) => read.map(Arc::new),
            Err(error) => {
                return tracing::debug!(issuer = self.name(), %error, "the metadata of an issuer cannot be fetched");
            }
        };
        if self.metadata.load().as_deref() == Some(&read) {
            return;
        }
        if let Err(fault) = &read {
            tracing::error!(issuer = self.name(), %fault, "an issuer cannot be adapted");
        }
        self.metadata.store(Some(Arc::new(read)));
    }

    pub(super) fn install_keys(&self, keys: KeySet, keyring: &Keyring, metrics: &Metrics) {
        let has_keys = !keys.is_empty();
        if self.has_keys.swap(has_keys, Ordering::Relaxed) != has_keys {
            metrics.tokens.has_keys(has_keys);
        }
        if self.keys.load().is_same(&keys) {
            return;
        }
        match keys.len() {
            0 => tracing::warn!(
                issuer = self.name(),
                "the issuer publishes no usable key: the broker refuses all its tokens"
            ),
            count => tracing::info!(
                issuer = self.name(),
                keys = count,
                "the broker uses new keys of an issuer"
            ),
        }
        self.keys.store(Arc::new(keys));
        // After the store: tokens that a removed key signed are verified again.
        keyring.bump_version();
    }

    /// Removes keys that are older than the maximum age. Returns the remaining time of newer ones.
    pub(super) fn expire_keys(
        &self,
        fetched_at: Instant,
        keyring: &Keyring,
        metrics: &Metrics,
    ) -> Duration {
        let remaining = self.config.keys_max_age.saturating_sub(fetched_at.elapsed());
        if !remaining.is_zero() || !self.has_keys.load(Ordering::Relaxed) {
            return if remaining.is_zero() { KEY_SET_RETRY_MAX } else { remaining };
        }
        tracing::error!(
            issuer = self.name(),
            "the keys of an issuer are older than keys_max_age: the broker refuses all its tokens"
        );
        self.install_keys(KeySet::default(), keyring, metrics);
        KEY_SET_RETRY_MAX
    }

    /// Waits until the rate permits a fetch. Returns the start time of that fetch.
    async fn start_fetch(&self) -> Instant {
        loop {
            let checked = {
                let mut fetches = self.fetches();
                let checked = fetches.rate.check(self.started.elapsed());
                fetches.is_running |= checked.is_ok();
                checked
            };
            match checked {
                Ok(_) => return Instant::now(),
                Err(exceeded) => sleep(exceeded.retry_after).await,
            }
        }
    }

    fn fetches(&self) -> MutexGuard<'_, KeyFetches> {
        self.fetches.lock()
    }
}

/// Returns the pause after a number of failures. It doubles with each failure.
fn retry_pause(failures: u32) -> Duration {
    (KEY_SET_PAUSE_MIN * 2_u32.saturating_pow(failures.saturating_sub(1).min(16)))
        .min(KEY_SET_RETRY_MAX)
}
