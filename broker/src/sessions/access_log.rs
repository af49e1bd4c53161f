//! Decisions of access policies, in the log and in the metrics.

use protocol::{error::Refusal, method::Method};
use rules::access::{AccessCheck, Object, Subject, Verdict};

use super::tenant::Tenant;
use crate::metrics::Metrics;

/// Counts the decision about one request, and logs it unless it is a plain allow.
pub(super) fn note(metrics: &Metrics, tenant: &Tenant, subject: &Subject, check: AccessCheck<'_>) {
    let Some(noted) = check.into_noted() else {
        metrics.access.allowed();
        return;
    };
    metrics.access.decided(noted.verdict);
    let (rule, principal) = (noted.rule.as_deref(), subject.principal.as_str());
    let (object, verdict) = (noted.object.as_str(), noted.verdict.name());
    if noted.verdict != Verdict::Allow {
        tracing::info!(tenant = %tenant.id, principal, object, verdict, rule, "the access policy refuses a request");
    }
    if let Some((would, rule)) = &noted.shadow {
        metrics.access.shadowed(*would);
        let (would, rule) = (would.name(), rule.as_deref());
        tracing::info!(tenant = %tenant.id, principal, object, verdict, would, rule, "rules in shadow mode would decide otherwise");
    }
}

/// Refuses the use of an object that no list has to show. `absent` is the answer for a hidden one.
pub(super) fn check(
    metrics: &Metrics,
    tenant: &Tenant,
    subject: &Subject,
    (method, object): (Method, &Object<'_>),
    absent: impl FnOnce() -> Refusal,
) -> Result<(), Refusal> {
    let Some(view) = tenant.access(subject) else { return Ok(()) };
    let check = AccessCheck::new(&view, subject);
    let result = check.check_unlisted(method, object, absent);
    note(metrics, tenant, subject, check);
    result
}
