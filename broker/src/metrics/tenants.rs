//! Metrics by tenant, where tenant labels are configured.
//!
//! Invariant: the series of a tenant's label end with the last tenant that holds the label.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use parking_lot::Mutex;
use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};
use protocol::{ids::TenantId, method::Method};

use super::{
    MetricRegistrar, Metrics, RequestOutcome, TENANT_LABELS_MAX, capped_labels::CappedLabels,
    labels::TENANT_LIMITS_REACHED, tenant_backends::TenantBackendMetrics,
};

pub(super) struct TenantMetrics {
    requests: IntCounterVec,
    call_seconds: HistogramVec,
    rate_limited: IntCounterVec,
    sessions: IntGaugeVec,
    calls_in_flight: IntGaugeVec,
    labels: CappedLabels,
    pub(super) backends: TenantBackendMetrics,
}

/// The metrics of one tenant. Those of all tenants count its refusals too.
pub struct TenantCounts {
    metrics: Arc<Metrics>,
    tenant: TenantId,
    /// Resolved at the first session or request. `None` without tenant labels.
    series: OnceLock<Option<TenantSeries>>,
}

/// The series of one tenant, until it is removed or dropped.
pub(super) struct TenantSeries {
    metrics: Arc<TenantMetrics>,
    /// `None`: the series are closed.
    label: Mutex<Option<String>>,
    outcomes: [IntCounter; RequestOutcome::ALL.len()],
    call_seconds: Histogram,
    rate_limited: [IntCounter; TENANT_LIMITS_REACHED.len()],
    sessions: IntGauge,
    calls_in_flight: IntGauge,
}

impl TenantMetrics {
    pub(super) fn new(declare: &MetricRegistrar<'_>) -> Self {
        Self {
            requests: declare.counters(
                "mcp_tenant_requests_total",
                "Requests of clients, by tenant and outcome.",
                &["tenant", "outcome"],
            ),
            call_seconds: declare.coarse_histograms(
                "mcp_tenant_call_seconds",
                "Time from reading a tools/call of a client to its answer, by tenant.",
                &["tenant"],
            ),
            rate_limited: declare.counters(
                "mcp_tenant_rate_limited_total",
                "Requests refused because a limit of the tenant, or of a part of it, was reached.",
                &["tenant", "scope"],
            ),
            sessions: declare.gauges(
                "mcp_tenant_sessions",
                "Open sessions of clients, by tenant.",
                &["tenant"],
            ),
            calls_in_flight: declare.gauges(
                "mcp_tenant_calls_in_flight",
                "Requests of clients that wait for an answer, by tenant.",
                &["tenant"],
            ),
            labels: CappedLabels::new(TENANT_LABELS_MAX),
            backends: TenantBackendMetrics::new(declare),
        }
    }

    pub(super) fn series(self: &Arc<Self>, tenant: &TenantId) -> TenantSeries {
        let label = self.labels.acquire(tenant.as_str());
        let own = [label.as_str()];
        TenantSeries {
            metrics: Arc::clone(self),
            outcomes: RequestOutcome::ALL
                .map(|outcome| self.requests.with_label_values(&[own[0], outcome.label()])),
            call_seconds: self.call_seconds.with_label_values(&own),
            rate_limited: TENANT_LIMITS_REACHED
                .map(|scope| self.rate_limited.with_label_values(&[own[0], scope])),
            sessions: self.sessions.with_label_values(&own),
            calls_in_flight: self.calls_in_flight.with_label_values(&own),
            label: Mutex::new(Some(label)),
        }
    }

    fn remove_series(&self, label: &str) {
        for outcome in RequestOutcome::ALL {
            let _was_there = self.requests.remove_label_values(&[label, outcome.label()]);
        }
        for scope in TENANT_LIMITS_REACHED {
            let _was_there = self.rate_limited.remove_label_values(&[label, scope]);
        }
        let _was_there = self.call_seconds.remove_label_values(&[label]);
        let _was_there = self.sessions.remove_label_values(&[label]);
        let _was_there = self.calls_in_flight.remove_label_values(&[label]);
    }
}

impl TenantCounts {
    pub fn new(metrics: Arc<Metrics>, tenant: TenantId) -> Self {
        Self { metrics, tenant, series: OnceLock::new() }
    }

    fn series(&self) -> Option<&TenantSeries> {
        self.series.get_or_init(|| self.metrics.tenant_series(&self.tenant)).as_ref()
    }

    /// Counts a request that is over.
    pub fn request_finished(&self, method: Method, outcome: RequestOutcome, took: Duration) {
        if let Some(series) = self.series() {
            series.request_finished(method, outcome, took);
        }
    }

    /// Counts a request that a limit of the tenant refuses.
    pub fn rate_limited(&self, scope: &'static str) {
        self.metrics.rate_limited(scope);
        self.refused(scope);
    }

    /// Counts a refused request, which the metrics of all tenants have already.
    pub fn refused(&self, scope: &'static str) {
        if let Some(series) = self.series() {
            series.refused(scope);
        }
    }

    /// Adds the change of its open sessions of clients.
    pub fn sessions(&self, delta: i64) {
        if let Some(series) = self.series() {
            series.sessions.add(delta);
        }
    }

    /// Adds the change of its calls in flight.
    pub fn calls_in_flight(&self, delta: i64) {
        if let Some(series) = self.series() {
            series.calls_in_flight.add(delta);
        }
    }

    /// Ends the series, because the tenant is removed.
    pub fn close(&self) {
        if let Some(series) = self.series.get_or_init(|| None) {
            series.close();
        }
    }
}

impl TenantSeries {
    fn request_finished(&self, method: Method, outcome: RequestOutcome, took: Duration) {
        self.outcomes[outcome as usize].inc();
        if method == Method::ToolsCall {
            self.call_seconds.observe(took.as_secs_f64());
        }
    }

    /// Counts a request refused by a limit. `scope` is one of [`TENANT_LIMITS_REACHED`].
    fn refused(&self, scope: &'static str) {
        let known = TENANT_LIMITS_REACHED.iter().position(|known| *known == scope);
        debug_assert!(known.is_some(), "{scope} is not a limit of tenants");
        if let Some(index) = known {
            self.rate_limited[index].inc();
        }
    }

    /// Frees the label. The last holder of a label ends its series. Later updates have no effect.
    fn close(&self) {
        let Some(label) = self.label.lock().take() else { return };
        self.metrics.labels.release(&label, || self.metrics.remove_series(&label));
    }
}

impl Drop for TenantSeries {
    fn drop(&mut self) {
        self.close();
    }
}

impl std::fmt::Debug for TenantCounts {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("TenantCounts")
    }
}
