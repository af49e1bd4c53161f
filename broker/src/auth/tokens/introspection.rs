//! Introspection of tokens (RFC 7662): which tokens are asked about, and the remembered answers.
//!
//! A check of a token never waits. It finds a remembered answer, or [`UncheckedToken`], for which
//! the listener waits before it checks again.
//!
//! Invariants:
//! - An answer is used for the configured time at most, and not after the expiry of the token.
//! - One token is asked about once at a time, however many requests show it.
//! - Tokens that were never valid have a rate of their own and cannot use the reserved permits.
//!   Strangers therefore neither flood the authorization server nor delay known callers.
//! - The wait for a permit is not a failure of the authorization server.
//! - Without an answer the token is refused for now, and never accepted.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use config::IntrospectionConfig;
use parking_lot::Mutex;
use protocol::error::{ErrorKind, Refusal};
use rules::{
    limits::tokens::{
        INTROSPECTION_FAILURE_PAUSE, INTROSPECTION_INACTIVE_FOR, INTROSPECTION_MAX,
        INTROSPECTION_NEW_TOKENS_PER_SECOND, INTROSPECTION_WAITING_MAX,
        INTROSPECTION_WAITING_RESERVED, INTROSPECTIONS_AT_ONCE_MAX, INTROSPECTIONS_REMEMBERED_MAX,
        INTROSPECTIONS_RESERVED, TOKEN_LEEWAY,
    },
    local_rate_limit::{LocalRateLimiter, one_per, per_second},
    maps::FastMap,
};
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    introspection_permits::ReservedPermits,
    introspection_request::{IntrospectionClient, IntrospectionFailure},
    jwt::Claims,
};
use crate::{auth::token_digest::TokenDigest, maps::SharedMap, metrics::Metrics};

/// Interval between two log lines about failures of one issuer.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Introspection endpoint of one issuer.
#[derive(Debug)]
pub(in crate::auth) struct Introspector {
    issuer: String,
    ttl: Duration,
    pub(super) includes_jwts: bool,
    client: IntrospectionClient,
    metrics: Arc<Metrics>,
    answers: Arc<Mutex<Answers>>,
    /// Introspections that run now. A receiver is closed at the end.
    running: SharedMap<TokenDigest, watch::Receiver<()>>,
    at_once: ReservedPermits,
    waiting: ReservedPermits,
    started: Instant,
}

#[derive(Debug)]
struct Answers {
    active: FastMap<TokenDigest, ActiveToken>,
    /// Inactive tokens, with the end of each answer.
    inactive: FastMap<TokenDigest, Instant>,
    /// Rate of tokens that were never valid.
    new_tokens: LocalRateLimiter,
    /// Set after a failure of the server: no introspection before.
    paused_until: Option<Instant>,
    /// Rate of log lines about failures.
    log_lines: LocalRateLimiter,
}

/// An answer about an active token.
#[derive(Debug, Clone)]
pub(super) struct ActiveToken {
    /// The answer as received.
    pub(super) claims: Arc<[u8]>,
    /// End of the use of the answer.
    pub(super) fresh_until: Instant,
    /// Cancelled when a later answer calls the token inactive. Sessions and connections that the
    /// token opened hold it.
    pub(super) ended: Arc<CancellationToken>,
}

impl ActiveToken {
    /// Returns the end of the token with the leeway for clocks, if the answer has it.
    pub(super) fn ends_at(&self) -> Option<SystemTime> {
        expiry(&self.claims).map(|at| at + TOKEN_LEEWAY)
    }
}

/// Remembered answer about a token.
pub(super) enum Introspected {
    Active(ActiveToken),
    Inactive,
    Unknown,
}

/// A token whose issuer has to be asked first.
#[derive(Debug)]
pub struct UncheckedToken {
    pub(super) introspector: Arc<Introspector>,
    pub(super) digest: TokenDigest,
}

impl UncheckedToken {
    /// Asks the issuer about the token, or waits for the answer to the same question. Returns a
    /// refusal without an answer.
    pub async fn check_active(&self, bearer: &str) -> Result<(), Refusal> {
        self.introspector.check_active(self.digest, bearer).await
    }
}

/// Returns the refusal of a token whose issuer could not be asked.
pub(in crate::auth) fn issuer_unavailable() -> Refusal {
    let text = "the broker cannot check the token with its authorization server now";
    Refusal::new(ErrorKind::IssuerUnavailable, text).retry_after(INTROSPECTION_FAILURE_PAUSE)
}

