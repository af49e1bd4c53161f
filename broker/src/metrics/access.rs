//! Metrics of access policies.

use prometheus::{IntCounter, IntCounterVec};
use rules::access::Verdict;

use super::MetricRegistrar;

pub struct AccessMetrics {
    decisions: IntCounterVec,
    /// Child of plain allows: every call behind a policy moves it.
    allowed: IntCounter,
}

impl AccessMetrics {
    pub(super) fn new(declare: &MetricRegistrar<'_>) -> Self {
        let decisions = declare.closed_counters(
            "mcp_policy_decisions_total",
            "Decisions of access policies about requests, and those that rules in shadow mode would make.",
            [("verdict", &Verdict::ALL.map(Verdict::name)), ("mode", &["enforce", "shadow"])],
        );
        let allowed = decisions.with_label_values(&["allow", "enforce"]);
        Self { decisions, allowed }
    }

    pub fn allowed(&self) {
        self.allowed.inc();
    }

    pub fn decided(&self, verdict: Verdict) {
        self.decisions.with_label_values(&[verdict.name(), "enforce"]).inc();
    }

    /// Counts the decision that rules in shadow mode would make.
    pub fn shadowed(&self, verdict: Verdict) {
        self.decisions.with_label_values(&[verdict.name(), "shadow"]).inc();
    }
}
