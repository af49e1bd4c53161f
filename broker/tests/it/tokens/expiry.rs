//! Streams and sessions of a token end with it (AUTH-06); the token of every other request is
//! checked each time.

use serde_json::json;
use testkit::{
    AuthorizationServer, DuplexClient, EventReader, FakeBackend, Reply, TestBroker, duplex::Wire,
    eventually, within,
};

use super::{client, ending_in, guarded, until_status, with_token};
use crate::{initialize_body, kind, request, stateless::Modern};

async fn started() -> (TestBroker, AuthorizationServer, FakeBackend) {
    let (server, backend) = (AuthorizationServer::start().await, FakeBackend::echo().await);
    backend.tool("slow", |call| async move {
        call.progress(1.0, 2.0).await;
        Reply::Hang
    });
    let broker = guarded(&server, &backend, json!({}))
        .config(json!({"listen": {"tcp": "127.0.0.1:0"}, "events": {"keepalive": "1s"}}))
        .start()
        .await;
    until_status(&broker, &server.token("ann"), 200).await;
    (broker, server, backend)
}

/// Waits for the end of the stream.
async fn ends(events: &mut EventReader) {
    within("the end of the stream", async { while events.advance().await.is_some() {} }).await;
}

#[tokio::test]
async fn auth_06_a_request_with_an_expired_token_is_refused_on_every_method() {
    let (broker, server, _backend) = started().await;
    for version in [testkit::HttpVersion::Http1, testkit::HttpVersion::Http2] {
        let ann = client(&broker, &server.token_with("ann", ending_in(6)))
            .http(version)
            .connected(json!({}))
            .await;
        eventually("the end of the token", || async {
            match ann.post(request(9, "ping", json!({}))).await.status {
                401 => Ok(()),
                other => Err(other),
            }
        })
        .await;
        assert_eq!((ann.get_stream_raw(None).await.status, ann.delete_session().await), (401, 401));
        let refreshed = with_token(&broker, &ann, &server.token("ann"));
        assert_eq!(
            refreshed.post(request(9, "ping", json!({}))).await.status,
            200,
            "the session has no end by that"
        );
    }
}

#[tokio::test]
async fn auth_06_streams_end_with_the_token_that_opened_them() {
    let (broker, server, _backend) = started().await;
    let long = client(&broker, &server.token("ann")).connected(json!({})).await;
    let ann = with_token(&broker, &long, &server.token_with("ann", ending_in(6)));
    let mut general = ann.open_get_stream().await;
    let call = json!({"name": "b__slow", "arguments": {}, "_meta": {"progressToken": 1}});
    let mut of_call = ann.post_stream(request(20, "tools/call", call)).await;
    let modern = Modern::of(&broker, "/mcp").bearer(&server.token_with("ann", ending_in(6)));
    let listen = modern
        .post(
            json!("l"),
            "subscriptions/listen",
            json!({"notifications": {"toolsListChanged": true}}),
        )
        .await;
    assert!(listen.is_event_stream());
    let mut listen = listen.events();
    tokio::join!(ends(&mut general), ends(&mut of_call), ends(&mut listen));
    // The session continues, and its streams with another token.
    assert_eq!(long.get_stream_raw(None).await.status, 200);
}

#[tokio::test]
async fn auth_06_w_08_a_websocket_ends_with_its_token_and_its_session_waits() {
    let (broker, server, _backend) = started().await;
    let bearer = |token: &str| format!("Bearer {token}");
    let short = bearer(&server.token_with("ann", ending_in(6)));
    let (client, _) = broker
        .duplex()
        .websocket(broker.http_address(), "/ws", &[("authorization", &short)])
        .await
        .unwrap();
    let answer = client.initialize(json!({}), json!({})).await;
    let id = answer["result"]["_meta"]["dev.mcp-broker/session"].as_str().unwrap().to_owned();
    client.notify("notifications/initialized", json!({})).await;
    client.call("b__echo", json!({})).await;
    let why = client.wait_for_close().await;
    assert!(why.starts_with("1008"), "{why}");
    let again = |token: String, id: String| {
        let (broker, bearer) = (&broker, bearer(&token));
        async move {
            let headers = [("authorization", bearer.as_str()), ("mcp-session-id", id.as_str())];
            broker
                .duplex()
                .websocket(broker.http_address(), "/ws", &headers)
                .await
                .map(|(client, _)| client)
        }
    };
    assert_eq!(again(server.token("bob"), id.clone()).await.map(|_| ()).unwrap_err(), 404);
    assert_eq!(
        again(server.token_with("ann", json!({"exp": 1})), id.clone())
            .await
            .map(|_| ())
            .unwrap_err(),
        401
    );
    // The session continues with another token, and only until that expires.
    let gone_on = again(server.token_with("ann", ending_in(6)), id).await.unwrap();
    gone_on.call("b__echo", json!({})).await;
    assert!(gone_on.wait_for_close().await.starts_with("1008"));
}

