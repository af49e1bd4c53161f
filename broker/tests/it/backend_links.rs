//! Links to HTTP backends: the sessions that share one, the messages it carries, and the end of its
//! backend session.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use serde_json::json;
use testkit::{FakeBackend, Gate, RecordedRequest, Reply, TestClient, eventually};

use crate::{alone_with, broker_with, builder, text_of};

/// Returns the requests of the backend session that carried `wanted`.
fn session_of(
    seen: &[RecordedRequest],
    wanted: impl Fn(&RecordedRequest) -> bool,
) -> Vec<RecordedRequest> {
    let session = seen
        .iter()
        .find(|seen| wanted(seen))
        .and_then(|seen| seen.header("mcp-session-id"))
        .unwrap()
        .to_owned();
    seen.iter().filter(|seen| seen.header("mcp-session-id") == Some(&session)).cloned().collect()
}

#[tokio::test]
async fn b_http_03_b_http_06_session_and_version_are_on_every_later_request() {
    let backend = FakeBackend::echo().await;
    backend.sessions().version("2025-06-18");
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    client.call("b__echo", json!({})).await;
    client.delete_session().await;
    backend.wait_for("DELETE", |seen| seen.http == "DELETE").await;
    // The broker probes the era before there is a session, with a request of the other era.
    for seen in backend.recorded().iter().filter(|seen| !seen.is("server/discover")) {
        if seen.is("initialize") {
            assert_eq!(seen.header("mcp-session-id"), None);
        } else {
            assert!(
                seen.header("mcp-session-id").is_some_and(|id| id.starts_with("fake-session-")),
                "{} {:?}",
                seen.http,
                seen.method()
            );
            assert_eq!(
                seen.header("mcp-protocol-version"),
                Some("2025-06-18"),
                "{} {:?}",
                seen.http,
                seen.method()
            );
        }
    }
    let of_call = session_of(&backend.recorded(), |seen| seen.calls("echo"));
    assert!(of_call.iter().any(|seen| seen.http == "DELETE"), "the session of the call was closed");
}

