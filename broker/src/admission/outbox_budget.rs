//! Budget of the bytes that wait for clients that do not read, over all streams of the process.
//!
//! A stream counts its unread bytes in steps, so that most streams never touch the shared counter.
//! When the budget is used up, the broker cuts the largest stream of the tenant with the most steps,
//! and drops its unread bytes. The size of single streams does not decide between tenants, so a
//! tenant with many small streams cannot displace the large stream of another one.
//!
//! Invariant: the steps of a stream are returned when it is read, cut or dropped.

use std::{
    collections::{HashMap, hash_map::Entry},
    hash::Hash,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
};

use parking_lot::Mutex;
use protocol::ids::{PrincipalId, TenantId};
use rules::limits::OUTBOX_STEP_BYTES;

/// Number of a stream, unique within the process.
pub type HolderId = u64;

/// The tenant and principal for whom the bytes of a stream wait. Without both while the caller is
/// unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct UnreadOwner {
    tenant: Option<TenantId>,
    principal: Option<PrincipalId>,
}

impl UnreadOwner {
    pub fn new(tenant: TenantId, principal: PrincipalId) -> Self {
        Self { tenant: Some(tenant), principal: Some(principal) }
    }

    pub fn tenant(&self) -> Option<&TenantId> {
        self.tenant.as_ref()
    }
}

/// The counter that all streams of the process share.
#[derive(Debug)]
pub struct OutboxBudget<S> {
    steps_max: usize,
    steps: AtomicUsize,
    next: AtomicU64,
    holders: Mutex<Holders<S>>,
}

/// Streams that hold at least one step, and the sums of their steps.
#[derive(Debug)]
struct Holders<S> {
    by_id: HashMap<HolderId, Holder<S>>,
    by_tenant: HashMap<Option<TenantId>, usize>,
    by_owner: HashMap<UnreadOwner, usize>,
}

#[derive(Debug)]
struct Holder<S> {
    steps: usize,
    owner: UnreadOwner,
    stream: S,
}

impl<S: Clone> OutboxBudget<S> {
    pub fn new(bytes_max: usize) -> Self {
        Self {
            steps_max: bytes_max.div_ceil(OUTBOX_STEP_BYTES),
            steps: AtomicUsize::new(0),
            next: AtomicU64::new(1),
            holders: Mutex::new(Holders {
                by_id: HashMap::new(),
                by_tenant: HashMap::new(),
                by_owner: HashMap::new(),
            }),
        }
    }

    pub fn new_holder(&self) -> HolderId {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Updates the steps of a stream with `bytes` unread bytes that held `held` steps. Returns its
    /// new number of steps. `stream` returns its owner, and the handle by which
    /// [`OutboxBudget::to_be_cut`] returns it. The owner stays the same while the stream holds steps.
    pub fn recount(
        &self,
        holder: HolderId,
        held: usize,
        bytes: usize,
        stream: impl FnOnce() -> (UnreadOwner, S),
    ) -> usize {
        let steps = bytes / OUTBOX_STEP_BYTES;
        if steps == held {
            return held;
        }
        let mut holders = self.holders.lock();
        holders.set(holder, steps, stream);
        // Under the lock, so that the counter never includes a stream that is not in `holders`.
        if steps > held {
            self.steps.fetch_add(steps - held, Ordering::Relaxed);
        } else {
            self.steps.fetch_sub(held - steps, Ordering::Relaxed);
        }
        steps
    }

    /// Returns a stream to cut while the sum is over the budget: the largest one of the largest
    /// principal of the largest tenant.
    pub fn to_be_cut(&self) -> Option<S> {
        if self.steps.load(Ordering::Relaxed) <= self.steps_max {
            return None;
        }
        self.holders.lock().largest()
    }

    /// Returns the counted bytes, in whole steps.
    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        self.steps.load(Ordering::Relaxed) * OUTBOX_STEP_BYTES
    }
}

impl<S: Clone> Holders<S> {
    fn set(&mut self, id: HolderId, steps: usize, stream: impl FnOnce() -> (UnreadOwner, S)) {
        let (owner, held) = match self.by_id.entry(id) {
            Entry::Vacant(_) if steps == 0 => return,
            Entry::Vacant(entry) => {
                let (owner, stream) = stream();
                entry.insert(Holder { steps, owner: owner.clone(), stream });
                (owner, 0)
            }
            Entry::Occupied(entry) if steps == 0 => {
                let Holder { steps, owner, .. } = entry.remove();
                (owner, steps)
            }
            Entry::Occupied(mut entry) => {
                let held = std::mem::replace(&mut entry.get_mut().steps, steps);
                (entry.get().owner.clone(), held)
            }
        };
        update_sum(&mut self.by_tenant, owner.tenant.clone(), held, steps);
        update_sum(&mut self.by_owner, owner, held, steps);
    }

