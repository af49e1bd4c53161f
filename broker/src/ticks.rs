//! Timers of work that repeats at an interval.
//!
//! A process can stand still for hours while its clock runs on, such as a container that is paused.
//! By default, tokio makes up for all ticks that were missed, one right after the other.

use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior};

/// Returns a timer whose first tick is at once. Missed ticks count as one.
pub(crate) fn ticks(every: Duration) -> Interval {
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn ticks_missed_in_a_pause_of_the_process_count_as_one() {
        let second = Duration::from_secs(1);
        let mut ticks = ticks(second);
        ticks.tick().await;
        tokio::time::advance(28_800 * second).await;
        assert!(ticks.tick().now_or_never().is_some(), "the work is due");
        assert!(ticks.tick().now_or_never().is_none(), "once");
        tokio::time::advance(2 * second).await;
        assert!(ticks.tick().now_or_never().is_some(), "and at the interval again");
    }
}
