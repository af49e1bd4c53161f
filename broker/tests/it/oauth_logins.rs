//! Logins at the connect page: when they end, and which pages and backends they reach.

use serde_json::json;
use testkit::{AdminClient, FakeClock, TestBroker, Topology, eventually};

use crate::{
    accounts::{Browser, World, between, parameter},
    builder, clocks,
};

/// Starts a broker at which tenant `acme` has backend `b`.
async fn started(world: &World) -> TestBroker {
    let broker =
        builder().single_process().auth_required().admin_token("operator-of-tests").start().await;
    create_acme(&broker.admin(), world).await;
    broker
}

async fn create_acme(admin: &AdminClient, world: &World) {
    admin.put_tenant("acme", json!({})).await;
    let (status, view) = admin.put_backend("acme", "b", &world.spec()).await;
    assert_eq!(status, 201, "{view}");
}

/// Returns the secret of a one-time link for a principal.
async fn link(broker: &TestBroker, principal: &str) -> String {
    link_of(&broker.admin(), principal).await
}

async fn link_of(admin: &AdminClient, principal: &str) -> String {
    let body = json!({"principal": principal, "backend": "b"});
    let (status, link) = admin.post("/admin/v1/tenants/acme/connections", &body).await;
    assert_eq!(status, 201, "{link}");
    parameter(link["url"].as_str().unwrap(), "link").unwrap()
}

async fn sign_in(browser: &Browser, secret: &str) -> u16 {
    browser.send("POST", "/connect", &format!("link={secret}")).await.status
}

/// Returns a browser at which the principal `ann` is signed in.
async fn signed_in(broker: &TestBroker) -> Browser {
    let browser = Browser::new(broker);
    assert_eq!(sign_in(&browser, &link(broker, "ann").await).await, 303);
    browser
}

async fn status(browser: &Browser) -> u16 {
    browser.send("GET", "/connect/b", "").await.status
}

#[tokio::test]
async fn a_login_ends_with_its_principal() {
    let world = World::start(3600).await;
    let broker = started(&world).await;
    let (browser, other) = (Browser::new(&broker), Browser::new(&broker));
    assert_eq!(sign_in(&browser, &link(&broker, "ann").await).await, 303);
    assert_eq!(sign_in(&other, &link(&broker, "bob").await).await, 303);
    let unused = link(&broker, "ann").await;
    let page = browser.send("GET", "/connect/b", "").await.text().await;
    let proof = between(&page, "name=\"proof\" value=\"", "\"").unwrap().to_owned();
    let path = "/admin/v1/tenants/acme/revocations";
    assert_eq!(broker.admin().post(path, &json!({"principal": "ann"})).await.0, 201);
    assert_eq!(status(&browser).await, 403);
    let form = format!("proof={proof}");
    assert_eq!(browser.send("POST", "/connect/b", &form).await.status, 403);
    assert_eq!(sign_in(&browser, &unused).await, 403, "a link from before the revocation");
    assert_eq!(status(&other).await, 200, "of another principal");
    assert_eq!(sign_in(&browser, &link(&broker, "ann").await).await, 303);
    assert_eq!(status(&browser).await, 200, "with a newer link");
}

/// The time of a login and that of a revocation are of the database's clock.
#[tokio::test]
async fn a_login_of_a_replica_whose_clock_is_ahead_ends_with_its_principal() {
    let (world, clock) = (World::start(3600).await, FakeClock::set_to("+0"));
    let settings = builder()
        .auth_required()
        .admin_token("operator-of-tests")
        .config(json!({"auth": {"resource": "http://127.0.0.1:9"}}));
    let env = clock.env();
    let cluster = env
        .iter()
        .fold(settings.cluster(2), |cluster, (name, value)| cluster.env_of(1, name, value))
        .start()
        .await;
    create_acme(&cluster.operator(), &world).await;
    clocks::set(&cluster, &clock, "+5m").await;
    let browser = Browser::at(cluster.replicas()[1].http_address());
    let [used, unused] =
        [link_of(&cluster.admin(1), "ann").await, link_of(&cluster.admin(1), "ann").await];
    assert_eq!(sign_in(&browser, &used).await, 303);
    assert_eq!(status(&browser).await, 200);
    let path = "/admin/v1/tenants/acme/revocations";
    assert_eq!(cluster.admin(0).post(path, &json!({"principal": "ann"})).await.0, 201);
    eventually("the end of the login", || async {
        let status = status(&browser).await;
        if status == 403 { Ok(()) } else { Err(status) }
    })
    .await;
    assert_eq!(sign_in(&browser, &unused).await, 403, "a link from before the revocation");
    assert_eq!(sign_in(&browser, &link_of(&cluster.admin(1), "ann").await).await, 303);
    assert_eq!(status(&browser).await, 200, "with a newer link");
}