#[tokio::test]
async fn b_http_04_a_lost_backend_session_is_reopened_and_the_call_repeated() {
    let backend = FakeBackend::echo().await;
    backend.sessions().list("resources", vec![json!({"uri": "test://one", "name": "one"})]);
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    client.result("resources/subscribe", json!({"uri": "b+test://one"})).await;
    client.call("b__echo", json!({"n": 1})).await;
    backend.forget_sessions();
    assert_eq!(text_of(&client.call("b__echo", json!({"n": 2})).await), r#"{"n":2}"#);
    let after: Vec<RecordedRequest> = backend.recorded();
    let answered = after
        .iter()
        .filter(|seen| seen.calls("echo") && seen.message["params"]["arguments"]["n"] == 2)
        .count();
    assert_eq!(answered, 2, "refused with 404 once, then repeated");
    backend.wait_count("the subscription again", 2, |seen| seen.is("resources/subscribe")).await;
}

/// Servers with older SDKs, and with the code of examples, so refuse a session that they do not know.
#[tokio::test]
async fn b_http_04_a_lost_session_with_another_status_is_reopened_too() {
    for (status, refusal) in [
        (400, "Bad Request: No valid session ID provided"),
        (400, "Invalid session ID\n"),
        (
            400,
            r#"{"jsonrpc":"2.0","id":"server-error","error":{"code":-32600,"message":"Session not found"}}"#,
        ),
        (
            400,
            r#"{"jsonrpc":"2.0","id":@ID@,"error":{"code":-32000,"message":"Bad Request: No valid session ID provided"}}"#,
        ),
        (401, "Unauthorized: Session not found"),
    ] {
        let backend = FakeBackend::start().await;
        let knows = AtomicBool::new(false);
        backend.tool("echo", move |call| {
            let is_known = knows.swap(true, Ordering::Relaxed);
            let body = refusal.replace("@ID@", &call.id().to_string());
            async move {
                match is_known {
                    true => Reply::text("again"),
                    false => Reply::Http { status, headers: vec![], body: body.into() },
                }
            }
        });
        backend.sessions();
        let broker = broker_with(&backend).await;
        let client = broker.connected(json!({})).await;
        assert_eq!(text_of(&client.call("b__echo", json!({})).await), "again", "{refusal}");
        let seen = backend.recorded();
        let mut calls = seen.iter().filter(|seen| seen.calls("echo"));
        let mut session = || calls.next().and_then(|seen| seen.header("mcp-session-id"));
        assert_ne!(session(), session(), "{refusal}");
    }
}

#[tokio::test]
async fn b_http_05_delete_refused_with_405_is_tolerated() {
    let backend = FakeBackend::echo().await;
    backend.sessions().no_delete();
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    client.call("b__echo", json!({})).await;
    client.delete_session().await;
    backend.wait_for("DELETE", |seen| seen.http == "DELETE").await;
    assert_eq!(broker.connected(json!({})).await.tool_names().await, ["b__echo"]);
}

#[tokio::test]
async fn auth_07_a_clients_key_never_reaches_a_backend() {
    let backend = FakeBackend::echo().await;
    let broker = builder().auth_required().backend("default", "b", backend.spec()).start().await;
    let key = broker.admin().create_key("default").await;
    let client = broker
        .client("/mcp")
        .bearer(&key)
        .header("cookie", "c=1")
        .header("x-forwarded-for", "1.2.3.4")
        .connected(json!({}))
        .await;
    client.call("b__echo", json!({})).await;
    for seen in backend.recorded() {
        assert!(
            ["authorization", "cookie", "x-forwarded-for", "origin"]
                .iter()
                .all(|name| seen.header(name).is_none()),
            "{:?}",
            seen.headers
        );
    }
}

#[tokio::test]
async fn sessions_of_a_backend_without_session_ids_share_one_link() {
    let backend = FakeBackend::echo().await;
    let broker = alone_with(&backend).await;
    let clients = [
        broker.connected(json!({})).await,
        broker.connected(json!({})).await,
        broker.connected(json!({})).await,
    ];
    for client in &clients {
        client.call("b__echo", json!({})).await;
    }
    let handshakes = backend.recorded_of("initialize").len();
    assert!(handshakes <= 2, "the catalog's link and one shared link, not {handshakes}");
}

#[tokio::test]
async fn a_backend_that_issues_session_ids_gets_one_session_per_client_session() {
    let backend = FakeBackend::with_tool("who", |call| async move {
        Reply::text(call.session.as_deref().unwrap_or("none"))
    })
    .await;
    backend.sessions();
    let broker = broker_with(&backend).await;
    let clients = [broker.connected(json!({})).await, broker.connected(json!({})).await];
    let mut own = Vec::new();
    for client in &clients {
        let first = text_of(&client.call("b__who", json!({})).await).to_owned();
        assert_eq!(
            text_of(&client.call("b__who", json!({})).await),
            first,
            "the same one for the same client"
        );
        own.push(first);
    }
    assert_ne!(own[0], own[1]);
}

#[tokio::test]
async fn a_hundred_calls_at_once_each_get_their_own_answer() {
    let gate = Gate::new();
    let wait = gate.clone();
    let backend = FakeBackend::with_tool("n", move |call| {
        let wait = wait.clone();
        async move {
            wait.passed().await;
            Reply::text(&call.arguments()["n"].to_string())
        }
    })
    .await;
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let calls: Vec<_> = (0..100).map(|n| client.start_call("b__n", json!({"n": n}))).collect();
    backend.wait_count("all calls", 100, |seen| seen.calls("n")).await;
    gate.open();
    for (n, call) in calls.into_iter().enumerate() {
        assert_eq!(text_of(&call.result().await), n.to_string());
    }
}

#[tokio::test]
async fn d3_shared_and_per_session_links_are_as_configured() {
    for (links, sharing) in [("shared", true), ("per-session", false)] {
        let backend = FakeBackend::with_tool("who", |call| async move {
            Reply::text(call.session.as_deref().unwrap_or("none"))
        })
        .await;
        backend.sessions();
        let mut spec = backend.spec();
        spec["links"] = json!(links);
        let broker = builder().backend("default", "b", spec).start().await;
        let clients =
            [broker.connected(json!({})).await, broker.connected(json!({"roots": {}})).await];
        let own = [
            text_of(&clients[0].call("b__who", json!({})).await).to_owned(),
            text_of(&clients[1].call("b__who", json!({})).await).to_owned(),
        ];
        assert_eq!(own[0] == own[1], sharing, "{links}: {own:?}");
    }
}

#[tokio::test]
async fn d3_two_principals_never_share_a_link() {
    let backend = FakeBackend::echo().await;
    let broker = builder()
        .single_process()
        .auth_required()
        .backend("default", "b", backend.spec())
        .start()
        .await;
    let mut handshakes = backend.recorded_of("initialize").len();
    for _ in 0..3 {
        let key = broker.admin().create_key("default").await;
        for _ in 0..2 {
            broker
                .client("/mcp")
                .bearer(&key)
                .connected(json!({}))
                .await
                .call("b__echo", json!({}))
                .await;
        }
        handshakes += 1;
        assert_eq!(backend.recorded_of("initialize").len(), handshakes, "one link per principal");
    }
}

#[tokio::test]
async fn a_cancelled_call_does_not_wait_for_a_handshake_that_hangs() {
    let backend = FakeBackend::echo().await;
    backend.sessions();
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let good = broker.connected(json!({})).await;
    good.call("b__echo", json!({})).await;
    backend.on("initialize", |_| async { Reply::Hang });
    let mut call = client.start_request_with_id(json!(9), "tools/call", json!({"name": "b__echo"}));
    let before = backend.recorded_of("initialize").len();
    backend.wait_count("the handshake", before.max(3), |seen| seen.is("initialize")).await;
    assert_eq!(text_of(&good.call("b__echo", json!({"n": 1})).await), r#"{"n":1}"#, "others go on");
    client.notify("notifications/cancelled", json!({"requestId": 9})).await;
    assert!(call.next_or_end().await.is_none_or(|message| !message.is_response()));
    assert_eq!(client.start_request_with_id(json!(9), "ping", json!({})).result().await, json!({}));
}

#[tokio::test]
async fn calls_that_were_given_up_do_not_open_their_link_in_turn() {
    let backend = FakeBackend::echo().await;
    backend.sessions();
    let spec = json!({"transport": {"type": "http", "url": backend.url()}, "protocol": "legacy"});
    let config = json!({"breaker": {"enabled": false}, "retries": {"enabled": false}});
    let builder = builder().single_process().config(config);
    let broker = builder.backend("default", "b", spec).start().await;
    let client = broker.connected(json!({})).await;
    let handshakes = backend.recorded_of("initialize").len();
    let may_fail = Gate::new();
    backend.on("initialize", may_fail.before(Reply::status(500)));
    let call =
        |id: u64| client.start_request_with_id(json!(id), "tools/call", json!({"name": "b__echo"}));
    let in_flight = async |wanted: usize| {
        eventually("the calls in flight", || async {
            let calls = broker.admin().sessions("default").await[0]["calls_in_flight"].clone();
            if calls == wanted { Ok(()) } else { Err(calls) }
        })
        .await;
    };
    let _given_up: Vec<_> = (900..904).map(call).collect();
    backend.wait_count("the handshake", handshakes + 1, |seen| seen.is("initialize")).await;
    in_flight(4).await;
    for id in 900..904 {
        client.notify("notifications/cancelled", json!({"requestId": id})).await;
    }
    in_flight(0).await;
    may_fail.open();
    client.error("tools/call", json!({"name": "b__echo"})).await;
    let attempts = backend.recorded_of("initialize").len() - handshakes;
    assert_eq!(attempts, 2, "that of the first call, and that of the last");
}

#[tokio::test]
async fn log_04_a_level_set_before_the_first_call_reaches_the_backend_with_its_link() {
    let backend = FakeBackend::echo().await;
    backend.sessions();
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    client.result("logging/setLevel", json!({"level": "debug"})).await;
    client.call("b__echo", json!({})).await;
    let call = backend.wait_for("the call", |seen| seen.calls("echo")).await;
    let session = call.header("mcp-session-id").unwrap();
    let seen = backend
        .wait_for("the level", |seen| {
            seen.is("logging/setLevel") && seen.header("mcp-session-id") == Some(session)
        })
        .await;
    assert_eq!(seen.message["params"]["level"], "debug");
}

#[tokio::test]
async fn a_backend_that_does_not_answer_set_level_gets_the_first_call() {
    let backend = FakeBackend::echo().await;
    backend.sessions();
    backend.on("logging/setLevel", |_| async { Reply::Hang });
    let spec = json!({
        "transport": {"type": "http", "url": backend.url()},
        "timeouts": {"control": "10m"},
    });
    let broker = builder().backend("default", "b", spec).start().await;
    let client = broker.connected(json!({})).await;
    client.result("logging/setLevel", json!({"level": "debug"})).await;
    client.call("b__echo", json!({})).await;
    backend.wait_for("the level", |seen| seen.is("logging/setLevel")).await;
}

#[tokio::test]
async fn the_levels_of_sessions_that_share_a_link_wait_for_one_silent_request() {
    let backend = FakeBackend::echo().await;
    let spec = json!({
        "transport": {"type": "http", "url": backend.url()},
        "timeouts": {"control": "1s"},
    });
    let broker = builder().single_process().backend("default", "b", spec).start().await;
    let mut clients = Vec::new();
    for _ in 0..12 {
        let client = broker.connected(json!({})).await;
        client.call("b__echo", json!({})).await;
        clients.push(client);
    }
    backend.on("logging/setLevel", |_| async { Reply::Hang });
    let begun = Instant::now();
    let set = |client| TestClient::result(client, "logging/setLevel", json!({"level": "error"}));
    futures_util::future::join_all(clients.iter().map(set)).await;
    let elapsed = begun.elapsed();
    assert!(elapsed < Duration::from_secs(6), "one request after the other: {elapsed:?}");
    backend.on("logging/setLevel", |_| async { Reply::Result(json!({})) });
    clients[0].result("logging/setLevel", json!({"level": "warning"})).await;
    backend
        .wait_for("the newest level", |seen| {
            seen.is("logging/setLevel") && seen.message["params"]["level"] == "warning"
        })
        .await;
    let sent = backend.recorded().iter().filter(|seen| seen.is("logging/setLevel")).count();
    assert!(sent <= 5, "{sent} requests for 13 changes");
}
