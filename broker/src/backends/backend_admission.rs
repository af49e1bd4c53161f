//! What stands between calls and one backend: its breaker, the room it has, and its budget of retries. Asked before a call
//! goes, told how it went.
//!
//! Invariant: what our own side refused, and what a backend answered, is no failure of that backend; the end of one
//! connection is one failure, however many calls went down with it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use protocol::{
    envelope::Message,
    error::{ErrorKind, Refusal},
    ids::PrincipalId,
};
use tokio::sync::{Notify, watch};

use super::{
    backend::Backend,
    link::connection::{Connection, Failure, WireSender},
};
use crate::{
    admission::concurrency_limit::{AcquireError, ConcurrencyLimiter, LimiterPermit, TenantShare},
    config::{Config, spec::BackendSpec},
    context::Context,
    limits::{PROBE_ANSWER_MAX, SILENCE_SUSPECTED, SUSPICION_INTERVAL},
    metrics::{Metrics, RetryOutcome},
    persistence::SessionKey,
    rules::{
        adaptive_concurrency::AdaptiveLimit,
        breaker::{Breaker, BreakerSettings, CircuitOpen, CircuitState, OpenReason},
        retries,
    },
    views::BreakerStatus,
};

/// Of one backend.
#[derive(Debug)]
pub struct BackendAdmission {
    breaker: Breaker,
    /// The breaker has opened, is to be probed sooner, or somebody suspects that the backend is not there.
    probe_wanted: Notify,
    suspected: AtomicBool,
    /// From when on it may be suspected again, on the clock of the process.
    trusted_until_ms: AtomicU64,
    /// Probes so far.
    probes: watch::Sender<u64>,
    limiter: Arc<ConcurrencyLimiter<PrincipalId, SessionKey>>,
    adaptive: Option<Mutex<AdaptiveLimit>>,
    retries: Option<retries::RetryBudget>,
    /// The state that metrics and log know of.
    reported_state: Mutex<CircuitState>,
    label: String,
    metrics: Arc<Metrics>,
}

/// Room for one call: at its backend, and in the broker.
#[derive(Debug)]
pub struct Permit {
    _backend_permit: LimiterPermit<PrincipalId, SessionKey>,
    _broker_permit: LimiterPermit<TenantShare, PrincipalId>,
}

/// Why a backend is to be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProbeReason {
    /// Its breaker is open, and half open now.
    HalfOpen,
    /// Clients gave up waiting for it.
    Suspicion,
}

/// For whom a call is.
#[derive(Debug, Clone, Copy)]
pub struct CallOwner<'a> {
    /// The share of its tenant in the limiter of all calls.
    pub share: &'a TenantShare,
    pub weight: u32,
    pub principal: &'a PrincipalId,
    pub session: &'a SessionKey,
}

impl BackendAdmission {
    pub(super) fn new(id: &protocol::ids::BackendId, spec: &BackendSpec, shared: &Context) -> Self {
        let config = &shared.config;
        let (own, common) = (&spec.limits, &config.limits);
        let max = own.calls_in_flight.unwrap_or(common.calls_in_flight_per_backend);
        let queued = own.calls_queued.unwrap_or(common.calls_queued_per_backend);
        let adapts = own.adaptive_concurrency.unwrap_or(common.adaptive_concurrency);
        let metrics = shared.metrics.clone();
        let label = metrics.protection.label(id);
        metrics.protection.breaker_moved(&label, None, Some(CircuitState::Closed));
        if adapts {
            metrics.protection.calls_max(&label, max);
        }
        Self {
            breaker: Breaker::new(settings(spec, config)),
            probe_wanted: Notify::new(),
            suspected: AtomicBool::new(false),
            trusted_until_ms: AtomicU64::new(0),
            probes: watch::Sender::new(0),
            limiter: ConcurrencyLimiter::new(max, queued, metrics.queue_depth("backend_calls")),
            adaptive: adapts.then(|| Mutex::new(AdaptiveLimit::new(max))),
            retries: config
                .retries
                .enabled
                .then(|| retries::RetryBudget::new(config.retries.budget.get())),
            reported_state: Mutex::new(CircuitState::Closed),
            label,
            metrics,
        }
    }
}

impl Drop for BackendAdmission {
    fn drop(&mut self) {
        let told = *self.reported_state.lock();
        self.metrics.protection.breaker_moved(&self.label, Some(told), None);
    }
}