impl Introspector {
    pub(super) fn new(
        issuer: &str,
        config: &IntrospectionConfig,
        client: IntrospectionClient,
        metrics: Arc<Metrics>,
    ) -> Self {
        let rate = INTROSPECTION_NEW_TOKENS_PER_SECOND;
        let quota = per_second(rate, rate).expect("the rate is not zero");
        Self {
            issuer: issuer.to_owned(),
            ttl: config.ttl,
            includes_jwts: config.includes_jwts,
            client,
            metrics,
            answers: Arc::new(Mutex::new(Answers {
                active: FastMap::default(),
                inactive: FastMap::default(),
                new_tokens: LocalRateLimiter::new(quota),
                paused_until: None,
                log_lines: LocalRateLimiter::new(one_per(LOG_INTERVAL)),
            })),
            running: SharedMap::default(),
            at_once: ReservedPermits::new(INTROSPECTIONS_AT_ONCE_MAX, INTROSPECTIONS_RESERVED),
            waiting: ReservedPermits::new(
                INTROSPECTION_WAITING_MAX,
                INTROSPECTION_WAITING_RESERVED,
            ),
            started: Instant::now(),
        }
    }

    /// Continues with the answers of the introspector that this one replaces. The end of a token
    /// then still reaches the connections that the token opened before.
    pub(super) fn with_answers_of(self, earlier: &Self) -> Self {
        // The rates of the answers count from the start.
        Self { answers: Arc::clone(&earlier.answers), started: earlier.started, ..self }
    }

    pub(super) fn remembered(&self, digest: &TokenDigest) -> Introspected {
        let (now, answers) = (Instant::now(), self.answers.lock());
        if let Some(active) = answers.active.get(digest)
            && active.fresh_until > now
        {
            return Introspected::Active(active.clone());
        }
        match answers.inactive.get(digest) {
            Some(until) if *until > now => Introspected::Inactive,
            _ => Introspected::Unknown,
        }
    }

    async fn check_active(
        self: &Arc<Self>,
        digest: TokenDigest,
        bearer: &str,
    ) -> Result<(), Refusal> {
        let was_valid = self.answers.lock().active.contains_key(&digest);
        let Some(_permit) = self.waiting.try_acquire(was_valid) else {
            return Err(issuer_unavailable());
        };
        let mut over = match self.running.entry(digest) {
            dashmap::Entry::Occupied(running) => running.get().clone(),
            dashmap::Entry::Vacant(free) => {
                if matches!(
                    self.remembered(&digest),
                    Introspected::Active(_) | Introspected::Inactive
                ) {
                    return Ok(()); // answered in the meantime
                }
                if !self.may_introspect(&digest) {
                    return Err(issuer_unavailable());
                }
                let (running, over) = watch::channel(());
                free.insert(over.clone());
                let guard =
                    RunningIntrospection { introspector: self.clone(), digest, _running: running };
                // A task of its own: the others get their answer when the first one hangs up.
                tokio::spawn(guard.run(bearer.to_owned()));
                over
            }
        };
        // Closed at the end, also after a panic.
        let _closed = over.changed().await;
        match self.remembered(&digest) {
            Introspected::Unknown => Err(issuer_unavailable()),
            Introspected::Active(_) | Introspected::Inactive => Ok(()),
        }
    }

    /// Returns whether the pause after a failure is over, and whether a new token is within the
    /// rate.
    fn may_introspect(&self, digest: &TokenDigest) -> bool {
        let (now, mut answers) = (Instant::now(), self.answers.lock());
        if answers.paused_until.is_some_and(|until| until > now) {
            return false;
        }
        answers.active.contains_key(digest)
            || answers.new_tokens.check(self.started.elapsed()).is_ok()
    }

    /// Asks the authorization server, and remembers the answer.
    async fn introspect(&self, digest: TokenDigest, bearer: String) {
        let was_valid = self.answers.lock().active.contains_key(&digest);
        let permit = timeout(INTROSPECTION_MAX, self.at_once.acquire(was_valid)).await;
        let Ok(_permit) = permit else {
            // The server was not asked, so it did not fail.
            self.log_failure(&mut self.answers.lock(), "too many token checks are in progress");
            return;
        };
        let answer = timeout(INTROSPECTION_MAX, self.client.send(&bearer)).await;
        let late =
            || Err(IntrospectionFailure::Server("the issuer did not answer in time".to_owned()));
        let answer = answer.unwrap_or_else(|_| late());
        let now = Instant::now();
        let outcome = match &answer {
            Ok(Some(_)) => "active",
            Ok(None) => "inactive",
            Err(_) => "failed",
        };
        self.metrics.tokens.introspected(outcome);
        let mut answers = self.answers.lock();
        match answer {
            Ok(answer) => {
                answers.paused_until = None;
                answers.record(digest, answer, now, self.ttl);
            }
            Err(failure) => {
                self.log_failure(&mut answers, failure.text());
                match failure {
                    IntrospectionFailure::Server(_) => {
                        answers.paused_until = Some(now + INTROSPECTION_FAILURE_PAUSE);
                    }
                    // One odd token must not keep out the others.
                    IntrospectionFailure::Answer(_) => {}
                    IntrospectionFailure::Token(_) => answers.record(digest, None, now, self.ttl),
                }
            }
        }
    }

