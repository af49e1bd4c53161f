//! Metrics of requests by tenant, where tenant labels are configured.

use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::{IntCounter, IntCounterVec};
use protocol::ids::TenantId;

use super::{MetricRegistrar, RequestOutcome, TENANT_LABELS_MAX, capped_labels::CappedLabels};

pub(super) struct TenantMetrics {
    requests: IntCounterVec,
    labels: CappedLabels,
}

/// Counters of the requests of one tenant, until it is removed or dropped.
pub struct TenantCounters {
    metrics: Arc<TenantMetrics>,
    /// `None`: the counters are closed.
    label: Mutex<Option<String>>,
    outcomes: [IntCounter; RequestOutcome::ALL.len()],
}

impl TenantMetrics {
    pub(super) fn new(declare: &MetricRegistrar<'_>) -> Self {
        Self {
            requests: declare.counters(
                "mcp_tenant_requests_total",
                "Requests of clients, by tenant and outcome.",
                &["tenant", "outcome"],
            ),
            labels: CappedLabels::new(TENANT_LABELS_MAX),
        }
    }

    pub(super) fn counters(self: &Arc<Self>, tenant: &TenantId) -> TenantCounters {
        let label = self.labels.acquire(tenant.as_str());
        let outcomes = RequestOutcome::ALL
            .map(|outcome| self.requests.with_label_values(&[label.as_str(), outcome.label()]));
        TenantCounters { metrics: Arc::clone(self), label: Mutex::new(Some(label)), outcomes }
    }
}

impl TenantCounters {
    pub fn request_finished(&self, outcome: RequestOutcome) {
        self.outcomes[outcome as usize].inc();
    }

    /// Frees the label. The last holder of a label ends its series. Later requests are not counted.
    pub fn close(&self) {
        let Some(label) = self.label.lock().take() else { return };
        self.metrics.labels.release(&label, || {
            for outcome in RequestOutcome::ALL {
                let labels = [label.as_str(), outcome.label()];
                let _was_there = self.metrics.requests.remove_label_values(&labels);
            }
        });
    }
}

impl Drop for TenantCounters {
    fn drop(&mut self) {
        self.close();
    }
}

impl std::fmt::Debug for TenantCounters {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("TenantCounters")
    }
}
