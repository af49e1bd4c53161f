//! Traces and audit records of stateless requests that the broker answers itself: lists, discovery,
//! streams of notifications.

use serde_json::{Value, json};
use testkit::{Collector, FakeBackend, eventually};

use super::{Modern, VERSION, meta};
use crate::configured;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CLIENT_SPAN: &str = "b7ad6b7169203331";

fn traced(mut params: Value) -> Value {
    params["_meta"] = meta(json!({}));
    params["_meta"]["traceparent"] = json!(format!("00-{TRACE}-{CLIENT_SPAN}-01"));
    params
}

#[tokio::test]
async fn a_request_answered_by_the_broker_has_a_span() {
    let (collector, backend) = (Collector::start().await, FakeBackend::echo().await);
    let traces = json!({"endpoint": collector.endpoint(), "trusted": ["*"], "ratio": 0});
    let broker = configured(json!({"telemetry": {"traces": traces}}), backend.spec()).await;
    let client = Modern::of(&broker, "/mcp");
    client.result("server/discover", traced(json!({}))).await;
    client.result("tools/list", traced(json!({}))).await;
    let _open = client
        .post(
            json!(7),
            "subscriptions/listen",
            traced(json!({"notifications": {"toolsListChanged": true}})),
        )
        .await;
    let refused = client.error("prompts/list", traced(json!({"cursor": "of nobody"}))).await;
    client.result("tools/call", traced(json!({"name": "b__echo", "arguments": {}}))).await;
    let spans = collector.trace(TRACE, "all spans", |spans| spans.len() >= 6).await;
    let mut named: Vec<(&str, &str, &str)> = spans
        .iter()
        .map(|span| (span.kind.as_str(), span.name.as_str(), span.attribute("error.type")))
        .collect();
    named.sort_unstable();
    let kind = refused["data"]["kind"].as_str().unwrap();
    let expected = [
        ("CLIENT", "tools/call b__echo", ""),
        ("SERVER", "prompts/list", kind),
        ("SERVER", "server/discover", ""),
        ("SERVER", "subscriptions/listen", ""),
        ("SERVER", "tools/call b__echo", ""),
        ("SERVER", "tools/list", ""),
    ];
    assert_eq!(named, expected, "{spans:#?}");
    for span in spans.iter().filter(|span| span.kind == "SERVER") {
        assert_eq!(span.parent, CLIENT_SPAN, "{span:#?}");
        let conventions = (
            span.attribute("mcp.protocol.version"),
            span.attribute("network.transport"),
            span.attribute("mcp_broker.tenant"),
        );
        if !span.name.starts_with("tools/call") {
            assert_eq!(conventions, (VERSION, "tcp", "default"), "{span:#?}");
            assert_eq!(
                (span.attribute("mcp.method.name"), span.attribute("mcp.session.id")),
                (span.name.as_str(), ""),
                "{span:#?}"
            );
        }
    }
    let failed = spans.iter().find(|span| span.failed).expect("the one that was refused");
    assert_eq!(failed.attribute("mcp_broker.request_id"), refused["data"]["requestId"]);
}

#[tokio::test]
async fn discovery_and_streams_are_in_the_audit_log_and_lists_are_not() {
    let backend = FakeBackend::echo().await;
    let broker = configured(json!({"audit": {"calls": "metadata"}}), backend.spec()).await;
    let client = Modern::of(&broker, "/mcp");
    client.result("tools/list", json!({})).await;
    client.result("server/discover", json!({})).await;
    let _open = client
        .post(
            json!(7),
            "subscriptions/listen",
            json!({"notifications": {"toolsListChanged": true}}),
        )
        .await;
    client.error("subscriptions/listen", json!({})).await;
    let records = eventually("three records", || async {
        let (_, answer) = broker.admin().get("/admin/v1/audit?kind=call&limit=100").await;
        let records = answer["records"].as_array().unwrap().clone();
        if records.len() >= 3 { Ok(records) } else { Err(records) }
    })
    .await;
    let recorded: Vec<(&str, &str)> = records
        .iter()
        .map(|record| (record["action"].as_str().unwrap(), record["outcome"].as_str().unwrap()))
        .collect();
    assert_eq!(
        recorded,
        [
            ("server/discover", "ok"),
            ("subscriptions/listen", "ok"),
            ("subscriptions/listen", "refused")
        ],
        "{records:?}"
    );
    for record in &records {
        assert_eq!(
            (&record["principal"], &record["transport"]),
            (&json!("anonymous"), &json!("http")),
            "{record}"
        );
        assert!(record.get("session").is_none_or(Value::is_null), "{record}");
    }
}
