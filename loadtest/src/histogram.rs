//! Counts durations in an HDR histogram of nanoseconds and returns their quantiles.
//!
//! A quantile is exact to 1 %, from a nanosecond to eighteen minutes, in about 17 KiB. A longer duration counts as the longest.

use std::time::Duration;

type Counts = hdrhistogram::Histogram<u32>;

/// Decimal digits of a duration that the histogram keeps.
const DIGITS: u8 = 2;
/// The longest duration: 2^40 ns, some eighteen minutes.
const LONGEST_NANOS: u64 = (1 << 40) - 1;

#[derive(Debug, Clone, Default)]
pub struct Histogram {
    /// `None` until the first sample: most windows of most methods have none.
    counts: Option<Box<Counts>>,
    // Exact, unlike values from the counts.
    max: Duration,
    total: Duration,
}

impl Histogram {
    pub fn add(&mut self, sample: Duration) {
        let nanos = u64::try_from(sample.as_nanos()).unwrap_or(u64::MAX);
        self.counts.get_or_insert_with(empty).saturating_record(nanos);
        self.max = self.max.max(sample);
        self.total += sample;
    }

    pub fn merge(&mut self, other: &Self) {
        if let Some(theirs) = &other.counts {
            let mine = self.counts.get_or_insert_with(empty);
            mine.add(theirs.as_ref()).expect("all histograms have the same bounds");
        }
        self.max = self.max.max(other.max);
        self.total += other.total;
    }

    pub fn count(&self) -> u64 {
        self.counts.as_ref().map_or(0, |counts| counts.len())
    }

    pub fn max(&self) -> Duration {
        self.max
    }

    pub fn mean(&self) -> Duration {
        self.total.checked_div(u32::try_from(self.count()).unwrap_or(u32::MAX)).unwrap_or_default()
    }

    /// Returns the duration that this share of the samples does not exceed, or zero without samples.
    pub fn quantile(&self, share: f64) -> Duration {
        let Some(counts) = &self.counts else { return Duration::ZERO };
        Duration::from_nanos(counts.value_at_quantile(share)).min(self.max)
    }

    /// Returns shares of the samples with the duration that each does not exceed. Each further half
    /// of the rest has a few points, so that the last nines have as many as the first.
    pub fn distribution(&self) -> Vec<(f64, Duration)> {
        const POINTS_PER_HALF: u32 = 4;
        let Some(counts) = &self.counts else { return Vec::new() };
        let points = counts.iter_quantiles(POINTS_PER_HALF).map(|point| {
            let duration = Duration::from_nanos(point.value_iterated_to()).min(self.max);
            (point.quantile_iterated_to(), duration)
        });
        points.collect()
    }
}

fn empty() -> Box<Counts> {
    Box::new(Counts::new_with_bounds(1, LONGEST_NANOS, DIGITS).expect("the bounds are constants"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn quantiles_are_within_the_promised_width() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile(0.5), Duration::ZERO);
        (1..=1000).for_each(|ms| histogram.add(Duration::from_millis(ms)));
        for (share, wanted) in [(0.5, 500.0), (0.9, 900.0), (0.99, 990.0), (1.0, 1000.0)] {
            let found = histogram.quantile(share).as_secs_f64() * 1000.0;
            assert!((found / wanted - 1.0).abs() < 0.016, "{share}: {found} instead of {wanted}");
        }
        assert_eq!(
            (histogram.count(), histogram.max(), histogram.mean()),
            (1000, Duration::from_secs(1), Duration::from_micros(500_500))
        );
    }

    #[test]
    fn merged_histograms_hold_the_samples_of_both() {
        let (mut one, mut other) = (Histogram::default(), Histogram::default());
        one.add(Duration::from_micros(10));
        other.add(Duration::from_millis(10));
        one.merge(&other);
        one.merge(&Histogram::default());
        assert_eq!((one.count(), one.max()), (2, Duration::from_millis(10)));
        assert!(one.quantile(0.5) < Duration::from_micros(11));
    }

    #[test]
    fn a_distribution_reaches_the_slowest_sample() {
        let mut histogram = Histogram::default();
        assert!(histogram.distribution().is_empty());
        // A few samples are far slower than the others.
        (1..=10_000).for_each(|rest| histogram.add(Duration::from_micros(1_000_000 / rest)));
        let points = histogram.distribution();
        assert!(points.is_sorted_by(|a, b| a.0 <= b.0 && a.1 <= b.1), "{points:?}");
        assert!(points.len() < 100 && points.iter().any(|(share, _)| (0.999..1.0).contains(share)));
        assert_eq!(points.last().map(|(_, slowest)| *slowest), Some(Duration::from_secs(1)));
    }

    #[test]
    fn a_too_long_duration_counts_as_the_longest() {
        let mut histogram = Histogram::default();
        histogram.add(Duration::from_secs(100_000));
        assert_eq!(histogram.count(), 1);
        assert!(histogram.quantile(1.0) > Duration::from_secs(1000));
    }

    proptest! {
        #[test]
        fn a_quantile_returns_a_sample_within_the_promised_width(nanos in 0..=LONGEST_NANOS) {
            let mut histogram = Histogram::default();
            histogram.add(Duration::from_nanos(nanos));
            histogram.add(Duration::from_nanos(LONGEST_NANOS));
            let found = histogram.quantile(0.5).as_nanos() as u64;
            prop_assert!(nanos <= found && found - nanos <= nanos / 100, "{found} instead of {nanos}");
        }
    }
}