#[tokio::test]
async fn auth_06_stateless_connections_end_streams_of_an_expired_token() {
    let (broker, server, _backend) = started().await;
    let listen = |token: Option<&str>| {
        let mut meta = crate::stateless::meta(json!({}));
        if let Some(token) = token {
            meta["dev.mcp-broker/token"] = json!(token);
        }
        json!({"notifications": {"toolsListChanged": true}, "_meta": meta})
    };
    let speaking = || broker.duplex().speaking(testkit::judge::Revision::V2026_07_28);
    let short = format!("Bearer {}", server.token_with("ann", ending_in(6)));
    let (socket, _) = speaking()
        .websocket(broker.http_address(), "/ws", &[("authorization", &short)])
        .await
        .unwrap();
    socket.start_request("subscriptions/listen", listen(None)).await;
    socket.notification("notifications/subscriptions/acknowledged").await;
    let lines: DuplexClient = speaking().tcp(broker.tcp_address()).await;
    let listening = lines
        .start_request(
            "subscriptions/listen",
            listen(Some(&server.token_with("ann", ending_in(6)))),
        )
        .await;
    lines.notification("notifications/subscriptions/acknowledged").await;
    let why = socket.wait_for_close().await;
    assert!(why.starts_with("1008"), "{why}");
    let ended = listening.result().await;
    assert!(
        ended["_meta"].is_object(),
        "the stream ends with a word, and the connection stays: {ended}"
    );
    let asked = |token: &str| {
        let mut params = listen(Some(token));
        params.as_object_mut().unwrap().remove("notifications");
        params
    };
    assert!(
        lines.result("tools/list", asked(&server.token("ann"))).await["tools"].is_array(),
        "it is good for what shows another"
    );
    let error =
        lines.error("tools/list", asked(&server.token_with("ann", json!({"exp": 1})))).await;
    assert_eq!(error["data"]["kind"], "unauthorized");
    lines.wait_for_close().await;
}

#[tokio::test]
async fn auth_06_http_streams_of_stateless_clients_end_with_a_message() {
    let (broker, server, _backend) = started().await;
    let of_short = || Modern::of(&broker, "/mcp").bearer(&server.token_with("ann", ending_in(6)));
    let filter = json!({"notifications": {"toolsListChanged": true}});
    let mut meta = crate::stateless::meta(json!({}));
    meta["progressToken"] = json!(1);
    let slow = json!({"name": "b__slow", "arguments": {}, "_meta": meta});
    for (method, params, first, member) in [
        ("subscriptions/listen", filter, "notifications/subscriptions/acknowledged", "result"),
        ("tools/call", slow, "notifications/progress", "error"),
    ] {
        let mut events = of_short().post(json!("x"), method, params).await.events();
        let mut messages = Vec::new();
        within("the end of the stream", async {
            while let Some((_, message)) = events.next_message().await {
                messages.push(message);
            }
        })
        .await;
        assert_eq!(messages[0]["method"], first, "{messages:?}");
        let last = messages.last().unwrap();
        assert!(last["id"] == "x" && last[member].is_object(), "{method}: {messages:?}");
    }
}

