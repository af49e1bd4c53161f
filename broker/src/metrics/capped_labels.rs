//! Label values of an open set, of which a limited number have a child of their own.

use std::sync::{
    OnceLock,
    atomic::{AtomicUsize, Ordering},
};

use super::OTHER;
use crate::maps::SharedMap;

/// Resolved label children of an open set of names. Past the cap, a new name shares the child of `other`.
pub(super) struct CappedLabels<K, C> {
    children: SharedMap<K, C>,
    /// Number of names. Two threads may exceed the cap by one name each.
    taken: AtomicUsize,
    other: OnceLock<C>,
    max: usize,
}

impl<K: Clone + Eq + std::hash::Hash, C> CappedLabels<K, C> {
    pub(super) fn new(max: usize) -> Self {
        Self {
            children: SharedMap::default(),
            taken: AtomicUsize::new(0),
            other: OnceLock::new(),
            max,
        }
    }

    pub(super) fn with(&self, key: &K, label: &str, child: impl Fn(&str) -> C, act: impl Fn(&C)) {
        if let Some(found) = self.children.get(key) {
            return act(&found);
        }
        if self.taken.load(Ordering::Relaxed) >= self.max {
            return act(self.other.get_or_init(|| child(OTHER)));
        }
        let entry = self.children.entry(key.clone()).or_insert_with(|| {
            self.taken.fetch_add(1, Ordering::Relaxed);
            child(label)
        });
        act(&entry);
    }
}
