//! Logins at the connect page: when they end, and which pages and backends they reach.

use serde_json::json;
use testkit::TestBroker;

use crate::{
    accounts::{Browser, World, between, parameter},
    builder,
};

/// Starts a broker at which tenant `acme` has backend `b`.
async fn started(world: &World) -> TestBroker {
    let broker =
        builder().single_process().auth_required().admin_token("operator-of-tests").start().await;
    create_acme(&broker, world).await;
    broker
}

async fn create_acme(broker: &TestBroker, world: &World) {
    broker.admin().put_tenant("acme", json!({})).await;
    let (status, view) = broker.admin().put_backend("acme", "b", &world.spec()).await;
    assert_eq!(status, 201, "{view}");
}

/// Returns the secret of a one-time link for a principal.
async fn link(broker: &TestBroker, principal: &str) -> String {
    let body = json!({"principal": principal, "backend": "b"});
    let (status, link) = broker.admin().post("/admin/v1/tenants/acme/connections", &body).await;
    assert_eq!(status, 201, "{link}");
    parameter(link["url"].as_str().unwrap(), "link").unwrap()
}

async fn sign_in(browser: &Browser, secret: &str) -> u16 {
    browser.send("POST", "/connect", &format!("link={secret}")).await.status
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

#[tokio::test]
async fn a_login_ends_with_its_tenant() {
    let world = World::start(3600).await;
    let broker = started(&world).await;
    let browser = Browser::new(&broker);
    assert_eq!(sign_in(&browser, &link(&broker, "ann").await).await, 303);
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
    create_acme(&broker, &world).await;
    assert_eq!(status(&browser).await, 403, "another tenant of the name");
    assert_eq!(sign_in(&Browser::new(&broker), &unused[1]).await, 403);
}

#[tokio::test]
async fn a_backend_that_the_policy_denies_has_no_page() {
    let world = World::start(3600).await;
    let broker = started(&world).await;
    let browser = Browser::new(&broker);
    assert_eq!(sign_in(&browser, &link(&broker, "ann").await).await, 303);
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
