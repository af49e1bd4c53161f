//! Revocations of tokens: what they refuse and what they end, on every wire and every replica.

use serde_json::{Value, json};
use testkit::{
    Authority, AuthorizationServer, EventReader, FakeBackend, Gate, PipeBackend, QuicPeer, Reply,
    TestBroker, authorization, duplex::Wire, eventually, within,
};

use super::{client, guarded, status, until_status, with_token};
use crate::{kind, request, stateless::Modern, text_of};

const PATH: &str = "/admin/v1/tenants/acme/revocations";

fn principal(server: &AuthorizationServer, subject: &str) -> String {
    format!("{} {subject}", server.issuer())
}

async fn revoke(broker: &TestBroker, body: Value) -> Value {
    let (status, answer) = broker.admin().post(PATH, &body).await;
    assert_eq!(status, 201, "{answer}");
    answer
}

/// Waits for the end of the stream.
async fn ends(events: &mut EventReader) {
    within("the end of the stream", async { while events.advance().await.is_some() {} }).await;
}

async fn sessions_of(broker: &TestBroker, principal: &str) -> Vec<Value> {
    let mut sessions = broker.admin().sessions("acme").await;
    sessions.retain(|session| session["principal"] == principal);
    sessions
}

#[tokio::test]
async fn a_revoked_principal_loses_its_sessions_on_every_wire_at_once() {
    let (server, backend, authority) =
        (AuthorizationServer::start().await, FakeBackend::echo().await, Authority::new());
    let signed = authority.server("server");
    let listen = json!({
        "listen": {"tcp": "127.0.0.1:0", "quic": "127.0.0.1:0"},
        "tls": {"cert_file": signed.cert, "key_file": signed.key},
    });
    let builder = guarded(&server, &backend, json!({})).single_process().config(listen);
    let mut broker = builder.start().await;
    let (old, bob) = (server.token("ann"), server.token("bob"));
    until_status(&broker, &old, 200).await;
    let ann = client(&broker, &old).connected(json!({})).await;
    let mut general = ann.open_get_stream().await;
    let other = client(&broker, &bob).connected(json!({})).await;
    let bearer = format!("Bearer {old}");
    let headers = [("authorization", bearer.as_str())];
    let meta = json!({"dev.mcp-broker/token": old});
    let (socket, _) =
        broker.duplex().websocket(broker.http_address(), "/ws", &headers).await.unwrap();
    let socket = socket.connected(json!({})).await;
    let wire = Wire::http_sse(broker.http_address(), "/sse", &headers).await.unwrap();
    let legacy = broker.duplex().over(wire).connected(json!({})).await;
    let lines = broker.duplex().tcp(broker.tcp_address()).await;
    let lines = lines.connected_with(json!({}), meta.clone()).await;
    let peer = QuicPeer::connect(broker.quic_address(), &authority, None, "mcp").await.unwrap();
    let control = broker.duplex().over(peer.control().await);
    let control = control.connected_with(json!({}), meta).await;
    let wanted = json!({"notifications": {"toolsListChanged": true}});
    let modern = Modern::of(&broker, "/mcp").bearer(&old);
    let listening = modern.post(json!("l"), "subscriptions/listen", wanted).await;
    assert!(listening.is_event_stream());
    let mut listening = listening.events();
    assert!(sessions_of(&broker, &principal(&server, "ann")).await.len() >= 5);

    let made = revoke(&broker, json!({"principal": principal(&server, "ann")})).await;
    let refused = ann.post(request(9, "ping", json!({}))).await;
    assert_eq!(refused.status, 401);
    let challenge = refused.header("www-authenticate").unwrap_or_default();
    assert!(challenge.contains("error=\"invalid_token\""), "{challenge}");
    // The list shows stored sessions too, whose rows go a moment later.
    eventually("the end of the sessions", || async {
        let left = sessions_of(&broker, &principal(&server, "ann")).await;
        if left.is_empty() { Ok(()) } else { Err(left) }
    })
    .await;
    tokio::join!(ends(&mut general), ends(&mut listening));
    tokio::join!(
        socket.wait_for_close(),
        legacy.wait_for_close(),
        lines.wait_for_close(),
        control.wait_for_close()
    );
    other.call("b__echo", json!({})).await;
    let without_age = server.token_with("ann", json!({"iat": null}));
    let newer = server.token_with("ann", json!({"iat": authorization::now() + 5}));
    assert_eq!(status(&broker, &without_age).await, 401);
    assert_eq!(status(&broker, &newer).await, 200);
    // An earlier time narrows nothing.
    let narrower =
        json!({"principal": principal(&server, "ann"), "issued_before": "2020-01-01T00:00:00Z"});
    let (code, answer) = broker.admin().post(PATH, &narrower).await;
    assert_eq!((code, &answer["issued_before"]), (200, &made["issued_before"]));

    broker.kill().await;
    broker.restart().await;
    until_status(&broker, &bob, 200).await;
    assert_eq!(status(&broker, &old).await, 401, "it is stored");
    let id = made["id"].as_str().unwrap();
    assert_eq!(broker.admin().delete(&format!("{PATH}/{id}")).await.0, 204);
    assert_eq!(status(&broker, &old).await, 200, "it is restored");
    assert_eq!(broker.admin().get(PATH).await.1["revocations"], json!([]));
    assert_eq!(broker.admin().delete(&format!("{PATH}/{id}")).await.0, 404);
}

