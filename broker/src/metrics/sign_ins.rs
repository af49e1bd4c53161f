//! Sign-ins that failed, by plane and reason.

use prometheus::IntCounterVec;

use super::Declare;
use crate::rules::sign_in_failures::{Plane, Reason};

pub struct SignInMetrics {
    failures: IntCounterVec,
}

impl SignInMetrics {
    pub(super) fn new(declare: &Declare<'_>) -> Self {
        let failures = declare.counters(
            "mcp_auth_failures_total",
            "Sign-ins that failed, by the plane (data, admin, internal) and by what was wrong with the credential.",
            &["plane", "reason"],
        );
        Self { failures }
    }

    pub fn failed(&self, plane: Plane, reason: Reason) {
        self.failures.with_label_values(&[plane.name(), reason.name()]).inc();
    }
}
