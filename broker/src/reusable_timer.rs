//! One timer for all deadlines of a task, one after the other.
//!
//! The server of a connection owns it. A timer per request takes the lock of the runtime's timers
//! twice: when it is set and when it is dropped. This timer stays set, and is set again only if it
//! fires early.

use std::{
    pin::{Pin, pin},
    task::{Context, Poll, Waker, ready},
};

use tokio::{
    task::unconstrained,
    time::{Instant, Sleep},
};

#[derive(Debug, Default)]
pub(crate) struct ReusableTimer {
    /// Allocated at the first use.
    timer: Option<Pin<Box<Sleep>>>,
    /// Waker of the waiting task.
    waker: Option<Waker>,
}

impl ReusableTimer {
    /// Becomes ready at `at`. For one task at a time.
    pub(crate) fn poll_deadline(&mut self, context: &mut Context<'_>, at: Instant) -> Poll<()> {
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(at)));
        // Usually it is still set for an earlier time.
        let is_set = self.waker.as_ref().is_some_and(|sleeper| sleeper.will_wake(context.waker()));
        if is_set && timer.deadline() <= at && !timer.is_elapsed() {
            return Poll::Pending;
        }
        self.waker = Some(context.waker().clone());
        loop {
            if timer.deadline() > at {
                timer.as_mut().reset(at);
            }
            // Unconstrained, whatever budget the task has used. A timer that defers its task would
            // not register its waker.
            ready!(pin!(unconstrained(timer.as_mut())).poll(context));
            if Instant::now() >= at {
                self.waker = None;
                return Poll::Ready(());
            }
            timer.as_mut().reset(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, time::Duration};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_timer_fires_at_the_last_requested_time() {
        let (mut alarm, started) = (ReusableTimer::default(), Instant::now());
        let at = |seconds| started + Duration::from_secs(seconds);
        let is_pending = |alarm: &mut ReusableTimer, at| {
            let polled = alarm.poll_deadline(&mut Context::from_waker(Waker::noop()), at);
            polled.is_pending()
        };
        assert!(is_pending(&mut alarm, at(1)) && is_pending(&mut alarm, at(3)));
        poll_fn(|context| alarm.poll_deadline(context, at(3))).await;
        assert_eq!(Instant::now(), at(3), "set for sooner, it went on");
        assert!(is_pending(&mut alarm, at(60)));
        poll_fn(|context| alarm.poll_deadline(context, at(4))).await;
        assert_eq!(Instant::now(), at(4), "set for later, it came sooner");
        poll_fn(|context| alarm.poll_deadline(context, at(2))).await;
        assert_eq!(Instant::now(), at(4), "what is over is over");
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_without_budget_is_still_woken() {
        let (mut alarm, at) = (ReusableTimer::default(), Instant::now() + Duration::from_secs(1));
        let mut polls = 0;
        poll_fn(|context| {
            polls += 1;
            while tokio::task::coop::has_budget_remaining() {
                let _spent = pin!(tokio::task::consume_budget()).poll(context);
            }
            alarm.poll_deadline(context, at)
        })
        .await;
        assert!(Instant::now() >= at && polls >= 2);
    }
}
