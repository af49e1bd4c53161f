//! Who is next where there is not room for all: deficit round robin over owners by their weight, then turn by turn over
//! the members of each. Used by [`crate::actors::gate`] in front of every backend and in front of all of them together.
//!
//! Invariants: what a step costs grows with the logarithm of who waits at most, also where the queue is full (but for owners
//! that may have nothing now, which are passed over one by one); nobody's share
//! depends on how much others have put in; what waits is bounded, and room for a late comer is made at the cost of whoever has
//! most beyond its share: of owners first, then of the members of its own.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
    time::Duration,
};

use crate::limits::PACE_WEIGHT;

/// What waits, by owner and member. `T` is what is handed out.
#[derive(Debug)]
pub struct FairQueue<O, M, T> {
    owners: HashMap<O, Owner<M, T>>,
    /// Owners with something waiting, in the order of their turns.
    turns: BTreeMap<u64, O>,
    /// The same by what they have for their weight.
    loads: BTreeMap<Rank, O>,
    waiting: HashMap<Ticket, (O, M)>,
    /// Numbers tickets, turns and names.
    next: u64,
    /// Of all owners in `turns`.
    weights: u64,
    max: usize,
}

/// What one is known by while it waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(u64);

/// How much one has, and a number of its own so that no two are the same.
type Rank = (u64, u64);

#[derive(Debug)]
struct Owner<M, T> {
    weight: u32,
    /// How many it may still have in this turn.
    credit: u32,
    waiting: usize,
    turn: u64,
    name: u64,
    members: HashMap<M, Member<T>>,
    /// Members with something waiting, in the order of their turns.
    turns: BTreeMap<u64, M>,
    /// The same by how much they have.
    loads: BTreeMap<Rank, M>,
}

#[derive(Debug)]
struct Member<T> {
    waiting: BTreeMap<Ticket, T>,
    turn: u64,
    name: u64,
}

impl<M, T> Owner<M, T> {
    fn rank(&self) -> Rank {
        (load(self.waiting, self.weight), self.name)
    }
}

impl<T> Member<T> {
    fn rank(&self) -> Rank {
        (self.waiting.len() as u64, self.name)
    }
}

