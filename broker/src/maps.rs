//! Tables that every request looks into and any thread may change. See [`rules::maps`] for when they may be used.

use dashmap::DashMap;
use rules::maps::FastHasher;

/// A table with a fast hasher, locked in parts.
pub(crate) type SharedMap<K, V> = DashMap<K, V, FastHasher>;