#[tokio::test]
async fn a_login_ends_with_its_tenant() {
    let world = World::start(3600).await;
    let broker = started(&world).await;
    let browser = signed_in(&broker).await;
    let unused = [link(&broker, "ann").await, link(&broker, "ann").await];
    assert_eq!(status(&browser).await, 200);
    let admin = broker.admin();
    admin.put_tenant("acme", json!({"enabled": false})).await;
    assert_eq!(status(&browser).await, 403);
    assert_eq!(sign_in(&Browser::new(&broker), &unused[0]).await, 403);
    admin.put_tenant("acme", json!({"enabled": true})).await;
    assert_eq!(status(&browser).await, 200);
    assert_eq!(admin.delete("/admin/v1/tenants/acme").await.0, 204);
    assert_eq!(status(&browser).await, 403);
    create_acme(&broker.admin(), &world).await;
    assert_eq!(status(&browser).await, 403, "another tenant of the name");
    assert_eq!(sign_in(&Browser::new(&broker), &unused[1]).await, 403);
}

#[tokio::test]
async fn a_backend_that_the_policy_denies_has_no_page() {
    let world = World::start(3600).await;
    let broker = started(&world).await;
    let browser = signed_in(&broker).await;
    for (rules, allowed) in [
        (json!([{"id": "r", "effect": "deny", "objects": {"backends": ["b"]}}]), false),
        (json!([{"id": "r", "effect": "deny", "objects": {"backends": ["_broker"]}}]), true),
        (json!([{"id": "r", "effect": "deny", "subjects": {"principals": ["bob"]}}]), true),
        // The groups of a person with a link are unknown.
        (json!([{"id": "r", "effect": "deny", "subjects": {"groups": ["guests"]}}]), false),
    ] {
        let policy = json!({"rules": rules});
        let (stored, view) = broker.admin().put("/admin/v1/tenants/acme/policy", &policy).await;
        assert!(stored < 300, "{view}");
        let list = browser.send("GET", "/connect", "").await.text().await;
        assert_eq!(list.contains("/connect/b"), allowed, "{policy} {list}");
        let wanted = if allowed { 200 } else { 404 };
        assert_eq!(status(&browser).await, wanted, "{policy}");
        let sent = browser.send("POST", "/connect/b", "proof=x").await.status;
        assert_eq!(sent, if allowed { 403 } else { 404 }, "{policy}");
    }
}

#[tokio::test]
async fn a_form_counts_only_from_the_origin_of_the_pages() {
    let world = World::start(3600).await;
    let broker = started(&world).await;
    let own = broker.url("");
    let port = broker.http_address().port();
    let secret = link(&broker, "ann").await;
    let form = format!("link={secret}");
    for origin in [
        "http://localhost:31337".to_owned(),
        format!("http://localhost:{port}"),
        "https://evil.example".to_owned(),
        "null".to_owned(),
    ] {
        let browser = Browser::new(&broker);
        let sent = browser.send_from(Some(&origin), "POST", "/connect", &form).await;
        assert_eq!((sent.status, sent.header("set-cookie")), (403, None), "{origin}");
    }
    let browser = Browser::new(&broker);
    let sent = browser.send_from(Some(&own), "POST", "/connect", &form).await;
    assert_eq!(sent.status, 303, "{own}");
}

#[tokio::test]
async fn pages_that_anyone_can_open_search_the_server_once() {
    let world = World::start(3600).await;
    let broker = world.broker().await;
    let browser = Browser::new(&broker);
    assert_eq!(status(&browser).await, 200);
    let before = world.server.metadata_requests();
    for _ in 0..20 {
        assert_eq!(status(&browser).await, 200);
    }
    assert_eq!(world.server.metadata_requests(), before);
    // The form finds a server that has changed, and the person sees it first.
    let page = browser.send("GET", "/connect/b", "").await.text().await;
    let proof = between(&page, "name=\"proof\" value=\"", "\"").unwrap();
    let form = format!("proof={proof}&server=https%3A%2F%2Fother.example");
    assert_eq!(browser.send("POST", "/connect/b", &form).await.status, 200);
    assert!(world.server.metadata_requests() > before);
    assert!(browser.start_login().await.starts_with(world.server.issuer()));
}

