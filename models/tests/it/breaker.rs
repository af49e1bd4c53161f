//! The circuit breaker: one of several failures opens it, one prober probes, and an operator's word
//! stands.

use std::{sync::Arc, time::Duration};

use models::breaker::{Breaker, BreakerSettings, CircuitState};
use shuttle::thread;

use crate::in_every_order;

fn breaker() -> Arc<Breaker> {
    Arc::new(Breaker::new(BreakerSettings {
        enabled: true,
        failures: 2,
        error_ratio: 1.0,
        requests: 1_000,
        window: Duration::from_secs(10),
        probe_after: Duration::from_secs(1),
        probe_max: Duration::from_secs(30),
    }))
}

fn at(seconds: u64) -> Duration {
    Duration::from_secs(100 + seconds)
}

#[test]
fn only_one_of_several_failures_opens_the_breaker() {
    in_every_order(|| {
        let breaker = breaker();
        let failing: Vec<_> = (0..4)
            .map(|_| {
                let breaker = breaker.clone();
                thread::spawn(move || breaker.record_failure(at(1), at(0), 0.5))
            })
            .collect();
        let opened = failing.into_iter().map(|call| call.join().expect("it ends"));
        assert_eq!(opened.filter(|opened| *opened).count(), 1);
        assert_eq!(breaker.state(), CircuitState::Open);
    });
}

#[test]
fn only_one_prober_probes_and_its_result_is_used() {
    in_every_order(|| {
        let breaker = breaker();
        while !breaker.record_failure(at(1), at(0), 0.5) {}
        let probers: Vec<_> = (0..3)
            .map(|_| {
                let breaker = breaker.clone();
                thread::spawn(move || {
                    let started = breaker.start_probe(at(5));
                    started.then(|| breaker.finish_probe(true, at(6), 0.5))
                })
            })
            .collect();
        let results: Vec<_> =
            probers.into_iter().filter_map(|prober| prober.join().expect("it ends")).collect();
        assert_eq!(results, [Some(CircuitState::Closed)]);
        assert!(breaker.admits(|| at(7)).is_ok());
    });
}

#[test]
fn a_setting_of_an_operator_overrides_results_of_calls_and_probes() {
    in_every_order(|| {
        let breaker = breaker();
        while !breaker.record_failure(at(1), at(0), 0.5) {}
        let others: Vec<_> = (0..2)
            .map(|number| {
                let breaker = breaker.clone();
                thread::spawn(move || {
                    if breaker.start_probe(at(5)) {
                        breaker.finish_probe(number == 0, at(6), 0.5);
                    }
                    breaker.record_failure(at(7), at(6), 0.5);
                    breaker.record_success(at(8));
                    breaker.probe_now(at(8));
                })
            })
            .collect();
        let operator = {
            let breaker = breaker.clone();
            thread::spawn(move || breaker.hold_open())
        };
        operator.join().expect("it ends");
        let held =
            |breaker: &Breaker| breaker.admits(|| at(9)).expect_err("it is held open").retry_after;
        assert_eq!(held(&breaker), None);
        others.into_iter().for_each(|other| other.join().expect("it ends"));
        assert_eq!(held(&breaker), None);
        assert!(breaker.close(at(10)) && breaker.admits(|| at(10)).is_ok());
    });
}

#[test]
fn failures_before_a_good_probe_do_not_open_the_breaker_again() {
    in_every_order(|| {
        let breaker = breaker();
        while !breaker.record_failure(at(1), at(0), 0.5) {}
        assert!(breaker.start_probe(at(5)));
        // These calls began before the outage was over. They end while the probe does.
        let late: Vec<_> = (0..3)
            .map(|_| {
                let breaker = breaker.clone();
                thread::spawn(move || breaker.record_failure(at(6), at(0), 0.5))
            })
            .collect();
        assert_eq!(breaker.finish_probe(true, at(6), 0.5), Some(CircuitState::Closed));
        for call in late {
            assert!(!call.join().expect("it ends"), "an old failure opened it");
        }
        assert_eq!(breaker.state(), CircuitState::Closed);
    });
}
