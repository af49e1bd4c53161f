//! Verdicts of replicas about backends: each change of a breaker is sent to the other replicas.
//!
//! A verdict opens no breaker. A replica whose breaker is closed becomes suspicious: it sends one
//! call at a time, the others wait, and it probes the backend over its own connection. An answer
//! ends the suspicion. Without one the breaker opens, and the waiting calls are refused. So the
//! broken network of one replica does not shut the others out, and a dead backend gets one probe.
//! A breaker that an operator holds open stays so.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rules::{
    breaker::{CircuitState, OpenReason},
    limits::replicas::VERDICT_KEPT,
};

use super::backend::Backend;
use crate::{
    metrics::VerdictEffect,
    persistence::{BackendVerdict, VerdictState, Wakeup},
    views::VerdictView,
};

/// What this replica knows from others about one backend.
#[derive(Debug, Default)]
pub(super) struct PeerVerdicts {
    /// Set while the verdict of another replica waits for a probe.
    pub(super) suspicious: AtomicBool,
    /// The limit of calls before the suspicion.
    limit_before: AtomicUsize,
    last: Mutex<Option<LastVerdict>>,
}

#[derive(Debug)]
struct LastVerdict {
    replica: String,
    state: CircuitState,
    /// By the clock of this process: that of the other one may differ.
    received: Instant,
}

impl Backend {
    /// Sends the state of the breaker to the other replicas.
    pub(super) fn send_verdict(&self, state: CircuitState, reason: Option<OpenReason>) {
        // An operator's choice reaches them through the store. A confirmed verdict is known.
        let is_own = !matches!(reason, Some(OpenReason::Operator | OpenReason::Verdict));
        if !self.shared.durable.is_shared() || !is_own {
            return;
        }
        let state = match state {
            CircuitState::Closed => VerdictState::Closed,
            CircuitState::HalfOpen => VerdictState::HalfOpen,
            CircuitState::Open => VerdictState::Open,
        };
        self.shared.durable.hot.publish(Wakeup::Verdict(BackendVerdict {
            tenant: self.tenant.clone(),
            backend: self.id.clone(),
            node: self.shared.durable.node().to_string(),
            state,
        }));
    }

    /// Handles the verdict of another replica.
    pub fn receive_verdict(&self, verdict: &BackendVerdict) {
        let state = match verdict.state {
            VerdictState::Closed => CircuitState::Closed,
            VerdictState::HalfOpen => CircuitState::HalfOpen,
            VerdictState::Open => CircuitState::Open,
        };
        *self.admission.verdicts.last.lock() =
            Some(LastVerdict { replica: verdict.node.clone(), state, received: Instant::now() });
        match state {
            CircuitState::Open => self.suspect_by_verdict(&verdict.node),
            // The backend may be well for this replica too.
            CircuitState::Closed => self.probe_soon(),
            CircuitState::HalfOpen => {}
        }
    }

    fn suspect_by_verdict(&self, replica: &str) {
        let (admission, verdicts) = (&self.admission, &self.admission.verdicts);
        if !admission.breaker.is_enabled()
            || admission.breaker.state() != CircuitState::Closed
            || self.is_trusted()
            || verdicts.suspicious.load(Ordering::Acquire)
        {
            return admission.metrics.resilience.verdict(VerdictEffect::Ignored);
        }
        tracing::info!(tenant = %self.tenant, backend = %self.id, replica, "another replica finds that the backend fails: one call at a time until a probe");
        verdicts.limit_before.store(admission.limiter.limit(), Ordering::Relaxed);
        // The flag comes last, because a probe that sees it restores the limit.
        admission.limiter.set_limit(1);
        verdicts.suspicious.store(true, Ordering::Release);
        admission.probe_wanted.notify_one();
    }

    /// Ends the suspicion after a probe of this replica. `fails`: the backend gave no answer.
    pub(super) fn judge_verdict(&self, fails: bool) {
        let admission = &self.admission;
        let opened =
            fails && admission.breaker.open_by_verdict(self.shared.uptime(), rand::random());
        if opened {
            self.report_breaker_state();
            admission.limiter.drain_queue();
        }
        self.end_verdict_suspicion();
        admission.metrics.resilience.verdict(match (fails, opened) {
            (false, _) => VerdictEffect::Refuted,
            (true, true) => VerdictEffect::Confirmed,
            // It was opened meanwhile, by failures or an operator.
            (true, false) => VerdictEffect::Ignored,
        });
    }

    /// Sends calls at the usual limit again.
    pub(super) fn end_verdict_suspicion(&self) {
        let verdicts = &self.admission.verdicts;
        if verdicts.suspicious.swap(false, Ordering::AcqRel) {
            self.admission.limiter.set_limit(verdicts.limit_before.load(Ordering::Relaxed));
            self.clear_suspicion();
        }
    }

    /// Returns whether a probe succeeded so recently that no other one is needed.
    pub(super) fn is_trusted(&self) -> bool {
        let until = Duration::from_millis(self.admission.trusted_until_ms.load(Ordering::Relaxed));
        self.shared.uptime() < until
    }

    /// Makes the next probe due now, if the breaker is open.
    fn probe_soon(&self) {
        if self.admission.breaker.probe_now(self.shared.uptime()) {
            self.admission.probe_wanted.notify_one();
        }
    }

    /// Returns the last verdict of another replica, unless it is old.
    pub(super) fn last_verdict(&self) -> Option<VerdictView> {
        let last = self.admission.verdicts.last.lock();
        let last = last.as_ref().filter(|last| last.received.elapsed() < VERDICT_KEPT)?;
        Some(VerdictView {
            replica: last.replica.clone(),
            state: last.state.name().to_owned(),
            age_ms: u64::try_from(last.received.elapsed().as_millis()).unwrap_or(u64::MAX),
        })
    }
}
