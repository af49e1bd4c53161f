//! Metrics of the broker's observability: readiness, spans, the audit log, certificates, and the
//! states of backends.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use prometheus::{IntCounterVec, IntGauge, IntGaugeVec};
use protocol::ids::{BackendId, TenantId};

use super::{BACKEND_LABELS_MAX, MetricRegistrar, OTHER};

/// States of a backend, as label values.
pub const BACKEND_STATES: [&str; 5] = ["connecting", "ready", "degraded", "failed", "disabled"];

pub struct ObservabilityMetrics {
    accepting: IntGauge,
    spans: IntCounterVec,
    audit: IntCounterVec,
    audit_checkpoints: IntCounterVec,
    certificates: IntGaugeVec,
    reloads: IntCounterVec,
    backend_states: IntGaugeVec,
    /// State of each backend at the last update, so that the next one can reset old values.
    reported: Mutex<BTreeMap<(TenantId, BackendId), &'static str>>,
}

impl ObservabilityMetrics {
    pub(super) fn new(declare: &MetricRegistrar<'_>) -> Self {
        Self {
            accepting: declare.gauge(
                "mcp_accepting",
                "1 while the replica accepts new sessions (/readyz returns 200), 0 while it drains or is not ready.",
            ),
            spans: declare.closed_counters(
                "mcp_trace_spans_total",
                "Spans, by outcome: exported, or dropped because the queue was full, the collector did not accept them, or a request had too many.",
                [("outcome", &["exported", "queue_full", "refused", "too_many"])],
            ),
            audit: declare.closed_counters("mcp_audit_records_total", "Records of the audit log, stored, dropped or left out.", [("outcome", &["stored", "dropped", "left_out"])]),
            audit_checkpoints: declare.closed_counters(
                "mcp_audit_checkpoints_total",
                "Checkpoints of the audit log: signed; refused because a chain is not valid; unwritten because the file could not be written.",
                [("outcome", &["signed", "refused", "unwritten"])],
            ),
            certificates: declare.gauges(
                "mcp_certificate_expiry_seconds",
                "Expiry time of the certificate that listeners present, in seconds since 1970.",
                &["listener"],
            ),
            reloads: declare.closed_counters(
                "mcp_certificate_reloads_total",
                "Attempts to read the certificates again, by listener: taken, or refused so that the old ones stay in use.",
                [("listener", &["clients", "operators"]), ("outcome", &["taken", "refused"])],
            ),
            backend_states: declare.gauges(
                "mcp_backend_state",
                "Backends by name and state: how many tenants have one of this name in this state.",
                &["backend", "state"],
            ),
            reported: Mutex::default(),
        }
    }

    /// Sets whether the replica accepts new sessions.
    pub fn accepting(&self, accepting: bool) {
        self.accepting.set(i64::from(accepting));
    }

    /// Counts spans. `outcome` comes from a closed set.
    pub fn spans(&self, outcome: &'static str, count: usize) {
        self.spans.with_label_values(&[outcome]).inc_by(count as u64);
    }

    /// Counts audit records. `outcome` is `stored`, `dropped` or `left_out`.
    pub fn audit(&self, outcome: &'static str, count: usize) {
        self.audit.with_label_values(&[outcome]).inc_by(count as u64);
    }

    /// Counts checkpoints. `outcome` is `signed`, `refused` or `unwritten`.
    pub fn audit_checkpoints(&self, outcome: &'static str, count: usize) {
        self.audit_checkpoints.with_label_values(&[outcome]).inc_by(count as u64);
    }

    /// Sets the expiry time of a certificate. `listener` is `clients` or `operators`.
    pub fn certificate(&self, listener: &'static str, ends_at: i64) {
        self.certificates.with_label_values(&[listener]).set(ends_at);
    }

    pub fn certificate_reload(&self, listener: &'static str, taken: bool) {
        self.reloads.with_label_values(&[listener, if taken { "taken" } else { "refused" }]).inc();
    }

    /// Updates the states of all backends.
    pub fn backends(&self, now: impl IntoIterator<Item = (TenantId, BackendId, &'static str)>) {
        let mut reported = self.reported.lock();
        let now: BTreeMap<_, _> =
            now.into_iter().map(|(tenant, backend, state)| ((tenant, backend), state)).collect();
        if *reported == now {
            return;
        }
        let before = label_counts(&reported);
        let counts = label_counts(&now);
        for (label, state) in before.keys().filter(|key| !counts.contains_key(*key)) {
            // The values of a removed name are removed. Those of another name become 0.
            if counts.keys().any(|(known, _)| known == label) {
                self.backend_states.with_label_values(&[label.as_str(), state]).set(0);
            } else {
                let _it_is_gone = self.backend_states.remove_label_values(&[label.as_str(), state]);
            }
        }
        for ((label, state), count) in counts {
            self.backend_states.with_label_values(&[label.as_str(), state]).set(count);
        }
        *reported = now;
    }
}

/// Returns the number of backends by label and state. Names past the cap share a label. Names are
/// taken in order, so that a name keeps its label.
fn label_counts(
    backends: &BTreeMap<(TenantId, BackendId), &'static str>,
) -> BTreeMap<(String, &'static str), i64> {
    let names: std::collections::BTreeSet<&str> =
        backends.keys().map(|(_, backend)| backend.as_str()).collect();
    let own: std::collections::BTreeSet<&str> =
        names.into_iter().take(BACKEND_LABELS_MAX).collect();
    let mut counts = BTreeMap::new();
    for ((_, backend), state) in backends {
        let label = if own.contains(backend.as_str()) { backend.as_str() } else { OTHER };
        for known in BACKEND_STATES {
            *counts.entry((label.to_owned(), known)).or_insert(0) += i64::from(known == *state);
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    fn names(tenant: &str, backend: &str) -> (TenantId, BackendId) {
        (TenantId::parse(tenant).unwrap(), BackendId::parse(backend).unwrap())
    }

    #[test]
    fn a_backend_is_in_one_state_and_a_removed_one_is_in_none() {
        let metrics = Metrics::new(false);
        let (tenant, backend) = names("acme", "files");
        metrics.observability.backends([(tenant.clone(), backend.clone(), "ready")]);
        let (other, _) = names("other", "files");
        metrics
            .observability
            .backends([(tenant, backend.clone(), "failed"), (other, backend, "ready")]);
        let text = metrics.render();
        assert!(text.contains(r#"mcp_backend_state{backend="files",state="ready"} 1"#), "{text}");
        assert!(text.contains(r#"mcp_backend_state{backend="files",state="failed"} 1"#), "{text}");
        assert!(
            text.contains(r#"mcp_backend_state{backend="files",state="degraded"} 0"#),
            "{text}"
        );
        assert!(!text.contains("acme"), "{text}");
        metrics.observability.backends([]);
        assert!(!metrics.render().contains("mcp_backend_state{"));
    }

    #[test]
    fn names_past_the_cap_share_a_label() {
        let metrics = Metrics::new(false);
        let all = (0..BACKEND_LABELS_MAX + 7).map(|number| {
            let (tenant, backend) = names("acme", &format!("b{number:04}"));
            (tenant, backend, "ready")
        });
        metrics.observability.backends(all);
        let text = metrics.render();
        assert!(text.contains(r#"mcp_backend_state{backend="other",state="ready"} 7"#), "{text}");
        assert_eq!(
            text.matches("mcp_backend_state{").count(),
            (BACKEND_LABELS_MAX + 1) * BACKEND_STATES.len()
        );
    }
}
