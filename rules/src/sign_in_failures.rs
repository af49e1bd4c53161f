//! Failed sign-ins by address: their number within a minute, their reports, and the wait of an
//! address.
//!
//! `broker::sign_in_failures` calls it and has the clock. Invariants: addresses and series are
//! bounded, whatever strangers send. Every reported failure is part of exactly one report.

use std::{collections::HashMap, net::IpAddr, time::Duration};

use super::{
    client_network::client_network,
    local_rate_limit::{KeyedRateLimiter, LocalRateLimiter, one_per, per_minute},
};
use crate::limits::sign_ins::{SIGN_IN_ADDRESSES_MAX, SIGN_IN_LOG_LINES_MAX, SIGN_IN_WINDOW};

/// The listener at which a sign-in failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Plane {
    /// The listeners of clients.
    Data,
    /// The listener of operators.
    Admin,
    /// The listener of other replicas.
    Internal,
}

impl Plane {
    pub const ALL: [Self; 3] = [Self::Data, Self::Admin, Self::Internal];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Admin => "admin",
            Self::Internal => "internal",
        }
    }
}

/// The reason of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SignInFailureReason {
    /// No credential, although one is required. In this way clients discover how to get one.
    Missing,
    /// A credential in an unsupported form.
    Malformed,
    /// An API key that is unknown or revoked, or of a tenant that is disabled.
    ApiKey,
    /// A token that is not valid here.
    Token,
    /// A token that was valid here and has expired.
    ExpiredToken,
    /// A certificate without a known principal.
    Certificate,
    /// A credential of a tenant that is not served.
    Tenant,
    /// A one-time link that is not valid, a login of a browser that failed at its issuer, or a
    /// forwarded token request that its issuer refused.
    Login,
    /// A wrong admin token.
    AdminToken,
    /// No certificate, or one that is not of a replica.
    PeerCertificate,
}

impl SignInFailureReason {
    pub const ALL: [Self; 10] = [
        Self::Missing,
        Self::Malformed,
        Self::ApiKey,
        Self::Token,
        Self::ExpiredToken,
        Self::Certificate,
        Self::Tenant,
        Self::Login,
        Self::AdminToken,
        Self::PeerCertificate,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Malformed => "malformed",
            Self::ApiKey => "api_key",
            Self::Token => "token",
            Self::ExpiredToken => "expired_token",
            Self::Certificate => "certificate",
            Self::Tenant => "tenant",
            Self::Login => "login",
            Self::AdminToken => "admin_token",
            Self::PeerCertificate => "peer_certificate",
        }
    }

    /// Returns whether the failure may be an attack. A request for discovery is not one, and
    /// neither is an expired token.
    const fn is_suspicious(self) -> bool {
        !matches!(self, Self::Missing | Self::ExpiredToken)
    }
}

/// Key of the failures that are reported together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FailureSeries {
    /// The address, as [`client_network`] groups it. `None` for an unknown peer address, and for
    /// the addresses that exceed the limit.
    pub address: Option<IpAddr>,
    pub plane: Plane,
    pub reason: SignInFailureReason,
}

/// A report of failures: the first of a series at once, the others at the end of its minute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailureReport {
    pub series: FailureSeries,
    pub count: u64,
    /// Number of reports that were not logged before this one. `None`: too many lines were logged
    /// within a minute, so this one is not logged.
    pub logged_after: Option<u64>,
}

/// The outcome of one failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailureVerdict {
    /// Wait of an address with too many failures within a minute. It gets this wait as an answer.
    pub wait: Option<Duration>,
    pub report: Option<FailureReport>,
}

/// Failures of the last minute.
#[derive(Debug)]
pub struct SignInFailures {
    /// Failures by address. One passes per minute, and the suppressed ones are counted.
    addresses: KeyedRateLimiter<IpAddr>,
    /// Failures by series. One per minute is reported at once, the others at the end of the minute.
    series: HashMap<FailureSeries, LocalRateLimiter>,
    /// Log lines. The next line holds the number of omitted ones.
    lines: LocalRateLimiter,
    /// Log lines about single attempts of strangers.
    attempt_lines: LocalRateLimiter,
}

