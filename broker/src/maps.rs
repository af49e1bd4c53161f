//! Tables that every request looks into.
//!
//! Used where a table's size is bounded and nobody outside learns how long a look takes: the standard hasher withstands who
//! chooses keys to collide and costs several times as much. This one is seeded anew in each process.

use std::collections::HashMap;

use dashmap::DashMap;
use foldhash::fast::RandomState;

pub(crate) type FastMap<K, V> = HashMap<K, V, RandomState>;
pub(crate) type SharedMap<K, V> = DashMap<K, V, RandomState>;
