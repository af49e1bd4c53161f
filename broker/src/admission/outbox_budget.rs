//! Bytes that wait for clients who do not read, all together. A stream counts what it holds unread in steps, so that most never
//! touch what all share; when that is used up, the stream that holds most is cut and what it held is let go.
//!
//! Invariant: a stream's steps are given back when it is read, cut or dropped.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
};

use parking_lot::Mutex;

use crate::limits::OUTBOX_STEP_BYTES;

/// Whose stream it is: a number of this process's own.
pub type HolderId = u64;

/// What all streams of the process share.
#[derive(Debug)]
pub struct OutboxBudget<S> {
    steps_max: usize,
    steps: AtomicUsize,
    next: AtomicU64,
    /// Those that hold a step or more.
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

    /// A stream holds `bytes` unread and `held` steps so far; returns its steps from now on. `stream` is how to find it again.
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
        // Under the lock, so that no step is counted of who is not among them.
        if steps > held {
            self.steps.fetch_add(steps - held, Ordering::Relaxed);
        } else {
            self.steps.fetch_sub(held - steps, Ordering::Relaxed);
        }
        steps
    }

    /// Who holds most, while it is too much together.
    pub fn to_be_cut(&self) -> Option<S> {
        if self.steps.load(Ordering::Relaxed) <= self.steps_max {
            return None;
        }
        let holders = self.holders.lock();
        holders.values().max_by_key(|(steps, _)| *steps).map(|(_, stream)| stream.clone())
    }

    /// In whole steps.
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
    fn what_is_less_than_a_step_is_free_and_the_largest_is_cut() {
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
