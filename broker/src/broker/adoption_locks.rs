//! Locks of adoption, one per session, and rows in doubt that this process may own.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use records::SessionKey;

/// Locks by session. The holder of a lock decides where its session goes.
#[derive(Debug, Default)]
pub(super) struct AdoptionLocks {
    locks: Mutex<SessionLocks>,
    /// Rows that this process may own without having the session.
    doubtful: Mutex<HashSet<SessionKey>>,
}

#[derive(Debug, Default)]
struct SessionLocks {
    by_key: HashMap<SessionKey, Weak<tokio::sync::Mutex<()>>>,
    /// Size at which unused locks are removed.
    look_at: usize,
}

/// Smallest size at which unused locks are removed.
const LOCKS_MIN: usize = 64;

/// Most rows in doubt that are settled at once. A row beyond that stays with this process until it
/// ends.
const DOUBTS_MAX: usize = 1_000;

impl AdoptionLocks {
    /// Notes a row in doubt. Returns false if it is noted already, or if the set is full.
    pub(super) fn doubts(&self, key: SessionKey) -> bool {
        let mut doubtful = self.doubtful.lock();
        doubtful.len() < DOUBTS_MAX && doubtful.insert(key)
    }

    pub(super) fn no_doubt(&self, key: &SessionKey) {
        self.doubtful.lock().remove(key);
    }

    /// Returns the lock of a session. Its holder decides where the session goes.
    pub(super) fn lock(&self, key: &SessionKey) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.locks.lock();
        if let Some(lock) = locks.by_key.get(key).and_then(Weak::upgrade) {
            return lock;
        }
        // The size must double before the next removal, so that each lock is checked a few times at
        // most.
        if locks.by_key.len() >= locks.look_at {
            locks.by_key.retain(|_, lock| lock.strong_count() > 0);
            locks.look_at = (2 * locks.by_key.len()).max(LOCKS_MIN);
        }
        let lock = Arc::default();
        locks.by_key.insert(*key, Arc::downgrade(&lock));
        lock
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_locks_are_removed_without_a_full_scan_each_time() {
        let adopting = AdoptionLocks::default();
        let key =
            |number: u32| SessionKey::new(std::array::from_fn(|at| number.to_be_bytes()[at % 4]));
        let held = adopting.lock(&key(0));
        let mut looks = 0;
        for number in 1..10_000 {
            let before = adopting.locks.lock().look_at;
            drop(adopting.lock(&key(number)));
            let locks = adopting.locks.lock();
            assert!(locks.by_key.len() <= LOCKS_MIN, "{} are kept for one", locks.by_key.len());
            looks += usize::from(locks.by_key.len() == 2 || locks.look_at != before);
        }
        assert!(looks <= 10_000 / (LOCKS_MIN - 2) + 2, "{looks} looks");
        assert!(Arc::ptr_eq(&held, &adopting.lock(&key(0))));
    }
}
