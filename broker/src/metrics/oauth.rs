//! Metrics of the broker as an OAuth client towards backends.

use prometheus::{IntCounterVec, IntGaugeVec};

use super::MetricRegistrar;

pub struct OauthMetrics {
    requests: IntCounterVec,
    grants: IntGaugeVec,
}

impl OauthMetrics {
    pub(super) fn new(declare: &MetricRegistrar<'_>) -> Self {
        Self {
            requests: declare.closed_counters(
                "mcp_upstream_refresh_total",
                "Requests of the broker for access tokens of backends: granted, refused, or unavailable.",
                [("outcome", &["granted", "refused", "unavailable"])],
            ),
            grants: declare.closed_gauges(
                "mcp_upstream_grants",
                "Accounts that principals connected at backends, by whether the broker can use them.",
                [("state", &["connected", "reconnect"])],
            ),
        }
    }

    pub fn grants(&self, state: &'static str, count: u64) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.grants.with_label_values(&[state]).set(count);
    }

    pub fn requested(&self, outcome: &'static str) {
        self.requests.with_label_values(&[outcome]).inc();
    }
}
