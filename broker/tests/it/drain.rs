//! Stopping: calls in flight finish, new clients are refused, streams get an end, the exit is
//! clean.

use std::time::{Duration, Instant};

use rules::limits::CLOSE_WAIT;
use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::{
    AttemptOutcome, Call, DEADLINE, FakeBackend, Gate, Reply, TestBroker, TestCluster, eventually,
};
use tokio::{io::AsyncWriteExt, net::TcpStream};

use crate::{
    alone_with, builder, configured, initialize_body, kind, read_answer, read_to_close, refused,
    request, text_of,
};

async fn waiting(gate: &Gate) -> FakeBackend {
    FakeBackend::with_tool("wait", gate.before(Reply::text("finished"))).await
}

/// Waits until the readiness check reports that the broker drains.
async fn draining(broker: &TestBroker) {
    let admin = broker.admin();
    eventually("the drain to begin", || async {
        let (status, body) = admin.get("/readyz").await;
        if status == 503 { Ok(()) } else { Err((status, body)) }
    })
    .await;
}

#[tokio::test]
async fn f_04_a_call_in_flight_finishes_and_the_exit_is_clean() {
    let gate = Gate::new();
    let backend = waiting(&gate).await;
    let mut broker = builder().backend("default", "b", backend.spec()).start().await;
    let client = broker.connected(json!({})).await;
    let call = client.start_call("b__wait", json!({}));
    backend.wait_for("the call", |seen| seen.calls("wait")).await;
    broker.request_shutdown();
    draining(&broker).await;
    let (status, error) =
        refused(broker.client("/mcp").post(initialize_body("2025-11-25")).await).await;
    assert_eq!(
        (status, kind(&error), &error["data"]["retryable"]),
        (503, "draining", &json!(true))
    );
    gate.open();
    assert_eq!(text_of(&call.result().await), "finished");
    assert_eq!(broker.wait_for_exit().await.code(), Some(0));
    assert!(!broker.log().contains("panicked"));
}

#[tokio::test]
async fn a_metric_shows_that_a_draining_replica_accepts_no_sessions() {
    let gate = Gate::new();
    let backend = waiting(&gate).await;
    let mut broker =
        builder().single_process().backend("default", "b", backend.spec()).start().await;
    assert_eq!(broker.admin().metric("mcp_accepting", &[]).await, Some(1.0));
    let client = broker.connected(json!({})).await;
    let call = client.start_call("b__wait", json!({}));
    backend.wait_for("the call", |seen| seen.calls("wait")).await;
    broker.request_shutdown();
    draining(&broker).await;
    assert_eq!(broker.admin().metric("mcp_accepting", &[]).await, Some(0.0));
    gate.open();
    assert_eq!(text_of(&call.result().await), "finished");
    assert_eq!(broker.wait_for_exit().await.code(), Some(0));
}

/// Uses connections that carry plain POSTs only.
#[tokio::test]
async fn f_04_a_drain_closes_answered_connections_and_waits_for_no_idle_one() {
    let gate = Gate::new();
    let backend = waiting(&gate).await;
    let mut broker = alone_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let connect = async || TcpStream::connect(broker.http_address()).await.unwrap();
    let (mut busy, mut other, mut idle, mut half) =
        (connect().await, connect().await, connect().await, connect().await);
    let mut silent = connect().await;
    let ping = client.post_as_text("", &request(7, "ping", json!({})));
    for stream in [&mut busy, &mut other, &mut idle, &mut half] {
        stream.write_all(ping.as_bytes()).await.unwrap();
        let answer = read_answer(stream).await;
        assert!(
            answer.starts_with("HTTP/1.1 200 ") && !answer.contains("connection: close"),
            "{answer}"
        );
    }
    busy.write_all(
        client.post_as_text("", &request(8, "tools/call", json!({"name": "b__wait"}))).as_bytes(),
    )
    .await
    .unwrap();
    half.write_all(&ping.as_bytes()[..20]).await.unwrap(); // of a head
    backend.wait_for("the call", |seen| seen.calls("wait")).await;
    broker.request_shutdown();
    draining(&broker).await;
    other.write_all(ping.as_bytes()).await.unwrap();
    let answer = read_to_close(&mut other).await;
    assert!(
        answer.starts_with("HTTP/1.1 200 ") && answer.contains("connection: close"),
        "{answer}"
    );
    gate.open();
    let answer = read_to_close(&mut busy).await;
    assert!(
        answer.starts_with("HTTP/1.1 200 ")
            && answer.contains("connection: close")
            && answer.contains("finished"),
        "{answer}"
    );
    for stream in [&mut idle, &mut half, &mut silent] {
        assert_eq!(read_to_close(stream).await, "");
    }
    assert_eq!(broker.wait_for_exit().await.code(), Some(0));
    assert!(!broker.log().contains("did not close in time"), "no client was waited for");
}

