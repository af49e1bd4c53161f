//! Metrics of the broker as an OAuth client towards backends.

use prometheus::IntCounterVec;

use super::MetricRegistrar;

pub struct OauthMetrics {
    requests: IntCounterVec,
}

impl OauthMetrics {
    pub(super) fn new(declare: &MetricRegistrar<'_>) -> Self {
        Self {
            requests: declare.counters(
                "mcp_upstream_refresh_total",
                "Requests of the broker for access tokens of backends: granted, refused, or unavailable.",
                &["outcome"],
            ),
        }
    }

    pub fn requested(&self, outcome: &'static str) {
        self.requests.with_label_values(&[outcome]).inc();
    }
}
