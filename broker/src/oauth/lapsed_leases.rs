//! Lapsed leases of grants whose holder has not written a result.
//!
//! The holder may have used the refresh token and may not reach the database. An outage can last
//! longer than the lease, and the holder writes soon after it. Until then another use of the refresh
//! token would be its second one, after which a server may end the grant.

use std::{collections::HashMap, time::Instant};

use parking_lot::Mutex;
use protocol::ids::PrincipalId;
use rules::limits::oauth::{GRANT_CACHED_MAX, GRANT_LEASE, GRANT_LEASE_SETTLES};

/// The lapsed leases that this process saw recently.
#[derive(Debug, Default)]
pub(super) struct LapsedLeases(Mutex<HashMap<PrincipalId, SeenLease>>);

#[derive(Debug)]
struct SeenLease {
    version: i64,
    first_seen_at: Instant,
}

impl LapsedLeases {
    /// Returns whether this process saw the lapsed lease of this version for long enough. It reaches
    /// the database whenever it sees the lease, and so does its holder.
    pub(super) fn is_settled(&self, principal: &PrincipalId, version: i64, now: Instant) -> bool {
        let mut seen = self.0.lock();
        seen.retain(|_, lease| now.saturating_duration_since(lease.first_seen_at) < GRANT_LEASE);
        if seen.len() >= GRANT_CACHED_MAX && !seen.contains_key(principal) {
            return true;
        }
        let first = SeenLease { version, first_seen_at: now };
        let lease = seen.entry(principal.clone()).or_insert(first);
        if lease.version != version {
            *lease = SeenLease { version, first_seen_at: now };
        }
        now.saturating_duration_since(lease.first_seen_at) >= GRANT_LEASE_SETTLES
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_lapsed_lease_is_left_to_its_holder_for_a_while() {
        let (leases, start) = (LapsedLeases::default(), Instant::now());
        let (ann, bob) = (PrincipalId::new("ann"), PrincipalId::new("bob"));
        let almost = start + GRANT_LEASE_SETTLES - Duration::from_millis(1);
        let settled = start + GRANT_LEASE_SETTLES;
        assert!(!leases.is_settled(&ann, 1, start));
        assert!(!leases.is_settled(&ann, 1, almost));
        assert!(!leases.is_settled(&bob, 1, settled), "another grant");
        assert!(leases.is_settled(&ann, 1, settled));
        assert!(!leases.is_settled(&ann, 2, settled), "the holder of version 1 wrote");
        assert!(leases.is_settled(&ann, 2, settled + GRANT_LEASE_SETTLES));
        assert!(!leases.is_settled(&ann, 2, settled + GRANT_LEASE), "another lease of it");
    }
}
