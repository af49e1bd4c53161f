//! Limits of what replicas share: permits of tenants and principals, verdicts about backends, and
//! counts of stored rows.

use std::time::Duration;

/// Time after which the permits of a killed replica are free for the others.
pub const PERMITS_LEASE: Duration = Duration::from_secs(3);
/// Interval at which a replica renews its permits.
pub const PERMITS_RENEW_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which a replica returns permits that it does not use.
pub const PERMITS_RETURN_INTERVAL: Duration = Duration::from_millis(100);
/// Time for which a replica refuses without asking Redis, after it got no further permit.
pub const PERMITS_REFUSED_FOR: Duration = Duration::from_millis(50);
/// Permits for calls of one tenant that a replica reserves ahead. It reserves at most an eighth of
/// its part of the free ones.
pub const CALL_PERMITS_RESERVED_MAX: u32 = 64;
/// Renewals without a call after which a replica returns the reserved permits of a tenant.
pub const PERMITS_IDLE_RENEWALS: u32 = 60;
/// Time for which the store remembers permits that are not reported again.
pub const PERMITS_KEPT: Duration = Duration::from_secs(180);
/// Replicas that report the reserves of a tenant at every renewal. More of them report less often,
/// so that all together report as often.
pub const PERMITS_RESERVE_REPORTERS: u32 = 4;
/// Renewals after which a replica reports all its permits again.
pub const PERMITS_REPORT_RENEWALS: u32 = 60;
/// Permits in one exchange with Redis.
pub const PERMIT_REQUESTS_BATCH_MAX: usize = 256;
/// Longest wait for an exchange with Redis.
pub const PERMITS_WAIT_MAX: Duration = Duration::from_secs(2);

/// Interval at which replicas are counted, to compute the share of one.
pub const REPLICAS_COUNT_INTERVAL: Duration = Duration::from_secs(1);

/// Time for which the verdict of another replica about a backend is shown.
pub const VERDICT_KEPT: Duration = Duration::from_secs(10);

/// Longest wait for the answer of another replica that is asked to drain.
pub const DRAIN_REQUEST_WAIT: Duration = Duration::from_secs(3);

/// Pause after a replica counted the rows of one kind, in multiples of the time that the count took.
pub const COUNT_PAUSE_TIMES: u32 = 100;

const _: () = assert!(PERMITS_RENEW_INTERVAL.as_millis() * 2 < PERMITS_LEASE.as_millis()); // one lost renewal must not free permits in use
const _: () = assert!(
    PERMITS_RENEW_INTERVAL.as_secs() * PERMITS_REPORT_RENEWALS as u64 * 2 < PERMITS_KEPT.as_secs()
); // permits in use must not be forgotten
const _: () = assert!(PERMITS_RETURN_INTERVAL.as_millis() < PERMITS_RENEW_INTERVAL.as_millis());
