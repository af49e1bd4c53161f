//! Every fault of a target is noticed and named, and fails the run.

use std::{
    process::{Command, Stdio},
    time::Duration,
};

use loadtest::{
    backend::{Backend, BackendOptions},
    run,
};
use parking_lot::Mutex;

use super::{
    fault_server::{Fault, FaultServer},
    load, report,
};

const CLOSED: &str = "
loop: closed
sessions: 2
in_flight: 3
timeout: 500ms
phases: [{for: 700ms}]
mix: [{method: tools/call, bytes: 200}]
";

/// Returns the kinds of findings of a short load.
async fn found(target: String) -> Vec<String> {
    let report = report(&target, CLOSED).await;
    assert!(report.calls > 10, "{}", report.summary());
    assert_eq!(report.is_good(), report.wrong.is_empty(), "{}", report.summary());
    assert_eq!(report.witnesses.is_empty(), report.wrong.is_empty());
    report.wrong.into_keys().collect()
}

async fn over_tcp(fault: Fault) -> Vec<String> {
    let server = FaultServer::tcp(fault).await;
    found(format!("tcp://{}", server.address())).await
}

async fn over_http(fault: Fault) -> Vec<String> {
    let server = FaultServer::http(fault).await;
    found(format!("http://{}/mcp", server.address())).await
}

#[tokio::test]
async fn a_server_without_fault_passes() {
    assert_eq!(over_tcp(Fault::None).await, [""; 0]);
    assert_eq!(over_http(Fault::None).await, [""; 0]);
}

#[tokio::test]
async fn missing_answers_are_reported_as_lost() {
    assert_eq!(over_tcp(Fault::Drops).await, ["lost"]);
    assert_eq!(over_http(Fault::Drops).await, ["lost"]);
}

#[tokio::test]
async fn repeated_answers_are_reported_as_doubled() {
    assert_eq!(over_tcp(Fault::Doubles).await, ["doubled"]);
    assert_eq!(over_http(Fault::Doubles).await, ["doubled"]);
}

#[tokio::test]
async fn payloads_of_other_calls_are_reported_as_swapped() {
    assert_eq!(over_tcp(Fault::Swaps).await, ["swapped"]);
    assert_eq!(over_http(Fault::Swaps).await, ["swapped"]);
}

#[tokio::test]
async fn answers_with_another_id_are_reported() {
    // The call with that id gets this answer, or already had its own. The other call gets none.
    let kinds = over_tcp(Fault::Renames).await;
    assert!(kinds.contains(&"lost".to_owned()), "{kinds:?}");
    assert!(kinds.iter().any(|kind| kind == "doubled" || kind == "swapped"), "{kinds:?}");
    assert_eq!(over_http(Fault::Renames).await, ["swapped"]);
}

#[tokio::test]
async fn payloads_with_another_byte_are_reported_as_corrupted() {
    assert_eq!(over_tcp(Fault::Corrupts).await, ["corrupted"]);
    assert_eq!(over_http(Fault::Corrupts).await, ["corrupted"]);
}

#[tokio::test]
async fn answers_to_no_request_are_reported_as_strangers() {
    assert_eq!(over_tcp(Fault::Invents).await, ["stranger"]);
    assert_eq!(
        over_http(Fault::Invents).await,
        ["doubled"],
        "over HTTP it is a second response, whatever its id"
    );
}

#[tokio::test]
async fn answers_after_the_timeout_are_reported_as_lost_and_late() {
    assert_eq!(over_tcp(Fault::Delays(Duration::from_millis(700))).await, ["late", "lost"]);
    assert_eq!(over_http(Fault::Delays(Duration::from_millis(700))).await, ["lost"]);
}

#[tokio::test]
async fn a_short_delay_is_not_a_fault_and_is_visible_in_the_percentiles() {
    let server = FaultServer::tcp(Fault::Delays(Duration::from_millis(100))).await;
    let report = report(&format!("tcp://{}", server.address()), CLOSED).await;
    assert!(report.is_good(), "{}", report.summary());
    assert!(report.latency.p50 < 60.0 && report.latency.p99 >= 100.0, "{}", report.summary());
}

