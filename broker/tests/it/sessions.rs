//! Sessions of clients: their ids, who may use them, and their end.

use std::collections::BTreeSet;

use serde_json::json;
use testkit::{FakeBackend, Gate, Reply, eventually, within};
use tokio::{io::AsyncWriteExt as _, net::TcpStream};

use crate::{
    broker_with, builder, configured, configured_alone, echo, initialize_body, kind, refused,
    request, text_of,
};

#[tokio::test]
async fn ses_01_ses_02_session_ids_are_long_visible_and_never_the_same() {
    let (broker, _backend) = echo().await;
    let mut ids = BTreeSet::new();
    for _ in 0..100 {
        let client = broker.client("/mcp");
        client.initialize_only("2025-11-25", json!({})).await;
        let id = client.session().expect("a session id comes with the initialize result");
        assert!(id.len() >= 22 && id.bytes().all(|byte| (0x21..=0x7e).contains(&byte)), "{id:?}");
        ids.insert(id);
    }
    assert_eq!(ids.len(), 100);
}

#[tokio::test]
async fn ses_03_a_request_without_a_session_id_is_400() {
    let (broker, _backend) = echo().await;
    let client = broker.connected(json!({})).await;
    let without = client.fresh();
    for body in [
        request(1, "tools/list", json!({})),
        json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string(),
    ] {
        let (status, error) = refused(without.post(body).await).await;
        assert_eq!((status, kind(&error)), (400, "session_required"));
    }
    assert_eq!(without.get_stream_raw(None).await.status, 400);
    assert_eq!(without.delete_session().await, 400);
}

#[tokio::test]
async fn ses_04_an_unknown_session_is_404_on_every_method() {
    let (broker, _backend) = echo().await;
    let client = broker.client("/mcp");
    let (short, long) = ("x".to_owned(), "y".repeat(4000));
    for id in [short.as_str(), "00000000-0000-0000-0000-000000000000", &long, "a b"] {
        client.set_session(Some(id));
        let (status, error) = refused(client.post(request(1, "ping", json!({}))).await).await;
        assert_eq!((status, kind(&error)), (404, "session_not_found"), "{id}");
        assert_eq!(client.get_stream_raw(None).await.status, 404, "{id}");
        assert_eq!(client.delete_session().await, 404, "{id}");
    }
}

#[tokio::test]
async fn ses_04_a_deleted_session_is_404_on_every_method() {
    let (broker, _backend) = echo().await;
    let client = broker.connected(json!({})).await;
    assert!((200..300).contains(&client.delete_session().await));
    assert_eq!(client.post(request(1, "ping", json!({}))).await.status, 404);
    assert_eq!(client.get_stream_raw(None).await.status, 404);
    assert_eq!(client.delete_session().await, 404);
}

#[tokio::test]
async fn ses_05_delete_ends_streams_cancels_calls_and_closes_the_backend_session() {
    let (entered, left) = (Gate::new(), Gate::new());
    let gates = (entered.clone(), left.clone());
    let backend = FakeBackend::with_tool("hang", move |call| {
        let (entered, left) = gates.clone();
        async move {
            entered.open();
            call.client_disconnected().await;
            left.open();
            Reply::Hang
        }
    })
    .await;
    backend.sessions();
    let broker = broker_with(&backend).await;
    let before = backend.live_sessions().len();
    let client = broker.connected(json!({})).await;
    let mut stream = client.open_get_stream().await;
    let mut call = client.start_call("b__hang", json!({}));
    within("the call at the backend", entered.passed()).await;
    let wire_id =
        backend.wait_for("the call", |seen| seen.calls("hang")).await.message["id"].clone();
    backend.wait_live_sessions(|count| count == before + 1).await;
    assert!((200..300).contains(&client.delete_session().await));
    while stream.next().await.is_some() {}
    while call.next_or_end().await.is_some_and(|message| !message.is_response()) {}
    let cancel = backend.wait_for("the cancel", |seen| seen.is("notifications/cancelled")).await;
    assert_eq!(cancel.message["params"]["requestId"], wire_id);
    backend.wait_for("the backend's session closed", |seen| seen.http == "DELETE").await;
    backend.wait_live_sessions(|count| count == before).await;
}

#[tokio::test]
async fn ses_05_a_call_in_flight_is_answered_when_an_operator_ends_the_session() {
    let backend = FakeBackend::with_tool("hang", |_| async { Reply::Hang }).await;
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let call = client.start_call("b__hang", json!({}));
    let seen = backend.wait_for("the call", |seen| seen.calls("hang")).await;
    let sessions = broker.admin().sessions("default").await;
    let path = format!("/admin/v1/sessions/{}", sessions[0]["id"].as_str().unwrap());
    assert_eq!(broker.admin().delete(&path).await.0, 204);
    assert_eq!(kind(&call.error().await), "outcome_unknown");
    let cancel = backend.wait_for("the cancel", |seen| seen.is("notifications/cancelled")).await;
    assert_eq!(cancel.message["params"]["requestId"], seen.message["id"]);
    assert_eq!(client.post(request(1, "ping", json!({}))).await.status, 404);
}

