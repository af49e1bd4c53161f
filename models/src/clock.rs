//! A clock that the model sets. Each run of a model begins at the same time.

use std::{
    pin::Pin,
    sync::OnceLock,
    task::{Context, Poll, Waker},
    time::{Duration, Instant as StdInstant},
};

use parking_lot::Mutex;

shuttle::lazy_static! {
    static ref CLOCK: Mutex<Clock> = Mutex::new(Clock::default());
}

#[derive(Debug, Default)]
struct Clock {
    elapsed: Duration,
    sleepers: Vec<Waker>,
}

/// A moment of the model, with the interface of `tokio::time::Instant`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(StdInstant);

fn origin() -> StdInstant {
    static ORIGIN: OnceLock<StdInstant> = OnceLock::new();
    // Ahead of the time of the process, which the copied files take as the beginning.
    *ORIGIN.get_or_init(|| StdInstant::now() + Duration::from_secs(3600))
}

impl Instant {
    /// Returns the time of the model.
    pub fn now() -> Self {
        Self(origin() + CLOCK.lock().elapsed)
    }

    /// Returns the same moment in the type of the standard library.
    pub fn into_std(self) -> StdInstant {
        self.0
    }
}

impl From<StdInstant> for Instant {
    fn from(at: StdInstant) -> Self {
        Self(at)
    }
}

/// Moves the clock and wakes all that sleep.
pub fn advance(by: Duration) {
    let mut clock = CLOCK.lock();
    clock.elapsed += by;
    let sleepers = std::mem::take(&mut clock.sleepers);
    drop(clock);
    sleepers.into_iter().for_each(Waker::wake);
}

/// Resolves when the clock has reached `at`.
pub fn sleep_until(at: Instant) -> Sleep {
    Sleep(at)
}

/// A wait for a moment.
#[derive(Debug)]
pub struct Sleep(Instant);

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut clock = CLOCK.lock();
        if origin() + clock.elapsed >= self.0.0 {
            return Poll::Ready(());
        }
        clock.sleepers.push(context.waker().clone());
        Poll::Pending
    }
}
