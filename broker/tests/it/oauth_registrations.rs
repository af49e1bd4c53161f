//! Registrations of the broker at authorization servers (RFC 7591): their end, and several at once.

use std::{collections::HashSet, sync::Arc};

use parking_lot::Mutex;
use serde_json::{Value, json};
use testkit::{FakeClock, TestBroker, TokenRequest, Topology, authorization::now, eventually};

use crate::{
    accounts::{Browser, World, call, callback_of, member, parameter},
    builder, kind,
    oauth_clients::day,
    text_of,
};

const CONNECTIONS: &str = "/admin/v1/tenants/default/connections";

/// A server that registers clients: `made-NUMBER`.
struct Registry {
    world: World,
    /// Clients that the server does not know any more.
    gone: Arc<Mutex<HashSet<String>>>,
}

impl Registry {
    /// `members`: of each answer to a registration.
    async fn start(members: Value) -> Self {
        let world = World::start(3600).await;
        let endpoint = format!("{}/token", world.server.issuer());
        world.server.set_metadata(json!({
            "code_challenge_methods_supported": ["S256"], "registration_endpoint": endpoint,
            "token_endpoint_auth_methods_supported": ["none", "client_secret_post"],
        }));
        let (accepted, gone) = (world.accepted.clone(), Arc::<Mutex<HashSet<String>>>::default());
        let unknown = gone.clone();
        world.server.answer_tokens(Arc::new(move |request, number| {
            if request.form.starts_with('{') {
                let mut client = members.clone();
                client["client_id"] = json!(format!("made-{number}"));
                return (201, client);
            }
            if member(request, "client_id").is_none_or(|id| unknown.lock().contains(&id)) {
                return (401, json!({"error": "invalid_client"}));
            }
            accepted.lock().insert(format!("Bearer token-{number}"));
            (200, json!({"access_token": format!("token-{number}"), "token_type": "Bearer", "expires_in": 3600, "refresh_token": format!("refresh-{number}")}))
        }));
        Self { world, gone }
    }

    async fn add_to(&self, broker: &TestBroker, auth: Value) {
        let mut spec = self.world.spec();
        spec["auth"] = auth;
        let (status, view) = broker.admin().put_backend("default", "b", &spec).await;
        assert_eq!(status, 201, "{view}");
    }

    fn registrations(&self) -> usize {
        let asked = self.world.server.token_requests();
        asked.iter().filter(|one| one.form.starts_with('{')).count()
    }
}

fn client_id(request: &str) -> String {
    parameter(request, "client_id").expect(request)
}

async fn state(broker: &TestBroker) -> Value {
    broker.admin().get(CONNECTIONS).await.1["connections"][0]["state"].clone()
}

#[tokio::test]
async fn the_broker_registers_again_after_its_registration_was_deleted() {
    let registry = Registry::start(json!({})).await;
    let broker = builder().single_process().start().await;
    registry.add_to(&broker, json!({"type": "oauth_user"})).await;
    let browser = Browser::new(&broker);
    let request = browser.start_login().await;
    let first = client_id(&request);
    assert_eq!(browser.answer(&request, "&code=c").await, 200);
    broker.admin().wait_backend_state("default", "b", "ready").await;
    let client = broker.connected(json!({})).await;
    assert_ne!(call(&client, "b__echo").await["isError"], true);

    // The renewal of a token shows that the registration is gone.
    registry.gone.lock().insert(first.clone());
    registry.world.accepted.lock().clear();
    let answer = call(&client, "b__echo").await;
    assert!(text_of(&answer).contains("/connect/b"), "{answer}");
    assert_eq!(state(&broker).await, "reconnect");
    let request = browser.start_login().await;
    let second = client_id(&request);
    assert_ne!(second, first);
    assert_eq!(browser.answer(&request, "&code=c").await, 200);
    assert_ne!(call(&client, "b__echo").await["isError"], true);

    // The end of a login shows it too.
    let request = browser.start_login().await;
    registry.gone.lock().insert(second.clone());
    assert_eq!(browser.answer(&request, "&code=c").await, 502);
    let request = browser.start_login().await;
    assert!(![&first, &second].contains(&&client_id(&request)), "{request}");
    assert_eq!(browser.answer(&request, "&code=c").await, 200);
    assert_eq!(registry.registrations(), 3);
}

