//! Deadlines of calls in flight: one list of calls with one timer.
//!
//! A call is almost never late, and a timer of its own would cost it two turns at the lock of the
//! runtime's timers. A call therefore only enters the list and leaves it. The task that runs the
//! list sleeps until the earliest stored deadline. That deadline mostly belongs to a call that
//! ended long ago. Invariant: the list expires every call that is still on it at its deadline.

use std::{
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use slab::Slab;
use tokio::sync::Notify;

/// Number of partial lists. Several lists keep calls from waiting for one another's lock.
const LISTS: usize = 16;
/// Longest delay between a deadline and the expiry of its call.
const STEP_MICROS: u64 = 10_000;
const NEVER: u64 = u64::MAX;

/// An entry of the list, which has a deadline.
pub trait Expirable: fmt::Debug + Send + Sync {
    fn deadline_status(&self, now: Instant) -> DeadlineStatus;

    /// Ends the entry, because its deadline has passed.
    fn expire(&self);
}

/// All calls in flight, and the earliest moment at which one of them may be late.
#[derive(Debug)]
pub struct DeadlineList<T: ?Sized> {
    lists: [Mutex<Slab<Arc<T>>>; LISTS],
    /// Microseconds after `epoch`.
    earliest: AtomicU64,
    epoch: Instant,
    rescheduled: Arc<Notify>,
}

/// The next moment at which the list must look at a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeadlineStatus {
    At(Instant),
    Passed,
    /// The call has expired already, or it has no deadline any more.
    Never,
}

/// A call's entry in the list. Dropping it removes the call.
pub struct DeadlineGuard<'a, T: ?Sized> {
    list: &'a Mutex<Slab<Arc<T>>>,
    index: usize,
}

impl<T: ?Sized> Default for DeadlineList<T> {
    fn default() -> Self {
        let (earliest, rescheduled) = (AtomicU64::new(NEVER), Arc::default());
        Self {
            lists: std::array::from_fn(|_| Mutex::default()),
            earliest,
            epoch: Instant::now(),
            rescheduled,
        }
    }
}

impl<T: Expirable + ?Sized> DeadlineList<T> {
    /// Runs the list until `calls` is dropped.
    pub async fn run(calls: Weak<Self>) {
        loop {
            let Some((rescheduled, earliest)) =
                calls.upgrade().map(|calls| (calls.rescheduled.clone(), calls.earliest()))
            else {
                return;
            };
            tokio::select! {
                () = rescheduled.notified() => continue,
                () = until(earliest) => {}
            }
            let Some(calls) = calls.upgrade() else { return };
            calls
                .take_expired(tokio::time::Instant::now().into_std())
                .iter()
                .for_each(|call| call.expire());
        }
    }

    /// Puts a call on the list. The call leaves it when the returned guard is dropped.
    pub fn register<'a>(&'a self, call: Arc<T>, due: Instant) -> DeadlineGuard<'a, T> {
        // Calls at neighbouring addresses belong to one thread, so they mostly share one list.
        let list = &self.lists[(Arc::as_ptr(&call).cast::<()>() as usize >> 12) % LISTS];
        let index = list.lock().insert(call);
        // This comes after the insertion. A pass over the list that missed the call has already
        // reset the earliest deadline, and the comparison below sees the reset value.
        let due = self.micros(due);
        if due < self.earliest.load(Ordering::SeqCst)
            && due < self.earliest.fetch_min(due, Ordering::SeqCst)
        {
            self.rescheduled.notify_one();
        }
        DeadlineGuard { list, index }
    }

    /// Returns the calls whose deadline has passed at `now`, and stores the earliest deadline of
    /// the others.
    fn take_expired(&self, now: Instant) -> Vec<Arc<T>> {
        let (mut late, mut earliest) = (Vec::new(), NEVER);
        self.earliest.store(NEVER, Ordering::SeqCst);
        for list in &self.lists {
            for (_, call) in &*list.lock() {
                match call.deadline_status(now) {
                    DeadlineStatus::Passed => late.push(call.clone()),
                    DeadlineStatus::At(due) => earliest = earliest.min(self.micros(due)),
                    DeadlineStatus::Never => {}
                }
            }
        }
        self.earliest.fetch_min(earliest, Ordering::SeqCst);
        late
    }

    fn earliest(&self) -> Option<Instant> {
        Some(self.earliest.load(Ordering::SeqCst))
            .filter(|micros| *micros != NEVER)
            .map(|micros| self.epoch + Duration::from_micros(micros))
    }

    /// Returns the microseconds after `epoch`, rounded up to the next step. The list never looks at
    /// a call too early, and it handles all calls of one step together.
    fn micros(&self, at: Instant) -> u64 {
        let micros =
            u64::try_from(at.saturating_duration_since(self.epoch).as_micros()).unwrap_or(NEVER);
        micros.checked_next_multiple_of(STEP_MICROS).unwrap_or(NEVER - 1)
    }
}