#[tokio::test]
async fn a_form_counts_only_for_the_person_whom_it_names() {
    let world = World::start(3600).await;
    let broker = started(&world).await;
    let browser = signed_in(&broker).await;
    let form = format!("proof={}", browser.proof_for("b").await);
    assert_eq!(sign_in(&browser, &link(&broker, "bob").await).await, 303);
    for form in [form.clone(), format!("{form}&action=end")] {
        assert_eq!(browser.send("POST", "/connect/b", &form).await.status, 403);
    }
    let form = format!("proof={}", browser.proof_for("b").await);
    assert_eq!(browser.send("POST", "/connect/b", &form).await.status, 303);
}

#[tokio::test]
async fn the_answer_to_a_login_counts_only_for_the_url_of_its_start() {
    let (world, other) = (World::start(3600).await, World::start(3600).await);
    let broker = started(&world).await;
    let browser = signed_in(&broker).await;
    let request = browser.start_login().await;
    // The other backend names the same authorization server.
    other.name_server(world.server.issuer());
    let mut spec = world.spec();
    spec["transport"] = other.spec()["transport"].clone();
    assert_eq!(broker.admin().put_backend("acme", "b", &spec).await.0, 200);
    assert_eq!(browser.answer(&request, "&code=code-1").await, 502);
    assert_eq!(world.server.take_token_requests(), []);
    assert_eq!(browser.connect().await, 200, "a new login is for the new URL");
}

#[tokio::test]
async fn a_login_that_ends_after_its_backend_was_removed_connects_no_account() {
    let world = World::start(3600).await;
    let broker = started(&world).await;
    let browser = signed_in(&broker).await;
    let request = browser.start_login().await;
    world.server.hold_tokens(true);
    let answering = async { browser.answer(&request, "&code=code-1").await };
    let removing = async {
        eventually("the token request", || async {
            if world.server.token_requests().is_empty() { Err(()) } else { Ok(()) }
        })
        .await;
        assert_eq!(broker.admin().delete("/admin/v1/tenants/acme/backends/b").await.0, 204);
        world.server.hold_tokens(false);
    };
    let (status, ()) = tokio::join!(answering, removing);
    assert_eq!(status, 403);
    let (_, list) = broker.admin().get("/admin/v1/tenants/acme/connections").await;
    assert_eq!(list["connections"], json!([]));
}

#[tokio::test]
async fn the_connect_page_is_part_of_the_rate_of_its_tenant() {
    let world = World::start(3600).await;
    let broker = started(&world).await;
    let limits = json!({"limits": {"requests_per_second": 1, "burst": 2}});
    broker.admin().put_tenant("acme", limits).await;
    let browser = signed_in(&broker).await;
    let form = format!("proof={}", browser.proof_for("b").await);
    let mut statuses = Vec::new();
    for _ in 0..6 {
        let sent = browser.send("POST", "/connect/b", &form).await;
        statuses.push((sent.status, sent.header("retry-after").is_some()));
    }
    assert_eq!(statuses[0], (303, false));
    assert!(statuses.contains(&(429, true)), "{statuses:?}");
}

#[tokio::test]
async fn the_logins_of_one_principal_take_limited_space() {
    let world = World::start(3600).await;
    let broker = builder()
        .on(Topology::Sqlite)
        .single_process()
        .auth_required()
        .admin_token("operator-of-tests")
        .config(json!({"limits": {"requests_per_second_per_principal": 0}}))
        .start()
        .await;
    create_acme(&broker.admin(), &world).await;
    let browser = signed_in(&broker).await;
    let form = format!("proof={}", browser.proof_for("b").await);
    for _ in 0..40 {
        assert_eq!(browser.send("POST", "/connect/b", &form).await.status, 303);
    }
    let count = "import sqlite3; print(sqlite3.connect('file:broker.db?mode=ro', uri=True)
        .execute(\"SELECT count(*) FROM upstream_secrets WHERE kind = 'login'\").fetchone()[0])";
    let mut python = tokio::process::Command::new("python3");
    let output = python.args(["-c", count]).current_dir(broker.folder()).output().await.unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), "16");
}
