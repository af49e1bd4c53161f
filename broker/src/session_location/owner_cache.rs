//! Cache of the last known owners of sessions. It is bounded. An entry may be wrong, and is removed
//! when that shows.

use quick_cache::{OptionsBuilder, sync::Cache};
use records::SessionKey;

use super::PeerReplica;

/// The part of the cache for sessions that were looked up again. The other part holds the latest
/// ones.
const LOOKED_UP_AGAIN: f64 = 0.5;

/// Owners by session. A session that is looked up stays. The oldest of the others frees capacity.
#[derive(Debug)]
pub(crate) struct OwnerCache(Cache<SessionKey, PeerReplica>);

impl OwnerCache {
    pub(crate) fn new(entries_max: usize) -> Self {
        let mut options = OptionsBuilder::new();
        options
            .estimated_items_capacity(entries_max)
            .weight_capacity(entries_max as u64)
            .hot_allocation(LOOKED_UP_AGAIN);
        let options = options.build().expect("both capacities are given");
        Self(Cache::with_options(
            options,
            Default::default(),
            Default::default(),
            Default::default(),
        ))
    }

    pub(crate) fn get(&self, session: &SessionKey) -> Option<PeerReplica> {
        self.0.get(session)
    }

    pub(crate) fn record(&self, session: SessionKey, owner: PeerReplica) {
        self.0.insert(session, owner);
    }

    /// Forgets this owner. Another owner that was noted meanwhile stays.
    pub(crate) fn forget(&self, session: &SessionKey, owner: &PeerReplica) {
        self.0.remove_if(session, |recorded| recorded == owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(number: u8) -> SessionKey {
        SessionKey::new([number; 32])
    }

    fn owner(node: &str) -> PeerReplica {
        PeerReplica { node: node.to_owned(), address: format!("{node}:1") }
    }

    #[test]
    fn entries_in_use_stay_and_others_are_evicted() {
        let owners = OwnerCache::new(8);
        owners.record(session(0), owner("a"));
        for number in 1..=100 {
            owners.record(session(number), owner("b"));
            assert_eq!(owners.get(&session(0)), Some(owner("a")), "after {number}");
        }
        let known = (1..=100).filter(|number| owners.get(&session(*number)).is_some()).count();
        assert!(known <= 8, "{known} are known");
    }

    #[test]
    fn only_the_wrong_owner_is_removed_from_the_cache() {
        let owners = OwnerCache::new(8);
        owners.record(session(1), owner("a"));
        owners.record(session(1), owner("b"));
        owners.forget(&session(1), &owner("a"));
        assert_eq!(owners.get(&session(1)), Some(owner("b")));
        owners.forget(&session(1), &owner("b"));
        assert_eq!(owners.get(&session(1)), None);
    }
}