impl<T: ?Sized> Drop for DeadlineList<T> {
    fn drop(&mut self) {
        self.rescheduled.notify_one(); // its watcher sees that it is gone
    }
}

impl<T: ?Sized> Drop for DeadlineGuard<'_, T> {
    fn drop(&mut self) {
        let call = self.list.lock().try_remove(self.index);
        drop(call); // without the lock
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A call with a deadline that the test can move.
    #[derive(Debug)]
    struct Fake {
        due: Mutex<Instant>,
        late_at: OnceLock<Instant>,
        expired: Notify,
    }

    impl Fake {
        fn due_in(after: Duration) -> Arc<Self> {
            Arc::new(Self {
                due: Mutex::new(now() + after),
                late_at: OnceLock::new(),
                expired: Notify::new(),
            })
        }

        async fn late_after(&self, started: Instant) -> Duration {
            self.expired.notified().await;
            *self.late_at.get().unwrap() - started
        }
    }

    impl Expirable for Fake {
        fn deadline_status(&self, now: Instant) -> DeadlineStatus {
            match *self.due.lock() {
                _ if self.late_at.get().is_some() => DeadlineStatus::Never,
                due if due <= now => DeadlineStatus::Passed,
                due => DeadlineStatus::At(due),
            }
        }

        fn expire(&self) {
            self.late_at.set(now()).expect("it is told once");
            self.expired.notify_one();
        }
    }

    /// Returns the time of the test's clock, which advances while every task waits.
    fn now() -> Instant {
        tokio::time::Instant::now().into_std()
    }

    #[tokio::test(start_paused = true)]
    async fn each_call_expires_at_its_own_deadline_in_any_order_of_arrival() {
        let list = Arc::<DeadlineList<Fake>>::default();
        let looking = tokio::spawn(DeadlineList::run(Arc::downgrade(&list)));
        tokio::task::yield_now().await;
        let started = now();
        let calls: Vec<_> =
            [30, 5, 60, 10].into_iter().map(|seconds| Fake::due_in(seconds * SECOND)).collect();
        let guards: Vec<_> =
            calls.iter().map(|call| list.register(call.clone(), *call.due.lock())).collect();
        // One call ends before its deadline, and one call gets a later deadline.
        drop(guards.into_iter().nth(3));
        let more = list.register(calls[1].clone(), *calls[1].due.lock());
        *calls[1].due.lock() += 15 * SECOND;
        let kept = [
            list.register(calls[0].clone(), *calls[0].due.lock()),
            list.register(calls[2].clone(), *calls[2].due.lock()),
        ];
        assert_eq!(calls[1].late_after(started).await.as_secs(), 20);
        assert_eq!(calls[0].late_after(started).await.as_secs(), 30);
        assert_eq!(calls[2].late_after(started).await.as_secs(), 60);
        assert!(calls[3].late_at.get().is_none());
        drop((more, kept));
        // The list is empty, and then one call enters it.
        let last = Fake::due_in(SECOND);
        let started = now();
        let _guard = list.register(last.clone(), *last.due.lock());
        assert_eq!(last.late_after(started).await.as_secs(), 1);
        drop(_guard);
        drop(list);
        looking.await.unwrap();
    }
}
