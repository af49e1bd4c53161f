//! Limit of concurrent calls, with a fair queue in front of it. Each backend has one, and the
//! broker has one for all calls together ([`crate::admission::limiters::Limiters::calls`]).
//!
//! The limiter of all calls reserves a part of its permits. A reserved permit goes to an owner that
//! holds less than its share of that part. An owner that holds little therefore does not wait for
//! the calls of others to end, however many of them hang.
//!
//! Invariants:
//!
//! - An owner that finds a free permit while the queue is empty pays one atomic operation and no
//!   lock.
//! - A permit goes to an owner that waits and is eligible for it before it goes to a later one.
//! - A permit is free again when its [`LimiterPermit`] is dropped, whatever became of its user.

use std::{
    hash::Hash,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use prometheus::IntGauge;
use rules::{
    fair_queue::{FairQueue, PushOutcome, Ticket, WaitEstimator},
    limits::{RESERVE_DIVISOR, RESERVE_LIMIT_MIN, RESERVE_SHARE_MIN},
};
use tokio::sync::oneshot;

use protocol::ids::{PrincipalId, TenantId};

/// The owner of a share, such as a tenant or a principal.
pub trait ShareOwner: Clone + Eq + Hash + Unpin {
    /// Returns the number of permits that the owner holds, if the limiter counts them.
    fn permits_held(&self) -> Option<&AtomicUsize> {
        None
    }
}

impl ShareOwner for PrincipalId {}

/// A tenant and the number of permits that it holds.
#[derive(Debug, Clone)]
pub struct TenantShare(Arc<(TenantId, AtomicUsize)>);

impl TenantShare {
    pub fn of(tenant: TenantId) -> Self {
        Self(Arc::new((tenant, AtomicUsize::new(0))))
    }
}

impl ShareOwner for TenantShare {
    fn permits_held(&self) -> Option<&AtomicUsize> {
        Some(&self.0.1)
    }
}

impl PartialEq for TenantShare {
    fn eq(&self, other: &Self) -> bool {
        self.0.0 == other.0.0
    }
}

impl Eq for TenantShare {}

impl Hash for TenantShare {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.0.hash(state);
    }
}

/// A limit with its queue. `O` owns a share, `M` is a member of an owner.
#[derive(Debug)]
pub struct ConcurrencyLimiter<O, M> {
    /// Number of granted permits in the lower half, and of waiting callers in the upper half.
    counts: AtomicU64,
    limit: AtomicUsize,
    /// Part of `limit` that is reserved for owners below their share.
    reserved: AtomicUsize,
    /// Sum of the weights of all owners, to compute shares of the reserved part.
    weights: AtomicU64,
    queue: Mutex<WaitQueue<O, M>>,
    depth: IntGauge,
    origin: Instant,
}

#[derive(Debug)]
struct WaitQueue<O, M> {
    /// Waiting callers, each with its owner. Another owner of the same name may have joined since.
    fair: FairQueue<O, M, (O, oneshot::Sender<QueueSignal>)>,
    pace: WaitEstimator,
}

/// The signal to a waiting caller. A dropped sender means that another caller took its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum QueueSignal {
    Granted,
    Drained,
}

const ONE_WAITS: u64 = 1 << 32;
const IN_MASK: u64 = ONE_WAITS - 1;

/// Reasons for which a caller gets no permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcquireError {
    /// The queue is full, or a caller with a better claim took the position in the queue.
    Full { wait: Duration },
    /// The turn of the caller would come after its deadline.
    TooLate { wait: Duration },
    /// The queue was drained.
    Drained,
}

impl<O: ShareOwner, M: Clone + Eq + Hash> ConcurrencyLimiter<O, M> {
    /// Creates a limiter with `limit` permits and a queue of `waiting_max`. `depth` counts the
    /// waiting callers.
    pub fn new(limit: usize, waiting_max: usize, depth: IntGauge) -> Arc<Self> {
        let queue = WaitQueue { fair: FairQueue::new(waiting_max), pace: WaitEstimator::default() };
        Arc::new(Self {
            counts: AtomicU64::new(0),
            limit: AtomicUsize::new(limit),
            reserved: AtomicUsize::new(0),
            weights: AtomicU64::new(1),
            queue: Mutex::new(queue),
            depth,
            origin: Instant::now(),
        })
    }

