//! QUIC behind, with requests on streams of their own: which requests get one, cancellation, and
//! the cost of a lost packet.

use serde_json::{Value, json};
use testkit::{
    Authority, BrokerBuilder, PacketFaults, PipeBackend, TestBroker, UdpProxy, eventually,
    quic_streams::StreamOptions,
};

use super::{answering, everything, features, listening};
use crate::{stdio, text_of};

async fn backend(authority: &Authority, mode: StreamOptions) -> PipeBackend {
    PipeBackend::quic_streams(&stdio(), authority.server("backend").server_config(), mode).await
}

fn trusting(authority: &Authority) -> BrokerBuilder {
    listening().env("SSL_CERT_FILE", authority.ca().to_str().unwrap())
}

async fn started(authority: &Authority, spec: Value) -> TestBroker {
    trusting(authority).backend("default", "b", spec).start().await
}

async fn client(broker: &TestBroker) -> testkit::DuplexClient {
    answering(broker.duplex()).tcp(broker.tcp_address()).await.connected(everything()).await
}

#[tokio::test]
async fn each_request_has_its_own_stream_if_the_backend_offers_streams() {
    let authority = Authority::new();
    // More than the open streams: a request without a stream uses the control stream, as it should.
    let backend =
        backend(&authority, StreamOptions { streams_max: 1_001, ..StreamOptions::default() }).await;
    let broker = started(&authority, backend.spec()).await;
    let client = client(&broker).await;
    features::every_one(&client).await;
    assert!(backend.streams().requests() > 100, "{}", backend.streams().requests());
    let on_control = backend.streams().on_control();
    assert!(
        on_control.iter().any(|method| method == "notifications/initialized"),
        "{on_control:?}"
    );
    assert!(
        !on_control
            .iter()
            .any(|method| method.starts_with("tools/") || method.starts_with("resources/")),
        "{on_control:?}"
    );
}

#[tokio::test]
async fn the_stream_of_a_cancelled_request_is_reset() {
    let authority = Authority::new();
    let backend = backend(&authority, StreamOptions::default()).await;
    let broker = started(&authority, backend.spec()).await;
    let client = client(&broker).await;
    let mut hanging = client.start_call("b__hang", json!({})).await;
    let before = backend.streams().requests();
    client.call("b__echo", json!({})).await;
    assert!(backend.streams().requests() > before, "another request is not held up");
    client
        .notify("notifications/cancelled", json!({"requestId": hanging.id, "reason": "enough"}))
        .await;
    eventually("the stream to be given up", || async {
        let cancelled = backend.streams().cancelled();
        if cancelled == 1 { Ok(()) } else { Err(cancelled) }
    })
    .await;
    assert!(
        backend.streams().on_control().iter().any(|method| method == "notifications/cancelled"),
        "the reason is told too"
    );
    client.call("b__echo", json!({})).await;
    assert!(!hanging.is_answered());
    assert_eq!(backend.streams().cancelled(), 1, "what was answered was not given up");
}

#[tokio::test]
async fn the_setting_of_an_operator_overrides_the_offer_of_streams() {
    let authority = Authority::new();
    for (announced, configured, expected) in
        [(false, None, false), (false, Some(true), true), (true, Some(false), false)]
    {
        let backend =
            backend(&authority, StreamOptions { announced, ..StreamOptions::default() }).await;
        let mut spec = backend.spec();
        spec["transport"]["streams"] = json!(configured);
        if configured.is_none() {
            spec["transport"].as_object_mut().unwrap().remove("streams");
        }
        let broker = started(&authority, spec).await;
        let client = client(&broker).await;
        features::many_calls(&client).await;
        assert_eq!(backend.streams().requests() > 0, expected, "{announced} {configured:?}");
    }
}

#[tokio::test]
async fn a_request_without_a_free_stream_uses_the_control_stream() {
    let authority = Authority::new();
    let backend =
        backend(&authority, StreamOptions { streams_max: 3, ..StreamOptions::default() }).await;
    let broker = started(&authority, backend.spec()).await;
    let client = client(&broker).await;
    features::every_one(&client).await;
    assert!(backend.streams().requests() > 0);
    assert!(backend.streams().on_control().iter().any(|method| method == "tools/call"));
}

#[tokio::test]
async fn f_15_lost_packets_to_a_quic_backend_only_delay_calls() {
    let authority = Authority::new();
    let backend = backend(&authority, StreamOptions::default()).await;
    for lost in [1, 10] {
        let network =
            UdpProxy::start(backend.address(), PacketFaults { lost, duplicated: 1, reordered: 1 })
                .await;
        let spec = json!({"transport": {"type": "quic", "address": network.address().to_string()}});
        let broker = started(&authority, spec).await;
        let client = client(&broker).await;
        features::many_calls(&client).await;
        features::large_messages(&client).await;
    }
}

#[tokio::test]
async fn a_broker_can_be_a_quic_backend_with_streams() {
    let authority = Authority::new();
    let server = authority.server("server");
    let tls = json!({"cert_file": server.cert, "key_file": server.key});
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("record");
    let inner = listening()
        .config(json!({"listen": {"quic": "127.0.0.1:0"}, "tls": tls}))
        .backend("default", "b", stdio().record(&record).spec())
        .start()
        .await;
    let spec = json!({"transport": {"type": "quic", "address": inner.quic_address().to_string(), "server_name": "localhost"}});
    let outer = started(&authority, spec).await;
    let client = client(&outer).await;
    let answer = client.call("b__b__elicit", json!({"message": "who?"})).await;
    assert!(text_of(&answer).contains("who?"), "{answer}");
    let mut hanging = client.start_call("b__b__hang", json!({})).await;
    eventually("the call at the backend", || async {
        let text = std::fs::read_to_string(&record).unwrap_or_default();
        if text.contains("\"hang\"") { Ok(()) } else { Err(text) }
    })
    .await;
    client.notify("notifications/cancelled", json!({"requestId": hanging.id})).await;
    client.call("b__b__echo", json!({})).await;
    assert!(!hanging.is_answered());
    inner
        .admin()
        .wait_metric(
            "mcp_requests_total",
            &[("method", "tools/call"), ("outcome", "cancelled"), ("transport", "quic")],
            |count| count >= 1.0,
        )
        .await;
}
