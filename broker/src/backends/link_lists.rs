//! The own lists of a link: what its backend shows to its clients alone.
//!
//! A link creates them after the backend's `list_changed` on its connection. They end with the
//! connection, and never apply to another link. Those of one tenant have a bound in each process,
//! and so have all together. Above it, the clients of a link see the shared lists.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use protocol::ids::TenantId;
use rules::{
    catalog::{BackendLists, CatalogEntry, ListDifference, ListKind},
    limits::own_lists::{OWN_LISTS_BYTES_MAX, OWN_LISTS_BYTES_PER_TENANT_MAX},
};

use super::tools_read::ToolsRead;

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
    /// Like that of the backend, if each principal has tools of its own.
    pub(super) last_tools_read: tokio::sync::Mutex<Option<ToolsRead>>,
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

/// The budgets of all tenants of this process. Backends of one tenant share one.
#[derive(Debug, Default)]
pub struct OwnListBudgets(Mutex<HashMap<TenantId, Weak<AtomicUsize>>>);

/// Bytes of the own lists of one tenant, and of all tenants.
#[derive(Debug, Clone)]
pub struct OwnListBudget {
    of_tenant: Arc<AtomicUsize>,
    all: Arc<AtomicUsize>,
}

/// Bytes of own lists in this process.
#[derive(Debug)]
pub(super) struct HeldBytes {
    count: usize,
    budget: OwnListBudget,
}

impl OwnListBudgets {
    /// Returns the budget of a tenant. `all` counts the bytes of all tenants.
    pub(super) fn of(&self, tenant: &TenantId, all: &Arc<AtomicUsize>) -> OwnListBudget {
        let mut tenants = self.0.lock();
        let known = tenants.get(tenant).and_then(Weak::upgrade);
        let of_tenant = known.unwrap_or_else(|| {
            tenants.retain(|_, bytes| bytes.strong_count() > 0);
            let new = Arc::default();
            tenants.insert(tenant.clone(), Arc::downgrade(&new));
            new
        });
        OwnListBudget { of_tenant, all: all.clone() }
    }
}

impl HeldBytes {
    /// Takes bytes from the budget. `None`: the tenant, or all tenants together, have too many.
    pub(super) fn take(budget: &OwnListBudget, count: usize) -> Option<Self> {
        let add = |bytes: &AtomicUsize, max: usize| {
            let within = |held: usize| held.checked_add(count).filter(|held| *held <= max);
            bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within).ok()
        };
        add(&budget.of_tenant, OWN_LISTS_BYTES_PER_TENANT_MAX)?;
        if add(&budget.all, OWN_LISTS_BYTES_MAX).is_none() {
            budget.of_tenant.fetch_sub(count, Ordering::Relaxed);
            return None;
        }
        Some(Self { count, budget: budget.clone() })
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.budget.of_tenant.fetch_sub(self.count, Ordering::Relaxed);
        self.budget.all.fetch_sub(self.count, Ordering::Relaxed);
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
        budget: &OwnListBudget,
    ) -> Option<bool> {
        let before = self.own.load_full();
        let known = before.as_ref().map(|own| own.difference.clone()).unwrap_or_default();
        let difference = known.with(kind, entries, shared);
        if difference.is_empty() {
            self.own.store(None);
            return Some(before.is_some());
        }
        let Some(held) = HeldBytes::take(budget, difference.bytes()) else {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lists_of_one_tenant_leave_capacity_for_another() {
        let (budgets, all) = (OwnListBudgets::default(), Arc::default());
        let of = |tenant: &str| budgets.of(&TenantId::parse(tenant).unwrap(), &all);
        let (large, other) = (of("large"), of("other"));
        let mut held = vec![HeldBytes::take(&large, OWN_LISTS_BYTES_PER_TENANT_MAX).unwrap()];
        assert!(HeldBytes::take(&of("large"), 1).is_none(), "its backends share the budget");
        held.extend(HeldBytes::take(&other, OWN_LISTS_BYTES_PER_TENANT_MAX));
        assert_eq!(held.len(), 2, "another tenant has as much");
        assert!(HeldBytes::take(&of("third"), 1).is_none(), "all tenants have a limit too");
        held.clear();
        let bytes = [&large.of_tenant, &other.of_tenant, &all];
        assert_eq!(bytes.map(|bytes| bytes.load(Ordering::Relaxed)), [0; 3], "all are free again");
    }

    #[test]
    fn lists_that_do_not_fit_beside_those_of_other_tenants_take_nothing() {
        let (budgets, all) =
            (OwnListBudgets::default(), Arc::new(AtomicUsize::new(OWN_LISTS_BYTES_MAX)));
        let budget = budgets.of(&TenantId::parse("acme").unwrap(), &all);
        assert!(HeldBytes::take(&budget, 1).is_none());
        assert_eq!(budget.of_tenant.load(Ordering::Relaxed), 0);
    }
}