    /// Sets the weights of all owners. A single owner needs no reserve. A limit below
    /// [`RESERVE_LIMIT_MIN`] needs [`RESERVE_SHARE_MIN`] permits for the lightest share. With
    /// fewer, an owner without a permit would get more than its share.
    pub fn set_shares(&self, owners: impl Iterator<Item = u32>) {
        let (mut count, mut weights, mut least) = (0_usize, 0, u64::MAX);
        for weight in owners.map(|weight| u64::from(weight.max(1))) {
            (count, weights, least) = (count + 1, weights + weight, least.min(weight));
        }
        let limit = self.limit();
        let is_shared = count > 1
            && (limit >= RESERVE_LIMIT_MIN
                || limit as u64 * least >= weights * RESERVE_SHARE_MIN as u64);
        // Under the lock, so that a caller that joins the queue meanwhile sees the new shares.
        let mut queue = self.queue.lock();
        self.weights.store(weights.max(1), Ordering::Relaxed);
        self.reserved.store(if is_shared { limit / RESERVE_DIVISOR } else { 0 }, Ordering::Relaxed);
        queue.fair.set_prioritized_all(|owner, weight| {
            owner.permits_held().is_some() && self.is_below_share(owner, weight)
        });
        self.grant_permits(&mut queue);
    }

    /// Takes a permit if one is free and no caller waits.
    pub fn try_acquire(self: &Arc<Self>, owner: &O, weight: u32) -> Option<LimiterPermit<O, M>> {
        self.try_take(owner, weight).then(|| self.permit(owner))
    }

    /// Waits for a permit, for `wait_max` at most. Cancel-safe: a dropped wait leaves the queue.
    pub async fn acquire(
        self: &Arc<Self>,
        owner: &O,
        weight: u32,
        member: &M,
        wait_max: Duration,
    ) -> Result<LimiterPermit<O, M>, AcquireError> {
        if let Some(permit) = self.try_acquire(owner, weight) {
            return Ok(permit);
        }
        match self.enqueue(owner, weight, member, wait_max)? {
            Some(waiting) => waiting.await,
            None => Ok(self.permit(owner)),
        }
    }

