//! Recent refusals and errors of clients' requests, for operators: the newest of this process, in
//! memory. They hold no arguments and no results.
//!
//! Filled at the end of a request by [`crate::sessions::request_observer`], read by the admin API.
//! A request that succeeds under a plain allow leaves nothing here.

use std::{collections::VecDeque, sync::Arc, time::Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use protocol::{json, method::Method};
use rules::limits::console::{ACTIVITY_ENTRIES_MAX, ACTIVITY_TEXT_CHARS_MAX};

use super::{audit::masked, request::RequestTelemetry, secrets};
use crate::{auth::Caller, metrics::RequestOutcome, views::ActivityEntry};

/// The request of a client, until it ends. Nearly every request succeeds, so that nothing
/// is copied or decoded before the end.
#[derive(Debug)]
pub struct RequestSummary {
    pub transport: &'static str,
    pub method: Method,
    pub target: Option<RequestTarget>,
    pub started_at: Instant,
}

/// Tool, prompt or resource, under the client's name for it: a JSON string as it was sent. A task has
/// its digest instead, because its id can be a secret.
#[derive(Debug, PartialEq, Eq)]
pub enum RequestTarget {
    Name(Bytes),
    Uri(Bytes),
}

impl RequestTarget {
    /// Returns the target as text, with the secrets in a URI masked. `None` if it is not a string.
    pub fn text(&self) -> Option<String> {
        match self {
            Self::Name(raw) => json::unquote(raw).map(|name| name.into_owned()),
            Self::Uri(raw) => json::unquote(raw).map(|uri| secrets::mask_uri(&uri)),
        }
    }
}

/// The newest refusals and errors.
#[derive(Debug, Default)]
pub struct ActivityLog(Mutex<Recent>);

#[derive(Debug, Default)]
struct Recent {
    /// Number of the newest entry.
    last: u64,
    /// Oldest first.
    entries: VecDeque<Arc<ActivityEntry>>,
}

impl ActivityLog {
    /// Notes the end of a caller's request that failed, or that the access policy did not plainly
    /// allow.
    pub fn record(
        &self,
        request: &RequestTelemetry,
        caller: &Caller,
        outcome: RequestOutcome,
        error: Option<&str>,
    ) {
        let is_decided =
            request.decision().is_some_and(|(verdict, rule)| *verdict != "allow" || rule.is_some());
        let has_failed = !matches!(outcome, RequestOutcome::Ok | RequestOutcome::Cancelled);
        let Some(summary) = request.summary.as_ref().filter(|_| has_failed || is_decided) else {
            return;
        };
        let (verdict, rule) = request.decision().cloned().unzip();
        self.add(ActivityEntry {
            number: 0,
            at: jiff::Timestamp::now().to_string(),
            tenant: caller.tenant.to_string(),
            principal: caller.principal.to_string(),
            transport: summary.transport.to_owned(),
            method: summary.method.name().to_owned(),
            target: summary
                .target
                .as_ref()
                .and_then(RequestTarget::text)
                .map(|target| shortened(&masked(&target))),
            backend: request.backend().map(ToString::to_string),
            outcome: outcome.label().to_owned(),
            error: error.map(str::to_owned),
            verdict: verdict.map(str::to_owned),
            rule: rule.flatten().as_deref().map(shortened),
            duration_ms: summary.started_at.elapsed().as_secs_f64() * 1_000.0,
            request_id: request.name.to_string(),
            trace_id: request.trace().map(|trace| trace.to_string()),
        });
    }

    fn add(&self, entry: ActivityEntry) {
        let mut recent = self.0.lock();
        recent.last += 1;
        let number = recent.last;
        if recent.entries.len() == ACTIVITY_ENTRIES_MAX {
            recent.entries.pop_front();
        }
        recent.entries.push_back(Arc::new(ActivityEntry { number, ..entry }));
    }

    /// Returns up to `limit` of the newest entries after a number that pass a filter, oldest first.
    pub fn newest(
        &self,
        after: u64,
        limit: usize,
        passes: impl Fn(&ActivityEntry) -> bool,
    ) -> Vec<Arc<ActivityEntry>> {
        let recent = self.0.lock();
        let newer = recent.entries.iter().rev().take_while(|entry| entry.number > after);
        let mut found: Vec<_> =
            newer.filter(|entry| passes(entry)).take(limit).map(Arc::clone).collect();
        found.reverse();
        found
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(ACTIVITY_TEXT_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use protocol::ids::{PrincipalId, TenantId};

    use super::*;
    use crate::telemetry::request::RequestName;

    fn request(target: &str) -> Arc<RequestTelemetry> {
        let summary = RequestSummary {
            transport: "http",
            method: Method::ToolsCall,
            target: Some(RequestTarget::Name(json::quote(target).into())),
            started_at: Instant::now(),
        };
        RequestTelemetry::new(RequestName(7), None, None, Some(summary))
    }

    fn ann() -> Caller {
        Caller::new(TenantId::parse("acme").unwrap(), PrincipalId::new("ann"), None)
    }

    #[test]
    fn failures_and_decisions_are_recorded_and_plain_successes_are_not() {
        let log = ActivityLog::default();
        log.record(&request("fine"), &ann(), RequestOutcome::Ok, None);
        log.record(&request("slow"), &ann(), RequestOutcome::Timeout, Some("timeout"));
        let denied = request("secret");
        denied.record_decision("deny", Some("no-secrets".to_owned()));
        log.record(&denied, &ann(), RequestOutcome::Refused, Some("unknown_tool"));
        let found = log.newest(0, 10, |_| true);
        let targets: Vec<_> = found.iter().map(|entry| entry.target.as_deref().unwrap()).collect();
        assert_eq!(targets, ["slow", "secret"]);
        assert_eq!(found[1].rule.as_deref(), Some("no-secrets"));
        assert_eq!(found[1].verdict.as_deref(), Some("deny"));
        assert_eq!(log.newest(found[0].number, 10, |_| true).len(), 1, "newer ones only");
        assert_eq!(log.newest(0, 1, |_| true)[0].number, 2, "the newest ones");
        assert!(log.newest(0, 10, |entry| entry.tenant == "zoo").is_empty());
    }

    #[test]
    fn the_log_keeps_the_newest_entries_only() {
        let log = ActivityLog::default();
        for number in 0..=ACTIVITY_ENTRIES_MAX {
            log.record(&request(&format!("t{number}")), &ann(), RequestOutcome::Error, None);
        }
        let found = log.newest(0, usize::MAX, |_| true);
        assert_eq!(found.len(), ACTIVITY_ENTRIES_MAX);
        assert_eq!(found[0].target.as_deref(), Some("t1"));
    }

    #[test]
    fn long_targets_are_cut() {
        let log = ActivityLog::default();
        log.record(&request(&"x".repeat(10_000)), &ann(), RequestOutcome::Error, None);
        let target = log.newest(0, 1, |_| true)[0].target.clone().unwrap();
        assert_eq!(target.chars().count(), ACTIVITY_TEXT_CHARS_MAX);
    }
}
