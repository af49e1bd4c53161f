//! The rate at which the broker records refusals that cost their sender nothing.
//!
//! A request over a rate takes nothing from that rate, however often its sender repeats it. Without a
//! rate of their own, the records of such requests would fill the queue of the audit log and the
//! list of recent refusals. The audit log would then drop the records of other callers. Called at
//! the end of a request by [`crate::sessions::request_observer`].

use std::time::Duration;

use parking_lot::Mutex;
use protocol::ids::{PrincipalId, TenantId};
use rules::{
    limits::{AUDIT_FREE_REFUSALS_PER_MINUTE, AUDIT_REFUSED_PRINCIPALS_MAX},
    local_rate_limit::{KeyedRateLimiter, per_minute},
};

use crate::auth::Caller;

/// The rates of the principals of all tenants.
#[derive(Debug)]
pub struct FreeRefusals(Mutex<KeyedRateLimiter<(TenantId, PrincipalId)>>);

impl Default for FreeRefusals {
    fn default() -> Self {
        let quota = per_minute(AUDIT_FREE_REFUSALS_PER_MINUTE);
        Self(Mutex::new(KeyedRateLimiter::new(quota, AUDIT_REFUSED_PRINCIPALS_MAX)))
    }
}

impl FreeRefusals {
    /// Counts a refusal. Returns the number of refusals of the caller that were left out since the
    /// last recorded one. `None`: this one is left out too.
    pub fn admit(&self, caller: &Caller, now: Duration) -> Option<u64> {
        let key = (caller.tenant.clone(), caller.principal.clone());
        self.0.lock().check(&key, now).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refusals_of_one_principal_leave_those_of_others() {
        let refusals = FreeRefusals::default();
        let caller = |principal: &str| {
            Caller::new(TenantId::parse("acme").unwrap(), PrincipalId::new(principal), None)
        };
        let (ann, bob) = (caller("ann"), caller("bob"));
        let at = Duration::from_secs;
        for _ in 0..AUDIT_FREE_REFUSALS_PER_MINUTE {
            assert_eq!(refusals.admit(&ann, at(100)), Some(0));
        }
        assert_eq!([(); 3].map(|()| refusals.admit(&ann, at(100))), [None; 3]);
        assert_eq!(refusals.admit(&bob, at(100)), Some(0));
        assert_eq!(refusals.admit(&ann, at(160)), Some(3), "the next record has their number");
        assert_eq!(refusals.admit(&ann, at(160)), Some(0));
    }
}
