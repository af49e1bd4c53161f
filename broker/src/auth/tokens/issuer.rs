//! One authorization server: the checks of its tokens, and its keys.
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
    time::{Duration, SystemTime},
};

use arc_swap::{ArcSwap, ArcSwapOption};
use parking_lot::{Mutex, MutexGuard};
use protocol::{
    error::{ErrorKind, Refusal},
    ids::{BackendId, PrincipalId, TenantId},
};
use rules::{
    access::{Subject, SubjectAttributes},
    limits::tokens::{
        KEY_SET_FETCH_MAX, KEY_SET_PAUSE_MIN, KEY_SET_REFRESH_INTERVAL, KEY_SET_RETRY_MAX,
        KEY_SET_WAIT_MAX, KEY_SET_WAITING_MAX, TOKEN_LEEWAY, TOKEN_PRINCIPAL_BYTES_MAX,
    },
    local_rate_limit::{LocalRateLimiter, one_per},
};
use tokio::{
    sync::{Notify, Semaphore, watch},
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    error::TokenError,
    fetch::{FetchError, KeyFetcher},
    introspection::{ActiveToken, Introspected, Introspector},
    jwt::{Claims, Header, Jwt},
    key_set::KeySet,
    metadata::{IssuerMetadata, MetadataFault},
};
use crate::{
    auth::{
        caller::{AuthenticatedCaller, Caller},
        expiry::CredentialExpiry,
        keyring::Keyring,
        principal_names::is_printable,
        token_digest::TokenDigest,
        verified_token::VerifiedToken,
    },
    config::{self, TenantMapping},
    metrics::Metrics,
};

#[derive(Debug)]
pub(in crate::auth) struct TokenIssuer {
    config: Arc<config::IssuerConfig>,
    /// Endpoint that is asked about tokens.
    pub(super) introspector: Option<Arc<Introspector>>,
    /// The broker's public URL.
    resource: String,
    keys: ArcSwap<KeySet>,
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
    /// Cancelled when its tokens are not accepted any more.
    withdrawn: Arc<CancellationToken>,
}

/// The metadata of an adapted issuer, or why it cannot be used.
pub(in crate::auth) type FetchedMetadata = Result<Arc<IssuerMetadata>, MetadataFault>;

