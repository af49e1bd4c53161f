//! What happened in a run, as one number: two runs with the same number took the same steps.

use std::cell::{Cell, RefCell};

use crate::{choices::mix, shim};

thread_local! {
    static HASH: Cell<u64> = const { Cell::new(0) };
    static STEPS: Cell<u64> = const { Cell::new(0) };
    /// Lines of the whole trace, if they are wanted.
    static LINES: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Keeps the whole trace from now on.
pub(crate) fn keep_lines() {
    LINES.set(Some(String::new()));
}

/// Notes a step.
pub(crate) fn record(what: &str, number: u64) {
    let now = u64::try_from(shim::now().as_nanos()).unwrap_or(u64::MAX);
    let mut hash = mix(HASH.get() ^ now) ^ number;
    for byte in what.bytes() {
        hash = mix(hash ^ u64::from(byte));
    }
    HASH.set(mix(hash));
    STEPS.set(STEPS.get() + 1);
    LINES.with_borrow_mut(|lines| {
        if let Some(lines) = lines {
            *lines += &format!("{} {now} {what} {number}\n", STEPS.get());
        }
    });
}

/// Notes the turn of a runtime.
pub(crate) fn record_turn(machine: usize, polls: u32) {
    record("turn", ((machine as u64) << 32) | u64::from(polls));
}

/// Returns the number of this run, and its steps.
pub(crate) fn summary() -> (u64, u64) {
    (HASH.get(), STEPS.get())
}

/// Returns the whole trace, if it was kept.
pub(crate) fn lines() -> Option<String> {
    LINES.take()
}
