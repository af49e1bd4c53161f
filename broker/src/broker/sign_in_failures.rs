//! Failed sign-ins: each is counted, and told in the log and in the audit log. An address that fails too often is answered with
//! 429. Called by every listener, after the credential was judged.
//!
//! Invariant: a good credential never gets here, so it works from an address whose other sign-ins fail.

use std::{
    net::IpAddr,
    sync::{Arc, Weak},
    time::Duration,
};

use protocol::error::{ErrorKind, Refusal};

use super::Broker;
use crate::{
    auth::{AuthError, RemotePeer},
    limits::sign_ins::SIGN_IN_CLOSE_INTERVAL,
    rules::sign_in_failures::{FailureReport, Plane, SignInFailureReason},
    telemetry::audit,
};

impl Broker {
    /// Counts a denied sign-in and returns the answer to it.
    pub fn refuse(&self, denied: AuthError, plane: Plane, remote: RemotePeer) -> Refusal {
        let (refusal, failure) = denied.into_parts();
        let Some(reason) = failure else { return refusal };
        let reason = if reason == SignInFailureReason::Missing && remote.certificate_is_foreign {
            SignInFailureReason::Certificate
        } else {
            reason
        };
        match self.sign_in_failed(plane, reason, remote.address) {
            None => refusal,
            Some(wait) => {
                let text = "too many sign-ins of this address have failed within a minute, and this credential is not valid here either";
                Refusal::new(ErrorKind::TooManySignIns, text).retry_after(wait)
            }
        }
    }

    /// Counts a failure, and tells of it. `Some`: the address has failed too often, and is told to wait so long.
    pub fn sign_in_failed(
        &self,
        plane: Plane,
        reason: SignInFailureReason,
        address: Option<IpAddr>,
    ) -> Option<Duration> {
        let metrics = &self.shared.metrics;
        metrics.tokens.sign_in_failed(plane, reason);
        let per_minute = self.shared.config.limits.sign_in_failures_per_minute;
        let judged = self.sign_ins.lock().note(
            self.sign_ins.started.elapsed(),
            address,
            plane,
            reason,
            per_minute,
        );
        if let Some(report) = judged.report {
            self.tell(&report);
        }
        if judged.wait.is_some() {
            metrics.rate_limited("sign_in_failures");
        }
        judged.wait
    }

    /// Tells now what would be told at the end of each minute.
    pub fn tell_sign_in_failures(&self) {
        let reports = self.sign_ins.lock().close_all(self.sign_ins.started.elapsed());
        reports.iter().for_each(|report| self.tell(report));
    }

    fn tell(&self, report: &FailureReport) {
        let FailureReport { series, count, logged_after } = report;
        let (plane, reason) = (series.plane.name(), series.reason.name());
        let address = series.address.map(tracing::field::display);
        if let Some(left_out) = *logged_after {
            let left_out = (left_out > 0).then_some(left_out);
            tracing::warn!(plane, reason, address, count, left_out, "sign-ins failed");
        }
        let durable = &self.shared.durable;
        durable.audit.add(audit::sign_in_failures(report, durable.node().as_str()));
    }
}

/// Tells of failures whose minute is over, for as long as the broker lives.
pub(super) async fn close(broker: Weak<Broker>) {
    let mut tick = tokio::time::interval(SIGN_IN_CLOSE_INTERVAL);
    loop {
        tick.tick().await;
        let Some(broker) = broker.upgrade() else { return };
        let reports = broker.sign_ins.lock().close(broker.sign_ins.started.elapsed());
        reports.iter().for_each(|report| Arc::as_ref(&broker).tell(report));
    }
}
