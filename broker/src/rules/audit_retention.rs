//! How long the audit log is kept. A longer time takes effect at once. A shorter one takes effect after a delay, in which it can
//! be noticed and taken back.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::limits::AUDIT_RETENTION_DELAY;

/// What was agreed on, as it is signed and stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuditRetention {
    /// `None`: nothing is removed.
    retain_seconds: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shortened: Option<PendingRetention>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PendingRetention {
    retain_seconds: u64,
    since_us: i64,
}

impl PendingRetention {
    fn holds_from_us(&self) -> i64 {
        self.since_us.saturating_add(micros(AUDIT_RETENTION_DELAY))
    }
}

impl AuditRetention {
    /// For a log without terms. Where the log holds records, nothing is removed before the delay is over.
    pub fn first(configured: Duration, now_us: i64, log_is_empty: bool) -> Self {
        let retain_seconds = configured.as_secs();
        if log_is_empty {
            return Self { retain_seconds: Some(retain_seconds), shortened: None };
        }
        Self {
            retain_seconds: None,
            shortened: Some(PendingRetention { retain_seconds, since_us: now_us }),
        }
    }

    /// The terms after a start with this configuration. `None`: they stay as they are.
    pub fn declared(&self, configured: Duration, now_us: i64) -> Option<Self> {
        let (held, wanted) = (self.held(now_us), configured.as_secs());
        let pending = self.pending(now_us).map(|shortened| shortened.retain_seconds);
        if pending.or(held) == Some(wanted) {
            return None;
        }
        Some(match held {
            Some(held) if held <= wanted => Self { retain_seconds: Some(wanted), shortened: None },
            held => Self {
                retain_seconds: held,
                shortened: Some(PendingRetention { retain_seconds: wanted, since_us: now_us }),
            },
        })
    }

    /// For how long records are kept now. `None`: for ever.
    pub fn in_force(&self, now_us: i64) -> Option<Duration> {
        self.held(now_us).map(Duration::from_secs)
    }

    /// A shorter time that does not hold yet, and when it will.
    pub fn announced(&self, now_us: i64) -> Option<(Duration, i64)> {
        self.pending(now_us).map(|shortened| {
            (Duration::from_secs(shortened.retain_seconds), shortened.holds_from_us())
        })
    }

    fn pending(&self, now_us: i64) -> Option<&PendingRetention> {
        self.shortened.as_ref().filter(|shortened| now_us < shortened.holds_from_us())
    }

    fn held(&self, now_us: i64) -> Option<u64> {
        match &self.shortened {
            Some(shortened) if now_us >= shortened.holds_from_us() => {
                Some(shortened.retain_seconds)
            }
            _ => self.retain_seconds,
        }
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);
    const YEAR: Duration = Duration::from_secs(365 * 86_400);
    const NOW: i64 = 1_800_000_000_000_000;

    fn delay() -> i64 {
        micros(AUDIT_RETENTION_DELAY)
    }

    #[test]
    fn s15_a_shorter_time_waits_and_a_longer_one_does_not() {
        let year = AuditRetention::first(YEAR, NOW, true);
        assert_eq!((year.in_force(NOW), year.declared(YEAR, NOW)), (Some(YEAR), None));
        let shorter = year.declared(HOUR, NOW).unwrap();
        assert_eq!(shorter.in_force(NOW + delay() - 1), Some(YEAR));
        assert_eq!(shorter.in_force(NOW + delay()), Some(HOUR));
        assert_eq!(shorter.announced(NOW), Some((HOUR, NOW + delay())));
        assert_eq!(shorter.announced(NOW + delay()), None);
        let longer = year.declared(2 * YEAR, NOW).unwrap();
        assert_eq!(longer.in_force(NOW), Some(2 * YEAR));
    }

    #[test]
    fn s15_saying_the_same_again_changes_nothing_and_does_not_wait_again() {
        let shorter = AuditRetention::first(YEAR, NOW, true).declared(HOUR, NOW).unwrap();
        assert_eq!(shorter.declared(HOUR, NOW + 1), None);
        assert_eq!(shorter.declared(HOUR, NOW + delay()), None, "and it holds now");
    }

    #[test]
    fn s15_a_shorter_time_can_be_taken_back_before_it_holds() {
        let shorter = AuditRetention::first(YEAR, NOW, true).declared(HOUR, NOW).unwrap();
        let back = shorter.declared(YEAR, NOW + 1).unwrap();
        assert_eq!((back.in_force(NOW + 2 * delay()), back.announced(NOW + 2)), (Some(YEAR), None));
        let other = shorter.declared(2 * HOUR, NOW + 1).unwrap();
        assert_eq!(
            other.in_force(NOW + delay()),
            Some(YEAR),
            "another value waits from its own beginning"
        );
        assert_eq!(other.in_force(NOW + 1 + delay()), Some(2 * HOUR));
        let late = shorter.declared(YEAR, NOW + delay()).unwrap();
        assert_eq!(late.in_force(NOW + delay()), Some(YEAR));
    }

    #[test]
    fn s15_without_terms_records_are_kept_until_the_delay_is_over() {
        let unknown = AuditRetention::first(HOUR, NOW, false);
        assert_eq!(
            (unknown.in_force(NOW + delay() - 1), unknown.in_force(NOW + delay())),
            (None, Some(HOUR))
        );
        let still = unknown.declared(2 * HOUR, NOW + 1).unwrap();
        assert_eq!(still.in_force(NOW + delay()), None);
        let text = serde_json::to_string(&unknown).unwrap();
        assert_eq!(serde_json::from_str::<AuditRetention>(&text).unwrap(), unknown);
    }
}
