//! Introspection of tokens (RFC 7662): opaque tokens over every wire, what answers are accepted, how
//! often an issuer is asked, and an issuer that does not answer.

use serde_json::{Value, json};
use testkit::{
    Authority, AuthorizationServer, FakeBackend, IssuerBehavior, QuicPeer, TestBroker,
    authorization::now, duplex::Wire, eventually,
};

use super::{client, guarded, status, until_status};
use crate::{initialize_body, kind, stateless::Modern};

async fn started(ttl: &str, more: Value) -> (TestBroker, AuthorizationServer, FakeBackend) {
    let (server, backend) = (AuthorizationServer::start().await, FakeBackend::echo().await);
    let mut entry = server.introspection(json!({"ttl": ttl}));
    for (name, value) in more.as_object().into_iter().flatten() {
        entry[name] = value.clone();
    }
    let builder = guarded(&server, &backend, entry).single_process();
    let broker = builder.config(json!({"listen": {"tcp": "127.0.0.1:0"}})).start().await;
    let labels = [("outcome", "taken")];
    broker.admin().wait_metric("mcp_issuer_key_fetches_total", &labels, |count| count >= 1.0).await;
    (broker, server, backend)
}

#[tokio::test]
async fn an_opaque_token_is_accepted_over_every_wire_by_introspection() {
    let (server, backend, authority) =
        (AuthorizationServer::start().await, FakeBackend::echo().await, Authority::new());
    let signed = authority.server("server");
    let listen = json!({
        "listen": {"tcp": "127.0.0.1:0", "quic": "127.0.0.1:0"},
        "tls": {"cert_file": signed.cert, "key_file": signed.key},
    });
    let entry = server.introspection(json!({}));
    let broker = guarded(&server, &backend, entry).single_process().config(listen).start().await;
    // Each wire shows a token that was never seen before, so that each has to wait.
    let names = ["http", "websocket", "sse", "tcp", "quic", "modern", "lines"];
    for name in names {
        server.set_introspected(name, Some(server.active("ann", json!({}))));
    }
    let headers = |bearer: &str| ("authorization".to_owned(), format!("Bearer {bearer}"));
    let ann = client(&broker, "http").connected(json!({})).await;
    ann.call("b__echo", json!({})).await;
    let (name, value) = headers("websocket");
    let (socket, _) =
        broker.duplex().websocket(broker.http_address(), "/ws", &[(&name, &value)]).await.unwrap();
    socket.connected(json!({})).await.call("b__echo", json!({})).await;
    let (name, value) = headers("sse");
    let wire = Wire::http_sse(broker.http_address(), "/sse", &[(&name, &value)]).await.unwrap();
    broker.duplex().over(wire).connected(json!({})).await.call("b__echo", json!({})).await;
    let meta = |token: &str| json!({"dev.mcp-broker/token": token});
    let lines = broker.duplex().tcp(broker.tcp_address()).await;
    lines.connected_with(json!({}), meta("tcp")).await.call("b__echo", json!({})).await;
    let peer = QuicPeer::connect(broker.quic_address(), &authority, None, "mcp").await.unwrap();
    let control = broker.duplex().over(peer.control().await);
    control.connected_with(json!({}), meta("quic")).await.call("b__echo", json!({})).await;
    let modern = Modern::of(&broker, "/mcp").bearer("modern");
    assert_eq!(modern.call("b__echo", json!({})).await["resultType"], "complete");
    let lines = broker.duplex().speaking(testkit::judge::Revision::V2026_07_28);
    let lines = lines.tcp(broker.tcp_address()).await;
    let mut of_request = crate::stateless::meta(json!({}));
    of_request["dev.mcp-broker/token"] = json!("lines");
    let listed = lines.result("tools/list", json!({"_meta": of_request})).await;
    assert_eq!(listed["tools"][0]["name"], "b__echo");
    let sessions = broker.admin().sessions("acme").await;
    let principal = format!("{} ann", server.issuer());
    assert!(sessions.iter().all(|session| session["principal"] == principal), "{sessions:?}");
    assert_eq!(server.introspection_requests(), names.len(), "one question for each token");
    // An unknown token, over two wires.
    assert_eq!(status(&broker, "unknown").await, 401);
    let lines = broker.duplex().tcp(broker.tcp_address()).await;
    let refused = lines.initialize(json!({}), meta("unknown too")).await;
    assert_eq!(kind(&refused["error"]), "unauthorized");
    lines.wait_for_close().await;
}

