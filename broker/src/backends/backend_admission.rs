//! Admission of calls to one backend: its breaker, its concurrency limit and its budget of retries.
//! A call passes it before it is sent, and reports its outcome.
//!
//! Invariant: a refusal of the broker and an error answer do not count as failures of the backend.
//! The end of one connection is one failure, however many calls it ends.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use protocol::{
    envelope::Message,
    error::{ErrorKind, Refusal},
    ids::PrincipalId,
    method::Method,
};
use records::SessionKey;
use rules::{
    adaptive_concurrency::AnswerLatency,
    breaker::{CircuitOpen, CircuitState, OpenReason},
    limits::{PROBE_ANSWER_MAX, SILENCE_SUSPECTED, SUSPICION_INTERVAL},
};

use super::{
    backend::Backend,
    link::{connection::Connection, failure::Failure},
    verdicts,
};
use crate::{
    admission::concurrency_limit::{AcquireError, LimiterPermit, TenantShare},
    metrics::RetryOutcome,
    views::BreakerStatus,
};

/// Permission for one call, by the limits of its backend and of the broker.
#[derive(Debug)]
pub struct Permit {
    _backend_permit: LimiterPermit<PrincipalId, SessionKey>,
    _broker_permit: LimiterPermit<TenantShare, PrincipalId>,
}

/// Reason for a probe of a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProbeReason {
    /// The breaker was open and is half open now.
    HalfOpen,
    /// Clients gave up waiting for the backend.
    Suspicion,
    /// Another replica found that the backend fails.
    Verdict,
}

/// The owner of a call.
#[derive(Debug, Clone, Copy)]
pub struct CallOwner<'a> {
    /// The share of its tenant in the limiter of all calls.
    pub share: &'a TenantShare,
    pub weight: u32,
    pub principal: &'a PrincipalId,
    pub session: &'a SessionKey,
}

impl Backend {
    /// Returns an error if the breaker is open. Loads one atomic while the breaker is closed.
    pub fn check_breaker(&self) -> Result<(), Refusal> {
        self.admission
            .breaker
            .admits(|| self.context.uptime())
            .map_err(|circuit| self.breaker_refusal(circuit))
    }

    fn breaker_refusal(&self, circuit: CircuitOpen) -> Refusal {
        let why = match circuit.reason {
            OpenReason::Failures => {
                "has failed several times in a row and gets no calls until a probe succeeds"
            }
            OpenReason::Ratio => "fails too often and gets no calls until a probe succeeds",
            OpenReason::Operator => "gets no calls because an operator opened its breaker",
            OpenReason::Verdict => {
                "fails for several replicas and gets no calls until a probe succeeds"
            }
        };
        let refusal =
            Refusal::new(ErrorKind::BackendUnavailable, format!("backend {} {why}", self.id))
                .with("breaker", circuit.reason.name());
        match circuit.retry_after {
            Some(after) => refusal.retry_after(after),
            None => refusal,
        }
    }

    /// Waits for permission for one call, which is of no use after `due`.
    pub async fn acquire_permit(
        &self,
        caller: CallOwner<'_>,
        due: Instant,
    ) -> Result<Permit, Refusal> {
        let CallOwner { share, weight, principal, .. } = caller;
        // First at the backend: a call that waits for a slow backend keeps no other call out.
        let backend_permit = match self.admission.limiter.try_acquire(principal, 1) {
            Some(backend_permit) => match self.context.limiters.calls.try_acquire(share, weight) {
                Some(broker_permit) => {
                    return Ok(Permit {
                        _backend_permit: backend_permit,
                        _broker_permit: broker_permit,
                    });
                }
                None => Some(backend_permit),
            },
            None => None,
        };
        // Boxed, because a wait is rare and would enlarge the future of every call.
        Box::pin(self.wait_for_permit(backend_permit, caller, due)).await
    }

    /// Waits for a permit when at least one limit is full. `backend_permit` is the one of the
    /// backend, if it was free.
    async fn wait_for_permit(
        &self,
        backend_permit: Option<LimiterPermit<PrincipalId, SessionKey>>,
        caller: CallOwner<'_>,
        due: Instant,
    ) -> Result<Permit, Refusal> {
        let remaining = || due.saturating_duration_since(Instant::now());
        // A call that begins too late for an answer would take the permit of a useful one.
        let needed = self.health.expected_latency().min(remaining() / 2);
        let CallOwner { share, weight, principal, session } = caller;
        let backend_permit = match backend_permit {
            Some(backend_permit) => backend_permit,
            None => {
                let backend_permit = self
                    .admission
                    .limiter
                    .acquire(principal, 1, session, remaining().saturating_sub(needed))
                    .await;
                backend_permit.map_err(|error| self.acquire_refusal(error))?
            }
        };
        let broker_permit = self
            .context
            .limiters
            .calls
            .acquire(share, weight, principal, remaining().saturating_sub(needed))
            .await;
        let broker_permit = broker_permit.map_err(|error| {
            self.context.metrics.resilience.queue_timeout("broker");
            overloaded("the broker".to_owned(), error)
        })?;
        if remaining() < needed {
            return Err(self.acquire_refusal(AcquireError::TooLate { wait: needed }));
        }
        Ok(Permit { _backend_permit: backend_permit, _broker_permit: broker_permit })
    }

