//! The broker as a client of backends over WebSocket.

use serde_json::json;
use testkit::PipeBackend;

use super::{answering, everything, features, listening, serves_again};
use crate::{builder, kind, stdio};

#[tokio::test]
async fn every_feature_works_with_a_websocket_backend() {
    let backend = PipeBackend::websocket(&stdio()).await;
    let broker = listening().backend("default", "b", backend.spec()).start().await;
    let client =
        answering(broker.duplex()).tcp(broker.tcp_address()).await.connected(everything()).await;
    features::every_one(&client).await;
    assert!(
        broker.admin().metric("mcp_links", &[("backend_transport", "websocket")]).await.unwrap()
            > 0.0
    );
}

#[tokio::test]
async fn a_connection_that_is_lost_is_opened_again() {
    let backend = PipeBackend::websocket(&stdio()).await;
    let broker = builder().single_process().backend("default", "b", backend.spec()).start().await;
    let client = broker.connected(json!({})).await;
    let hanging = client.start_call("b__hang", json!({}));
    broker.admin().wait_metric("mcp_requests_pending", &[], |count| count == 1.0).await;
    client.call("b__echo", json!({})).await; // so that what was asked before it is on its way
    backend.cut();
    assert_eq!(kind(&hanging.error().await), "outcome_unknown");
    serves_again(&client).await;
}
