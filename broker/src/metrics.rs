//! All metrics of the broker, declared in one place: name with unit, help text, and a closed set of
//! label values. Sessions, links and listeners update them. `GET /metrics` reads them.
//!
//! Invariants:
//! - No input of a peer becomes a label value. Methods, codes and transports come from closed sets.
//!   The two open sets, backends and tenants, are capped and end in `other`. The series of a
//!   backend or tenant end with it.
//! - An update on the path of a call costs one atomic operation, because its label children are
//!   resolved once.
//! - Every declared metric has code that updates it.
//! - A metric whose labels have closed sets has all its series from the start, at 0, so that the
//!   first increase is visible. Exceptions are the metrics by method and by phase, which would be
//!   hundreds of series, and the metrics by operation of a store.

mod access;
mod approvals;
mod breaker_states;
mod capped_labels;
pub(crate) mod labels;
mod limits;
mod oauth;
mod observability;
mod pins;
pub(crate) mod process;
mod registrar;
mod reloads;
mod resilience;
mod tasks;
mod tenant_backends;
mod tenants;
mod tokens;

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    sync::{
        Arc, LazyLock, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use prometheus::{
    Encoder as _, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
    Registry, TextEncoder,
};
use protocol::{error::ErrorKind, ids::TenantId, method::Method, version::Version};
use rules::client_transport::Transport;

use self::{
    access::AccessMetrics,
    approvals::ApprovalMetrics,
    limits::LimitMetrics,
    oauth::OauthMetrics,
    pins::PinMetrics,
    registrar::MetricRegistrar,
    tasks::TaskMetrics,
    tenants::{TenantMetrics, TenantSeries},
    tokens::TokenMetrics,
};
pub use self::{
    labels::{Direction, ForwardOutcome, RequestOutcome, Side},
    observability::BACKEND_STATES,
    pins::PinCounts,
    resilience::{BackendSeries, ResilienceMetrics, RetryOutcome, VerdictEffect},
    tasks::PromotionOutcome,
    tenants::TenantCounts,
};

/// Maximum number of backends with a label value of their own. Further ones share `other`.
pub const BACKEND_LABELS_MAX: usize = 200;
/// Maximum number of tenants with a label value of their own, if tenant labels are configured.
pub const TENANT_LABELS_MAX: usize = 1_000;
/// Maximum number of backends of tenants with label values of their own, if tenant labels are
/// configured.
pub const TENANT_BACKEND_LABELS_MAX: usize = 2_000;
const OTHER: &str = "other";

/// JSON-RPC codes that MCP defines. The broker's own codes are 1001 to 1089.
const ERROR_CODES: [i64; 7] = [-32700, -32600, -32601, -32602, -32603, -32002, -32042];
const REFUSAL_CODES: std::ops::RangeInclusive<i64> = 1001..=1089;

/// Codes that have their series from the start. Another number of the registry gets its series with
/// its first error.
static DECLARED_CODES: LazyLock<BTreeSet<i64>> = LazyLock::new(|| {
    let refusals = ErrorKind::ALL.iter().map(|kind| kind.code());
    refusals.chain(ERROR_CODES).collect()
});

/// Returns the label values of the declared codes.
fn error_codes() -> Vec<String> {
    DECLARED_CODES.iter().map(i64::to_string).chain([OTHER.to_owned()]).collect()
}

/// Registry, and a handle of each metric.
pub struct Metrics {
    registry: Registry,
    requests: IntCounterVec,
    request_seconds: HistogramVec,
    /// Children of `requests` and of `request_seconds`, by method.
    by_method: Vec<MethodChildren>,
    requests_pending: IntGauge,
    errors: IntCounterVec,
    versions: IntCounterVec,
    /// Child of `versions` for stateless clients, which is counted with each request.
    stateless_clients: OnceLock<IntCounter>,
    phases: IntCounterVec,
    sessions: IntGaugeVec,
    links: IntGaugeVec,
    dropped_notifications: IntCounterVec,
    dropped_answers: IntCounterVec,
    rate_limited: IntCounterVec,
    pub access: AccessMetrics,
    pub approvals: ApprovalMetrics,
    pub limits: LimitMetrics,
    queue_depth: IntGaugeVec,
    subscriptions: IntGauge,
    events_replayed: IntCounter,
    events_lost: IntCounter,
    event_gaps: IntCounter,
    sessions_adopted: IntCounter,
    sessions_released: IntCounter,
    sessions_unreadable: IntCounter,
    tasks: TaskMetrics,
    pub oauth: OauthMetrics,
    pub pins: PinMetrics,
    pub tokens: TokenMetrics,
    forwarded: IntCounterVec,
    store_seconds: HistogramVec,
    store_errors: IntCounterVec,
    lease_renewals: IntCounterVec,
    writes_fenced: IntCounter,
    expired: IntCounterVec,
    rows_unreadable: IntCounter,
    rows_unreadable_in_store: AtomicU64,
    hot_connected: IntGaugeVec,
    /// Indexed by direction, then side.
    bytes: [[IntCounter; 2]; 2],
    pub observability: observability::ObservabilityMetrics,
    pub reloads: reloads::ReloadMetrics,
    /// Present only where tenant labels are configured.
    tenants: Option<Arc<TenantMetrics>>,
    pub resilience: ResilienceMetrics,
}

#[derive(Default)]
struct MethodChildren {
    /// Children by transport and outcome.
    outcomes: [[OnceLock<IntCounter>; RequestOutcome::ALL.len()]; Transport::ALL.len()],
    seconds: OnceLock<Histogram>,
}

impl Metrics {
    /// Declares all metrics. `tenant_labels` adds those by tenant.
    pub fn new(tenant_labels: bool) -> Self {
        let registry = Registry::new();
        let declare = MetricRegistrar { registry: &registry };
        let bytes = declare.counters(
            "mcp_bytes_total",
            "Bytes of MCP messages read (in) and written (out), by peer.",
            &["direction", "side"],
        );
        let error_codes = error_codes();
        let error_codes: Vec<&str> = error_codes.iter().map(String::as_str).collect();
        let methods = Method::ALL
            .iter()
            .chain([&Method::Unknown])
            .map(|method| *method as usize)
            .max()
            .unwrap_or(0)
            + 1;
        let bytes_of = |direction: Direction| {
            [Side::Client, Side::Backend]
                .map(|side| bytes.with_label_values(&[direction.label(), side.label()]))
        };
        Self {
            requests: declare.counters(
                "mcp_requests_total",
                "Answered requests of clients, by outcome.",
                &["method", "outcome", "transport"],
            ),
            request_seconds: declare.histograms("mcp_request_seconds", "Time from reading a client's request to its answer.", &["method"]),
            by_method: (0..methods).map(|_| MethodChildren::default()).collect(),
            requests_pending: declare.gauge("mcp_requests_pending", "Requests of clients that wait for an answer."),
            errors: declare.closed_counters("mcp_errors_total", "JSON-RPC errors sent to clients, by code.", [("code", &error_codes)]),
            versions: declare.closed_counters(
                "mcp_protocol_version_negotiated_total",
                "Handshakes, by agreed protocol version and peer.",
                [("version", &Version::ALL.map(Version::as_str)), ("side", &["client", "backend"])],
            ),
            stateless_clients: OnceLock::new(),
            phases: declare.counters(
                "mcp_phase_transitions_total",
                "Phase transitions of sessions and links.",
                &["from", "to"],
            ),
            sessions: declare.closed_gauges("mcp_sessions", "Sessions of clients.", [("transport", &Transport::ALL.map(Transport::name)), ("state", &["open"])]),
            links: declare.closed_gauges("mcp_links", "Links to backends.", [("backend_transport", labels::BACKEND_TRANSPORTS), ("state", &["open"])]),
            dropped_notifications: declare.closed_counters(
                "mcp_dropped_notifications_total",
                "Notifications dropped because they had no reader or no queue space.",
                [("kind", labels::DROPPED_NOTIFICATIONS)],
            ),
            dropped_answers: declare.closed_counters("mcp_dropped_answers_total", "Answers dropped because no request waited for them.", [("reason", labels::DROPPED_ANSWERS)]),
            rate_limited: declare.closed_counters("mcp_rate_limited_total", "Requests refused because a limit was reached.", [("scope", labels::LIMITS_REACHED)]),
            access: AccessMetrics::new(&declare),
            approvals: ApprovalMetrics::new(&declare),
            limits: LimitMetrics::new(&declare),
            queue_depth: declare.closed_gauges(
                "mcp_queue_depth",
                "Messages and calls waiting in the broker's queues towards backends.",
                [("queue", labels::QUEUES)],
            ),
            subscriptions: declare.gauge("mcp_subscriptions", "Resources subscribed to, counted per session."),
            events_replayed: declare.counter("mcp_events_replayed_total", "Events sent again to streams that were resumed."),
            events_lost: declare.counter("mcp_events_lost_total", "Events that could not be added to the event log."),
            event_gaps: declare.counter("mcp_event_gaps_total", "Streams whose clients were told that events are lost."),
            sessions_adopted: declare.counter("mcp_sessions_adopted_total", "Sessions taken over from the store."),
            sessions_released: declare.counter("mcp_sessions_released_total", "Sessions released by a broker that shuts down."),
            sessions_unreadable: declare.counter("mcp_sessions_unreadable_total", "Stored sessions this build cannot read."),
            tasks: TaskMetrics::new(&declare),
            oauth: OauthMetrics::new(&declare),
            pins: PinMetrics::new(&declare),
            tokens: TokenMetrics::new(&declare),
            forwarded: declare.closed_counters("mcp_forwarded_requests_total", "Requests forwarded to other replicas.", [("outcome", &ForwardOutcome::ALL.map(ForwardOutcome::label))]),
            store_seconds: declare.histograms("mcp_store_seconds", "Duration of store operations.", &["operation", "store"]),
            store_errors: declare.counters("mcp_store_errors_total", "Store operations that failed.", &["operation", "store"]),
            lease_renewals: declare.closed_counters(
                "mcp_node_lease_renewals_total",
                "Attempts of this process to renew its lease: held, lost (another replica may own its sessions and tasks) or failed.",
                [("outcome", &["held", "lost", "failed"])],
            ),
            writes_fenced: declare.counter("mcp_fenced_writes_total", "Writes refused because their session or task has another owner."),
            expired: declare.closed_counters("mcp_expired_total", "Entries removed from the stores because they expired.", [("kind", labels::EXPIRED)]),
            rows_unreadable_in_store: AtomicU64::new(0),
            rows_unreadable: declare
                .counter("mcp_rows_unreadable_total", "Rows of the database that were left out because they cannot be read."),
            hot_connected: declare.gauges(
                "mcp_hot_store_connected",
                "Whether notifications reach other replicas at once (1) or not (0).",
                &["store"],
            ),
            observability: observability::ObservabilityMetrics::new(&declare),
            bytes: [bytes_of(Direction::In), bytes_of(Direction::Out)],
            reloads: reloads::ReloadMetrics::new(&declare),
            tenants: tenant_labels.then(|| Arc::new(TenantMetrics::new(&declare))),
            resilience: ResilienceMetrics::new(&declare),
            registry,
        }
    }

    /// Returns the metrics in the Prometheus text format.
    pub fn render(&self) -> String {
        let mut text = Vec::new();
        if let Err(error) = TextEncoder::new().encode(&self.registry.gather(), &mut text) {
            tracing::error!(%error, "metrics could not be rendered");
        }
        let mut text = String::from_utf8_lossy(&text).into_owned();
        let version = env!("CARGO_PKG_VERSION");
        let _ = writeln!(
            text,
            "# HELP mcp_build_info The running build; always 1.\n# TYPE mcp_build_info gauge\nmcp_build_info{{version=\"{version}\"}} 1"
        );
        process::append(&mut text);
        text
    }

    pub fn request_finished(
        &self,
        method: Method,
        outcome: RequestOutcome,
        transport: Transport,
        seconds: f64,
    ) {
        let children = &self.by_method[method as usize];
        children.outcomes[transport as usize][outcome as usize]
            .get_or_init(|| {
                let labels = [method.name(), outcome.label(), transport.name()];
                self.requests.with_label_values(&labels)
            })
            .inc();
        children
            .seconds
            .get_or_init(|| self.request_seconds.with_label_values(&[method.name()]))
            .observe(seconds);
    }

    /// Returns the series of a tenant. `None`: tenant labels are not configured.
    fn tenant_series(&self, tenant: &TenantId) -> Option<TenantSeries> {
        self.tenants.as_ref().map(|tenants| tenants.series(tenant))
    }

    pub fn requests_pending(&self, delta: i64) {
        self.requests_pending.add(delta);
    }

    pub fn error(&self, code: i64) {
        if DECLARED_CODES.contains(&code) || REFUSAL_CODES.contains(&code) {
            self.errors.with_label_values(&[&*code.to_string()]).inc();
        } else {
            self.errors.with_label_values(&[OTHER]).inc();
        }
    }

    pub fn version_negotiated(&self, version: Version, side: Side) {
        self.versions.with_label_values(&[version.as_str(), side.label()]).inc();
    }

    /// Counts a request of a stateless client, which names its revision in each request.
    pub fn stateless_request(&self) {
        let counter = || {
            self.versions.with_label_values(&[Version::V2026_07_28.as_str(), Side::Client.label()])
        };
        self.stateless_clients.get_or_init(counter).inc();
    }

    pub fn phase(&self, from: &'static str, to: &'static str) {
        self.phases.with_label_values(&[from, to]).inc();
    }

    pub fn sessions(&self, transport: Transport, state: &'static str, delta: i64) {
        self.sessions.with_label_values(&[transport.name(), state]).add(delta);
    }

    pub fn links(&self, backend_transport: &'static str, state: &'static str, delta: i64) {
        self.links.with_label_values(&[backend_transport, state]).add(delta);
    }

    pub fn dropped_notification(&self, kind: &'static str) {
        self.dropped_notifications.with_label_values(&[kind]).inc();
    }

    pub fn dropped_answer(&self, reason: &'static str) {
        self.dropped_answers.with_label_values(&[reason]).inc();
    }

    pub fn rate_limited(&self, scope: &'static str) {
        self.rate_limited.with_label_values(&[scope]).inc();
    }

    /// Returns the gauge of all queues with this name. The caller resolves it once.
    pub fn queue_depth(&self, queue: &'static str) -> IntGauge {
        self.queue_depth.with_label_values(&[queue])
    }

    pub fn subscriptions(&self, delta: i64) {
        self.subscriptions.add(delta);
    }

    pub fn events_replayed(&self, count: u64) {
        self.events_replayed.inc_by(count);
    }

    pub fn forwarded(&self, outcome: ForwardOutcome) {
        self.forwarded.with_label_values(&[outcome.label()]).inc();
    }

    pub fn events_lost(&self, count: u64) {
        self.events_lost.inc_by(count);
    }

    pub fn event_gap(&self) {
        self.event_gaps.inc();
    }

    pub fn session_adopted(&self) {
        self.sessions_adopted.inc();
    }

    pub fn session_released(&self) {
        self.sessions_released.inc();
    }

    pub fn session_unreadable(&self) {
        self.sessions_unreadable.inc();
    }

    /// Records a completed operation of a store. Both names come from closed sets.
    pub fn store(
        &self,
        operation: &'static str,
        store: &'static str,
        time: Duration,
        failed: bool,
    ) {
        self.store_seconds.with_label_values(&[operation, store]).observe(time.as_secs_f64());
        // The series begins at 0 with the first operation, also with one that succeeds.
        let errors = self.store_errors.with_label_values(&[operation, store]);
        errors.inc_by(u64::from(failed));
    }

    pub fn lease_renewal(&self, outcome: &'static str) {
        self.lease_renewals.with_label_values(&[outcome]).inc();
    }

    pub fn writes_fenced(&self, count: u64) {
        self.writes_fenced.inc_by(count);
    }

    /// Counts removed entries whose time was over. `kind` is one of [`labels::EXPIRED`].
    pub fn expired(&self, kind: &'static str, count: u64) {
        self.expired.with_label_values(&[kind]).inc_by(count);
    }

    /// Updates the count of unreadable rows. `total` is the store's count since it was opened.
    pub fn rows_unreadable(&self, total: u64) {
        let before = self.rows_unreadable_in_store.fetch_max(total, Ordering::Relaxed);
        self.rows_unreadable.inc_by(total.saturating_sub(before));
    }

    /// Counts a row that the store could read, but its reader could not.
    pub fn row_unreadable(&self) {
        self.rows_unreadable.inc();
    }

    pub fn hot_store(&self, store: &'static str, connected: bool) {
        self.hot_connected.with_label_values(&[store]).set(i64::from(connected));
    }

    pub fn bytes(&self, direction: Direction, side: Side, count: usize) {
        self.bytes[direction as usize][side as usize].inc_by(count as u64);
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Metrics")
    }
}

#[cfg(test)]
mod tests {
    use protocol::ids::BackendId;

    use super::*;

    #[test]
    fn a_finished_request_is_counted_and_timed() {
        let metrics = Metrics::new(false);
        metrics.request_finished(
            Method::ToolsCall,
            RequestOutcome::ToolError,
            Transport::Http,
            0.003,
        );
        metrics.request_finished(
            Method::ToolsCall,
            RequestOutcome::ToolError,
            Transport::Http,
            0.003,
        );
        metrics.request_finished(
            Method::Unknown,
            RequestOutcome::Refused,
            Transport::WebSocket,
            0.1,
        );
        let text = metrics.render();
        assert!(
            text.contains(
                r#"mcp_requests_total{method="tools/call",outcome="tool_error",transport="http"} 2"#
            ),
            "{text}"
        );
        assert!(text.contains(r#"outcome="refused",transport="websocket"} 1"#), "{text}");
        assert!(
            text.contains(r#"mcp_request_seconds_bucket{method="tools/call",le="0.005"} 2"#),
            "{text}"
        );
        assert!(
            text.contains(r#"mcp_request_seconds_bucket{method="tools/call",le="0.0025"} 0"#),
            "{text}"
        );
    }

    #[test]
    fn every_method_of_the_table_has_a_series() {
        let metrics = Metrics::new(false);
        for method in Method::ALL.iter().chain([&Method::Unknown]) {
            for outcome in RequestOutcome::ALL {
                metrics.request_finished(*method, outcome, Transport::Http, 0.0);
            }
        }
        let lines =
            metrics.render().lines().filter(|line| line.starts_with("mcp_requests_total{")).count();
        assert!(lines >= Method::ALL.len() * RequestOutcome::ALL.len());
    }

    #[test]
    fn error_codes_are_a_closed_set() {
        let metrics = Metrics::new(false);
        for code in [-32602, 1004, 1089, 1090, 77, i64::MIN] {
            metrics.error(code);
        }
        let text = metrics.render();
        assert!(
            text.contains(r#"mcp_errors_total{code="-32602"} 1"#)
                && text.contains(r#"mcp_errors_total{code="1004"} 1"#),
            "{text}"
        );
        assert!(text.contains(r#"mcp_errors_total{code="other"} 3"#), "{text}");
        for kind in ErrorKind::ALL {
            let metrics = Metrics::new(false);
            metrics.error(kind.code());
            let counted = format!(r#"mcp_errors_total{{code="{}"}} 1"#, kind.code());
            assert!(metrics.render().contains(&counted), "{}", kind.code());
        }
    }

    /// Returns the number of lines that begin so.
    fn count(metrics: &Metrics, start: &str) -> usize {
        metrics.render().lines().filter(|line| line.starts_with(start)).count()
    }

    #[test]
    fn backends_past_the_cap_share_a_label_and_a_removed_one_frees_its_label() {
        let metrics = Arc::new(Metrics::new(false));
        let answered = |name: &str| {
            let id = BackendId::parse(name).unwrap();
            let tenant = TenantId::parse("acme").unwrap();
            let series = BackendSeries::new(Arc::clone(&metrics), &tenant, &id);
            series.request_finished(Duration::from_millis(10));
            series
        };
        let all: Vec<_> =
            (0..BACKEND_LABELS_MAX + 5).map(|number| answered(&format!("b{number}"))).collect();
        let series = "mcp_backend_request_seconds_count{";
        assert_eq!(count(&metrics, series), BACKEND_LABELS_MAX + 1);
        let of_others = r#"mcp_backend_request_seconds_count{backend="other"} 5"#;
        assert!(metrics.render().contains(of_others));

        all[7].close();
        assert_eq!(count(&metrics, series), BACKEND_LABELS_MAX);
        let _next = answered("next");
        let text = metrics.render();
        assert!(text.contains(r#"mcp_backend_request_seconds_count{backend="next"} 1"#), "{text}");
        assert!(text.contains(of_others) && !text.contains(r#"backend="b7""#), "{text}");
    }

    #[test]
    fn tenants_are_labels_only_when_configured() {
        let tenant = TenantId::parse("acme").unwrap();
        let counted = |tenant_labels| {
            let metrics = Arc::new(Metrics::new(tenant_labels));
            let counts = TenantCounts::new(metrics.clone(), tenant.clone());
            counts.rate_limited("sessions_per_tenant");
            (metrics, counts)
        };
        assert!(!counted(false).0.render().contains("acme"));
        let (metrics, counts) = counted(true);
        let took = Duration::from_millis(20);
        counts.request_finished(Method::ToolsCall, RequestOutcome::Ok, took);
        counts.request_finished(Method::Ping, RequestOutcome::Ok, took);
        counts.sessions(2);
        counts.calls_in_flight(1);
        let text = metrics.render();
        for line in [
            r#"mcp_tenant_requests_total{outcome="ok",tenant="acme"} 2"#,
            r#"mcp_tenant_call_seconds_bucket{tenant="acme",le="0.05"} 1"#,
            r#"mcp_tenant_call_seconds_count{tenant="acme"} 1"#,
            r#"mcp_tenant_rate_limited_total{scope="sessions_per_tenant",tenant="acme"} 1"#,
            r#"mcp_tenant_rate_limited_total{scope="tool",tenant="acme"} 0"#,
            r#"mcp_tenant_sessions{tenant="acme"} 2"#,
            r#"mcp_tenant_calls_in_flight{tenant="acme"} 1"#,
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        counts.close();
        assert!(!metrics.render().contains("acme"));
    }

    #[test]
    fn tenants_past_the_cap_share_a_label_and_a_removed_one_frees_its_label() {
        let metrics = Arc::new(Metrics::new(true));
        let counted = |name: &str| {
            let counts = TenantCounts::new(metrics.clone(), TenantId::parse(name).unwrap());
            counts.request_finished(Method::Ping, RequestOutcome::Ok, Duration::ZERO);
            counts
        };
        let all: Vec<_> =
            (0..TENANT_LABELS_MAX + 5).map(|number| counted(&format!("t{number}"))).collect();
        let series = r#"mcp_tenant_requests_total{outcome="ok""#;
        assert_eq!(count(&metrics, series), TENANT_LABELS_MAX + 1);

        let again = counted("t1");
        for removed in &all[..2] {
            removed.close();
            removed.request_finished(Method::Ping, RequestOutcome::Refused, Duration::ZERO);
        }
        assert_eq!(count(&metrics, series), TENANT_LABELS_MAX, "t0 is gone, t1 has another holder");
        let next = counted("next");
        let text = metrics.render();
        for (tenant, count) in [("t1", 2), ("next", 1), ("other", 5)] {
            let line = format!(r#"{series},tenant="{tenant}"}} {count}"#);
            assert!(text.contains(&line), "{line}");
        }
        drop((all, again, next));
        assert_eq!(count(&metrics, "mcp_tenant_requests_total{"), 0);
    }

    #[test]
    fn gauges_rise_and_fall_and_bytes_have_their_four_series() {
        let metrics = Metrics::new(false);
        metrics.sessions(Transport::Http, "ready", 2);
        metrics.sessions(Transport::Http, "ready", -1);
        metrics.bytes(Direction::Out, Side::Backend, 10);
        let text = metrics.render();
        assert!(text.contains(r#"mcp_sessions{state="ready",transport="http"} 1"#), "{text}");
        assert!(text.contains(r#"mcp_bytes_total{direction="out",side="backend"} 10"#), "{text}");
        assert!(text.contains(r#"mcp_bytes_total{direction="in",side="client"} 0"#), "{text}");
    }

    #[test]
    fn series_of_closed_sets_exist_from_the_start() {
        let text = Metrics::new(false).render();
        for line in [
            r#"mcp_sessions{state="open",transport="http"} 0"#,
            r#"mcp_links{backend_transport="stdio",state="open"} 0"#,
            r#"mcp_errors_total{code="-32602"} 0"#,
            r#"mcp_errors_total{code="1008"} 0"#,
            r#"mcp_errors_total{code="other"} 0"#,
            r#"mcp_rate_limited_total{scope="tenant"} 0"#,
            r#"mcp_tasks{status="working"} 0"#,
            r#"mcp_auth_failures_total{plane="data",reason="api_key"} 0"#,
            r#"mcp_policy_decisions_total{mode="shadow",verdict="deny"} 0"#,
            r#"mcp_config_reloads_total{outcome="refused"} 0"#,
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }

    #[test]
    fn the_text_has_process_metrics_and_each_name_once() {
        let text = Metrics::new(true).render();
        for name in [
            "process_cpu_seconds_total",
            "process_resident_memory_bytes",
            "process_open_fds",
            "process_threads",
            "process_start_time_seconds",
            "mcp_build_info",
        ] {
            assert_eq!(text.matches(&format!("# TYPE {name} ")).count(), 1, "{name} in {text}");
        }
        assert!(text.ends_with('\n') && !text.contains("\n\n"));
    }
}
