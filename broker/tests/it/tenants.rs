//! Two tenants with everything the same: names, ids, tokens, URIs, cursors, task ids. Neither sees
//! the other's.

use serde_json::{Value, json};
use testkit::{AdminClient, FakeBackend, Reply, TestBroker, TestClient, backend::tool};

use crate::{builder, kind, refused, request, restarts::back, text_of};

const TENANTS: [&str; 2] = ["red", "blue"];

/// Returns a backend that marks all its messages with `mark`.
async fn marked(mark: &'static str) -> FakeBackend {
    let backend = FakeBackend::start().await;
    backend.tool("search", move |call| async move {
        for step in 1..=3 {
            let params =
                json!({"progressToken": call.progress_token(), "progress": step, "message": mark});
            call.notify("notifications/progress", params).await;
        }
        let answer = call
            .request(
                "elicitation/create",
                json!({"message": mark, "requestedSchema": {"type": "object", "properties": {}}}),
            )
            .await;
        Reply::text(&format!(
            "{mark}:{}:{}",
            call.arguments()["who"].as_str().unwrap_or(""),
            answer["result"]["content"]["who"].as_str().unwrap_or("")
        ))
    });
    backend.list("resources", vec![json!({"uri": "test://r", "name": mark})]);
    backend.list(
        "prompts",
        (0..120).map(|n| json!({"name": format!("p{n}"), "description": mark})).collect(),
    );
    backend.on("resources/read", move |call| async move {
        Reply::Result(json!({"contents": [{"uri": call.params()["uri"], "text": mark}]}))
    });
    backend
}

/// Returns a broker with both tenants, the same backend name in each, and one key each.
async fn two_tenants() -> (TestBroker, Vec<FakeBackend>, Vec<String>) {
    let backends = vec![marked("red").await, marked("blue").await];
    let mut builder = builder().auth_required();
    for (tenant, backend) in TENANTS.iter().zip(&backends) {
        builder = builder.tenant(tenant).backend(tenant, "b", backend.spec());
    }
    let broker = builder.start().await;
    let mut keys = Vec::new();
    for tenant in TENANTS {
        keys.push(broker.admin().create_key(tenant).await);
    }
    (broker, backends, keys)
}

fn client(broker: &TestBroker, key: &str, who: &'static str) -> TestClient {
    broker.client("/mcp").bearer(key).answers(move |_, params| {
        assert_eq!(params["message"], who, "a question of the other tenant");
        Ok(json!({"action": "accept", "content": {"who": who}}))
    })
}

#[tokio::test]
async fn sec_05_ses_08_same_names_and_ids_at_the_same_time_never_cross() {
    let (broker, backends, keys) = two_tenants().await;
    let mut workers = Vec::new();
    for (who, key) in TENANTS.into_iter().zip(&keys) {
        for _ in 0..3 {
            let client = client(&broker, key, who).connected(json!({"elicitation": {}})).await;
            workers.push(tokio::spawn(async move {
                let other = if who == "red" { "blue" } else { "red" };
                let mut get = client.open_get_stream().await;
                for id in 0..15 {
                    let params = json!({"name": "b__search", "arguments": {"who": who}, "_meta": {"progressToken": id}});
                    let mut call = client.start_request_with_id(json!(id), "tools/call", params);
                    let answer = call.finish().await;
                    assert_eq!(text_of(&answer.value["result"]), format!("{who}:{who}:{who}"));
                    for message in call.before.iter().chain([&answer]) {
                        assert!(!message.text.contains(other), "{who} got {}", message.text);
                    }
                    for (method, params) in
                        [("resources/list", json!({})), ("prompts/list", json!({})), ("resources/read", json!({"uri": "b+test://r"}))]
                    {
                        let answer = client.start_request_with_id(json!(id), method, params).response().await;
                        assert!(answer.text.contains(who) && !answer.text.contains(other), "{who} got {}", answer.text);
                    }
                }
                client.delete_session().await;
                while let Some(event) = get.next().await {
                    assert!(event.message().is_none(), "{who} got {event:?}");
                }
            }));
        }
    }
    for worker in workers {
        worker.await.unwrap();
    }
    for (who, backend) in ["blue", "red"].into_iter().zip(&backends) {
        for seen in backend.recorded() {
            assert!(
                !String::from_utf8_lossy(&seen.body).contains(who),
                "the other tenant's bytes at a backend: {:?}",
                seen.body
            );
        }
    }
}

