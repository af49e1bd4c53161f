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

/// Creates metrics and registers them.
pub(super) struct MetricRegistrar<'a> {
    pub(super) registry: &'a Registry,
}

impl MetricRegistrar<'_> {
    pub(super) fn counters(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        self.registered(IntCounterVec::new(Opts::new(name, help), labels))
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
        self.registered(HistogramVec::new(
            HistogramOpts::new(name, help).buckets(SECONDS_BUCKETS.to_vec()),
            labels,
        ))
    }

    fn registered<M: Collector + Clone + 'static>(&self, metric: prometheus::Result<M>) -> M {
        let metric = metric.expect("names and labels are constants that the tests construct");
        self.registry
            .register(Box::new(metric.clone()))
            .expect("each name is declared once, which the tests check");
        metric
    }
}