    fn try_take(&self, owner: &O, weight: u32) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        let open = (limit - self.reserved.load(Ordering::Relaxed).min(limit)) as u64;
        // A waiting caller makes the packed counts larger than any limit.
        let taken = |packed: u64| {
            (packed < open || (packed < limit as u64 && self.is_below_share(owner, weight)))
                .then_some(packed + 1)
        };
        let found = self.counts.fetch_update(Ordering::AcqRel, Ordering::Relaxed, taken).is_ok();
        if found {
            add_held(owner);
        }
        found
    }

    /// Returns whether the owner may take a reserved permit.
    fn is_below_share(&self, owner: &O, weight: u32) -> bool {
        let Some(held) = owner.permits_held() else { return true };
        let kept = self.reserved.load(Ordering::Relaxed) as u64;
        let part = kept.saturating_mul(weight.into()) / self.weights.load(Ordering::Relaxed);
        kept == 0 || (held.load(Ordering::Relaxed) as u64) < part.max(1)
    }

    fn may_take(&self, owner: &O, weight: u32) -> bool {
        let (inside, limit) = (self.in_use(), self.limit());
        inside + self.reserved.load(Ordering::Relaxed) < limit
            || (inside < limit && self.is_below_share(owner, weight))
    }

    /// Takes a permit past the queue, because no waiting caller may have it.
    fn try_bypass_queue(&self, queue: &mut WaitQueue<O, M>, owner: &O, weight: u32) -> bool {
        if !self.may_take(owner, weight) {
            return false;
        }
        // While the queue is empty, other callers enter without a lock.
        let limit = self.limit() as u64;
        let taken = |packed: u64| (packed & IN_MASK < limit).then_some(packed + 1);
        let took = self.counts.fetch_update(Ordering::AcqRel, Ordering::Relaxed, taken).is_ok();
        if took {
            add_held(owner);
            self.refresh_priority(queue, owner);
        }
        took
    }

    fn permit(self: &Arc<Self>, owner: &O) -> LimiterPermit<O, M> {
        LimiterPermit {
            limiter: self.clone(),
            owner: owner.permits_held().is_some().then(|| owner.clone()),
        }
    }

    /// Joins the queue. Returns `None` if there is a free permit after all.
    fn enqueue(
        self: &Arc<Self>,
        owner: &O,
        weight: u32,
        member: &M,
        wait_max: Duration,
    ) -> Result<Option<Acquire<O, M>>, AcquireError> {
        let mut queue = self.queue.lock();
        // A permit may have become free before the counter showed a waiting caller. A caller that
        // still waits after this may not have a free permit: it is reserved for others.
        self.grant_permits(&mut queue);
        if self.try_bypass_queue(&mut queue, owner, weight) {
            return Ok(None);
        }
        let now = self.origin.elapsed();
        let ahead = queue.fair.ahead(owner, weight, member);
        let wait = queue.pace.estimate(now, ahead);
        // A margin of a quarter: a wait that ends too late costs the client time for nothing.
        if ahead > 0 && wait + wait / 4 > wait_max {
            return Err(AcquireError::TooLate { wait });
        }
        if queue.fair.is_empty() {
            queue.pace.start_waiting(now);
        }
        let (granted_tx, granted) = oneshot::channel();
        let ticket = match queue.fair.push(owner, weight, member, (owner.clone(), granted_tx)) {
            PushOutcome::Full(_) => return Err(AcquireError::Full { wait }),
            PushOutcome::QueuedEvicting(ticket, displaced) => {
                drop(displaced); // its sender is dropped, which ends its wait
                ticket
            }
            PushOutcome::Queued(ticket) => {
                self.counts.fetch_add(ONE_WAITS, Ordering::AcqRel);
                self.depth.inc();
                ticket
            }
        };
        // Again, because a permit that was released in between saw an empty queue. Its permit is
        // counted now.
        self.refresh_priority(&mut queue, owner);
        self.grant_permits(&mut queue);
        Ok(Some(Acquire {
            limiter: self.clone(),
            owner: owner.clone(),
            ticket,
            granted,
            wait,
            over: false,
        }))
    }

    fn grant_permits(&self, queue: &mut WaitQueue<O, M>) {
        while let Some((owner, grant)) = self.next(queue) {
            self.counts.fetch_sub(ONE_WAITS - 1, Ordering::AcqRel); // one fewer waits, one more is in
            self.depth.dec();
            add_held(&owner);
            if grant.send(QueueSignal::Granted).is_ok() {
                queue.pace.record_dequeue(
                    self.origin.elapsed(),
                    self.limit(),
                    !queue.fair.is_empty(),
                );
            } else {
                remove_held(&owner);
                self.counts.fetch_sub(1, Ordering::AcqRel); // it has just stopped waiting
            }
            self.refresh_priority(queue, &owner);
        }
    }

    /// Returns the next caller that may enter now.
    fn next(&self, queue: &mut WaitQueue<O, M>) -> Option<(O, oneshot::Sender<QueueSignal>)> {
        let (inside, limit) = (self.in_use(), self.limit());
        if inside + self.reserved.load(Ordering::Relaxed) < limit {
            return queue.fair.pop().map(|(_, next)| next);
        }
        if inside >= limit {
            return None;
        }
        loop {
            let owner = queue.fair.first_prioritized()?.clone();
            // The owner may hold more permits by now.
            self.refresh_priority(queue, &owner);
            if queue.fair.first_prioritized() == Some(&owner) {
                return queue.fair.pop_prioritized().map(|(_, next)| next);
            }
        }
    }

    /// Recomputes whether an owner may take a reserved permit. Called whenever its number of
    /// permits changes while callers wait.
    fn refresh_priority(&self, queue: &mut WaitQueue<O, M>, owner: &O) {
        if owner.permits_held().is_some()
            && let Some((owner, weight)) = queue.fair.waiting_owner(owner)
        {
            let (owner, little) = (owner.clone(), self.is_below_share(owner, weight));
            queue.fair.set_prioritized(&owner, little);
        }
    }

    fn release(&self, owner: Option<&O>) {
        owner.inspect(|owner| remove_held(*owner));
        if self.counts.fetch_sub(1, Ordering::AcqRel) >= ONE_WAITS {
            let mut queue = self.queue.lock();
            owner.inspect(|owner| self.refresh_priority(&mut queue, owner));
            self.grant_permits(&mut queue);
        }
    }

    fn cancel_wait(&self, ticket: Ticket) {
        let mut queue = self.queue.lock();
        if queue.fair.remove(ticket).is_some() {
            self.counts.fetch_sub(ONE_WAITS, Ordering::AcqRel);
            self.depth.dec();
            if queue.fair.is_empty() {
                queue.pace.stop_waiting();
            }
        }
    }

    /// Refuses all waiting callers with [`AcquireError::Drained`].
    pub fn drain_queue(&self) {
        let mut queue = self.queue.lock();
        while let Some((_, (_, grant))) = queue.fair.pop() {
            self.counts.fetch_sub(ONE_WAITS, Ordering::AcqRel);
            self.depth.dec();
            let _may_be_gone = grant.send(QueueSignal::Drained);
        }
        queue.pace.stop_waiting();
    }

    pub fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
        if self.queued() > 0 {
            self.grant_permits(&mut self.queue.lock());
        }
    }

    pub fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    pub fn in_use(&self) -> usize {
        (self.counts.load(Ordering::Relaxed) & IN_MASK) as usize
    }

    pub fn queued(&self) -> usize {
        (self.counts.load(Ordering::Relaxed) >> 32) as usize
    }
}