#[tokio::test]
async fn sec_05_updates_and_list_changes_stay_in_their_tenant() {
    let (broker, backends, keys) = two_tenants().await;
    let mut streams = Vec::new();
    let mut clients = Vec::new();
    for (who, key) in TENANTS.into_iter().zip(&keys) {
        let client = client(&broker, key, who).connected(json!({})).await;
        streams.push(client.open_get_stream().await);
        client.result("resources/subscribe", json!({"uri": "b+test://r"})).await;
        clients.push(client);
    }
    for backend in &backends {
        backend.wait_get_streams(1).await;
    }
    backends[0].list("tools", vec![tool("search"), tool("red-only")]);
    backends[0].notify("notifications/tools/list_changed", json!({})).await;
    backends[0].notify("notifications/resources/updated", json!({"uri": "test://r"})).await;
    let mut received = Vec::new();
    for _ in 0..2 {
        received.push(
            streams[0].next_message().await.unwrap().1["method"].as_str().unwrap().to_owned(),
        );
    }
    received.sort();
    assert_eq!(received, ["notifications/resources/updated", "notifications/tools/list_changed"]);
    assert_eq!(clients[1].tool_names().await, ["b__search"]);
    clients[1].delete_session().await;
    while let Some(event) = streams[1].next().await {
        assert!(event.message().is_none(), "{event:?}");
    }
}

/// Checks that status and error of a foreign id equal those of one that never existed.
async fn same_as_absent(foreign: (u16, Value), absent: (u16, Value), what: &str) {
    let strip = |(status, mut error): (u16, Value)| {
        if let Some(data) = error["data"].as_object_mut() {
            data.remove("requestId");
        }
        (status, error)
    };
    assert_eq!(strip(foreign), strip(absent), "{what}");
}

#[tokio::test]
async fn sec_05_a_foreign_session_cursor_or_stream_is_reported_as_absent() {
    let (broker, _backends, keys) = two_tenants().await;
    let red = client(&broker, &keys[0], "red").connected(json!({})).await;
    let blue = client(&broker, &keys[1], "blue").connected(json!({})).await;
    let (own_session, red_session) = (blue.session(), red.session());
    let cursor = red.result("prompts/list", json!({})).await["nextCursor"].clone();
    let foreign =
        refused(blue.post(request(1, "prompts/list", json!({"cursor": cursor}))).await).await;
    let absent =
        refused(blue.post(request(1, "prompts/list", json!({"cursor": "bm9uc2Vuc2U"}))).await)
            .await;
    assert_eq!(kind(&foreign.1), "cursor_invalid");
    same_as_absent(foreign, absent, "cursor").await;

    let event = red.open_get_stream().await.next().await.unwrap().id.unwrap();
    let foreign = refused(blue.get_stream_raw(Some(&event)).await).await;
    let absent = refused(blue.get_stream_raw(Some("no-such-event")).await).await;
    same_as_absent(foreign, absent, "event id").await;

    blue.set_session(red_session.as_deref());
    let foreign = refused(blue.post(request(1, "tools/list", json!({}))).await).await;
    blue.set_session(Some("no-such-session"));
    let absent = refused(blue.post(request(1, "tools/list", json!({}))).await).await;
    assert_eq!(kind(&foreign.1), "session_not_found");
    same_as_absent(foreign, absent, "session").await;

    blue.set_session(own_session.as_deref());
    for (method, params, unknown) in [
        ("tasks/get", json!({"taskId": "foreign"}), json!({"taskId": "absent"})),
        ("resources/read", json!({"uri": "red+test://r"}), json!({"uri": "nope+test://r"})),
    ] {
        let (foreign, absent) =
            (blue.error(method, params).await, blue.error(method, unknown).await);
        assert_eq!(
            (foreign["code"].as_i64(), &foreign["data"]["kind"]),
            (absent["code"].as_i64(), &absent["data"]["kind"]),
            "{method}"
        );
    }
    assert_eq!(red.tool_names().await, ["b__search"]);
}

#[tokio::test]
async fn sec_05_a_tenant_sees_only_its_own_backends() {
    let (broker, _backends, keys) = two_tenants().await;
    let extra = FakeBackend::echo().await;
    broker.admin().put_ready_backend("red", "extra", &extra.spec()).await;
    let blue = client(&broker, &keys[1], "blue").connected(json!({})).await;
    assert_eq!(blue.tool_names().await, ["b__search"]);
    assert_eq!(
        kind(&blue.error("tools/call", json!({"name": "extra__echo"})).await),
        "tool_not_found"
    );
    for path in ["/mcp/extra", "/mcp/none"] {
        let response =
            broker.client(path).bearer(&keys[1]).post(crate::initialize_body("2025-11-25")).await;
        assert_eq!(response.status, 404, "{path}");
    }
    assert_eq!(extra.recorded_of("tools/call").len(), 0);
}