/// What waits for its weight, fine enough for any weight there is.
fn load(waiting: usize, weight: u32) -> u64 {
    (waiting as u64).saturating_mul(1 << 20) / u64::from(weight.max(1))
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
        Self { owners: HashMap::new(), turns: BTreeMap::new(), loads: BTreeMap::new(), waiting: HashMap::new(), next: 0, weights: 0, max }
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// How many go before one that this member of this owner would put in now, at most.
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

    pub fn put(&mut self, owner: &O, weight: u32, member: &M, value: T) -> Put<T> {
        let mut gone = None;
        if self.len() >= self.max {
            gone = self.who_has_to_go(owner, weight, member).and_then(|ticket| self.take_away(ticket));
            if gone.is_none() {
                return Put::Full(value);
            }
        }
        let ticket = self.insert(owner, weight.max(1), member, value);
        gone.map_or(Put::In(ticket), |gone| Put::Instead(ticket, gone))
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn insert(&mut self, owner: &O, weight: u32, member: &M, value: T) -> Ticket {
        let (ticket, owner_number, member_number) = (Ticket(self.number()), self.number(), self.number());
        let entry = self.owners.entry(owner.clone()).or_insert_with(|| {
            self.turns.insert(owner_number, owner.clone());
            self.weights += u64::from(weight);
            let (turns, loads) = (BTreeMap::new(), BTreeMap::new());
            Owner { weight, credit: 0, waiting: 0, turn: owner_number, name: owner_number, members: HashMap::new(), turns, loads }
        });
        self.loads.remove(&entry.rank());
        self.weights = self.weights - u64::from(entry.weight) + u64::from(weight);
        entry.weight = weight;
        entry.waiting += 1;
        self.loads.insert(entry.rank(), owner.clone());
        let queue = entry.members.entry(member.clone()).or_insert_with(|| {
            entry.turns.insert(member_number, member.clone());
            Member { waiting: BTreeMap::new(), turn: member_number, name: member_number }
        });
        entry.loads.remove(&queue.rank());
        queue.waiting.insert(ticket, value);
        entry.loads.insert(queue.rank(), member.clone());
        self.waiting.insert(ticket, (owner.clone(), member.clone()));
        ticket
    }

    /// The latest of whoever has most for its weight, and more than this owner would have then; else the latest of whichever
    /// of its own members has most, and more than this one would have.
    fn who_has_to_go(&self, owner: &O, weight: u32, member: &M) -> Option<Ticket> {
        let own = self.owners.get(owner);
        let (_, heaviest) = self.loads.last_key_value()?;
        let other = self.owners.get(heaviest)?;
        if heaviest != owner && load(other.waiting, other.weight) > load(own.map_or(0, |own| own.waiting) + 1, weight) {
            let (_, longest) = other.loads.last_key_value()?;
            return other.members.get(longest)?.waiting.last_key_value().map(|(ticket, _)| *ticket);
        }
        let own = own?;
        let (_, longest) = own.loads.last_key_value()?;
        let (has, would_have) = (own.members.get(longest)?, own.members.get(member).map_or(0, |member| member.waiting.len()) + 1);
        let goes = longest != member && has.waiting.len() > would_have;
        goes.then(|| has.waiting.last_key_value().map(|(ticket, _)| *ticket)).flatten()
    }

    /// Whoever is next.
    #[cfg(test)]
    pub fn take_next(&mut self) -> Option<T> {
        self.take_next_of(|_, _| true).map(|(_, value)| value)
    }

    /// Whoever is next of the owners that may have something, told by name and weight. Who may not keeps its turn, and is looked
    /// at on the way: where none may, this costs a look at each owner.
    pub fn take_next_of(&mut self, may: impl Fn(&O, u32) -> bool) -> Option<(O, T)> {
        let allowed = |name: &O| self.owners.get(name).is_some_and(|owner| may(name, owner.weight));
        let name = self.turns.values().find(|name| allowed(name))?.clone();
        let number = self.number();
        let owner = self.owners.get_mut(&name)?;
        if owner.credit == 0 {
            owner.credit = owner.weight;
        }
        owner.credit -= 1;
        if owner.credit == 0 {
            self.turns.remove(&owner.turn);
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
        let value = self.take_away(ticket)?;
        Some((name, value))
    }

    /// It does not want to wait any more. None: it was taken out before.
    pub fn take_away(&mut self, ticket: Ticket) -> Option<T> {
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
            self.owners.remove(&name);
        } else {
            self.loads.insert(owner.rank(), name);
        }
        value
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
    fn one_member_can_not_fill_the_queue_for_the_others_of_its_owner() {
        let mut queue = Queue::new(10);
        for n in 0..10 {
            put(&mut queue, 1, 1, 7, n);
        }
        for n in 0..5 {
            assert!(matches!(put(&mut queue, 1, 1, 8, n), Put::Instead(_, gone) if gone.1 == 7), "{n}");
        }
        assert!(matches!(put(&mut queue, 1, 1, 8, 5), Put::Full(_)), "both have five");
        assert!(matches!(put(&mut queue, 1, 1, 7, 5), Put::Full(_)));
        assert!(matches!(put(&mut queue, 2, 1, 8, 0), Put::Instead(_, gone) if gone.0 == 1), "another owner comes first");
        let order: Vec<(u32, u32)> = (0..4).map(|_| queue.take_next().unwrap()).map(|(owner, member, _)| (owner, member)).collect();
        assert_eq!(order, [(1, 7), (2, 8), (1, 8), (1, 7)]);
    }

    #[test]
    fn who_may_have_nothing_now_keeps_its_turn() {
        let mut queue = Queue::new(10);
        for n in 0..2 {
            put(&mut queue, 1, 1, 0, n);
            put(&mut queue, 2, 1, 0, n);
        }
        let next_of_two = |queue: &mut Queue| queue.take_next_of(|owner, _| *owner == 2).map(|(_, value)| value);
        assert_eq!(next_of_two(&mut queue), Some((2, 0, 0)));
        assert_eq!(next_of_two(&mut queue), Some((2, 0, 1)));
        assert_eq!(next_of_two(&mut queue), None);
        assert_eq!((queue.take_next(), queue.take_next()), (Some((1, 0, 0)), Some((1, 0, 1))));
    }

    /// Measured in steps of the same queue, not in time of a machine that does other things too.
    #[test]
    fn a_full_queue_of_many_owners_costs_no_more_than_one_that_has_room() {
        let filled = |max: usize| {
            let mut queue = Queue::new(max);
            for n in 0..20_000 {
                put(&mut queue, n as u32 % 5_000, 1, n as u32, n);
            }
            queue
        };
        let time = |mut queue: Queue| {
            let begun = std::time::Instant::now();
            for n in 0..20_000_u32 {
                put(&mut queue, 10_000 + n % 5_000, 1000, n, n.into());
            }
            begun.elapsed()
        };
        let best = |max: usize| (0..3).map(|_| time(filled(max))).min().unwrap();
        let (roomy, full) = (best(100_000), best(20_000));
        assert!(full < roomy * 20, "{full:?} where it is full, {roomy:?} where it is not");
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
        assert_eq!(queue.owners[&1].members[&1].waiting.len(), 1);
        assert!(queue.take_next().is_some() && queue.take_next().is_none() && queue.owners.is_empty() && queue.turns.is_empty());
        assert!(queue.loads.is_empty() && queue.waiting.is_empty());
        assert_eq!(queue.weights, 0);
    }

    #[test]
    fn the_wait_is_told_by_share_and_pace() {
        let mut queue = Queue::new(1_000);
        for n in 0..100 {
            put(&mut queue, 1, 1, 0, n);
        }
        assert_eq!(queue.ahead(&1, 1, &0), 100);
        assert_eq!(queue.ahead(&1, 1, &1), 2, "a new member of it is next but one");
        assert_eq!(queue.ahead(&2, 1, &0), 2, "and so is a new owner");
        assert_eq!(queue.ahead(&2, 4, &0), 2);
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
                prop_assert_eq!(queue.loads.len(), queue.owners.len());
                for (name, owner) in &queue.owners {
                    prop_assert_eq!((queue.loads.get(&owner.rank()), queue.turns.get(&owner.turn)), (Some(name), Some(name)));
                    prop_assert_eq!((owner.turns.len(), owner.loads.len()), (owner.members.len(), owner.members.len()));
                }
            }
        }
    }
}