impl Default for SignInFailures {
    fn default() -> Self {
        Self {
            addresses: KeyedRateLimiter::new(one_per(SIGN_IN_WINDOW), SIGN_IN_ADDRESSES_MAX),
            series: HashMap::new(),
            lines: LocalRateLimiter::new(per_minute(SIGN_IN_LOG_LINES_MAX as u32)),
            attempt_lines: LocalRateLimiter::new(per_minute(SIGN_IN_LOG_LINES_MAX as u32)),
        }
    }
}

impl SignInFailures {
    /// Handles one failure. `per_minute` failures of an address get their normal answer, 0 means
    /// any number.
    pub fn record(
        &mut self,
        now: Duration,
        address: Option<IpAddr>,
        plane: Plane,
        reason: SignInFailureReason,
        per_minute: u32,
    ) -> FailureVerdict {
        if !reason.is_suspicious() {
            return FailureVerdict { wait: None, report: None };
        }
        let address = address.map(client_network);
        let wait = address
            .filter(|_| per_minute > 0)
            .and_then(|address| self.wait(now, address, per_minute));
        FailureVerdict {
            wait,
            report: self.report_if_due(now, FailureSeries { address, plane, reason }),
        }
    }

    /// Counts a log line about one attempt of a stranger. Returns the number of lines that were
    /// omitted before it. `None`: this one is omitted too.
    pub fn log_attempt(&mut self, now: Duration) -> Option<u64> {
        self.attempt_lines.check(now).ok()
    }

    /// Returns the reports of the series whose minute is over.
    pub fn drain_expired(&mut self, now: Duration) -> Vec<FailureReport> {
        self.addresses.forget_idle(now);
        let over: Vec<(FailureSeries, u64)> = self
            .series
            .extract_if(|_, minute| minute.is_free(now))
            .map(|(of, minute)| (of, minute.suppressed()))
            .collect();
        over.into_iter()
            .filter(|(_, count)| *count > 0)
            .map(|(series, count)| self.report(now, series, count))
            .collect()
    }

    /// Returns the reports of all series, at the end of the process.
    pub fn drain_all(&mut self, now: Duration) -> Vec<FailureReport> {
        self.drain_expired(now + SIGN_IN_WINDOW)
    }

    /// Returns the wait that the next failure of the address would get. Counts nothing.
    pub fn wait_of(&self, now: Duration, address: IpAddr, per_minute: u32) -> Option<Duration> {
        if per_minute == 0 {
            return None;
        }
        let exceeded = self.addresses.peek(&client_network(address), now).err()?;
        (1 + exceeded.suppressed > u64::from(per_minute)).then_some(exceeded.retry_after)
    }

    /// Returns the rest of the minute in which the address failed too often.
    fn wait(&mut self, now: Duration, address: IpAddr, per_minute: u32) -> Option<Duration> {
        let exceeded = self.addresses.check(&address, now).err()?;
        // The first failure of a minute passed.
        (1 + exceeded.suppressed > u64::from(per_minute)).then_some(exceeded.retry_after)
    }

    fn report_if_due(&mut self, now: Duration, series: FailureSeries) -> Option<FailureReport> {
        // A minute that is over frees capacity when it is closed, which is soon.
        let has_capacity =
            self.series.contains_key(&series) || self.series.len() < SIGN_IN_ADDRESSES_MAX;
        let series = if has_capacity { series } else { FailureSeries { address: None, ..series } };
        let minute = self
            .series
            .entry(series)
            .or_insert_with(|| LocalRateLimiter::new(one_per(SIGN_IN_WINDOW)));
        // The report includes failures of an earlier minute that is not closed yet.
        let earlier = minute.check(now).ok()?;
        Some(self.report(now, series, earlier + 1))
    }