    fn log_failure(&self, answers: &mut Answers, error: &str) {
        if let Ok(left_out) = answers.log_lines.check(self.started.elapsed()) {
            tracing::warn!(
                issuer = self.issuer,
                error,
                left_out,
                "an issuer did not confirm a token"
            );
        }
    }
}

impl Answers {
    /// Remembers an answer. `None`: the token is inactive.
    fn record(
        &mut self,
        digest: TokenDigest,
        answer: Option<Arc<[u8]>>,
        now: Instant,
        ttl: Duration,
    ) {
        let Some(claims) = answer else {
            if let Some(known) = self.active.remove(&digest) {
                known.ended.cancel();
            }
            evict_if_full(&mut self.inactive, |until| *until > now, |_| false);
            self.inactive.insert(digest, now + INTROSPECTION_INACTIVE_FOR);
            return;
        };
        self.inactive.remove(&digest);
        let remaining = remaining_lifetime(&claims);
        let ended = match self.active.get(&digest) {
            Some(known) => known.ended.clone(),
            None => Arc::default(),
        };
        let is_held = |active: &ActiveToken| Arc::strong_count(&active.ended) > 1;
        evict_if_full(&mut self.active, |active| active.fresh_until > now, is_held);
        let fresh_until = now + ttl.min(remaining);
        self.active.insert(digest, ActiveToken { claims, fresh_until, ended });
    }
}

/// Returns the time for which the broker caches the token: until it expires, and for one second at
/// least. The request that waits for the introspection reads the cache, and checks the expiry
/// itself.
fn remaining_lifetime(claims: &[u8]) -> Duration {
    const MOMENT: Duration = Duration::from_secs(1);
    expiry(claims)
        .map_or(Duration::MAX / 4, |at| at.duration_since(SystemTime::now()).unwrap_or_default())
        .max(MOMENT)
}

/// Returns the expiry of an answer, if it has one that can be read.
fn expiry(claims: &[u8]) -> Option<SystemTime> {
    Claims::parse(claims).ok()?.moment("exp").ok().flatten()
}

/// Removes what is out of date from a full table, and the rest if that is not enough. Entries that
/// others hold stay: the end of their tokens must reach what these opened.
fn evict_if_full<V>(
    table: &mut FastMap<TokenDigest, V>,
    is_fresh: impl Fn(&V) -> bool,
    is_held: impl Fn(&V) -> bool,
) {
    if table.len() >= INTROSPECTIONS_REMEMBERED_MAX {
        table.retain(|_, entry| is_fresh(entry) || is_held(entry));
    }
    if table.len() >= INTROSPECTIONS_REMEMBERED_MAX {
        table.retain(|_, entry| is_held(entry));
    }
}

/// An introspection that runs. The drop lets those continue who wait for it.
struct RunningIntrospection {
    introspector: Arc<Introspector>,
    digest: TokenDigest,
    /// Closes the receivers when it is dropped.
    _running: watch::Sender<()>,
}

impl RunningIntrospection {
    async fn run(self, bearer: String) {
        self.introspector.introspect(self.digest, bearer).await;
    }
}

impl Drop for RunningIntrospection {
    fn drop(&mut self) {
        self.introspector.running.remove(&self.digest);
    }
}

#[cfg(test)]
mod tests {
    use config::{IntrospectionCredential, Secret};

    use super::*;

    fn answers() -> Answers {
        Answers {
            active: FastMap::default(),
            inactive: FastMap::default(),
            new_tokens: LocalRateLimiter::new(per_second(1, 1).unwrap()),
            paused_until: None,
            log_lines: LocalRateLimiter::new(one_per(LOG_INTERVAL)),
        }
    }

