//! Many runtimes of tokio on one thread, in turns. A turn lasts until its runtime rests. When all
//! rest, the virtual time moves to the next timer.
//!
//! The seed decides the order of runtimes that are ready at the same time. A killed runtime never
//! runs again: nothing of it is dropped, and its sockets close, as when the kernel ends a process.

use std::{
    future::poll_fn,
    mem,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    runtime::{Builder, Runtime},
    sync::oneshot,
};

use crate::{
    choices::Choices,
    shim::{self, WaitOutcome},
    trace,
};

/// Time that a turn takes.
const TURN: Duration = Duration::from_micros(2);
/// Index of the runtime with clients, backends and the network.
pub(crate) const WORLD: usize = 0;

/// Set when a runtime gave work to another thread, which the seed does not decide about.
static OTHER_THREAD: AtomicBool = AtomicBool::new(false);

/// The future that a runtime is there for.
type Main = Pin<Box<dyn Future<Output = ()>>>;
/// Makes the future inside its runtime.
type Start = Box<dyn FnOnce() -> Main + Send>;

/// A change of the runtimes.
enum Change {
    Start { index: usize, start: Start },
    Kill { index: usize, after_polls: u32, by: Duration, done: oneshot::Sender<()> },
    Freeze { index: usize, until: Duration },
}

/// Requests changes from inside a runtime. They take effect after its turn.
#[derive(Clone, Default)]
pub(crate) struct Machine(Arc<Mutex<Vec<Change>>>);

impl Machine {
    /// Starts a runtime at a free index.
    pub(crate) fn start<M: Future<Output = ()> + 'static>(
        &self,
        index: usize,
        start: impl FnOnce() -> M + Send + 'static,
    ) {
        self.0.lock().push(Change::Start { index, start: Box::new(|| Box::pin(start())) });
    }

    /// Kills a runtime after so many polls of its tasks, or at this time.
    pub(crate) async fn kill(&self, index: usize, after_polls: u32, by: Duration) {
        let (done, killed) = oneshot::channel();
        self.0.lock().push(Change::Kill { index, after_polls, by: shim::now() + by, done });
        let _gone = killed.await;
    }

    /// Stops a runtime for a time.
    pub(crate) fn freeze(&self, index: usize, time: Duration) {
        self.0.lock().push(Change::Freeze { index, until: shim::now() + time });
    }
}

struct Doom {
    after_polls: u32,
    by: Duration,
    done: oneshot::Sender<()>,
}

/// One runtime.
#[derive(Default)]
struct Slot {
    runtime: Option<Runtime>,
    main: Option<Main>,
    /// Descriptor of its event queue.
    queue: Option<i32>,
    until: Option<Duration>,
    /// Set if it may run at once.
    is_ready: bool,
    frozen_until: Duration,
    doom: Option<Doom>,
}

impl Slot {
    fn wakes_at(&self) -> Option<Duration> {
        self.runtime.as_ref()?;
        let doomed = self.doom.as_ref().map(|doom| doom.by);
        let wakes = if self.is_ready { Some(shim::now()) } else { self.until };
        wakes.map(|wakes| wakes.max(self.frozen_until)).into_iter().chain(doomed).min()
    }
}

/// Why a run cannot continue.
#[derive(Debug)]
pub(crate) enum Stuck {
    /// No runtime waits for a time.
    Asleep,
    TimeOver,
    OtherThread,
}

pub(crate) struct Scheduler {
    slots: Vec<Slot>,
    machine: Machine,
    choices: Choices,
}

impl Scheduler {
    pub(crate) fn new(count: usize, choices: Choices) -> Self {
        let slots = (0..count).map(|_| Slot::default()).collect();
        Self { slots, machine: Machine::default(), choices }
    }

    pub(crate) fn machine(&self) -> Machine {
        self.machine.clone()
    }