fn settings(spec: &BackendSpec, config: &Config) -> BreakerSettings {
    let (own, common) = (&spec.breaker, &config.breaker);
    BreakerSettings {
        enabled: own.enabled.unwrap_or(common.enabled),
        failures: own.failures.unwrap_or(common.failures),
        error_ratio: own.error_ratio.unwrap_or(common.error_ratio).get(),
        requests: own.requests.unwrap_or(common.requests),
        window: own.window.unwrap_or(common.window),
        probe_after: own.probe_after.unwrap_or(common.probe_after),
        probe_max: own.probe_max.unwrap_or(common.probe_max),
    }
}

impl Backend {
    /// Whether calls go to it now. One load of one atomic while all is well.
    pub fn check_breaker(&self) -> Result<(), Refusal> {
        self.admission
            .breaker
            .admits(|| self.shared.uptime())
            .map_err(|rest| self.breaker_refusal(rest))
    }

    fn breaker_refusal(&self, rest: CircuitOpen) -> Refusal {
        let why = match rest.reason {
            OpenReason::Failures => {
                "has failed several times in a row and is left alone until a probe finds it well"
            }
            OpenReason::Ratio => "fails too often and is left alone until a probe finds it well",
            OpenReason::Operator => "is left alone because an operator wants it so",
        };
        let refusal =
            Refusal::new(ErrorKind::BackendUnavailable, format!("backend {} {why}", self.id))
                .with("breaker", rest.reason.name());
        match rest.retry_after {
            Some(after) => refusal.retry_after(after),
            None => refusal,
        }
    }

    /// Waits for room for one call, which is of no use after `due`.
    pub async fn acquire_permit(
        &self,
        caller: CallOwner<'_>,
        due: Instant,
    ) -> Result<Permit, Refusal> {
        let CallOwner { share, weight, principal, .. } = caller;
        // First at the backend: whoever waits for one that is slow keeps nobody else out.
        let there = match self.admission.limiter.try_acquire(principal, 1) {
            Some(there) => match self.shared.call_limiter.try_acquire(share, weight) {
                Some(here) => return Ok(Permit { _backend_permit: there, _broker_permit: here }),
                None => Some(there),
            },
            None => None,
        };
        // Boxed, as it is rare: every call would have room for the wait.
        Box::pin(self.wait_for_permit(there, caller, due)).await
    }

    /// The same, where there is no room yet; at the backend there may be.
    async fn wait_for_permit(
        &self,
        there: Option<LimiterPermit<PrincipalId, SessionKey>>,
        caller: CallOwner<'_>,
        due: Instant,
    ) -> Result<Permit, Refusal> {
        let left = || due.saturating_duration_since(Instant::now());
        // What begins too late for an answer takes the place of what does not.
        let needed = self.expected_latency().min(left() / 2);
        let CallOwner { share, weight, principal, session } = caller;
        let there = match there {
            Some(there) => there,
            None => {
                let there = self
                    .admission
                    .limiter
                    .acquire(principal, 1, session, left().saturating_sub(needed))
                    .await;
                there.map_err(|crowded| self.acquire_refusal(crowded))?
            }
        };
        let here = self
            .shared
            .call_limiter
            .acquire(share, weight, principal, left().saturating_sub(needed))
            .await;
        let here = here.map_err(|crowded| {
            self.shared.metrics.protection.crowded_out("broker");
            overloaded("the broker".to_owned(), crowded)
        })?;
        if left() < needed {
            return Err(self.acquire_refusal(AcquireError::TooLate { wait: needed }));
        }
        Ok(Permit { _backend_permit: there, _broker_permit: here })
    }

    fn acquire_refusal(&self, crowded: AcquireError) -> Refusal {
        if crowded == AcquireError::Drained
            && let Err(at_rest) = self.check_breaker()
        {
            return at_rest;
        }
        self.shared.metrics.protection.crowded_out("backend");
        overloaded(format!("backend {}", self.id), crowded)
    }

