//! Metrics of the configuration's generation and of the outcomes of reloads.

use prometheus::{IntCounterVec, IntGauge};

use super::MetricRegistrar;

pub struct ReloadMetrics {
    generation: IntGauge,
    attempts: IntCounterVec,
}

impl ReloadMetrics {
    pub(super) fn new(declare: &MetricRegistrar<'_>) -> Self {
        let generation = declare.gauge(
            "mcp_config_generation",
            "Readings of the configuration that came into force since the start.",
        );
        generation.set(1);
        let attempts = declare.closed_counters(
            "mcp_config_reloads_total",
            "Attempts to follow a changed configuration file: taken, or refused, which changes nothing.",
            [("outcome", &["taken", "refused"])],
        );
        Self { generation, attempts }
    }

    pub fn reloaded(&self, generation: u64) {
        self.generation.set(i64::try_from(generation).unwrap_or(i64::MAX));
        self.attempts.with_label_values(&["taken"]).inc();
    }

    pub fn refused(&self) {
        self.attempts.with_label_values(&["refused"]).inc();
    }
}
