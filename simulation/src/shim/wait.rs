//! The wait for events. A runtime of the simulated thread never sleeps: where it would, its step is
//! over, and it tells when it wants to go on.

use std::{
    cell::{Cell, RefCell},
    ffi::c_int,
    task::Waker,
    time::Duration,
};

use super::{is_simulated, now};

/// Polls of tasks between two looks for events of a runtime that is never at rest.
const POLLS_BETWEEN_LOOKS: u32 = 32;

/// The end of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitOutcome {
    /// The runtime rests until this time, or until an event comes.
    Idle { until: Option<Duration> },
    /// The armed number of polls is over.
    Interrupted,
}

#[derive(Default)]
struct StepState {
    waker: RefCell<Option<Waker>>,
    outcome: Cell<Option<WaitOutcome>>,
    /// Polls of tasks in this step.
    polls: Cell<u32>,
    /// Polls of tasks until the step is interrupted.
    armed: Cell<Option<u32>>,
    queue: Cell<Option<c_int>>,
}

thread_local! {
    static STEP: StepState = StepState::default();
}

/// Begins a step. `waker` is woken at its end.
pub(crate) fn start_wait(waker: &Waker) {
    STEP.with(|step| {
        *step.waker.borrow_mut() = Some(waker.clone());
        step.outcome.set(None);
        step.polls.set(0);
    });
}

/// Interrupts the steps from now on after so many polls of tasks in all.
pub(crate) fn arm(polls: Option<u32>) -> Option<u32> {
    STEP.with(|step| step.armed.replace(polls))
}

/// Returns the outcome of the step if it is over, with its polls of tasks and the descriptor of the
/// event queue that it waited on.
pub(crate) fn end_wait() -> Option<(WaitOutcome, u32, Option<c_int>)> {
    STEP.with(|step| Some((step.outcome.get()?, step.polls.get(), step.queue.get())))
}

fn end(step: &StepState, outcome: WaitOutcome) {
    step.outcome.set(Some(outcome));
    if let Some(waker) = step.waker.borrow_mut().take() {
        waker.wake();
    }
}

/// Returns those of these event queues that have events.
pub(crate) fn has_events(queues: &[Option<c_int>]) -> Vec<bool> {
    let mut polled: Vec<libc::pollfd> = queues
        .iter()
        .map(|queue| libc::pollfd { fd: queue.unwrap_or(-1), events: libc::POLLIN, revents: 0 })
        .collect();
    // SAFETY: a valid array of this length.
    unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, 0) };
    polled.iter().map(|polled| polled.revents & libc::POLLIN != 0).collect()
}

unsafe fn real(queue: c_int, events: *mut libc::epoll_event, most: c_int, timeout: c_int) -> c_int {
    let none = std::ptr::null::<libc::sigset_t>();
    // SAFETY: the same arguments for the same function of the kernel.
    unsafe {
        libc::syscall(libc::SYS_epoll_pwait, queue, events, most, timeout, none, 8_usize) as c_int
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_wait(
    queue: c_int,
    events: *mut libc::epoll_event,
    most: c_int,
    timeout: c_int,
) -> c_int {
    if !is_simulated() {
        // SAFETY: as of the C function.
        return unsafe { real(queue, events, most, timeout) };
    }
    STEP.with(|step| {
        if timeout == 0 {
            // A runtime looks like this after each poll of a task.
            step.polls.set(step.polls.get() + 1);
            if let Some(remaining) = step.armed.get() {
                step.armed.set(Some(remaining.saturating_sub(1)));
                if remaining <= 1 {
                    end(step, WaitOutcome::Interrupted);
                    return 0;
                }
            }
            if !step.polls.get().is_multiple_of(POLLS_BETWEEN_LOOKS) {
                return 0;
            }
        }
        // SAFETY: as of the C function.
        let found = unsafe { real(queue, events, most, 0) };
        if found == 0 && timeout != 0 {
            step.queue.set(Some(queue));
            let until = (timeout > 0)
                .then(|| now() + Duration::from_millis(timeout.cast_unsigned().into()));
            end(step, WaitOutcome::Idle { until });
        }
        found
    })
}
