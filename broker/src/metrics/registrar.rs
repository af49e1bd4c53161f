//! Makes metrics and registers them.

use prometheus::{
    Gauge, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, core::Collector,
};

/// From half a millisecond to a minute. Shorter times are noise of the machine, longer ones are
/// past the deadline of a call.
const SECONDS_BUCKETS: [f64; 16] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
    60.0,
];

/// From a second to a day, for what people do.
const LONG_SECONDS_BUCKETS: [f64; 10] =
    [1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0, 43_200.0, 86_400.0];

/// From a hundredth of a second to half a minute, for histograms of many label values.
const COARSE_SECONDS_BUCKETS: [f64; 6] = [0.01, 0.05, 0.25, 1.0, 5.0, 30.0];

/// Creates metrics and registers them.
pub(super) struct MetricRegistrar<'a> {
    pub(super) registry: &'a Registry,
}

impl MetricRegistrar<'_> {
    pub(super) fn counters(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        self.registered(IntCounterVec::new(Opts::new(name, help), labels))
    }

    /// Makes counters whose labels have closed sets of values. Each combination is there from the
    /// start, so that a query sees the first increase.
    pub(super) fn closed_counters<const N: usize>(
        &self,
        name: &str,
        help: &str,
        labels: [(&str, &[&str]); N],
    ) -> IntCounterVec {
        let counters = self.counters(name, help, &labels.map(|(label, _)| label));
        for values in combinations(&labels.map(|(_, values)| values)) {
            counters.with_label_values(&values);
        }
        counters
    }

    /// Makes gauges whose labels have closed sets of values. Each combination is 0 at the start.
    pub(super) fn closed_gauges<const N: usize>(
        &self,
        name: &str,
        help: &str,
        labels: [(&str, &[&str]); N],
    ) -> IntGaugeVec {
        let gauges = self.gauges(name, help, &labels.map(|(label, _)| label));
        for values in combinations(&labels.map(|(_, values)| values)) {
            gauges.with_label_values(&values);
        }
        gauges
    }

    pub(super) fn counter(&self, name: &str, help: &str) -> IntCounter {
        self.registered(IntCounter::new(name, help))
    }

    pub(super) fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
        self.registered(IntGaugeVec::new(Opts::new(name, help), labels))
    }

    pub(super) fn gauge(&self, name: &str, help: &str) -> IntGauge {
        self.registered(IntGauge::new(name, help))
    }

    pub(super) fn number(&self, name: &str, help: &str) -> Gauge {
        self.registered(Gauge::new(name, help))
    }

    pub(super) fn histograms(&self, name: &str, help: &str, labels: &[&str]) -> HistogramVec {
        self.histograms_with(&SECONDS_BUCKETS, name, help, labels)
    }

    /// Makes histograms with few buckets.
    pub(super) fn coarse_histograms(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> HistogramVec {
        self.histograms_with(&COARSE_SECONDS_BUCKETS, name, help, labels)
    }

    /// Makes histograms of times that depend on people.
    pub(super) fn long_histograms(&self, name: &str, help: &str, labels: &[&str]) -> HistogramVec {
        self.histograms_with(&LONG_SECONDS_BUCKETS, name, help, labels)
    }

    fn histograms_with(
        &self,
        buckets: &[f64],
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> HistogramVec {
        let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        self.registered(HistogramVec::new(options, labels))
    }

    fn registered<M: Collector + Clone + 'static>(&self, metric: prometheus::Result<M>) -> M {
        let metric = metric.expect("names and labels are constants that the tests construct");
        self.registry
            .register(Box::new(metric.clone()))
            .expect("each name is declared once, which the tests check");
        metric
    }
}

/// Returns every choice of one value of each set.
fn combinations<'a>(sets: &[&[&'a str]]) -> Vec<Vec<&'a str>> {
    sets.iter().fold(vec![Vec::new()], |chosen, set| {
        let with = |value: &&'a str| {
            chosen.iter().map(|before| [before.as_slice(), &[*value]].concat()).collect::<Vec<_>>()
        };
        set.iter().flat_map(with).collect()
    })
}
