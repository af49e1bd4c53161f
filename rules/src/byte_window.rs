//! A limit of bytes within a time that moves along with the clock.

use std::time::{Duration, Instant};

/// Parts of the window. Bytes leave it part by part.
const SLOTS: usize = 16;

/// Counts bytes. Any time as long as the window has at most the limit.
#[derive(Debug)]
pub struct ByteWindow {
    limit: u64,
    slot_length: Duration,
    started: Instant,
    /// Number of the newest slot since the start.
    newest: u128,
    /// Bytes of the newest slot and of those before it. The slot `n` is at `n % SLOTS`.
    bytes: [u64; SLOTS],
}

impl ByteWindow {
    pub fn new(limit: usize, window: Duration, now: Instant) -> Self {
        // One slot more than the window: the newest one has only begun.
        let slot_length = (window / (SLOTS as u32 - 1)).max(Duration::from_nanos(1));
        Self { limit: limit as u64, slot_length, started: now, newest: 0, bytes: [0; SLOTS] }
    }

    /// Counts these bytes. Returns false, and counts nothing, if they exceed the limit.
    pub fn try_add(&mut self, bytes: usize, now: Instant) -> bool {
        let elapsed = now.saturating_duration_since(self.started);
        self.advance(elapsed.as_nanos() / self.slot_length.as_nanos());
        let counted: u64 = self.bytes.iter().sum();
        if counted.saturating_add(bytes as u64) > self.limit {
            return false;
        }
        self.bytes[slot(self.newest)] += bytes as u64;
        true
    }

    /// Makes this slot the newest one, unless a caller with a later time did so. Slots that leave the
    /// window become empty.
    fn advance(&mut self, to: u128) {
        let oldest_new = to.saturating_sub(SLOTS as u128 - 1).max(self.newest + 1);
        for number in oldest_new..=to {
            self.bytes[slot(number)] = 0;
        }
        self.newest = self.newest.max(to);
    }
}

fn slot(number: u128) -> usize {
    (number % SLOTS as u128) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(15);

    fn window(limit: usize) -> (ByteWindow, Instant) {
        let started = Instant::now();
        (ByteWindow::new(limit, WINDOW, started), started)
    }

    #[test]
    fn bytes_count_up_to_the_limit() {
        let (mut window, started) = window(100);
        assert!(window.try_add(60, started) && window.try_add(40, started));
        assert!(!window.try_add(1, started) && window.try_add(0, started));
    }

    #[test]
    fn refused_bytes_do_not_count() {
        let (mut window, started) = window(100);
        assert!(!window.try_add(101, started) && window.try_add(100, started));
    }

    #[test]
    fn bytes_count_for_the_whole_window_and_then_no_longer_than_a_part() {
        let (mut window, started) = window(100);
        assert!(window.try_add(100, started + Duration::from_millis(999)));
        let seconds = |seconds| started + Duration::from_secs(seconds);
        assert!(!window.try_add(1, seconds(15)));
        assert!(window.try_add(100, seconds(16)));
        assert!(!window.try_add(1, seconds(31)));
        assert!(window.try_add(1, seconds(1_000)));
    }

    #[test]
    fn no_time_as_long_as_the_window_has_more_than_the_limit() {
        let (mut window, started) = window(1_000);
        let step = Duration::from_millis(100);
        let taken: Vec<usize> = (0..1_000_u32)
            .map(|number| {
                let bytes = (number as usize * 7919) % 150;
                if window.try_add(bytes, started + step * number) { bytes } else { 0 }
            })
            .collect();
        assert!(taken.windows(150).all(|within| within.iter().sum::<usize>() <= 1_000));
        assert!(taken.iter().sum::<usize>() > 5_000);
    }

    #[test]
    fn a_caller_whose_clock_is_late_is_counted_too() {
        let (mut window, started) = window(100);
        assert!(window.try_add(50, started + WINDOW));
        assert!(window.try_add(50, started) && !window.try_add(1, started));
    }
}
