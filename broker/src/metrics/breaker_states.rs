//! A gauge of circuit breakers: the worst state of the backends that share a label.

use dashmap::DashMap;
use prometheus::IntGaugeVec;
use rules::breaker::CircuitState;

pub(super) struct BreakerStates {
    gauge: IntGaugeVec,
    /// Number of backends in each state, by the values of the labels.
    counts: DashMap<String, [usize; CircuitState::ALL.len()]>,
}

impl BreakerStates {
    pub(super) fn new(gauge: IntGaugeVec) -> Self {
        Self { gauge, counts: DashMap::new() }
    }

    /// Moves a backend from one state to another and updates the worst state. `None`: the backend is
    /// added or removed.
    pub(super) fn count(
        &self,
        values: &[&str],
        from: Option<CircuitState>,
        to: Option<CircuitState>,
    ) {
        let mut counts = self.counts.entry(values.join("/")).or_default();
        if let Some(from) = from {
            counts[from as usize] = counts[from as usize].saturating_sub(1);
        }
        if let Some(to) = to {
            counts[to as usize] += 1;
        }
        if let Some(worst) = counts.iter().rposition(|count| *count > 0) {
            let worst = i64::try_from(worst).unwrap_or_default();
            self.gauge.with_label_values(values).set(worst);
        }
    }

    pub(super) fn remove(&self, values: &[&str]) {
        self.counts.remove(&values.join("/"));
        let _was_there = self.gauge.remove_label_values(values);
    }
}