    /// An answer to a request that went out, or that there is none.
    pub fn record_result(
        &self,
        connection: &Connection,
        answer: &Result<Message, Failure>,
        took: Duration,
        over_at: Instant,
    ) {
        match answer {
            Ok(_) => self.admission.breaker.succeeded(self.shared.uptime_at(over_at)),
            Err(failure) if !failure.is_the_backends() => {}
            // The calls of a connection that ends fail together.
            Err(Failure::Lost(_))
                if matches!(connection.wire(), WireSender::Pipe(_)) && !connection.count_loss() => {
            }
            Err(_) => self.record_failure(took),
        }
    }

    /// How long a call of those that take room took. Of tasks nothing is learnt: they take none, and last as long as they do.
    pub fn record_call_duration(&self, answer: &Result<Message, Failure>, took: Duration) {
        if answer.as_ref().err().is_none_or(Failure::is_the_backends) {
            self.adapt_limit(took, answer.is_err());
        }
    }

    /// A call got no answer in the time that was left for it when it was sent.
    pub fn record_timeout(&self, after: Duration) {
        self.record_failure(after);
        self.adapt_limit(after, true);
    }

    /// A client gave up a call that was with the backend for so long and of which nothing was heard. That alone says nothing of
    /// the backend; where nobody else heard of it either, the broker asks it.
    pub fn record_abandoned(&self, after: Duration) {
        let now = self.shared.uptime();
        let trusted_until =
            Duration::from_millis(self.admission.trusted_until_ms.load(Ordering::Relaxed));
        let is_suspect = after >= SILENCE_SUSPECTED
            && now >= trusted_until
            && self.admission.breaker.is_enabled();
        if is_suspect && !self.answered_since(now.saturating_sub(after)) {
            self.admission.suspected.store(true, Ordering::Relaxed);
            self.admission.probe_wanted.notify_one();
        }
    }

    /// Whether anybody got an answer of it since.
    pub(super) fn answered_since(&self, since: Duration) -> bool {
        self.admission.breaker.last_success() > since
    }