    fn report(&mut self, now: Duration, series: FailureSeries, count: u64) -> FailureReport {
        FailureReport { series, count, logged_after: self.lines.check(now).ok() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_secs(100);

    fn at(seconds: u64) -> Duration {
        START + Duration::from_secs(seconds)
    }

    fn address(number: u32) -> IpAddr {
        IpAddr::from(std::net::Ipv4Addr::from_bits(number))
    }

    fn record(failures: &mut SignInFailures, now: Duration, of: IpAddr) -> FailureVerdict {
        failures.record(now, Some(of), Plane::Admin, SignInFailureReason::AdminToken, 3)
    }

    #[test]
    fn s08_an_address_with_too_many_failures_waits_until_the_minute_ends() {
        let mut failures = SignInFailures::default();
        let waits =
            |failures: &mut SignInFailures, seconds| record(failures, at(seconds), address(1)).wait;
        assert_eq!([0, 1, 2].map(|seconds| waits(&mut failures, seconds)), [None; 3]);
        assert_eq!(waits(&mut failures, 20), Some(Duration::from_secs(40)));
        assert_eq!(
            record(&mut failures, at(20), address(2)).wait,
            None,
            "another address is another's"
        );
        assert_eq!(waits(&mut failures, 60), None);
        let unlimited = (0..1_000).map(|_| {
            failures
                .record(at(61), Some(address(3)), Plane::Data, SignInFailureReason::Token, 0)
                .wait
        });
        assert!(unlimited.eq(std::iter::repeat_n(None, 1_000)));
        let polite = |reason| {
            (0..100).all(|_| {
                SignInFailures::default()
                    .record(START, Some(address(4)), Plane::Data, reason, 1)
                    .wait
                    .is_none()
            })
        };
        assert!(polite(SignInFailureReason::Missing) && polite(SignInFailureReason::ExpiredToken));
    }

    #[test]
    fn s08_the_first_failure_is_reported_at_once_and_the_others_as_a_count() {
        let mut failures = SignInFailures::default();
        let series = FailureSeries {
            address: Some(address(1)),
            plane: Plane::Admin,
            reason: SignInFailureReason::AdminToken,
        };
        let report = |count| FailureReport { series, count, logged_after: Some(0) };
        assert_eq!(record(&mut failures, START, address(1)).report, Some(report(1)));
        assert!((0..41).all(|_| record(&mut failures, at(1), address(1)).report.is_none()));
        assert_eq!(failures.drain_expired(at(59)), []);
        assert_eq!(failures.drain_expired(at(60)), [report(41)]);
        assert_eq!(
            record(&mut failures, at(61), address(1)).report,
            Some(report(1)),
            "another minute"
        );
        assert_eq!(failures.drain_expired(at(200)), [], "it was told");
        record(&mut failures, at(200), address(1));
        record(&mut failures, at(200), address(1));
        assert_eq!(failures.drain_all(at(200)), [report(1)]);
        assert!(failures.series.is_empty() && failures.addresses.is_empty());
    }

    #[test]
    fn s08_lines_about_attempts_are_bounded_and_omitted_ones_are_counted() {
        let mut failures = SignInFailures::default();
        for _ in 0..SIGN_IN_LOG_LINES_MAX {
            assert_eq!(failures.log_attempt(START), Some(0));
        }
        assert_eq!([(); 3].map(|()| failures.log_attempt(START)), [None; 3]);
        assert_eq!(failures.log_attempt(at(60)), Some(3));
    }

    #[test]
    fn s08_failed_sign_ins_cannot_fill_a_table_or_the_log() {
        let mut failures = SignInFailures::default();
        let many = u32::try_from(SIGN_IN_ADDRESSES_MAX).unwrap() * 3;
        let (mut reported, mut lines) = (0, 0);
        for number in 0..many {
            let judged = record(&mut failures, START, address(number));
            reported += judged.report.map_or(0, |report| report.count);
            lines += u64::from(judged.report.is_some_and(|report| report.logged_after.is_some()));
        }
        assert!(
            failures.addresses.len() <= SIGN_IN_ADDRESSES_MAX
                && failures.series.len() <= SIGN_IN_ADDRESSES_MAX + 27
        );
        assert_eq!(lines, SIGN_IN_LOG_LINES_MAX);
        assert!(
            record(&mut failures, START, address(many)).wait.is_some(),
            "further addresses share one window"
        );
        let rest = failures.drain_expired(at(60));
        assert_eq!(
            reported + rest.iter().map(|report| report.count).sum::<u64>(),
            u64::from(many) + 1,
            "each is told once"
        );
        let left_out = reported - SIGN_IN_LOG_LINES_MAX;
        assert_eq!(
            rest.first().and_then(|report| report.logged_after),
            Some(left_out),
            "how many reports were left out is told"
        );
    }
}
