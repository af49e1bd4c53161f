//! Fair queue for callers without a permit: deficit round robin over owners by their weight, then
//! round robin over the members of each. The concurrency limits of the broker use it for each
//! backend and for all calls together.
//!
//! Invariants:
//!
//! - The cost of a step grows at most with the logarithm of the number of waiting callers. This
//!   also holds for a full queue, and if most owners are not prioritized.
//! - The share of an owner does not depend on the number of entries of others.
//! - The queue is bounded. A late caller replaces the owner that is most beyond its
//!   share, then of such a member of its own owner.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
    time::Duration,
};

use crate::limits::{PACE_GAP_USUAL, PACE_OUTLIER, PACE_WEIGHT, PACE_WEIGHT_MAX};

/// Waiting entries by owner and member. `T` is the value of an entry.
#[derive(Debug)]
pub struct FairQueue<O, M, T> {
    owners: HashMap<O, OwnerQueue<M, T>>,
    /// Owners with waiting entries, in the order of their turns.
    turns: BTreeMap<u64, O>,
    /// Favoured owners, whose turn may come before that of others.
    prioritized: BTreeMap<u64, O>,
    /// All owners in `turns`, by load.
    loads: BTreeMap<Rank, O>,
    waiting: HashMap<Ticket, (O, M)>,
    /// Counter for tickets, turns and names.
    next: u64,
    /// Sum of the weights of all owners in `turns`.
    weights: u64,
    max: usize,
}

/// Identifies a waiting entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(u64);

/// A load and a unique number, so that no two ranks are equal.
type Rank = (u64, u64);

#[derive(Debug)]
struct OwnerQueue<M, T> {
    weight: u32,
    /// Entries that the owner may still take in this turn.
    credit: u32,
    waiting: usize,
    turn: u64,
    prioritized: bool,
    name: u64,
    members: HashMap<M, MemberQueue<T>>,
    /// Members with waiting entries, in the order of their turns.
    turns: BTreeMap<u64, M>,
    /// Members with waiting entries, by load.
    loads: BTreeMap<Rank, M>,
}

#[derive(Debug)]
struct MemberQueue<T> {
    waiting: BTreeMap<Ticket, T>,
    turn: u64,
    name: u64,
}

impl<M, T> OwnerQueue<M, T> {
    fn rank(&self) -> Rank {
        (load(self.waiting, self.weight), self.name)
    }
}

impl<T> MemberQueue<T> {
    fn rank(&self) -> Rank {
        (self.waiting.len() as u64, self.name)
    }
}

/// Returns the number of waiting entries per weight, in steps of 2^-20.
fn load(waiting: usize, weight: u32) -> u64 {
    (waiting as u64).saturating_mul(1 << 20) / u64::from(weight.max(1))
}

/// The outcome of [`FairQueue::push`].
#[derive(Debug)]
pub enum PushOutcome<T> {
    Queued(Ticket),
    /// The entry is queued. It evicted this one, the latest of the owner or member with the highest
    /// load.
    QueuedEvicting(Ticket, T),
    /// The queue has no capacity for the entry.
    Full(T),
}

