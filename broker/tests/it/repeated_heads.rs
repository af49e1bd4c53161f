//! Connections whose requests repeat one head. The broker does not repeat the checks of the head
//! alone. It repeats each check whose result can change between two requests.

use serde_json::{Value, json};
use testkit::{FakeBackend, TestBroker, http::post};
use tokio::{io::AsyncWriteExt as _, net::TcpStream};

use crate::{builder, echo, initialize_body, read_answer, request, stateless::meta};

/// Sends a POST whose head is the same each time, except for the length. Returns status and body.
async fn send(stream: &mut TcpStream, path: &str, more: &str, body: &str) -> (u16, Value) {
    stream.write_all(post(path, more, body).as_bytes()).await.unwrap();
    let answer = read_answer(stream).await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap();
    (status, serde_json::from_str(body).unwrap_or_default())
}

fn call(id: u64, tool: &str) -> String {
    request(id, "tools/call", json!({"name": tool, "arguments": {"text": "x"}}))
}

/// Opens a session on a connection. Returns the lines that name it.
async fn open(stream: &mut TcpStream, path: &str, more: &str) -> String {
    stream.write_all(post(path, more, &initialize_body("2025-11-25")).as_bytes()).await.unwrap();
    let answer = read_answer(stream).await;
    let session = answer.lines().find_map(|line| line.strip_prefix("mcp-session-id: ")).unwrap();
    format!("{more}mcp-session-id: {session}\r\n")
}

async fn connected(broker: &TestBroker) -> TcpStream {
    TcpStream::connect(broker.http_address()).await.unwrap()
}

#[tokio::test]
async fn a_repeated_head_is_compared_with_each_body() {
    let (broker, _backend) = echo().await;
    let mut stream = connected(&broker).await;
    let stateless = |id, tool: &str| {
        let params = json!({"name": tool, "arguments": {"text": "x"}, "_meta": meta(json!({}))});
        request(id, "tools/call", params)
    };
    let more = "mcp-protocol-version: 2026-07-28\r\nmcp-method: tools/call\r\nmcp-name: echo\r\n";
    for id in 1..=3 {
        let (status, answer) = send(&mut stream, "/mcp/b", more, &stateless(id, "echo")).await;
        assert_eq!((status, answer["id"].as_u64()), (200, Some(id)), "{answer}");
    }
    let list = request(4, "tools/list", json!({"_meta": meta(json!({}))}));
    for wrong in [stateless(4, "ECHO"), stateless(4, "echo2"), list] {
        let (status, answer) = send(&mut stream, "/mcp/b", more, &wrong).await;
        assert_eq!((status, answer["error"]["code"].as_i64()), (400, Some(-32020)), "{answer}");
    }
    let (status, _) = send(&mut stream, "/mcp/b", more, &stateless(5, "echo")).await;
    assert_eq!(status, 200, "the head that fits is served after one that did not");
}

#[tokio::test]
async fn a_repeated_head_of_an_ended_session_is_refused() {
    let (broker, _backend) = echo().await;
    let mut stream = connected(&broker).await;
    let session = open(&mut stream, "/mcp/b", "").await;
    for id in 2..=4 {
        let (status, answer) = send(&mut stream, "/mcp/b", &session, &call(id, "echo")).await;
        assert_eq!((status, answer["id"].as_u64()), (200, Some(id)), "{answer}");
    }
    let mut other = connected(&broker).await;
    let delete = format!("DELETE /mcp/b HTTP/1.1\r\nhost: localhost\r\n{session}\r\n");
    other.write_all(delete.as_bytes()).await.unwrap();
    let mut status = [0; 12];
    tokio::io::AsyncReadExt::read_exact(&mut other, &mut status).await.unwrap();
    assert_eq!(&status, b"HTTP/1.1 204");
    let (status, answer) = send(&mut stream, "/mcp/b", &session, &call(5, "echo")).await;
    assert_eq!(status, 404, "{answer}");
}

#[tokio::test]
async fn a_repeated_head_is_refused_after_its_tenant_or_backend_ends() {
    let backend = FakeBackend::echo().await;
    let started = builder().auth_required().tenant("acme").backend("acme", "b", backend.spec());
    let broker = started.start().await;
    let admin = broker.admin();
    let more = format!("authorization: Bearer {}\r\n", admin.create_key("acme").await);
    let mut stream = connected(&broker).await;
    let session = open(&mut stream, "/mcp/b", &more).await;
    let (status, answer) = send(&mut stream, "/mcp/b", &session, &call(2, "echo")).await;
    assert_eq!(status, 200, "{answer}");
    admin.put_tenant("acme", json!({"enabled": false})).await;
    let (status, answer) = send(&mut stream, "/mcp/b", &session, &call(3, "echo")).await;
    assert_eq!(status, 401, "{answer}");
    admin.put_tenant("acme", json!({"enabled": true})).await;
    let session = open(&mut stream, "/mcp/b", &more).await;
    let (status, answer) = send(&mut stream, "/mcp/b", &session, &call(4, "echo")).await;
    assert_eq!(status, 200, "{answer}");
    let (status, _) = admin.delete("/admin/v1/tenants/acme/backends/b").await;
    assert!((200..300).contains(&status), "{status}");
    let (status, answer) = send(&mut stream, "/mcp/b", &session, &call(5, "echo")).await;
    assert_eq!(status, 404, "{answer}");
    let (status, _) = admin.delete("/admin/v1/tenants/acme").await;
    assert!((200..300).contains(&status), "{status}");
    let (status, answer) = send(&mut stream, "/mcp/b", &session, &call(6, "echo")).await;
    assert_eq!(status, 401, "{answer}");
}
