//! The order of progress notifications (MCP: the value increases with each notification).

use parking_lot::Mutex;

/// The last progress of one series that went to the client.
#[derive(Debug, Default)]
pub(super) struct ProgressSeries(Mutex<Option<f64>>);

impl ProgressSeries {
    /// Returns whether progress of this value may go to the client, and notes it.
    pub(super) fn advances(&self, value: f64) -> bool {
        let mut last = self.0.lock();
        if last.is_some_and(|last| value <= last) {
            return false;
        }
        *last = Some(value);
        true
    }

    /// Begins a new series, which may start at any value.
    pub(super) fn restart(&self) {
        *self.0.lock() = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_only_increases_within_a_series() {
        let series = ProgressSeries::default();
        assert!(series.advances(1.0) && !series.advances(1.0) && series.advances(1.5));
        series.restart();
        assert!(series.advances(0.5) && !series.advances(0.25));
    }
}
