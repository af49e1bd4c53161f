//! Waits with a deadline: for a future, for a state seen from outside, for a gate that a test
//! opens.
//!
//! Every test uses them. A wait that exceeds its deadline panics with the name of what it waited
//! for.

use std::{fmt::Debug, future::Future, time::Duration};

use futures_util::future::BoxFuture;
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

/// Longest wait of a test for anything before it fails.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// Interval at which a state is read that can only be polled (a metric, a process table).
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Returns the future's value, or panics with `what` after [`DEADLINE`].
#[track_caller]
pub fn within<F: Future>(what: &str, future: F) -> impl Future<Output = F::Output> {
    within_at_most(DEADLINE, what, future)
}

/// Does the same as [`within`] with another deadline.
#[track_caller]
pub fn within_at_most<F: Future>(
    deadline: Duration,
    what: &str,
    future: F,
) -> impl Future<Output = F::Output> {
    let at = std::panic::Location::caller();
    let what = what.to_owned();
    async move {
        match timeout(deadline, future).await {
            Ok(value) => value,
            Err(_) => panic!("waited {deadline:?} for {what} (at {at})"),
        }
    }
}

/// Calls `look` again and again until it returns `Ok`; panics with its last `Err` after `deadline`.
pub async fn eventually_within<T, E: Debug, F: Future<Output = Result<T, E>>>(
    deadline: Duration,
    what: &str,
    mut look: impl FnMut() -> F,
) -> T {
    let end = Instant::now() + deadline;
    loop {
        match look().await {
            Ok(value) => return value,
            Err(last) if Instant::now() >= end => {
                panic!("waited {deadline:?} for {what}; last seen: {last:?}")
            }
            Err(_) => tokio::time::sleep(LOOK_EVERY).await,
        }
    }
}

/// Does the same as [`eventually_within`] with the usual [`DEADLINE`].
pub async fn eventually<T, E: Debug, F: Future<Output = Result<T, E>>>(
    what: &str,
    look: impl FnMut() -> F,
) -> T {
    eventually_within(DEADLINE, what, look).await
}

/// Waits until this text was logged: the broker writes a line some time after its event.
pub(crate) async fn logged(text: &str, log: impl Fn() -> String) {
    let look = || async { if log().contains(text) { Ok(()) } else { Err(log()) } };
    eventually(text, look).await;
}

/// A gate at which handlers wait until the test opens it.
#[derive(Clone, Debug)]
pub struct Gate(watch::Sender<bool>);

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}

impl Gate {
    pub fn new() -> Self {
        Self(watch::Sender::new(false))
    }

    pub fn open(&self) {
        self.0.send_replace(true);
    }

    /// Waits until the gate is open. It stays open for later callers.
    pub async fn passed(&self) {
        let mut state = self.0.subscribe();
        let _ = state.wait_for(|open| *open).await;
    }

    /// Returns a handler of a backend that gives this answer once the gate is open.
    pub fn before<C, R>(
        &self,
        reply: R,
    ) -> impl Fn(C) -> BoxFuture<'static, R> + Send + Sync + use<C, R>
    where
        R: Clone + Send + Sync + 'static,
    {
        let gate = self.clone();
        move |_| {
            let (gate, reply) = (gate.clone(), reply.clone());
            Box::pin(async move {
                gate.passed().await;
                reply
            })
        }
    }
}
