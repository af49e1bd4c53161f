//! Metrics of approvals: calls that wait for the decision of a person.

use std::time::Duration;

use prometheus::{HistogramVec, IntCounterVec, IntGaugeVec};
use records::ApprovalState;

use super::MetricRegistrar;

pub struct ApprovalMetrics {
    stored: IntGaugeVec,
    transitions: IntCounterVec,
    wait_seconds: HistogramVec,
}

impl ApprovalMetrics {
    pub(super) fn new(declare: &MetricRegistrar<'_>) -> Self {
        Self {
            stored: declare.closed_gauges(
                "mcp_approvals",
                "Stored approvals by state, counted every few seconds.",
                [("state", &ApprovalState::ALL.map(ApprovalState::name))],
            ),
            transitions: declare.closed_counters(
                "mcp_approval_transitions_total",
                "Changes of approvals to a state, by this replica.",
                [("to", &ApprovalState::ALL.map(ApprovalState::name))],
            ),
            wait_seconds: declare.long_histograms(
                "mcp_approval_wait_seconds",
                "Time from the request for an approval to the decision of a person.",
                &["decision"],
            ),
        }
    }

    pub fn stored(&self, state: ApprovalState, count: u64) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.stored.with_label_values(&[state.name()]).set(count);
    }

    pub fn opened(&self) {
        self.moved_to(ApprovalState::Pending, 1);
    }

    pub fn used(&self) {
        self.moved_to(ApprovalState::Used, 1);
    }

    pub fn expired(&self, count: u64) {
        self.moved_to(ApprovalState::Expired, count);
    }

    /// Counts a decision, which came so long after the request.
    pub fn decided(&self, state: ApprovalState, waited: Duration) {
        self.moved_to(state, 1);
        self.wait_seconds.with_label_values(&[state.name()]).observe(waited.as_secs_f64());
    }

    fn moved_to(&self, state: ApprovalState, count: u64) {
        self.transitions.with_label_values(&[state.name()]).inc_by(count);
    }
}
