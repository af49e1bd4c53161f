//! When calls in flight are due: one list of all, and one timer for the list.
//!
//! Next to no call is ever late, and a timer of its own costs each call two turns at the lock of the runtime's timers. Here a call is
//! put on the list and taken off it, and who looks after the list sleeps until the earliest moment at which one on it could be late,
//! which is mostly one that has been over for long. Invariant: whoever is on the list when it is due is told so then.

use std::{
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use slab::Slab;
use tokio::sync::Notify;

use super::Call;
use crate::actors::sync::lock;

/// So many lists, so that calls seldom wait for one another.
const LISTS: usize = 16;
const NEVER: u64 = u64::MAX;

/// All calls in flight, and when the first of them may be late.
#[derive(Debug)]
pub struct DueCalls {
    lists: [Mutex<Slab<Arc<Call>>>; LISTS],
    /// Microseconds after `epoch`.
    earliest: AtomicU64,
    epoch: Instant,
    sooner: Arc<Notify>,
}

/// When a call is to be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    At(Instant),
    Now,
    /// Its end was told to it already, or it has no time to keep any more.
    Never,
}

/// A call's place on the list.
pub(super) struct OnList<'a> {
    list: &'a Mutex<Slab<Arc<Call>>>,
    place: usize,
}

impl Default for DueCalls {
    fn default() -> Self {
        let (earliest, sooner) = (AtomicU64::new(NEVER), Arc::default());
        Self { lists: Default::default(), earliest, epoch: Instant::now(), sooner }
    }
}

impl DueCalls {
    /// Looks after `calls` for as long as they are there.
    pub async fn look_after(calls: Weak<Self>) {
        loop {
            let Some((sooner, earliest)) = calls.upgrade().map(|calls| (calls.sooner.clone(), calls.earliest())) else { return };
            tokio::select! {
                () = sooner.notified() => continue,
                () = until(earliest) => {}
            }
            let Some(calls) = calls.upgrade() else { return };
            calls.late(Instant::now()).iter().for_each(|call| call.is_late());
        }
    }

    /// Puts a call on the list, for as long as the returned place lives.
    pub(super) fn watch<'a>(&'a self, call: &Arc<Call>, due: Instant) -> OnList<'a> {
        // Neighbours in memory are of one thread, and mostly on one list.
        let list = &self.lists[(Arc::as_ptr(call) as usize >> 12) % LISTS];
        let place = lock(list).insert(call.clone());
        // Behind that: whoever has gone through the list before it was on it has set an earliest moment that is looked at here.
        let due = self.micros(due);
        if due < self.earliest.load(Ordering::SeqCst) && due < self.earliest.fetch_min(due, Ordering::SeqCst) {
            self.sooner.notify_one();
        }
        OnList { list, place }
    }

    /// Those whose time is up at `now`; when the others are due is noted.
    fn late(&self, now: Instant) -> Vec<Arc<Call>> {
        let (mut late, mut earliest) = (Vec::new(), NEVER);
        self.earliest.store(NEVER, Ordering::SeqCst);
        for list in &self.lists {
            for (_, call) in &*lock(list) {
                match call.due(now) {
                    Due::Now => late.push(call.clone()),
                    Due::At(due) => earliest = earliest.min(self.micros(due)),
                    Due::Never => {}
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

    /// Rounded up: nobody is looked at too soon.
    fn micros(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.epoch).as_micros()).unwrap_or(NEVER - 1) + 1
    }
}

impl Drop for DueCalls {
    fn drop(&mut self) {
        self.sooner.notify_one(); // whoever looks after it sees that it is gone
    }
}

impl Drop for OnList<'_> {
    fn drop(&mut self) {
        let call = lock(self.list).try_remove(self.place);
        drop(call); // without the lock
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}
