//! Several broker processes on one PostgreSQL database, from the view of their operators.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::{
    BrokerBuilder, FakeBackend, PostgresServer, TestBroker, eventually, servers::RedisServer,
};

use super::builder;

const ACME: &str = "/admin/v1/tenants/acme";
const SECRET: &str = "one secret for all of them";

/// Returns one of several replicas on this database.
fn replica(url: &str, name: &str) -> BrokerBuilder {
    builder().config(json!({
        "listen": {"internal": "127.0.0.1:0", "tcp": "127.0.0.1:0"},
        "node": {"id": name, "secret": SECRET.replace(' ', "-")},
        "storage": {"url": url},
        "session": {"lease": "1s"},
    }))
}

async fn two(url: &str) -> (TestBroker, TestBroker) {
    tokio::join!(replica(url, "one").start(), replica(url, "two").start())
}

async fn nodes(broker: &TestBroker) -> Vec<Value> {
    let (status, answer) = broker.admin().get("/admin/v1/nodes").await;
    assert_eq!(status, 200, "{answer}");
    answer["nodes"].as_array().unwrap().clone()
}

/// Returns the part of a node's name that the operator chose.
fn id(node: &Value) -> &str {
    node["node"].as_str().unwrap().split_once('/').unwrap().0
}

async fn until_status(broker: &TestBroker, path: &str, wanted: u16) -> Value {
    eventually(&format!("{path} answers {wanted}"), || async {
        let (status, answer) = broker.admin().get(path).await;
        if status == wanted { Ok(answer) } else { Err((status, answer)) }
    })
    .await
}

async fn initialize(broker: &TestBroker, key: &str) -> u16 {
    let body = super::initialize_body("2025-11-25");
    broker.client("/mcp").bearer(key).post(body).await.status
}

#[tokio::test]
async fn a_precondition_holds_against_a_change_at_another_replica() {
    let server = PostgresServer::fast().await;
    let (one, two) = two(&server.database().await).await;
    one.admin().put_tenant("acme", json!({"weight": 1})).await;
    until_status(&two, "/admin/v1/tenants/acme", 200).await;
    let tag_of = async |broker: &TestBroker| {
        let shown = broker.admin().send_with("GET", ACME, &[], None).await;
        shown.header("etag").unwrap().to_owned()
    };
    for round in 1..=10 {
        let tag = eventually("both replicas show one version", || async {
            let (first, second) = tokio::join!(tag_of(&one), tag_of(&two));
            if first == second { Ok(first) } else { Err((first, second)) }
        })
        .await;
        let put = async |broker: &TestBroker, weight: u64| {
            let body = json!({"weight": weight});
            broker.admin().send_with("PUT", ACME, &[("if-match", &tag)], Some(&body)).await.status
        };
        let mut statuses =
            <[u16; 2]>::from(tokio::join!(put(&one, 2 * round), put(&two, 2 * round + 1)));
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 412], "in round {round}");
    }
}

#[tokio::test]
async fn replicas_that_start_at_once_share_tenants_keys_and_backends() {
    let server = PostgresServer::fast().await;
    let (one, two) = two(&server.database().await).await;
    let seen = nodes(&one).await;
    assert_eq!(seen.iter().map(id).collect::<Vec<_>>(), ["one", "two"], "{seen:?}");
    assert!(seen.iter().all(|node| node["address"].as_str().unwrap().starts_with("127.0.0.1:")
        && node["lease_ms"].as_u64() > Some(0)));
    assert_eq!(
        seen.iter().map(|node| node["is_this"].as_bool().unwrap()).collect::<Vec<_>>(),
        [true, false]
    );

    one.admin().put_tenant("acme", json!({"weight": 3})).await;
    let (key_id, key) = two.admin().create_key_with_id("acme").await;
    assert_eq!(initialize(&one, &key).await, 200, "the key works on the other replica");
    let backend = json!({"transport": {"type": "http", "url": "http://127.0.0.1:9/"}});
    one.admin().put("/admin/v1/tenants/acme/backends/files?wait=false", &backend).await;
    until_status(&two, "/admin/v1/tenants/acme/backends/files", 200).await;
    assert_eq!(two.admin().delete("/admin/v1/tenants/acme/backends/files").await.0, 204);
    until_status(&one, "/admin/v1/tenants/acme/backends/files", 404).await;
    assert_eq!(one.admin().delete(&format!("/admin/v1/tenants/acme/keys/{key_id}")).await.0, 204);
    eventually("the key is revoked on the other replica", || async {
        if initialize(&two, &key).await == 401 { Ok(()) } else { Err("not yet") }
    })
    .await;
}

