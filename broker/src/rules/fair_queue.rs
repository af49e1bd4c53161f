//! Who is next where there is not room for all: deficit round robin over owners by their weight, then turn by turn over
//! the members of each. Used by [`crate::actors::gate`] in front of every backend and in front of all of them together.
//!
//! Invariants: putting in and taking out cost the same however many wait; nobody's share depends on how much others have
//! put in; what waits is bounded, and room for a late comer is made at the cost of whoever has most beyond its share.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
    time::Duration,
};

use crate::limits::PACE_WEIGHT;

/// What waits, by owner and member. `T` is what is handed out.
#[derive(Debug)]
pub struct FairQueue<O, M, T> {
    owners: HashMap<O, Owner<M>>,
    /// Owners with something waiting, each once.
    turns: VecDeque<O>,
    waiting: HashMap<Ticket, Waiting<O, M, T>>,
    next: u64,
    /// Of all owners in `turns`.
    weights: u64,
    max: usize,
}

/// What one is known by while it waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket(u64);

#[derive(Debug)]
struct Owner<M> {
    weight: u32,
    /// How many it may still have in this turn.
    credit: u32,
    waiting: usize,
    members: HashMap<M, Member>,
    /// Members with something waiting, each once.
    turns: VecDeque<M>,
}

#[derive(Debug, Default)]
struct Member {
    /// In order; some may have been taken away since.
    tickets: VecDeque<Ticket>,
    waiting: usize,
}

#[derive(Debug)]
struct Waiting<O, M, T> {
    owner: O,
    member: M,
    value: T,
}

/// What became of something that was put in.
#[derive(Debug)]
pub enum Put<T> {
    In(Ticket),
    /// It is in, and this one, the latest of whoever had most, had to go for it.
    Instead(Ticket, T),
    /// There is no room for it.
    Full(T),
}

impl<O: Clone + Eq + Hash, M: Clone + Eq + Hash, T> FairQueue<O, M, T> {
    pub fn new(max: usize) -> Self {
        Self { owners: HashMap::new(), turns: VecDeque::new(), waiting: HashMap::new(), next: 0, weights: 0, max }
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// How many go before one that this owner would put in now, at most.
    pub fn ahead(&self, owner: &O, weight: u32) -> usize {
        let weight = u64::from(weight.max(1));
        let (own, weights) = self.owners.get(owner).map_or((0, self.weights + weight), |known| (known.waiting as u64, self.weights));
        let by_share = (own + 1).saturating_mul(weights).div_ceil(weight);
        usize::try_from(by_share).unwrap_or(usize::MAX).min(self.len())
    }

    pub fn put(&mut self, owner: &O, weight: u32, member: &M, value: T) -> Put<T> {
        let mut gone = None;
        if self.len() >= self.max {
            match self.heaviest(owner, weight) {
                Some(heaviest) => gone = self.drop_latest(&heaviest),
                None => return Put::Full(value),
            }
        }
        let ticket = self.insert(owner, weight.max(1), member, value);
        gone.map_or(Put::In(ticket), |gone| Put::Instead(ticket, gone))
    }

    fn insert(&mut self, owner: &O, weight: u32, member: &M, value: T) -> Ticket {
        let ticket = Ticket(self.next);
        self.next += 1;
        let entry = self.owners.entry(owner.clone()).or_insert_with(|| {
            self.turns.push_back(owner.clone());
            self.weights += u64::from(weight);
            Owner { weight, credit: 0, waiting: 0, members: HashMap::new(), turns: VecDeque::new() }
        });
        self.weights = self.weights - u64::from(entry.weight) + u64::from(weight);
        entry.weight = weight;
        entry.waiting += 1;
        let queue = entry.members.entry(member.clone()).or_insert_with(|| {
            entry.turns.push_back(member.clone());
            Member::default()
        });
        queue.waiting += 1;
        queue.tickets.push_back(ticket);
        self.waiting.insert(ticket, Waiting { owner: owner.clone(), member: member.clone(), value });
        ticket
    }

    /// Whoever has most for its weight, and more than this owner would have then.
    fn heaviest(&self, owner: &O, weight: u32) -> Option<O> {
        let own = self.owners.get(owner).map_or(0, |known| known.waiting) + 1;
        let load = |waiting: usize, weight: u32| waiting as f64 / f64::from(weight.max(1));
        let (heaviest, entry) =
            self.owners.iter().max_by(|(_, a), (_, b)| load(a.waiting, a.weight).total_cmp(&load(b.waiting, b.weight)))?;
        (heaviest != owner && load(entry.waiting, entry.weight) > load(own, weight)).then(|| heaviest.clone())
    }

    fn drop_latest(&mut self, owner: &O) -> Option<T> {
        let entry = self.owners.get(owner)?;
        let (_, longest) = entry.members.iter().max_by_key(|(_, member)| member.waiting)?;
        let latest = longest.tickets.iter().rev().find(|ticket| self.waiting.contains_key(ticket)).copied()?;
        self.take_away(latest)
    }

    /// Whoever is next.
    pub fn take_next(&mut self) -> Option<T> {
        let name = self.turns.front()?.clone();
        let owner = self.owners.get_mut(&name)?;
        if owner.credit == 0 {
            owner.credit = owner.weight;
        }
        owner.credit -= 1;
        let member_name = owner.turns.pop_front()?;
        let member = owner.members.get_mut(&member_name)?;
        let waiting = loop {
            let ticket = member.tickets.pop_front()?;
            if let Some(waiting) = self.waiting.remove(&ticket) {
                break waiting;
            }
        };
        member.waiting -= 1;
        owner.waiting -= 1;
        if member.waiting == 0 {
            owner.members.remove(&member_name);
        } else {
            owner.turns.push_back(member_name);
        }
        if owner.waiting == 0 {
            self.weights -= u64::from(owner.weight);
            self.owners.remove(&name);
            self.turns.pop_front();
        } else if owner.credit == 0 {
            self.turns.rotate_left(1);
        }
        Some(waiting.value)
    }

    /// It does not want to wait any more. None: it was taken out before.
    pub fn take_away(&mut self, ticket: Ticket) -> Option<T> {
        let gone = self.waiting.remove(&ticket)?;
        let owner = self.owners.get_mut(&gone.owner)?;
        owner.waiting -= 1;
        if owner.waiting == 0 {
            self.weights -= u64::from(owner.weight);
            self.owners.remove(&gone.owner);
            self.turns.retain(|name| *name != gone.owner);
            return Some(gone.value);
        }
        let member = owner.members.get_mut(&gone.member)?;
        member.waiting -= 1;
        if member.waiting == 0 {
            owner.members.remove(&gone.member);
            owner.turns.retain(|name| *name != gone.member);
        } else if member.tickets.len() > 2 * member.waiting + 16 {
            // Those taken away from the middle must not pile up where nothing is taken out.
            member.tickets.retain(|ticket| self.waiting.contains_key(ticket));
        }
        Some(gone.value)
    }
}

/// How fast a queue moves: the mean time from one that leaves to the next.
#[derive(Debug, Default)]
pub struct Pace {
    mean: Option<Duration>,
    /// Since when the queue waits for the next to leave.
    since: Option<Duration>,
}

impl Pace {
    /// Somebody has begun to wait where nobody did.
    pub fn begins(&mut self, now: Duration) {
        self.since = Some(now);
    }