#[tokio::test]
async fn refusals_are_answers_and_count_against_their_own_limit() {
    let server = FaultServer::http(Fault::Refuses).await;
    let target = format!("http://{}/mcp", server.address());
    let strict = report(&target, CLOSED).await;
    assert!(
        !strict.is_good() && strict.wrong.is_empty() && strict.refusals["code -32001"] > 0,
        "{}",
        strict.summary()
    );
    let tolerant = report(&target, &format!("{CLOSED}refused_max: 0.2\n")).await;
    assert!(tolerant.is_good(), "{}", tolerant.summary());
}

#[tokio::test]
async fn a_failed_run_names_a_called_tool_that_the_server_does_not_list() {
    let backend = Backend::http("127.0.0.1:0", &BackendOptions::default()).await.unwrap();
    let target = format!("http://{}/", backend.address());
    let calls = "phases: [{for: 200ms, rate: 100}], mix: [{method: tools/call, tool: absent}";
    let good = report(&target, &format!("{{{calls}]}}")).await;
    assert!(good.is_good(), "an unlisted tool can answer: {}", good.summary());
    let bad = report(&target, &format!("{{{calls}, {{method: tools/list}}]}}")).await;
    let is_named =
        |fault: &String| fault.contains(r#"the tool "absent""#) && fault.contains("(listed: echo)");
    assert!(bad.faults.iter().any(is_named), "{}", bad.summary());
}

#[tokio::test]
async fn a_connection_that_the_server_closed_between_two_calls_is_replaced() {
    let server = FaultServer::http(Fault::ClosesIdle).await;
    let profile = "{phases: [{for: 1s, rate: 10}], mix: [{method: tools/call}]}";
    let report = report(&format!("http://{}/mcp", server.address()), profile).await;
    assert!(report.is_good() && report.calls == 10, "{}", report.summary());
}

#[tokio::test]
async fn a_server_that_closes_each_connection_after_its_answer_is_loaded() {
    let server = FaultServer::http(Fault::ClosesEach).await;
    let profile = "{phases: [{for: 1s, rate: 20}], mix: [{method: tools/call}]}";
    let report = report(&format!("http://{}/mcp", server.address()), profile).await;
    assert!(report.is_good() && report.calls == 20, "{}", report.summary());
}

#[tokio::test]
async fn a_get_stream_that_does_not_open_ends_the_load_after_the_timeout() {
    const WITHIN: Duration = Duration::from_secs(20);
    let server = FaultServer::http(Fault::OpensNoStream).await;
    let profile = "{listen: true, timeout: 200ms, phases: [{for: 1s, rate: 10}], mix: [{method: tools/call}]}";
    let load = load(&format!("http://{}/mcp", server.address()), profile);
    let ended = tokio::time::timeout(WITHIN, run::run(&load, |_| ())).await;
    let error = ended.expect("the load gives up").unwrap_err();
    assert!(
        format!("{error:#}").contains("GET got no head of a response within 200ms"),
        "{error:#}"
    );
}

#[tokio::test]
async fn requests_over_http_name_the_revision_of_the_server() {
    for revision in ["2025-06-18", "2025-11-25"] {
        let server = FaultServer::http(Fault::OnlyRevision(revision)).await;
        let target = format!("http://{}/mcp", server.address());
        let report = report(&target, CLOSED).await;
        assert!(report.is_good() && report.calls > 10, "{revision}: {}", report.summary());
    }
}

#[tokio::test]
async fn a_sampled_process_that_ends_is_a_fault_and_the_results_stay() {
    let backend = Backend::tcp("127.0.0.1:0", &BackendOptions::default()).await.unwrap();
    let waiting = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let (pid, waiting) = (waiting.id(), Mutex::new(waiting));
    let profile = "{loop: closed, phases: [{for: 2s}], mix: [{method: ping}]}";
    let mut load = load(&format!("tcp://{}", backend.address()), profile);
    load.pids = vec![std::process::id(), pid];
    let report = run::run(&load, |_| waiting.lock().kill().unwrap()).await.unwrap();
    waiting.lock().wait().unwrap();
    assert_eq!(report.faults, [format!("process {pid} ended during the load")]);
    assert!(report.calls > 10 && report.usage.len() == 2, "{}", report.summary());
    assert_eq!(report.cpu_us_per_call, None, "the processor time is incomplete");
}
