//! A map that forgets: of what was not touched for long, some is gone. Used where forgetting costs only a detour.

use std::{borrow::Borrow, collections::HashMap, hash::Hash};

/// Two generations: what is touched moves to the young one; when that is full, the old one goes.
#[derive(Debug)]
pub(super) struct GenerationCache<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
    young_max: usize,
}

impl<K: Eq + Hash, V> GenerationCache<K, V> {
    /// Holds at most `max` entries, and the latest half of them for certain.
    pub(super) fn new(max: usize) -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), young_max: (max / 2).max(1) }
    }

    pub(super) fn insert(&mut self, key: K, value: V) {
        self.old.remove(&key);
        if self.young.len() >= self.young_max && !self.young.contains_key(&key) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, value);
    }

    pub(super) fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.young.get(key).or_else(|| self.old.get(key))
    }

    /// Takes it out. To keep it, insert it again.
    pub(super) fn remove<Q: Eq + Hash + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let old = self.old.remove(key);
        self.young.remove(key).or(old)
    }
}

#[cfg(test)]
mod tests {
    use super::GenerationCache;

    #[test]
    fn keeps_the_latest_and_never_more_than_it_may() {
        let mut map = GenerationCache::new(10);
        for number in 0..100 {
            map.insert(number, number);
            assert!(map.young.len() + map.old.len() <= 10);
            assert!((number.max(4) - 4..=number).all(|recent| map.get(&recent) == Some(&recent)));
        }
        assert_eq!(map.get(&80), None);
        map.insert(99, 7);
        assert_eq!((map.remove(&99), map.remove(&99)), (Some(7), None));
    }
}
