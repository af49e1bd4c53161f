//! Hash tables for lookups in every request.
//!
//! Used where the size of a table is bounded and the time of a lookup is invisible from outside.
//! The standard hasher resists chosen collisions and costs several times as much. This hasher gets
//! a new seed in each process.

use std::collections::HashMap;

pub use foldhash::fast::RandomState as FastHasher;

/// A table with a fast hasher.
pub type FastMap<K, V> = HashMap<K, V, FastHasher>;