#[tokio::test]
async fn a_new_key_is_valid_at_once_at_other_replicas() {
    let server = PostgresServer::fast().await;
    let (one, two) = two(&server.database().await).await;
    one.admin().put_tenant("acme", json!({})).await;
    // Several in a row: a replica does not read the database after each of them by itself.
    for round in 0..10 {
        let (key_id, key) = one.admin().create_key_with_id("acme").await;
        assert_eq!(initialize(&two, &key).await, 200, "over HTTP, {round}");
        let other_end = if key.ends_with('x') { 'y' } else { 'x' };
        let wrong = format!("{}{other_end}", &key[..key.len() - 1]);
        assert_eq!(initialize(&two, &wrong).await, 401);
        let (status, made) = one
            .admin()
            .post("/admin/v1/operators", &json!({"name": format!("o{round}"), "role": "viewer"}))
            .await;
        assert_eq!(status, 201, "{made}");
        let operator = two.admin().with_token(made["token"].as_str());
        assert_eq!(operator.get("/admin/v1/tenants").await.0, 200, "an operator, {round}");
        let (_, key) = two.admin().create_key_with_id("acme").await;
        let meta = json!({"dev.mcp-broker/token": key});
        let answer = one.duplex().tcp(one.tcp_address()).await.initialize(json!({}), meta).await;
        assert!(answer["result"].is_object(), "over TCP, {round}: {answer}");
        let revoked = format!("/admin/v1/tenants/acme/keys/{key_id}");
        assert_eq!(one.admin().delete(&revoked).await.0, 204);
    }
}

#[tokio::test]
async fn a_breaker_held_open_is_open_on_every_replica_and_after_a_restart() {
    let server = PostgresServer::fast().await;
    let (mut one, two) = two(&server.database().await).await;
    let backend = FakeBackend::echo().await;
    one.admin().put_tenant("acme", json!({})).await;
    one.admin().put_backend("acme", "b", &backend.spec()).await;
    let path = "/admin/v1/tenants/acme/backends/b";
    until_status(&two, path, 200).await;
    let held = |broker: &TestBroker, wanted: Option<&'static str>| {
        let admin = broker.admin();
        async move {
            eventually("the breaker", || async {
                let view = admin.backend("acme", "b").await;
                if view["breaker"]["reason"].as_str() == wanted { Ok(view) } else { Err(view) }
            })
            .await
        }
    };
    let breaker = format!("{path}/breaker");
    assert_eq!(one.admin().post(&breaker, &json!({"state": "open"})).await.0, 200);
    let (of_one, of_two) = (held(&one, Some("operator")).await, held(&two, Some("operator")).await);
    assert_ne!(of_one["replica"], of_two["replica"], "each tells of its own");
    // A new body, from the other replica, changes nothing, and neither does a restart.
    let mut spec = backend.spec();
    spec["timeouts"] = json!({"call": "9s"});
    let (_, view) = two.admin().put(path, &spec).await;
    assert_eq!(view["breaker"]["reason"], "operator", "{view}");
    assert!(one.terminate().await.success());
    one.restart().await;
    assert_eq!(one.admin().backend("acme", "b").await["breaker"]["reason"], "operator");
    assert_eq!(one.admin().post(&breaker, &json!({"state": "closed"})).await.0, 200);
    held(&one, None).await;
    held(&two, None).await;
    assert_eq!(two.admin().post(&breaker, &json!({"state": "open"})).await.0, 200);
    held(&one, Some("operator")).await;
    // A new backend of the same name starts fresh.
    assert_eq!(two.admin().delete(path).await.0, 204);
    until_status(&one, path, 404).await;
    one.admin().put_backend("acme", "b", &backend.spec()).await;
    assert!(one.admin().backend("acme", "b").await["breaker"]["reason"].is_null());
    until_status(&two, path, 200).await;
    held(&two, None).await;
}

