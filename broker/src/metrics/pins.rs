//! Metrics of pins: objects by state, and findings of the scanner.

use prometheus::{IntCounterVec, IntGaugeVec};
use rules::pins::{CHARACTER_RULES, FindingSeverity, PinState};

use super::MetricRegistrar;

pub struct PinMetrics {
    pins: IntGaugeVec,
    findings: IntGaugeVec,
    results: IntCounterVec,
}

/// Pins and findings of one backend, in the order of the states and severities.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PinCounts {
    pub states: [i64; PinState::ALL.len()],
    pub findings: [i64; FindingSeverity::ALL.len()],
}

impl PinMetrics {
    pub(super) fn new(declare: &MetricRegistrar<'_>) -> Self {
        Self {
            pins: declare.closed_gauges(
                "mcp_catalog_pins",
                "Objects that backends list, by the state of their pins.",
                [("state", &PinState::ALL.map(PinState::name))],
            ),
            findings: declare.closed_gauges(
                "mcp_catalog_findings",
                "Findings of the scanner in the definitions that backends list, by severity.",
                [("severity", &FindingSeverity::ALL.map(FindingSeverity::name))],
            ),
            results: declare.closed_counters(
                "mcp_result_findings_total",
                "Texts in results of tools with hidden characters, by rule.",
                [("rule", &CHARACTER_RULES)],
            ),
        }
    }

    /// Counts a finding in the result of a tool. `rule` is one of [`CHARACTER_RULES`].
    pub fn found_in_result(&self, rule: &str) {
        self.results.with_label_values(&[rule]).inc();
    }

    /// Replaces the part of one backend.
    pub fn moved(&self, before: PinCounts, now: PinCounts) {
        for (at, state) in PinState::ALL.into_iter().enumerate() {
            let moved = now.states[at] - before.states[at];
            self.pins.with_label_values(&[state.name()]).add(moved);
        }
        for (at, severity) in FindingSeverity::ALL.into_iter().enumerate() {
            let moved = now.findings[at] - before.findings[at];
            self.findings.with_label_values(&[severity.name()]).add(moved);
        }
    }
}
