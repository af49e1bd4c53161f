//! Metrics of backends: requests, breakers, queues and retries.
//!
//! Invariant: a series with the label of a backend is updated only while a backend holds the label,
//! and ends with the last one.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use parking_lot::Mutex;
use prometheus::{Histogram, HistogramVec, IntCounterVec, IntGaugeVec};
use protocol::ids::{BackendId, TenantId};
use rules::breaker::CircuitState;

use super::{
    BACKEND_LABELS_MAX, MetricRegistrar, Metrics, breaker_states::BreakerStates,
    capped_labels::CappedLabels, tenant_backends::TenantBackendSeries,
};

pub struct ResilienceMetrics {
    labels: CappedLabels,
    request_seconds: HistogramVec,
    /// By name, which several tenants may use.
    breakers: BreakerStates,
    breaker_transitions: IntCounterVec,
    retries: IntCounterVec,
    queue_timeouts: IntCounterVec,
    calls_max: IntGaugeVec,
    verdicts: IntCounterVec,
}

/// What became of another replica's verdict that a backend fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VerdictEffect {
    /// A probe failed here too.
    Confirmed,
    /// The backend answered here.
    Refuted,
    /// Nothing was to be found out.
    Ignored,
}

/// Outcome of a possible retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryOutcome {
    Sent,
    /// The budget of the backend is used up.
    OverBudget,
}

impl ResilienceMetrics {
    pub(super) fn new(declare: &MetricRegistrar<'_>) -> Self {
        Self {
            labels: CappedLabels::new(BACKEND_LABELS_MAX),
            request_seconds: declare.histograms(
                "mcp_backend_request_seconds",
                "Time from sending a request to a backend to its answer.",
                &["backend"],
            ),
            breakers: BreakerStates::new(declare.gauges(
                "mcp_breaker_state",
                "Circuit breaker of a backend: 0 closed, 1 half-open, 2 open. The worst state of backends with the same name.",
                &["backend"],
            )),
            breaker_transitions: declare.counters(
                "mcp_breaker_transitions_total",
                "Changes of a breaker, by the new state.",
                &["backend", "to"],
            ),
            retries: declare.closed_counters("mcp_retries_total", "Failed calls that were safe to retry, by the action of the broker.", [("outcome", &["sent", "over_budget"])]),
            queue_timeouts: declare.closed_counters(
                "mcp_calls_crowded_out_total",
                "Calls that got no capacity at a backend (backend) or in the broker (broker) in time.",
                [("queue", &["backend", "broker"])],
            ),
            calls_max: declare.gauges(
                "mcp_backend_calls_max",
                "Concurrent calls that the broker sends to a backend with adaptive concurrency.",
                &["backend"],
            ),
            verdicts: declare.closed_counters(
                "mcp_breaker_verdicts_total",
                "Verdicts of other replicas that a backend fails, by the result of this replica's probe.",
                [("effect", &["confirmed", "ignored", "refuted"])],
            ),
        }
    }

    pub fn verdict(&self, effect: VerdictEffect) {
        let effect = match effect {
            VerdictEffect::Confirmed => "confirmed",
            VerdictEffect::Refuted => "refuted",
            VerdictEffect::Ignored => "ignored",
        };
        self.verdicts.with_label_values(&[effect]).inc();
    }

    fn remove_series(&self, label: &str) {
        self.breakers.remove(&[label]);
        let _had_requests = self.request_seconds.remove_label_values(&[label]);
        let _adapts = self.calls_max.remove_label_values(&[label]);
        for state in CircuitState::ALL {
            let _was_entered = self.breaker_transitions.remove_label_values(&[label, state.name()]);
        }
    }

    pub fn retry(&self, retry: RetryOutcome) {
        let outcome = match retry {
            RetryOutcome::Sent => "sent",
            RetryOutcome::OverBudget => "over_budget",
        };
        self.retries.with_label_values(&[outcome]).inc();
    }

    /// Counts a call that did not fit in time. `queue` is `backend` or `broker`.
    pub fn queue_timeout(&self, queue: &'static str) {
        self.queue_timeouts.with_label_values(&[queue]).inc();
    }
}

/// The series of one backend, until it is closed or dropped. Sessions can keep a backend much longer.
pub struct BackendSeries {
    metrics: Arc<Metrics>,
    /// The label, and the state of the breaker. `None`: the backend is closed.
    open: Mutex<Option<(String, CircuitState)>>,
    /// Present from the first request on.
    request_seconds: OnceLock<Histogram>,
    /// Present only where tenant labels are configured.
    of_tenant: Option<TenantBackendSeries>,
}

impl BackendSeries {
    /// Adds a backend, whose breaker is closed.
    pub fn new(metrics: Arc<Metrics>, tenant: &TenantId, backend: &BackendId) -> Self {
        let label = metrics.resilience.labels.acquire(backend.as_str());
        metrics.resilience.breakers.count(&[&label], None, Some(CircuitState::Closed));
        let open = Mutex::new(Some((label, CircuitState::Closed)));
        let tenants = metrics.tenants.as_ref();
        let of_tenant = tenants.map(|tenants| TenantBackendSeries::new(tenants, tenant, backend));
        Self { metrics, open, request_seconds: OnceLock::new(), of_tenant }
    }

