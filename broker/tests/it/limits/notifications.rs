//! Notifications of clients count against the rates of their sender, on every wire and in every
//! era. Of several equal ones, one waits for each backend.

use std::time::Instant;

use serde_json::{Value, json};
use testkit::{
    Authority, Direction, DuplexClient, FakeBackend, FaultProxy, Gate, QuicPeer, Reply, TestBroker,
    TestClient, duplex::Wire, judge::Revision,
};

use super::{assert_rate_limited, assert_too_many_requests};
use crate::{
    configured_alone, request,
    stateless::{Modern, meta},
    stdio, text_of,
};

const BURST: usize = 20;
/// Notifications of one client in these tests.
const MANY: usize = 5 * BURST;
const ROOTS_CHANGED: &str = "notifications/roots/list_changed";

/// Returns a rate of one request per second, with a burst.
fn rate() -> Value {
    json!({"requests_per_second": 1, "burst": BURST})
}

fn with_roots() -> Value {
    json!({"roots": {"listChanged": true}})
}

async fn dropped(broker: &TestBroker, kind: &str) -> f64 {
    broker
        .admin()
        .metric("mcp_dropped_notifications_total", &[("kind", kind)])
        .await
        .unwrap_or_default()
}

/// Checks that of `sent` notifications since `started` all but the burst were dropped, within the
/// tokens that returned since.
async fn assert_most_dropped(broker: &TestBroker, sent: usize, started: Instant, wire: &str) {
    let least = || (sent - BURST) as f64 - started.elapsed().as_secs_f64() - 1.0;
    let labels = [("kind", "rate_limited")];
    let count = broker
        .admin()
        .wait_metric("mcp_dropped_notifications_total", &labels, |count| count >= least())
        .await;
    assert!(count <= sent as f64, "{wire}: {count} of {sent}");
    let limited = broker
        .admin()
        .metric("mcp_rate_limited_total", &[("scope", "tenant")])
        .await
        .unwrap_or_default();
    assert!(limited >= count, "{wire}: {limited} refusals, {count} notifications dropped");
}

/// Checks that the notifications of a connection used up its rate: its requests are refused.
async fn assert_used_up(broker: &TestBroker, client: &DuplexClient, params: Value, wire: &str) {
    let started = Instant::now();
    for _ in 0..MANY {
        client.notify(ROOTS_CHANGED, json!({})).await;
    }
    // Messages are read in order, so this request comes behind the last of them.
    let mut answer = client.request("tools/list", params.clone()).await;
    while answer.get("error").is_none() {
        client.notify(ROOTS_CHANGED, json!({})).await; // a second had passed
        answer = client.request("tools/list", params.clone()).await;
    }
    assert_rate_limited(&answer["error"], "tenant");
    assert_most_dropped(broker, MANY, started, wire).await;
}

async fn listening(authority: &Authority) -> TestBroker {
    let server = authority.server("server");
    let config = json!({
        "listen": {"tcp": "127.0.0.1:0", "quic": "127.0.0.1:0"},
        "tls": {"cert_file": server.cert, "key_file": server.key},
        "limits": rate(),
    });
    configured_alone(config, stdio().spec()).await
}

#[tokio::test]
async fn s09_notifications_over_connections_count_against_the_rate() {
    let authority = Authority::new();
    for wire in ["tcp", "websocket", "quic", "http+sse"] {
        let broker = listening(&authority).await;
        let client = match wire {
            "tcp" => broker.duplex().tcp(broker.tcp_address()).await,
            "websocket" => {
                broker.duplex().websocket(broker.http_address(), "/ws", &[]).await.unwrap().0
            }
            "quic" => {
                let peer = QuicPeer::connect(broker.quic_address(), &authority, None, "mcp")
                    .await
                    .unwrap();
                broker.duplex().over(peer.control().await)
            }
            _ => broker
                .duplex()
                .over(Wire::http_sse(broker.http_address(), "/sse", &[]).await.unwrap()),
        };
        assert_used_up(&broker, &client.connected(with_roots()).await, json!({}), wire).await;
    }
}

#[tokio::test]
async fn s09_notifications_on_separate_quic_streams_are_counted() {
    let authority = Authority::new();
    let broker = listening(&authority).await;
    let peer = QuicPeer::connect(broker.quic_address(), &authority, None, "mcp").await.unwrap();
    let client = broker.duplex().over(peer.control().await).connected(with_roots()).await;
    let started = Instant::now();
    for _ in 0..MANY {
        let (_writer, reader) =
            peer.request(&json!({"jsonrpc": "2.0", "method": ROOTS_CHANGED})).await;
        assert!(QuicPeer::lines(reader).await.is_empty(), "a notification has no answer");
    }
    assert_most_dropped(&broker, MANY, started, "quic streams").await;
    drop(client);
}