#[tokio::test]
async fn introspection_answers_are_checked_like_token_claims() {
    let (broker, server, _backend) = started("1h", json!({"scopes": ["mcp"]})).await;
    let good = json!({"scope": "mcp other"});
    let with = |changes: Value| {
        let mut answer = server.active("ann", good.clone());
        for (name, value) in changes.as_object().unwrap() {
            answer[name] = value.clone();
        }
        answer.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        answer
    };
    for (what, answer, wanted) in [
        ("good", with(json!({})), 200),
        ("without an issuer", with(json!({"iss": null})), 200),
        ("of another issuer", with(json!({"iss": "https://evil.example"})), 401),
        ("without an audience", with(json!({"aud": null})), 401),
        ("for another audience", with(json!({"aud": "https://other.example"})), 401),
        ("without an end", with(json!({"exp": null})), 401),
        ("expired", with(json!({"exp": now() - 100})), 401),
        ("not yet valid", with(json!({"nbf": now() + 1_000})), 401),
        ("without a principal", with(json!({"sub": null})), 401),
        ("a refresh token", with(json!({"token_use": "refresh_token"})), 401),
        ("an ID token", with(json!({"typ": "ID"})), 401),
        ("bound to a key", with(json!({"cnf": {"jkt": "x"}, "token_type": "DPoP"})), 401),
        ("without a scope", with(json!({"scope": "other"})), 403),
        ("inactive", with(json!({"active": false})), 401),
        ("neither active nor inactive", with(json!({"active": "true"})), 503),
    ] {
        server.set_introspected(&what.replace(' ', "-"), Some(answer));
        assert_eq!(status(&broker, &what.replace(' ', "-")).await, wanted, "{what}");
    }
}

#[tokio::test]
async fn a_token_is_introspected_once_until_its_answer_expires() {
    let (broker, server, _backend) = started("3s", json!({})).await;
    server.set_introspected("token", Some(server.active("ann", json!({}))));
    let before = server.introspection_requests();
    let statuses = futures_util::future::join_all((0..10).map(|_| status(&broker, "token"))).await;
    assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
    assert_eq!(server.introspection_requests(), before + 1, "all of them waited for one question");
    let listen = json!({"notifications": {"toolsListChanged": true}});
    let modern = Modern::of(&broker, "/mcp").bearer("token");
    let mut stream = modern.post(json!("l"), "subscriptions/listen", listen).await.events();
    server.set_introspected("token", None);
    assert_eq!(status(&broker, "token").await, 200, "the answer is remembered");
    until_status(&broker, "token", 401).await;
    testkit::within("the end of what it opened", async {
        while stream.advance().await.is_some() {}
    })
    .await;
    let asked = server.introspection_requests();
    assert_eq!(status(&broker, "token").await, 401);
    assert_eq!(server.introspection_requests(), asked, "a refusal is remembered too");
    let (checked, labels) = ("mcp_token_introspections_total", [("outcome", "inactive")]);
    assert!(broker.admin().metric(checked, &labels).await.unwrap() >= 1.0);
}

