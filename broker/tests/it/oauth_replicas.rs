//! Accounts over replicas: the page is served by one, and the client lives at another.

use std::sync::Arc;

use serde_json::{Value, json};
use testkit::{EventReader, TestClient, TestCluster, eventually};

use crate::{
    accounts::{Browser, World, call, member},
    builder,
    oauth_exchange::{self, Protected, identity_provider},
    stateless::Modern,
    text_of,
};

/// The tests send the requests of browsers to one of the replicas.
const ADDRESS: &str = "http://127.0.0.1:9";

async fn cluster_of(world: &World, redis: bool, catalog_auth: &str) -> TestCluster {
    let cluster = builder().config(json!({"auth": {"resource": ADDRESS}})).cluster(2);
    let cluster = if redis { cluster } else { cluster.without_redis() }.start().await;
    let mut spec = world.spec();
    spec["auth"]["catalog_auth"] = json!(catalog_auth);
    let (status, view) = cluster.operator().put_backend("default", "b", &spec).await;
    assert_eq!(status, 201, "{view}");
    cluster
}

/// Returns a client at each replica.
async fn one_at_each(cluster: &TestCluster, path: &str) -> [TestClient; 2] {
    [
        cluster.client_of(0, path).connected(json!({})).await,
        cluster.client_of(1, path).connected(json!({})).await,
    ]
}

/// Asks for an account as MCP 2025-11-25 does. Returns the id of the elicitation.
async fn request_account(client: &TestClient) -> Value {
    let error = client.error("tools/call", json!({"name": "b__connect", "arguments": {}})).await;
    assert_eq!(error["code"], -32042, "{error}");
    error["data"]["elicitations"][0]["elicitationId"].clone()
}

async fn completes(events: &mut EventReader, id: &Value) {
    events
        .find(|message| {
            message["method"] == "notifications/elicitation/complete"
                && message["params"]["elicitationId"] == *id
        })
        .await;
}

async fn works(client: &TestClient) {
    client.wait_tools(&["b__echo"]).await;
    assert_ne!(call(client, "b__echo").await["isError"], true);
    let again = call(client, "b__connect").await;
    assert!(text_of(&again).contains("is connected"), "{again}");
}

#[tokio::test]
async fn a_client_at_another_replica_is_notified_of_its_connected_account() {
    for (redis, catalog_auth) in [(true, "first_user"), (false, "per_principal")] {
        let world = World::start(3600).await;
        let cluster = cluster_of(&world, redis, catalog_auth).await;
        let opens = json!({"elicitation": {"url": {}}});
        let clients = [
            cluster.client_of(0, "/mcp").connected(opens.clone()).await,
            cluster.client_of(1, "/mcp").connected(opens.clone()).await,
        ];
        let mut streams = Vec::new();
        for client in &clients {
            let id = request_account(client).await;
            let mut events = client.open_get_stream().await;
            events.next().await;
            streams.push((events, id));
        }
        let modern = |replica: usize| {
            Modern::at(cluster.replicas()[replica].http_address(), "/mcp", opens.clone())
        };
        let params = json!({"name": "b__connect", "arguments": {}});
        let required = modern(1).answer("tools/call", params).await;
        assert_eq!(required["result"]["resultType"], "input_required", "{required}");
        assert_eq!(Browser::at(cluster.replicas()[0].http_address()).connect().await, 200);
        for (events, id) in &mut streams {
            completes(events, id).await;
        }
        for client in &clients {
            works(client).await;
        }
        // The client without a session comes back at either replica.
        let requests = required["result"]["inputRequests"].as_object().unwrap();
        let answers: serde_json::Map<String, Value> =
            requests.keys().map(|key| (key.clone(), json!({"action": "accept"}))).collect();
        let state = &required["result"]["requestState"];
        let answers = Value::Object(answers);
        let again = modern(0).retry("b__connect", json!({}), state, answers).await;
        assert!(text_of(&again["result"]).contains("is connected"), "{again}");
        assert_ne!(modern(1).call("b__echo", json!({})).await["isError"], true);
    }
}

#[tokio::test]
async fn a_moved_session_is_notified_of_its_account_by_its_new_owner() {
    connect_before_a_session_moves(&World::start(3600).await).await;
}

/// The login is over, though the server granted less than the broker requested.
#[tokio::test]
async fn a_moved_session_is_notified_of_an_account_with_fewer_scopes() {
    let world = World::start(3600).await;
    world.server.set_metadata(json!({
        "code_challenge_methods_supported": ["S256"], "scopes_supported": ["base", "offline_access"],
    }));
    let accepted = world.accepted.clone();
    world.server.answer_tokens(Arc::new(move |request, number| {
        accepted.lock().insert(format!("Bearer token-{number}"));
        assert_ne!(member(request, "code"), None);
        (200, json!({"access_token": format!("token-{number}"), "token_type": "Bearer", "expires_in": 3600, "scope": "base"}))
    }));
    connect_before_a_session_moves(&world).await;
}

