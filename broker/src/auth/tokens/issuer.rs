//! One authorization server: what its tokens must say, and its keys, kept fresh.
//!
//! One task fetches the keys: at the start, every so often, and when a token names one that is not known, which strangers can
//! bring about as often as they like; so it does not do it more often than every few seconds. What it has stays in use until
//! there is a newer set.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use arc_swap::ArcSwap;
use protocol::{
    error::{ErrorKind, Refusal},
    ids::{BackendId, PrincipalId, TenantId},
};
use tokio::{
    sync::{Notify, Semaphore, watch},
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{
    Fetcher, Flaw,
    fetch::FetchError,
    jwt::{Claims, Header, Jwt},
    key_set::KeySet,
};
use crate::{
    auth::{Caller, Keyring, Proven, Until},
    config::{self, TenantOf},
    limits::tokens::{
        KEY_SET_FETCH_MAX, KEY_SET_PAUSE_MIN, KEY_SET_REFRESH_INTERVAL, KEY_SET_RETRY_MAX, KEY_SET_WAIT_MAX, KEY_SET_WAITING_MAX,
        TOKEN_LEEWAY, TOKEN_PRINCIPAL_BYTES_MAX,
    },
    metrics::Metrics,
};

#[derive(Debug)]
pub(super) struct Issuer {
    config: config::Issuer,
    /// The broker's public URL.
    resource: String,
    keys: ArcSwap<KeySet>,
    has_keys: AtomicBool,
    stage: Mutex<Stage>,
    /// Somebody waits for newer keys.
    wanted: Notify,
    /// Counts the fetches that are over.
    over: watch::Sender<u64>,
    waiting: Semaphore,
}

/// What the task that fetches is at.
#[derive(Debug, Clone, Copy)]
enum Stage {
    Fetching,
    /// Since it began the last fetch.
    Resting(Instant),
}

impl Issuer {
    pub(super) fn new(config: config::Issuer, resource: &str) -> Self {
        Self {
            config,
            resource: resource.to_owned(),
            keys: ArcSwap::default(),
            has_keys: AtomicBool::new(false),
            stage: Mutex::new(Stage::Fetching), // which the task does first
            wanted: Notify::new(),
            over: watch::Sender::new(0),
            waiting: Semaphore::new(KEY_SET_WAITING_MAX),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.config.issuer
    }

    // What a token must say.

    /// Whether the issuer has signed it.
    pub(super) fn verify(&self, header: &Header, jwt: &Jwt<'_>) -> Result<(), Flaw> {
        if !self.config.algorithms.contains(&header.algorithm) {
            return Err(Flaw::Algorithm);
        }
        self.keys.load().verify(header, jwt)
    }

    /// Who bears it, by claims that are the issuer's.
    pub(super) fn proven(&self, claims: &Claims<'_>, keyring: &Keyring) -> Result<Proven, Flaw> {
        let now = SystemTime::now();
        let until = claims.moment("exp")?.ok_or(Flaw::NoExpiry)? + TOKEN_LEEWAY;
        if until <= now {
            return Err(Flaw::Expired);
        }
        let latest = now + TOKEN_LEEWAY;
        if [claims.moment("nbf")?, claims.moment("iat")?].into_iter().flatten().any(|begin| begin > latest) {
            return Err(Flaw::NotYet);
        }
        if !claims.audiences().iter().any(|audience| self.is_for(audience)) {
            return Err(Flaw::Audience);
        }
        let tenant = match &self.config.tenant {
            TenantOf::Named(tenant) => Some(tenant.clone()),
            TenantOf::Claim(claim) => claims.text(claim).and_then(|name| TenantId::parse(&name).ok()),
        };
        let tenant = tenant.filter(|tenant| keyring.is_enabled(tenant)).ok_or(Flaw::Tenant)?;
        let is_usable = |name: &String| name.len() <= TOKEN_PRINCIPAL_BYTES_MAX && !name.chars().any(char::is_control);
        let name = claims.text(&self.config.principal_claim).filter(is_usable).ok_or(Flaw::Principal)?;
        // Last: whoever lacks nothing else is told what it lacks.
        let scopes = claims.scopes();
        if !self.config.scopes.iter().all(|needed| scopes.contains(needed)) {
            return Err(Flaw::Scope);
        }
        // As `auth::is_of_token` says.
        let principal = PrincipalId::new(format!("{} {name}", self.config.issuer));
        Ok(Proven { caller: Caller { tenant, principal, key: None }, until: Some(Until::new(until)) })
    }

    /// Whether a token with this audience is for us (RFC 8707; MCP 2025-11-25, Access Token Usage).
    fn is_for(&self, audience: &str) -> bool {
        if !self.config.audiences.is_empty() {
            return self.config.audiences.iter().any(|known| known == audience);
        }
        let Some(below) = audience.strip_prefix(&self.resource) else { return false };
        match below.strip_prefix("/mcp").unwrap_or(below) {
            "" | "/" => true,
            rest => below.starts_with("/mcp/") && rest.strip_prefix('/').is_some_and(|name| BackendId::parse(name).is_ok()),
        }
    }

    /// All that is needed, in one go (MCP 2025-11-25, Runtime Insufficient Scope Errors).
    pub(super) fn scope_missing(&self) -> Refusal {
        Refusal::new(ErrorKind::InsufficientScope, "the token lacks a scope that is needed here")
            .with("scope", self.config.scopes.join(" "))
    }

    // Its keys.

    /// Waits for a fetch, where there is one or may be one now.
    pub(super) async fn fetched(&self) {
        let Ok(_place) = self.waiting.try_acquire() else { return };
        let mut over = self.over.subscribe();
        match self.stage() {
            Stage::Fetching => {}
            Stage::Resting(since) if since.elapsed() >= KEY_SET_PAUSE_MIN => self.wanted.notify_one(),
            Stage::Resting(_) => return,
        }
        let _in_time = timeout(KEY_SET_WAIT_MAX, over.changed()).await;
    }

    /// Keeps the keys fresh, for ever.
    pub(super) async fn keep(self: Arc<Self>, fetcher: Fetcher, keyring: Arc<Keyring>, metrics: Arc<Metrics>) {
        let mut failures = 0_u32;
        loop {
            let begun = Instant::now();
            self.set_stage(Stage::Fetching);
            let fetched = timeout(KEY_SET_FETCH_MAX, fetcher.key_set(&self.config)).await.unwrap_or(Err(FetchError::Late));
            metrics.tokens.fetched(fetched.is_ok());
            let pause = match fetched {
                Ok(keys) => {
                    if failures > 0 {
                        tracing::info!(issuer = self.name(), "the keys of an issuer are to be had again");
                    }
                    failures = 0;
                    self.take(keys, &keyring, &metrics);
                    KEY_SET_REFRESH_INTERVAL
                }
                Err(error) => {
                    if failures == 0 {
                        tracing::warn!(issuer = self.name(), %error, "the keys of an issuer can not be fetched; those there are stay in use");
                    } else {
                        tracing::debug!(issuer = self.name(), %error, "the keys of an issuer can not be fetched");
                    }
                    failures = failures.saturating_add(1);
                    retry_pause(failures)
                }
            };
            self.set_stage(Stage::Resting(begun));
            self.over.send_modify(|count| *count += 1);
            tokio::select! {
                () = sleep(pause) => {}
                () = self.wanted.notified() => {}
            }
            sleep_until(begun + KEY_SET_PAUSE_MIN).await;
        }
    }

    pub(super) fn take(&self, keys: KeySet, keyring: &Keyring, metrics: &Metrics) {
        if !self.has_keys.swap(true, Ordering::Relaxed) {
            metrics.tokens.has_keys();
        }
        if self.keys.load().is_same(&keys) {
            return;
        }
        tracing::info!(issuer = self.name(), keys = keys.len(), "the keys of an issuer are in use");
        self.keys.store(Arc::new(keys));
        // Behind it: what was signed with a key that is gone is looked at again.
        keyring.renew();
    }

    fn stage(&self) -> Stage {
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_stage(&self, stage: Stage) {
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner) = stage;
    }
}

/// Doubles with each failure.
fn retry_pause(failures: u32) -> Duration {
    (KEY_SET_PAUSE_MIN * 2_u32.saturating_pow(failures.saturating_sub(1).min(16))).min(KEY_SET_RETRY_MAX)
}