#[tokio::test]
async fn a_stopped_replica_leaves_and_the_lease_of_a_killed_one_lapses() {
    let server = PostgresServer::fast().await;
    let url = server.database().await;
    let (one, mut two) = two(&url).await;
    assert!(two.terminate().await.success());
    let left = nodes(&one).await;
    assert_eq!(left.iter().map(id).collect::<Vec<_>>(), ["one"], "{left:?}");
    two.restart().await;
    assert_eq!(nodes(&one).await.len(), 2);
    two.kill().await;
    eventually("its lease lapses", || async {
        let seen = nodes(&one).await;
        if seen.len() == 1 { Ok(()) } else { Err(seen) }
    })
    .await;
    let listed = one.cli(&["node", "list"]).await;
    assert_eq!((listed.code, listed.stdout.lines().count()), (Some(0), 2), "{listed:?}");
}

#[tokio::test]
async fn a_database_outage_is_reported_and_survived() {
    let mut server = PostgresServer::fast().await;
    let url = server.url();
    let broker = replica(&url, "one").start().await;
    let before = nodes(&broker).await[0]["node"].clone();
    server.stop_immediate().await;
    let asked = Instant::now();
    for (method, path, body) in [
        ("GET", "/admin/v1/sessions", None),
        ("GET", "/admin/v1/tasks", None),
        ("GET", "/admin/v1/subscriptions", None),
        ("GET", "/admin/v1/nodes", None),
        ("DELETE", "/admin/v1/sessions/0123456789abcdef", None),
        ("PUT", "/admin/v1/tenants/acme", Some(json!({}))),
    ] {
        let answer = broker.admin().send(method, path, body.as_ref()).await;
        let (status, problem) = (answer.status, answer.json().await);
        assert_eq!(
            (status, &problem["type"]),
            (503, &json!("urn:mcp-broker:problem:store-unavailable")),
            "{method} {path}: {problem}"
        );
    }
    assert!(asked.elapsed() < Duration::from_secs(18), "no call hangs: {:?}", asked.elapsed());
    assert_eq!(
        broker.admin().get("/admin/v1/tenants").await.0,
        200,
        "what is in force needs no database"
    );
    let answer = until_status(&broker, "/readyz", 503).await;
    assert_eq!(answer["status"], "store_unavailable");
    let accepting = async || broker.admin().metric("mcp_accepting", &[]).await;
    assert_eq!(accepting().await, Some(0.0));
    server.start_again().await;
    until_status(&broker, "/readyz", 200).await;
    assert_eq!(accepting().await, Some(1.0));
    let after = nodes(&broker).await;
    assert_eq!(after.len(), 1, "{after:?}");
    assert_ne!(after[0]["node"], before, "a lapsed name does not come back");
    broker.admin().put_tenant("acme", json!({})).await;
    let labels = [("outcome", "lost")];
    broker.admin().wait_metric("mcp_node_lease_renewals_total", &labels, |lost| lost >= 1.0).await;
}

