//! Grants under faults: a process that ends in the middle of a refresh, an authorization server that
//! is away, and replicas whose clocks differ.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use testkit::{
    AuthorizationServer, FakeClock, IssuerBehavior, PostgresServer, TestBroker, TestClient,
    eventually,
};

use crate::{
    accounts::{Browser, World, call},
    builder, kind,
};

/// Longer than the lease of a process that died.
const WITHIN: Duration = Duration::from_secs(60);
const CONNECTIONS: &str = "/admin/v1/tenants/default/connections";

async fn connection(broker: &TestBroker) -> Value {
    broker.admin().get(CONNECTIONS).await.1["connections"][0].clone()
}

/// Connects an account, and waits until the lists of the backend are known.
async fn connected(broker: &TestBroker, world: &World) -> TestClient {
    let (status, view) = broker.admin().put_backend("default", "b", &world.spec()).await;
    assert_eq!(status, 201, "{view}");
    assert_eq!(Browser::new(broker).connect().await, 200);
    broker.admin().wait_backend_state("default", "b", "ready").await;
    broker.connected(json!({})).await
}

/// The new refresh token is lost, and the server takes the old one for stolen. The user is asked to
/// connect again.
#[tokio::test]
async fn a_lost_refresh_token_requires_the_user_to_connect_again() {
    let world = World::start(2).await;
    let mut broker =
        builder().single_process().env("MCP_BROKER_FAULT", "grant.refreshed").start().await;
    connected(&broker, &world).await;
    // The catalog's link or a call renews the token, and the process ends there.
    let client = broker.client("/mcp").connected(json!({})).await;
    let attempt = async {
        loop {
            let arguments = json!({"name": "b__echo", "arguments": {}});
            client.attempt("tools/call", arguments, Duration::from_secs(5)).await;
        }
    };
    tokio::select! {
        status = broker.wait_for_exit() => assert!(!status.success()),
        () = attempt => {}
    }
    let refreshes = || {
        let asked = world.server.take_token_requests();
        asked.iter().filter(|request| request.form.contains("refresh_token")).count()
    };
    assert_eq!(refreshes(), 1, "the server has answered");
    broker.restart().await;
    // The old access token is used until its end. Then the lease of the dead process has to lapse.
    let client = broker.connected(json!({})).await;
    let address = format!("{}/connect/b", broker.url(""));
    let started = Instant::now();
    let mut tool = "b__echo";
    loop {
        let arguments = json!({"name": tool, "arguments": {}});
        let answer = client.attempt("tools/call", arguments, Duration::from_secs(40)).await;
        if format!("{answer:?}").contains(&address) {
            break;
        }
        // Where the token ended before the lists were read again, one tool stands for the backend.
        if answer.kind() == "tool_not_found" {
            tool = "b__connect";
        }
        let usual = ["result", "backend_unavailable", "tool_not_found"];
        let is_usual = usual.contains(&answer.kind().as_str());
        assert!(is_usual && started.elapsed() < WITHIN, "{answer:?}");
    }
    eventually("the connection to tell why", || async {
        let lost = connection(&broker).await;
        let answer = (lost["state"].as_str(), lost["last_error"].as_str());
        if answer == (Some("reconnect"), Some("invalid_grant")) { Ok(()) } else { Err(lost) }
    })
    .await;
    world.lifetime.store(3600, Ordering::Relaxed);
    assert_eq!(Browser::new(&broker).connect().await, 200);
    // The tool has its name again when the lists were read.
    eventually("a call", || async {
        let arguments = json!({"name": "b__echo", "arguments": {}});
        let answer = client.attempt("tools/call", arguments, Duration::from_secs(5)).await;
        let is_called = answer.kind() == "result" && !format!("{answer:?}").contains(&address);
        if is_called { Ok(()) } else { Err(answer) }
    })
    .await;
    let again = connection(&broker).await;
    assert_eq!((&again["state"], &again["last_error"]), (&json!("connected"), &Value::Null));
}

/// The server has replaced the refresh token when the call that waits for it is cancelled.
#[tokio::test]
async fn a_cancelled_call_does_not_lose_a_refresh_token() {
    let world = World::start(3).await;
    let broker = builder().single_process().start().await;
    let client = connected(&broker, &world).await;
    world.server.take_token_requests();
    world.server.hold_tokens(true);
    let mut calls = Vec::new();
    eventually("a call to wait for the renewal", || {
        let arguments = json!({"name": "b__echo", "arguments": {}});
        let id = json!(1_000 + calls.len());
        calls.push(client.start_request_with_id(id, "tools/call", arguments));
        let requests = world.server.token_requests().len();
        async move { if requests > 0 { Ok(()) } else { Err(requests) } }
    })
    .await;
    for id in 0..calls.len() {
        client.notify("notifications/cancelled", json!({"requestId": 1_000 + id})).await;
    }
    world.lifetime.store(3600, Ordering::Relaxed);
    world.server.hold_tokens(false);
    eventually("a call with the renewed token", || async {
        let answer = call(&client, "b__echo").await;
        if answer["isError"] == true { Err(answer) } else { Ok(()) }
    })
    .await;
    let view = connection(&broker).await;
    assert_eq!((&view["state"], &view["last_error"]), (&json!("connected"), &Value::Null));
}

