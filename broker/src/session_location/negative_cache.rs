//! Cache of sessions that the record just did not have. It is bounded, and an entry expires after a
//! moment.
//!
//! An entry holds only the record's own answer, for the one caller that requested it. The session
//! may exist for another caller. An id is random and no client gets it before its session is
//! stored, so a missing session does not appear later. A session that was released or whose owner
//! died is still in the record. The one exception is an owner that was frozen for longer than a
//! session may be idle. Its client got the answer that the session is over, and gets it a moment
//! longer.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use aws_lc_rs::digest;
use parking_lot::Mutex;
use protocol::ids::SessionId;
use rules::endpoint::Endpoint;

use crate::auth::Caller;

/// Hash of a session's id and of the caller and endpoint that requested it.
pub(crate) type AbsenceKey = [u8; 32];

pub(crate) fn absence_key(id: &SessionId, caller: &Caller, endpoint: &Endpoint) -> AbsenceKey {
    let endpoint = endpoint.name();
    let mut hash = digest::Context::new(&digest::SHA256);
    // Only the last part may hold a zero byte.
    for part in [id.as_str(), caller.tenant.as_str(), &endpoint, caller.principal.as_str()] {
        hash.update(part.as_bytes());
        hash.update(&[0]);
    }
    let mut key = AbsenceKey::default();
    key.copy_from_slice(hash.finish().as_ref());
    key
}

#[derive(Debug)]
pub(crate) struct NegativeCache {
    entries_max: usize,
    remembered_for: Duration,
    since: Mutex<HashMap<AbsenceKey, Instant>>,
}

impl NegativeCache {
    pub(crate) fn new(entries_max: usize, remembered_for: Duration) -> Self {
        Self { entries_max, remembered_for, since: Mutex::default() }
    }

    pub(crate) fn has(&self, trace: &AbsenceKey) -> bool {
        let since = self.since.lock();
        since.get(trace).is_some_and(|at| at.elapsed() < self.remembered_for)
    }

    pub(crate) fn record(&self, trace: AbsenceKey) {
        let mut since = self.since.lock();
        if since.len() >= self.entries_max {
            since.retain(|_, at| at.elapsed() < self.remembered_for);
        }
        // The cache is full of new entries. A caller with that many requests is over its tenant's
        // rate, or has no limit.
        if since.len() < self.entries_max {
            since.insert(trace, Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::ids::PrincipalId;

    use super::*;

    fn of(id: &str, principal: &str) -> AbsenceKey {
        let caller = Caller::new(Caller::anonymous().tenant, PrincipalId::new(principal), None);
        absence_key(&SessionId::new(id), &caller, &Endpoint::Aggregated)
    }

    #[test]
    fn an_absent_session_is_cached_per_caller() {
        let absent = NegativeCache::new(8, Duration::from_secs(60));
        absent.record(of("a", "mallory"));
        assert!(absent.has(&of("a", "mallory")));
        assert!(!absent.has(&of("a", "alice")) && !absent.has(&of("b", "mallory")));
    }

    #[test]
    fn the_negative_cache_is_bounded_and_its_entries_expire() {
        let absent = NegativeCache::new(8, Duration::from_secs(60));
        (0..100).for_each(|number| absent.record(of(&number.to_string(), "a")));
        assert_eq!((0..100).filter(|number| absent.has(&of(&number.to_string(), "a"))).count(), 8);
        let brief = NegativeCache::new(8, Duration::ZERO);
        (0..100).for_each(|number| brief.record(of(&number.to_string(), "a")));
        assert!(!brief.has(&of("99", "a")), "over at once");
        assert!(brief.since.lock().len() <= 8);
    }
}
