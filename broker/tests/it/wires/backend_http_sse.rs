//! The broker as a client of backends over HTTP+SSE (2024-11-05).

use http::Method;
use serde_json::{Value, json};
use testkit::{AdminClient, FakeBackend, Gate, HttpSseBackend, Reply, TestBroker, eventually};

use super::{answering, everything, features, listening, serves_again};
use crate::{builder, kind, stdio, text_of};

async fn hanging(broker: &TestBroker, client: &testkit::TestClient) -> testkit::Call {
    let hanging = client.start_call("b__hang", json!({}));
    broker.admin().wait_metric("mcp_requests_pending", &[], |count| count == 1.0).await;
    client.call("b__echo", json!({})).await; // so that what was asked before it is on its way
    hanging
}

fn plain() -> testkit::BrokerBuilder {
    builder().single_process()
}

#[tokio::test]
async fn every_request_carries_the_registered_headers() {
    let backend = HttpSseBackend::start(&stdio()).await;
    let mut spec = backend.spec();
    spec["credentials"] = json!({"bearer": "key-of-the-backend", "headers": {"x-team": "tools"}});
    let broker = plain().backend("default", "b", spec).start().await;
    let client = broker.connected(json!({})).await;
    client.call("b__echo", json!({})).await;
    let seen = backend.seen();
    for method in [Method::GET, Method::POST] {
        let of_method: Vec<_> = seen.iter().filter(|(seen, ..)| *seen == method).collect();
        assert!(!of_method.is_empty(), "{method}");
        for (_, _, headers) in of_method {
            assert_eq!(headers["authorization"], "Bearer key-of-the-backend", "{method}");
            assert_eq!(headers["x-team"], "tools", "{method}");
        }
    }
    let shown = broker.admin().backend("default", "b").await;
    assert_eq!(shown["settings"]["transport"], backend.spec()["transport"], "{shown}");
    assert!(
        broker.admin().metric("mcp_links", &[("backend_transport", "sse")]).await.unwrap() > 0.0
    );
}

#[tokio::test]
async fn a_stream_that_is_lost_is_opened_again() {
    let backend = HttpSseBackend::start(&stdio()).await;
    let broker = plain().backend("default", "b", backend.spec()).start().await;
    let client = broker.connected(json!({})).await;
    let hanging = hanging(&broker, &client).await;
    let before = backend.streams();
    backend.cut();
    assert_eq!(kind(&hanging.error().await), "outcome_unknown");
    serves_again(&client).await;
    assert!(backend.streams() > before);
}

#[tokio::test]
async fn a_stream_stays_open_until_the_cancellations_of_its_session_are_sent() {
    let backend = HttpSseBackend::start(&stdio()).await;
    let broker = plain().backend("default", "b", backend.spec()).start().await;
    let gate = Gate::new();
    backend.hold_posts("notifications/cancelled", &gate);
    // The backend can ask this client, so the session has a stream of its own.
    let client = broker.connected(json!({"elicitation": {}})).await;
    let hanging = hanging(&broker, &client).await;
    client.delete_session().await;
    broker.admin().wait_metric("mcp_sessions", &[], |open| open == 0.0).await;
    drop(hanging);
    let other = broker.connected(json!({})).await;
    other.call("b__echo", json!({})).await;
    gate.open();
    eventually("the cancellation", || async {
        let statuses = backend.held_statuses();
        if statuses == [202] { Ok(()) } else { Err(statuses) }
    })
    .await;
}

#[tokio::test]
async fn a_request_that_the_backend_refuses_fails_alone() {
    let backend = HttpSseBackend::start(&stdio()).await;
    let broker = plain().backend("default", "b", backend.spec()).start().await;
    let client = broker.connected(json!({})).await;
    client.call("b__echo", json!({})).await;
    let call = json!({"name": "b__echo", "arguments": {}});
    for (status, wanted) in [
        (400, "backend_protocol_error"),
        (401, "backend_protocol_error"),
        (429, "backend_unavailable"),
        (500, "backend_protocol_error"),
        (503, "outcome_unknown"),
    ] {
        backend.refuse_posts(Some(status));
        let answer = client.request("tools/call", call.clone()).await;
        assert_eq!(kind(&answer["error"]), wanted, "{status}: {answer}");
        backend.refuse_posts(None);
        serves_again(&client).await;
    }
}

#[tokio::test]
async fn the_body_of_a_refusal_is_the_answer_if_it_has_the_id_of_the_request() {
    let backend = HttpSseBackend::start(&stdio()).await;
    let broker = plain().backend("default", "b", backend.spec()).start().await;
    let client = broker.connected(json!({})).await;
    client.call("b__echo", json!({})).await;
    let refusal = |id: &str| {
        format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32050,"message":"refused"}}}}"#)
    };
    backend.refuse_posts_with(400, &refusal("@ID@"));
    let call = json!({"name": "b__echo", "arguments": {}});
    let answer = client.request("tools/call", call.clone()).await;
    assert_eq!(answer["error"]["code"], -32050, "{answer}");
    for other_id in ["0", "null"] {
        backend.refuse_posts_with(400, &refusal(other_id));
        let answer = client.request("tools/call", call.clone()).await;
        assert_eq!(kind(&answer["error"]), "backend_protocol_error", "{answer}");
    }
}

