//! The broker as a client of backends over TCP.

use serde_json::json;
use testkit::{PipeBackend, TestBroker, eventually};

use super::{listening, serves_again};
use crate::{builder, kind, stdio, text_of};

async fn http_client(broker: &TestBroker) -> testkit::TestClient {
    broker.connected(json!({})).await
}

#[tokio::test]
async fn a_connection_that_is_lost_is_opened_again() {
    let backend = PipeBackend::tcp(&stdio()).await;
    let broker = builder().single_process().backend("default", "b", backend.spec()).start().await;
    let client = http_client(&broker).await;
    client.call("b__echo", json!({})).await;
    let hanging = client.start_call("b__hang", json!({}));
    eventually("the call in flight", || async {
        let metrics = broker.admin().metrics().await;
        if metrics.contains("mcp_requests_pending 1") { Ok(()) } else { Err(metrics) }
    })
    .await;
    client.call("b__echo", json!({})).await; // so that what was asked before it is on its way
    backend.cut();
    assert_eq!(kind(&hanging.error().await), "outcome_unknown");
    serves_again(&client).await;
}

#[tokio::test]
async fn sessions_that_can_answer_questions_have_their_own_connections() {
    let backend = PipeBackend::tcp(&stdio()).await;
    let broker = listening().backend("default", "b", backend.spec()).start().await;
    let catalog = backend.accepted();
    let mut plain = Vec::new();
    for _ in 0..3 {
        let client = broker.duplex().tcp(broker.tcp_address()).await.connected(json!({})).await;
        client.call("b__echo", json!({})).await;
        plain.push(client);
    }
    assert_eq!(backend.accepted(), catalog + 1, "shared by all of one principal");
    for more in 1..=2 {
        let client =
            broker.duplex().tcp(broker.tcp_address()).await.connected(json!({"roots": {}})).await;
        client.call("b__echo", json!({})).await;
        assert_eq!(backend.accepted(), catalog + 1 + more);
    }
}

#[tokio::test]
async fn a_tcp_backend_is_registered_checked_and_shown() {
    let backend = PipeBackend::tcp(&stdio()).await;
    let broker = builder().single_process().start().await;
    let admin = broker.admin();
    for (address, field) in [
        ("nowhere", "transport.address"),
        ("10.1.2.3:7000", "transport.address"),
        ("a:0", "transport.address"),
    ] {
        let (status, problem) = admin
            .put_backend("default", "b", &json!({"transport": {"type": "tcp", "address": address}}))
            .await;
        assert!(
            [400, 422].contains(&status) && problem.to_string().contains(field),
            "{address}: {status} {problem}"
        );
    }
    admin.put_ready_backend("default", "b", &backend.spec()).await;
    let shown = admin.backend("default", "b").await;
    assert_eq!(shown["settings"]["transport"], backend.spec()["transport"], "{shown}");
    let client = http_client(&broker).await;
    assert_eq!(text_of(&client.call("b__echo", json!({})).await), "{}");
}