#[tokio::test]
async fn sse_02_streams_get_a_retry_time_at_a_shutdown() {
    let gate = Gate::new();
    let backend = waiting(&gate).await;
    let mut broker = configured(json!({"events": {"retry": "1234ms"}}), backend.spec()).await;
    let client = broker.connected(json!({})).await;
    let mut stream = client.open_get_stream().await;
    stream.next().await.unwrap();
    broker.request_shutdown();
    let goodbye = stream.rest().await;
    assert!(goodbye.iter().any(|event| event.retry == Some(1234)), "{goodbye:?}");
    assert!(!stream.broken, "an orderly end");
    assert_eq!(broker.wait_for_exit().await.code(), Some(0));
}

#[tokio::test]
async fn the_admin_api_and_both_signals_start_the_same_drain() {
    for how in ["api", "term", "int"] {
        let backend = FakeBackend::echo().await;
        let mut broker = alone_with(&backend).await;
        broker.connected(json!({})).await;
        match how {
            "api" => {
                let (status, _) = broker.admin().post("/admin/v1/drain", &json!({})).await;
                assert!((200..300).contains(&status), "{status}");
            }
            "term" => broker.signal(Signal::TERM),
            _ => broker.signal(Signal::INT),
        }
        assert_eq!(broker.wait_for_exit().await.code(), Some(0), "{how}");
    }
}

#[tokio::test]
async fn f_05_a_call_that_never_ends_is_aborted_after_the_grace_period() {
    let backend = waiting(&Gate::new()).await;
    let config = json!({"shutdown": {"grace": "300ms"}});
    let mut broker = configured(config, backend.spec()).await;
    let client = broker.connected(json!({})).await;
    let mut call = client.start_call("b__wait", json!({}));
    backend.wait_for("the call", |seen| seen.calls("wait")).await;
    let asked = Instant::now();
    broker.request_shutdown();
    broker.wait_for_exit().await;
    assert!(asked.elapsed() < Duration::from_secs(8), "{:?}", asked.elapsed());
    let answer = call.next_or_end().await;
    assert!(answer.is_none_or(|message| message.value["error"].is_object()), "no false success");
}

#[tokio::test]
async fn f_05_a_client_that_cannot_resume_gets_an_answer_at_the_end_of_the_grace_period() {
    let backend = waiting(&Gate::new()).await;
    let config = json!({"shutdown": {"grace": "300ms"}});
    let mut broker = configured(config, backend.spec()).await;
    for version in ["2025-06-18", "2025-03-26"] {
        // These revisions have no first event, so the client has no event id before the answer.
        let client = broker.client("/mcp");
        client.initialize(version, json!({})).await;
        let call = client.start_call("b__wait", json!({}));
        backend.wait_for("the call", |seen| seen.calls("wait")).await;
        broker.request_shutdown();
        let error = call.error().await;
        assert_eq!(kind(&error), "outcome_unknown", "{version}: {error}");
        broker.wait_for_exit().await;
        broker.restart().await;
        backend.forget_recorded();
    }
}

#[tokio::test]
async fn f_06_a_second_signal_ends_the_broker_at_once() {
    let backend = waiting(&Gate::new()).await;
    let mut broker = configured(json!({"shutdown": {"grace": "60s"}}), backend.spec()).await;
    let client = broker.connected(json!({})).await;
    let _call = client.start_call("b__wait", json!({}));
    backend.wait_for("the call", |seen| seen.calls("wait")).await;
    broker.request_shutdown();
    draining(&broker).await;
    let asked = Instant::now();
    broker.request_shutdown();
    broker.wait_for_exit().await;
    assert!(asked.elapsed() < Duration::from_secs(8), "{:?}", asked.elapsed());
}

