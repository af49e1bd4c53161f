//! The era of a backend: detected, remembered, and detected again, by each process for itself.

use serde_json::{Value, json};
use testkit::{FakeBackend, PipeBackend, Reply, StatelessBackend, StatelessReply};

use super::broker_with;
use crate::{builder, stdio, text_of};

async fn revision(broker: &testkit::TestBroker) -> Value {
    broker.connected(json!({})).await;
    broker.admin().backend("default", "b").await["protocol_version"].clone()
}

#[tokio::test]
async fn nb_era_01_nb_era_02_a_backend_is_used_after_any_error_to_discover() {
    for (what, code) in [
        ("unknown method", -32601),
        ("invalid params", -32602),
        ("invalid request", -32600),
        ("server error", -32000),
    ] {
        let backend = FakeBackend::echo().await;
        backend.on("server/discover", move |_| async move { Reply::error(code, "what?") });
        let broker = crate::broker_with(&backend).await;
        assert_eq!(revision(&broker).await, "2025-11-25", "{what}");
    }
    for status in [400, 404, 405, 500, 501] {
        let backend = FakeBackend::echo().await;
        backend.on("server/discover", move |_| async move { Reply::status(status) });
        let broker = crate::broker_with(&backend).await;
        assert_eq!(revision(&broker).await, "2025-11-25", "{status}");
    }
}

#[tokio::test]
async fn nb_era_01_a_backend_that_ignores_discover_is_used_with_sessions() {
    let backend = FakeBackend::echo().await;
    backend.on("server/discover", |_| async { Reply::Hang });
    let broker = builder().backend("default", "b", backend.spec()).start().await;
    broker.admin().wait_backend_state("default", "b", "ready").await;
    assert_eq!(revision(&broker).await, "2025-11-25");
}

#[tokio::test]
async fn nb_era_01_the_era_of_pipes_is_detected_too() {
    let script = stdio();
    let backend = PipeBackend::tcp(&script).await;
    let broker = builder().backend("default", "b", backend.spec()).start().await;
    assert_eq!(revision(&broker).await, "2025-11-25");
    let modern = StatelessBackend::pipe().await;
    assert_eq!(revision(&broker_with(&modern).await).await, "2026-07-28");
    assert_eq!(
        modern.recorded_of("initialize").len(),
        2,
        "it is asked whether it knows sessions too: after the probe, and once before any other request"
    );
}

#[tokio::test]
async fn nb_era_01_a_detected_era_is_cached() {
    let backend = FakeBackend::echo().await;
    backend.sessions(); // a link for each session
    let broker = builder().single_process().backend("default", "b", backend.spec()).start().await;
    for _ in 0..3 {
        broker.connected(json!({})).await.call("b__echo", json!({})).await;
    }
    assert_eq!(
        (backend.recorded_of("server/discover").len(), backend.recorded_of("initialize").len()),
        (1, 4)
    );
}

#[tokio::test]
async fn nb_era_02_a_modern_error_never_leads_to_initialize() {
    for code in [-32020, -32021, -32022] {
        let backend = StatelessBackend::http().await;
        backend.on("server/discover", move |_| async move { StatelessReply::error(code, "no") });
        let broker = builder().start().await;
        broker.admin().put_backend("default", "b", &backend.spec()).await;
        broker.admin().wait_backend_state("default", "b", "failed").await;
        assert!(backend.recorded_of("initialize").is_empty(), "{code}");
    }
}

