//! The kit against itself: a fake client connected directly to a fake backend.

use serde_json::json;
use testkit::{FakeBackend, Gate, HttpVersion, Reply, TestClient, backend};

fn client(of: &FakeBackend) -> TestClient {
    TestClient::new(of.address(), "/mcp")
}

#[tokio::test]
async fn a_call_is_answered_as_json_and_recorded() {
    let backend = FakeBackend::echo().await;
    let client = client(&backend).connected(json!({})).await;
    assert_eq!(client.tool_names().await, ["echo"]);
    let mut call = client.start_call("echo", json!({"a": 1}));
    let answer = call.finish().await;
    assert_eq!(answer.value["result"]["content"][0]["text"], r#"{"a":1}"#);
    assert_eq!(call.status, Some((200, false)));
    let seen = backend.wait_for("the call", |seen| seen.calls("echo")).await;
    assert_eq!(seen.header("mcp-protocol-version"), Some("2025-11-25"));
    assert_eq!(backend.count(|seen| seen.is("notifications/initialized")), 1);
}

#[tokio::test]
async fn http2_without_tls_works() {
    let backend = FakeBackend::echo().await;
    let client = client(&backend).http(HttpVersion::Http2).connected(json!({})).await;
    let calls: Vec<_> = (0..20).map(|n| client.start_call("echo", json!({"n": n}))).collect();
    for (n, call) in calls.into_iter().enumerate() {
        assert_eq!(call.result().await["content"][0]["text"], json!({"n": n}).to_string());
    }
}

#[tokio::test]
async fn a_handler_sends_progress_and_questions_on_its_stream() {
    let backend = FakeBackend::with_tool("ask", |call| async move {
        call.progress(1.0, 2.0).await;
        let answer = call.request("roots/list", json!({})).await;
        Reply::text(&answer["result"].to_string())
    })
    .await;
    let client = client(&backend)
        .answers(|method, _| Ok(json!({"roots": [], "asked": method})))
        .connected(json!({"roots": {}}))
        .await;
    let mut call =
        client.start_request("tools/call", json!({"name": "ask", "_meta": {"progressToken": "t"}}));
    let answer = call.finish().await;
    assert_eq!(
        answer.value["result"]["content"][0]["text"],
        r#"{"asked":"roots/list","roots":[]}"#
    );
    let methods: Vec<_> = call.before.iter().filter_map(|message| message.method()).collect();
    assert_eq!(methods, ["notifications/progress", "roots/list"]);
    assert_eq!(call.before[0].value["params"]["progressToken"], "t");
}

#[tokio::test]
async fn a_cut_stream_is_resumed_by_get() {
    let backend = FakeBackend::with_tool("cut", |call| async move {
        call.raw("id: e1\ndata:\n\n").await;
        call.raw("retry: 10\n\n").await;
        call.end_until_resumed("e1").await;
        Reply::text("after")
    })
    .await;
    let client = client(&backend).connected(json!({})).await;
    let body =
        json!({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": {"name": "cut"}})
            .to_string();
    let events = client.post_stream(body).await.rest().await;
    assert!(events[0].is_priming());
    assert_eq!(events[1].retry, Some(10));
    let (_, message) = client.resume("e1").await.next_message().await.expect("the answer");
    assert_eq!(message["result"], backend::text("after"));
}

#[tokio::test]
async fn sessions_are_issued_required_and_forgotten() {
    let backend = FakeBackend::echo().await;
    backend.sessions();
    let client = client(&backend).connected(json!({})).await;
    assert_eq!(client.session().as_deref(), Some("fake-session-1"));
    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}).to_string();
    assert_eq!(client.fresh().post(ping.clone()).await.status, 400);
    backend.forget_sessions();
    assert_eq!(client.post(ping).await.status, 404);
}

#[tokio::test]
async fn get_streams_carry_pushed_messages() {
    let backend = FakeBackend::start().await;
    let client = client(&backend).connected(json!({})).await;
    let mut events = client.open_get_stream().await;
    backend.wait_get_streams(1).await;
    assert_eq!(backend.notify("notifications/tools/list_changed", json!({})).await, 1);
    let (_, message) = events.next_message().await.expect("a message");
    assert_eq!(message["method"], "notifications/tools/list_changed");
    backend.end_get_streams().await;
    assert!(events.next().await.is_none());
}

#[tokio::test]
async fn a_handler_is_notified_when_its_call_is_dropped() {
    let (entered, dropped) = (Gate::new(), Gate::new());
    let gates = (entered.clone(), dropped.clone());
    let backend = FakeBackend::with_tool("hang", move |call| {
        let (entered, dropped) = gates.clone();
        async move {
            entered.open();
            call.client_disconnected().await;
            dropped.open();
            Reply::Hang
        }
    })
    .await;
    let client = client(&backend).connected(json!({})).await;
    let call = client.start_call("hang", json!({}));
    testkit::within("the call", entered.passed()).await;
    drop(call);
    testkit::within("the end of the call", dropped.passed()).await;
}

#[tokio::test]
async fn lists_are_paged() {
    let backend = FakeBackend::start().await;
    backend.list("tools", (0..7).map(|n| backend::tool(&format!("t{n}"))).collect()).page_size(3);
    let client = client(&backend).connected(json!({})).await;
    assert_eq!(client.tool_names().await.len(), 7);
    assert_eq!(backend.recorded_of("tools/list").len(), 3);
    assert_eq!(client.error("tools/list", json!({"cursor": "x"})).await["code"], -32602);
}

#[tokio::test]
async fn a_dead_backend_refuses_connections() {
    let backend = FakeBackend::echo().await;
    let client = client(&backend);
    backend.die().await;
    assert!(client.try_send("POST", &[], bytes::Bytes::new()).await.is_err());
}

#[tokio::test]
async fn a_raw_answer_passes_byte_for_byte() {
    let backend = FakeBackend::with_tool("raw", |_| async {
        Reply::ResultText(r#"{ "n":1.0e2 , "s":"\u00e9" }"#.to_owned())
    })
    .await;
    let client = client(&backend).connected(json!({})).await;
    let answer = client.start_call("raw", json!({})).response().await;
    assert!(answer.text.ends_with(r#""result":{ "n":1.0e2 , "s":"\u00e9" }}"#), "{}", answer.text);
}