#[tokio::test]
async fn a_start_without_the_database_fails_with_a_message() {
    let folder = tempfile::tempdir().unwrap();
    let config = json!({
        "listen": {"http": "127.0.0.1:0", "admin": "127.0.0.1:0"},
        "node": {"secret": "0123456789abcdef"},
        "storage": {"url": "postgres://broker:hush-hush@127.0.0.1:9/none"},
    });
    std::fs::write(folder.path().join("config.yaml"), config.to_string()).unwrap();
    for command in ["serve", "migrate"] {
        let ended = builder().run(folder.path(), &[command, "--config", "config.yaml"]).await;
        assert_eq!(ended.code, Some(69), "{command}: {ended:?}");
        assert!(
            ended.stderr.contains("database") && !ended.stderr.contains("hush-hush"),
            "{ended:?}"
        );
    }
}

#[tokio::test]
async fn migrate_brings_a_server_up_to_date() {
    let server = PostgresServer::fast().await;
    let url = server.database().await;
    let folder = tempfile::tempdir().unwrap();
    let config = json!({"node": {"secret": "0123456789abcdef"}, "storage": {"url": url, "migrate_on_start": false}});
    std::fs::write(folder.path().join("config.yaml"), config.to_string()).unwrap();
    let early = builder().run(folder.path(), &["serve", "--config", "config.yaml"]).await;
    assert_eq!(early.code, Some(69), "{early:?}");
    let migrated = builder().run(folder.path(), &["migrate", "--config", "config.yaml"]).await;
    assert_eq!(
        (migrated.code, migrated.stdout.trim()),
        (Some(0), "the schema of the PostgreSQL database is up to date"),
        "{migrated:?}"
    );
    replica(&url, "one").config(json!({"storage": {"migrate_on_start": false}})).start().await;
}

#[tokio::test]
async fn redis_outages_and_returns_are_tolerated() {
    let (server, redis) = (PostgresServer::fast().await, RedisServer::start().await);
    let url = server.database().await;
    let with_redis =
        |name| replica(&url, name).config(json!({"storage": {"redis_url": redis.url()}}));
    let one = with_redis("one").start().await;
    redis.kill().await;
    let two = with_redis("two").start().await;
    two.wait_for_log("Redis cannot be reached").await;
    one.admin().put_tenant("acme", json!({"weight": 2})).await;
    until_status(&two, "/admin/v1/tenants/acme", 200).await;
    redis.start_again().await;
    for broker in [&one, &two] {
        broker
            .admin()
            .wait_metric("mcp_hot_store_connected", &[("store", "redis")], |connected| {
                connected == 1.0
            })
            .await;
    }
    two.admin().put_tenant("acme", json!({"weight": 3})).await;
    eventually("the change is known", || async {
        let (_, tenant) = one.admin().get("/admin/v1/tenants/acme").await;
        if tenant["weight"] == 3 { Ok(()) } else { Err(tenant) }
    })
    .await;
}

#[tokio::test]
async fn an_operator_ends_a_session_from_any_replica() {
    let server = PostgresServer::fast().await;
    let (one, two) = two(&server.database().await).await;
    let client = one.connected(json!({})).await;
    let seen = two.admin().sessions("default").await;
    assert_eq!(seen.len(), 1, "{seen:?}");
    let id = seen[0]["id"].as_str().unwrap();
    assert!(
        seen[0]["node"].as_str().unwrap().starts_with("one/")
            && seen[0]["protocol_version"] == "2025-11-25",
        "{seen:?}"
    );
    assert!(!seen[0]["client_name"].as_str().unwrap().is_empty(), "{seen:?}");
    assert_eq!(two.admin().delete(&format!("/admin/v1/sessions/{id}")).await.0, 204);
    eventually("the session has ended where it was", || async {
        let answer = client.post(super::request(7, "ping", json!({}))).await;
        if answer.status == 404 { Ok(()) } else { Err(answer.status) }
    })
    .await;
    until_status(&two, &format!("/admin/v1/sessions/{id}"), 404).await;
}
