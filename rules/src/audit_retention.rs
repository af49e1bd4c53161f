//! Retention of the audit log. A longer one takes effect at once. A shorter one takes effect after
//! [`AUDIT_RETENTION_DELAY`], during which an operator can revert it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::limits::AUDIT_RETENTION_DELAY;

/// The retention terms, as they are signed and stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuditRetention {
    /// `None`: records are never removed.
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
    fn effective_from_us(&self) -> i64 {
        self.since_us.saturating_add(micros(AUDIT_RETENTION_DELAY))
    }
}

impl AuditRetention {
    /// Creates the terms of a log without terms. If the log holds records, none is removed before
    /// the delay has passed.
    pub fn initial(configured: Duration, now_us: i64, log_is_empty: bool) -> Self {
        let retain_seconds = configured.as_secs();
        if log_is_empty {
            return Self { retain_seconds: Some(retain_seconds), shortened: None };
        }
        Self {
            retain_seconds: None,
            shortened: Some(PendingRetention { retain_seconds, since_us: now_us }),
        }
    }

    /// Returns the terms after a start with this configuration. `None`: they do not change.
    pub fn reconfigure(&self, configured: Duration, now_us: i64) -> Option<Self> {
        let (held, wanted) = (self.effective_seconds(now_us), configured.as_secs());
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

    /// Returns the current retention. `None`: records are kept forever.
    pub fn effective(&self, now_us: i64) -> Option<Duration> {
        self.effective_seconds(now_us).map(Duration::from_secs)
    }

    /// Returns a shorter retention that is not in force yet, with the time from which it is.
    pub fn pending_reduction(&self, now_us: i64) -> Option<(Duration, i64)> {
        self.pending(now_us).map(|shortened| {
            (Duration::from_secs(shortened.retain_seconds), shortened.effective_from_us())
        })
    }

    fn pending(&self, now_us: i64) -> Option<&PendingRetention> {
        self.shortened.as_ref().filter(|shortened| now_us < shortened.effective_from_us())
    }

    fn effective_seconds(&self, now_us: i64) -> Option<u64> {
        match &self.shortened {
            Some(shortened) if now_us >= shortened.effective_from_us() => {
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
    fn s15_a_shorter_retention_waits_and_a_longer_one_does_not() {
        let year = AuditRetention::initial(YEAR, NOW, true);
        assert_eq!((year.effective(NOW), year.reconfigure(YEAR, NOW)), (Some(YEAR), None));
        let shorter = year.reconfigure(HOUR, NOW).unwrap();
        assert_eq!(shorter.effective(NOW + delay() - 1), Some(YEAR));
        assert_eq!(shorter.effective(NOW + delay()), Some(HOUR));
        assert_eq!(shorter.pending_reduction(NOW), Some((HOUR, NOW + delay())));
        assert_eq!(shorter.pending_reduction(NOW + delay()), None);
        let longer = year.reconfigure(2 * YEAR, NOW).unwrap();
        assert_eq!(longer.effective(NOW), Some(2 * YEAR));
    }

    #[test]
    fn s15_a_repeated_setting_changes_nothing_and_does_not_wait_again() {
        let shorter = AuditRetention::initial(YEAR, NOW, true).reconfigure(HOUR, NOW).unwrap();
        assert_eq!(shorter.reconfigure(HOUR, NOW + 1), None);
        assert_eq!(shorter.reconfigure(HOUR, NOW + delay()), None, "and it holds now");
    }

    #[test]
    fn s15_a_shorter_retention_can_be_reverted_before_it_applies() {
        let shorter = AuditRetention::initial(YEAR, NOW, true).reconfigure(HOUR, NOW).unwrap();
        let back = shorter.reconfigure(YEAR, NOW + 1).unwrap();
        assert_eq!(
            (back.effective(NOW + 2 * delay()), back.pending_reduction(NOW + 2)),
            (Some(YEAR), None)
        );
        let other = shorter.reconfigure(2 * HOUR, NOW + 1).unwrap();
        assert_eq!(
            other.effective(NOW + delay()),
            Some(YEAR),
            "another value waits from its own beginning"
        );
        assert_eq!(other.effective(NOW + 1 + delay()), Some(2 * HOUR));
        let late = shorter.reconfigure(YEAR, NOW + delay()).unwrap();
        assert_eq!(late.effective(NOW + delay()), Some(YEAR));
    }

    #[test]
    fn s15_without_terms_records_are_kept_until_the_delay_is_over() {
        let unknown = AuditRetention::initial(HOUR, NOW, false);
        assert_eq!(
            (unknown.effective(NOW + delay() - 1), unknown.effective(NOW + delay())),
            (None, Some(HOUR))
        );
        let still = unknown.reconfigure(2 * HOUR, NOW + 1).unwrap();
        assert_eq!(still.effective(NOW + delay()), None);
        let text = serde_json::to_string(&unknown).unwrap();
        assert_eq!(serde_json::from_str::<AuditRetention>(&text).unwrap(), unknown);
    }
}