#[tokio::test]
async fn nb_ver_01_a_backend_that_changes_its_era_is_detected_again() {
    let backend = StatelessBackend::http().await;
    backend.list("tools", vec![testkit::backend::tool("echo")]);
    let broker = builder().single_process().backend("default", "b", backend.spec()).start().await;
    let client = broker.connected(json!({})).await;
    assert_eq!(text_of(&client.call("b__echo", json!({"n": 1})).await), r#"{"n":1}"#);
    // It now refuses 2026-07-28 and names 2025-11-25: the broker chooses that, and makes the call.
    backend.accepts_sessions(true);
    assert_eq!(text_of(&client.call("b__echo", json!({"n": 2})).await), r#"{"n":2}"#);
    broker
        .admin()
        .wait_backend("default", "b", "the older revision", |shown| {
            shown["protocol_version"] == "2025-11-25"
        })
        .await;
    backend.accepts_sessions(false);
    broker
        .admin()
        .put_backend(
            "default",
            "b",
            &json!({"transport": backend.spec()["transport"], "protocol": "modern"}),
        )
        .await;
    broker
        .admin()
        .wait_backend("default", "b", "the newer revision", |shown| {
            shown["protocol_version"] == "2026-07-28"
        })
        .await;
    assert_eq!(text_of(&client.call("b__echo", json!({"n": 3})).await), r#"{"n":3}"#);
}

#[tokio::test]
async fn nb_era_02_an_incomplete_session_handshake_leaves_no_trace_in_2026_07_28() {
    let backend = StatelessBackend::http().await;
    backend.list("tools", vec![testkit::backend::tool("echo")]);
    backend.breaks_off_sessions();
    let broker = builder().single_process().backend("default", "b", backend.spec()).start().await;
    let client = broker.connected(json!({})).await;
    assert_eq!(text_of(&client.call("b__echo", json!({"n": 1})).await), r#"{"n":1}"#);
    let sent = &backend.recorded_of("tools/call")[0];
    assert_eq!(sent.header("mcp-protocol-version"), Some("2026-07-28"));
    assert_eq!(sent.header("mcp-session-id"), None);
}

#[tokio::test]
async fn an_era_configured_by_an_operator_is_used_without_detection() {
    let legacy = FakeBackend::echo().await;
    let mut spec = legacy.spec();
    spec["protocol"] = json!("legacy");
    let broker = builder().backend("default", "b", spec.clone()).start().await;
    assert_eq!(revision(&broker).await, "2025-11-25");
    assert!(legacy.recorded_of("server/discover").is_empty(), "it is not asked");
    spec["protocol"] = json!("modern");
    broker.admin().put_backend("default", "b", &spec).await;
    // Its earlier offer is still listed.
    let shown = broker.admin().wait_backend_state("default", "b", "degraded").await;
    assert!(
        shown["last_error"].as_str().unwrap().contains(
            "the backend does not support MCP 2026-07-28, which its configuration requires"
        ),
        "{shown}"
    );
}

#[tokio::test]
async fn br_01_a_backend_of_both_eras_is_used_in_the_era_of_its_clients() {
    let backend = FakeBackend::echo().await;
    let found = json!({"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "ttlMs": 0, "cacheScope": "private"});
    backend.on("server/discover", move |_| {
        let found = found.clone();
        async move { Reply::Result(found) }
    });
    let broker = crate::alone_with(&backend).await;
    let client = broker.connected(json!({})).await;
    assert_eq!(text_of(&client.call("b__echo", json!({"n": 1})).await), r#"{"n":1}"#);
    assert_eq!(revision(&broker).await, "2025-11-25", "what need not be translated is not");
    assert_eq!(
        backend.recorded_of("server/discover").len(),
        2,
        "and once more when the first client with a session was there"
    );
}

#[tokio::test]
async fn nb_meta_01_a_backend_without_session_clients_gets_no_initialize() {
    let backend = StatelessBackend::http().await;
    backend.list("tools", vec![testkit::backend::tool("echo")]);
    let broker = builder().single_process().backend("default", "b", backend.spec()).start().await;
    let modern = crate::stateless::Modern::at(broker.http_address(), "/mcp", json!({}));
    let call = || modern.result("tools/call", json!({"name": "b__echo", "arguments": {"n": 1}}));
    assert_eq!(text_of(&call().await), r#"{"n":1}"#);
    assert!(
        backend.recorded_of("initialize").is_empty(),
        "it gets what its revision has, and nothing else"
    );
    // The first client with a session makes the broker probe the other era, before it sends any
    // list.
    let client = broker.connected(json!({})).await;
    assert_eq!(backend.recorded_of("initialize").len(), 1);
    assert_eq!(text_of(&client.call("b__echo", json!({"n": 2})).await), r#"{"n":2}"#);
    broker.connected(json!({})).await.call("b__echo", json!({})).await;
    assert_eq!(backend.recorded_of("initialize").len(), 1, "once");
    assert_eq!(text_of(&call().await), r#"{"n":1}"#);
}

#[tokio::test]
async fn one_refused_request_does_not_change_the_era() {
    let backend = StatelessBackend::http().await;
    backend.list("tools", ["slow", "refused"].map(testkit::backend::tool).to_vec());
    let (release, released) = tokio::sync::watch::channel(false);
    backend.tool("slow", move |_| {
        let mut released = released.clone();
        async move {
            released.wait_for(|released| *released).await.unwrap();
            StatelessReply::text("done")
        }
    });
    backend.tool("refused", |_| async { StatelessReply::Refused(400) });
    let broker = builder().single_process().backend("default", "b", backend.spec()).start().await;
    broker.admin().wait_backend_state("default", "b", "ready").await;
    let modern = crate::stateless::Modern::at(broker.http_address(), "/mcp", json!({}));
    let slow = modern.result("tools/call", json!({"name": "b__slow", "arguments": {}}));
    let refused = async {
        backend.wait_for("the slow call", |seen| seen.message["params"]["name"] == "slow").await;
        let asked = backend.recorded_of("server/discover").len();
        for _ in 0..3 {
            let params = json!({"name": "b__refused", "arguments": {}});
            let error = modern.error("tools/call", params).await;
            assert_eq!(error["data"]["kind"], "backend_protocol_error", "{error}");
        }
        assert_eq!(backend.recorded_of("server/discover").len(), asked + 3);
        // A probe that is refused for its rate or its credential shows no change either.
        for status in [429, 401, 403, 503] {
            backend.on("server/discover", move |_| async move { StatelessReply::Refused(status) });
            let params = json!({"name": "b__refused", "arguments": {}});
            let error = modern.error("tools/call", params).await;
            assert_eq!(error["data"]["kind"], "backend_protocol_error", "{status}: {error}");
        }
        release.send_replace(true);
    };
    let (slow, ()) = tokio::join!(slow, refused);
    assert_eq!(text_of(&slow), "done", "the refused requests cost nothing else");
}

#[tokio::test]
async fn nb_ver_01_a_backend_that_no_longer_supports_sessions_is_detected_again() {
    let backend = StatelessBackend::http().await;
    backend.list("tools", vec![testkit::backend::tool("echo")]);
    backend.accepts_sessions(true);
    let broker = builder().single_process().backend("default", "b", backend.spec()).start().await;
    let client = broker.connected(json!({})).await;
    assert_eq!(text_of(&client.call("b__echo", json!({"n": 1})).await), r#"{"n":1}"#);
    assert_eq!(broker.admin().backend("default", "b").await["protocol_version"], "2025-11-25");
    backend.accepts_sessions(false);
    assert_eq!(text_of(&client.call("b__echo", json!({"n": 2})).await), r#"{"n":2}"#);
    let sent = backend.recorded_of("tools/call");
    assert_eq!(sent.last().unwrap().header("mcp-protocol-version"), Some("2026-07-28"));
}

#[tokio::test]
async fn nb_era_02_errors_of_a_backend_with_sessions_are_answers() {
    for (status, code) in [(400, -32022), (400, -32020), (500, -32022), (503, -32020)] {
        let backend = FakeBackend::echo().await;
        let broker = builder().single_process().backend("default", "b", backend.spec());
        let broker = broker.start().await;
        let client = broker.connected(json!({})).await;
        backend.tool("echo", move |call| {
            let error = json!({"code": code, "message": "it is done"});
            let answer = json!({"jsonrpc": "2.0", "id": call.id(), "error": error});
            let headers = vec![("content-type".to_owned(), "application/json".to_owned())];
            async move { Reply::Http { status, headers, body: answer.to_string().into() } }
        });
        let error = client.error("tools/call", json!({"name": "b__echo", "arguments": {}})).await;
        assert_eq!(error["message"], "it is done", "{status} {code}");
        assert_eq!(backend.count(|seen| seen.calls("echo")), 1, "{status} {code}: sent once");
    }
}
