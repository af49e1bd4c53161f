//! Probes of a backend whose breaker is open, or that is silent while its clients give up. They use
//! the link of the catalog. One prober runs for each backend, alongside [`super::catalog_refresh`],
//! which owns that link.
//!
//! Any answer proves that the backend is there: an error, or a forgotten session after a restart. The
//! link of the catalog may have other credentials than the links of clients. If the backend refuses
//! it, calls over the other links show whether the backend is healthy.
//!
//! Clients can only cause a probe, and so can other replicas. Only the result of the probe counts for
//! the breaker.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::FutureExt;
use protocol::{error::Refusal, method::Method};
use rules::{breaker::CircuitState, limits::PROBE_ANSWER_MAX};

use super::{
    backend::Backend,
    backend_admission::{ProbeReason, end_verdict_suspicion},
    link::{Link, failure::Failure},
};
use crate::{metrics::VerdictEffect, persistence::BackendVerdict};

/// Interval between two probes of a silent backend.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(500);

/// Longest wait for a connection and an answer after another replica's verdict.
const VERDICT_PROBE_MAX: Duration = PROBE_ANSWER_MAX.saturating_mul(2);

/// The outcome of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProbeOutcome {
    Healthy,
    /// The backend refused the connection or the probe, or the broker could not send a probe.
    Undecided,
    /// The backend gave no answer.
    NoAnswer,
    /// The connection failed. The link of a suspected backend has counted that.
    Disconnected,
}

impl ProbeOutcome {
    /// Returns what a probe without a good answer shows.
    fn of(failure: &Failure) -> Self {
        match failure {
            Failure::Throttled { .. } => Self::Healthy,
            Failure::QueueFull => Self::NoAnswer, // the backend does not read
            failure if failure.counts_for_breaker() => Self::NoAnswer,
            _ => Self::Undecided,
        }
    }

    /// Returns whether nothing keeps calls from the backend after this probe.
    fn permits_calls(self) -> bool {
        matches!(self, Self::Healthy | Self::Undecided)
    }
}

/// Runs until it is dropped.
pub(super) async fn run(backend: &Arc<Backend>, link: &Arc<Link>) {
    loop {
        match backend.wait_for_probe().await {
            ProbeReason::HalfOpen => {
                let found = probe(backend, link).await;
                backend.record_probe(found.permits_calls());
            }
            ProbeReason::Suspicion => resolve_suspicion(backend, link).await,
            ProbeReason::Verdict => resolve_verdict(backend, link).await,
        }
    }
}

/// Probes a suspected backend. A healthy one is not suspected again for a while. A silent one is
/// probed until any call gets an answer, or its breaker opens.
async fn resolve_suspicion(backend: &Arc<Backend>, link: &Arc<Link>) {
    let started_at = backend.context.uptime();
    loop {
        let sent_at = backend.context.uptime();
        match probe(backend, link).await {
            ProbeOutcome::Healthy | ProbeOutcome::Undecided => break,
            ProbeOutcome::NoAnswer => {
                backend.record_failure(backend.context.uptime().saturating_sub(sent_at))
            }
            ProbeOutcome::Disconnected => {}
        }
        if backend.answered_since(started_at) || backend.check_breaker().is_err() {
            break;
        }
        tokio::time::sleep(LOOK_AGAIN_AFTER).await;
    }
    backend.clear_suspicion();
}

/// Probes a backend that fails for another replica, once. An answer to any call counts as well.
async fn resolve_verdict(backend: &Arc<Backend>, link: &Arc<Link>) {
    let started_at = backend.context.uptime();
    // A connection that hangs does not answer either.
    let found = tokio::time::timeout(VERDICT_PROBE_MAX, probe(backend, link)).await;
    let answered = found == Ok(ProbeOutcome::Healthy) || backend.answered_since(started_at);
    let admission = &backend.admission;
    let opened = !answered
        && found != Ok(ProbeOutcome::Undecided)
        && admission.breaker.open_by_verdict(backend.context.uptime(), rand::random());
    if opened {
        backend.report_breaker_state();
        admission.limiter.drain_queue();
    }
    end_verdict_suspicion(backend);
    admission.metrics.resilience.verdict(match (answered, opened) {
        (true, _) => VerdictEffect::Refuted,
        (false, true) => VerdictEffect::Confirmed,
        // It was opened meanwhile, by failures or an operator, or the probe decided nothing.
        (false, false) => VerdictEffect::Ignored,
    });
}

