//! The admission state of one backend: its breaker, its concurrency limit and its budget of retries.
//! [`super::backend_admission`] has the rules.

use std::{
    hash::BuildHasher as _,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use config::{Config, spec::BackendSpec};
use parking_lot::Mutex;
use protocol::{
    ids::{BackendId, PrincipalId, TenantId},
    method::Method,
};
use records::SessionKey;
use rules::{
    adaptive_concurrency::{AdaptiveLimit, AnswerLatency},
    breaker::{Breaker, BreakerSettings, CircuitState},
    maps::FastHasher,
    retries,
};
use tokio::sync::{Notify, watch};

use super::verdicts::ReplicaVerdicts;
use crate::{
    admission::concurrency_limit::ConcurrencyLimiter,
    context::Context,
    metrics::{BackendSeries, Metrics},
};

/// The admission state of one backend.
#[derive(Debug)]
pub(super) struct BackendAdmission {
    pub(super) breaker: Breaker,
    /// Notified when the breaker opens, when a probe is wanted sooner, or when a client suspects an
    /// outage.
    pub(super) probe_wanted: Notify,
    pub(super) suspected: AtomicBool,
    /// Time before which the backend is not suspected again, in milliseconds of the process clock.
    pub(super) trusted_until_ms: AtomicU64,
    pub(super) verdicts: ReplicaVerdicts,
    /// Number of probes so far.
    pub(super) probes: watch::Sender<u64>,
    pub(super) limiter: Arc<ConcurrencyLimiter<PrincipalId, SessionKey>>,
    pub(super) adaptive: Option<Mutex<AdaptiveLimit>>,
    /// Numbers the kinds of calls for `adaptive`.
    hasher: FastHasher,
    /// The configured limit of calls.
    calls_max: usize,
    pub(super) retries: Option<retries::RetryBudget>,
    /// The last state that went to the metrics and the log.
    pub(super) reported_state: Mutex<CircuitState>,
    pub(super) series: BackendSeries,
    pub(super) metrics: Arc<Metrics>,
}

impl BackendAdmission {
    pub(super) fn new(
        tenant: &TenantId,
        id: &BackendId,
        spec: &BackendSpec,
        context: &Context,
    ) -> Self {
        let config = &context.config;
        let (own, common) = (&spec.limits, &config.limits);
        let max = own.calls_in_flight.unwrap_or(common.calls_in_flight_per_backend);
        let queued = own.calls_queued.unwrap_or(common.calls_queued_per_backend);
        let adapts = own.adaptive_concurrency.unwrap_or(common.adaptive_concurrency);
        let metrics = context.metrics.clone();
        let series = BackendSeries::new(metrics.clone(), tenant, id);
        if adapts {
            series.calls_max(max);
        }
        Self {
            breaker: Breaker::new(settings(spec, config)),
            probe_wanted: Notify::new(),
            suspected: AtomicBool::new(false),
            trusted_until_ms: AtomicU64::new(0),
            verdicts: ReplicaVerdicts::default(),
            probes: watch::Sender::new(0),
            limiter: ConcurrencyLimiter::new(max, queued, metrics.queue_depth("backend_calls")),
            adaptive: adapts.then(|| Mutex::new(AdaptiveLimit::new(max))),
            hasher: FastHasher::default(),
            calls_max: max,
            retries: config
                .retries
                .enabled
                .then(|| retries::RetryBudget::new(config.retries.budget.get())),
            reported_state: Mutex::new(CircuitState::Closed),
            series,
            metrics,
        }
    }

    /// Sends one call at a time until [`BackendAdmission::end_suspicion`].
    pub(super) fn suspect(&self) {
        // Held so that no round of the adaptive limit ends between the two changes.
        let _adaptive = self.adaptive.as_ref().map(|adaptive| adaptive.lock());
        // The flag comes last, because a probe that sees it restores the limit.
        self.limiter.set_limit(1);
        self.verdicts.set_suspicious(true);
    }

    /// Sends calls at the usual limit again. Returns whether the backend was suspected.
    pub(super) fn end_suspicion(&self) -> bool {
        let adaptive = self.adaptive.as_ref().map(|adaptive| adaptive.lock());
        let was_suspicious = self.verdicts.set_suspicious(false);
        if was_suspicious {
            // Rounds that ended during the suspicion may have changed the adaptive limit.
            match adaptive {
                Some(adaptive) => self.apply(adaptive.limit()),
                None => self.limiter.set_limit(self.calls_max),
            }
        }
        was_suspicious
    }

    /// Returns the kind of a call for the adaptive limit: calls of one tool are of one kind.
    pub(super) fn kind_of(&self, method: Method, tool: Option<&str>) -> u64 {
        self.adaptive.as_ref().map_or(0, |_| self.hasher.hash_one((method, tool)))
    }

    /// Reports the outcome of a call to the adaptive limit. `None`: it failed.
    pub(super) fn adapt_limit(&self, now: Duration, answer: Option<AnswerLatency>) {
        let Some(adaptive) = &self.adaptive else { return };
        let mut adaptive = adaptive.lock();
        let changed = adaptive.observe(now, answer, self.limiter.in_use());
        if let Some(limit) = changed.filter(|_| !self.verdicts.is_suspicious()) {
            self.apply(limit);
        }
    }

    fn apply(&self, adaptive_limit: usize) {
        self.limiter.set_limit(adaptive_limit);
        self.series.calls_max(adaptive_limit);
    }

    /// Returns whether clients gave up while no call got an answer.
    pub(super) fn is_suspected(&self) -> bool {
        self.suspected.load(Ordering::Relaxed)
    }

    /// Returns whether a probe succeeded so recently that no other one is needed.
    pub(super) fn is_trusted(&self, now: Duration) -> bool {
        now < Duration::from_millis(self.trusted_until_ms.load(Ordering::Relaxed))
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
