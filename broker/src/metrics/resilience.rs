//! Metrics of breakers, queues and retries.

use dashmap::DashMap;
use prometheus::{IntCounterVec, IntGaugeVec};
use protocol::ids::BackendId;
use rules::breaker::CircuitState;

use super::{BACKEND_LABELS_MAX, MetricRegistrar, OTHER};

pub struct ResilienceMetrics {
    breaker_state: IntGaugeVec,
    breaker_transitions: IntCounterVec,
    /// Number of backends with this label in each state, because tenants may use the same name.
    breakers: DashMap<String, [usize; CircuitState::ALL.len()]>,
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
            breaker_state: declare.gauges(
                "mcp_breaker_state",
                "Circuit breaker of a backend: 0 closed, 1 half-open, 2 open. Of backends of the same name the worst.",
                &["backend"],
            ),
            breaker_transitions: declare.counters(
                "mcp_breaker_transitions_total",
                "Changes of a breaker, by the new state.",
                &["backend", "to"],
            ),
            breakers: DashMap::new(),
            retries: declare.closed_counters("mcp_retries_total", "Calls that failed and could be sent again, by what was done.", [("outcome", &["sent", "over_budget"])]),
            queue_timeouts: declare.closed_counters(
                "mcp_calls_crowded_out_total",
                "Calls that found no room at a backend (backend) or in the broker (broker) in time.",
                [("queue", &["backend", "broker"])],
            ),
            calls_max: declare.gauges(
                "mcp_backend_calls_max",
                "Calls a backend with adaptive concurrency gets at the same time.",
                &["backend"],
            ),
            verdicts: declare.closed_counters(
                "mcp_breaker_verdicts_total",
                "Verdicts of other replicas that a backend fails, by what a probe of this replica found.",
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

    /// Returns the label of a new backend, which is fixed for the life of the backend.
    pub fn label(&self, backend: &BackendId) -> String {
        let known = self.breakers.contains_key(backend.as_str());
        let label = if known || self.breakers.len() < BACKEND_LABELS_MAX {
            backend.as_str()
        } else {
            OTHER
        };
        label.to_owned()
    }

    /// Counts a state change of a backend's breaker. `None` is the state before the backend is
    /// created and after it is removed.
    pub fn breaker_transition(
        &self,
        label: &str,
        from: Option<CircuitState>,
        to: Option<CircuitState>,
    ) {
        let mut counts = self.breakers.entry(label.to_owned()).or_default();
        if let Some(from) = from {
            counts[from as usize] = counts[from as usize].saturating_sub(1);
        }
        if let Some(to) = to {
            counts[to as usize] += 1;
        }
        match counts.iter().rposition(|count| *count > 0) {
            Some(worst) => self
                .breaker_state
                .with_label_values(&[label])
                .set(i64::try_from(worst).unwrap_or_default()),
            None => {
                drop(counts);
                // Another backend of this name may have been created in the meantime.
                if self
                    .breakers
                    .remove_if(label, |_, counts| counts.iter().all(|count| *count == 0))
                    .is_some()
                {
                    let _was_there = self.breaker_state.remove_label_values(&[label]);
                    let _adapts = self.calls_max.remove_label_values(&[label]);
                }
            }
        }
        if let (Some(_), Some(to)) = (from, to) {
            self.breaker_transitions.with_label_values(&[label, to.name()]).inc();
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

    pub fn calls_max(&self, label: &str, max: usize) {
        self.calls_max.with_label_values(&[label]).set(i64::try_from(max).unwrap_or(i64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    #[test]
    fn backends_of_one_name_share_the_worst_state_and_leave_no_label() {
        let metrics = Metrics::new(false);
        let backend = metrics.resilience.label(&BackendId::parse("files").unwrap());
        let shown = |line: &str| metrics.render().contains(line);
        let moved = |from, to| metrics.resilience.breaker_transition(&backend, from, to);
        moved(None, Some(CircuitState::Closed));
        moved(None, Some(CircuitState::Closed));
        assert!(
            shown(r#"mcp_breaker_state{backend="files"} 0"#)
                && !shown("mcp_breaker_transitions_total{")
        );
        moved(Some(CircuitState::Closed), Some(CircuitState::Open));
        assert!(shown(r#"mcp_breaker_state{backend="files"} 2"#));
        moved(Some(CircuitState::Open), Some(CircuitState::HalfOpen));
        assert!(shown(r#"mcp_breaker_state{backend="files"} 1"#));
        moved(Some(CircuitState::HalfOpen), Some(CircuitState::Closed));
        assert!(shown(r#"mcp_breaker_state{backend="files"} 0"#));
        assert!(shown(r#"mcp_breaker_transitions_total{backend="files",to="open"} 1"#));
        moved(Some(CircuitState::Closed), None);
        assert!(shown(r#"mcp_breaker_state{backend="files"} 0"#));
        moved(Some(CircuitState::Closed), None);
        assert!(!shown("mcp_breaker_state{"));
    }

    #[test]
    fn names_past_the_cap_share_a_label() {
        let metrics = Metrics::new(false);
        for n in 0..BACKEND_LABELS_MAX + 3 {
            let label = metrics.resilience.label(&BackendId::parse(&format!("b{n}")).unwrap());
            metrics.resilience.breaker_transition(&label, None, Some(CircuitState::Closed));
        }
        assert!(metrics.render().contains(r#"mcp_breaker_state{backend="other"} 0"#));
    }
}