    fn largest(&self) -> Option<S> {
        let (tenant, _) = self.by_tenant.iter().max_by_key(|(_, steps)| **steps)?;
        let of_tenant = self.by_owner.iter().filter(|(owner, _)| owner.tenant == *tenant);
        let (owner, _) = of_tenant.max_by_key(|(_, steps)| **steps)?;
        let of_owner = self.by_id.values().filter(|holder| holder.owner == *owner);
        of_owner.max_by_key(|holder| holder.steps).map(|holder| holder.stream.clone())
    }
}

/// Updates a sum in which one stream's part changed from `held` to `steps`.
fn update_sum<K: Eq + Hash>(sums: &mut HashMap<K, usize>, key: K, held: usize, steps: usize) {
    let sum = sums.remove(&key).unwrap_or_default() + steps - held;
    if sum > 0 {
        sums.insert(key, sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: usize = OUTBOX_STEP_BYTES;

    fn owner(tenant: &str, principal: &str) -> UnreadOwner {
        let tenant = TenantId::parse(tenant).unwrap();
        UnreadOwner::new(tenant, PrincipalId::new(principal))
    }

    fn named(name: &str) -> (UnreadOwner, &str) {
        (UnreadOwner::default(), name)
    }

    fn assert_empty(waiting: &OutboxBudget<&str>) {
        let holders = waiting.holders.lock();
        let lengths = [holders.by_id.len(), holders.by_tenant.len(), holders.by_owner.len()];
        assert_eq!(lengths, [0; 3]);
    }

    #[test]
    fn bytes_below_one_step_are_not_counted_and_the_largest_holder_is_cut() {
        let waiting: OutboxBudget<&str> = OutboxBudget::new(3 * STEP);
        let [small, one, two] = [waiting.new_holder(), waiting.new_holder(), waiting.new_holder()];
        assert_eq!(waiting.recount(small, 0, STEP - 1, || named("small")), 0);
        assert_eq!(waiting.recount(one, 0, STEP, || named("one")), 1);
        assert_eq!(waiting.recount(two, 0, 2 * STEP + 5, || named("two")), 2);
        assert_eq!((waiting.bytes(), waiting.to_be_cut()), (3 * STEP, None));
        assert_eq!(waiting.recount(one, 1, 2 * STEP, || unreachable!()), 2);
        assert!(waiting.to_be_cut().is_some());
        assert_eq!(waiting.recount(two, 2, 3 * STEP, || unreachable!()), 3);
        assert_eq!(waiting.to_be_cut(), Some("two"));
        assert_eq!(waiting.recount(two, 3, 0, || unreachable!()), 0);
        assert_eq!((waiting.bytes(), waiting.to_be_cut()), (2 * STEP, None));
        assert_eq!(waiting.recount(one, 2, 0, || unreachable!()), 0);
        assert_eq!(waiting.bytes(), 0);
        assert_empty(&waiting);
    }

    #[test]
    fn the_tenant_and_the_principal_with_the_most_steps_are_cut_not_the_largest_stream() {
        let waiting: OutboxBudget<&str> = OutboxBudget::new(10 * STEP);
        let hold = |tenant: &str, principal: &str, steps: usize, name: &'static str| {
            let id = waiting.new_holder();
            assert_eq!(
                waiting.recount(id, 0, steps * STEP, || (owner(tenant, principal), name)),
                steps
            );
            (id, steps)
        };
        let many: Vec<_> = (0..3).map(|_| hold("a", "many", 2, "many")).collect();
        let single = hold("a", "single", 3, "single");
        assert_eq!(waiting.to_be_cut(), None);
        let large = hold("b", "one", 4, "large");
        assert_eq!(waiting.to_be_cut(), Some("many"), "9 steps of a, 6 of them of one principal");
        for (id, steps) in many {
            waiting.recount(id, steps, 0, || unreachable!());
        }
        let last = hold("b", "two", 5, "last");
        assert_eq!(waiting.to_be_cut(), Some("last"), "9 steps of b, 5 of them of one principal");
        for (id, steps) in [single, large, last] {
            waiting.recount(id, steps, 0, || unreachable!());
        }
        assert_empty(&waiting);
    }

    #[test]
    fn streams_of_unknown_callers_count_together() {
        let waiting: OutboxBudget<&str> = OutboxBudget::new(4 * STEP);
        for _ in 0..3 {
            waiting.recount(waiting.new_holder(), 0, STEP, || named("unknown"));
        }
        waiting.recount(waiting.new_holder(), 0, 2 * STEP, || (owner("a", "one"), "known"));
        assert_eq!(waiting.to_be_cut(), Some("unknown"));
    }
}