/// The server answers a renewal late. Only the call that renews the token waits, because the token
/// is still valid.
#[tokio::test]
async fn calls_use_a_valid_token_while_one_call_renews_it() {
    let (world, clock) = (World::start(3_600).await, FakeClock::set_to("+0"));
    let settings = builder().config(json!({"auth": {"resource": "http://127.0.0.1:9"}})).cluster(1);
    let env = clock.env();
    let cluster = env
        .iter()
        .fold(settings, |cluster, (name, value)| cluster.env_of(0, name, value))
        .start()
        .await;
    let (status, view) = cluster.operator().put_backend("default", "b", &world.spec()).await;
    assert_eq!(status, 201, "{view}");
    assert_eq!(Browser::at(cluster.replicas()[0].http_address()).connect().await, 200);
    let client = cluster.client_of(0, "/mcp/b").connected(json!({})).await;
    assert_ne!(call(&client, "echo").await["isError"], true);
    world.server.take_token_requests();
    world.server.hold_tokens(true);
    clock.set("+52m"); // the token is due in minute 51 at the latest, and ends in minute 60
    let mut calls = Vec::new();
    eventually("a call to wait for the renewal", || {
        calls.push(client.start_call("echo", json!({})));
        let requests = world.server.token_requests().len();
        async move { if requests > 0 { Ok(()) } else { Err(requests) } }
    })
    .await;
    let answer = call(&client, "echo").await;
    assert_ne!(answer["isError"], true, "{answer}");
    let labels = [("outcome", "unavailable")];
    let ended = cluster.admin(0).metric("mcp_upstream_refresh_total", &labels).await;
    assert_eq!(ended.unwrap_or_default(), 0.0, "the renewal has not ended");
    world.server.hold_tokens(false);
    assert_ne!(call(&client, "echo").await["isError"], true);
}

/// A token is used until its end. Then calls fail with a reason that names the server to operators,
/// and the grant stays.
#[tokio::test]
async fn an_unavailable_server_ends_no_grant() {
    let world = World::start(3).await;
    let broker = builder().single_process().start().await;
    let client = connected(&broker, &world).await;
    world.server.answer_tokens(Arc::new(|_, _| (503, json!({}))));
    world.server.set_behavior(IssuerBehavior::Refuses);
    let attempt = || {
        client.attempt(
            "tools/call",
            json!({"name": "b__echo", "arguments": {}}),
            Duration::from_secs(30),
        )
    };
    eventually("calls to fail", || async {
        let outcome = attempt().await;
        if outcome.kind() == "backend_unavailable" { Ok(()) } else { Err(outcome) }
    })
    .await;
    let view = connection(&broker).await;
    assert_eq!((&view["state"], &view["last_error"]), (&json!("connected"), &json!("unavailable")));
    let labels = [("outcome", "unavailable")];
    assert!(broker.admin().metric("mcp_upstream_refresh_total", &labels).await >= Some(1.0));
    let accepted = world.accepted.clone();
    world.server.set_behavior(IssuerBehavior::Serves);
    world.server.answer_tokens(Arc::new(move |_, _| {
        accepted.lock().insert("Bearer later".to_owned());
        (200, json!({"access_token": "later", "token_type": "Bearer", "expires_in": 3600}))
    }));
    eventually("a call", || async {
        let answer = client
            .attempt(
                "tools/call",
                json!({"name": "b__echo", "arguments": {}}),
                Duration::from_secs(30),
            )
            .await;
        if answer.kind() == "result" { Ok(()) } else { Err(answer) }
    })
    .await;
    assert_eq!(connection(&broker).await["last_error"], Value::Null);
}

#[tokio::test]
async fn a_server_that_refuses_the_client_counts_as_one_that_refuses() {
    let world = World::start(3_600).await;
    let broker = builder().single_process().start().await;
    let client = connected(&broker, &world).await;
    world.server.answer_tokens(Arc::new(|_, _| (400, json!({"error": "unauthorized_client"}))));
    world.accepted.lock().clear(); // so that the next call renews the token
    let arguments = json!({"name": "b__echo", "arguments": {}});
    let _refused = client.attempt("tools/call", arguments, Duration::from_secs(30)).await;
    let admin = broker.admin();
    let labels = [("outcome", "refused")];
    admin.wait_metric("mcp_upstream_refresh_total", &labels, |count| count >= 1.0).await;
    let labels = [("outcome", "unavailable")];
    assert_eq!(admin.metric("mcp_upstream_refresh_total", &labels).await, Some(0.0));
}