/// A backend that forgot the stream's session did not process the request.
#[tokio::test]
async fn a_session_that_the_backend_lost_is_reopened() {
    let backend = HttpSseBackend::start(&stdio()).await;
    let broker = plain().backend("default", "b", backend.spec()).start().await;
    let client = broker.connected(json!({})).await;
    client.call("b__echo", json!({})).await;
    let before = backend.streams();
    backend.forget_streams();
    assert_eq!(text_of(&client.call("b__echo", json!({"n": 1})).await), r#"{"n":1}"#);
    assert!(backend.streams() > before);
}

#[tokio::test]
async fn the_endpoint_may_be_relative_and_must_have_the_same_origin() {
    let (backend, other) = (HttpSseBackend::start(&stdio()).await, FakeBackend::start().await);
    let broker = plain().start().await;
    let admin = broker.admin();
    let absolute = format!("http://{}/messages?stream={{}}", backend.address());
    for fine in ["messages?stream={}", "./messages?stream={}", &absolute] {
        backend.endpoint(fine);
        admin.put_ready_backend("default", "b", &backend.spec()).await;
        let client = broker.connected(json!({})).await;
        client.call("b__echo", json!({})).await;
        admin.delete(&AdminClient::backend_path("default", "b")).await;
    }
    let elsewhere = format!("http://{}/messages?stream={{}}", other.address());
    for wrong in [
        elsewhere.as_str(),
        "https://127.0.0.1/messages?stream={}",
        "file:///etc/passwd",
        "http://user:secret@127.0.0.1/messages",
        "",
    ] {
        backend.endpoint(wrong);
        let (_, shown) = admin.put_backend("default", "b", &backend.spec()).await;
        let error = shown["last_error"].as_str().unwrap_or_default();
        let is_named = error.contains("endpoint event") || wrong.is_empty();
        assert!(shown["state"] == "failed" && is_named, "{wrong}: {shown}");
        admin.delete(&AdminClient::backend_path("default", "b")).await;
    }
    assert!(other.recorded().is_empty(), "nothing was sent to another origin");
}

#[tokio::test]
async fn a_url_that_refuses_streamable_http_is_detected_as_http_and_sse() {
    let backend = HttpSseBackend::start(&stdio()).await;
    let spec = json!({"transport": {"type": "http", "url": backend.url()}});
    let broker = listening().backend("default", "b", spec).start().await;
    let client =
        answering(broker.duplex()).tcp(broker.tcp_address()).await.connected(everything()).await;
    features::every_one(&client).await;
    let probes = || {
        let seen = backend.seen();
        seen.iter().filter(|(method, path, _)| *method == Method::POST && path == "/sse").count()
    };
    let before = probes();
    assert!(before > 0);
    backend.cut();
    eventually("a new stream", || async {
        let answer =
            client.request("tools/call", json!({"name": "b__echo", "arguments": {}})).await;
        answer["result"].is_object().then_some(()).ok_or(answer)
    })
    .await;
    assert_eq!(probes(), before, "the detection is remembered");
}

#[tokio::test]
async fn only_a_refusal_of_the_transport_leads_to_a_get() {
    for (status, looked) in [(400, true), (404, true), (405, true), (401, false), (403, false)] {
        let backend = FakeBackend::start().await;
        for method in ["initialize", "server/discover"] {
            backend.on(method, move |_| async move { Reply::status(status) });
        }
        let spec: Value = backend.spec();
        let broker = plain().start().await;
        let (_, shown) = broker.admin().put_backend("default", "b", &spec).await;
        assert_eq!(shown["state"], "failed", "{status}: {shown}");
        let error = shown["last_error"].as_str().unwrap_or_default();
        assert!(error.contains(&status.to_string()), "the first refusal is told: {shown}");
        assert_eq!(backend.count(|seen| seen.http == "GET") > 0, looked, "{status}");
    }
}

#[tokio::test]
async fn the_body_of_an_sse_backend_is_checked() {
    let broker = plain().start().await;
    let url = "http://127.0.0.1:1/sse";
    for (body, field) in [
        (json!({"transport": {"type": "sse", "url": "127.0.0.1/sse"}}), "transport.url"),
        (json!({"transport": {"type": "sse", "url": "http://10.1.2.3/sse"}}), "transport.url"),
        (json!({"transport": {"type": "sse"}}), "transport"),
        (json!({"transport": {"type": "sse", "url": url}, "protocol": "modern"}), "protocol"),
    ] {
        let (status, problem) = broker.admin().put_backend("default", "b", &body).await;
        assert!(
            [400, 422].contains(&status) && problem.to_string().contains(field),
            "{body}: {status} {problem}"
        );
    }
}
