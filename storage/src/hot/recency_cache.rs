//! A bounded map that drops the entry inserted longest ago. For hints and budgets, where a lost
//! entry costs only a detour.

use std::{borrow::Borrow, hash::Hash};

use quick_cache::{OptionsBuilder, unsync::Cache};

/// Orders its entries only by the time of their last insertion.
///
/// By default quick_cache keeps entries that are read often, and may drop the latest entry. Here a
/// read leaves no mark. All entries but one are in the ring that quick_cache drops by age.
#[derive(Debug)]
pub(super) struct RecencyCache<K, V>(Cache<K, V>);

impl<K: Eq + Hash, V> RecencyCache<K, V> {
    /// Creates a cache of at most `max` entries. It always holds the latest `max - 1` of them.
    pub(super) fn new(max: usize) -> Self {
        let mut options = OptionsBuilder::new();
        options
            .estimated_items_capacity(max)
            .weight_capacity(max as u64)
            .hot_allocation(0.0)
            .ghost_allocation(0.0);
        let options = options.build().expect("both capacities are given");
        Self(Cache::with_options(
            options,
            Default::default(),
            Default::default(),
            Default::default(),
        ))
    }

    /// Inserts the entry as the youngest one, even if the map has the key.
    pub(super) fn insert(&mut self, key: K, value: V) {
        self.0.remove(&key);
        self.0.insert(key, value);
    }

    pub(super) fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.0.peek(key)
    }

    /// Removes the entry. To keep it, the caller inserts it again.
    pub(super) fn remove<Q: Eq + Hash + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.0.remove(key).map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::RecencyCache;

    #[test]
    fn the_cache_keeps_the_latest_entries_within_its_limit() {
        let mut map = RecencyCache::new(10);
        for number in 0..100 {
            map.insert(number, number);
            assert!(map.0.len() <= 10);
            assert!((number.max(4) - 4..=number).all(|recent| map.get(&recent) == Some(&recent)));
        }
        assert_eq!(map.get(&80), None);
        map.insert(99, 7);
        assert_eq!((map.remove(&99), map.remove(&99)), (Some(7), None));
    }
}