async fn connect_before_a_session_moves(world: &World) {
    let mut cluster = cluster_of(world, true, "first_user").await;
    let client = cluster.client_of(1, "/mcp").connected(json!({"elicitation": {"url": {}}})).await;
    let id = request_account(&client).await;
    // What the client was asked is on disk shortly after.
    eventually("the stored question", || async {
        let rows = cluster
            .sql("SELECT count(*) FROM sessions WHERE encode(state, 'escape') LIKE '%connect:b:%'")
            .await;
        if rows == "1" { Ok(()) } else { Err(rows) }
    })
    .await;
    cluster.kill(1).await;
    assert_eq!(Browser::at(cluster.replicas()[0].http_address()).connect().await, 200);
    let moved = cluster.at(0, &client);
    let mut events = eventually("the session", || async {
        let stream = moved.get_stream_raw(None).await;
        if stream.status == 200 { Ok(stream.events()) } else { Err(stream.status) }
    })
    .await;
    completes(&mut events, &id).await;
    works(&moved).await;
}

/// A scope that a user granted at one replica counts at the other at once.
#[tokio::test]
async fn newly_granted_scopes_are_valid_at_every_replica() {
    let world = World::start(3600).await;
    let cluster = cluster_of(&world, true, "first_user").await;
    let browser = Browser::at(cluster.replicas()[0].http_address());
    assert_eq!(browser.connect().await, 200);
    let client = cluster.client_of(1, "/mcp/b").connected(json!({})).await;
    assert_ne!(call(&client, "echo").await["isError"], true);
    world.gate(true);
    let answer = call(&client, "echo").await;
    assert!(answer.to_string().contains("/connect/b"), "{answer}");
    let before = world.accepted.lock().clone();
    assert_eq!(browser.connect().await, 200);
    // From now on the backend refuses the tokens from before for want of the scope.
    world.gate_except(before);
    let answer = call(&client, "echo").await;
    assert_ne!(answer["isError"], true, "{answer}");
}

/// A replica has a token that was made of the sign-in, and the sign-in ends at the other one.
#[tokio::test]
async fn a_sign_in_that_ends_at_one_replica_ends_its_tokens_at_the_other_one() {
    let protected = Protected::start(|request| oauth_exchange::member(request, "assertion")).await;
    let (provider, _claims) = identity_provider().await;
    let settings = json!({"issuer": provider.issuer(), "client_id": "broker-at-idp"});
    let spec = protected.spec(json!({"type": "enterprise", "provider": settings}));
    let cluster = builder().config(json!({"auth": {"resource": ADDRESS}})).cluster(2).start().await;
    assert_eq!(cluster.operator().put_backend("default", "b", &spec).await.0, 201);
    assert_eq!(Browser::at(cluster.replicas()[0].http_address()).connect().await, 200);
    let client = cluster.client_of(1, "/mcp/b").connected(json!({})).await;
    assert_ne!(call(&client, "echo").await["isError"], true);
    let path = "/admin/v1/tenants/default/connections/anonymous/b";
    assert_eq!(cluster.admin(0).delete(path).await.0, 204);
    eventually("the end of the token", || async {
        let answer = call(&client, "echo").await;
        if answer.to_string().contains("/connect/b") { Ok(()) } else { Err(answer) }
    })
    .await;
}

/// The stored token is newer than that of one replica when the backend refuses all of them. That
/// replica has its own token refused, then the stored one, and gets a third.
#[tokio::test]
async fn a_stored_token_that_is_also_refused_is_renewed() {
    let world = World::start(3600).await;
    let cluster = cluster_of(&world, true, "first_user").await;
    assert_eq!(Browser::at(cluster.replicas()[0].http_address()).connect().await, 200);
    let clients = one_at_each(&cluster, "/mcp/b").await;
    for client in &clients {
        assert_ne!(call(client, "echo").await["isError"], true);
    }
    for _ in 0..5 {
        for client in &clients {
            world.accepted.lock().clear();
            let answer = call(client, "echo").await;
            assert_ne!(answer["isError"], true, "{answer}");
        }
    }
}

/// Both replicas have the same token when the backend refuses it. One of them uses the refresh token,
/// and the other one waits for the result.
#[tokio::test]
async fn a_refresh_token_is_used_by_one_replica_while_the_other_one_waits() {
    let world = World::start(3600).await;
    let cluster = cluster_of(&world, true, "first_user").await;
    assert_eq!(Browser::at(cluster.replicas()[0].http_address()).connect().await, 200);
    let clients = one_at_each(&cluster, "/mcp").await;
    for client in &clients {
        works(client).await;
    }
    world.server.hold_tokens(true);
    world.accepted.lock().clear();
    let count = || {
        let asked = world.server.token_requests();
        asked.iter().filter(|one| one.form.contains("grant_type=refresh_token")).count()
    };
    let reads = async |replica: usize| {
        let labels = [("operation", "get_grant")];
        cluster.admin(replica).metric("mcp_store_seconds_count", &labels).await.unwrap_or_default()
    };
    let released = async {
        eventually("the use of the refresh token", || async {
            let count = count();
            if count > 0 { Ok(()) } else { Err(count) }
        })
        .await;
        let before = [reads(0).await, reads(1).await];
        eventually("a replica that waits", || async {
            let now = [reads(0).await, reads(1).await];
            let waits = (0..2).any(|replica| now[replica] >= before[replica] + 3.0);
            if waits { Ok(()) } else { Err(now) }
        })
        .await;
        world.server.hold_tokens(false);
    };
    let (one, other, ()) =
        tokio::join!(call(&clients[0], "b__echo"), call(&clients[1], "b__echo"), released);
    for answer in [one, other] {
        assert_ne!(answer["isError"], true, "{answer}");
    }
    assert_eq!(count(), 1);
}
