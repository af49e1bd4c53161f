//! Metrics of refused overload, in addition to `mcp_rate_limited_total`.

use std::time::Duration;

use prometheus::{Gauge, IntCounterVec, IntGauge, IntGaugeVec};

use super::MetricRegistrar;

pub struct LimitMetrics {
    shed: IntCounterVec,
    overloaded: IntGaugeVec,
    rates_shared: IntGauge,
    rates_replicas: IntGauge,
    queue_delay: Gauge,
    outbox_bytes: IntGauge,
}

impl LimitMetrics {
    pub(super) fn new(declare: &MetricRegistrar<'_>) -> Self {
        Self {
            shed: declare.closed_counters(
                "mcp_overload_refused_total",
                "Requests refused because the process has too much to do.",
                [("reason", &["memory", "pending", "queue"])],
            ),
            overloaded: declare.closed_gauges(
                "mcp_overloaded",
                "Whether new requests are refused for this reason.",
                [("reason", &["memory", "queue"])],
            ),
            rates_shared: declare.gauge(
                "mcp_rates_shared",
                "Whether rates and limits of sessions, calls and connections apply across all replicas through Redis (1) or to each replica (0).",
            ),
            rates_replicas: declare.gauge(
                "mcp_rates_replicas",
                "Replicas that rates and limits are shared among, as this one counts them.",
            ),
            queue_delay: declare.number(
                "mcp_runtime_queue_seconds",
                "Last measured wait of ready tasks for a processor.",
            ),
            outbox_bytes: declare.gauge(
                "mcp_outbox_bytes",
                "Bytes that wait for clients, in steps of 256 KiB for each client.",
            ),
        }
    }

    /// Counts a refusal. `reason` is `memory`, `queue` or `pending`.
    pub fn shed(&self, reason: &'static str) {
        self.shed.with_label_values(&[reason]).inc();
    }

    pub fn overloaded(&self, reason: &'static str, holds: bool) {
        self.overloaded.with_label_values(&[reason]).set(i64::from(holds));
    }

    pub fn rates_shared(&self, shared: bool) {
        self.rates_shared.set(i64::from(shared));
    }

    pub fn rates_replicas(&self, replicas: u32) {
        self.rates_replicas.set(replicas.into());
    }

    pub fn queue_delay(&self, delay: Duration) {
        self.queue_delay.set(delay.as_secs_f64());
    }

    /// Adds the change of the bytes that wait for one client.
    pub fn outbox_bytes(&self, before: usize, now: usize) {
        let bytes = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.outbox_bytes.add(bytes(now) - bytes(before));
    }
}