#[tokio::test]
async fn s09_notifications_without_a_session_count_for_the_last_caller() {
    let authority = Authority::new();
    let asked = || json!({"_meta": meta(json!({}))});
    for wire in ["tcp", "websocket"] {
        let broker = listening(&authority).await;
        let client = match wire {
            "tcp" => {
                broker.duplex().speaking(Revision::V2026_07_28).tcp(broker.tcp_address()).await
            }
            _ => {
                broker
                    .duplex()
                    .speaking(Revision::V2026_07_28)
                    .websocket(broker.http_address(), "/ws", &[])
                    .await
                    .unwrap()
                    .0
            }
        };
        client.result("tools/list", asked()).await;
        assert_used_up(&broker, &client, asked(), wire).await;
    }
    let broker = listening(&authority).await;
    let peer = QuicPeer::connect(broker.quic_address(), &authority, None, "mcp").await.unwrap();
    let client = broker.duplex().speaking(Revision::V2026_07_28).over(peer.control().await);
    client.result("tools/list", asked()).await;
    let started = Instant::now();
    for _ in 0..MANY {
        let (_writer, reader) =
            peer.request(&json!({"jsonrpc": "2.0", "method": ROOTS_CHANGED})).await;
        assert!(QuicPeer::lines(reader).await.is_empty());
    }
    assert_most_dropped(&broker, MANY, started, "quic streams").await;
}

/// Sends notifications until one is refused; returns its answer.
async fn until_refused(client: &TestClient) -> testkit::RawResponse {
    let notification = json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 1, "progress": 1}});
    for _ in 0..10 * MANY {
        let response = client.post(notification.to_string()).await;
        if response.status != 202 {
            return response;
        }
    }
    panic!("it was never refused")
}

#[tokio::test]
async fn s09_a_post_of_a_notification_over_the_rate_gets_429() {
    let backend = FakeBackend::echo().await;
    let broker = configured_alone(json!({"limits": rate()}), backend.spec()).await;
    let client = broker.connected(with_roots()).await;
    let refused = until_refused(&client).await;
    let labels = [("kind", "rate_limited")];
    assert!(
        broker.admin().metric("mcp_dropped_notifications_total", &labels).await.unwrap() >= 1.0
    );
    assert_eq!(
        refused.header("mcp-session-id").is_some(),
        client.post(request(1, "ping", json!({}))).await.header("mcp-session-id").is_some()
    );
    assert_too_many_requests(refused, "tenant").await;

    // In the stateless era a notification has no effect, and counts.
    let modern = Modern::of(&broker, "/mcp");
    let body =
        json!({"jsonrpc": "2.0", "method": ROOTS_CHANGED, "params": {"_meta": meta(json!({}))}})
            .to_string();
    let mut answer = modern.send(&modern.headers(ROOTS_CHANGED, &json!({})), body.clone()).await;
    while answer.status == 202 {
        answer = modern.send(&modern.headers(ROOTS_CHANGED, &json!({})), body.clone()).await;
    }
    assert_too_many_requests(answer, "tenant").await;
}

#[tokio::test]
async fn s09_each_notification_of_a_batch_is_counted() {
    let backend = FakeBackend::echo().await;
    let broker = configured_alone(json!({"limits": rate()}), backend.spec()).await;
    let client = broker.client("/mcp");
    client.initialize("2025-03-26", with_roots()).await;
    let started = Instant::now();
    let batch: Vec<Value> =
        (0..MANY).map(|_| json!({"jsonrpc": "2.0", "method": ROOTS_CHANGED})).collect();
    client
        .post(json!(batch).to_string())
        .await
        .expect_status(202, "a batch of notifications")
        .await;
    assert_most_dropped(&broker, MANY, started, "a batch").await;
}