/// State of the key fetches.
#[derive(Debug)]
struct KeyFetches {
    is_running: bool,
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
                rate: LocalRateLimiter::new(one_per(KEY_SET_PAUSE_MIN)),
            }),
            started: Instant::now(),
            wanted: Notify::new(),
            over: watch::Sender::new(0),
            waiting: Semaphore::new(KEY_SET_WAITING_MAX),
            withdrawn: Arc::default(),
        }
    }

    /// Returns whether the issuer was made of equal settings.
    pub(super) fn is_of(&self, config: &config::IssuerConfig, resource: &str) -> bool {
        *self.config == *config && self.resource == resource
    }

    /// Ends the fetches, and expires the tokens that were verified.
    pub(super) fn withdraw(&self) {
        self.withdrawn.cancel();
    }

    /// Resolves once the issuer is withdrawn.
    pub(super) async fn withdrawn(&self) {
        self.withdrawn.cancelled().await;
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

    // Checks of a token.

    /// Verifies algorithm, type and signature of a token.
    pub(super) fn verify(&self, header: &Header, jwt: &Jwt<'_>) -> Result<(), TokenError> {
        if !self.config.algorithms.contains(&header.algorithm) {
            return Err(TokenError::Algorithm);
        }
        if self.config.requires_access_token_type && !header.is_access_token {
            return Err(TokenError::Type);
        }
        self.keys.load().verify(header, jwt)
    }

    /// Returns the caller of a token that is not a JWT, from the answer of the issuer.
    pub(super) fn authenticate_opaque(
        &self,
        digest: &TokenDigest,
        keyring: &Keyring,
    ) -> Result<AuthenticatedCaller, TokenError> {
        let active = self.introspected(digest)?;
        let claims = Claims::parse(&active.claims)?;
        if claims.has("iss") && claims.text("iss").as_deref() != Some(self.name()) {
            return Err(TokenError::Issuer);
        }
        if claims.are_of_other_token() {
            return Err(TokenError::Type);
        }
        self.authenticate(false, &claims, Some(&active), keyring)
    }

    /// Returns the remembered answer of the issuer about an active token.
    fn introspected(&self, digest: &TokenDigest) -> Result<ActiveToken, TokenError> {
        let introspector = self.introspector.as_ref().ok_or(TokenError::Form)?;
        match introspector.remembered(digest) {
            Introspected::Active(active) => Ok(active),
            Introspected::Inactive => Err(TokenError::Inactive),
            Introspected::Unknown => Err(TokenError::NotIntrospected),
        }
    }

    /// Checks the claims of a JWT whose signature was verified. Then the issuer is asked, if it has
    /// to be: strangers cannot make the broker ask about a token that its issuer did not
    /// sign.
    pub(super) fn authenticate_jwt(
        &self,
        header: &Header,
        claims: &Claims<'_>,
        digest: &TokenDigest,
        keyring: &Keyring,
    ) -> Result<AuthenticatedCaller, TokenError> {
        let proven = self.authenticate(header.is_access_token, claims, None, keyring)?;
        if !self.introspector.as_ref().is_some_and(|introspector| introspector.includes_jwts) {
            return Ok(proven);
        }
        let active = self.introspected(digest)?;
        self.authenticate(header.is_access_token, claims, Some(&active), keyring)
    }

    /// Checks the claims of a token and returns its caller.
    fn authenticate(
        &self,
        is_access_token: bool,
        claims: &Claims<'_>,
        introspected: Option<&ActiveToken>,
        keyring: &Keyring,
    ) -> Result<AuthenticatedCaller, TokenError> {
        let bound_to = claims.bound_certificate()?;
        let (until, issued_at) = self.check_life(is_access_token, claims)?;
        if !claims.audiences().iter().any(|audience| self.accepts_audience(audience)) {
            return Err(TokenError::Audience);
        }
        let tenant = self.tenant(claims)?;
        if !keyring.is_enabled(&tenant) {
            return Err(TokenError::Tenant);
        }
        let principal = self.principal(claims)?;
        // Last: only a token without another fault gets an answer about scopes.
        let scopes = claims.scopes();
        if !self.config.scopes.iter().all(|needed| scopes.contains(needed)) {
            return Err(TokenError::Scope);
        }
        let of = (tenant.clone(), principal.clone());
        let ends = (self.withdrawn.clone(), keyring.revocations().clone());
        let (recheck_at, ended) =
            introspected.map(|active| (active.fresh_until, active.ended.clone())).unzip();
        let token = VerifiedToken::new(of, claims.text("jti"), issued_at, bound_to, ends);
        let token = Arc::new(token.ending_with(ended));
        if token.is_revoked() {
            return Err(TokenError::Revoked);
        }
        let caller = Caller::of_subject(tenant, self.subject(principal, claims));
        Ok(AuthenticatedCaller {
            caller: Caller { token: Some(token.clone()), ..caller },
            until: Some(CredentialExpiry::of_token(until, token)),
            recheck_at,
        })
    }

    /// Checks that a token is an access token within its life. Returns its end, with the leeway for
    /// clocks, and the time of its issue.
    pub(super) fn check_life(
        &self,
        is_access_token: bool,
        claims: &Claims<'_>,
    ) -> Result<(SystemTime, Option<SystemTime>), TokenError> {
        if !is_access_token && claims.are_of_id_token() {
            return Err(TokenError::IdToken);
        }
        let now = SystemTime::now();
        let until = claims.moment("exp")?.ok_or(TokenError::NoExpiry)? + TOKEN_LEEWAY;
        if until <= now {
            return Err(TokenError::Expired);
        }
        let (latest, issued_at) = (now + TOKEN_LEEWAY, claims.moment("iat")?);
        if [claims.moment("nbf")?, issued_at].into_iter().flatten().any(|begin| begin > latest) {
            return Err(TokenError::NotYet);
        }
        Ok((until, issued_at))
    }

    /// Returns the principal of a token, in the format that `auth::reserved_reason` recognizes.
    pub(super) fn principal(&self, claims: &Claims<'_>) -> Result<PrincipalId, TokenError> {
        let is_usable =
            |name: &String| name.len() <= TOKEN_PRINCIPAL_BYTES_MAX && is_printable(name);
        let name = claims.text(&self.config.principal_claim).filter(is_usable);
        let name = name.ok_or(TokenError::Principal)?;
        Ok(PrincipalId::new(format!("{} {name}", self.config.issuer)))
    }

    /// Checks that the issuer says that a JWT is active, if it has to be asked.
    pub(super) fn check_introspection(&self, digest: &TokenDigest) -> Result<(), TokenError> {
        match self.introspector.as_ref().is_some_and(|introspector| introspector.includes_jwts) {
            true => self.introspected(digest).map(drop),
            false => Ok(()),
        }
    }

    /// Returns the attributes of a token that access rules look at.
    fn subject(&self, principal: PrincipalId, claims: &Claims<'_>) -> Subject {
        let groups = self.config.groups_claim.as_deref().and_then(|path| claims.values(path));
        let has_scopes = claims.has("scope") || claims.has("scp");
        let client = ["azp", "client_id"].into_iter().find_map(|name| claims.text(name));
        let attributes = SubjectAttributes {
            groups,
            scopes: has_scopes.then(|| claims.scopes()),
            client: client.map(|client| vec![client]),
        };
        attributes.subject(principal, None)
    }

    fn tenant(&self, claims: &Claims<'_>) -> Result<TenantId, TokenError> {
        let (name, tenants) = match &self.config.tenant {
            TenantMapping::Fixed(tenant) => return Ok(tenant.clone()),
            TenantMapping::Claim { name, tenants } => (name, tenants),
        };
        let tenant = claims
            .text(name)
            .and_then(|name| TenantId::parse(&name).ok())
            .ok_or(TokenError::Tenant)?;
        if tenants.is_empty() || tenants.contains(&tenant) {
            Ok(tenant)
        } else {
            Err(TokenError::UnlistedTenant)
        }
    }

    /// Returns whether the broker is the audience of a token (RFC 8707; MCP 2025-11-25, Access
    /// Token Usage).
    fn accepts_audience(&self, audience: &str) -> bool {
        if !self.config.audiences.is_empty() {
            return self.config.audiences.iter().any(|known| known == audience);
        }
        let Some(below) = audience.strip_prefix(&self.resource) else { return false };
        match below.strip_prefix("/mcp").unwrap_or(below) {
            "" | "/" => true,
            rest => {
                below.starts_with("/mcp/")
                    && rest.strip_prefix('/').is_some_and(|name| BackendId::parse(name).is_ok())
            }
        }
    }

    /// Returns a refusal with all required scopes (MCP 2025-11-25, Runtime Insufficient Scope
    /// Errors).
    pub(super) fn scope_missing(&self) -> Refusal {
        Refusal::new(ErrorKind::InsufficientScope, "the token lacks a scope that is needed here")
            .with("scope", self.config.scopes.join(" "))
    }

    // Keys of the issuer.

    /// Waits for a running fetch, or for one that the rate permits now.
    pub(in crate::auth) async fn wait_for_fetch(&self) {
        let Ok(_place) = self.waiting.try_acquire() else { return };
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
                "the issuer may name every tenant; set auth.issuers[].tenants to those it may name"
            );
        }
        let (mut failures, mut fetched_at) = (0_u32, Instant::now());
        loop {
            let begun = self.begin_fetch().await;
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
                    fetched_at = begun;
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
                "the issuer publishes no key that can be used: none of its tokens is accepted"
            ),
            count => tracing::info!(
                issuer = self.name(),
                keys = count,
                "the keys of an issuer are in use"
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
        let left = self.config.keys_max_age.saturating_sub(fetched_at.elapsed());
        if !left.is_zero() || !self.has_keys.load(Ordering::Relaxed) {
            return if left.is_zero() { KEY_SET_RETRY_MAX } else { left };
        }
        tracing::error!(
            issuer = self.name(),
            "the keys of an issuer are older than keys_max_age: none of its tokens is accepted"
        );
        self.install_keys(KeySet::default(), keyring, metrics);
        KEY_SET_RETRY_MAX
    }

    /// Waits until the rate permits a fetch. Returns the start time of that fetch.
    async fn begin_fetch(&self) -> Instant {
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
