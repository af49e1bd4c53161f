//! Metrics by tenant and backend, where tenant labels are configured. Tenants can use one name for
//! different backends, whose series the metrics of [`super::resilience`] merge.
//!
//! Invariant: the series of a label end with the last backend that holds the label.

use std::{sync::Arc, time::Duration};

use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec};
use protocol::ids::{BackendId, TenantId};
use rules::breaker::CircuitState;

use super::{
    MetricRegistrar, OTHER, TENANT_BACKEND_LABELS_MAX, breaker_states::BreakerStates,
    capped_labels::CappedLabels, tenants::TenantMetrics,
};

pub(super) struct TenantBackendMetrics {
    /// Labels of both names, as `TENANT/BACKEND`.
    labels: CappedLabels,
    request_seconds: HistogramVec,
    failures: IntCounterVec,
    breakers: BreakerStates,
}

/// The series of one backend of a tenant, until [`Self::close`].
pub(super) struct TenantBackendSeries {
    metrics: Arc<TenantMetrics>,
    label: String,
    request_seconds: Histogram,
    failures: IntCounter,
}

/// Returns the values of the labels `tenant` and `backend`.
fn values(label: &str) -> [&str; 2] {
    label.split_once('/').map_or([OTHER, OTHER], |(tenant, backend)| [tenant, backend])
}

impl TenantBackendMetrics {
    pub(super) fn new(declare: &MetricRegistrar<'_>) -> Self {
        Self {
            labels: CappedLabels::new(TENANT_BACKEND_LABELS_MAX),
            request_seconds: declare.coarse_histograms(
                "mcp_tenant_backend_request_seconds",
                "Time from sending a request to a backend to its answer, by tenant and backend.",
                &["tenant", "backend"],
            ),
            failures: declare.counters(
                "mcp_tenant_backend_failures_total",
                "Failures that the circuit breaker of a backend counts, by tenant and backend.",
                &["tenant", "backend"],
            ),
            breakers: BreakerStates::new(declare.gauges(
                "mcp_tenant_breaker_state",
                "Circuit breaker of a backend, by tenant and backend: 0 closed, 1 half-open, 2 open.",
                &["tenant", "backend"],
            )),
        }
    }
}

impl TenantBackendSeries {
    /// Adds a backend, whose breaker is closed.
    pub(super) fn new(
        metrics: &Arc<TenantMetrics>,
        tenant: &TenantId,
        backend: &BackendId,
    ) -> Self {
        let of_backends = &metrics.backends;
        let label = of_backends.labels.acquire(&format!("{tenant}/{backend}"));
        let values = values(&label);
        of_backends.breakers.count(&values, None, Some(CircuitState::Closed));
        Self {
            request_seconds: of_backends.request_seconds.with_label_values(&values),
            failures: of_backends.failures.with_label_values(&values),
            metrics: Arc::clone(metrics),
            label,
        }
    }

    pub(super) fn breaker_transition(&self, from: CircuitState, to: CircuitState) {
        self.metrics.backends.breakers.count(&values(&self.label), Some(from), Some(to));
    }

    pub(super) fn request_finished(&self, time: Duration) {
        self.request_seconds.observe(time.as_secs_f64());
    }

    pub(super) fn failed(&self) {
        self.failures.inc();
    }

    /// Frees the label of a backend whose breaker is in this state. Must be called once.
    pub(super) fn close(&self, state: CircuitState) {
        let (of_backends, values) = (&self.metrics.backends, values(&self.label));
        of_backends.breakers.count(&values, Some(state), None);
        of_backends.labels.release(&self.label, || {
            of_backends.breakers.remove(&values);
            let _was_there = of_backends.request_seconds.remove_label_values(&values);
            let _was_there = of_backends.failures.remove_label_values(&values);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{BackendSeries, Metrics};

    fn add(metrics: &Arc<Metrics>, tenant: &str, backend: &str) -> BackendSeries {
        let (tenant, backend) = (TenantId::parse(tenant), BackendId::parse(backend));
        BackendSeries::new(Arc::clone(metrics), &tenant.unwrap(), &backend.unwrap())
    }

    #[test]
    fn backends_of_one_name_have_series_by_tenant() {
        let metrics = Arc::new(Metrics::new(true));
        let (one, two) = (add(&metrics, "acme", "files"), add(&metrics, "zoo", "files"));
        one.breaker_transition(CircuitState::Open);
        one.failed();
        two.request_finished(Duration::from_millis(20));
        let shown = |line: &str| metrics.render().contains(line);
        for line in [
            r#"mcp_breaker_state{backend="files"} 2"#,
            r#"mcp_tenant_breaker_state{backend="files",tenant="acme"} 2"#,
            r#"mcp_tenant_breaker_state{backend="files",tenant="zoo"} 0"#,
            r#"mcp_tenant_backend_failures_total{backend="files",tenant="acme"} 1"#,
            r#"mcp_tenant_backend_failures_total{backend="files",tenant="zoo"} 0"#,
            r#"mcp_tenant_backend_request_seconds_count{backend="files",tenant="acme"} 0"#,
            r#"mcp_tenant_backend_request_seconds_count{backend="files",tenant="zoo"} 1"#,
            r#"mcp_tenant_backend_request_seconds_bucket{backend="files",tenant="zoo",le="0.05"} 1"#,
        ] {
            assert!(shown(line), "{line} in {}", metrics.render());
        }
        // A replaced backend: the old one ends after the new one exists.
        let next = add(&metrics, "acme", "files");
        one.close();
        assert!(shown(r#"mcp_tenant_breaker_state{backend="files",tenant="acme"} 0"#));
        next.close();
        next.failed();
        assert!(!shown(r#"tenant="acme""#) && shown(r#"tenant="zoo""#), "{}", metrics.render());
        drop(two);
        assert!(!shown(r#"backend="files""#));
    }

    #[test]
    fn names_past_the_cap_share_a_label() {
        let metrics = Arc::new(Metrics::new(true));
        let all: Vec<_> = (0..TENANT_BACKEND_LABELS_MAX + 3)
            .map(|number| add(&metrics, &format!("t{number}"), "b"))
            .collect();
        all[TENANT_BACKEND_LABELS_MAX].breaker_transition(CircuitState::Open);
        let text = metrics.render();
        assert!(text.contains(r#"mcp_tenant_breaker_state{backend="other",tenant="other"} 2"#));
        assert_eq!(
            text.matches("mcp_tenant_breaker_state{").count(),
            TENANT_BACKEND_LABELS_MAX + 1
        );
        drop(all);
        assert!(!metrics.render().contains("mcp_tenant_breaker_state{"));
    }

    #[test]
    fn without_tenant_labels_there_are_no_series_by_tenant() {
        let metrics = Arc::new(Metrics::new(false));
        let backend = add(&metrics, "acme", "files");
        backend.failed();
        assert!(!metrics.render().contains("mcp_tenant_"));
    }
}