#[tokio::test]
async fn s09_a_cancellation_of_a_pending_call_is_accepted_once_over_the_rate() {
    let gate = Gate::new();
    let backend = FakeBackend::with_tool("wait", gate.before(Reply::text("late"))).await;
    let broker = configured_alone(json!({"limits": rate()}), backend.spec()).await;
    let client = broker.connected(with_roots()).await;
    let calls = [client.start_call("b__wait", json!({})), client.start_call("b__wait", json!({}))];
    backend.wait_count("the calls", 2, |seen| seen.calls("wait")).await;
    until_refused(&client).await;
    let cancel = |id: &Value| {
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}})
            .to_string()
    };
    for call in &calls {
        until_refused(&client).await;
        client.post(cancel(&call.id)).await.expect_status(202, "a cancellation").await;
    }
    backend.wait_count("their cancellation", 2, |seen| seen.is("notifications/cancelled")).await;
    // A cancellation of an ended or unknown request frees nothing: it counts.
    for id in [&calls[0].id, &json!("nothing")] {
        until_refused(&client).await;
        let mut again = client.post(cancel(id)).await;
        while again.status == 202 {
            until_refused(&client).await; // a second had passed
            again = client.post(cancel(id)).await;
        }
        assert_too_many_requests(again, "tenant").await;
    }
    assert_eq!(backend.recorded_of("notifications/cancelled").len(), 2);
    gate.open();
}

#[tokio::test]
async fn s09_answers_to_questions_are_not_counted_as_notifications() {
    let gate = Gate::new();
    let at_gate = gate.clone();
    let backend = FakeBackend::with_tool("ask", move |call| {
        let gate = at_gate.clone();
        async move {
            gate.passed().await;
            Reply::text(&call.request("roots/list", json!({})).await["result"]["roots"].to_string())
        }
    })
    .await;
    let broker = configured_alone(json!({"limits": rate()}), backend.spec()).await;
    let client = broker
        .client("/mcp")
        .answers(|_, _| Ok(json!({"roots": []})))
        .connected(with_roots())
        .await;
    let call = client.start_call("b__ask", json!({}));
    backend.wait_for("the call", |seen| seen.calls("ask")).await;
    until_refused(&client).await;
    gate.open();
    assert_eq!(text_of(&call.result().await), "[]");
}

#[tokio::test]
async fn s09_the_initialized_notification_is_accepted_once_over_the_rate() {
    let backend = FakeBackend::echo().await;
    let limits = json!({"requests_per_second": 1, "burst": 2});
    let broker = configured_alone(json!({"limits": limits}), backend.spec()).await;
    let client = broker.client("/mcp");
    client.initialize_only("2025-11-25", with_roots()).await;
    until_refused(&client).await;
    let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string();
    client.post(initialized.clone()).await.expect_status(202, "the first").await;
    let ready = [("from", "awaiting_initialized"), ("to", "ready")];
    broker.admin().wait_metric("mcp_phase_transitions_total", &ready, |count| count >= 1.0).await;
    let mut again = client.post(initialized.clone()).await;
    while again.status == 202 {
        again = client.post(initialized.clone()).await;
    }
    assert_too_many_requests(again, "tenant").await;
}

#[tokio::test]
async fn s09_many_roots_list_changed_queue_once_for_each_backend() {
    const SENT: usize = 200;
    let backend = FakeBackend::echo().await;
    let proxy = FaultProxy::start(backend.address()).await;
    let mut spec = backend.spec();
    spec["transport"]["url"] =
        json!(backend.url().replace(&backend.address().to_string(), &proxy.address().to_string()));
    // The first notification is not given up meanwhile.
    let patient = json!({"timeouts": {"control": "1m"}});
    let broker = configured_alone(patient, spec).await;
    let client = broker.connected(with_roots()).await;
    client.call("b__echo", json!({})).await;
    proxy.hold(Direction::Downstream, true);
    let notification = json!({"jsonrpc": "2.0", "method": ROOTS_CHANGED}).to_string();
    client.post(notification.clone()).await.expect_status(202, "the first").await;
    backend.wait_for("the first", |seen| seen.is(ROOTS_CHANGED)).await;
    for _ in 1..SENT {
        client.post(notification.clone()).await.expect_status(202, "no rate is set").await;
    }
    let depth = broker.admin().metric("mcp_queue_depth", &[("queue", "http_one_way")]).await;
    assert!(depth.is_some_and(|depth| depth <= 1.0), "one waits at most: {depth:?}");
    // The first is in flight, and the second waits.
    assert_eq!(dropped(&broker, "repeated").await, (SENT - 2) as f64);
    proxy.heal();
    backend.wait_count("both", 2, |seen| seen.is(ROOTS_CHANGED)).await;
    client.call("b__echo", json!({})).await;
    client.post(notification).await.expect_status(202, "the next").await;
    backend.wait_count("the next", 3, |seen| seen.is(ROOTS_CHANGED)).await;
    assert_eq!(backend.recorded_of(ROOTS_CHANGED).len(), 3);
}
