//! What binds an account at a backend: a login to its person, its browser and its server, a grant to
//! its backend and its URL, and a sealed row to its key.

use std::{
    collections::HashSet,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use testkit::{
    AuthorizationServer, BrokerBuilder, FakeBackend, FakeClock, TestBroker, TestClient,
    TokenRequest, Topology, eventually,
};

use crate::{
    accounts::{Browser, World, assert_proves, between, call, form_text, member, parameter},
    audit_chain::edit,
    builder, text_of,
};

const CONNECTIONS: &str = "/admin/v1/tenants/default/connections";

/// Returns a broker that demands a credential, alone.
fn guarded() -> BrokerBuilder {
    builder().single_process().auth_required().admin_token("operator-of-tests")
}

/// Adds the backend of a world under this name.
async fn add(broker: &TestBroker, world: &World, (tenant, name): (&str, &str)) {
    let (status, view) = broker.admin().put_backend(tenant, name, &world.spec()).await;
    assert_eq!(status, 201, "{view}");
}

/// Makes a one-time link. Returns its secret.
async fn link(broker: &TestBroker, principal: &str) -> String {
    let body = json!({"principal": principal, "backend": "b"});
    let (status, link) = broker.admin().post(CONNECTIONS, &body).await;
    assert_eq!(status, 201, "{link}");
    parameter(link["url"].as_str().unwrap(), "link").unwrap()
}

/// Signs the browser in as this principal of the tenant `default`.
async fn sign_in(browser: &Browser, broker: &TestBroker, principal: &str) {
    let secret = link(broker, principal).await;
    let sent = browser.send("POST", "/connect", &format!("link={secret}")).await;
    assert_eq!(sent.status, 303);
}

/// Returns a client of a new key of the principal.
async fn client(broker: &TestBroker, tenant: &str, principal: &str) -> TestClient {
    let path = format!("/admin/v1/tenants/{tenant}/keys");
    let (status, key) = broker.admin().post(&path, &json!({"principal": principal})).await;
    assert_eq!(status, 201, "{key}");
    broker.client("/mcp").bearer(key["key"].as_str().unwrap()).connected(json!({})).await
}

/// Calls the echo of a backend until the answer asks for a connection.
async fn assert_connect_required(client: &TestClient, tool: &str) {
    eventually("the address of the page", || async {
        let answer = call(client, tool).await;
        let asks = answer["isError"] == true && text_of(&answer).contains("/connect/");
        if asks { Ok(()) } else { Err(answer) }
    })
    .await;
}

fn is_refresh(asked: &TokenRequest) -> bool {
    member(asked, "grant_type").as_deref() == Some("refresh_token")
}

#[tokio::test]
async fn all_requests_of_a_login_have_matching_pkce_and_resource() {
    let world = World::start(3600).await;
    let broker = world.broker().await;
    let browser = Browser::new(&broker);
    let request = browser.start_login().await;
    assert_eq!(browser.answer(&request, "&code=code-1").await, 200);
    broker.admin().wait_backend_state("default", "b", "ready").await;
    let client = broker.connected(json!({})).await;
    // The backend refuses the token, so the broker uses the refresh token.
    world.accepted.lock().clear();
    assert_ne!(call(&client, "b__echo").await["isError"], true);
    let asked = world.server.take_token_requests();
    assert_proves(&asked[0], &request, &format!("{}/oauth/callback/default/b", broker.url("")));
    let resource = Some(form_text(&world.backend.url()));
    assert_eq!(parameter(&request, "resource"), resource);
    assert!(asked.iter().any(is_refresh), "{asked:?}");
    for asked in &asked {
        assert_eq!(member(asked, "resource"), resource, "{asked:?}");
    }
}

#[tokio::test]
async fn an_answer_is_accepted_only_from_the_person_that_started_the_login() {
    let world = World::start(3600).await;
    let broker = guarded().start().await;
    add(&broker, &world, ("default", "b")).await;
    let browser = Browser::new(&broker);
    sign_in(&browser, &broker, "ann").await;
    let request = browser.start_login().await;
    // The same browser belongs to another person now.
    sign_in(&browser, &broker, "bob").await;
    assert_eq!(browser.answer(&request, "&code=c").await, 403);
    assert_eq!(world.server.take_token_requests(), []);
    sign_in(&browser, &broker, "ann").await;
    assert_eq!(browser.answer(&request, "&code=c").await, 200, "nothing used it up");
    let (_, list) = broker.admin().get(CONNECTIONS).await;
    assert_eq!(list["connections"].as_array().unwrap().len(), 1, "{list}");
    assert_eq!(list["connections"][0]["principal"], "ann");
}

/// Each browser of one person begins a login before the first one ends.
#[tokio::test]
async fn sixteen_logins_of_a_person_at_a_backend_are_pending_at_most() {
    let world = World::start(3600).await;
    let broker = world.broker().await;
    let mut started = Vec::new();
    for _ in 0..17 {
        let browser = Browser::new(&broker);
        let request = browser.start_login().await;
        started.push((browser, request));
    }
    let mut statuses = Vec::new();
    for (browser, request) in &started {
        statuses.push(browser.answer(request, "&code=c").await);
    }
    assert_eq!(statuses.pop(), Some(200), "the last one replaced another");
    statuses.sort_unstable();
    assert_eq!((statuses.remove(15), statuses), (403, vec![200; 15]));
}

#[tokio::test]
async fn a_form_is_accepted_only_from_its_own_browser() {
    let world = World::start(3600).await;
    let broker = world.broker().await;
    let (victim, attacker) = (Browser::new(&broker), Browser::new(&broker));
    victim.start_login().await;
    let page = attacker.send("GET", "/connect/b", "").await.text().await;
    let foreign = between(&page, "name=\"proof\" value=\"", "\"").unwrap();
    for form in ["", "proof=", "proof=x", &format!("proof={foreign}"), "action=end&proof=x"] {
        let sent = victim.send("POST", "/connect/b", form).await;
        assert_eq!((sent.status, sent.header("location")), (403, None), "{form}");
    }
}

#[tokio::test]
async fn the_login_of_a_browser_ends_after_an_hour() {
    let world = World::start(3600).await;
    let clock = FakeClock::set_to("+0");
    let env = clock.env();
    let broker = env.iter().fold(guarded(), |broker, (name, value)| broker.env(name, value));
    let broker = broker.start().await;
    add(&broker, &world, ("default", "b")).await;
    let browser = Browser::new(&broker);
    sign_in(&browser, &broker, "ann").await;
    let page = async || browser.send("GET", "/connect", "").await.status;
    assert_eq!(page().await, 200);
    clock.set("+61m");
    eventually("the end of the login", || async {
        let status = page().await;
        if status == 403 { Ok(()) } else { Err(status) }
    })
    .await;
}

/// Makes a server register clients and revoke tokens. Its tokens live for two seconds.
fn register_clients(server: &AuthorizationServer, world: &World) {
    let endpoint = format!("{}/token", server.issuer());
    let metadata = json!({"code_challenge_methods_supported": ["S256"],
        "registration_endpoint": endpoint, "revocation_endpoint": endpoint});
    server.set_metadata(metadata);
    let accepted = world.accepted.clone();
    server.answer_tokens(Arc::new(move |request, number| {
        if serde_json::from_str::<Value>(&request.form).is_ok() {
            return (201, json!({"client_id": "made"}));
        }
        accepted.lock().insert(format!("Bearer token-{number}"));
        (200, json!({"access_token": format!("token-{number}"), "token_type": "Bearer", "expires_in": 2, "refresh_token": format!("refresh-{number}")}))
    }));
}

/// The broker is a client that the operator registered, or one that registers itself anywhere.
#[tokio::test]
async fn a_server_that_changes_gets_no_code_and_no_refresh_token() {
    for is_registered in [true, false] {
        let mut world = World::start(2).await;
        let other = AuthorizationServer::start().await;
        register_clients(&other, &world);
        let mut spec = world.spec();
        if !is_registered {
            register_clients(&world.server, &world);
            spec["auth"] = json!({"type": "oauth_user"});
        }
        let broker = builder().single_process().start().await;
        let (status, view) = broker.admin().put_backend("default", "b", &spec).await;
        assert_eq!(status, 201, "{view}");
        let browser = Browser::new(&broker);
        assert_eq!(browser.connect().await, 200);
        broker.admin().wait_backend_state("default", "b", "ready").await;
        let client = broker.connected(json!({})).await;
        let request = browser.start_login().await;
        let first = std::mem::replace(&mut world.server, other);
        world.gate(false);
        assert_eq!(browser.answer(&request, "&code=c").await, 502);
        assert_connect_required(&client, "b__echo").await;
        let mut asked = world.server.take_token_requests();
        asked.retain(|request| member(request, "grant_type").is_some());
        assert_eq!(asked, [], "is_registered: {is_registered}");
        // A client of the other server ends no token at the first one.
        first.take_token_requests();
        assert_eq!(broker.admin().delete(&format!("{CONNECTIONS}/anonymous/b")).await.0, 204);
        assert_eq!(first.take_token_requests(), [], "is_registered: {is_registered}");
    }
}

/// Waits until the server holds a request that uses a refresh token.
async fn renewal_is_held(world: &World) {
    eventually("the renewal", || async {
        let asked = world.server.token_requests();
        if asked.iter().any(is_refresh) { Ok(()) } else { Err(asked) }
    })
    .await;
}

#[tokio::test]
async fn a_drain_waits_for_a_renewal_whose_call_was_cancelled() {
    let world = World::start(3600).await;
    let mut broker = builder().on(Topology::Sqlite).single_process().start().await;
    assert_eq!(broker.admin().put_backend("default", "b", &world.spec()).await.0, 201);
    assert_eq!(Browser::new(&broker).connect().await, 200);
    broker.admin().wait_backend_state("default", "b", "ready").await;
    let client = broker.connected(json!({})).await;
    world.server.hold_tokens(true);
    world.accepted.lock().clear(); // so that the next call renews the token
    let calling = client.start_call("b__echo", json!({}));
    renewal_is_held(&world).await;
    client.notify("notifications/cancelled", json!({"requestId": calling.id})).await;
    broker.request_shutdown();
    eventually("the release of the session", || async {
        let sessions = broker.admin().sessions("default").await;
        if sessions[0]["state"] == "parked" { Ok(()) } else { Err(sessions) }
    })
    .await;
    // Long after the process would have ended without the renewal, and before the renewal ends.
    let parked = Instant::now();
    while parked.elapsed() < Duration::from_secs(1) {
        assert_eq!(broker.admin().get("/admin/v1/tenants").await.0, 200);
    }
    world.server.hold_tokens(false);
    assert!(broker.wait_for_exit().await.success());
    broker.restart().await;
    broker.admin().wait_backend_state("default", "b", "ready").await;
    // The server would refuse the old refresh token, which was used.
    world.accepted.lock().clear();
    let client = broker.connected(json!({})).await;
    let answer = call(&client, "b__echo").await;
    assert_ne!(answer["isError"], true, "{answer}");
}

#[tokio::test]
async fn tokens_of_a_sign_in_that_cannot_be_stored_are_revoked() {
    let world = World::start(3600).await;
    register_clients(&world.server, &world);
    let settings = builder().config(json!({"auth": {"resource": "http://127.0.0.1:9"}}));
    let cluster = settings.cluster(1).behind_proxies().start().await;
    let mut spec = world.spec();
    spec["auth"] = json!({"type": "oauth_user"});
    assert_eq!(cluster.operator().put_backend("default", "b", &spec).await.0, 201);
    let browser = Browser::at(cluster.replicas()[0].http_address());
    let request = browser.start_login().await;
    world.server.take_token_requests();
    world.server.hold_tokens(true);
    let (status, ()) = tokio::join!(browser.answer(&request, "&code=c"), async {
        eventually("the code at the server", || async {
            let asked = world.server.token_requests();
            let is_there = asked.iter().any(|one| member(one, "code").is_some());
            if is_there { Ok(()) } else { Err(asked) }
        })
        .await;
        cluster.cut_from_postgres(0);
        world.server.hold_tokens(false);
    });
    assert_eq!(status, 503);
    let asked = world.server.token_requests();
    let revoked = asked.iter().find_map(|one| member(one, "token"));
    assert!(revoked.is_some_and(|token| token.starts_with("refresh-")), "{asked:?}");
}

#[tokio::test]
async fn a_connection_that_ends_during_a_renewal_leaves_no_live_token() {
    let world = World::start(3600).await;
    register_clients(&world.server, &world);
    let mut spec = world.spec();
    spec["auth"] = json!({"type": "oauth_user"});
    let broker = builder().single_process().start().await;
    let admin = broker.admin();
    assert_eq!(admin.put_backend("default", "b", &spec).await.0, 201);
    assert_eq!(Browser::new(&broker).connect().await, 200);
    admin.wait_backend_state("default", "b", "ready").await;
    let client = broker.connected(json!({})).await;
    world.server.take_token_requests();
    world.server.hold_tokens(true);
    world.accepted.lock().clear(); // so that the next call renews the token
    let path = format!("{CONNECTIONS}/anonymous/b");
    let ending = async {
        renewal_is_held(&world).await;
        // The server holds the revocation of the old token too.
        let (ended, ()) = tokio::join!(admin.delete(&path), async {
            eventually("the end of the connection", || async {
                let (_, list) = admin.get(CONNECTIONS).await;
                if list["connections"] == json!([]) { Ok(()) } else { Err(list) }
            })
            .await;
            world.server.hold_tokens(false);
        });
        assert_eq!(ended.0, 204);
    };
    tokio::join!(call(&client, "b__echo"), ending);
    eventually("the revocation of both refresh tokens", || async {
        let asked = world.server.token_requests();
        let revoked: HashSet<_> = asked.iter().filter_map(|one| member(one, "token")).collect();
        if revoked.len() == 2 { Ok(()) } else { Err(asked) }
    })
    .await;
}

#[tokio::test]
async fn a_grant_is_used_only_for_its_url() {
    let (world, other) = (World::start(3600).await, FakeBackend::echo().await);
    let broker = world.broker().await;
    assert_eq!(Browser::new(&broker).connect().await, 200);
    broker.admin().wait_backend_state("default", "b", "ready").await;
    let client = broker.connected(json!({})).await;
    assert_ne!(call(&client, "b__echo").await["isError"], true);
    let mut moved = world.spec();
    moved["transport"] = other.spec()["transport"].clone();
    let (status, view) = broker.admin().put_backend("default", "b", &moved).await;
    assert_eq!(status, 200, "{view}");
    assert_connect_required(&client, "b__echo").await;
    let seen = format!("{:?}", other.recorded());
    assert!(!seen.contains("Bearer token-"), "{seen}");
}

/// The process that renews a token is slow. Meanwhile an operator ends the connection.
#[tokio::test]
async fn a_late_token_answer_does_not_restore_an_ended_connection() {
    let world = World::start(3600).await;
    let broker = world.broker().await;
    assert_eq!(Browser::new(&broker).connect().await, 200);
    broker.admin().wait_backend_state("default", "b", "ready").await;
    let client = broker.connected(json!({})).await;
    world.server.hold_tokens(true);
    world.accepted.lock().clear();
    let late = async { call(&client, "b__echo").await };
    let ended = async {
        eventually("the request for a new token", || async {
            let asked = world.server.token_requests();
            if asked.iter().any(is_refresh) { Ok(()) } else { Err(asked) }
        })
        .await;
        let gone = broker.admin().delete(&format!("{CONNECTIONS}/anonymous/b")).await;
        assert_eq!(gone.0, 204, "{}", gone.1);
        world.server.hold_tokens(false);
    };
    let (answer, ()) = tokio::join!(late, ended);
    assert_eq!(answer["isError"], true, "{answer}");
    let (_, list) = broker.admin().get(CONNECTIONS).await;
    assert_eq!(list["connections"], json!([]), "{list}");
}

/// Returns a broker on a file, with an account of `ann` at `b`.
async fn with_a_row(folder: &Path, world: &World) -> TestBroker {
    let url = format!("sqlite:{}", folder.join("broker.db").display());
    let broker = guarded().config(json!({"storage": {"url": url}})).tenant("acme").start().await;
    for row in [("default", "b"), ("default", "c"), ("acme", "b")] {
        add(&broker, world, row).await;
    }
    let browser = Browser::new(&broker);
    sign_in(&browser, &broker, "ann").await;
    assert_eq!(browser.connect().await, 200);
    broker
}

/// A login at another process replaced the grant while the old refresh token was on its way.
#[tokio::test]
async fn a_refused_refresh_token_does_not_end_a_newer_connection() {
    let (world, folder) = (World::start(3600).await, tempfile::tempdir().unwrap());
    let broker = with_a_row(folder.path(), &world).await;
    let client = client(&broker, "default", "ann").await;
    eventually("a call with the account", || async {
        let answer = call(&client, "b__echo").await;
        if answer["isError"] == true { Err(answer) } else { Ok(()) }
    })
    .await;
    world.server.take_token_requests();
    world.server.hold_tokens(true);
    world.accepted.lock().clear();
    let accepted = world.accepted.clone();
    world.server.answer_tokens(Arc::new(move |_, number| {
        if number == 1 {
            return (400, json!({"error": "invalid_grant"}));
        }
        accepted.lock().insert("Bearer newer".to_owned());
        (200, json!({"access_token": "newer", "token_type": "Bearer", "expires_in": 3600}))
    }));
    let replaced = async {
        eventually("the use of the refresh token", || async {
            let asked = world.server.token_requests();
            if asked.iter().any(is_refresh) { Ok(()) } else { Err(asked) }
        })
        .await;
        edit(
            folder.path(),
            "UPDATE upstream_grants SET version = version + 1, lease_until_us = 0;",
        );
        world.server.hold_tokens(false);
    };
    let (answer, ()) = tokio::join!(call(&client, "b__echo"), replaced);
    assert_ne!(answer["isError"], true, "{answer}");
    let (_, list) = broker.admin().get(CONNECTIONS).await;
    assert_eq!(list["connections"][0]["state"], "connected", "{list}");
}

/// A person who writes the database without the root secret gives no account to another principal.
#[tokio::test]
async fn a_sealed_row_moved_to_another_principal_does_not_open() {
    let (world, folder) = (World::start(3600).await, tempfile::tempdir().unwrap());
    let broker = with_a_row(folder.path(), &world).await;
    let copy = |columns: &str| {
        let sql = format!(
            "INSERT INTO upstream_grants (tenant, backend, principal, issuer, sealed, state, expires_at_us, version, created_at_us) \
             SELECT {columns}, sealed, state, expires_at_us, version, created_at_us FROM upstream_grants \
             WHERE tenant = 'default' AND backend = 'b' AND principal = 'ann';"
        );
        edit(folder.path(), &sql);
    };
    copy("tenant, backend, 'bob', issuer");
    copy("tenant, 'c', principal, issuer");
    copy("'acme', backend, principal, issuer");
    let ann = client(&broker, "default", "ann").await;
    let bob = client(&broker, "default", "bob").await;
    let namesake = client(&broker, "acme", "ann").await;
    eventually("the tools of the account", || async {
        let names = ann.tool_names().await;
        if names.iter().any(|name| name == "b__echo") { Ok(()) } else { Err(names) }
    })
    .await;
    assert_ne!(call(&ann, "b__echo").await["isError"], true);
    for (who, client, tool) in [
        ("another principal", &bob, "b__echo"),
        ("another backend", &ann, "c__connect"),
        ("another tenant", &namesake, "b__connect"),
    ] {
        let answer = call(client, tool).await;
        assert!(
            answer["isError"] == true && text_of(&answer).contains("/connect/"),
            "{who}: {answer}"
        );
    }
    // The row says that another server gave the tokens.
    edit(
        folder.path(),
        "UPDATE upstream_grants SET issuer = 'https://evil.example' WHERE principal = 'ann';",
    );
    assert_connect_required(&ann, "b__echo").await;
}

/// A sealed row under another name, or as another kind of secret, signs no person in.
#[tokio::test]
async fn a_sealed_secret_moved_to_another_name_does_not_open() {
    let (world, folder) = (World::start(3600).await, tempfile::tempdir().unwrap());
    let broker = with_a_row(folder.path(), &world).await;
    let (mine, hers) = (link(&broker, "bob").await, link(&broker, "ann").await);
    // Two links exchange their sealed values.
    edit(
        folder.path(),
        "CREATE TEMP TABLE links AS SELECT row_number() OVER (ORDER BY name) AS at, name, sealed FROM upstream_secrets WHERE kind = 'link'; \
         UPDATE upstream_secrets SET sealed = (SELECT other.sealed FROM links other, links own WHERE own.name = upstream_secrets.name AND other.at <> own.at) \
         WHERE kind = 'link';",
    );
    let thief = Browser::new(&broker);
    for secret in [mine, hers] {
        let sent = thief.send("POST", "/connect", &format!("link={secret}")).await;
        assert_eq!(sent.status, 403);
    }
    // An authorization request names ann too, but it is not a link.
    let browser = Browser::new(&broker);
    sign_in(&browser, &broker, "ann").await;
    let state = parameter(&browser.start_login().await, "state").unwrap();
    edit(folder.path(), "UPDATE upstream_secrets SET kind = 'link' WHERE kind = 'login';");
    let sent = thief.send("POST", "/connect", &format!("link={state}")).await;
    assert_eq!(sent.status, 403);
    assert_eq!(thief.send("GET", "/connect", "").await.status, 403, "not signed in");
}

/// The broker registers itself for each tenant, also where a row of another tenant was copied.
#[tokio::test]
async fn a_registration_copied_to_another_tenant_is_made_again() {
    let (world, folder) = (World::start(3600).await, tempfile::tempdir().unwrap());
    register_clients(&world.server, &world);
    let url = format!("sqlite:{}", folder.path().join("broker.db").display());
    let broker = guarded().config(json!({"storage": {"url": url}})).tenant("acme").start().await;
    let mut spec = world.spec();
    spec["auth"] = json!({"type": "oauth_user"});
    let registrations = async |tenant: &str| {
        let (status, view) = broker.admin().put_backend(tenant, "b", &spec).await;
        assert_eq!(status, 201, "{view}");
        let path = format!("/admin/v1/tenants/{tenant}/connections");
        let body = json!({"principal": "ann", "backend": "b"});
        let (_, link) = broker.admin().post(&path, &body).await;
        let secret = parameter(link["url"].as_str().unwrap(), "link").unwrap();
        let browser = Browser::new(&broker);
        let sent = browser.send("POST", "/connect", &format!("link={secret}")).await;
        assert_eq!(sent.status, 303);
        browser.start_login().await;
        let asked = world.server.take_token_requests();
        asked.iter().filter(|asked| asked.form.starts_with('{')).count()
    };
    assert_eq!(registrations("default").await, 1);
    edit(
        folder.path(),
        "INSERT INTO upstream_secrets (kind, tenant, name, sealed, expires_at_us) \
         SELECT kind, 'acme', name, sealed, expires_at_us FROM upstream_secrets WHERE kind = 'client';",
    );
    assert_eq!(registrations("acme").await, 1, "the copy does not open");
}