#[tokio::test]
async fn a_registration_ends_with_its_backend() {
    let registry = Registry::start(json!({})).await;
    let broker = builder().single_process().start().await;
    let auth = json!({"type": "oauth_user"});
    registry.add_to(&broker, auth.clone()).await;
    let browser = Browser::new(&broker);
    let first = browser.start_login().await;
    let path = "/admin/v1/tenants/default/backends/b";
    assert_eq!(broker.admin().delete(path).await.0, 204);
    registry.add_to(&broker, auth).await;
    // Only the client of the request could use the code. No other one is registered for it.
    assert_eq!(browser.answer(&first, "&code=c").await, 502);
    assert_eq!(registry.registrations(), 1);
    let second = browser.start_login().await;
    assert_ne!(client_id(&second), client_id(&first));
    assert_eq!(browser.answer(&second, "&code=c").await, 200);
    assert_eq!(registry.registrations(), 2);
}

#[tokio::test]
async fn a_refused_client_of_an_operator_does_not_end_connections() {
    let registry = Registry::start(json!({})).await;
    let broker = builder().single_process().start().await;
    registry.add_to(&broker, json!({"type": "oauth_user", "client_id": "broker"})).await;
    assert_eq!(Browser::new(&broker).connect().await, 200);
    broker.admin().wait_backend_state("default", "b", "ready").await;
    let client = broker.connected(json!({})).await;
    registry.gone.lock().insert("broker".to_owned());
    registry.world.accepted.lock().clear();
    let params = json!({"name": "b__echo", "arguments": {}});
    assert_eq!(kind(&client.error("tools/call", params).await), "backend_unavailable");
    assert_eq!(state(&broker).await, "connected");
    // It is the operator's to mend.
    registry.gone.lock().clear();
    assert_ne!(call(&client, "b__echo").await["isError"], true);
}

#[tokio::test]
async fn a_registration_is_used_until_its_secret_expires() {
    let clock = FakeClock::set_to("+0");
    let month = 30 * 24 * 3_600;
    let registry = Registry::start(json!({
        "client_secret": "s", "client_secret_expires_at": now() + month,
        "token_endpoint_auth_method": "client_secret_post",
    }))
    .await;
    // A registration ends by the clock of the database. That of SQLite is the broker's.
    let builder = builder().on(Topology::Sqlite);
    let env = clock.env();
    let broker = env.iter().fold(builder, |builder, (name, value)| builder.env(name, value));
    let broker = broker.start().await;
    registry.add_to(&broker, json!({"type": "oauth_user"})).await;
    for _ in 0..2 {
        assert_eq!(Browser::new(&broker).connect().await, 200);
        assert_eq!(registry.registrations(), 1);
    }
    let before = day(&broker).await;
    clock.set("+31d");
    eventually("the broker to see its clock", || async {
        let day = day(&broker).await;
        if day == before { Err(day) } else { Ok(()) }
    })
    .await;
    Browser::new(&broker).start_login().await;
    assert_eq!(registry.registrations(), 2);
}

#[tokio::test]
async fn two_logins_at_once_use_one_registration() {
    let registry = Registry::start(json!({})).await;
    let broker = builder().single_process().start().await;
    registry.add_to(&broker, json!({"type": "oauth_user"})).await;
    let server = &registry.world.server;
    server.hold_tokens(true);
    let (one, other) = (Browser::new(&broker), Browser::new(&broker));
    let released = async {
        eventually("two registrations", || async {
            let count = registry.registrations();
            if count == 2 { Ok(()) } else { Err(count) }
        })
        .await;
        server.hold_tokens(false);
    };
    let (first, second, ()) = tokio::join!(one.start_login(), other.start_login(), released);
    assert_eq!(client_id(&first), client_id(&second));
    for (browser, request) in [(&one, &first), (&other, &second)] {
        assert_eq!(browser.answer(request, "&code=c").await, 200);
    }
    let used: HashSet<_> = server
        .token_requests()
        .iter()
        .filter_map(|one: &TokenRequest| member(one, "client_id"))
        .collect();
    assert_eq!(used.len(), 1, "{used:?}");
}

