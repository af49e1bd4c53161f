//! The limit of concurrent calls with its fair queue: no permit is lost or given twice, however
//! callers come, leave, give up and are sent away.

use std::{future::poll_fn, pin::pin, sync::Arc, task::Poll, time::Duration};

use models::admission::concurrency_limit::{
    AcquireError, ConcurrencyLimiter, ShareOwner, TenantShare,
};
use prometheus::IntGauge;
use protocol::ids::TenantId;
use shuttle::{
    future::block_on,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use crate::in_every_order;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Owner(u32);

impl ShareOwner for Owner {}

const LONG: Duration = Duration::from_secs(3600);
const LIMIT: usize = 2;

fn limiter<O: ShareOwner>(
    limit: usize,
    waiting_max: usize,
) -> (Arc<ConcurrencyLimiter<O, u32>>, IntGauge) {
    let depth = IntGauge::new("depth", "waiting callers").expect("a valid name");
    (ConcurrencyLimiter::new(limit, waiting_max, depth.clone()), depth)
}

#[test]
fn the_limit_is_never_exceeded_and_every_caller_is_admitted() {
    in_every_order(|| {
        let (limiter, depth) = limiter(LIMIT, 10);
        let inside = Arc::new(AtomicUsize::new(0));
        let callers: Vec<_> = (0..4)
            .map(|caller| {
                let (limiter, inside) = (limiter.clone(), inside.clone());
                thread::spawn(move || {
                    let permit = block_on(limiter.acquire(&Owner(caller % 2), 1, &caller, LONG));
                    let permit = permit.expect("the queue has room and is not drained");
                    assert!(inside.fetch_add(1, Ordering::SeqCst) < LIMIT, "one too many");
                    inside.fetch_sub(1, Ordering::SeqCst);
                    drop(permit);
                })
            })
            .collect();
        callers.into_iter().for_each(|caller| caller.join().expect("it got its turn"));
        assert_eq!((limiter.in_use(), limiter.queued(), depth.get()), (0, 0, 0));
    });
}

#[test]
fn a_caller_that_gives_up_holds_no_permit() {
    in_every_order(|| {
        let (limiter, depth) = limiter(1, 10);
        let held = limiter.try_acquire(&Owner(0), 1).expect("it is free");
        let givers_up: Vec<_> = (0..2)
            .map(|caller| {
                let limiter = limiter.clone();
                thread::spawn(move || {
                    let mut wait = Box::pin(async move {
                        limiter.acquire(&Owner(caller), 1, &0, LONG).await.map(drop)
                    });
                    // It looks twice, and leaves whether it was its turn by then or not.
                    for _ in 0..2 {
                        let looked =
                            block_on(poll_fn(|context| Poll::Ready(wait.as_mut().poll(context))));
                        if looked.is_ready() {
                            return;
                        }
                        thread::yield_now();
                    }
                })
            })
            .collect();
        let patient = {
            let limiter = limiter.clone();
            thread::spawn(move || block_on(limiter.acquire(&Owner(7), 1, &0, LONG)).map(drop))
        };
        drop(held);
        assert_eq!(patient.join().expect("it ends"), Ok(()), "the permit comes round");
        givers_up.into_iter().for_each(|caller| caller.join().expect("it ends"));
        assert_eq!((limiter.in_use(), limiter.queued(), depth.get()), (0, 0, 0));
    });
}

#[test]
fn a_drain_refuses_or_admits_every_waiting_caller() {
    in_every_order(|| {
        let (limiter, depth) = limiter(1, 10);
        let held = limiter.try_acquire(&Owner(0), 1).expect("it is free");
        let callers: Vec<_> = (0..2)
            .map(|caller| {
                let limiter = limiter.clone();
                thread::spawn(move || {
                    block_on(limiter.acquire(&Owner(caller), 1, &0, LONG)).map(drop)
                })
            })
            .collect();
        let draining = {
            let limiter = limiter.clone();
            thread::spawn(move || limiter.drain_queue())
        };
        drop(held);
        for caller in callers {
            let ended = caller.join().expect("it ends");
            assert!(matches!(ended, Ok(()) | Err(AcquireError::Drained)), "{ended:?}");
        }
        draining.join().expect("it ends");
        assert_eq!((limiter.in_use(), limiter.queued(), depth.get()), (0, 0, 0));
    });
}

#[test]
fn a_full_queue_displaces_one_caller_and_counts_it_once() {
    in_every_order(|| {
        let (limiter, depth) = limiter(1, 1);
        let held = limiter.try_acquire(&Owner(0), 1).expect("it is free");
        let callers: Vec<_> = [1, 2, 2]
            .into_iter()
            .map(|owner| {
                let limiter = limiter.clone();
                thread::spawn(move || {
                    block_on(limiter.acquire(&Owner(owner), 1, &0, LONG)).map(drop)
                })
            })
            .collect();
        drop(held);
        let ended: Vec<_> =
            callers.into_iter().map(|caller| caller.join().expect("it ends")).collect();
        assert!(ended.iter().any(Result::is_ok), "{ended:?}");
        assert!(
            ended.iter().all(|end| matches!(end, Ok(()) | Err(AcquireError::Full { .. }))),
            "{ended:?}"
        );
        assert_eq!((limiter.in_use(), limiter.queued(), depth.get()), (0, 0, 0));
    });
}

#[test]
fn a_smaller_limit_and_new_shares_lose_no_permit() {
    in_every_order(|| {
        let (limiter, depth) = limiter(64, 10);
        let owners =
            ["one", "two"].map(|name| TenantShare::of(TenantId::parse(name).expect("a name")));
        limiter.set_shares([1, 1].into_iter());
        let mut held = Vec::new();
        while let Some(permit) = limiter.try_acquire(&owners[0], 1) {
            held.push(permit);
        }
        let waiting: Vec<_> = owners
            .iter()
            .cloned()
            .map(|owner| {
                let limiter = limiter.clone();
                thread::spawn(move || block_on(limiter.acquire(&owner, 1, &0, LONG)).map(drop))
            })
            .collect();
        let operator = {
            let limiter = limiter.clone();
            thread::spawn(move || {
                limiter.set_limit(32);
                limiter.set_shares([1, 2, 3].into_iter());
            })
        };
        drop(held);
        for caller in waiting {
            assert_eq!(caller.join().expect("it ends"), Ok(()));
        }
        operator.join().expect("it ends");
        assert_eq!((limiter.in_use(), limiter.queued(), depth.get()), (0, 0, 0));
        for owner in owners {
            let counted = owner.permits_held().expect("tenants are counted");
            assert_eq!(counted.load(Ordering::SeqCst), 0, "permits of {owner:?}");
        }
    });
}

/// Shows that the model notices a caller that is never woken.
#[test]
#[should_panic(expected = "deadlock")]
fn a_permit_that_is_never_released_is_noticed() {
    in_every_order(|| {
        let (limiter, _depth) = limiter(1, 10);
        let held = limiter.try_acquire(&Owner(0), 1).expect("it is free");
        std::mem::forget(held);
        let waiting = pin!(limiter.acquire(&Owner(1), 1, &0, LONG));
        let _never = block_on(waiting);
    });
}