    fn acquire_refusal(&self, error: AcquireError) -> Refusal {
        if error == AcquireError::Drained
            && let Err(open_refusal) = self.check_breaker()
        {
            return open_refusal;
        }
        self.context.metrics.resilience.queue_timeout("backend");
        overloaded(format!("backend {}", self.id), error)
    }

    /// Reports the outcome of a sent request to the breaker.
    pub fn record_result(
        &self,
        connection: &Connection,
        answer: &Result<Message, Failure>,
        took: Duration,
        over_at: Instant,
    ) {
        match answer {
            Ok(_) => self.admission.breaker.record_success(self.context.uptime_at(over_at)),
            Err(failure) if !failure.counts_for_breaker() => {}
            // The calls of a connection that ends fail together and count once.
            Err(failure)
                if (failure.is_lost() || matches!(failure, Failure::Unfinished(_)))
                    && connection.wire().is_one_stream()
                    && !connection.count_loss() => {}
            Err(_) => self.record_failure(took),
        }
    }

    /// Reports the duration of a call that held a permit to the adaptive limit. Tasks hold none and
    /// last as long as their work, so they are not reported.
    /// `kind` is that of [`call_kind`].
    pub fn record_call_duration(
        &self,
        kind: u64,
        answer: &Result<Message, Failure>,
        took: Duration,
    ) {
        if answer.as_ref().err().is_none_or(Failure::counts_for_breaker) {
            let answer = answer.is_ok().then_some(AnswerLatency { kind, took });
            self.admission.adapt_limit(self.context.uptime(), answer);
        }
    }

    /// Reports a call that got no answer within its time.
    pub fn record_timeout(&self, after: Duration) {
        self.record_failure(after);
        self.admission.adapt_limit(self.context.uptime(), None);
    }

    /// Reports a call that its client cancelled after `after` without a sign of the backend. That
    /// alone is not a failure. If no other call had an answer meanwhile, the broker probes the
    /// backend.
    pub fn record_abandoned(&self, after: Duration) {
        let now = self.context.uptime();
        let is_suspect = after >= SILENCE_SUSPECTED
            && !self.admission.is_trusted(now)
            && self.admission.breaker.is_enabled();
        if is_suspect && !self.answered_since(now.saturating_sub(after)) {
            self.admission.suspected.store(true, Ordering::Relaxed);
            self.admission.probe_wanted.notify_one();
        }
    }

    /// Returns whether any call got an answer after `since`.
    pub(super) fn answered_since(&self, since: Duration) -> bool {
        self.admission.breaker.last_success() > since
    }

