//! The own lists of a link: what its backend shows to its clients alone.
//!
//! A link creates them after the backend's `list_changed` on its connection. They end with the
//! connection, and never apply to another link. Together they have a bound in each process; above
//! it, the clients of a link see the shared lists.

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use rules::{
    catalog::{BackendLists, CatalogEntry, ListDifference, ListKind},
    limits::own_lists::OWN_LISTS_BYTES_MAX,
};

static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

/// Returns a number that no other lists of this process have.
pub(super) fn next_number() -> u64 {
    NEXT_NUMBER.fetch_add(1, Ordering::Relaxed)
}

/// The lists of a link that differ from the shared ones, and those that have to be read.
#[derive(Debug, Default)]
pub struct LinkLists {
    own: ArcSwapOption<OwnLists>,
    reading: Mutex<ListReading>,
}

/// Lists of one link that differ from the shared ones. Their bytes count as long as they exist.
#[derive(Debug)]
pub struct OwnLists {
    /// A number that no other value of this process has.
    pub number: u64,
    pub difference: ListDifference,
    /// Shared by the same lists with other marks.
    held: Arc<HeldBytes>,
}

/// Kinds of lists to read, and whether a task reads them.
#[derive(Debug, Default)]
struct ListReading {
    wanted: Vec<ListKind>,
    is_running: bool,
}

/// Bytes of own lists in this process.
#[derive(Debug)]
pub(super) struct HeldBytes {
    count: usize,
    total: Arc<AtomicUsize>,
}

impl HeldBytes {
    pub(super) fn take(total: &Arc<AtomicUsize>, count: usize) -> Option<Self> {
        let add_within_limit =
            |held: usize| held.checked_add(count).filter(|held| *held <= OWN_LISTS_BYTES_MAX);
        total.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add_within_limit).ok()?;
        Some(Self { count, total: total.clone() })
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.total.fetch_sub(self.count, Ordering::Relaxed);
    }
}

impl LinkLists {
    /// Returns the own lists, if the link has any.
    pub fn own(&self) -> Option<Arc<OwnLists>> {
        self.own.load_full()
    }

    /// Adds kinds of lists to read. Returns `true` if the caller has to read them, because no task
    /// does.
    pub(super) fn want(&self, kinds: &[ListKind]) -> bool {
        let mut reading = self.reading.lock();
        for kind in kinds {
            if !reading.wanted.contains(kind) {
                reading.wanted.push(*kind);
            }
        }
        !kinds.is_empty() && !std::mem::replace(&mut reading.is_running, true)
    }

    /// Takes the kinds of lists to read. The reading ends when there are none.
    pub(super) fn take_wanted(&self) -> Vec<ListKind> {
        let mut reading = self.reading.lock();
        let wanted = std::mem::take(&mut reading.wanted);
        reading.is_running = !wanted.is_empty();
        wanted
    }

    /// Stores a list as the link has read it. Returns whether the own lists changed. `None`: the
    /// lists did not fit, and the shared ones apply.
    pub(super) fn store(
        &self,
        kind: ListKind,
        entries: Vec<CatalogEntry>,
        shared: &BackendLists,
        total: &Arc<AtomicUsize>,
    ) -> Option<bool> {
        let before = self.own.load_full();
        let known = before.as_ref().map(|own| own.difference.clone()).unwrap_or_default();
        let difference = known.with(kind, entries, shared);
        if difference.is_empty() {
            self.own.store(None);
            return Some(before.is_some());
        }
        let Some(held) = HeldBytes::take(total, difference.bytes()) else {
            self.own.store(None);
            return None;
        };
        let (number, held) = (next_number(), Arc::new(held));
        self.own.store(Some(Arc::new(OwnLists { number, difference, held })));
        Some(true)
    }

    /// Marks what is held in the own lists. Returns whether something else is held than before.
    pub(super) fn mark(&self, mark: impl Fn(ListKind, &mut [CatalogEntry])) -> bool {
        let mut is_changed = false;
        // The connection may end meanwhile, and its lists with it.
        self.own.rcu(|own| {
            let marked = own.as_ref().and_then(|own| {
                let difference = own.difference.marked(&mark)?;
                Some(OwnLists { number: next_number(), difference, held: own.held.clone() })
            });
            is_changed = marked.is_some();
            marked.map(Arc::new).or_else(|| own.clone())
        });
        is_changed
    }

    /// Drops the own lists, because the connection that showed them has ended. Returns whether there
    /// were any.
    pub(super) fn clear(&self) -> bool {
        self.own.swap(None).is_some()
    }
}
