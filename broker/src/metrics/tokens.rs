//! Metrics of access tokens, of the fetches of issuers' keys, and of failed sign-ins with any
//! credential.

use prometheus::{IntCounter, IntCounterVec, IntGauge};
use rules::sign_in_failures::{Plane, SignInFailureReason};

use super::MetricRegistrar;

pub struct TokenMetrics {
    verified: IntCounter,
    refused: IntCounter,
    lacks_scope: IntCounter,
    fetches: IntCounterVec,
    without_keys: IntGauge,
    introspections: IntCounterVec,
    sign_in_failures: IntCounterVec,
}

impl TokenMetrics {
    pub(super) fn new(declare: &MetricRegistrar<'_>) -> Self {
        let checked = declare.closed_counters(
            "mcp_tokens_checked_total",
            "Newly checked tokens of issuers: verified, refused, or without a required scope.",
            [("outcome", &["verified", "refused", "insufficient_scope"])],
        );
        let of = |outcome| checked.with_label_values(&[outcome]);
        Self {
            verified: of("verified"),
            refused: of("refused"),
            lacks_scope: of("insufficient_scope"),
            fetches: declare.closed_counters("mcp_issuer_key_fetches_total", "Fetches of issuers' keys: taken, or failed.", [("outcome", &["taken", "failed"])]),
            without_keys: declare.gauge(
                "mcp_issuers_without_keys",
                "Issuers without a usable key: not fetched since the start, too old, or none published.",
            ),
            introspections: declare.closed_counters("mcp_token_introspections_total", "Introspection requests to issuers: active, inactive, or failed.", [("outcome", &["active", "inactive", "failed"])]),
            sign_in_failures: declare.closed_counters(
                "mcp_auth_failures_total",
                "Sign-ins that failed, by the plane (data, admin, internal) and by the fault of the credential.",
                [("plane", &Plane::ALL.map(Plane::name)), ("reason", &SignInFailureReason::ALL.map(SignInFailureReason::name))],
            ),
        }
    }

    pub fn verified(&self) {
        self.verified.inc();
    }

    pub fn refused(&self) {
        self.refused.inc();
    }

    pub fn lacks_scope(&self) {
        self.lacks_scope.inc();
    }

    pub fn sign_in_failed(&self, plane: Plane, reason: SignInFailureReason) {
        self.sign_in_failures.with_label_values(&[plane.name(), reason.name()]).inc();
    }

    pub fn fetched(&self, taken: bool) {
        self.fetches.with_label_values(&[if taken { "taken" } else { "failed" }]).inc();
    }

    pub fn introspected(&self, outcome: &'static str) {
        self.introspections.with_label_values(&[outcome]).inc();
    }

    /// Records that one issuer more has no keys, or one less.
    pub fn has_keys(&self, there: bool) {
        if there { self.without_keys.dec() } else { self.without_keys.inc() }
    }
}