fn add_held(owner: &impl ShareOwner) {
    if let Some(held) = owner.permits_held() {
        held.fetch_add(1, Ordering::Relaxed);
    }
}

fn remove_held(owner: &impl ShareOwner) {
    if let Some(held) = owner.permits_held() {
        held.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A granted permit. It is free again when the permit is dropped.
#[derive(Debug)]
pub struct LimiterPermit<O: ShareOwner, M: Clone + Eq + Hash> {
    limiter: Arc<ConcurrencyLimiter<O, M>>,
    /// The owner, if its permits are counted.
    owner: Option<O>,
}

impl<O: ShareOwner, M: Clone + Eq + Hash> Drop for LimiterPermit<O, M> {
    fn drop(&mut self) {
        self.limiter.release(self.owner.as_ref());
    }
}

/// A wait in the queue.
struct Acquire<O: ShareOwner, M: Clone + Eq + Hash> {
    limiter: Arc<ConcurrencyLimiter<O, M>>,
    owner: O,
    ticket: Ticket,
    granted: oneshot::Receiver<QueueSignal>,
    /// Estimated wait when the caller joined the queue.
    wait: Duration,
    over: bool,
}

impl<O: ShareOwner, M: Clone + Eq + Hash> Future for Acquire<O, M> {
    type Output = Result<LimiterPermit<O, M>, AcquireError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.granted).poll(context).map(|granted| {
            self.over = true;
            match granted {
                Ok(QueueSignal::Granted) => Ok(self.limiter.permit(&self.owner)),
                Ok(QueueSignal::Drained) => Err(AcquireError::Drained),
                Err(_displaced) => Err(AcquireError::Full { wait: self.wait }),
            }
        })
    }
}

