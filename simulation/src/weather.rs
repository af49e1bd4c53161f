//! What goes wrong now: in the store, in Redis, and on the network. The plan of a run changes it,
//! and the seed decides about each single operation.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;

use crate::choices::Choices;

/// Rates of faults, and delays.
#[derive(Debug, Clone, Default)]
pub(crate) struct Conditions {
    /// The database answers nothing.
    pub(crate) is_store_away: bool,
    /// Of 1,000 operations of the store, those that fail before they are carried out.
    pub(crate) failures_before: u64,
    /// Of 1,000 operations of the store, those whose answer is lost.
    pub(crate) failures_after: u64,
    /// Of 1,000 operations of the store, those that take up to a second.
    pub(crate) slow_operations: u64,
    pub(crate) is_redis_away: bool,
    /// Of 1,000 pieces on a connection, those that come up to half a second late.
    pub(crate) late_pieces: u64,
    /// Of 1,000 pieces on a connection, those at which it is cut.
    pub(crate) cuts: u64,
}

#[derive(Debug)]
struct WeatherState {
    conditions: Conditions,
    choices: Choices,
}

/// The conditions, shared by all that is simulated.
#[derive(Debug, Clone)]
pub(crate) struct Weather(Arc<Mutex<WeatherState>>);

/// What becomes of one operation of the store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OperationFate {
    pub(crate) before: Duration,
    pub(crate) fails_before: bool,
    pub(crate) after: Duration,
    pub(crate) fails_after: bool,
}

impl Weather {
    pub(crate) fn new(choices: Choices) -> Self {
        Self(Arc::new(Mutex::new(WeatherState { conditions: Conditions::default(), choices })))
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Conditions)) {
        change(&mut self.0.lock().conditions);
    }

    pub(crate) fn is_store_away(&self) -> bool {
        self.0.lock().conditions.is_store_away
    }

    pub(crate) fn is_redis_away(&self) -> bool {
        self.0.lock().conditions.is_redis_away
    }

    pub(crate) fn operation(&self) -> OperationFate {
        let state = &mut *self.0.lock();
        let (now, choices) = (&state.conditions, &mut state.choices);
        let mut delay = || {
            if choices.per_mille(now.slow_operations) {
                choices.millis(1..1_000)
            } else if choices.per_mille(300) {
                choices.millis(1..4)
            } else {
                Duration::ZERO
            }
        };
        let (before, after) = (delay(), delay());
        OperationFate {
            before,
            after,
            fails_before: choices.per_mille(now.failures_before),
            fails_after: choices.per_mille(now.failures_after),
        }
    }

    /// Returns the delay of a piece on a connection, or `None` if the connection is cut instead.
    pub(crate) fn piece(&self) -> Option<Duration> {
        let state = &mut *self.0.lock();
        let (now, choices) = (&state.conditions, &mut state.choices);
        if choices.per_mille(now.cuts) {
            return None;
        }
        Some(if choices.per_mille(now.late_pieces) {
            choices.millis(1..500)
        } else if choices.per_mille(300) {
            choices.millis(1..4)
        } else {
            Duration::ZERO
        })
    }

    /// Returns a number below `count`.
    pub(crate) fn index(&self, count: usize) -> usize {
        self.0.lock().choices.index(count)
    }
}

/// Waits, unless the time is zero.
pub(crate) async fn pause(time: Duration) {
    if !time.is_zero() {
        tokio::time::sleep(time).await;
    }
}
