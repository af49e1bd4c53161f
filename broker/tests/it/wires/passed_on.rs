//! WebSockets whose session is on another replica.

use serde_json::{Value, json};
use testkit::{DuplexClient, FakeBackend, Gate, Reply, TestCluster};

use super::{answering, everything, features, session_of};
use crate::{builder, stdio, text_of};

/// Opens a client's connection to one replica.
async fn at(
    cluster: &TestCluster,
    replica: usize,
    headers: &[(&str, &str)],
) -> Result<DuplexClient, u16> {
    let address = cluster.replicas()[replica].http_address();
    answering(DuplexClient::builder())
        .websocket(address, "/ws", headers)
        .await
        .map(|(client, _)| client)
}

/// Opens a session at the first replica; returns its client and its id.
async fn opened(cluster: &TestCluster, capabilities: Value) -> (DuplexClient, String) {
    let client = at(cluster, 0, &[]).await.unwrap();
    let id = session_of(&client, capabilities).await;
    (client, id)
}

async fn two() -> TestCluster {
    builder().backend("default", "b", stdio().spec()).cluster(2).start().await
}

#[tokio::test]
async fn every_feature_works_through_another_replica() {
    let cluster = two().await;
    let (client, id) = opened(&cluster, everything()).await;
    client.disconnect();
    let client = at(&cluster, 1, &[("mcp-session-id", &id)]).await.unwrap();
    features::every_one(&client).await;
    let sessions = cluster.admin(0).sessions("default").await;
    assert_eq!(sessions.len(), 1, "{sessions:?}");
    let passed_on =
        cluster.admin(1).metric("mcp_forwarded_requests_total", &[("outcome", "answered")]).await;
    assert_eq!(passed_on, Some(1.0), "it is one request, however much is said");
    // The client's close frame passes through, too.
    drop(client);
    cluster.admin(0).wait_sessions("default", 0).await;
}

#[tokio::test]
async fn unreceived_messages_are_delivered_through_another_replica() {
    let (backend, gate) = (FakeBackend::echo().await, Gate::new());
    backend.on("tools/call", gate.before(Reply::text("at last")));
    let cluster = builder().backend("default", "b", backend.spec()).cluster(2).start().await;
    let (client, id) = opened(&cluster, json!({})).await;
    let call = client.start_call("b__echo", json!({})).await;
    backend.wait_for("the call", |seen| seen.is("tools/call")).await;
    let (received, asked) = (client.received().to_string(), call.id);
    client.disconnect();
    gate.open();
    let headers = [("mcp-session-id", id.as_str()), ("mcp-broker-received", &received)];
    let client = at(&cluster, 1, &headers).await.unwrap();
    let answer = client.wait_for_message("the answer", |message| message["id"] == asked).await;
    assert_eq!(text_of(&answer["result"]), "at last");
}

#[tokio::test]
async fn a_refusal_of_the_owner_is_forwarded_to_the_client() {
    let cluster = two().await;
    let (client, id) = opened(&cluster, json!({})).await;
    let more_than_there_was = [("mcp-session-id", id.as_str()), ("mcp-broker-received", "1000")];
    assert_eq!(at(&cluster, 1, &more_than_there_was).await.err(), Some(400));
    assert_eq!(at(&cluster, 1, &[("mcp-session-id", "nobody-s")]).await.err(), Some(404));
    let over_http = cluster.client("/mcp").connected(json!({})).await;
    let of_another_wire = over_http.session().unwrap();
    assert_eq!(at(&cluster, 1, &[("mcp-session-id", &of_another_wire)]).await.err(), Some(404));
    client.result("ping", json!({})).await;
}

#[tokio::test]
async fn a_session_survives_its_owner_and_a_forwarding_replica() {
    let mut cluster = two().await;
    let (client, id) = opened(&cluster, json!({})).await;
    client.disconnect();
    let session = [("mcp-session-id", id.as_str())];
    let through = at(&cluster, 1, &session).await.unwrap();
    assert_eq!(text_of(&through.call("b__echo", json!({})).await), "{}");
    assert!(cluster.terminate(1).await, "a clean exit");
    through.wait_for_close().await;
    let home = at(&cluster, 0, &session).await.unwrap();
    assert_eq!(text_of(&home.call("b__echo", json!({})).await), "{}");
    cluster.restart(1).await;
    let through = at(&cluster, 1, &session).await.unwrap();
    assert_eq!(text_of(&through.call("b__echo", json!({})).await), "{}");
    cluster.kill(0).await;
    through.wait_for_close().await;
    let adopted = at(&cluster, 1, &session).await.unwrap();
    assert_eq!(text_of(&adopted.call("b__echo", json!({})).await), "{}");
}