/// Handles the verdict of another replica.
pub fn receive_verdict(backend: &Backend, verdict: &BackendVerdict) {
    let (admission, now) = (&backend.admission, backend.context.uptime());
    match admission.verdicts.record(verdict) {
        CircuitState::Open => {
            let is_ignored = !admission.breaker.is_enabled()
                || admission.breaker.state() != CircuitState::Closed
                || admission.is_trusted(now)
                || admission.verdicts.is_suspicious();
            if is_ignored {
                return admission.metrics.resilience.verdict(VerdictEffect::Ignored);
            }
            tracing::info!(tenant = %backend.tenant, backend = %backend.id, replica = verdict.node, "another replica reports a failing backend: the broker sends one call at a time until its own probe");
            admission.suspect();
            admission.probe_wanted.notify_one();
        }
        // The backend may be well for this replica too.
        CircuitState::Closed if admission.breaker.probe_now(now) => {
            admission.probe_wanted.notify_one();
        }
        CircuitState::Closed | CircuitState::HalfOpen => {}
    }
}

/// Turns a panic into a failed probe, so that the breaker does not wait forever.
async fn probe(backend: &Backend, link: &Arc<Link>) -> ProbeOutcome {
    catch_panic(send_probes(backend, link)).await.unwrap_or_else(|| {
        tracing::error!(tenant = %backend.tenant, backend = %backend.id, "a probe of a backend failed inside the broker");
        ProbeOutcome::NoAnswer
    })
}

/// Returns `None` after a panic, which the panic hook logs.
async fn catch_panic(probe: impl Future<Output = ProbeOutcome>) -> Option<ProbeOutcome> {
    AssertUnwindSafe(probe).catch_unwind().await.ok()
}

async fn send_probes(backend: &Backend, link: &Arc<Link>) -> ProbeOutcome {
    for attempt in 0..2 {
        let result = match send_probe(backend, link).await {
            Ok(result) => result,
            Err(_refused) if link.is_last_failure_harmless() => return ProbeOutcome::Undecided,
            Err(_refused) => return ProbeOutcome::Disconnected,
        };
        match result {
            Ok(()) => return ProbeOutcome::Healthy,
            Err(Failure::SessionGone) if attempt == 0 => {} // on a connection of its own it may know us
            Err(failure) => {
                let _noted = backend.report_failure(&failure);
                return ProbeOutcome::of(&failure);
            }
        }
    }
    ProbeOutcome::NoAnswer
}

async fn send_probe(backend: &Backend, link: &Arc<Link>) -> Result<Result<(), Failure>, Refusal> {
    if link.live().is_none() {
        // No other caller connects this often, so the back-off of the link is not needed.
        link.clear_backoff();
    }
    let connection = link.connection().await?;
    let limit = backend.timeouts().control.min(PROBE_ANSWER_MAX);
    let method = [Method::Ping, Method::ToolsList, Method::ResourcesList, Method::PromptsList]
        .into_iter()
        .find(|method| connection.permits(*method).is_ok())
        .unwrap_or(Method::Ping);
    let answer = tokio::time::timeout(limit, connection.control_request(link, method, None)).await;
    Ok(answer.unwrap_or(Err(Failure::TimedOut(method))).map(drop))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_probe_that_panics_has_failed() {
        assert_eq!(catch_panic(async { panic!("as planned") }).await, None);
        assert_eq!(catch_panic(async { ProbeOutcome::Healthy }).await, Some(ProbeOutcome::Healthy));
    }

    #[test]
    fn only_a_failure_of_the_backend_keeps_calls_from_it() {
        let text = || "text".to_owned();
        for failure in [
            Failure::Throttled { reason: text(), retry_after: None },
            Failure::Denied(text()),
            Failure::NoToken(text()),
            Failure::TokenRequired(text()),
            Failure::OwnLimit(text()),
        ] {
            assert!(ProbeOutcome::of(&failure).permits_calls(), "{failure}");
        }
        for failure in [
            Failure::NotSent(text()),
            Failure::Lost(text()),
            Failure::Overlong { max: 1 },
            Failure::Protocol(text()),
            Failure::QueueFull,
            Failure::TimedOut(Method::Ping),
        ] {
            assert_eq!(ProbeOutcome::of(&failure), ProbeOutcome::NoAnswer, "{failure}");
        }
    }
}