#[tokio::test]
async fn an_issuer_that_does_not_answer_gets_no_requests_for_a_while() {
    let (broker, server, _backend) = started("1s", json!({})).await;
    server.set_introspected("token", Some(server.active("ann", json!({}))));
    server.set_behavior(IssuerBehavior::Refuses);
    let refused = client(&broker, "token").post(initialize_body("2025-11-25")).await;
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    assert_eq!(kind(&refused.json().await["error"]), "issuer_unavailable");
    let asked = server.introspection_requests();
    let names: Vec<String> = (0..5).map(|number| format!("other-{number}")).collect();
    let others = futures_util::future::join_all(names.iter().map(|name| status(&broker, name)));
    assert_eq!(others.await, [503; 5]);
    assert!(server.introspection_requests() <= asked + 1, "the pause holds");
    for behavior in [IssuerBehavior::Garbage, IssuerBehavior::Oversized, IssuerBehavior::Redirects]
    {
        server.set_behavior(behavior);
        let asked = server.introspection_requests();
        eventually("it is asked again", || async {
            assert_eq!(status(&broker, "token").await, 503, "{behavior:?}");
            if server.introspection_requests() > asked { Ok(()) } else { Err(()) }
        })
        .await;
    }
    server.set_behavior(IssuerBehavior::Serves);
    assert_eq!(status(&broker, "token").await, 200, "odd answers make no pause");
    let log = broker.log();
    assert!(!log.contains("a secret") && !log.contains("a+secret") && !log.contains("YnJva2Vy"));
}

#[tokio::test]
async fn unknown_tokens_cause_few_introspection_requests() {
    let (server, backend) = (AuthorizationServer::start().await, FakeBackend::echo().await);
    let entry = server.introspection(json!({}));
    let limits = json!({"limits": {"sign_in_failures_per_minute": 5}});
    let builder = guarded(&server, &backend, entry).single_process().config(limits);
    let broker = builder.start().await;
    server.set_introspected("known", Some(server.active("ann", json!({}))));
    assert_eq!(status(&broker, "known").await, 200);
    for number in 0..20 {
        let found = status(&broker, &format!("guess-{number}")).await;
        assert!(found == 401 || found == 429, "{found}");
    }
    assert!(server.introspection_requests() <= 8, "{}", server.introspection_requests());
    assert_eq!(status(&broker, "known").await, 200, "who is known comes in");
}

#[tokio::test]
async fn a_jwt_is_introspected_only_if_it_is_valid_and_configured() {
    let (broker, server, _backend) = started("1h", json!({"check": "introspect"})).await;
    let token = server.token_with("ann", json!({"jti": "a"}));
    server.set_introspected(&token, Some(json!({"active": true})));
    assert_eq!(status(&broker, &token).await, 200);
    let asked = server.introspection_requests();
    let forged = format!("{}x", server.token_with("ann", json!({"jti": "b"})));
    let expired = server.token_with("ann", json!({"exp": 1}));
    for bad in [forged, expired] {
        assert_eq!(status(&broker, &bad).await, 401);
    }
    assert_eq!(server.introspection_requests(), asked);
    assert_eq!(status(&broker, &server.token("revoked")).await, 401);
    assert_eq!(server.introspection_requests(), asked + 1);
}

#[tokio::test]
async fn an_answer_that_contradicts_a_jwt_refuses_it() {
    let (broker, server, _backend) = started("1h", json!({"check": "introspect"})).await;
    let own = server.claims("ann", json!({}));
    for (what, answer, wanted) in [
        ("the same", json!({"iss": own["iss"], "aud": own["aud"], "exp": own["exp"]}), 200),
        ("another scope", json!({"scope": "other", "token_type": "Bearer"}), 200),
        ("expired", json!({"exp": now() - 100}), 401),
        ("not yet valid", json!({"nbf": now() + 1_000}), 401),
        ("of another issuer", json!({"iss": "https://evil.example"}), 401),
        ("for another audience", json!({"aud": ["https://other.example"]}), 401),
        ("a refresh token", json!({"token_use": "refresh_token"}), 401),
        (
            "the connection does not present the certificate that the token is bound to",
            json!({"cnf": {"x5t#S256": "A".repeat(43)}}),
            401,
        ),
    ] {
        let token = server.token_with("ann", json!({"jti": what}));
        let mut answer = answer;
        answer["active"] = json!(true);
        server.set_introspected(&token, Some(answer));
        assert_eq!(status(&broker, &token).await, wanted, "{what}");
    }
}
