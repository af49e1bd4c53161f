//! The locks under which it is decided where a session goes, one per session, and the rows that may be this process's in doubt.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use storage::SessionKey;

/// Who is at which session.
#[derive(Debug, Default)]
pub(super) struct AdoptionLocks {
    places: Mutex<SessionLocks>,
    /// Rows that may be ours though nobody was told.
    doubtful: Mutex<HashSet<SessionKey>>,
}

#[derive(Debug, Default)]
struct SessionLocks {
    by_key: HashMap<SessionKey, Weak<tokio::sync::Mutex<()>>>,
    /// From this many on it is looked which of them are in use.
    look_at: usize,
}

/// So many places are kept without a look.
const PLACES_MIN: usize = 64;

/// Rows in doubt that are looked after at once; of more than these the rest stays with this process until it ends.
const DOUBTS_MAX: usize = 1_000;

impl AdoptionLocks {
    /// False: somebody looks after it already, or there is no room.
    pub(super) fn doubts(&self, key: SessionKey) -> bool {
        let mut doubtful = self.doubtful.lock();
        doubtful.len() < DOUBTS_MAX && doubtful.insert(key)
    }

    pub(super) fn no_doubt(&self, key: &SessionKey) {
        self.doubtful.lock().remove(key);
    }

    /// Whoever holds this place's lock decides where the session goes.
    pub(super) fn place(&self, key: &SessionKey) -> Arc<tokio::sync::Mutex<()>> {
        let mut places = self.places.lock();
        if let Some(place) = places.by_key.get(key).and_then(Weak::upgrade) {
            return place;
        }
        // When they have doubled, so that each place is looked at a few times at most.
        if places.by_key.len() >= places.look_at {
            places.by_key.retain(|_, place| place.strong_count() > 0);
            places.look_at = (2 * places.by_key.len()).max(PLACES_MIN);
        }
        let place = Arc::default();
        places.by_key.insert(*key, Arc::downgrade(&place));
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_nobody_is_at_are_given_up_without_looking_at_all_of_them_each_time() {
        let adopting = AdoptionLocks::default();
        let key =
            |number: u32| SessionKey::new(std::array::from_fn(|at| number.to_be_bytes()[at % 4]));
        let held = adopting.place(&key(0));
        let mut looks = 0;
        for number in 1..10_000 {
            let before = adopting.places.lock().look_at;
            drop(adopting.place(&key(number)));
            let places = adopting.places.lock();
            assert!(places.by_key.len() <= PLACES_MIN, "{} are kept for one", places.by_key.len());
            looks += usize::from(places.by_key.len() == 2 || places.look_at != before);
        }
        assert!(looks <= 10_000 / (PLACES_MIN - 2) + 2, "{looks} looks");
        assert!(Arc::ptr_eq(&held, &adopting.place(&key(0))));
    }
}
