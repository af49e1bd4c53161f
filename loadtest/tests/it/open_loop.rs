//! An open loop keeps to its schedule, and its latencies include the waiting time of all due calls.

use std::time::Duration;

use loadtest::{
    backend::{Backend, BackendOptions},
    run::{self, Progress},
};
use tokio::sync::watch;

use super::{
    fault_server::{Fault, FaultServer},
    load, report,
};

const STALL: Duration = Duration::from_millis(1000);

#[tokio::test]
async fn a_stall_is_visible_only_in_the_percentiles_of_an_open_loop() {
    let server = FaultServer::tcp(Fault::StandsStill(STALL)).await;
    let target = format!("tcp://{}", server.address());
    let open =
        "{sessions: 2, in_flight: 2, phases: [{for: 3s, rate: 200}], mix: [{method: tools/call}]}";
    let open = report(&target, open).await;
    assert!(open.is_good() && open.calls == 600, "{}", open.summary());
    // A third of the calls became due during the stall, and waited half a second on average.
    assert!(open.latency.p90 > 400.0 && open.latency.max >= 950.0, "{}", open.summary());

    let server = FaultServer::tcp(Fault::StandsStill(STALL)).await;
    let target = format!("tcp://{}", server.address());
    let closed = "{loop: closed, sessions: 2, in_flight: 2, phases: [{for: 3s}], mix: [{method: tools/call}]}";
    let closed = report(&target, closed).await;
    assert!(
        closed.latency.p90 < 100.0 && closed.latency.max >= 950.0,
        "only those in flight have seen it: {}",
        closed.summary()
    );
}

#[tokio::test]
async fn a_load_that_is_stopped_reports_its_calls_and_closes_its_sessions() {
    let backend = Backend::tcp("127.0.0.1:0", &BackendOptions::default()).await.unwrap();
    let target = format!("tcp://{}", backend.address());
    for profile in [
        "{sessions: 2, in_flight: 2, phases: [{for: 60s, rate: 200}], mix: [{method: tools/call}]}",
        "{loop: closed, sessions: 2, in_flight: 2, phases: [{for: 60s}], mix: [{method: tools/call}]}",
    ] {
        let (sender, stop) = watch::channel(false);
        let stop_after_calls = |progress: Progress| {
            if progress.calls > 0 {
                sender.send_replace(true);
            }
        };
        let report = run::run_until(&load(&target, profile), stop, stop_after_calls).await.unwrap();
        assert!(report.calls > 0 && report.measured_s < 60.0, "{}", report.summary());
        let [fault] = &report.faults[..] else { panic!("{}", report.summary()) };
        assert!(fault.starts_with("the load was stopped after "), "{fault}");
    }
}

#[tokio::test]
async fn a_rate_above_the_target_s_is_not_reported_as_reached() {
    let slow = BackendOptions { delay: Duration::from_millis(5), ..BackendOptions::default() };
    let backend = Backend::http("127.0.0.1:0", &slow).await.unwrap();
    let profile =
        "{sessions: 1, in_flight: 2, phases: [{for: 1s, rate: 1000}], mix: [{method: tools/call}]}";
    let report = report(&format!("http://{}/", backend.address()), profile).await;
    assert!(report.is_good() && report.calls == 1000, "{}", report.summary());
    // Two callers make at most 400 calls of 5 ms a second.
    assert!(report.rate > 0.0 && report.rate <= 410.0, "{}", report.summary());
    assert!(report.ended_after_load >= 590, "{}", report.summary());
    assert!((report.windows[0].rate - report.rate).abs() < 1.0, "{}", report.summary());
}

#[tokio::test]
async fn a_load_whose_connections_end_counts_only_the_calls_that_were_due() {
    let server = FaultServer::tcp(Fault::HangsUp).await;
    let profile = "{sessions: 2, phases: [{for: 6s, rate: 100}], mix: [{method: tools/call}]}";
    let report = report(&format!("tcp://{}", server.address()), profile).await;
    assert!(
        (100..500).contains(&report.calls),
        "the load of 600 calls ended after about 100: {}",
        report.summary()
    );
    assert!(report.faults.contains(&"every connection ended".to_owned()), "{}", report.summary());
}

#[tokio::test]
async fn calls_that_never_began_are_reported_as_lost() {
    let server = FaultServer::http(Fault::StandsStill(Duration::from_secs(60))).await;
    let profile = "{sessions: 1, in_flight: 1, timeout: 300ms, phases: [{for: 1s, rate: 200}], mix: [{method: tools/call}]}";
    let report = report(&format!("http://{}/mcp", server.address()), profile).await;
    assert_eq!(
        report.calls,
        200,
        "every call of the schedule is accounted for: {}",
        report.summary()
    );
    assert!(!report.is_good() && report.wrong["lost"] > 50, "{}", report.summary());
}

#[tokio::test]
async fn the_rate_of_each_phase_is_kept() {
    let backend = Backend::http("127.0.0.1:0", &BackendOptions::default()).await.unwrap();
    let profile = "
sessions: 4
in_flight: 4
phases: [{for: 1s, rate: 100}, {for: 1s, rate: 500}, {for: 1s, rate: 500, to: 0}]
mix: [{method: ping}]
";
    let report = report(&format!("http://{}/", backend.address()), profile).await;
    assert!(report.is_good(), "{}", report.summary());
    assert_eq!(report.calls, 850);
    let rates: Vec<f64> = report.windows.iter().map(|window| window.rate).collect();
    for (rate, wanted) in rates.iter().zip([100.0, 500.0, 250.0]) {
        assert!((rate - wanted).abs() < 0.2 * wanted, "{rates:?}");
    }
}