#[tokio::test]
async fn a_drain_does_not_wait_for_idle_sessions() {
    let backend = FakeBackend::echo().await;
    backend.sessions();
    let mut broker = configured(json!({"shutdown": {"grace": "60s"}}), backend.spec()).await;
    let client = broker.connected(json!({})).await;
    client.call("b__echo", json!({})).await;
    let asked = Instant::now();
    assert_eq!(broker.terminate().await.code(), Some(0));
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
    assert_eq!(
        backend.live_sessions().len(),
        1,
        "the catalog's is closed; the client's is its own, and the client may come back"
    );
}

#[tokio::test]
async fn a_call_that_waits_for_its_client_can_still_finish_during_a_drain() {
    let backend = FakeBackend::with_tool("ask", |call| async move {
        let answer = call.request("roots/list", json!({})).await;
        Reply::text(&answer["result"].to_string())
    })
    .await;
    let mut broker = builder().backend("default", "b", backend.spec()).start().await;
    let client = broker.connected(json!({"roots": {}})).await;
    let mut call = client.start_call("b__ask", json!({}));
    let question = call.next().await.unwrap();
    broker.request_shutdown();
    draining(&broker).await;
    // The session is busy and therefore still here, so it is served as before.
    assert_eq!(client.tool_names().await, ["b__ask"]);
    let mut second = client.start_call("b__ask", json!({}));
    let second_question = second.next().await.unwrap();
    for (call, question) in [(&mut call, question), (&mut second, second_question)] {
        client.respond(question.value["id"].clone(), json!({"roots": []})).await;
        assert_eq!(text_of(&call.finish().await.value["result"]), r#"{"roots":[]}"#);
    }
    assert_eq!(broker.wait_for_exit().await.code(), Some(0));
}

/// Returns the path that drains the first replica, or the other one.
async fn drain_path(cluster: &TestCluster, is_this: bool) -> String {
    let (_, answer) = cluster.admin(0).get("/admin/v1/nodes").await;
    let nodes = answer["nodes"].as_array().unwrap();
    let node = nodes.iter().find(|node| node["is_this"] == is_this);
    let node = node.unwrap_or_else(|| panic!("{answer}"))["node"].as_str().unwrap();
    format!("/admin/v1/nodes/{}/drain", node.replace('/', "%2F"))
}

#[tokio::test]
async fn any_replica_drains_another_one() {
    let gate = Gate::new();
    let backend = waiting(&gate).await;
    let mut cluster = builder().backend("default", "b", backend.spec()).cluster(2).start().await;
    let (first, path) = (cluster.admin(0), drain_path(&cluster, false).await);
    let client = cluster.client_of(1, "/mcp").connected(json!({})).await;
    let call = client.start_call("b__wait", json!({}));
    backend.wait_for("the call", |seen| seen.calls("wait")).await;
    for attempt in ["a drain", "a drain of a replica that drains"] {
        let (status, answer) = first.post(&path, &json!({})).await;
        assert_eq!((status, &answer["status"]), (202, &json!("draining")), "{attempt}: {answer}");
    }
    let second = cluster.admin(1);
    eventually("the drain to begin", || async {
        let (status, body) = second.get("/readyz").await;
        if status == 503 { Ok(()) } else { Err((status, body)) }
    })
    .await;
    assert_eq!(first.get("/readyz").await.0, 200, "the other replica continues");
    gate.open();
    assert_eq!(text_of(&call.result().await), "finished");
    eventually("the drained replica to leave", || async {
        let (status, answer) = first.post(&path, &json!({})).await;
        if status == 404 { Ok(()) } else { Err((status, answer)) }
    })
    .await;
    let (_, audit) = first.get("/admin/v1/audit?kind=admin").await;
    let is_drain = |record: &&Value| {
        record["action"] == "POST /admin/v1/nodes/{node}/drain" && record["outcome"] == "ok"
    };
    let records: Vec<&Value> =
        audit["records"].as_array().unwrap().iter().filter(is_drain).collect();
    assert!(records.len() >= 2 && records[0]["target"] == path, "{audit}");
    let (status, _) = first.post(&drain_path(&cluster, true).await, &json!({})).await;
    assert_eq!(status, 202, "a replica drains itself too");
    eventually("the first replica to end", || {
        let has_ended = cluster.has_ended(0);
        async move { if has_ended { Ok(()) } else { Err("it runs") } }
    })
    .await;
}

/// Starts a call of a session of the first replica at the second one, and drains that.
async fn drained_while_forwarding(
    config: Value,
    version: &str,
    gate: &Gate,
) -> (TestCluster, Call) {
    let backend = waiting(gate).await;
    let cluster =
        builder().config(config).backend("default", "b", backend.spec()).cluster(2).start().await;
    let client = cluster.client_of(0, "/mcp");
    client.initialize(version, json!({})).await;
    let call = cluster.at(1, &client).start_call("b__wait", json!({}));
    backend.wait_for("the call", |seen| seen.calls("wait")).await;
    let path = drain_path(&cluster, false).await;
    assert_eq!(cluster.admin(0).post(&path, &json!({})).await.0, 202);
    (cluster, call)
}

#[tokio::test]
async fn a_forwarded_call_finishes_during_a_drain_of_the_forwarding_replica() {
    let gate = Gate::new();
    let config = json!({"shutdown": {"grace": "1m"}});
    let (mut cluster, call) = drained_while_forwarding(config, "2025-11-25", &gate).await;
    let address = cluster.replicas()[1].http_address();
    eventually("the end of the listener", || async move {
        TcpStream::connect(address).await.map_or_else(|_| Ok(()), |_| Err("it listens"))
    })
    .await;
    // The connection is kept for longer than one without a request.
    let closed = Instant::now();
    while closed.elapsed() < CLOSE_WAIT + Duration::from_secs(1) {
        assert_eq!(cluster.admin(0).get("/admin/v1/tenants").await.0, 200);
    }
    assert!(!cluster.has_ended(1));
    gate.open();
    assert_eq!(text_of(&call.result().await), "finished");
    eventually("the end of the replica", || {
        let has_ended = cluster.has_ended(1);
        async move { if has_ended { Ok(()) } else { Err("it runs") } }
    })
    .await;
}

#[tokio::test]
async fn a_forwarded_call_is_answered_at_the_end_of_the_grace_period() {
    let gate = Gate::new();
    let config = json!({"shutdown": {"grace": "1s"}});
    let (_cluster, call) = drained_while_forwarding(config, "2025-11-25", &gate).await;
    let outcome = call.attempt(DEADLINE).await;
    assert_eq!(outcome.kind(), "outcome_unknown", "{outcome:?}");
}

/// Streams before 2025-11-25 begin without an event id.
#[tokio::test]
async fn a_forwarded_stream_that_cannot_be_resumed_ends_with_an_answer() {
    let gate = Gate::new();
    let config = json!({"shutdown": {"grace": "1s"}, "events": {"keepalive": "50ms"}});
    let (_cluster, call) = drained_while_forwarding(config, "2025-06-18", &gate).await;
    let outcome = call.attempt(DEADLINE).await;
    assert_eq!(outcome.kind(), "outcome_unknown", "{outcome:?}");
    let is_stream = matches!(outcome, AttemptOutcome::Error { status: 200, .. });
    assert!(is_stream, "{outcome:?}");
}

#[tokio::test]
async fn a_replica_that_is_unknown_or_out_of_reach_is_not_drained() {
    let mut cluster = builder().cluster(2).lease("20s").start().await;
    let (first, path) = (cluster.admin(0), drain_path(&cluster, false).await);
    for unknown in ["none", "..%2F", "%2F0badf00d"] {
        let (status, problem) =
            first.post(&format!("/admin/v1/nodes/{unknown}/drain"), &json!({})).await;
        assert_eq!(status, 404, "{unknown}: {problem}");
    }
    cluster.freeze(1);
    let (status, problem) = first.post(&path, &json!({})).await;
    assert_eq!(status, 503, "{problem}");
    assert_eq!(problem["type"], "urn:mcp-broker:problem:node-unreachable");
    assert!(problem["detail"].as_str().unwrap().contains("does not drain: it cannot be reached"));
    cluster.thaw(1);
    assert_eq!(cluster.admin(1).get("/readyz").await.0, 200);
}