    pub(super) fn clear_suspicion(&self) {
        let until = self.context.uptime() + SUSPICION_INTERVAL;
        self.admission
            .trusted_until_ms
            .store(u64::try_from(until.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.admission.suspected.store(false, Ordering::Relaxed);
    }

    /// Reports a connection that was not established, or a call without an answer for `after`.
    pub fn record_failure(&self, after: Duration) {
        let now = self.context.uptime();
        if self.stop.is_cancelled() || self.context.shutdown.is_draining() {
            return;
        }
        self.admission.series.failed();
        if self.admission.breaker.record_failure(now, now.saturating_sub(after), rand::random()) {
            self.report_breaker_state();
            self.admission.probe_wanted.notify_one();
            self.admission.limiter.drain_queue();
        }
    }

    /// Credits the start of a call, which earns a part of a retry.
    pub fn earn_retry(&self) {
        if let Some(budget) = &self.admission.retries {
            budget.deposit();
        }
    }

    /// Returns whether the budget permits a retry, and takes it from the budget.
    pub fn spend_retry(&self) -> bool {
        let Some(budget) = &self.admission.retries else { return false };
        let spent = budget.withdraw();
        self.admission.metrics.resilience.retry(if spent {
            RetryOutcome::Sent
        } else {
            RetryOutcome::OverBudget
        });
        spent
    }

    /// Sets the breaker for an operator. `open` holds it open until the operator closes it. A
    /// closed breaker follows its rules again.
    pub fn set_breaker(self: &Arc<Self>, open: bool) {
        let changed = if open {
            self.admission.breaker.hold_open()
        } else {
            self.admission.breaker.close(self.context.uptime())
        };
        if changed {
            tracing::info!(tenant = %self.tenant, backend = %self.id, open, "an operator opened or closed the circuit breaker");
            self.report_breaker_state();
        }
        end_verdict_suspicion(self);
        if open {
            self.admission.limiter.drain_queue();
        } else {
            self.on_recovered();
        }
    }

    /// Waits until there is a reason to probe the backend.
    pub(super) async fn wait_for_probe(&self) -> ProbeReason {
        loop {
            match self.admission.breaker.probe_at() {
                Some(at) => {
                    tokio::select! {
                        () = tokio::time::sleep(at.saturating_sub(self.context.uptime())) => {}
                        () = self.admission.probe_wanted.notified() => {}
                    }
                    if self.admission.breaker.start_probe(self.context.uptime()) {
                        self.report_breaker_state();
                        return ProbeReason::HalfOpen;
                    }
                }
                None if self.admission.verdicts.is_suspicious() && self.check_breaker().is_ok() => {
                    return ProbeReason::Verdict;
                }
                None if self.admission.is_suspected() && self.check_breaker().is_ok() => {
                    return ProbeReason::Suspicion;
                }
                None => self.admission.probe_wanted.notified().await,
            }
        }
    }

    /// Starts a probe if the breaker is open. Resolves when the outcome of the probe is known.
    pub async fn probe_breaker(&self) {
        let mut probes = self.admission.probes.subscribe();
        if self.admission.breaker.probe_now(self.context.uptime()) {
            self.admission.probe_wanted.notify_one();
        } else if self.admission.breaker.state() != CircuitState::HalfOpen {
            return;
        }
        let _in_time =
            tokio::time::timeout(self.timeouts().initialize + PROBE_ANSWER_MAX, probes.changed())
                .await;
    }

    /// Stores the outcome of a probe.
    pub(super) fn record_probe(self: &Arc<Self>, well: bool) {
        let to = self.admission.breaker.finish_probe(well, self.context.uptime(), rand::random());
        self.report_breaker_state();
        self.admission.probes.send_modify(|count| *count += 1);
        self.clear_suspicion();
        end_verdict_suspicion(self);
        if to == Some(CircuitState::Closed) {
            self.on_recovered();
        }
    }

    /// Ends the back-off of all links and refreshes the lists.
    fn on_recovered(self: &Arc<Self>) {
        self.links.all().iter().for_each(|link| link.shorten_backoff());
        self.refresh();
    }

    /// Reports a new state of the breaker to the metrics and the log.
    pub(super) fn report_breaker_state(&self) {
        let mut reported = self.admission.reported_state.lock();
        let state = self.admission.breaker.state();
        let before = std::mem::replace(&mut *reported, state);
        if before == state {
            return;
        }
        self.admission.series.breaker_transition(state);
        drop(reported);
        let (tenant, backend) = (&self.tenant, &self.id);
        let details = self.admission.breaker.open_details(self.context.uptime());
        let reason = details.map(|details| details.reason);
        verdicts::send(&self.context.persistence, tenant, backend, state, reason);
        match (before, state) {
            (CircuitState::Closed, _) => {
                let why = reason.map(OpenReason::name);
                tracing::warn!(%tenant, %backend, why, "breaker open: the backend gets no calls until a probe succeeds");
            }
            (_, CircuitState::Closed) => {
                tracing::info!(%tenant, %backend, "breaker closed: the backend works again")
            }
            _ => tracing::debug!(%tenant, %backend, state = state.name(), "breaker"),
        }
    }

    pub fn breaker_status(&self) -> BreakerStatus {
        let circuit = self.admission.breaker.open_details(self.context.uptime());
        BreakerStatus {
            state: self.admission.breaker.state().name().to_owned(),
            reason: circuit.map(|circuit| circuit.reason.name().to_owned()),
            failures_in_a_row: self.admission.breaker.consecutive_failures(),
            next_probe_ms: circuit
                .and_then(|circuit| circuit.retry_after)
                .map(|after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX)),
            verdict: self.admission.verdicts.last(),
        }
    }

    /// Returns the number of calls in flight, of queued calls, and the current limit.
    pub fn call_counts(&self) -> (usize, usize, usize) {
        (
            self.admission.limiter.in_use(),
            self.admission.limiter.queued(),
            self.admission.limiter.limit(),
        )
    }
}

/// Returns the number of the kind of a call. The adaptive limit compares its duration with those of
/// its kind.
pub fn call_kind(backend: &Backend, method: Method, tool: Option<&str>) -> u64 {
    backend.admission.kind_of(method, tool)
}

/// Sends calls at the usual limit again, if the verdict of another replica lowered it.
pub(super) fn end_verdict_suspicion(backend: &Backend) {
    let admission = &backend.admission;
    if admission.end_suspicion() {
        backend.clear_suspicion();
    }
}

fn overloaded(who: String, error: AcquireError) -> Refusal {
    let (text, wait) = match error {
        AcquireError::Full { wait } => (format!("too many calls wait for {who}"), wait),
        AcquireError::TooLate { wait } => (
            format!("too many calls wait for {who}: this call could not start before its deadline"),
            wait,
        ),
        AcquireError::Drained => (format!("{who} accepts no calls now"), Duration::ZERO),
    };
    Refusal::new(ErrorKind::Overloaded, text).retry_after(wait.clamp(RETRY_MIN, RETRY_MAX))
}

/// Bounds of the `retryAfterMs` in a refusal, whatever the estimated wait.
const RETRY_MIN: Duration = Duration::from_millis(10);
const RETRY_MAX: Duration = Duration::from_secs(30);
