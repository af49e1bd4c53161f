//! Failed sign-ins. Each is counted, and reported in the log and in the audit log. An address that
//! fails too often gets 429. Every listener calls this after the check of the credential.
//!
//! Invariant: a good credential never gets here, so it works from an address whose other sign-ins
//! fail.

use std::{
    net::IpAddr,
    sync::{Arc, Weak},
    time::Duration,
};

use protocol::error::{ErrorKind, Refusal};
use rules::{
    limits::sign_ins::SIGN_IN_CLOSE_INTERVAL,
    sign_in_failures::{FailureReport, Plane, SignInFailureReason},
};

use super::Broker;
use crate::{
    auth::{AuthError, RemotePeer},
    telemetry::audit,
    ticks::ticks,
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
            Some(wait) => too_many_sign_ins(wait),
        }
    }

    /// Refuses an address whose sign-ins have failed too often within the last minute.
    pub fn check_address(&self, remote: RemotePeer) -> Result<(), Refusal> {
        let per_minute = self.shared.config.limits.sign_in_failures_per_minute;
        let log = &self.failed_sign_ins;
        let now = log.started.elapsed();
        match remote.address.and_then(|address| log.lock().wait_of(now, address, per_minute)) {
            None => Ok(()),
            Some(wait) => {
                self.shared.metrics.rate_limited("sign_in_failures");
                Err(too_many_sign_ins(wait))
            }
        }
    }

    /// Counts and reports a failure. Returns `Some` wait if the address has failed too often.
    pub fn sign_in_failed(
        &self,
        plane: Plane,
        reason: SignInFailureReason,
        address: Option<IpAddr>,
    ) -> Option<Duration> {
        let metrics = &self.shared.metrics;
        metrics.tokens.sign_in_failed(plane, reason);
        let per_minute = self.shared.config.limits.sign_in_failures_per_minute;
        let verdict = self.failed_sign_ins.lock().record(
            self.failed_sign_ins.started.elapsed(),
            address,
            plane,
            reason,
            per_minute,
        );
        if let Some(report) = verdict.report {
            self.log_report(&report);
        }
        if verdict.wait.is_some() {
            metrics.rate_limited("sign_in_failures");
        }
        verdict.wait
    }

    /// Returns whether the log takes another line about one attempt to sign in, as the number of lines
    /// that were omitted before it. While an issuer or the database is away, a stranger can repeat an
    /// attempt that does not count as a failure of the address.
    pub fn attempt_line(&self) -> Option<u64> {
        let log = &self.failed_sign_ins;
        log.lock().log_attempt(log.started.elapsed())
    }

    /// Reports now the failures that would be reported at the end of each minute.
    pub fn report_sign_in_failures(&self) {
        let reports = self.failed_sign_ins.lock().drain_all(self.failed_sign_ins.started.elapsed());
        reports.iter().for_each(|report| self.log_report(report));
    }

    fn log_report(&self, report: &FailureReport) {
        let FailureReport { series, count, logged_after } = report;
        let (plane, reason) = (series.plane.name(), series.reason.name());
        let address = series.address.map(tracing::field::display);
        if let Some(left_out) = *logged_after {
            let left_out = (left_out > 0).then_some(left_out);
            tracing::warn!(plane, reason, address, count, left_out, "sign-ins failed");
        }
        let persistence = &self.shared.persistence;
        persistence.audit.add(audit::sign_in_failures(report, persistence.node().as_str()));
    }
}

fn too_many_sign_ins(wait: Duration) -> Refusal {
    let text = "too many sign-ins from this address failed within a minute, and this credential is not known to be valid";
    Refusal::new(ErrorKind::TooManySignIns, text).retry_after(wait)
}

/// Reports the failures of each minute that is over, until the broker is dropped.
pub(super) async fn run_reports(broker: Weak<Broker>) {
    let mut tick = ticks(SIGN_IN_CLOSE_INTERVAL);
    loop {
        tick.tick().await;
        let Some(broker) = broker.upgrade() else { return };
        let reports =
            broker.failed_sign_ins.lock().drain_expired(broker.failed_sign_ins.started.elapsed());
        reports.iter().for_each(|report| Arc::as_ref(&broker).log_report(report));
    }
}
