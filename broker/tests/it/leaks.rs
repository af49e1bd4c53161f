//! Text of strangers must not reach a log line, a metric's name or an error's text in a harmful
//! form.

use serde_json::{Value, json};
use testkit::FakeBackend;

use crate::{builder, initialize_body, metrics::with_tenant_labels, refused, request, stdio};

const NASTY: &str = "x\r\n2026-01-01T00:00:00Z ERROR forged \u{1b}[31mred\u{1b}]0;t\u{7} {\"level\":\"error\"} %s%n${jndi:x} \u{2028}end";

/// Sends nasty text in every field where a client may send text.
async fn send_hostile_texts(broker: &testkit::TestBroker) {
    let client = broker.client("/mcp").connected(json!({})).await;
    let info = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": NASTY, "version": NASTY}});
    broker.client("/mcp").post(request(1, "initialize", info)).await.text().await;
    let version = json!({"protocolVersion": NASTY, "capabilities": {}, "clientInfo": {"name": "n", "version": "1"}});
    broker.client("/mcp").post(request(1, "initialize", version)).await.text().await;
    for (method, params) in [
        (NASTY, json!({})),
        ("tools/call", json!({"name": NASTY, "arguments": {NASTY: NASTY}})),
        ("tools/call", json!({"name": format!("b__{NASTY}"), "arguments": {}})),
        (
            "tools/call",
            json!({"name": "b__echo", "arguments": {}, "_meta": {"progressToken": NASTY}}),
        ),
        ("prompts/get", json!({"name": NASTY})),
        ("resources/read", json!({"uri": format!("b+test://{NASTY}")})),
        ("resources/subscribe", json!({"uri": NASTY})),
        ("tools/list", json!({"cursor": NASTY})),
        ("logging/setLevel", json!({"level": NASTY})),
        ("tasks/get", json!({"taskId": NASTY})),
    ] {
        client.request(method, params).await;
    }
    client
        .post(json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": NASTY, "reason": NASTY}}).to_string())
        .await;
    client.post(json!({"jsonrpc": "2.0", "id": NASTY, "result": NASTY}).to_string()).await;
    client.post(NASTY.to_owned()).await.text().await;
    let huge = "n".repeat(1 << 20);
    client.request(&huge, json!({})).await;
    client.request("tools/call", json!({"name": huge})).await;
    for path in ["/mcp/%0d%0aforged", "/mcp/b?x=%1b%5b31m"] {
        broker.client(path).post(initialize_body("2025-11-25")).await.text().await;
    }
}

#[tokio::test]
async fn a_38_text_of_peers_adds_no_line_and_no_colour_to_the_log() {
    for format in ["text", "json"] {
        let backend = FakeBackend::echo().await;
        backend.list(
            "tools",
            vec![
                json!({"name": "echo", "inputSchema": {}}),
                json!({"name": NASTY, "inputSchema": {}}),
            ],
        );
        let config = json!({"telemetry": {"log": "trace", "log_format": format}});
        let mut broker = builder()
            .single_process()
            .config(config)
            .backend("default", "b", backend.spec())
            .backend("default", "s", stdio().spec())
            .start()
            .await;
        send_hostile_texts(&broker).await;
        broker.terminate().await;
        let log = broker.log();
        for (at, line) in log.lines().enumerate() {
            let shown: String = line.chars().take(300).collect();
            assert!(!line.chars().any(|char| char.is_control()), "{format} line {at}: {shown:?}");
            match format {
                "json" => {
                    assert!(serde_json::from_str::<Value>(line).is_ok(), "line {at}: {shown:?}")
                }
                _ => assert!(
                    !line.trim_start().starts_with("2026-01-01T00:00:00Z ERROR forged"),
                    "line {at}: {shown:?}"
                ),
            }
            assert!(line.len() < 200_000, "{format} line {at} has {} bytes", line.len());
        }
        assert!(log.lines().count() > 20, "the log is on");
    }
}

#[tokio::test]
async fn a_39_unauthenticated_clients_create_no_time_series() {
    let backend = FakeBackend::echo().await;
    let broker = with_tenant_labels(&backend).await;
    let client = broker.connected(json!({})).await;
    let series = async || {
        let text = broker.admin().send("GET", "/metrics", None).await.text().await;
        let names = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| Some(line.rsplit_once(' ')?.0.to_owned()));
        names.collect::<std::collections::BTreeSet<String>>()
    };
    let each = async |n: usize| {
        client.request(&format!("made/up{n}"), json!({})).await;
        client.request("tools/call", json!({"name": format!("b__tool{n}"), "arguments": {}})).await;
        client.request("resources/read", json!({"uri": format!("b+test://{n}")})).await;
        broker
            .client(&format!("/mcp/backend{n}"))
            .header("x-tenant", &format!("tenant{n}"))
            .post(initialize_body("2025-11-25"))
            .await
            .text()
            .await;
        broker.client("/mcp").post(initialize_body(&format!("20{n}-01-01"))).await.text().await;
    };
    for n in 0..20 {
        each(n).await;
    }
    let before = series().await;
    for n in 20..200 {
        each(n).await;
    }
    let after = series().await;
    let new: Vec<&String> = after.difference(&before).collect();
    // Series of background work appear at their own time.
    let background =
        ["mcp_store_", "mcp_tasks", "mcp_backend_state", "mcp_expired_", "mcp_hot_store_"];
    let made: Vec<_> =
        new.iter().filter(|name| !background.iter().any(|start| name.starts_with(start))).collect();
    assert!(made.is_empty(), "{made:?}");
}

#[tokio::test]
async fn a_40_errors_contain_no_internal_details() {
    let backend = FakeBackend::echo().await;
    let broker = builder()
        .single_process()
        .backend("default", "b", backend.spec())
        .backend("default", "s", stdio().spec())
        .start()
        .await;
    let down = json!({"transport": {"type": "http", "url": "http://127.0.0.1:9/inner-path"}});
    broker.admin().put_backend("default", "down", &down).await;
    let client = broker.client("/mcp").connected(json!({})).await;
    let mut received = Vec::new();
    backend.die().await;
    for (method, params) in [
        ("tools/call", json!({"name": "b__echo", "arguments": {}})),
        ("tools/call", json!({"name": "s__exit", "arguments": {}})),
        ("tools/call", json!({"name": "none", "arguments": {}})),
        ("resources/read", json!({"uri": "b+file:///a/../b"})),
        ("tools/list", json!({"cursor": "bm8="})),
        ("tasks/get", json!({"taskId": "x"})),
        ("no/such", json!({})),
    ] {
        received.push(client.error(method, params).await.to_string());
    }
    for (path, body) in [
        ("/mcp", "{".to_owned()),
        ("/mcp/down", initialize_body("2025-11-25")),
        ("/mcp/none", initialize_body("2025-11-25")),
        ("/mcp", request(1, "ping", json!({}))),
    ] {
        received.push(refused(broker.client(path).post(body).await).await.1.to_string());
    }
    let folder = broker.folder().display().to_string();
    for text in received {
        assert!(text.contains("requestId"), "{text}");
        for inner in [
            &*folder,
            "/src/",
            ".rs:",
            "sqlx",
            "sqlite",
            "SELECT",
            "panicked",
            "hyper",
            "tokio",
            "os error",
            "127.0.0.1",
            "inner-path",
            env!("CARGO_PKG_VERSION"),
        ] {
            assert!(!text.contains(inner), "{inner} in {text}");
        }
    }
}
