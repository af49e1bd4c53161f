//! The rate of a tenant or backend, and the rates of its principals or tools.

use std::{hash::Hash, sync::Arc, time::Duration};

use parking_lot::Mutex;
use rules::shared_rate_limit::{RateLimiterMap, SharedRateLimiter};

/// The limiter of a tenant or backend, and those of its parts.
#[derive(Debug)]
pub struct NestedRates<K> {
    pub whole: Arc<SharedRateLimiter>,
    parts: Mutex<RateLimiterMap<K>>,
}

impl<K: Eq + Hash + Clone> NestedRates<K> {
    /// `whole` names the limiter of the whole. `others` names the one that parts beyond `parts_max`
    /// share.
    pub fn new(whole: String, parts_max: usize, others: String) -> Self {
        Self {
            whole: SharedRateLimiter::new(whole),
            parts: Mutex::new(RateLimiterMap::new(parts_max, others)),
        }
    }

    /// Returns the limiter of a part. Creates it at its first use.
    pub fn part(
        &self,
        key: &K,
        now: Duration,
        name: impl FnOnce() -> String,
    ) -> Arc<SharedRateLimiter> {
        self.parts.lock().get_or_insert(key, now, name)
    }
}