    /// One left the queue, and others may still wait.
    pub fn moved(&mut self, now: Duration, others_wait: bool) {
        if let Some(since) = self.since {
            let took = now.saturating_sub(since);
            self.mean = Some(self.mean.map_or(took, |mean| (mean * (PACE_WEIGHT - 1) + took) / PACE_WEIGHT));
        }
        self.since = others_wait.then_some(now);
    }

    /// Nobody waits any more.
    pub fn ends(&mut self) {
        self.since = None;
    }

    /// How long one waits that comes after so many. Nothing is known of a queue that never moved, but that it does not.
    pub fn wait(&self, now: Duration, ahead: usize) -> Duration {
        let stuck = self.since.map_or(Duration::ZERO, |since| now.saturating_sub(since));
        let each = self.mean.unwrap_or_default().max(stuck / 2);
        each.saturating_mul(u32::try_from(ahead).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    type Queue = FairQueue<u32, u32, (u32, u32, u64)>;

    fn put(queue: &mut Queue, owner: u32, weight: u32, member: u32, n: u64) -> Put<(u32, u32, u64)> {
        queue.put(&owner, weight, &member, (owner, member, n))
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
            *served.entry(queue.take_next().unwrap().0).or_insert(0) += 1;
        }
        for owner in 1..=10 {
            assert_eq!(served[&owner], owner * 100, "{served:?}");
        }
    }

    #[test]
    fn a_flood_of_one_does_not_delay_another() {
        let mut queue = Queue::new(10_000);
        for n in 0..5_000 {
            put(&mut queue, 1, 1, 0, n);
        }
        put(&mut queue, 2, 1, 0, 0);
        let place = (0..).find(|_| queue.take_next().unwrap().0 == 2).unwrap();
        assert!(place <= 1, "{place}");
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
        let order: Vec<u32> = (0..6).map(|_| queue.take_next().unwrap().1).collect();
        assert_eq!(order, [7, 8, 7, 8, 7, 8]);
    }

    #[test]
    fn who_comes_late_to_a_full_queue_gets_the_place_of_whoever_has_most() {
        let mut queue = Queue::new(10);
        for n in 0..10 {
            put(&mut queue, 1, 1, 0, n);
        }
        assert!(matches!(put(&mut queue, 1, 1, 0, 10), Put::Full(_)), "its own flood is its own problem");
        match put(&mut queue, 2, 1, 0, 0) {
            Put::Instead(_, gone) => assert_eq!(gone, (1, 0, 9), "the latest"),
            other => panic!("{other:?}"),
        }
        for n in 1..5 {
            assert!(matches!(put(&mut queue, 2, 1, 0, n), Put::Instead(..)), "{n}");
        }
        assert!(matches!(put(&mut queue, 2, 1, 0, 5), Put::Full(_)), "both have five");
        assert_eq!(queue.len(), 10);
    }

    #[test]
    fn what_is_taken_away_leaves_nothing_behind() {
        let mut queue = Queue::new(1_000);
        for n in 0..10_000 {
            let kept = if n == 0 { Some(put(&mut queue, 1, 1, 1, n)) } else { None };
            assert!(kept.is_none_or(|put| matches!(put, Put::In(_))));
            let Put::In(ticket) = put(&mut queue, 1, 1, 1, n) else { panic!("there is room") };
            assert!(queue.take_away(ticket).is_some() && queue.take_away(ticket).is_none());
        }
        assert!(queue.owners[&1].members[&1].tickets.len() < 64);
        assert!(queue.take_next().is_some() && queue.take_next().is_none() && queue.owners.is_empty() && queue.turns.is_empty());
        assert_eq!(queue.weights, 0);
    }

    #[test]
    fn the_wait_is_told_by_share_and_pace() {
        let mut queue = Queue::new(1_000);
        for n in 0..100 {
            put(&mut queue, 1, 1, 0, n);
        }
        assert_eq!(queue.ahead(&1, 1), 100);
        assert_eq!(queue.ahead(&2, 1), 2, "a new owner is next but one");
        assert_eq!(queue.ahead(&2, 4), 2);
        let mut pace = Pace::default();
        let at = Duration::from_millis;
        assert_eq!(pace.wait(at(0), 10), Duration::ZERO, "nothing is known");
        pace.begins(at(0));
        (1..=100).for_each(|n| pace.moved(at(n * 10), true));
        assert_eq!(pace.wait(at(1_000), 10), at(100));
        assert_eq!(pace.wait(at(3_000), 10), at(10_000), "it got stuck");
        pace.moved(at(3_000), false);
        assert!(pace.wait(at(100_000), 1) < at(500), "nobody waits: that is not being stuck");
    }

    #[derive(Debug, Clone)]
    enum Step {
        Put(u32, u32),
        Next,
        TakeAway(usize),
    }

    proptest! {
        #[test]
        fn each_comes_out_once_and_in_order(
            steps in prop::collection::vec(prop_oneof![
                4 => (0_u32..4, 0_u32..3).prop_map(|(owner, member)| Step::Put(owner, member)),
                3 => Just(Step::Next),
                1 => any::<usize>().prop_map(Step::TakeAway),
            ], 1..400)
        ) {
            let mut queue = Queue::new(50);
            let mut inside: Vec<(Ticket, (u32, u32, u64))> = Vec::new();
            for (n, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Put(owner, member) => match put(&mut queue, owner, owner + 1, member, n as u64) {
                        Put::In(ticket) => inside.push((ticket, (owner, member, n as u64))),
                        Put::Instead(ticket, gone) => {
                            inside.retain(|(_, value)| *value != gone);
                            inside.push((ticket, (owner, member, n as u64)));
                        }
                        Put::Full(_) => {}
                    },
                    Step::Next => match queue.take_next() {
                        Some(value) => {
                            let first = inside.iter().position(|(_, other)| (other.0, other.1) == (value.0, value.1)).unwrap();
                            prop_assert_eq!(inside.remove(first).1, value, "the first of its member");
                        }
                        None => prop_assert!(inside.is_empty()),
                    },
                    Step::TakeAway(at) if !inside.is_empty() => {
                        let (ticket, value) = inside.remove(at % inside.len());
                        prop_assert_eq!(queue.take_away(ticket), Some(value));
                    }
                    Step::TakeAway(_) => {}
                }
                prop_assert_eq!(queue.len(), inside.len());
                prop_assert!(queue.len() <= 50);
                let weights: u64 = queue.owners.values().map(|owner| u64::from(owner.weight)).sum();
                prop_assert_eq!((queue.turns.len(), queue.weights), (queue.owners.len(), weights));
            }
        }
    }
}