impl<O: Clone + Eq + Hash, M: Clone + Eq + Hash, T> FairQueue<O, M, T> {
    pub fn new(max: usize) -> Self {
        let (turns, prioritized, loads) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self {
            owners: HashMap::new(),
            turns,
            prioritized,
            loads,
            waiting: HashMap::new(),
            next: 0,
            weights: 0,
            max,
        }
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns an upper bound of the entries ahead of a new one of this member.
    pub fn ahead(&self, owner: &O, weight: u32, member: &M) -> usize {
        let weight = u64::from(weight.max(1));
        let (own, weights) = match self.owners.get(owner) {
            Some(known) => {
                let (of_member, members) = match known.members.get(member) {
                    Some(member) => (member.waiting.len(), known.members.len()),
                    None => (0, known.members.len() + 1),
                };
                let by_turns = (of_member + 1).saturating_mul(members) - 1;
                (by_turns.min(known.waiting) as u64, self.weights)
            }
            None => (0, self.weights + weight),
        };
        let by_share = (own + 1).saturating_mul(weights).div_ceil(weight);
        usize::try_from(by_share).unwrap_or(usize::MAX).min(self.len())
    }

    pub fn push(&mut self, owner: &O, weight: u32, member: &M, value: T) -> PushOutcome<T> {
        let mut gone = None;
        if self.len() >= self.max {
            gone = self
                .eviction_candidate(owner, weight, member)
                .and_then(|ticket| self.remove(ticket));
            if gone.is_none() {
                return PushOutcome::Full(value);
            }
        }
        let ticket = self.insert(owner, weight.max(1), member, value);
        gone.map_or(PushOutcome::Queued(ticket), |gone| PushOutcome::QueuedEvicting(ticket, gone))
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn insert(&mut self, owner: &O, weight: u32, member: &M, value: T) -> Ticket {
        let (ticket, owner_number, member_number) =
            (Ticket(self.number()), self.number(), self.number());
        let entry = self.owners.entry(owner.clone()).or_insert_with(|| {
            self.turns.insert(owner_number, owner.clone());
            self.weights += u64::from(weight);
            let (members, turns, loads) = (HashMap::new(), BTreeMap::new(), BTreeMap::new());
            OwnerQueue {
                weight,
                credit: 0,
                waiting: 0,
                turn: owner_number,
                prioritized: false,
                name: owner_number,
                members,
                turns,
                loads,
            }
        });
        self.loads.remove(&entry.rank());
        self.weights = self.weights - u64::from(entry.weight) + u64::from(weight);
        entry.weight = weight;
        entry.waiting += 1;
        self.loads.insert(entry.rank(), owner.clone());
        let queue = entry.members.entry(member.clone()).or_insert_with(|| {
            entry.turns.insert(member_number, member.clone());
            MemberQueue { waiting: BTreeMap::new(), turn: member_number, name: member_number }
        });
        entry.loads.remove(&queue.rank());
        queue.waiting.insert(ticket, value);
        entry.loads.insert(queue.rank(), member.clone());
        self.waiting.insert(ticket, (owner.clone(), member.clone()));
        ticket
    }

    /// Returns the entry to evict. It is the latest one of the owner with the highest load, if that
    /// exceeds the load of this owner with a new entry. Otherwise the latest one of this owner's
    /// longest member, under the same condition for members.
    fn eviction_candidate(&self, owner: &O, weight: u32, member: &M) -> Option<Ticket> {
        let own = self.owners.get(owner);
        let (_, heaviest) = self.loads.last_key_value()?;
        let other = self.owners.get(heaviest)?;
        if heaviest != owner
            && load(other.waiting, other.weight)
                > load(own.map_or(0, |own| own.waiting) + 1, weight)
        {
            let (_, longest) = other.loads.last_key_value()?;
            return other.members.get(longest)?.waiting.last_key_value().map(|(ticket, _)| *ticket);
        }
        let own = own?;
        let (_, longest) = own.loads.last_key_value()?;
        let (has, would_have) = (
            own.members.get(longest)?,
            own.members.get(member).map_or(0, |member| member.waiting.len()) + 1,
        );
        let goes = longest != member && has.waiting.len() > would_have;
        goes.then(|| has.waiting.last_key_value().map(|(ticket, _)| *ticket)).flatten()
    }

    /// Returns an owner with waiting entries, as stored in the queue, and its weight.
    pub fn waiting_owner(&self, owner: &O) -> Option<(&O, u32)> {
        self.owners.get_key_value(owner).map(|(owner, entry)| (owner, entry.weight))
    }

    /// Sets whether an owner is prioritized. The setting ends when its last entry leaves the queue.
    pub fn set_prioritized(&mut self, owner: &O, prioritized: bool) {
        let Some(entry) = self.owners.get_mut(owner) else { return };
        if std::mem::replace(&mut entry.prioritized, prioritized) == prioritized {
            return;
        }
        if prioritized {
            self.prioritized.insert(entry.turn, owner.clone());
        } else {
            self.prioritized.remove(&entry.turn);
        }
    }

    /// Sets for all owners whether they are prioritized.
    pub fn set_prioritized_all(&mut self, prioritized: impl Fn(&O, u32) -> bool) {
        self.prioritized.clear();
        for (owner, entry) in &mut self.owners {
            entry.prioritized = prioritized(owner, entry.weight);
            if entry.prioritized {
                self.prioritized.insert(entry.turn, owner.clone());
            }
        }
    }

    /// Returns the prioritized owner whose turn is first.
    pub fn first_prioritized(&self) -> Option<&O> {
        self.prioritized.first_key_value().map(|(_, owner)| owner)
    }

    /// Takes the next entry.
    pub fn pop(&mut self) -> Option<(O, T)> {
        let name = self.turns.first_key_value()?.1.clone();
        self.take_of(name)
    }

    /// Takes the next entry of a prioritized owner. The other owners keep their turns.
    pub fn pop_prioritized(&mut self) -> Option<(O, T)> {
        let name = self.first_prioritized()?.clone();
        self.take_of(name)
    }

    fn take_of(&mut self, name: O) -> Option<(O, T)> {
        let number = self.number();
        let owner = self.owners.get_mut(&name)?;
        if owner.credit == 0 {
            owner.credit = owner.weight;
        }
        owner.credit -= 1;
        if owner.credit == 0 {
            self.turns.remove(&owner.turn);
            if owner.prioritized {
                self.prioritized.remove(&owner.turn);
                self.prioritized.insert(number, name.clone());
            }
            owner.turn = number;
            self.turns.insert(number, name.clone());
        }
        let (turn, member_name) = owner.turns.pop_first()?;
        let member = owner.members.get_mut(&member_name)?;
        debug_assert_eq!(turn, member.turn);
        member.turn = number;
        owner.turns.insert(number, member_name.clone());
        let (ticket, _) = member.waiting.first_key_value()?;
        let ticket = *ticket;
        let value = self.remove(ticket)?;
        Some((name, value))
    }

    /// Removes an entry. Returns `None` if it was taken before.
    pub fn remove(&mut self, ticket: Ticket) -> Option<T> {
        let (name, member_name) = self.waiting.remove(&ticket)?;
        let owner = self.owners.get_mut(&name)?;
        self.loads.remove(&owner.rank());
        owner.waiting -= 1;
        let member = owner.members.get_mut(&member_name)?;
        owner.loads.remove(&member.rank());
        let value = member.waiting.remove(&ticket);
        if member.waiting.is_empty() {
            owner.turns.remove(&member.turn);
            owner.members.remove(&member_name);
        } else {
            owner.loads.insert(member.rank(), member_name);
        }
        if owner.waiting == 0 {
            self.weights -= u64::from(owner.weight);
            self.turns.remove(&owner.turn);
            self.prioritized.remove(&owner.turn);
            self.owners.remove(&name);
        } else {
            self.loads.insert(owner.rank(), name);
        }
        value
    }
}

/// Estimates the waiting time from the pace of the queue: the mean gap between two departures. One
/// long gap counts as one slow call. Several in a row are the new pace.
#[derive(Debug, Default)]
pub struct WaitEstimator {
    mean: Duration,
    /// Number of observed gaps.
    seen: u32,
    /// Consecutive gaps that were much longer than usual.
    long: u32,
    /// Time since which the queue waits for the next departure.
    since: Option<Duration>,
}

impl WaitEstimator {
    /// Notes that the queue is not empty any more.
    pub fn start_waiting(&mut self, now: Duration) {
        self.since = Some(now);
    }

    /// Notes a departure. `permits` is the number of permits of the limit.
    pub fn record_dequeue(&mut self, now: Duration, permits: usize, others_wait: bool) {
        if let Some(since) = self.since {
            self.learn(
                now.saturating_sub(since),
                u32::try_from(permits.max(1)).unwrap_or(u32::MAX),
            );
        }
        self.since = others_wait.then_some(now);
    }

    fn learn(&mut self, took: Duration, permits: u32) {
        self.mean = match self.seen {
            0 => took,
            // The first gap may have been an exception.
            1 => took.min(self.mean),
            seen => {
                // Up to `permits` calls may leave together, with a long gap after them.
                let usual = self.mean.saturating_mul(permits).max(PACE_GAP_USUAL);
                let longest = usual.saturating_mul(PACE_OUTLIER << self.long.min(16));
                self.long = match took {
                    long if long > longest => self.long + 1,
                    // Calls that end together cause one long gap and then short ones, which do not
                    // reset the count.
                    short if permits > 1 && short < self.mean => self.long,
                    _ => 0,
                };
                let weight = permits.clamp(PACE_WEIGHT, PACE_WEIGHT_MAX).min(seen + 1);
                (self.mean * (weight - 1) + took.min(longest)) / weight
            }
        };
        self.seen = self.seen.saturating_add(1).min(PACE_WEIGHT_MAX);
    }

    /// Notes that the queue is empty.
    pub fn stop_waiting(&mut self) {
        self.since = None;
    }

    /// Estimates the wait of a new entry with this many ahead of it. The current gap may last for
    /// half its length again. No better estimate of it exists.
    pub fn estimate(&self, now: Duration, ahead: usize) -> Duration {
        let stuck = self.since.map_or(Duration::ZERO, |since| now.saturating_sub(since));
        let each = if self.seen > 1 { self.mean } else { Duration::ZERO };
        each.saturating_mul(u32::try_from(ahead).unwrap_or(u32::MAX)).saturating_add(stuck / 2)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    type Queue = FairQueue<u32, u32, (u32, u32, u64)>;

    fn put(
        queue: &mut Queue,
        owner: u32,
        weight: u32,
        member: u32,
        n: u64,
    ) -> PushOutcome<(u32, u32, u64)> {
        queue.push(&owner, weight, &member, (owner, member, n))
    }

    fn next(queue: &mut Queue) -> Option<(u32, u32, u64)> {
        queue.pop().map(|(_, value)| value)
    }

    #[test]
    fn ten_owners_get_their_shares_by_weight() {
        let mut queue = Queue::new(100_000);
        for owner in 1..=10 {
            for n in 0..2_000 {
                put(&mut queue, owner, owner, n as u32 % 3, n);
            }
        }
        let mut served = BTreeMap::new();
        for _ in 0..5_500 {
            *served.entry(next(&mut queue).unwrap().0).or_insert(0) += 1;
        }
        for owner in 1..=10 {
            assert_eq!(served[&owner], owner * 100, "{served:?}");
        }
    }

    #[test]
    fn a_flood_of_one_owner_does_not_delay_another() {
        let mut queue = Queue::new(10_000);
        for n in 0..5_000 {
            put(&mut queue, 1, 1, 0, n);
        }
        put(&mut queue, 2, 1, 0, 0);
        let position = (0..).find(|_| next(&mut queue).unwrap().0 == 2).unwrap();
        assert!(position <= 1, "{position}");
    }

    #[test]
    fn members_of_one_owner_take_turns() {
        let mut queue = Queue::new(100);
        for n in 0..10 {
            put(&mut queue, 1, 5, 7, n);
        }
        for n in 0..3 {
            put(&mut queue, 1, 5, 8, n);
        }
        let order: Vec<u32> = (0..6).map(|_| next(&mut queue).unwrap().1).collect();
        assert_eq!(order, [7, 8, 7, 8, 7, 8]);
    }

    #[test]
    fn a_late_caller_in_a_full_queue_displaces_the_owner_with_the_most_entries() {
        let mut queue = Queue::new(10);
        for n in 0..10 {
            put(&mut queue, 1, 1, 0, n);
        }
        assert!(
            matches!(put(&mut queue, 1, 1, 0, 10), PushOutcome::Full(_)),
            "its own flood is its own problem"
        );
        match put(&mut queue, 2, 1, 0, 0) {
            PushOutcome::QueuedEvicting(_, gone) => assert_eq!(gone, (1, 0, 9), "the latest"),
            other => panic!("{other:?}"),
        }
        for n in 1..5 {
            assert!(matches!(put(&mut queue, 2, 1, 0, n), PushOutcome::QueuedEvicting(..)), "{n}");
        }
        assert!(matches!(put(&mut queue, 2, 1, 0, 5), PushOutcome::Full(_)), "both have five");
        assert_eq!(queue.len(), 10);
    }

    #[test]
    fn one_member_cannot_fill_the_queue_for_others_of_its_owner() {
        let mut queue = Queue::new(10);
        for n in 0..10 {
            put(&mut queue, 1, 1, 7, n);
        }
        for n in 0..5 {
            assert!(
                matches!(put(&mut queue, 1, 1, 8, n), PushOutcome::QueuedEvicting(_, gone) if gone.1 == 7),
                "{n}"
            );
        }
        assert!(matches!(put(&mut queue, 1, 1, 8, 5), PushOutcome::Full(_)), "both have five");
        assert!(matches!(put(&mut queue, 1, 1, 7, 5), PushOutcome::Full(_)));
        assert!(
            matches!(put(&mut queue, 2, 1, 8, 0), PushOutcome::QueuedEvicting(_, gone) if gone.0 == 1),
            "another owner comes first"
        );
        let order: Vec<(u32, u32)> = (0..4)
            .map(|_| next(&mut queue).unwrap())
            .map(|(owner, member, _)| (owner, member))
            .collect();
        assert_eq!(order, [(1, 7), (2, 8), (1, 8), (1, 7)]);
    }

    #[test]
    fn prioritized_owners_are_first_and_the_others_keep_their_turns() {
        let mut queue = Queue::new(10);
        for n in 0..2 {
            put(&mut queue, 1, 1, 0, n);
            put(&mut queue, 2, 1, 0, n);
        }
        let prioritized = |queue: &mut Queue| queue.pop_prioritized().map(|(_, value)| value);
        assert_eq!(
            prioritized(&mut queue),
            None,
            "an owner that is not prioritized does not come first"
        );
        queue.set_prioritized(&2, true);
        assert_eq!(prioritized(&mut queue), Some((2, 0, 0)));
        queue.set_prioritized(&2, false);
        assert_eq!(prioritized(&mut queue), None);
        queue.set_prioritized_all(|owner, weight| (*owner, weight) == (2, 1));
        assert_eq!(prioritized(&mut queue), Some((2, 0, 1)));
        assert_eq!(prioritized(&mut queue), None);
        assert_eq!((next(&mut queue), next(&mut queue)), (Some((1, 0, 0)), Some((1, 0, 1))));
    }

    /// Measured in steps of the same queue, because the machine also runs other work.
    #[test]
    fn finding_a_prioritized_owner_does_not_scan_all_owners() {
        let time = |owners: u32| {
            let mut queue = Queue::new(100_000);
            for n in 0..20_000 {
                put(&mut queue, n % owners, 1, n, n.into());
            }
            let started = std::time::Instant::now();
            for n in 0..20_000_u32 {
                let owner = n * 7 % owners;
                queue.set_prioritized(&owner, true);
                assert_eq!(
                    queue.pop_prioritized().map(|(owner, _)| owner),
                    queue.waiting_owner(&owner).map(|_| owner).or(Some(owner))
                );
                put(&mut queue, owner, 1, n, n.into());
                queue.set_prioritized(&owner, false);
                assert!(queue.first_prioritized().is_none() && queue.pop_prioritized().is_none());
            }
            started.elapsed()
        };
        let best = |owners: u32| (0..3).map(|_| time(owners)).min().unwrap();
        let (few, many) = (best(5), best(10_000));
        assert!(many < few * 20, "{many:?} among ten thousand, {few:?} among five");
    }

    /// Measured in steps of the same queue, because the machine also runs other work.
    #[test]
    fn a_full_queue_of_many_owners_is_not_slower_than_one_with_capacity() {
        let filled = |max: usize| {
            let mut queue = Queue::new(max);
            for n in 0..20_000 {
                put(&mut queue, n as u32 % 5_000, 1, n as u32, n);
            }
            queue
        };
        let time = |mut queue: Queue| {
            let started = std::time::Instant::now();
            for n in 0..20_000_u32 {
                put(&mut queue, 10_000 + n % 5_000, 1000, n, n.into());
            }
            started.elapsed()
        };
        let best = |max: usize| (0..3).map(|_| time(filled(max))).min().unwrap();
        let (roomy, full) = (best(100_000), best(20_000));
        assert!(full < roomy * 20, "{full:?} where it is full, {roomy:?} where it is not");
    }

    #[test]
    fn removed_entries_leave_no_state_in_the_queue() {
        let mut queue = Queue::new(1_000);
        for n in 0..10_000 {
            let kept = if n == 0 { Some(put(&mut queue, 1, 1, 1, n)) } else { None };
            assert!(kept.is_none_or(|put| matches!(put, PushOutcome::Queued(_))));
            let PushOutcome::Queued(ticket) = put(&mut queue, 1, 1, 1, n) else {
                panic!("there is room")
            };
            assert!(queue.remove(ticket).is_some() && queue.remove(ticket).is_none());
        }
        assert_eq!(queue.owners[&1].members[&1].waiting.len(), 1);
        assert!(
            next(&mut queue).is_some()
                && next(&mut queue).is_none()
                && queue.owners.is_empty()
                && queue.turns.is_empty()
        );
        assert!(queue.loads.is_empty() && queue.waiting.is_empty() && queue.prioritized.is_empty());
        assert_eq!(queue.weights, 0);
    }

    #[test]
    fn the_number_of_entries_ahead_follows_from_shares() {
        let mut queue = Queue::new(1_000);
        for n in 0..100 {
            put(&mut queue, 1, 1, 0, n);
        }
        assert_eq!(queue.ahead(&1, 1, &0), 100);
        assert_eq!(queue.ahead(&1, 1, &1), 2, "a new member of it is next but one");
        assert_eq!(queue.ahead(&2, 1, &0), 2, "and so is a new owner");
        assert_eq!(queue.ahead(&2, 4, &0), 2);
        assert_eq!(queue.ahead(&2, 4, &1), 2);
    }

    const fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Returns an estimator with a departure every ten milliseconds for one second, with others
    /// behind.
    fn steady() -> WaitEstimator {
        let mut pace = WaitEstimator::default();
        pace.start_waiting(at(0));
        (1..=100).for_each(|n| pace.record_dequeue(at(n * 10), 1, true));
        pace
    }

    #[test]
    fn the_estimate_follows_the_recent_pace() {
        assert_eq!(
            WaitEstimator::default().estimate(at(0), 10),
            Duration::ZERO,
            "nothing is known"
        );
        let mut pace = steady();
        assert_eq!(pace.estimate(at(1_000), 10), at(100));
        pace.record_dequeue(at(1_010), 1, false);
        assert_eq!(pace.estimate(at(100_000), 10), at(100), "an empty queue is not stuck");
        pace.start_waiting(at(100_000));
        // The queue has become slow and stays slow.
        (1..=40).for_each(|n| pace.record_dequeue(at(100_000 + n * 10_000), 1, true));
        assert!(pace.estimate(at(500_000), 10) > at(90_000), "{pace:?}");
        // The queue recovers.
        (1..=80).for_each(|n| pace.record_dequeue(at(500_000 + n * 10), 1, true));
        assert!(pace.estimate(at(500_800), 10) < at(1_000), "{pace:?}");
    }

    #[test]
    fn late_calls_that_end_together_raise_the_estimate() {
        let (mut pace, mut now) = (steady(), at(1_000));
        for _ in 0..4 {
            now += at(30_000);
            (0..20).for_each(|_| pace.record_dequeue(now, 20, true));
        }
        assert!(pace.estimate(now, 500) > at(30_000), "{pace:?}");
    }

    #[test]
    fn one_slow_call_in_front_does_not_raise_the_estimate() {
        // Also without earlier gaps, because the time of one call shows nothing about those behind
        // it.
        let mut pace = WaitEstimator::default();
        pace.start_waiting(at(0));
        assert!(pace.estimate(at(10_000), 30) <= at(10_000), "{pace:?}");
        pace.record_dequeue(at(10_000), 1, true);
        assert!(pace.estimate(at(10_001), 30) < at(100), "{pace:?}");
        pace.record_dequeue(at(10_010), 1, true);
        assert!(pace.estimate(at(10_010), 30) <= at(300), "{pace:?}");
        let mut pace = steady();
        assert!(
            pace.estimate(at(11_000), 30) <= at(300 + 10_000),
            "it may take as long again: {pace:?}"
        );
        pace.record_dequeue(at(11_000), 1, true);
        assert!(pace.estimate(at(11_000), 30) < at(600), "{pace:?}");
        (1..=16).for_each(|n| pace.record_dequeue(at(11_000 + n * 10), 1, true));
        assert!(pace.estimate(at(11_160), 30) < at(400), "{pace:?}");
    }

    #[test]
    fn departures_in_bursts_are_averaged_in_the_estimate() {
        let (mut pace, mut now) = (WaitEstimator::default(), at(0));
        pace.start_waiting(now);
        for _ in 0..200 {
            now += at(100);
            (0..50).for_each(|_| pace.record_dequeue(now, 50, true));
        }
        // Fifty departures every tenth of a second: two milliseconds each. Right after them the
        // queue looks faster than it is.
        now += at(100);
        pace.record_dequeue(now, 50, true);
        assert!((at(500)..at(4_000)).contains(&pace.estimate(now, 500)), "{pace:?}");
    }

    #[derive(Debug, Clone)]
    enum Step {
        Put(u32, u32),
        Next,
        NextFavoured,
        Favour(u32, bool),
        TakeAway(usize),
    }

    proptest! {
        #[test]
        fn each_entry_leaves_the_queue_once_and_in_order(
            steps in prop::collection::vec(prop_oneof![
                4 => (0_u32..4, 0_u32..3).prop_map(|(owner, member)| Step::Put(owner, member)),
                3 => Just(Step::Next),
                1 => Just(Step::NextFavoured),
                1 => (0_u32..4, any::<bool>()).prop_map(|(owner, yes)| Step::Favour(owner, yes)),
                1 => any::<usize>().prop_map(Step::TakeAway),
            ], 1..400)
        ) {
            let mut queue = Queue::new(50);
            let mut inside: Vec<(Ticket, (u32, u32, u64))> = Vec::new();
            for (n, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Put(owner, member) => match put(&mut queue, owner, owner + 1, member, n as u64) {
                        PushOutcome::Queued(ticket) => inside.push((ticket, (owner, member, n as u64))),
                        PushOutcome::QueuedEvicting(ticket, gone) => {
                            inside.retain(|(_, value)| *value != gone);
                            inside.push((ticket, (owner, member, n as u64)));
                        }
                        PushOutcome::Full(_) => {}
                    },
                    Step::Favour(owner, yes) => queue.set_prioritized(&owner, yes),
                    Step::Next | Step::NextFavoured => {
                        let prioritized = matches!(step, Step::NextFavoured);
                        let may = queue.owners.iter().filter(|(_, owner)| owner.prioritized || !prioritized).map(|(name, _)| *name);
                        let may: Vec<u32> = may.collect();
                        let next = if prioritized { queue.pop_prioritized() } else { queue.pop() };
                        match next {
                            Some((owner, value)) => {
                                prop_assert!(may.contains(&owner) && owner == value.0);
                                let first = inside.iter().position(|(_, other)| (other.0, other.1) == (value.0, value.1)).unwrap();
                                prop_assert_eq!(inside.remove(first).1, value, "the first of its member");
                            }
                            None => prop_assert!(may.is_empty()),
                        }
                    }
                    Step::TakeAway(at) if !inside.is_empty() => {
                        let (ticket, value) = inside.remove(at % inside.len());
                        prop_assert_eq!(queue.remove(ticket), Some(value));
                    }
                    Step::TakeAway(_) => {}
                }
                prop_assert_eq!(queue.len(), inside.len());
                prop_assert!(queue.len() <= 50);
                let weights: u64 = queue.owners.values().map(|owner| u64::from(owner.weight)).sum();
                prop_assert_eq!((queue.turns.len(), queue.weights), (queue.owners.len(), weights));
                prop_assert_eq!(queue.loads.len(), queue.owners.len());
                let prioritized = queue.owners.values().filter(|owner| owner.prioritized).count();
                prop_assert_eq!(queue.prioritized.len(), prioritized);
                for (name, owner) in &queue.owners {
                    prop_assert_eq!(queue.prioritized.get(&owner.turn), owner.prioritized.then_some(name));
                    prop_assert_eq!((queue.loads.get(&owner.rank()), queue.turns.get(&owner.turn)), (Some(name), Some(name)));
                    prop_assert_eq!((owner.turns.len(), owner.loads.len()), (owner.members.len(), owner.members.len()));
                }
            }
        }
    }
}
