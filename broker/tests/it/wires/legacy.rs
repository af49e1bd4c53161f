//! HTTP+SSE, the transport of 2024-11-05.

use serde_json::json;
use testkit::{TestBroker, duplex::Wire, http};

use super::{answering, everything, features};
use crate::{builder, raw_http, request, stdio, text_of};

async fn broker() -> TestBroker {
    builder().single_process().backend("default", "b", stdio().spec()).start().await
}

#[tokio::test]
async fn every_feature_works_over_http_and_sse() {
    let broker = broker().await;
    let wire = Wire::http_sse(broker.http_address(), "/sse", &[]).await.unwrap();
    let client = answering(broker.duplex()).over(wire).connected(everything()).await;
    features::every_one(&client).await;
    assert_eq!(broker.admin().sessions("default").await[0]["transport"], "sse");
    client.disconnect();
    broker.admin().wait_sessions("default", 0).await;
}

#[tokio::test]
async fn streams_and_messages_need_a_credential_and_a_known_endpoint() {
    let broker = builder()
        .single_process()
        .auth_required()
        .tenant("acme")
        .backend("acme", "b", stdio().spec())
        .start()
        .await;
    let (key, other) =
        (broker.admin().create_key("acme").await, broker.admin().create_key("acme").await);
    let address = broker.http_address();
    assert_eq!(Wire::http_sse(address, "/sse", &[]).await.unwrap_err(), 401);
    let bearer = format!("Bearer {key}");
    assert_eq!(
        Wire::http_sse(address, "/sse/nobody", &[("authorization", &bearer)]).await.unwrap_err(),
        404
    );
    assert_eq!(
        Wire::http_sse(
            address,
            "/sse",
            &[("authorization", &bearer), ("origin", "https://evil.example")]
        )
        .await
        .unwrap_err(),
        403
    );
    let wire = Wire::http_sse(address, "/sse/b", &[("authorization", &bearer)]).await.unwrap();
    let client = broker.duplex().over(wire).connected(json!({})).await;
    assert_eq!(text_of(&client.call("echo", json!({})).await), "{}");
    assert_eq!(client.error("tools/call", json!({"name": "nope"})).await["code"], -32602);
    let ping = request(1, "ping", json!({}));
    for (path, key, status) in
        [("/messages", &key, 404), ("/messages?session=x", &other, 404), ("/sse", &key, 405)]
    {
        let headers = format!("connection: close\r\nauthorization: Bearer {key}\r\n");
        let answer = raw_http(address, http::post(path, &headers, &ping).as_bytes()).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {answer}");
    }
}