#[tokio::test]
async fn ses_05_a_wait_for_a_task_is_answered_when_an_operator_ends_the_session() {
    let backend = FakeBackend::with_tool("hang", |_| async { Reply::Hang }).await;
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let params = json!({"name": "b__hang", "arguments": {}, "task": {}});
    let created = client.result("tools/call", params).await;
    let wait = client.start_request("tasks/result", json!({"taskId": created["task"]["taskId"]}));
    let admin = broker.admin();
    admin.wait_metric("mcp_requests_pending", &[], |pending| pending == 1.0).await;
    let sessions = admin.sessions("default").await;
    let path = format!("/admin/v1/sessions/{}", sessions[0]["id"].as_str().unwrap());
    assert_eq!(admin.delete(&path).await.0, 204);
    assert_eq!(kind(&wait.error().await), "outcome_unknown");
}

#[tokio::test]
async fn ses_05_the_end_of_a_session_unsubscribes_at_the_backend() {
    let backend = FakeBackend::echo().await;
    backend.list("resources", vec![json!({"uri": "test://one", "name": "one"})]);
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    client.result("resources/subscribe", json!({"uri": "b+test://one"})).await;
    backend.wait_for("the subscription", |seen| seen.is("resources/subscribe")).await;
    client.delete_session().await;
    let seen = backend
        .wait_for("the end of the subscription", |seen| seen.is("resources/unsubscribe"))
        .await;
    assert_eq!(seen.message["params"]["uri"], "test://one");
}

#[tokio::test]
async fn ses_06_a_session_of_another_principal_is_reported_as_absent() {
    let backend = FakeBackend::echo().await;
    let broker = builder()
        .auth_required()
        .tenant("other")
        .backend("default", "b", backend.spec())
        .start()
        .await;
    let admin = broker.admin();
    let (own, same_tenant, other_tenant) = (
        admin.create_key("default").await,
        admin.create_key("default").await,
        admin.create_key("other").await,
    );
    let client = broker.client("/mcp").bearer(&own).connected(json!({})).await;
    let session = client.session().unwrap();
    for key in [&same_tenant, &other_tenant] {
        let thief = broker.client("/mcp").bearer(key);
        thief.set_session(Some(&session));
        let (status, error) = refused(thief.post(request(1, "tools/list", json!({}))).await).await;
        let stranger = broker.client("/mcp").bearer(key);
        stranger.set_session(Some("no-such-session"));
        let (absent_status, absent) =
            refused(stranger.post(request(1, "tools/list", json!({}))).await).await;
        assert_eq!(
            (status, kind(&error), &error["message"]),
            (absent_status, kind(&absent), &absent["message"])
        );
        assert_eq!(
            (status, thief.get_stream_raw(None).await.status, thief.delete_session().await),
            (404, 404, 404)
        );
    }
    let without = broker.client("/mcp");
    without.set_session(Some(&session));
    assert_eq!(without.post(request(1, "ping", json!({}))).await.status, 401);
    assert_eq!(client.tool_names().await, ["b__echo"], "the session is unharmed");
}

#[tokio::test]
async fn ses_06_a_session_belongs_to_its_endpoint() {
    let backend = FakeBackend::echo().await;
    let broker = builder()
        .backend("default", "b", backend.spec())
        .backend("default", "c", backend.spec())
        .start()
        .await;
    let client = broker.client("/mcp/b").connected(json!({})).await;
    let elsewhere = broker.client("/mcp/c");
    elsewhere.set_session(client.session().as_deref());
    assert_eq!(elsewhere.post(request(1, "tools/list", json!({}))).await.status, 404);
    assert_eq!(client.tool_names().await, ["echo"]);
}

#[tokio::test]
async fn ses_07_an_idle_session_expires() {
    let backend = FakeBackend::echo().await;
    let broker = configured(json!({"session": {"idle": "300ms"}}), backend.spec()).await;
    let client = broker.connected(json!({})).await;
    let admin = broker.admin();
    eventually("the session's expiry", || async {
        let sessions = admin.sessions("default").await;
        if sessions.is_empty() { Ok(()) } else { Err(sessions) }
    })
    .await;
    assert_eq!(client.post(request(1, "ping", json!({}))).await.status, 404);
}

#[tokio::test]
async fn ses_07_a_session_with_an_open_stream_is_not_idle() {
    let backend = FakeBackend::echo().await;
    let config = json!({"session": {"idle": "300ms"}, "events": {"keepalive": "100ms"}});
    let broker = configured(config, backend.spec()).await;
    let client = broker.connected(json!({})).await;
    let _stream = client.open_get_stream().await;
    let other = broker.connected(json!({})).await;
    let admin = broker.admin();
    // The other session is the clock: it was used later and expires by the same rule.
    eventually("the other session's expiry", || async {
        let sessions = admin.sessions("default").await;
        if sessions.len() == 1 { Ok(()) } else { Err(sessions.len()) }
    })
    .await;
    assert_eq!(other.post(request(1, "ping", json!({}))).await.status, 404);
    assert_eq!(client.post(request(1, "ping", json!({}))).await.status, 200);
}

