//! The slope test: whether a measure stays flat over a run.
//!
//! The slope is that of Theil and Sen, the median of the slopes between all pairs of samples. A few
//! samples far off do not move it, and load that comes and goes does not either.

/// Growth over the measured time that is not a leak, as a share of the level.
const SHARE_ALLOWED: f64 = 0.05;

/// Unit of a measure, with the growth that is allowed at any level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Bytes,
    Count,
}

impl Unit {
    fn floor(self) -> f64 {
        match self {
            Self::Bytes => 4.0 * 1024.0 * 1024.0,
            Self::Count => 4.0,
        }
    }

    pub(super) fn show(self, value: f64) -> String {
        match self {
            Self::Bytes => format!("{:.1} MiB", value / 1024.0 / 1024.0),
            Self::Count => format!("{value:.0}"),
        }
    }
}

/// Samples of one measure, as seconds since the start of the load and value.
#[derive(Debug, Clone)]
pub struct Series {
    pub name: String,
    pub unit: Unit,
    pub points: Vec<(f64, f64)>,
}

/// Result of the slope test.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trend {
    /// The median.
    pub level: f64,
    /// Slope times measured time.
    pub growth: f64,
    pub allowed: f64,
}

impl Trend {
    pub fn is_flat(&self) -> bool {
        self.growth <= self.allowed
    }
}

impl Series {
    /// Returns whether any two samples differ.
    pub(super) fn changes(&self) -> bool {
        self.points.windows(2).any(|pair| pair[0].1 != pair[1].1)
    }

    /// Tests the samples from `warm_up` on. `None`: there are fewer than two.
    pub fn trend(&self, warm_up: f64) -> Option<Trend> {
        let points: Vec<_> = self.points.iter().filter(|(at, _)| *at >= warm_up).collect();
        let measured = points.last()?.0 - points.first()?.0;
        let slopes = points.iter().enumerate().flat_map(|(index, (at, value))| {
            let later = points[index + 1..].iter().filter(move |(after, _)| after > at);
            later.map(move |(after, other)| (other - value) / (after - at))
        });
        let slope = median(slopes.collect())?;
        let level = median(points.iter().map(|(_, value)| *value).collect())?;
        let allowed = (level * SHARE_ALLOWED).max(self.unit.floor());
        Some(Trend { level, growth: slope * measured, allowed })
    }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    let middle = values.len() / 2;
    let in_order = f64::total_cmp;
    (!values.is_empty()).then(|| *values.select_nth_unstable_by(middle, in_order).1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: f64 = 1024.0 * 1024.0;

    /// Returns an hour of samples, one each ten seconds, whose value is given by the time.
    fn hour(unit: Unit, value: impl Fn(f64) -> f64) -> Trend {
        let points = (0..360).map(|n| f64::from(n) * 10.0).map(|at| (at, value(at))).collect();
        Series { name: "x".to_owned(), unit, points }.trend(600.0).unwrap()
    }

    /// Returns noise between -1 and 1 without a trend.
    fn noise(at: f64) -> f64 {
        (at * 12.9898).sin()
    }

    #[test]
    fn noise_a_warm_up_and_a_peak_are_flat() {
        assert!(hour(Unit::Bytes, |at| 100.0 * MIB + noise(at) * 10.0 * MIB).is_flat());
        assert!(hour(Unit::Count, |at| 40.0 + noise(at) * 20.0).is_flat());
        let warms_up = |at: f64| MIB * if at < 600.0 { 40.0 + at / 10.0 } else { 100.0 };
        assert!(hour(Unit::Bytes, warms_up).is_flat());
        let peak = |at: f64| if (2_000.0..2_300.0).contains(&at) { 500.0 } else { 10.0 };
        assert!(hour(Unit::Count, peak).is_flat());
        assert!(hour(Unit::Count, |at| 900.0 - at / 10.0).is_flat(), "a decrease");
    }

    #[test]
    fn a_leak_is_found_below_noise_many_times_its_size() {
        // A kibibyte of each of two sessions a second, and a descriptor of each five hundredth.
        let leak = |at: f64| 60.0 * MIB + at * 2.0 * 1024.0 + noise(at) * 20.0 * MIB;
        assert!(!hour(Unit::Bytes, leak).is_flat());
        let trend = hour(Unit::Count, |at| 80.0 + at / 250.0 + noise(at) * 20.0);
        assert!(!trend.is_flat(), "{trend:?}");
        assert!((trend.growth - 12.0).abs() < 2.0, "{trend:?}");
        let steps = |at: f64| 100.0 + (at / 900.0).floor() * 10.0;
        assert!(!hour(Unit::Count, steps).is_flat());
    }

    #[test]
    fn a_run_without_samples_has_no_trend() {
        let series = Series { name: "x".to_owned(), unit: Unit::Count, points: vec![(1.0, 1.0)] };
        assert_eq!((series.trend(0.0), series.trend(5.0)), (None, None));
    }
}
