//! How often which duration was seen: a histogram with buckets of equal relative width, and its quantiles.
//!
//! Exact to 1.6 %, from a nanosecond to eighteen minutes, in about 9 KiB. What is longer counts as the longest.

use std::time::Duration;

/// Buckets in each doubling: 2^6.
const BITS: u32 = 6;
const PER_DOUBLING: u64 = 1 << BITS;
/// The longest duration told apart: 2^40 ns, some eighteen minutes.
const DOUBLINGS: u64 = 40 - BITS as u64 + 1;
const BUCKETS: usize = (DOUBLINGS * PER_DOUBLING) as usize;

#[derive(Debug, Clone, Default)]
pub struct Histogram {
    /// Empty until the first sample: most windows of most methods have none.
    buckets: Vec<u32>,
    count: u64,
    max: Duration,
    total: Duration,
}

impl Histogram {
    pub fn add(&mut self, sample: Duration) {
        if self.buckets.is_empty() {
            self.buckets = vec![0; BUCKETS];
        }
        let nanos = u64::try_from(sample.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket_of(nanos)] += 1;
        self.count += 1;
        self.max = self.max.max(sample);
        self.total += sample;
    }

    pub fn merge(&mut self, other: &Self) {
        if self.buckets.is_empty() {
            self.buckets = vec![0; BUCKETS];
        }
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(mine, theirs)| *mine += theirs);
        self.count += other.count;
        self.max = self.max.max(other.max);
        self.total += other.total;
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn max(&self) -> Duration {
        self.max
    }

    pub fn mean(&self) -> Duration {
        self.total.checked_div(u32::try_from(self.count).unwrap_or(u32::MAX)).unwrap_or_default()
    }

    /// The duration that this share of the samples does not exceed; zero of none.
    pub fn quantile(&self, share: f64) -> Duration {
        let rank = ((share * self.count as f64).ceil() as u64).clamp(1, self.count.max(1));
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += u64::from(*count);
            if seen >= rank {
                return Duration::from_nanos(upper_edge(bucket as u64)).min(self.max);
            }
        }
        Duration::ZERO
    }
}

/// Below one doubling every nanosecond has its bucket; above, the leading bits choose it.
fn bucket_of(nanos: u64) -> usize {
    let doubling = (u64::BITS - nanos.leading_zeros()).saturating_sub(BITS + 1);
    let bucket = u64::from(doubling) * PER_DOUBLING + (nanos >> doubling);
    (bucket as usize).min(BUCKETS - 1)
}

/// The largest number of nanoseconds in a bucket.
fn upper_edge(bucket: u64) -> u64 {
    let doubling = (bucket / PER_DOUBLING).saturating_sub(1);
    let leading = bucket - doubling * PER_DOUBLING;
    ((leading + 1) << doubling) - 1
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
    fn what_is_longer_than_the_longest_is_the_longest() {
        let mut histogram = Histogram::default();
        histogram.add(Duration::from_secs(100_000));
        assert_eq!(histogram.count(), 1);
        assert!(histogram.quantile(1.0) > Duration::from_secs(1000));
    }

    proptest! {
        #[test]
        fn a_bucket_holds_what_is_put_into_it(nanos in 0_u64..1 << 40) {
            let bucket = bucket_of(nanos) as u64;
            prop_assert!(nanos <= upper_edge(bucket));
            prop_assert!(bucket == 0 || nanos > upper_edge(bucket - 1));
        }
    }
}
