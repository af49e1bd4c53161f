//! Counts the steps of one validation, and ends it from inside.
//!
//! The validator reads every value through the instance, and patterns read their text in pieces.
//! Each read pays here. After the last step, or a cancellation, the instance has no more parts, so
//! the validation ends. The count is a thread local, because the validator cannot carry it to names
//! of members.
//!
//! Invariant: between two payments the schema alone bounds the work, never the arguments.

use std::{
    cell::{Cell, RefCell},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// Steps between two checks for a cancellation.
const STRIDE: u64 = 1_024;

/// The budget of one validation.
#[derive(Debug, Clone)]
pub struct ValidationBudget {
    pub steps: u64,
    /// Set when the request no longer waits for the validation.
    pub cancelled: Arc<AtomicBool>,
}

/// Reason for which a validation ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ValidationStop {
    Steps,
    Cancelled,
    Faults,
}

struct StepMeter {
    /// Steps until the next check for a cancellation.
    until_look: Cell<u64>,
    /// Steps after that.
    remaining_steps: Cell<u64>,
    over: Cell<Option<ValidationStop>>,
    given_up: RefCell<Option<Arc<AtomicBool>>>,
    /// Cost of one byte of a member's name, in sixteenths of a step.
    name_weight: Cell<u64>,
    remaining_faults: Cell<usize>,
}

thread_local! {
    static METER: StepMeter = const {
        StepMeter {
            until_look: Cell::new(0),
            remaining_steps: Cell::new(0),
            over: Cell::new(None),
            given_up: RefCell::new(None),
            name_weight: Cell::new(0),
            remaining_faults: Cell::new(0),
        }
    };
}

/// Clears the meter of the thread when dropped, however the validation ends.
struct MeterResetGuard;

impl Drop for MeterResetGuard {
    fn drop(&mut self) {
        METER.with(|meter| {
            meter.until_look.set(0);
            meter.remaining_steps.set(0);
            meter.given_up.replace(None);
        });
    }
}

/// Runs `work` within `allowance`. Also returns the reason of an early end. The `faults_max`-th
/// fault ends the validation.
pub(super) fn run_metered<T>(
    allowance: &ValidationBudget,
    name_weight: u64,
    faults_max: usize,
    work: impl FnOnce() -> T,
) -> (T, Option<ValidationStop>) {
    METER.with(|meter| {
        meter.until_look.set(0);
        meter.remaining_steps.set(allowance.steps);
        meter.over.set(None);
        meter.given_up.replace(Some(allowance.cancelled.clone()));
        meter.name_weight.set(name_weight);
        meter.remaining_faults.set(faults_max);
    });
    let _cleared = MeterResetGuard;
    let done = work();
    (done, stop_reason())
}

/// Pays `steps`. Returns false once the validation has ended.
#[inline]
pub(super) fn charge(steps: u64) -> bool {
    METER.with(|meter| match meter.until_look.get().checked_sub(steps) {
        Some(until_look) => {
            meter.until_look.set(until_look);
            true
        }
        None => meter.look(steps),
    })
}

/// Pays for a visit of a member's name.
#[inline]
pub(super) fn charge_name(bytes: usize) -> bool {
    let weight = METER.with(|meter| meter.name_weight.get());
    charge(1 + (bytes as u64 + 1).saturating_mul(weight) / 16)
}

pub(super) fn stop_reason() -> Option<ValidationStop> {
    METER.with(|meter| meter.over.get())
}

/// Counts a fault of the arguments. Returns false if the arguments have lost their parts, so that
/// the fault may not be genuine.
pub(super) fn record_error() -> bool {
    METER.with(|meter| {
        if meter.over.get().is_some() {
            return false;
        }
        match meter.remaining_faults.get().checked_sub(1) {
            Some(remaining @ 1..) => meter.remaining_faults.set(remaining),
            _ => meter.end(ValidationStop::Faults),
        }
        true
    })
}

impl StepMeter {
    #[cold]
    fn look(&self, steps: u64) -> bool {
        if self.over.get().is_some() {
            return false;
        }
        if self.given_up.borrow().as_ref().is_none_or(|given_up| given_up.load(Ordering::Relaxed)) {
            self.end(ValidationStop::Cancelled);
            return false;
        }
        let Some(remaining) =
            (self.remaining_steps.get() + self.until_look.get()).checked_sub(steps)
        else {
            self.end(ValidationStop::Steps);
            return false;
        };
        let until_look = remaining.min(STRIDE);
        self.until_look.set(until_look);
        self.remaining_steps.set(remaining - until_look);
        true
    }

    fn end(&self, over: ValidationStop) {
        self.over.set(Some(over));
        self.until_look.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowance(steps: u64) -> ValidationBudget {
        ValidationBudget { steps, cancelled: Arc::default() }
    }

    #[test]
    fn s02_a_validation_stops_after_the_allowed_steps() {
        for steps in [0, 1, 1_023, 1_024, 1_025, 10_000] {
            let (paid, over) =
                run_metered(&allowance(steps), 0, 1, || (0..20_000).filter(|_| charge(1)).count());
            assert_eq!((paid as u64, over), (steps, Some(ValidationStop::Steps)), "{steps}");
        }
        let (_, over) = run_metered(&allowance(10), 0, 1, || charge(3) && charge(7));
        assert_eq!(over, None);
        assert!(!charge(1), "outside of a validation there is nothing to spend");
    }

    #[test]
    fn s02_a_cancellation_is_detected_within_one_stride() {
        let allowed = allowance(u64::MAX);
        let (paid, over) = run_metered(&allowed, 0, 1, || {
            let before = (0..10).filter(|_| charge(1)).count();
            allowed.cancelled.store(true, Ordering::Relaxed);
            (before, (0..20_000).filter(|_| charge(1)).count())
        });
        assert_eq!((paid.0, over), (10, Some(ValidationStop::Cancelled)));
        assert!((paid.1 as u64) < STRIDE, "{paid:?}");
    }

    #[test]
    fn s02_the_maximum_of_faults_ends_the_validation() {
        let (recorded, over) =
            run_metered(&allowance(1_000), 0, 3, || (0..10).filter(|_| record_error()).count());
        assert_eq!((recorded, over), (3, Some(ValidationStop::Faults)));
    }

    #[test]
    fn s02_each_use_of_a_name_is_charged() {
        let (_, over) = run_metered(&allowance(100), 16, 1, || charge_name(50));
        assert_eq!(over, None);
        let (_, over) = run_metered(&allowance(100), 16, 1, || charge_name(50) && charge_name(50));
        assert_eq!(over, Some(ValidationStop::Steps));
    }
}