impl<O: ShareOwner, M: Clone + Eq + Hash> Drop for Acquire<O, M> {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        self.granted.close();
        match self.granted.try_recv() {
            Ok(QueueSignal::Granted) => drop(self.limiter.permit(&self.owner)), // it was its turn, and it was gone
            Ok(QueueSignal::Drained) => {}
            Err(_) => self.limiter.cancel_wait(self.ticket),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl ShareOwner for u32 {}

    type Small = ConcurrencyLimiter<u32, u32>;
    const LONG: Duration = Duration::from_secs(60);

    fn gate(limit: usize, waiting_max: usize) -> (Arc<Small>, IntGauge) {
        let depth = crate::metrics::Metrics::new(false).queue_depth("calls");
        (ConcurrencyLimiter::new(limit, waiting_max, depth.clone()), depth)
    }

    fn enter(
        gate: &Arc<Small>,
        owner: u32,
        weight: u32,
    ) -> tokio::task::JoinHandle<Result<LimiterPermit<u32, u32>, AcquireError>> {
        let gate = gate.clone();
        tokio::spawn(async move { gate.acquire(&owner, weight, &0, LONG).await })
    }

    async fn waiting(gate: &Small, count: usize) {
        while gate.queued() != count {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_call_above_the_limit_waits_for_a_free_permit() {
        let (gate, depth) = gate(2, 10);
        let (one, two) = (
            gate.acquire(&1, 1, &0, LONG).await.unwrap(),
            gate.acquire(&1, 1, &0, LONG).await.unwrap(),
        );
        let third = enter(&gate, 1, 1);
        waiting(&gate, 1).await;
        assert_eq!((gate.in_use(), depth.get()), (2, 1));
        drop(one);
        let third = third.await.unwrap().unwrap();
        assert_eq!((gate.in_use(), gate.queued(), depth.get()), (2, 0, 0));
        drop((two, third));
        assert_eq!(gate.in_use(), 0);
    }

    #[tokio::test]
    async fn a_caller_that_stops_waiting_takes_no_permit() {
        let (gate, depth) = gate(1, 10);
        let one = gate.acquire(&1, 1, &0, LONG).await.unwrap();
        let (two, three) = (enter(&gate, 1, 1), enter(&gate, 2, 1));
        waiting(&gate, 2).await;
        two.abort();
        waiting(&gate, 1).await;
        drop(one);
        drop(three.await.unwrap().unwrap());
        assert_eq!((gate.in_use(), gate.queued(), depth.get()), (0, 0, 0));
    }

    #[tokio::test]
    async fn a_full_queue_refuses_calls_and_a_drain_refuses_waiting_calls() {
        let (gate, depth) = gate(1, 2);
        let one = gate.acquire(&1, 1, &0, LONG).await.unwrap();
        let waiters = [enter(&gate, 1, 1), enter(&gate, 1, 1)];
        waiting(&gate, 2).await;
        assert!(matches!(gate.acquire(&1, 1, &0, LONG).await, Err(AcquireError::Full { .. })));
        gate.drain_queue();
        for waiter in waiters {
            assert_eq!(waiter.await.unwrap().unwrap_err(), AcquireError::Drained);
        }
        assert_eq!((gate.in_use(), gate.queued(), depth.get()), (1, 0, 0));
        drop(one);
    }

    #[tokio::test]
    async fn a_call_that_cannot_start_in_time_is_refused_at_once() {
        let (gate, _) = gate(1, 100);
        let mut inside = gate.acquire(&1, 1, &0, LONG).await.unwrap();
        // Ten departures in a row with a delay teach the estimator the pace.
        for _ in 0..10 {
            let next = enter(&gate, 1, 1);
            waiting(&gate, 1).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
            drop(inside);
            inside = next.await.unwrap().unwrap();
        }
        let patient = enter(&gate, 1, 1);
        waiting(&gate, 1).await;
        let started = Instant::now();
        let refused = gate.acquire(&1, 1, &0, Duration::from_millis(5)).await.unwrap_err();
        assert!(
            matches!(refused, AcquireError::TooLate { wait } if wait >= Duration::from_millis(10)),
            "{refused:?}"
        );
        assert!(started.elapsed() < Duration::from_millis(5));
        drop(inside);
        drop(patient.await.unwrap().unwrap());
    }

    #[tokio::test]
    async fn two_tenants_that_use_the_whole_limit_keep_a_reserve_for_others() {
        let (_, depth) = gate(1, 1);
        let gate: Arc<ConcurrencyLimiter<TenantShare, u32>> =
            ConcurrencyLimiter::new(160, 1_000, depth);
        gate.set_shares([1, 1, 1, 7].into_iter());
        let [one, two, three, four] = ["one", "two", "three", "four"]
            .map(|name| TenantShare::of(TenantId::parse(name).unwrap()));
        let mut held = Vec::new();
        for hog in [&one, &two] {
            while gate.try_take(hog, 1) {
                held.push(gate.permit(hog));
            }
        }
        // The reserve is 20 permits, 2 for each unit of weight.
        assert_eq!((gate.in_use(), held.len()), (142, 142));
        let hung: Vec<_> = [&one, &two].map(|hog| (gate.clone(), hog.clone())).into();
        let hung: Vec<_> = hung
            .into_iter()
            .map(|(gate, hog)| tokio::spawn(async move { gate.acquire(&hog, 1, &0, LONG).await }))
            .collect();
        while gate.queued() != 2 {
            tokio::task::yield_now().await;
        }
        // An owner that holds little gets a permit although others wait and no permit was released.
        let little = Duration::from_millis(1);
        for (owner, weight, part) in [(&three, 1, 2), (&four, 7, 14)] {
            for _ in 0..part {
                held.push(gate.acquire(owner, weight, &0, little).await.unwrap());
            }
        }
        assert_eq!((gate.in_use(), gate.queued()), (158, 2));
        // A released permit of the reserve does not go to owners that hold their share of it.
        held.pop();
        assert_eq!((gate.in_use(), gate.queued()), (157, 2));
        held.truncate(100);
        for waiting in hung {
            held.push(waiting.await.unwrap().unwrap());
        }
        assert_eq!((gate.in_use(), gate.queued()), (102, 0));
        drop(held);
        assert_eq!(gate.in_use(), 0);
        assert!(
            [one, two, three, four].iter().all(|owner| owner
                .permits_held()
                .unwrap()
                .load(Ordering::Relaxed)
                == 0)
        );
    }

    #[test]
    fn the_reserve_follows_from_the_limit_and_the_weights_of_tenants() {
        let kept = |limit: usize, weights: &[u32]| {
            let (_, depth) = gate(1, 1);
            let gate: Arc<ConcurrencyLimiter<TenantShare, u32>> =
                ConcurrencyLimiter::new(limit, 1, depth);
            gate.set_shares(weights.iter().copied());
            gate.reserved.load(Ordering::Relaxed)
        };
        assert_eq!([kept(64, &[1, 1]), kept(64, &[1; 100]), kept(64, &[1])], [8, 8, 0]);
        assert_eq!([kept(20, &[1, 1, 1]), kept(20, &[5, 5, 5]), kept(7, &[1])], [2, 2, 0]);
        // Ten tenants at ten permits: the lightest has no permit most of the time and is entitled
        // to none.
        assert_eq!([kept(10, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]), kept(63, &[1, 20])], [0, 0]);
    }

    #[tokio::test]
    async fn a_single_tenant_can_use_the_whole_limit() {
        let (_, depth) = gate(1, 1);
        let gate: Arc<ConcurrencyLimiter<TenantShare, u32>> =
            ConcurrencyLimiter::new(160, 1_000, depth);
        gate.set_shares([3].into_iter());
        let alone = TenantShare::of(TenantId::parse("alone").unwrap());
        let mut held = Vec::new();
        while gate.try_take(&alone, 3) {
            held.push(gate.permit(&alone));
        }
        assert_eq!(held.len(), 160);
    }

    #[tokio::test]
    async fn a_higher_limit_admits_waiting_callers() {
        let (gate, _) = gate(1, 10);
        let _one = gate.acquire(&1, 1, &0, LONG).await.unwrap();
        let two = enter(&gate, 1, 1);
        waiting(&gate, 1).await;
        gate.set_limit(2);
        let _two = two.await.unwrap().unwrap();
        assert_eq!((gate.in_use(), gate.limit()), (2, 2));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn every_caller_is_admitted_and_the_limit_is_never_exceeded() {
        let (gate, depth) = gate(3, 10_000);
        let tasks: Vec<_> = (0..300_u32)
            .map(|n| {
                let gate = gate.clone();
                tokio::spawn(async move {
                    for round in 0..50 {
                        let owner = n % 7;
                        let entering = gate.acquire(&owner, owner + 1, &n, LONG);
                        // Some callers give up at once.
                        if (n + round) % 11 == 0 {
                            let _given_up = tokio::time::timeout(Duration::ZERO, entering).await;
                            continue;
                        }
                        let permit = entering.await.unwrap();
                        assert!(gate.in_use() <= 3);
                        tokio::task::yield_now().await;
                        drop(permit);
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!((gate.in_use(), gate.queued(), depth.get()), (0, 0, 0));
    }
}
