//! The list of deadlines: a call that stays is expired at its deadline, once; a call that left is
//! not.

use std::{
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use models::{
    clock::{self, advance},
    sessions::deadline_list::{DeadlineList, DeadlineStatus, Expirable},
};
use shuttle::{
    future::{block_on, spawn},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};
use tokio::sync::Notify;

use crate::in_every_order;

const SECOND: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Call {
    due: Instant,
    expiries: AtomicUsize,
    expired_at: OnceLock<Instant>,
    expired: Notify,
}

impl Call {
    fn due_in(after: Duration) -> Arc<Self> {
        let (expiries, expired_at, expired) = (AtomicUsize::new(0), OnceLock::new(), Notify::new());
        Arc::new(Self {
            due: clock::Instant::now().into_std() + after,
            expiries,
            expired_at,
            expired,
        })
    }
}

impl Expirable for Call {
    fn deadline_status(&self, now: Instant) -> DeadlineStatus {
        match self.due {
            _ if self.expiries.load(Ordering::SeqCst) > 0 => DeadlineStatus::Never,
            due if due <= now => DeadlineStatus::Passed,
            due => DeadlineStatus::At(due),
        }
    }

    fn expire(&self) {
        self.expiries.fetch_add(1, Ordering::SeqCst);
        let _first = self.expired_at.set(clock::Instant::now().into_std());
        self.expired.notify_one();
    }
}

#[test]
fn a_call_expires_at_its_deadline_even_if_others_were_added() {
    in_every_order(|| {
        let list = Arc::<DeadlineList<Call>>::default();
        let running = spawn(DeadlineList::run(Arc::downgrade(&list)));
        let callers: Vec<_> = [3, 1, 2]
            .into_iter()
            .map(|seconds| {
                let list = list.clone();
                thread::spawn(move || {
                    let call = Call::due_in(seconds * SECOND);
                    let guard = list.register(call.clone(), call.due);
                    block_on(call.expired.notified());
                    drop(guard);
                    assert_eq!(call.expiries.load(Ordering::SeqCst), 1, "it expires once");
                    assert!(*call.expired_at.get().expect("it was told") >= call.due, "not early");
                })
            })
            .collect();
        let ticking = thread::spawn(|| {
            for _ in 0..8 {
                advance(SECOND);
                thread::yield_now();
            }
            // A caller that registers after the last tick is due later than every tick so far.
            advance(10 * SECOND);
        });
        ticking.join().expect("it ends");
        let ticking = thread::spawn(move || advance(10 * SECOND));
        ticking.join().expect("it ends");
        // A caller that registers only now waits for one more tick.
        let late = thread::spawn(move || {
            for _ in 0..20 {
                thread::yield_now();
                advance(SECOND);
            }
        });
        callers.into_iter().for_each(|caller| caller.join().expect("it expired"));
        late.join().expect("it ends");
        drop(list);
        block_on(running).expect("it ends with the list");
    });
}

#[test]
fn a_call_removed_in_time_does_not_expire() {
    in_every_order(|| {
        let list = Arc::<DeadlineList<Call>>::default();
        let running = spawn(DeadlineList::run(Arc::downgrade(&list)));
        let (leaving, staying) = (Call::due_in(SECOND), Call::due_in(2 * SECOND));
        let kept = list.register(staying.clone(), staying.due);
        let caller = {
            let (list, call) = (list.clone(), leaving.clone());
            thread::spawn(move || {
                drop(list.register(call.clone(), call.due));
                call.expiries.load(Ordering::SeqCst)
            })
        };
        let before = caller.join().expect("it ends");
        advance(5 * SECOND);
        block_on(staying.expired.notified());
        assert_eq!(leaving.expiries.load(Ordering::SeqCst), before, "it had left the list");
        drop(kept);
        drop(list);
        block_on(running).expect("it ends with the list");
    });
}
