//! Counts the work of one validation, and ends it from inside.
//!
//! The validator asks the instance for every value it looks at, and patterns take their text piece by piece: each of these
//! pays here. Once nothing is left, or the validation was given up, the instance has no more parts, and what is under way comes to
//! its end. The count is of the thread, as names of members reach the validator without a way to carry it.
//!
//! Invariant: between two payments the work is bounded by the schema alone, never by the arguments.

use std::{
    cell::{Cell, RefCell},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// Steps between two looks at whether the validation was given up.
const STRIDE: u64 = 1_024;

/// What one validation may do.
#[derive(Debug, Clone)]
pub struct ValidationBudget {
    pub steps: u64,
    /// Set by who waits for it, once nobody does.
    pub given_up: Arc<AtomicBool>,
}

/// Why a validation ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ValidationStop {
    Steps,
    Cancelled,
    Faults,
}

struct StepMeter {
    /// Steps until the next look.
    until_look: Cell<u64>,
    /// Steps after that.
    left: Cell<u64>,
    over: Cell<Option<ValidationStop>>,
    given_up: RefCell<Option<Arc<AtomicBool>>>,
    /// What one byte of a member's name costs, in sixteenths of a step.
    name_weight: Cell<u64>,
    faults_left: Cell<usize>,
}

thread_local! {
    static METER: StepMeter = const {
        StepMeter {
            until_look: Cell::new(0),
            left: Cell::new(0),
            over: Cell::new(None),
            given_up: RefCell::new(None),
            name_weight: Cell::new(0),
            faults_left: Cell::new(0),
        }
    };
}

/// Nothing of a validation stays on the thread, whatever its end.
struct MeterResetGuard;

impl Drop for MeterResetGuard {
    fn drop(&mut self) {
        METER.with(|meter| {
            meter.until_look.set(0);
            meter.left.set(0);
            meter.given_up.replace(None);
        });
    }
}

/// Carries `work` out within `allowance`, and tells what ended it early. Faults are counted from `faults_max` down.
pub(super) fn metered<T>(
    allowance: &ValidationBudget,
    name_weight: u64,
    faults_max: usize,
    work: impl FnOnce() -> T,
) -> (T, Option<ValidationStop>) {
    METER.with(|meter| {
        meter.until_look.set(0);
        meter.left.set(allowance.steps);
        meter.over.set(None);
        meter.given_up.replace(Some(allowance.given_up.clone()));
        meter.name_weight.set(name_weight);
        meter.faults_left.set(faults_max);
    });
    let _cleared = MeterResetGuard;
    let done = work();
    (done, over())
}

/// Pays for `steps`. False: the validation is over.
#[inline]
pub(super) fn pay(steps: u64) -> bool {
    METER.with(|meter| match meter.until_look.get().checked_sub(steps) {
        Some(left) => {
            meter.until_look.set(left);
            true
        }
        None => meter.look(steps),
    })
}

/// Pays for a look at the name of a member.
#[inline]
pub(super) fn pay_name(bytes: usize) -> bool {
    let weight = METER.with(|meter| meter.name_weight.get());
    pay(1 + (bytes as u64 + 1).saturating_mul(weight) / 16)
}

pub(super) fn over() -> Option<ValidationStop> {
    METER.with(|meter| meter.over.get())
}

/// Notes a fault of the arguments. False: it may be none, as the arguments have lost their parts.
pub(super) fn note_fault() -> bool {
    METER.with(|meter| {
        if meter.over.get().is_some() {
            return false;
        }
        match meter.faults_left.get().checked_sub(1) {
            Some(left @ 1..) => meter.faults_left.set(left),
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
        let Some(left) = (self.left.get() + self.until_look.get()).checked_sub(steps) else {
            self.end(ValidationStop::Steps);
            return false;
        };
        let until_look = left.min(STRIDE);
        self.until_look.set(until_look);
        self.left.set(left - until_look);
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
        ValidationBudget { steps, given_up: Arc::default() }
    }

    #[test]
    fn s02_so_many_steps_and_no_more() {
        for steps in [0, 1, 1_023, 1_024, 1_025, 10_000] {
            let (paid, over) =
                metered(&allowance(steps), 0, 1, || (0..20_000).filter(|_| pay(1)).count());
            assert_eq!((paid as u64, over), (steps, Some(ValidationStop::Steps)), "{steps}");
        }
        let (_, over) = metered(&allowance(10), 0, 1, || pay(3) && pay(7));
        assert_eq!(over, None);
        assert!(!pay(1), "outside of a validation there is nothing to spend");
    }

    #[test]
    fn s02_who_gives_up_is_heard_within_a_stride() {
        let allowed = allowance(u64::MAX);
        let (paid, over) = metered(&allowed, 0, 1, || {
            let before = (0..10).filter(|_| pay(1)).count();
            allowed.given_up.store(true, Ordering::Relaxed);
            (before, (0..20_000).filter(|_| pay(1)).count())
        });
        assert_eq!((paid.0, over), (10, Some(ValidationStop::Cancelled)));
        assert!((paid.1 as u64) < STRIDE, "{paid:?}");
    }

    #[test]
    fn s02_faults_end_it_and_what_comes_after_counts_for_nothing() {
        let (noted, over) =
            metered(&allowance(1_000), 0, 3, || (0..10).filter(|_| note_fault()).count());
        assert_eq!((noted, over), (3, Some(ValidationStop::Faults)));
    }

    #[test]
    fn s02_names_cost_what_is_done_with_them() {
        let (_, over) = metered(&allowance(100), 16, 1, || pay_name(50));
        assert_eq!(over, None);
        let (_, over) = metered(&allowance(100), 16, 1, || pay_name(50) && pay_name(50));
        assert_eq!(over, Some(ValidationStop::Steps));
    }
}