#[tokio::test]
async fn one_token_is_revoked_by_its_id() {
    let (server, backend) = (AuthorizationServer::start().await, FakeBackend::echo().await);
    let listen = json!({"listen": {"tcp": "127.0.0.1:0"}});
    let broker =
        guarded(&server, &backend, json!({})).single_process().config(listen).start().await;
    let [one, two] = ["one", "two"].map(|id| server.token_with("ann", json!({"jti": id})));
    until_status(&broker, &one, 200).await;
    let (first, second) = (
        client(&broker, &one).connected(json!({})).await,
        client(&broker, &two).connected(json!({})).await,
    );
    // A stream of the first token, in the session of the second.
    let mut crossed = with_token(&broker, &second, &one).open_get_stream().await;
    let open = |token: &str| {
        let meta = json!({"dev.mcp-broker/token": token});
        let broker = &broker;
        async move {
            broker.duplex().tcp(broker.tcp_address()).await.connected_with(json!({}), meta).await
        }
    };
    let (of_one, of_two) = (open(&one).await, open(&two).await);
    revoke(&broker, json!({"jti": "one"})).await;
    tokio::join!(ends(&mut crossed), of_one.wait_for_close());
    assert_eq!(first.post(request(9, "ping", json!({}))).await.status, 401);
    assert_eq!(
        with_token(&broker, &first, &two).post(request(9, "ping", json!({}))).await.status,
        404,
        "its session is over"
    );
    second.call("b__echo", json!({})).await;
    of_two.call("b__echo", json!({})).await;
    let output = broker.cli(&["token", "list", "--tenant", "acme", "--json"]).await;
    let listed: Value = serde_json::from_str(&output.stdout).unwrap();
    let id = listed["revocations"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(listed["revocations"][0]["jti"], "one", "{listed}");
    let output = broker.cli(&["token", "restore", &id, "--tenant", "acme"]).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    assert_eq!(status(&broker, &one).await, 200);
    let who = principal(&server, "ann");
    let command = ["token", "revoke", "--tenant", "acme", "--principal", &who];
    let early = [&command[..], &["--issued-before", "2020-01-01T00:00:00Z"]].concat();
    assert_eq!(broker.cli(&early).await.code, Some(0));
    assert_eq!(status(&broker, &one).await, 200, "it was issued later");
    assert_eq!(broker.cli(&command).await.code, Some(0));
    assert_eq!(status(&broker, &one).await, 401);
    assert_eq!(broker.cli(&["token", "revoke", "--tenant", "acme"]).await.code, Some(64));
    let (_, audit) = broker.admin().get("/admin/v1/audit?kind=admin&limit=1000").await;
    let path = format!("POST {}", PATH.replace("acme", "{tenant}"));
    let records = audit["records"].as_array().unwrap();
    assert!(records.iter().filter(|record| record["action"] == path.as_str()).count() >= 3);
}

/// Requests without a session share a session at the backend, whatever their token is.
#[tokio::test]
async fn a_revoked_token_ends_no_request_of_another_token() {
    let (server, backend) = (AuthorizationServer::start().await, FakeBackend::start().await);
    let done = Gate::new();
    backend.tool("wait", done.before(Reply::text("done")));
    let broker = guarded(&server, &backend, json!({})).single_process().start().await;
    let [one, two] = ["one", "two"].map(|id| server.token_with("ann", json!({"jti": id})));
    until_status(&broker, &one, 200).await;
    let call = async |token: &str| {
        let client = Modern::of(&broker, "/mcp").bearer(token);
        client.answer("tools/call", json!({"name": "b__wait", "arguments": {}})).await
    };
    let waiting = async |count: usize| {
        backend.wait_count("the calls", count, |seen| seen.calls("wait")).await;
    };
    // The call of the first token opens the session at the backend.
    let first = async {
        let answer = call(&one).await;
        done.open();
        answer
    };
    let second = async {
        waiting(1).await;
        call(&two).await
    };
    let revoked = async {
        waiting(2).await;
        revoke(&broker, json!({"jti": "one"})).await;
    };
    let (first, second, ()) = tokio::join!(first, second, revoked);
    assert_eq!(kind(&first["error"]), "outcome_unknown", "{first}");
    assert_eq!(text_of(&second["result"]), "done", "{second}");
    // Later requests do not use the session of the revoked token.
    let later = call(&two).await;
    assert_eq!(text_of(&later["result"]), "done", "{later}");
}

#[tokio::test]
async fn a_key_stays_valid_and_faults_name_their_field() {
    let (server, backend) = (AuthorizationServer::start().await, FakeBackend::echo().await);
    let broker = guarded(&server, &backend, json!({})).single_process().start().await;
    let key = broker.admin().create_key("acme").await;
    let opened = broker.client("/mcp").bearer(&key).connected(json!({})).await;
    let call = json!({"name": "b__echo", "arguments": {}, "task": {}});
    let made = opened.result("tools/call", call).await;
    let task = json!({"taskId": made["task"]["taskId"]});
    let sessions = broker.admin().sessions("acme").await;
    revoke(&broker, json!({"principal": sessions[0]["principal"]})).await;
    assert_eq!(opened.post(request(9, "ping", json!({}))).await.status, 404);
    let again = broker.client("/mcp").bearer(&key).connected(json!({})).await;
    again.call("b__echo", json!({})).await;
    eventually("the end of the task, which goes on", || async {
        match again.result("tasks/get", task.clone()).await {
            answer if answer["status"] == "completed" => Ok(()),
            answer => Err(answer),
        }
    })
    .await;
    for (body, field) in [
        (json!({}), "principal"),
        (json!({"principal": "a", "jti": "b"}), "jti"),
        (json!({"principal": "a\u{7}"}), "principal"),
        (json!({"principal": 7}), "principal"),
        (json!({"principal": "a", "issued_before": "now"}), "issued_before"),
        (json!({"jti": "a", "issued_before": "2026-01-01T00:00:00Z"}), "issued_before"),
        (json!({"subject": "a"}), "subject"),
    ] {
        let (status, problem) = broker.admin().post(PATH, &body).await;
        assert_eq!((status, problem["field"].as_str()), (400, Some(field)), "{body}: {problem}");
    }
    let nowhere = "/admin/v1/tenants/nowhere/revocations";
    assert_eq!(broker.admin().post(nowhere, &json!({"jti": "a"})).await.0, 404);
}

#[tokio::test]
async fn links_of_a_revoked_principal_close() {
    let (server, backend) =
        (AuthorizationServer::start().await, PipeBackend::tcp(&crate::stdio()).await);
    let builder = crate::builder().single_process().auth_required();
    let builder = builder.config(server.config("acme", json!({}))).tenant("acme");
    let broker = builder.backend("acme", "b", backend.spec()).start().await;
    until_status(&broker, &server.token("bob"), 200).await;
    let ann = client(&broker, &server.token("ann")).connected(json!({})).await;
    let before = backend.open();
    ann.call("b__echo", json!({})).await;
    assert_eq!(backend.open(), before + 1, "a link of her own");
    revoke(&broker, json!({"principal": principal(&server, "ann")})).await;
    eventually("the link to close", || async {
        if backend.open() == before { Ok(()) } else { Err(backend.open()) }
    })
    .await;
}

#[tokio::test]
async fn a_revocation_applies_at_every_replica() {
    let (server, backend) = (AuthorizationServer::start().await, FakeBackend::echo().await);
    let cluster = crate::builder()
        .auth_required()
        .config(server.config("acme", json!({})))
        .tenant("acme")
        .backend("acme", "b", backend.spec())
        .cluster(2)
        .start()
        .await;
    let old = server.token("ann");
    let at = |replica: usize, token: &str| cluster.client_of(replica, "/mcp").bearer(token);
    let until = |replica: usize, token: String, wanted: u16| {
        let at = &at;
        async move {
            eventually(&format!("{wanted} of replica {replica}"), || async {
                let body = crate::initialize_body("2025-11-25");
                match at(replica, &token).post(body).await.status {
                    found if found == wanted => Ok(()),
                    found => Err(found),
                }
            })
            .await;
        }
    };
    until(0, old.clone(), 200).await;
    until(1, old.clone(), 200).await;
    let there = at(1, &old).connected(json!({})).await;
    let mut stream = there.open_get_stream().await;
    let body = json!({"principal": principal(&server, "ann")});
    assert_eq!(cluster.admin(0).post(PATH, &body).await.0, 201);
    ends(&mut stream).await;
    until(0, old.clone(), 401).await;
    until(1, old, 401).await;
    let newer = server.token_with("ann", json!({"iat": authorization::now() + 5}));
    until(1, newer.clone(), 200).await;
    let back = at(1, &newer);
    back.set_session(there.session().as_deref());
    back.set_version(Some("2025-11-25"));
    let gone = back.post(request(9, "ping", json!({}))).await;
    assert_eq!(gone.status, 404, "it ended with its principal");
    assert_eq!(kind(&gone.json().await["error"]), "session_not_found");
}
