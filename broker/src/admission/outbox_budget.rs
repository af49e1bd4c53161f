//! Budget of the bytes that wait for clients that do not read, over all streams of the process.
//!
//! A stream counts its unread bytes in steps, so that most streams never touch the shared counter.
//! When the budget is used up, the broker cuts the stream with the most steps and drops its unread
//! bytes.
//!
//! Invariant: the steps of a stream are returned when it is read, cut or dropped.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
};

use parking_lot::Mutex;
use rules::limits::OUTBOX_STEP_BYTES;

/// Number of a stream, unique within the process.
pub type HolderId = u64;

/// The counter that all streams of the process share.
#[derive(Debug)]
pub struct OutboxBudget<S> {
    steps_max: usize,
    steps: AtomicUsize,
    next: AtomicU64,
    /// Streams that hold at least one step.
    holders: Mutex<HashMap<HolderId, (usize, S)>>,
}

impl<S: Clone> OutboxBudget<S> {
    pub fn new(bytes_max: usize) -> Self {
        Self {
            steps_max: bytes_max.div_ceil(OUTBOX_STEP_BYTES),
            steps: AtomicUsize::new(0),
            next: AtomicU64::new(1),
            holders: Mutex::default(),
        }
    }

    pub fn new_holder(&self) -> HolderId {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Updates the steps of a stream with `bytes` unread bytes that held `held` steps. Returns its
    /// new number of steps. `stream` creates the handle by which [`OutboxBudget::to_be_cut`]
    /// returns it.
    pub fn settle(
        &self,
        holder: HolderId,
        held: usize,
        bytes: usize,
        stream: impl FnOnce() -> S,
    ) -> usize {
        let steps = bytes / OUTBOX_STEP_BYTES;
        if steps == held {
            return held;
        }
        let mut holders = self.holders.lock();
        if steps == 0 {
            holders.remove(&holder);
        } else {
            holders.entry(holder).or_insert_with(|| (0, stream())).0 = steps;
        }
        // Under the lock, so that the counter never includes a stream that is not in `holders`.
        if steps > held {
            self.steps.fetch_add(steps - held, Ordering::Relaxed);
        } else {
            self.steps.fetch_sub(held - steps, Ordering::Relaxed);
        }
        steps
    }

    /// Returns the stream with the most steps while the sum is over the budget.
    pub fn to_be_cut(&self) -> Option<S> {
        if self.steps.load(Ordering::Relaxed) <= self.steps_max {
            return None;
        }
        let holders = self.holders.lock();
        holders.values().max_by_key(|(steps, _)| *steps).map(|(_, stream)| stream.clone())
    }

    /// Returns the counted bytes, in whole steps.
    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        self.steps.load(Ordering::Relaxed) * OUTBOX_STEP_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: usize = OUTBOX_STEP_BYTES;

    #[test]
    fn bytes_below_one_step_are_not_counted_and_the_largest_holder_is_cut() {
        let waiting: OutboxBudget<&str> = OutboxBudget::new(3 * STEP);
        let [small, one, two] = [waiting.new_holder(), waiting.new_holder(), waiting.new_holder()];
        assert_eq!(waiting.settle(small, 0, STEP - 1, || "small"), 0);
        assert_eq!(waiting.settle(one, 0, STEP, || "one"), 1);
        assert_eq!(waiting.settle(two, 0, 2 * STEP + 5, || "two"), 2);
        assert_eq!((waiting.bytes(), waiting.to_be_cut()), (3 * STEP, None));
        assert_eq!(waiting.settle(one, 1, 2 * STEP, || unreachable!()), 2);
        assert!(waiting.to_be_cut().is_some());
        assert_eq!(waiting.settle(two, 2, 3 * STEP, || unreachable!()), 3);
        assert_eq!(waiting.to_be_cut(), Some("two"));
        assert_eq!(waiting.settle(two, 3, 0, || unreachable!()), 0);
        assert_eq!((waiting.bytes(), waiting.to_be_cut()), (2 * STEP, None));
        assert_eq!(waiting.settle(one, 2, 0, || unreachable!()), 0);
        assert!(waiting.bytes() == 0 && waiting.holders.lock().is_empty());
    }
}