    /// Counts a change of the breaker to a state.
    pub fn breaker_transition(&self, to: CircuitState) {
        if let Some((label, state)) = &mut *self.open.lock() {
            let resilience = &self.metrics.resilience;
            resilience.breakers.count(&[label.as_str()], Some(*state), Some(to));
            if let Some(of_tenant) = &self.of_tenant {
                of_tenant.breaker_transition(*state, to);
            }
            resilience.breaker_transitions.with_label_values(&[label.as_str(), to.name()]).inc();
            *state = to;
        }
    }

    pub fn calls_max(&self, max: usize) {
        if let Some((label, _)) = &*self.open.lock() {
            let gauge = self.metrics.resilience.calls_max.with_label_values(&[label.as_str()]);
            gauge.set(i64::try_from(max).unwrap_or(i64::MAX));
        }
    }

    /// Records the time of a request.
    pub fn request_finished(&self, time: Duration) {
        if self.request_seconds.get().is_none()
            && let Some((label, _)) = &*self.open.lock()
        {
            let seconds = &self.metrics.resilience.request_seconds;
            self.request_seconds.get_or_init(|| seconds.with_label_values(&[label.as_str()]));
        }
        if let Some(histogram) = self.request_seconds.get() {
            histogram.observe(time.as_secs_f64());
        }
        if let Some(of_tenant) = &self.of_tenant {
            of_tenant.request_finished(time);
        }
    }

    /// Counts a failure that the breaker counts.
    pub fn failed(&self) {
        if let Some(of_tenant) = &self.of_tenant {
            of_tenant.failed();
        }
    }

    /// Frees the label. The last holder of a label ends its series. Later updates have no effect.
    pub fn close(&self) {
        if let Some((label, state)) = self.open.lock().take() {
            let resilience = &self.metrics.resilience;
            resilience.breakers.count(&[&label], Some(state), None);
            resilience.labels.release(&label, || resilience.remove_series(&label));
            if let Some(of_tenant) = &self.of_tenant {
                of_tenant.close(state);
            }
        }
    }
}

impl Drop for BackendSeries {
    fn drop(&mut self) {
        self.close();
    }
}

impl std::fmt::Debug for BackendSeries {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("BackendSeries")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(metrics: &Arc<Metrics>, name: &str) -> BackendSeries {
        let tenant = TenantId::parse("acme").unwrap();
        BackendSeries::new(Arc::clone(metrics), &tenant, &BackendId::parse(name).unwrap())
    }

    #[test]
    fn backends_of_one_name_share_the_worst_state_and_leave_no_label() {
        use CircuitState::{Closed, HalfOpen, Open};
        let metrics = Arc::new(Metrics::new(false));
        let (one, two) = (add(&metrics, "files"), add(&metrics, "files"));
        let shown = |line: &str| metrics.render().contains(line);
        assert!(
            shown(r#"mcp_breaker_state{backend="files"} 0"#)
                && !shown("mcp_breaker_transitions_total{")
        );
        one.breaker_transition(Open);
        assert!(shown(r#"mcp_breaker_state{backend="files"} 2"#));
        one.breaker_transition(HalfOpen);
        assert!(shown(r#"mcp_breaker_state{backend="files"} 1"#));
        one.breaker_transition(Closed);
        assert!(shown(r#"mcp_breaker_state{backend="files"} 0"#));
        one.breaker_transition(Open);
        assert!(shown(r#"mcp_breaker_transitions_total{backend="files",to="open"} 2"#));
        one.close();
        one.breaker_transition(HalfOpen);
        assert!(shown(r#"mcp_breaker_state{backend="files"} 0"#));
        assert!(shown(r#"mcp_breaker_transitions_total{backend="files",to="open"} 2"#));
        drop(one);
        assert!(shown(r#"mcp_breaker_state{backend="files"} 0"#));
        drop(two);
        assert!(!shown(r#"backend="files""#));
    }

    #[test]
    fn names_past_the_cap_share_a_label() {
        let metrics = Arc::new(Metrics::new(false));
        let mut all: Vec<_> = (0..BACKEND_LABELS_MAX + 3)
            .map(|number| add(&metrics, &format!("b{number}")))
            .collect();
        assert!(metrics.render().contains(r#"mcp_breaker_state{backend="other"} 0"#));
        all.remove(0);
        all.extend(["free", "late"].map(|name| add(&metrics, name)));
        let text = metrics.render();
        assert!(text.contains(r#"mcp_breaker_state{backend="free"} 0"#), "{text}");
        assert!(!text.contains(r#"backend="late""#), "{text}");
    }

    #[test]
    fn backends_that_come_and_go_leave_no_series() {
        let metrics = Arc::new(Metrics::new(false));
        let mut closed = Vec::new();
        for number in 0..BACKEND_LABELS_MAX + 60 {
            let name = format!("b{number}");
            let series = add(&metrics, &name);
            let update = || {
                CircuitState::ALL.iter().for_each(|state| series.breaker_transition(*state));
                series.calls_max(5);
            };
            update();
            if number % 2 == 0 {
                series.request_finished(Duration::from_millis(10));
            }
            assert!(metrics.render().contains(&format!(r#"{{backend="{name}""#)), "{name}");
            series.close();
            // A call that was in flight ends after the backend.
            update();
            series.request_finished(Duration::from_millis(10));
            closed.push(series);
        }
        let text = metrics.render();
        assert!(!text.contains(r#"{backend=""#), "{text}");
    }
}
