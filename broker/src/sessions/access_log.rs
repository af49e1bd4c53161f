//! Decisions of access policies, in the log and in the metrics.

use std::time::{SystemTime, UNIX_EPOCH};

use protocol::{error::Refusal, method::Method};
use rules::{
    access::{AccessCheck, Object, Subject, Verdict},
    endpoint::Endpoint,
};

use super::tenant::Tenant;
use crate::telemetry::request;

/// Counts the decision about one request, adds it to the request's span, and logs it. A plain allow
/// is logged only for debugging, and for requests whose trace is sampled. A request without an
/// object, such as one for an unknown name, has no decision.
pub(super) fn record(tenant: &Tenant, subject: &Subject, check: AccessCheck<'_>) {
    if !check.has_decided() {
        return;
    }
    let metrics = &tenant.shared.metrics;
    let Some(recorded) = check.into_recorded() else {
        metrics.access.allowed();
        let is_traced = request::with_current(|request| {
            request.record_decision(Verdict::Allow.name(), None);
            request.is_sampled()
        });
        if is_traced == Some(true) {
            let principal = subject.principal.as_str();
            tracing::debug!(tenant = %tenant.id, principal, "the access policy allows a request");
        }
        return;
    };
    metrics.access.decided(recorded.verdict);
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    tenant.record_decision(since_epoch, &recorded, subject);
    let _outside = request::with_current(|request| {
        request.record_decision(recorded.verdict.name(), recorded.rule.clone());
    });
    let (rule, principal) = (recorded.rule.as_deref(), subject.principal.as_str());
    let (object, verdict) = (recorded.object.as_str(), recorded.verdict.name());
    match recorded.verdict {
        Verdict::Allow => {}
        Verdict::Approve => {
            tracing::debug!(tenant = %tenant.id, principal, object, verdict, rule, "the access policy asks for an approval");
        }
        Verdict::Deny | Verdict::Challenge => {
            tracing::info!(tenant = %tenant.id, principal, object, verdict, rule, "the access policy refuses a request");
        }
    }
    if let Some((would, rule)) = &recorded.shadow {
        metrics.access.shadowed(*would);
        let (would, rule) = (would.name(), rule.as_deref());
        tracing::info!(tenant = %tenant.id, principal, object, verdict, would, rule, "rules in shadow mode would decide otherwise");
    }
}

/// Position of a check among those of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CheckAttempt {
    First,
    /// A repetition during the wait of the request. Only a refusal is a new decision.
    Repeated,
}

/// Refuses a tool that the subject may not use, also if no list shows the tool. `absent` is the
/// answer for a hidden one.
pub(super) fn check_tool(
    tenant: &Tenant,
    endpoint: &Endpoint,
    subject: &Subject,
    object: &Object<'_>,
    absent: impl FnOnce() -> Refusal,
    attempt: CheckAttempt,
) -> Result<(), Refusal> {
    let Some(view) = tenant.access(endpoint, subject) else { return Ok(()) };
    let check = AccessCheck::new(&view, subject);
    let result = check.check_unlisted(Method::ToolsCall, object, absent);
    if attempt == CheckAttempt::First || result.is_err() {
        record(tenant, subject, check);
    }
    result
}