    /// Runs until `is_over`, at most until this virtual time.
    pub(crate) fn run(&mut self, limit: Duration, is_over: impl Fn() -> bool) -> Result<(), Stuck> {
        loop {
            self.apply_changes();
            if is_over() {
                return Ok(());
            }
            if OTHER_THREAD.load(Ordering::Relaxed) {
                return Err(Stuck::OtherThread);
            }
            let mut ready = self.ready();
            if ready.is_empty() {
                let next = self.slots.iter().filter_map(Slot::wakes_at).min();
                let next = next.ok_or(Stuck::Asleep)?;
                if next > limit {
                    return Err(Stuck::TimeOver);
                }
                shim::advance_to(next);
                continue;
            }
            self.choices.shuffle(&mut ready);
            for index in ready {
                self.turn(index);
                shim::advance_to(shim::now() + TURN);
            }
        }
    }

    /// Returns the runtimes that can run now.
    fn ready(&mut self) -> Vec<usize> {
        let now = shim::now();
        let queues: Vec<_> = self.slots.iter().map(|slot| slot.queue).collect();
        for (slot, has_events) in self.slots.iter_mut().zip(shim::has_events(&queues)) {
            slot.is_ready |= has_events;
        }
        let is_due = |slot: &Slot| slot.wakes_at().is_some_and(|wakes| wakes <= now);
        (0..self.slots.len()).filter(|index| is_due(&self.slots[*index])).collect()
    }

    fn turn(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        let now = shim::now();
        if slot.doom.as_ref().is_some_and(|doom| doom.by <= now) {
            return self.end(index);
        }
        let Slot { runtime: Some(runtime), main, doom, .. } = &mut *slot else { return };
        shim::set_owner(index);
        shim::arm(doom.as_ref().map(|doom| doom.after_polls));
        let (outcome, polls, queue) = runtime.block_on(turn(main));
        let remaining = shim::arm(None);
        trace::record_turn(index, polls);
        slot.queue = queue.or(slot.queue);
        match outcome {
            WaitOutcome::Idle { until } => {
                slot.is_ready = false;
                slot.until = until;
                if let (Some(doom), Some(remaining)) = (&mut slot.doom, remaining) {
                    doom.after_polls = remaining;
                }
            }
            WaitOutcome::Interrupted => self.end(index),
        }
    }

    /// Ends a runtime as a kill does.
    fn end(&mut self, index: usize) {
        let slot = mem::take(&mut self.slots[index]);
        // Dropping it would run code that a killed process does not run.
        mem::forget((slot.runtime, slot.main));
        shim::close_sockets_of(index);
        trace::record("killed", index as u64);
        if let Some(doom) = slot.doom {
            let _unheard = doom.done.send(());
        }
    }

    fn apply_changes(&mut self) {
        for change in mem::take(&mut *self.machine.0.lock()) {
            match change {
                Change::Start { index, start } => {
                    shim::set_owner(index);
                    let runtime = runtime();
                    let main = {
                        let _inside = runtime.enter();
                        start()
                    };
                    self.slots[index] = Slot {
                        runtime: Some(runtime),
                        main: Some(main),
                        is_ready: true,
                        ..Slot::default()
                    };
                }
                Change::Kill { index, after_polls, by, done } => {
                    self.slots[index].doom = Some(Doom { after_polls, by, done });
                }
                Change::Freeze { index, until } => self.slots[index].frozen_until = until,
            }
        }
    }
}

/// Lets a runtime run until it rests.
async fn turn(main: &mut Option<Main>) -> (WaitOutcome, u32, Option<i32>) {
    let mut has_started = false;
    poll_fn(|context| {
        if !mem::replace(&mut has_started, true) {
            shim::start_wait(context.waker());
        }
        if let Some(end) = shim::end_wait() {
            return Poll::Ready(end);
        }
        if main.as_mut().is_some_and(|main| main.as_mut().poll(context).is_ready()) {
            *main = None;
        }
        Poll::Pending
    })
    .await
}

fn runtime() -> Runtime {
    Builder::new_current_thread()
        .enable_io()
        .enable_time()
        // The runtime looks for events after each poll of a task, where a kill can interrupt it.
        .event_interval(1)
        .max_blocking_threads(1)
        .on_thread_start(|| OTHER_THREAD.store(true, Ordering::Relaxed))
        .build()
        .expect("a runtime of one thread")
}
