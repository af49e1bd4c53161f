//! Limits of approvals: calls that wait for the decision of a person.

use std::time::Duration;

/// Approvals of one principal that are pending.
pub const APPROVALS_PENDING_PER_PRINCIPAL_MAX: u64 = 20;
/// Approvals of one tenant that are pending.
pub const APPROVALS_PENDING_PER_TENANT_MAX: u64 = 1_000;
/// Arguments of a call that needs an approval.
pub const APPROVAL_ARGUMENTS_BYTES_MAX: usize = 64 * 1024;
/// Shortest time that a rule can give for a decision.
pub const APPROVAL_TTL_MIN: Duration = Duration::from_secs(1);
/// Time for a decision, and again for the use of it, if the rule has no other.
pub const APPROVAL_TTL_DEFAULT: Duration = Duration::from_secs(3_600);
/// Longest time that a rule can give for a decision.
pub const APPROVAL_TTL_MAX: Duration = Duration::from_secs(7 * 24 * 3_600);
/// Longest window of a decision.
pub const APPROVAL_WINDOW_MAX: Duration = Duration::from_secs(24 * 3_600);
/// Reason that an operator gives for a decision.
pub const APPROVAL_REASON_BYTES_MAX: usize = 1_024;
/// Entropy of the id of an approval.
pub const APPROVAL_ID_BYTES: usize = 16;
/// Interval at which a replica looks for decisions that its calls wait for.
pub const APPROVAL_POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Approvals of one look.
pub const APPROVAL_POLL_BATCH: usize = 1_000;
/// Time before the deadline of a call at which it is answered that it still waits.
pub const APPROVAL_ANSWER_MARGIN: Duration = Duration::from_secs(1);
/// Time for which the broker keeps denied and used approvals.
pub const APPROVAL_KEPT: Duration = Duration::from_secs(7 * 24 * 3_600);
/// Time for which the broker keeps expired approvals.
pub const APPROVAL_EXPIRED_KEPT: Duration = Duration::from_secs(3_600);

const _: () = assert!(APPROVALS_PENDING_PER_PRINCIPAL_MAX <= APPROVALS_PENDING_PER_TENANT_MAX);
const _: () = assert!(APPROVAL_TTL_MIN.as_millis() < APPROVAL_TTL_DEFAULT.as_millis());
const _: () = assert!(APPROVAL_TTL_DEFAULT.as_millis() < APPROVAL_TTL_MAX.as_millis());
const _: () = assert!(APPROVAL_POLL_INTERVAL.as_millis() < APPROVAL_ANSWER_MARGIN.as_millis()); // a decision just before the deadline is still seen