/// An answer counts only at the redirect URI of its request (RFC 9700, 4.4.2.2). A server that
/// identifies itself in its answers needs no redirect URI of its own.
#[tokio::test]
async fn a_registration_has_a_redirect_uri_of_its_own() {
    let registry = Registry::start(json!({})).await;
    let broker = builder().single_process().start().await;
    registry.add_to(&broker, json!({"type": "oauth_user"})).await;
    let browser = Browser::new(&broker);
    let request = browser.start_login().await;
    let path = callback_of(&parameter(&request, "redirect_uri").unwrap());
    assert!(path.starts_with("/oauth/callback/"), "{path}");
    let registered = registry.world.server.token_requests();
    let registration = registered.iter().find(|one| one.form.starts_with('{')).unwrap();
    let registration: Value = serde_json::from_str(&registration.form).unwrap();
    assert_eq!(registration["redirect_uris"], json!([broker.url(&path)]), "{registration}");
    let state = parameter(&request, "state").unwrap();
    for other in ["/oauth/callback", "/oauth/callback/x", "/oauth/callback/"] {
        let address = format!("{other}?state={state}&code=c");
        assert_eq!(browser.send("GET", &address, "").await.status, 403, "{other}");
    }
    assert_eq!(browser.answer(&request, "&code=c").await, 200);

    registry.world.server.set_metadata(json!({"code_challenge_methods_supported": ["S256"], "registration_endpoint": format!("{}/token", registry.world.server.issuer()), "authorization_response_iss_parameter_supported": true}));
    let request = browser.start_login().await;
    let path = callback_of(&parameter(&request, "redirect_uri").unwrap());
    assert_eq!(path, "/oauth/callback");
}

#[tokio::test]
async fn no_two_servers_that_do_not_name_themselves_share_a_redirect_uri() {
    let (own, made) = (World::start(3600).await, Registry::start(json!({})).await);
    let broker = builder().single_process().start().await;
    broker.admin().put_tenant("acme", json!({})).await;
    let mut addresses = HashSet::new();
    let redirect_path = |request: &str| callback_of(&parameter(request, "redirect_uri").unwrap());
    // Clients of operators, at the same server.
    for name in ["b", "c"] {
        assert_eq!(broker.admin().put_backend("default", name, &own.spec()).await.0, 201);
        let request = Browser::new(&broker).start_login_at(name).await;
        assert_eq!(redirect_path(&request), format!("/oauth/callback/default/{name}"));
        addresses.insert(redirect_path(&request));
    }
    // A registration of the broker.
    assert_eq!(broker.admin().delete("/admin/v1/tenants/default/backends/b").await.0, 204);
    made.add_to(&broker, json!({"type": "oauth_user"})).await;
    let browser = Browser::new(&broker);
    let request = browser.start_login().await;
    addresses.insert(redirect_path(&request));
    assert_eq!(addresses.len(), 3, "{addresses:?}");
    // A hostile server sends the browser to another server, with its own `state`.
    let state = parameter(&request, "state").unwrap();
    for path in ["/oauth/callback", "/oauth/callback/default/c"] {
        let answer = browser.send("GET", &format!("{path}?state={state}&code=stolen"), "").await;
        assert_eq!(answer.status, 403, "{path}");
    }
    let sent = made.world.server.token_requests();
    assert!(sent.iter().all(|request| !request.form.contains("stolen")), "{sent:?}");
}