    pub(super) fn clear_suspicion(&self) {
        let until = self.shared.uptime() + SUSPICION_INTERVAL;
        self.admission
            .trusted_until_ms
            .store(u64::try_from(until.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.admission.suspected.store(false, Ordering::Relaxed);
    }

    /// A connection to it did not come about, or it gave a call no answer for so long.
    pub fn record_failure(&self, after: Duration) {
        let now = self.shared.uptime();
        let is_leaving = self.stop.is_cancelled() || self.shared.draining.is_cancelled();
        if !is_leaving
            && self.admission.breaker.failed(now, now.saturating_sub(after), rand::random())
        {
            self.report_breaker_state();
            self.admission.probe_wanted.notify_one();
            self.admission.limiter.drain_queue();
        }
    }

    fn adapt_limit(&self, took: Duration, failed: bool) {
        let Some(adaptive) = &self.admission.adaptive else { return };
        let limit = adaptive.lock().observe(
            self.shared.uptime(),
            took,
            failed,
            self.admission.limiter.in_use(),
        );
        if let Some(limit) = limit {
            self.admission.limiter.set_limit(limit);
            self.admission.metrics.protection.calls_max(&self.admission.label, limit);
        }
    }

    /// A call begins, which earns a share of a retry.
    pub fn earn_retry(&self) {
        if let Some(budget) = &self.admission.retries {
            budget.earn();
        }
    }

    /// Whether a call that may be sent again is.
    pub fn spend_retry(&self) -> bool {
        let Some(budget) = &self.admission.retries else { return false };
        let spent = budget.spend();
        self.admission.metrics.protection.retry(if spent {
            RetryOutcome::Sent
        } else {
            RetryOutcome::OverBudget
        });
        spent
    }

    /// An operator's word: `open` until told otherwise, or closed, from where on it goes by the rules.
    pub fn set_breaker(self: &Arc<Self>, open: bool) {
        let changed = if open {
            self.admission.breaker.hold_open()
        } else {
            self.admission.breaker.close(self.shared.uptime())
        };
        if changed {
            tracing::info!(tenant = %self.tenant, backend = %self.id, open, "an operator has set the breaker");
            self.report_breaker_state();
        }
        if open {
            self.admission.limiter.drain_queue();
        } else {
            self.on_recovered();
        }
    }

    /// Resolves when there is a reason to look at the backend.
    pub(super) async fn wait_for_probe(&self) -> ProbeReason {
        loop {
            match self.admission.breaker.probe_at() {
                Some(at) => {
                    tokio::select! {
                        () = tokio::time::sleep(at.saturating_sub(self.shared.uptime())) => {}
                        () = self.admission.probe_wanted.notified() => {}
                    }
                    if self.admission.breaker.begin_probe(self.shared.uptime()) {
                        self.report_breaker_state();
                        return ProbeReason::HalfOpen;
                    }
                }
                None if self.admission.suspected.load(Ordering::Relaxed)
                    && self.check_breaker().is_ok() =>
                {
                    return ProbeReason::Suspicion;
                }
                None => self.admission.probe_wanted.notified().await,
            }
        }
    }

    /// An open breaker is probed now; resolves when it is known what came of that.
    pub async fn probe_breaker(&self) {
        let mut probes = self.admission.probes.subscribe();
        if self.admission.breaker.probe_now(self.shared.uptime()) {
            self.admission.probe_wanted.notify_one();
        } else if self.admission.breaker.state() != CircuitState::HalfOpen {
            return;
        }
        let _in_time =
            tokio::time::timeout(self.timeouts().initialize + PROBE_ANSWER_MAX, probes.changed())
                .await;
    }

    /// What came of the probe.
    pub(super) fn record_probe(self: &Arc<Self>, well: bool) {
        let to = self.admission.breaker.probed(well, self.shared.uptime(), rand::random());
        self.report_breaker_state();
        self.admission.probes.send_modify(|count| *count += 1);
        self.clear_suspicion();
        if to == Some(CircuitState::Closed) {
            self.on_recovered();
        }
    }

    /// Nothing waits any longer than it must: neither the lists, nor links that were told to.
    fn on_recovered(self: &Arc<Self>) {
        for link in self.links() {
            self.shared.running.spawn(async move { link.shorten_backoff().await });
        }
        self.refresh();
    }

    /// Tells metrics and log of a new state.
    fn report_breaker_state(&self) {
        let mut told = self.admission.reported_state.lock();
        let state = self.admission.breaker.state();
        let before = std::mem::replace(&mut *told, state);
        if before == state {
            return;
        }
        self.admission.metrics.protection.breaker_moved(
            &self.admission.label,
            Some(before),
            Some(state),
        );
        drop(told);
        let (tenant, backend) = (&self.tenant, &self.id);
        match (before, state) {
            (CircuitState::Closed, _) => {
                let why = self
                    .admission
                    .breaker
                    .resting(self.shared.uptime())
                    .map(|rest| rest.reason.name());
                tracing::warn!(%tenant, %backend, why, "breaker open: the backend gets no calls until a probe finds it well");
            }
            (_, CircuitState::Closed) => {
                tracing::info!(%tenant, %backend, "breaker closed: the backend is well again")
            }
            _ => tracing::debug!(%tenant, %backend, state = state.name(), "breaker"),
        }
    }

    pub fn breaker_status(&self) -> BreakerStatus {
        let rest = self.admission.breaker.resting(self.shared.uptime());
        BreakerStatus {
            state: self.admission.breaker.state().name().to_owned(),
            reason: rest.map(|rest| rest.reason.name().to_owned()),
            failures_in_a_row: self.admission.breaker.streak(),
            next_probe_ms: rest
                .and_then(|rest| rest.retry_after)
                .map(|after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX)),
        }
    }

    /// Calls that are with the backend, that wait for it, and how many it gets at the same time.
    pub fn call_counts(&self) -> (usize, usize, usize) {
        (
            self.admission.limiter.in_use(),
            self.admission.limiter.queued(),
            self.admission.limiter.limit(),
        )
    }
}

fn overloaded(who: String, crowded: AcquireError) -> Refusal {
    let (text, wait) = match crowded {
        AcquireError::Full { wait } => (format!("too many calls wait for {who}"), wait),
        AcquireError::TooLate { wait } => {
            (format!("too many calls wait for {who}: this one could not begin in its time"), wait)
        }
        AcquireError::Drained => (format!("{who} takes no calls now"), Duration::ZERO),
    };
    Refusal::new(ErrorKind::Overloaded, text).retry_after(wait.clamp(RETRY_MIN, RETRY_MAX))
}

/// What a client is told to wait, whatever is foreseen.
const RETRY_MIN: Duration = Duration::from_millis(10);
const RETRY_MAX: Duration = Duration::from_secs(30);
