//! The hand-over of a call to a task: the offer is taken or declined, and its maker always learns
//! which.

use std::{future::poll_fn, sync::Arc, task::Poll};

use models::{
    backends::link::{Link, connection::Connection},
    sessions::task_handoff::TaskHandoff,
};
use rules::tasks::BackendTask;
use shuttle::{future::block_on, thread};

use crate::in_every_order;

fn offering(handoff: &Arc<TaskHandoff>) -> thread::JoinHandle<bool> {
    let handoff = handoff.clone();
    thread::spawn(move || {
        let (link, connection) = (Arc::new(Link), Arc::new(Connection));
        let task = BackendTask::read(br#"{"taskId":"t","status":"working"}"#).expect("a task");
        block_on(handoff.offer(&link, &connection, &task))
    })
}

/// Returns a handoff whose waiter takes tasks.
fn accepting() -> Arc<TaskHandoff> {
    let handoff = Arc::new(TaskHandoff::default());
    handoff.set_accepting(true);
    handoff
}

#[test]
fn an_awaited_offer_is_taken_once() {
    in_every_order(|| {
        let handoff = accepting();
        let offer = offering(&handoff);
        let waiting = {
            let handoff = handoff.clone();
            thread::spawn(move || {
                block_on(handoff.wait_for_offer());
                let offered = handoff.take().expect("it was offered, and no other waiter takes it");
                offered.taken.send(true).expect("its maker waits");
            })
        };
        waiting.join().expect("it ends");
        assert!(offer.join().expect("it ends"), "its maker learns that it was taken");
        assert!(handoff.take().is_none(), "it was taken once");
    });
}

#[test]
fn an_offer_to_a_declining_waiter_is_returned_at_any_time() {
    in_every_order(|| {
        let handoff = accepting();
        let offer = offering(&handoff);
        let declining = {
            let handoff = handoff.clone();
            thread::spawn(move || handoff.set_accepting(false))
        };
        declining.join().expect("it ends");
        assert!(!offer.join().expect("its maker learns of it"));
    });
}

#[test]
fn a_waiter_that_leaves_and_declines_loses_no_offer() {
    in_every_order(|| {
        let handoff = accepting();
        let offer = offering(&handoff);
        let leaving = {
            let handoff = handoff.clone();
            thread::spawn(move || {
                let mut wait = Box::pin(handoff.wait_for_offer());
                let found = block_on(poll_fn(|context| {
                    Poll::Ready(wait.as_mut().poll(context).is_ready())
                }));
                drop(wait);
                let taken = if found { handoff.take() } else { None };
                let was_taken = taken.is_some_and(|offered| offered.taken.send(true).is_ok());
                handoff.set_accepting(false);
                was_taken
            })
        };
        let was_taken = leaving.join().expect("it ends");
        assert_eq!(offer.join().expect("its maker learns of it"), was_taken);
    });
}

#[test]
fn only_one_of_two_threads_returns_the_permit_of_a_call() {
    in_every_order(|| {
        let handoff = Arc::new(TaskHandoff::default());
        let both: Vec<_> = (0..2)
            .map(|_| {
                let handoff = handoff.clone();
                thread::spawn(move || handoff.take_slot_release())
            })
            .collect();
        let given = both.into_iter().map(|one| one.join().expect("it ends"));
        assert_eq!(given.filter(|given| *given).count(), 1);
    });
}