#[tokio::test]
async fn auth_06_a_call_continued_at_another_replica_ends_with_an_answer() {
    let (server, backend) = (AuthorizationServer::start().await, FakeBackend::start().await);
    backend.tool("ask", |call| async move {
        let schema = json!({"type": "object", "properties": {}});
        let form = json!({"mode": "form", "message": "?", "requestedSchema": schema});
        call.request("elicitation/create", form).await;
        call.progress(1.0, 2.0).await;
        Reply::Hang
    });
    let unlimited = json!({"sign_in_failures_per_minute": 0});
    let cluster = crate::builder()
        .auth_required()
        .config(server.config("acme", json!({})))
        .config(json!({"listen": {"tcp": "127.0.0.1:0"}, "limits": unlimited}))
        .tenant("acme")
        .backend("acme", "b", backend.spec())
        .cluster(2)
        .start()
        .await;
    let long = server.token("ann");
    for replica in 0..2 {
        eventually("the keys at each replica", || async {
            let client = cluster.client_of(replica, "/mcp").bearer(&long);
            let status = client.post(initialize_body("2025-11-25")).await.status;
            if status == 200 { Ok(()) } else { Err(status) }
        })
        .await;
    }
    let call = |token: Option<&str>| {
        let mut meta = crate::stateless::meta(json!({"elicitation": {}}));
        meta["progressToken"] = json!(1);
        if let Some(token) = token {
            meta["dev.mcp-broker/token"] = json!(token);
        }
        json!({"name": "b__ask", "arguments": {}, "_meta": meta})
    };
    // The first replica has the call. The client comes back to the second one.
    let continued = async |token: Option<&str>| {
        let first = Modern::at(cluster.replicas()[0].http_address(), "/mcp", json!({}));
        let required = first.bearer(&long).result("tools/call", call(None)).await;
        let key = required["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
        let mut params = call(token);
        params["requestState"] = required["requestState"].clone();
        params["inputResponses"] = json!({key: {"action": "accept", "content": {}}});
        params
    };
    let second = &cluster.replicas()[1];
    let over_http = async {
        let params = continued(None).await;
        let short = server.token_with("ann", ending_in(6));
        let client = Modern::at(second.http_address(), "/mcp", json!({})).bearer(&short);
        let mut events = client.post(json!("x"), "tools/call", params).await.events();
        let mut messages = Vec::new();
        within("the end of the stream", async {
            while let Some((_, message)) = events.next_message().await {
                messages.push(message);
            }
        })
        .await;
        assert_eq!(messages[0]["method"], "notifications/progress", "{messages:?}");
        messages.pop().unwrap()
    };
    let over_tcp = async {
        let short = server.token_with("ann", ending_in(8));
        let params = continued(Some(&short)).await;
        let lines = DuplexClient::builder().tcp(second.tcp_address().unwrap()).await;
        lines.request("tools/call", params).await
    };
    let (http, tcp) = tokio::join!(over_http, over_tcp);
    for answer in [http, tcp] {
        assert_eq!(kind(&answer["error"]), "outcome_unknown", "{answer}");
    }
}

#[tokio::test]
async fn auth_06_connections_that_are_sessions_end_with_their_token() {
    let (broker, server, _backend) = started().await;
    let meta = json!({"dev.mcp-broker/token": server.token_with("ann", ending_in(6))});
    let lines =
        broker.duplex().tcp(broker.tcp_address()).await.connected_with(json!({}), meta).await;
    lines.call("b__echo", json!({})).await;
    let short = format!("Bearer {}", server.token_with("bob", ending_in(6)));
    let wire =
        Wire::http_sse(broker.http_address(), "/sse", &[("authorization", &short)]).await.unwrap();
    let legacy = broker.duplex().over(wire).connected(json!({})).await;
    legacy.call("b__echo", json!({})).await;
    tokio::join!(lines.wait_for_close(), legacy.wait_for_close());
    let of_those = || async {
        let sessions = broker.admin().sessions("acme").await;
        sessions
            .into_iter()
            .filter(|session| session["transport"] == "tcp" || session["transport"] == "sse")
            .collect::<Vec<_>>()
    };
    eventually("their sessions to end", || async {
        if of_those().await.is_empty() { Ok(()) } else { Err(of_those().await) }
    })
    .await;
}