/// A backend without metadata is its own authorization server. One that named another server before
/// has a fault.
#[tokio::test]
async fn metadata_that_is_away_for_a_while_ends_no_grant() {
    let world = World::start(3_600).await;
    let broker = builder().single_process().start().await;
    let client = connected(&broker, &world).await;
    world.hide_metadata();
    world.accepted.lock().clear(); // so that the next call renews the token
    let arguments = json!({"name": "b__echo", "arguments": {}});
    let refused = client.error("tools/call", arguments.clone()).await;
    assert_eq!(kind(&refused), "backend_unavailable", "{refused}");
    assert_eq!(connection(&broker).await["state"], "connected");
    world.gate(false);
    eventually("a call", || async {
        let outcome =
            client.attempt("tools/call", arguments.clone(), Duration::from_secs(30)).await;
        if outcome.kind() == "result" { Ok(()) } else { Err(outcome) }
    })
    .await;
}

#[tokio::test]
async fn a_grant_stays_while_the_backend_still_names_its_server() {
    let world = World::start(3_600).await;
    let other = AuthorizationServer::start().await;
    let broker = builder().single_process().start().await;
    let client = connected(&broker, &world).await;
    world.name_servers(&[other.issuer(), world.server.issuer()]);
    world.accepted.lock().clear();
    let answer = call(&client, "b__echo").await;
    assert_ne!(answer["isError"], true, "{answer}");
    assert_eq!(other.take_token_requests(), [], "it issued no token of the grant");
    assert_eq!(connection(&broker).await["state"], "connected");
}

/// Calls continue for longer than a token is used without a look at its grant.
#[tokio::test]
async fn the_token_at_hand_is_used_while_the_database_is_away() {
    let (world, postgres) = (World::start(3_600).await, PostgresServer::start().await);
    let broker = builder().single_process().on_postgres(&postgres).await.start().await;
    let client = connected(&broker, &world).await;
    postgres.freeze();
    let away = Instant::now();
    while away.elapsed() < Duration::from_secs(8) {
        let answer = call(&client, "b__echo").await;
        assert_ne!(answer["isError"], true, "{answer}");
    }
    postgres.thaw();
    eventually("the connection", || async {
        let view = connection(&broker).await;
        if view["state"] == "connected" { Ok(()) } else { Err(view) }
    })
    .await;
}

/// One of two replicas lives five minutes in the future. The life of a token is shorter than that,
/// so each replica has another opinion of its end. No call fails, and no refresh token comes twice.
#[tokio::test]
async fn replicas_with_clocks_five_minutes_apart_share_a_grant() {
    let world = World::start(120).await;
    let clock = FakeClock::set_to("+0");
    let address = json!({"auth": {"resource": "http://127.0.0.1:9"}});
    let env = clock.env();
    let cluster = env
        .iter()
        .fold(builder().config(address).cluster(2), |cluster, (name, value)| {
            cluster.env_of(1, name, value)
        })
        .start()
        .await;
    clock.set("+5m");
    let (status, view) = cluster.operator().put_backend("default", "b", &world.spec()).await;
    assert_eq!(status, 201, "{view}");
    assert_eq!(Browser::at(cluster.replicas()[0].http_address()).connect().await, 200);
    let clients = [
        cluster.client_of(0, "/mcp/b").connected(json!({})).await,
        cluster.client_of(1, "/mcp/b").connected(json!({})).await,
    ];
    for _ in 0..10 {
        for client in &clients {
            let answer = call(client, "echo").await;
            assert_ne!(answer["isError"], true, "{answer}");
        }
    }
    // What the fast replica got outlives its end for the slow one. The backend shows which.
    world.lifetime.store(60, Ordering::Relaxed);
    world.accepted.lock().clear();
    for client in &clients {
        let answer = call(client, "echo").await;
        assert_ne!(answer["isError"], true, "{answer}");
    }
    let asked = world.server.take_token_requests();
    let refreshes = asked.iter().filter(|request| request.form.contains("refresh_token")).count();
    assert!((1..=4).contains(&refreshes), "{refreshes}");
    let (_, list) = cluster.operator().get(CONNECTIONS).await;
    assert_eq!(list["connections"][0]["state"], "connected", "{list}");
}

/// A backend whose metadata leads elsewhere gets neither a registration nor a browser.
#[tokio::test]
async fn an_authorization_url_with_another_scheme_or_internal_host_is_refused() {
    let world = World::start(3600).await;
    let broker = world.broker().await;
    let browser = Browser::new(&broker);
    for endpoint in [
        "javascript:alert(1)",
        "data:text/html,x",
        "file:///etc/passwd",
        "http://as.example/authorize",
        "https://user@169.254.169.254/",
        "//as.example/authorize",
        "",
    ] {
        world.server.set_metadata(json!({"code_challenge_methods_supported": ["S256"], "authorization_endpoint": endpoint}));
        let page = browser.send("GET", "/connect/b", "").await.text().await;
        let proof = crate::accounts::between(&page, "name=\"proof\" value=\"", "\"");
        let form = format!("proof={}", proof.unwrap_or_default());
        let sent = browser.send("POST", "/connect/b", &form).await;
        let location = sent.header("location").map(str::to_owned);
        assert_eq!((sent.status, location), (502, None), "{endpoint}");
    }
    assert_eq!(world.server.take_token_requests(), []);
    let client = broker.connected(json!({})).await;
    let error = client.error("tools/call", json!({"name": "b__nothing", "arguments": {}})).await;
    assert_eq!(kind(&error), "tool_not_found");
}