#[tokio::test]
async fn ses_07_a_session_is_idle_from_the_end_of_its_last_stream() {
    let backend = FakeBackend::echo().await;
    let config = json!({"session": {"idle": "5s"}, "events": {"keepalive": "100ms"}});
    let broker = configured_alone(config, backend.spec()).await;
    let client = broker.connected(json!({})).await;
    let stream = client.open_get_stream().await;
    let admin = broker.admin();
    let silent = async |least: u64| {
        eventually("a longer silence of the client", || async {
            let sessions = admin.sessions("default").await;
            let silent = sessions.first().and_then(|session| session["idle_seconds"].as_u64());
            if silent >= Some(least) { Ok(()) } else { Err(sessions) }
        })
        .await;
    };
    silent(7).await;
    drop(stream);
    // The session is listed for longer than housekeeping needs to end it.
    silent(9).await;
    assert_eq!(client.post(request(1, "ping", json!({}))).await.status, 200);
}

#[tokio::test]
async fn ses_08_same_ids_and_tokens_in_two_sessions_never_cross() {
    let backend = FakeBackend::with_tool("who", |call| async move {
        let who = call.arguments()["who"].as_u64().unwrap();
        for step in 1..=5 {
            let params = json!({"progressToken": call.progress_token(), "progress": step, "message": who.to_string()});
            call.notify("notifications/progress", params).await;
        }
        Reply::text(&who.to_string())
    })
    .await;
    let broker = broker_with(&backend).await;
    let clients = [broker.connected(json!({})).await, broker.connected(json!({})).await];
    for round in 0..20 {
        let calls = [0, 1].map(|who| {
            let params =
                json!({"name": "b__who", "arguments": {"who": who}, "_meta": {"progressToken": 1}});
            clients[who].start_request_with_id(json!(round), "tools/call", params)
        });
        for (who, mut call) in calls.into_iter().enumerate() {
            let answer = call.finish().await;
            assert_eq!(text_of(&answer.value["result"]), who.to_string());
            for message in &call.before {
                assert_eq!(message.value["params"]["message"], who.to_string(), "{}", message.text);
                assert_eq!(message.value["params"]["progressToken"], 1);
            }
        }
    }
}

#[tokio::test]
async fn sessions_over_the_limit_are_refused_with_429() {
    let backend = FakeBackend::echo().await;
    let broker = configured(json!({"limits": {"sessions_per_tenant": 2}}), backend.spec()).await;
    let first = broker.connected(json!({})).await;
    let _second = broker.connected(json!({})).await;
    let (status, error) =
        refused(broker.client("/mcp").post(initialize_body("2025-11-25")).await).await;
    assert_eq!(
        (status, kind(&error), error["code"].as_i64()),
        (429, "too_many_sessions", Some(1003))
    );
    assert_eq!(error["data"]["retryable"], true);
    first.delete_session().await;
    broker.connected(json!({})).await;
}

#[tokio::test]
async fn the_admin_api_shows_digests_and_ends_a_session() {
    let (broker, _backend) = echo().await;
    let client = broker.connected(json!({})).await;
    let sessions = broker.admin().sessions("default").await;
    assert_eq!(sessions.len(), 1, "{sessions:?}");
    let id = sessions[0]["id"].as_str().unwrap();
    assert_ne!(Some(id), client.session().as_deref(), "the id itself is the client's secret");
    assert_eq!(sessions[0]["client_name"], "testkit");
    assert_eq!(sessions[0]["protocol_version"], "2025-11-25");
    let (status, _) = broker.admin().get(&format!("/admin/v1/sessions/{id}")).await;
    assert_eq!(status, 200);
    let (status, _) = broker.admin().delete(&format!("/admin/v1/sessions/{id}")).await;
    assert!((200..300).contains(&status), "{status}");
    assert_eq!(client.post(request(1, "ping", json!({}))).await.status, 404);
    // No client is served any more; the row is deleted a moment later.
    broker.admin().wait_sessions("default", 0).await;
    assert_eq!(broker.admin().get(&format!("/admin/v1/sessions/{id}")).await.0, 404);
}

/// A client that closes its connection right after the DELETE has ended its session.
#[tokio::test]
async fn a_client_that_hangs_up_after_a_delete_leaves_no_session() {
    let (broker, _backend) = echo().await;
    for _ in 0..40 {
        let client = broker.client("/mcp");
        client.initialize_only("2025-11-25", json!({})).await;
        let session = client.session().unwrap();
        let mut socket = TcpStream::connect(broker.http_address()).await.unwrap();
        let delete = format!(
            "DELETE /mcp HTTP/1.1\r\nHost: localhost\r\nMcp-Session-Id: {session}\r\nMCP-Protocol-Version: 2025-11-25\r\n\r\n"
        );
        socket.write_all(delete.as_bytes()).await.unwrap();
    }
    broker.admin().wait_sessions("default", 0).await;
}
