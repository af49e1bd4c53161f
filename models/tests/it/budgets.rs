//! Budgets: what is taken is given back once, and the sum never exceeds what there is.

use std::sync::Arc;

use models::{
    admission::outbox_budget::{OutboxBudget, UnreadOwner},
    retries::RetryBudget,
};
use rules::limits::OUTBOX_STEP_BYTES;
use shuttle::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use crate::in_every_order;

const STEP: usize = OUTBOX_STEP_BYTES;

#[test]
fn unread_bytes_are_given_back_if_streams_are_cut_read_and_dropped() {
    in_every_order(|| {
        let budget = Arc::new(OutboxBudget::<u64>::new(2 * STEP));
        let streams: Vec<_> = (0..3_u64)
            .map(|stream| {
                let budget = budget.clone();
                thread::spawn(move || {
                    let holder = budget.new_holder();
                    let mut held = 0;
                    for bytes in [STEP, 3 * STEP, STEP / 2, 2 * STEP] {
                        held = budget
                            .recount(holder, held, bytes, || (UnreadOwner::default(), stream));
                        if let Some(largest) = budget.to_be_cut() {
                            assert!(largest < 3, "it is a stream that holds something");
                        }
                    }
                    budget.recount(holder, held, 0, || (UnreadOwner::default(), stream));
                })
            })
            .collect();
        streams.into_iter().for_each(|stream| stream.join().expect("it ends"));
        assert_eq!((budget.bytes(), budget.to_be_cut()), (0, None));
    });
}

#[test]
fn an_exceeded_budget_always_has_a_stream_to_cut() {
    in_every_order(|| {
        let budget = Arc::new(OutboxBudget::<u64>::new(STEP));
        let filling = {
            let budget = budget.clone();
            thread::spawn(move || {
                let holder = budget.new_holder();
                budget.recount(holder, 0, 2 * STEP, || (UnreadOwner::default(), 1))
            })
        };
        let reading = {
            let budget = budget.clone();
            thread::spawn(move || {
                let holder = budget.new_holder();
                let held = budget.recount(holder, 0, STEP, || (UnreadOwner::default(), 2));
                budget.recount(holder, held, 0, || (UnreadOwner::default(), 2))
            })
        };
        assert_eq!(filling.join().expect("it ends"), 2);
        assert_eq!(budget.to_be_cut(), Some(1), "what was filled is over the budget");
        assert_eq!(reading.join().expect("it ends"), 0);
    });
}

#[test]
fn retries_do_not_exceed_the_budget_saved_by_calls() {
    in_every_order(|| {
        // It begins with one retry, and each call adds a half.
        let budget = Arc::new(RetryBudget::new(0.5));
        let taken = Arc::new(AtomicU64::new(0));
        let callers: Vec<_> = (0..4)
            .map(|_| {
                let (budget, taken) = (budget.clone(), taken.clone());
                thread::spawn(move || {
                    budget.deposit();
                    if budget.withdraw() {
                        taken.fetch_add(1, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        callers.into_iter().for_each(|caller| caller.join().expect("it ends"));
        let mut taken = taken.load(Ordering::SeqCst);
        while budget.withdraw() {
            taken += 1;
        }
        assert_eq!(taken, 3, "the first one and four halves");
    });
}
