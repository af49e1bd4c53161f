//! Metrics of the configuration's generation and of the outcomes of reloads.

use prometheus::{IntCounterVec, IntGauge, IntGaugeVec};

use super::MetricRegistrar;

pub struct ReloadMetrics {
    generation: IntGauge,
    attempts: IntCounterVec,
    files: IntGaugeVec,
    last_successful: IntGauge,
    restart_needed: IntGauge,
}

impl ReloadMetrics {
    pub(super) fn new(declare: &MetricRegistrar<'_>) -> Self {
        let generation =
            declare.gauge("mcp_config_generation", "Configurations applied since the start.");
        generation.set(1);
        let attempts = declare.closed_counters(
            "mcp_config_reloads_total",
            "Attempts to reload a changed configuration file: taken, or refused without any change.",
            [("outcome", &["taken", "refused"])],
        );
        let files = declare.closed_gauges(
            "mcp_config_files",
            "Files of include.folder: applied, outdated (an earlier version is in force), or refused. A folder that cannot be read counts as refused.",
            [("state", &["applied", "outdated", "refused"])],
        );
        let last_successful = declare.gauge(
            "mcp_config_last_reload_successful",
            "1 if the last reload of the configuration file was applied, 0 if it was refused.",
        );
        last_successful.set(1);
        let restart_needed = declare.gauge(
            "mcp_config_restart_needed",
            "Changed sections of the configuration file that need a restart.",
        );
        Self { generation, attempts, files, last_successful, restart_needed }
    }

    pub fn reloaded(&self, generation: u64) {
        self.generation.set(i64::try_from(generation).unwrap_or(i64::MAX));
        self.attempts.with_label_values(&["taken"]).inc();
    }

    /// Records that the configuration file is in force, except for the sections that need a restart.
    pub fn file_applied(&self, needs_restart: usize) {
        self.last_successful.set(1);
        self.restart_needed.set(i64::try_from(needs_restart).unwrap_or(i64::MAX));
    }

    pub fn file_refused(&self) {
        self.last_successful.set(0);
        self.refused();
    }

    /// Sets the numbers of files of `include.folder` by state.
    pub fn files(&self, applied: usize, outdated: usize, refused: usize) {
        for (state, count) in [("applied", applied), ("outdated", outdated), ("refused", refused)] {
            self.files.with_label_values(&[state]).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    pub fn refused(&self) {
        self.attempts.with_label_values(&["refused"]).inc();
    }
}
