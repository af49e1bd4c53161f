//! Counts of the decisions of a policy, for operators: which rules refuse requests, and which rules
//! in shadow mode would. In memory, for one tenant, bounded.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use super::{RecordedDecision, Verdict};
use crate::limits::access::{
    POLICY_REPORT_AGE_MAX, POLICY_REPORT_ROWS_MAX, POLICY_REPORT_SAMPLES_MAX,
};

/// Time that one count covers.
const INTERVAL: Duration = Duration::from_secs(300);
/// Longest text of a sample, in characters.
const SAMPLE_CHARS_MAX: usize = 256;

/// Decisions other than a plain allow, by rule.
#[derive(Debug, Default)]
pub struct DecisionReport {
    rows: BTreeMap<RowKey, RowCounts>,
}

/// Rule, verdict, and whether the rule is in shadow mode.
type RowKey = (Option<String>, Verdict, bool);

#[derive(Debug, Default)]
struct RowCounts {
    /// Number of an interval since 1970, and the decisions in it. The oldest comes first.
    intervals: VecDeque<(u64, u64)>,
    last: Duration,
    principals: Vec<String>,
    objects: Vec<String>,
}

/// The decisions of one rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecisionRow {
    /// Id of the rule. `None`: the default decided.
    pub rule: Option<String>,
    pub verdict: Verdict,
    /// True if the verdict would follow from rules in shadow mode.
    pub is_shadow: bool,
    pub count: u64,
    /// Time of the last decision, since 1970.
    pub last: Duration,
    /// Some of the principals and objects.
    pub principals: Vec<String>,
    pub objects: Vec<String>,
}

impl DecisionReport {
    /// Adds a decision. `now` is the time since 1970.
    pub fn record(&mut self, now: Duration, recorded: &RecordedDecision, principal: &str) {
        if recorded.verdict != Verdict::Allow {
            self.add(now, (recorded.rule.clone(), recorded.verdict, false), recorded, principal);
        }
        if let Some((would, rule)) = &recorded.shadow {
            self.add(now, (rule.clone(), *would, true), recorded, principal);
        }
    }

    fn add(&mut self, now: Duration, key: RowKey, recorded: &RecordedDecision, principal: &str) {
        if self.rows.len() >= POLICY_REPORT_ROWS_MAX && !self.rows.contains_key(&key) {
            let oldest = now.saturating_sub(POLICY_REPORT_AGE_MAX);
            self.rows.retain(|_, row| row.last >= oldest);
            if self.rows.len() >= POLICY_REPORT_ROWS_MAX {
                return;
            }
        }
        let row = self.rows.entry(key).or_default();
        let interval = interval_of(now);
        match row.intervals.back_mut() {
            Some((last, count)) if *last == interval => *count += 1,
            _ => row.intervals.push_back((interval, 1)),
        }
        let oldest = interval_of(now.saturating_sub(POLICY_REPORT_AGE_MAX));
        while row.intervals.front().is_some_and(|(interval, _)| *interval < oldest) {
            row.intervals.pop_front();
        }
        row.last = now;
        add_sample(&mut row.principals, principal);
        add_sample(&mut row.objects, &recorded.object);
    }

    /// Returns the decisions since `since`, the most frequent first.
    pub fn rows(&self, since: Duration) -> Vec<DecisionRow> {
        let first = interval_of(since);
        let counted = self.rows.iter().map(|((rule, verdict, is_shadow), row)| DecisionRow {
            rule: rule.clone(),
            verdict: *verdict,
            is_shadow: *is_shadow,
            count: row
                .intervals
                .iter()
                .filter(|(interval, _)| *interval >= first)
                .map(|(_, count)| count)
                .sum(),
            last: row.last,
            principals: row.principals.clone(),
            objects: row.objects.clone(),
        });
        let mut rows: Vec<DecisionRow> = counted.filter(|row| row.count > 0).collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.count));
        rows
    }
}

fn interval_of(time: Duration) -> u64 {
    time.as_secs() / INTERVAL.as_secs()
}

fn add_sample(samples: &mut Vec<String>, text: &str) {
    let text: String = text.chars().take(SAMPLE_CHARS_MAX).collect();
    if samples.len() < POLICY_REPORT_SAMPLES_MAX && !samples.contains(&text) {
        samples.push(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(verdict: Verdict, rule: &str, shadow: Option<Verdict>) -> RecordedDecision {
        RecordedDecision {
            verdict,
            rule: Some(rule.to_owned()),
            shadow: shadow.map(|verdict| (verdict, Some("s".to_owned()))),
            object: "files/write".to_owned(),
        }
    }

    const DAY: Duration = Duration::from_secs(86_400);

    #[test]
    fn decisions_are_counted_by_rule_and_mode_since_a_time() {
        let mut report = DecisionReport::default();
        let at = |minutes: u64| DAY * 3 + Duration::from_secs(minutes * 60);
        for minute in [0, 1, 90] {
            report.record(at(minute), &recorded(Verdict::Deny, "d", Some(Verdict::Allow)), "ann");
        }
        report.record(at(91), &recorded(Verdict::Allow, "", Some(Verdict::Deny)), "bob");
        let all = report.rows(at(0));
        let counts: Vec<_> = all
            .iter()
            .map(|row| (row.rule.as_deref().unwrap(), row.verdict, row.is_shadow, row.count))
            .collect();
        assert_eq!(
            counts,
            [
                ("d", Verdict::Deny, false, 3),
                ("s", Verdict::Allow, true, 3),
                ("s", Verdict::Deny, true, 1)
            ]
        );
        assert_eq!(
            (&all[0].principals[..], &all[2].principals[..]),
            (&["ann".to_owned()][..], &["bob".to_owned()][..])
        );
        assert_eq!(report.rows(at(60))[0].count, 1);
        report.record(at(0) + DAY * 2, &recorded(Verdict::Deny, "d", None), "ann");
        assert_eq!(report.rows(Duration::ZERO)[2].count, 1, "older counts are gone: {report:?}");
    }

    #[test]
    fn a_report_is_bounded() {
        let mut report = DecisionReport::default();
        for number in 0..POLICY_REPORT_ROWS_MAX + 10 {
            let mut decision = recorded(Verdict::Deny, &format!("r{number}"), None);
            decision.object = "x".repeat(10_000);
            report.record(DAY, &decision, "ann");
            for principal in 0..20 {
                report.record(DAY, &recorded(Verdict::Deny, "r0", None), &format!("p{principal}"));
            }
        }
        let rows = report.rows(Duration::ZERO);
        assert_eq!(rows.len(), POLICY_REPORT_ROWS_MAX);
        assert!(rows.iter().all(|row| row.principals.len() <= POLICY_REPORT_SAMPLES_MAX));
        assert!(rows.iter().all(|row| row.objects[0].len() <= SAMPLE_CHARS_MAX));
        report.record(DAY * 3, &recorded(Verdict::Deny, "new", None), "ann");
        assert_eq!(report.rows(DAY * 3).len(), 1, "old rows make room");
    }
}
