//! Limits of what replicas share: places of tenants and principals, verdicts about backends, and
//! counts of stored rows.

use std::time::Duration;

/// Time after which the places of a killed replica are free for the others.
pub const PLACES_LEASE: Duration = Duration::from_secs(3);
/// Interval at which a replica renews its places.
pub const PLACES_RENEW_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which a replica returns places that it does not use.
pub const PLACES_RETURN_INTERVAL: Duration = Duration::from_millis(100);
/// Time for which a replica refuses without asking Redis, after it got no further place.
pub const PLACES_REFUSED_FOR: Duration = Duration::from_millis(50);
/// Places for calls of one tenant that a replica reserves ahead. It reserves at most an eighth of
/// its part of the free ones.
pub const CALL_PLACES_RESERVED_MAX: u32 = 64;
/// Renewals without a call after which a replica returns the reserved places of a tenant.
pub const PLACES_IDLE_RENEWALS: u32 = 60;
/// Time for which the store remembers places that are not reported again.
pub const PLACES_KEPT: Duration = Duration::from_secs(180);
/// Replicas that report the reserves of a tenant at every renewal. More of them report less often,
/// so that all together report as often.
pub const PLACES_RESERVE_REPORTERS: u32 = 4;
/// Renewals after which a replica reports all its places again.
pub const PLACES_REPORT_RENEWALS: u32 = 60;
/// Places in one exchange with Redis.
pub const PLACES_ASKED_AT_ONCE: usize = 256;
/// Longest wait for an exchange with Redis.
pub const PLACES_WAIT_MAX: Duration = Duration::from_secs(2);

/// Interval at which replicas are counted, to compute the share of one.
pub const REPLICAS_COUNT_INTERVAL: Duration = Duration::from_secs(1);

/// Time for which the verdict of another replica about a backend is shown.
pub const VERDICT_KEPT: Duration = Duration::from_secs(10);

/// Pause after a replica counted the rows of one kind, in multiples of the time that the count took.
pub const COUNT_PAUSE_TIMES: u32 = 100;

const _: () = assert!(PLACES_RENEW_INTERVAL.as_millis() * 2 < PLACES_LEASE.as_millis()); // one lost renewal must not free places in use
const _: () = assert!(
    PLACES_RENEW_INTERVAL.as_secs() * PLACES_REPORT_RENEWALS as u64 * 2 < PLACES_KEPT.as_secs()
); // places in use must not be forgotten
const _: () = assert!(PLACES_RETURN_INTERVAL.as_millis() < PLACES_RENEW_INTERVAL.as_millis());