#[tokio::test]
async fn a_disabled_or_removed_tenant_is_refused_at_once() {
    let (broker, _backends, keys) = two_tenants().await;
    let red = client(&broker, &keys[0], "red").connected(json!({})).await;
    let blue = client(&broker, &keys[1], "blue").connected(json!({})).await;
    let mut stream = red.open_get_stream().await;
    broker.admin().put_tenant("red", json!({"enabled": false})).await;
    assert_eq!(red.post(request(1, "ping", json!({}))).await.status, 401);
    while stream.next().await.is_some() {}
    broker.admin().put_tenant("red", json!({"enabled": true})).await;
    client(&broker, &keys[0], "red").connected(json!({})).await;
    let (status, _) = broker.admin().delete("/admin/v1/tenants/red").await;
    assert!((200..300).contains(&status));
    assert_eq!(
        broker
            .client("/mcp")
            .bearer(&keys[0])
            .post(crate::initialize_body("2025-11-25"))
            .await
            .status,
        401
    );
    assert_eq!(blue.tool_names().await, ["b__search"]);
}

#[tokio::test]
async fn a_revoked_key_is_refused_at_once() {
    let (broker, _backends, keys) = two_tenants().await;
    let (id, key) = broker.admin().create_key_with_id("red").await;
    let doomed = client(&broker, &key, "red").connected(json!({})).await;
    let (status, _) = broker.admin().delete(&format!("/admin/v1/tenants/red/keys/{id}")).await;
    assert!((200..300).contains(&status));
    assert_eq!(doomed.post(request(1, "ping", json!({}))).await.status, 401);
    assert_eq!(
        broker.client("/mcp").bearer(&key).post(crate::initialize_body("2025-11-25")).await.status,
        401
    );
    client(&broker, &keys[0], "red").connected(json!({})).await;
}

/// Creates a key of the principal `ann`.
async fn key_of_ann(admin: &AdminClient) -> Value {
    let body = json!({"principal": "ann"});
    let (status, key) = admin.post("/admin/v1/tenants/red/keys", &body).await;
    assert!((200..300).contains(&status), "{key}");
    key
}

#[tokio::test]
async fn a_revoked_key_also_ends_the_sessions_that_it_continued() {
    let (broker, _backends, _) = two_tenants().await;
    let admin = broker.admin();
    let keys = [key_of_ann(&admin).await, key_of_ann(&admin).await];
    let text = |key: &Value| key["key"].as_str().unwrap().to_owned();
    let opener = client(&broker, &text(&keys[0]), "red");
    let other = opener.fresh().connected(json!({})).await;
    let opened = opener.connected(json!({})).await;
    let joined = back(&broker, &opened).bearer(&text(&keys[1]));
    let mut events = joined.open_get_stream().await;
    // The latest credential of the session is the first key again.
    opened.result("ping", json!({})).await;
    let id = keys[1]["id"].as_str().unwrap();
    assert_eq!(admin.delete(&format!("/admin/v1/tenants/red/keys/{id}")).await.0, 204);
    events.rest().await;
    assert_eq!(opened.post(request(1, "ping", json!({}))).await.status, 404);
    other.result("ping", json!({})).await;
}

#[tokio::test]
async fn a_revoked_key_also_ends_the_sessions_that_it_continued_after_a_restart() {
    let (mut broker, _backends, _) = two_tenants().await;
    let admin = broker.admin();
    let keys = [key_of_ann(&admin).await, key_of_ann(&admin).await];
    let text = |key: &Value| key["key"].as_str().unwrap().to_owned();
    let opened = client(&broker, &text(&keys[0]), "red").connected(json!({})).await;
    assert!(broker.terminate().await.success());
    broker.restart().await;
    let joined = back(&broker, &opened).bearer(&text(&keys[1]));
    let mut events = joined.open_get_stream().await;
    let id = keys[1]["id"].as_str().unwrap();
    assert_eq!(broker.admin().delete(&format!("/admin/v1/tenants/red/keys/{id}")).await.0, 204);
    events.rest().await;
    let opener = back(&broker, &opened).bearer(&text(&keys[0]));
    assert_eq!(opener.post(request(1, "ping", json!({}))).await.status, 404);
}

#[tokio::test]
async fn tool_05_a_tenant_over_its_rate_is_refused_and_the_other_is_not() {
    let (broker, _backends, keys) = two_tenants().await;
    broker
        .admin()
        .put_tenant("red", json!({"limits": {"requests_per_second": 1, "burst": 3}}))
        .await;
    let red = client(&broker, &keys[0], "red");
    let blue = client(&broker, &keys[1], "blue").connected(json!({})).await;
    let mut limited = None;
    for id in 0..10 {
        let response = red.fresh().post(crate::initialize_body("2025-11-25")).await;
        if response.status == 429 {
            let retry = response.header("retry-after").map(str::to_owned);
            let (_, error) = refused(response).await;
            assert_eq!(
                (error["code"].as_i64(), kind(&error), &error["data"]["retryable"]),
                (Some(1003), "rate_limited", &json!(true))
            );
            assert!(error["data"]["retryAfterMs"].is_u64() || retry.is_some(), "{error}");
            limited = Some(id);
            break;
        }
    }
    assert!(limited.is_some_and(|id| id >= 1), "{limited:?}");
    for _ in 0..10 {
        assert_eq!(blue.tool_names().await, ["b__search"]);
    }
}