    #[test]
    fn an_answer_is_cached_for_its_ttl_but_not_beyond_the_token_expiry() {
        let (now, ttl) = (Instant::now(), Duration::from_secs(60));
        let in_seconds = |seconds: u64| {
            let at = SystemTime::now() + Duration::from_secs(seconds);
            let at = at.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
            Arc::<[u8]>::from(format!(r#"{{"active":true,"exp":{at}}}"#).into_bytes())
        };
        let mut answers = answers();
        for (seconds, most) in [(600, 60), (30, 30), (0, 1)] {
            answers.record([0; 32], Some(in_seconds(seconds)), now, ttl);
            let remaining = answers.active[&[0; 32]].fresh_until - now;
            assert!(
                remaining <= Duration::from_secs(most) && remaining > Duration::ZERO,
                "{remaining:?}"
            );
        }
    }

    fn introspector() -> Arc<Introspector> {
        let http = transport::HttpClient::new(transport::HttpClientConfig::default()).unwrap();
        let config = IntrospectionConfig {
            endpoint: "http://127.0.0.1:1/introspect".parse().unwrap(),
            client_id: "broker".to_owned(),
            credential: IntrospectionCredential::Basic(Secret::new("a secret")),
            ttl: Duration::from_secs(60),
            includes_jwts: false,
        };
        let client = IntrospectionClient::new(http, "https://issuer.example", &config);
        let metrics = Arc::new(Metrics::new(false));
        Arc::new(Introspector::new("https://issuer.example", &config, client, metrics))
    }

    #[tokio::test(start_paused = true)]
    async fn the_wait_of_new_tokens_is_not_a_failure_and_delays_no_known_one() {
        let introspector = introspector();
        let claims = Arc::<[u8]>::from(&b"{\"active\":true}"[..]);
        introspector.answers.lock().record([1; 32], Some(claims), Instant::now(), Duration::ZERO);
        let mut of_new = Vec::new();
        while let Some(permit) = introspector.at_once.try_acquire(false) {
            of_new.push(permit);
        }
        assert!(introspector.check_active([0; 32], "stranger").await.is_err());
        assert!(introspector.answers.lock().paused_until.is_none(), "the server was not asked");
        assert!(introspector.check_active([1; 32], "known").await.is_err());
        assert!(introspector.answers.lock().paused_until.is_some(), "the server was asked");
    }

    #[test]
    fn a_new_credential_keeps_the_answers_and_the_ends_of_tokens() {
        let (earlier, next) = (introspector(), introspector());
        let claims = Arc::<[u8]>::from(&b"{\"active\":true}"[..]);
        let (now, ttl) = (Instant::now(), Duration::from_secs(60));
        earlier.answers.lock().record([0; 32], Some(claims), now, ttl);
        let ended = earlier.answers.lock().active[&[0; 32]].ended.clone();
        let next = Arc::into_inner(next).unwrap().with_answers_of(&earlier);
        assert!(matches!(next.remembered(&[0; 32]), Introspected::Active(_)));
        next.answers.lock().record([0; 32], None, now, ttl);
        assert!(ended.is_cancelled());
    }

    #[test]
    fn an_inactive_answer_cancels_the_active_token() {
        let (now, ttl) = (Instant::now(), Duration::from_secs(60));
        let claims = || Some(Arc::<[u8]>::from(&b"{\"active\":true}"[..]));
        let mut answers = answers();
        answers.record([0; 32], claims(), now, ttl);
        let ended = answers.active[&[0; 32]].ended.clone();
        answers.record([0; 32], claims(), now, ttl);
        assert!(!ended.is_cancelled());
        answers.record([0; 32], None, now, ttl);
        assert!(ended.is_cancelled() && answers.active.is_empty());
    }

    #[test]
    fn the_end_of_a_token_in_use_is_known_after_many_others() {
        let now = Instant::now();
        let mut answers = answers();
        let digest = |number: u64| {
            let mut digest = [0; 32];
            digest[..8].copy_from_slice(&number.to_le_bytes());
            digest
        };
        let claims = || Some(Arc::<[u8]>::from(&b"{\"active\":true}"[..]));
        answers.record(digest(0), claims(), now, Duration::ZERO);
        let ended = answers.active[&digest(0)].ended.clone();
        for number in 1..2 * INTROSPECTIONS_REMEMBERED_MAX as u64 {
            answers.record(digest(number), claims(), now, Duration::from_secs(60));
        }
        assert!(answers.active.len() <= INTROSPECTIONS_REMEMBERED_MAX);
        answers.record(digest(0), None, now, Duration::ZERO);
        assert!(ended.is_cancelled(), "what the token opened ends");
    }

    #[test]
    fn the_tables_are_bounded() {
        let now = Instant::now();
        let mut answers = answers();
        for number in 0..2 * INTROSPECTIONS_REMEMBERED_MAX as u64 + 5 {
            let mut digest = [0; 32];
            digest[..8].copy_from_slice(&number.to_le_bytes());
            answers.record(digest, None, now, Duration::from_secs(60));
            assert!(answers.inactive.len() <= INTROSPECTIONS_REMEMBERED_MAX);
        }
    }
}
