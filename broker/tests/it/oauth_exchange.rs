//! Tokens for backends that are made of another token: the caller's (RFC 8693, on-behalf-of), or that
//! of an identity provider (ID-JAG). And keys that the broker makes as a client.

use std::{collections::HashSet, sync::Arc};

use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use parking_lot::Mutex;
use serde_json::{Value, json};
use testkit::{
    AuthorizationServer, Collector, FakeBackend, GateAnswer, TestBroker, TestClient, TokenRequest,
    eventually,
};

use crate::{
    accounts::{Browser, World, call, outputs, outputs_containing, parameter},
    builder, kind,
};

pub(crate) const EXCHANGE: &str = "urn:ietf:params:oauth:grant-type:token-exchange";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const JWT_BEARER: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";

/// Returns a member of a form, decoded.
pub(crate) fn member(request: &TokenRequest, name: &str) -> Option<String> {
    let found = parameter(&format!("?{}", request.form), name)?;
    Some(found.replace('+', " ").replace("%3A", ":").replace("%2F", "/"))
}

pub(crate) fn payload(token: &str) -> Value {
    let part = token.split('.').nth(1).expect("a JWT");
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).unwrap()).unwrap()
}

/// Verifies an assertion with one of these keys. Returns the id of the key.
pub(crate) fn signer(assertion: &str, keys: &[Value]) -> String {
    let parts: Vec<&str> = assertion.split('.').collect();
    let decoded = |part: &str| URL_SAFE_NO_PAD.decode(part).unwrap();
    let header: Value = serde_json::from_slice(&decoded(parts[0])).unwrap();
    let key = keys.iter().find(|key| key["kid"] == header["kid"]).expect("a published key");
    let coordinate = |name: &str| decoded(key[name].as_str().unwrap());
    let point = [vec![4], coordinate("x"), coordinate("y")].concat();
    let text = format!("{}.{}", parts[0], parts[1]);
    UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point)
        .verify(text.as_bytes(), &decoded(parts[2]))
        .expect("signed by that key");
    header["kid"].as_str().unwrap().to_owned()
}

/// A backend that demands tokens of a server, which gives `for-NAME-NUMBER` to each user.
pub(crate) struct Protected {
    pub(crate) backend: FakeBackend,
    pub(crate) server: AuthorizationServer,
    accepted: Arc<Mutex<HashSet<String>>>,
}

impl Protected {
    /// `user_of` names the user that a token request is for. `None`: the request is refused.
    pub(crate) async fn start(
        user_of: impl Fn(&TokenRequest) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        let (backend, server) = (FakeBackend::echo().await, AuthorizationServer::start().await);
        let accepted = Arc::<Mutex<HashSet<String>>>::default();
        let issued = accepted.clone();
        server.answer_tokens(Arc::new(move |request, number| {
            let Some(user) = user_of(request) else {
                return (400, json!({"error": "invalid_grant"}));
            };
            let token = format!("for-{user}-{number}");
            issued.lock().insert(format!("Bearer {token}"));
            (200, json!({"access_token": token, "token_type": "Bearer", "expires_in": 3600, "issued_token_type": "urn:ietf:params:oauth:token-type:access_token"}))
        }));
        let document = json!({
            "resource": backend.url(), "authorization_servers": [server.issuer()],
            "scopes_supported": ["mcp:base"],
        });
        let known = accepted.clone();
        backend.gate(move |path, headers| {
            if path.starts_with("/.well-known/") {
                return Some(GateAnswer { status: 200, headers: vec![], body: document.clone() });
            }
            let header = headers.get("authorization").and_then(|value| value.to_str().ok());
            if header.is_some_and(|header| known.lock().contains(header)) {
                return None;
            }
            let challenge = ("www-authenticate".to_owned(), "Bearer".to_owned());
            Some(GateAnswer { status: 401, headers: vec![challenge], body: json!({}) })
        });
        Self { backend, server, accepted }
    }

    pub(crate) fn spec(&self, auth: Value) -> Value {
        let mut spec = self.backend.spec();
        spec["auth"] = json!({"client_id": "broker", "client_secret": "the-secret-of-the-broker"});
        if auth["type"] == "token_exchange" {
            spec["auth"]["issuer"] = json!(self.server.issuer());
        }
        for (name, value) in auth.as_object().unwrap() {
            spec["auth"][name] = value.clone();
        }
        spec
    }

    /// Returns the tokens with which a tool was called, by its argument `as`.
    fn callers(&self) -> Vec<(String, String)> {
        let calls = self.backend.recorded().into_iter().filter(|seen| seen.calls("echo"));
        let pair = |seen: testkit::RecordedRequest| {
            let user = seen.message["params"]["arguments"]["as"].as_str().unwrap().to_owned();
            (user, seen.header("authorization").unwrap_or_default().to_owned())
        };
        calls.map(pair).collect()
    }
}

/// Starts a broker that accepts tokens of an issuer, and exchanges them if it may.
pub(crate) async fn broker_for(
    issuer: &AuthorizationServer,
    may_exchange: bool,
    spec: &Value,
) -> TestBroker {
    broker_with(issuer, may_exchange, spec, json!({})).await
}

async fn broker_with(
    issuer: &AuthorizationServer,
    may_exchange: bool,
    spec: &Value,
    more: Value,
) -> TestBroker {
    let exchange = match may_exchange {
        true => json!({"issuers": [spec["auth"]["issuer"]]}),
        false => json!(false),
    };
    let broker = builder()
        .single_process()
        .auth_required()
        .admin_token("operator-of-tests")
        .config(issuer.config("default", json!({"exchange": exchange})))
        .config(more)
        .start()
        .await;
    let path = "/admin/v1/tenants/default/backends/b?wait=false";
    let (status, view) = broker.admin().put(path, spec).await;
    assert_eq!(status, 201, "{view}");
    broker
}

async fn echo(client: &TestClient, user: &str) -> Value {
    let params = json!({"name": "echo", "arguments": {"as": user}});
    client.result("tools/call", params).await
}

#[tokio::test]
async fn a_callers_token_is_exchanged_and_not_sent_to_the_backend() {
    let protected = Protected::start(|request| {
        let subject = payload(&member(request, "subject_token")?)["sub"].as_str()?.to_owned();
        (member(request, "grant_type")? == EXCHANGE).then_some(subject)
    })
    .await;
    let issuer = AuthorizationServer::start().await;
    let spec = protected.spec(json!({"type": "token_exchange", "audience": "urn:backend"}));
    let collector = Collector::start().await;
    let traces = json!({"telemetry": {"traces": {"endpoint": collector.endpoint()}}});
    let broker = broker_with(&issuer, true, &spec, traces).await;
    let tokens = ["ann", "bob"].map(|user| (user, issuer.token(user)));
    let clients = [
        broker.client("/mcp/b").bearer(&tokens[0].1).connected(json!({})).await,
        broker.client("/mcp/b").bearer(&tokens[1].1).connected(json!({})).await,
    ];
    for _ in 0..5 {
        for ((user, _), client) in tokens.iter().zip(&clients) {
            assert_ne!(echo(client, user).await["isError"], true);
        }
    }
    for (user, header) in protected.callers() {
        assert!(header.starts_with(&format!("Bearer for-{user}-")), "{user}: {header}");
    }
    let asked = protected.server.take_token_requests();
    for (user, token) in &tokens {
        let own = asked.iter().filter(|one| member(one, "subject_token").as_ref() == Some(token));
        let own: Vec<_> = own.collect();
        assert_eq!(own.len(), 1, "one exchange for {user}");
        for (name, wanted) in [
            ("subject_token_type", "urn:ietf:params:oauth:token-type:access_token"),
            ("requested_token_type", "urn:ietf:params:oauth:token-type:access_token"),
            ("resource", protected.backend.url().as_str()),
            ("audience", "urn:backend"),
            ("scope", "mcp:base"),
        ] {
            assert_eq!(member(own[0], name).as_deref(), Some(wanted), "{name}");
        }
        assert!(own[0].authorization.as_deref().unwrap().starts_with("Basic "));
    }
    // A token that the backend does not accept any more is replaced once.
    protected.accepted.lock().clear();
    assert_ne!(echo(&clients[0], "ann").await["isError"], true);
    broker.admin().wait_backend_state("default", "b", "ready").await;
    // A task has the token of its caller at the time of its call, and keeps none.
    let params = json!({"name": "echo", "arguments": {"as": "ann"}, "task": {"ttl": 600_000}});
    let created = clients[0].result("tools/call", params).await;
    let id = json!({"taskId": created["task"]["taskId"]});
    eventually("the end of the task", || async {
        let task = clients[0].result("tasks/get", id.clone()).await;
        if task["status"] == "completed" { Ok(()) } else { Err(task) }
    })
    .await;
    let trace = format!("00-{TRACE}-b7ad6b7169203331-01");
    let traced = broker.client("/mcp/b").bearer(&tokens[0].1).header("traceparent", &trace);
    echo(&traced.connected(json!({})).await, "ann").await;
    eventually("spans", || async {
        if collector.spans().is_empty() { Err("none") } else { Ok(()) }
    })
    .await;
    // The callers' tokens are sealed in the database, and nowhere else. The control shows that the
    // search finds what is there.
    let mut outputs = outputs(&broker, &collector.spans()).await;
    let seen = format!("{:?}", protected.backend.recorded()).into_bytes();
    assert!(
        outputs_containing(&["for-ann-1"], &[("the backend".to_owned(), seen.clone())]).len() == 1
    );
    let of_backend: Vec<&str> = tokens.iter().map(|(_, token)| token.as_str()).collect();
    assert_eq!(
        outputs_containing(&["the-secret-of-the-broker", "Bearer for-ann"], &outputs),
        [""; 0]
    );
    outputs.push(("the backend".to_owned(), seen));
    assert_eq!(outputs_containing(&of_backend, &outputs), [""; 0]);
}

#[tokio::test]
async fn an_exchanged_token_is_used_to_its_end_during_an_outage() {
    let protected = Protected::start(|_| Some("ann".to_owned())).await;
    let accepted = protected.accepted.clone();
    protected.server.answer_tokens(Arc::new(move |_, number| {
        accepted.lock().insert("Bearer first".to_owned());
        match number {
            1 => (200, json!({"access_token": "first", "token_type": "Bearer", "expires_in": 15, "issued_token_type": "urn:ietf:params:oauth:token-type:access_token"})),
            _ => (503, json!({})),
        }
    }));
    let issuer = AuthorizationServer::start().await;
    let broker =
        broker_for(&issuer, true, &protected.spec(json!({"type": "token_exchange"}))).await;
    let client = broker.client("/mcp/b").bearer(&issuer.token("ann")).connected(json!({})).await;
    // The token is due after 12 seconds, and the backend accepts it for 15.
    eventually("a failed renewal", || async {
        echo(&client, "ann").await;
        let requests = protected.server.token_requests().len();
        if requests > 1 { Ok(()) } else { Err(requests) }
    })
    .await;
    echo(&client, "ann").await;
}

#[tokio::test]
async fn a_token_is_exchanged_only_if_its_issuer_permits_that() {
    let protected = Protected::start(|_| Some("x".to_owned())).await;
    let issuer = AuthorizationServer::start().await;
    let spec = protected.spec(json!({"type": "token_exchange"}));
    let broker = broker_for(&issuer, false, &spec).await;
    let client = broker.client("/mcp/b").bearer(&issuer.token("ann")).connected(json!({})).await;
    assert_eq!(client.tool_names().await, ["connect"], "what stands for the tools");
    let answer = call(&client, "connect").await;
    assert_eq!(answer["isError"], true, "{answer}");
    assert!(answer.to_string().contains("access token"), "{answer}");
    let error = client.error("prompts/get", json!({"name": "p"})).await;
    assert_eq!(kind(&error), "token_required", "{error}");
    assert_eq!(protected.server.take_token_requests(), []);
}

/// Returns the subject tokens of the exchanges so far.
fn subjects_of(server: &AuthorizationServer) -> Vec<String> {
    server.token_requests().iter().filter_map(|one| member(one, "subject_token")).collect()
}

/// The backend and its settings name the server. The issuer of the tokens does not.
#[tokio::test]
async fn a_callers_token_goes_only_to_servers_that_its_issuer_permits() {
    let protected = Protected::start(|_| Some("x".to_owned())).await;
    let issuer = AuthorizationServer::start().await;
    let mut spec = protected.spec(json!({"type": "token_exchange"}));
    for exchange in [json!(true), json!({"issuers": ["https://as.example"]})] {
        let broker = builder()
            .single_process()
            .auth_required()
            .admin_token("operator-of-tests")
            .config(issuer.config("default", json!({"exchange": exchange})))
            .start()
            .await;
        let path = "/admin/v1/tenants/default/backends/b?wait=false";
        assert_eq!(broker.admin().put(path, &spec).await.0, 201);
        broker.client("/mcp").bearer(&issuer.token("ann")).connected(json!({})).await;
        eventually("the refusal", || async {
            let view = broker.admin().get("/admin/v1/tenants/default/backends/b").await.1;
            let error = view["last_error"].to_string();
            if error.contains("does not permit its exchange") { Ok(()) } else { Err(view) }
        })
        .await;
        assert_eq!(subjects_of(&protected.server), [""; 0], "{exchange}");
    }
    spec["auth"].as_object_mut().unwrap().remove("issuer");
    let broker =
        broker_for(&issuer, false, &protected.spec(json!({"type": "token_exchange"}))).await;
    let (status, answer) = broker.admin().put("/admin/v1/tenants/default/backends/c", &spec).await;
    assert!([400, 422].contains(&status) && answer.to_string().contains("auth.issuer"), "{answer}");
}

#[tokio::test]
async fn a_revoked_token_and_that_of_an_earlier_request_are_not_exchanged() {
    let protected = Protected::start(|request| {
        Some(payload(&member(request, "subject_token")?)["jti"].as_str()?.to_owned())
    })
    .await;
    let issuer = AuthorizationServer::start().await;
    let broker =
        broker_for(&issuer, true, &protected.spec(json!({"type": "token_exchange"}))).await;
    let [long, short] = ["long", "short"].map(|id| {
        let life = if id == "long" { 7_200 } else { 600 };
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        issuer.token_with("ann", json!({"jti": id, "exp": now.as_secs() + life}))
    });
    let of_long = broker.client("/mcp/b").bearer(&long).connected(json!({})).await;
    echo(&of_long, "long").await;
    let of_short = broker.client("/mcp/b").bearer(&short).connected(json!({})).await;
    echo(&of_short, "short").await;
    for (token, header) in protected.callers() {
        assert!(header.starts_with(&format!("Bearer for-{token}-")), "{token}: {header}");
    }
    // The other token again: what was made of the last one is not used for it.
    echo(&of_long, "long").await;
    let (_, header) = protected.callers().pop().unwrap();
    assert!(header.starts_with("Bearer for-long-"), "{header}");

    let path = "/admin/v1/tenants/default/revocations";
    assert_eq!(broker.admin().post(path, &json!({"jti": "long"})).await.0, 201);
    protected.server.take_token_requests();
    protected.accepted.lock().clear();
    let of_short = broker.client("/mcp/b").bearer(&short).connected(json!({})).await;
    echo(&of_short, "short").await;
    broker.admin().wait_backend_state("default", "b", "ready").await;
    let exchanged = subjects_of(&protected.server);
    assert!(exchanged.contains(&short) && !exchanged.contains(&long), "{}", exchanged.len());
}

#[tokio::test]
async fn a_token_is_exchanged_on_behalf_of_the_caller_in_the_form_of_entra() {
    let protected = Protected::start(|request| {
        let subject = payload(&member(request, "assertion")?)["sub"].as_str()?.to_owned();
        (member(request, "grant_type")? == JWT_BEARER).then_some(subject)
    })
    .await;
    let issuer = AuthorizationServer::start().await;
    let auth = json!({"type": "token_exchange", "grant": "on_behalf_of", "scopes": ["api://b/.default"], "token_endpoint_auth_method": "client_secret_post"});
    let broker = broker_for(&issuer, true, &protected.spec(auth)).await;
    let client = broker.client("/mcp/b").bearer(&issuer.token("ann")).connected(json!({})).await;
    assert_ne!(echo(&client, "ann").await["isError"], true);
    let asked = protected.server.take_token_requests();
    for (name, wanted) in [
        ("requested_token_use", Some("on_behalf_of")),
        ("scope", Some("api://b/.default")),
        ("resource", None),
        ("client_id", Some("broker")),
    ] {
        assert_eq!(member(&asked[0], name).as_deref(), wanted, "{name}");
    }
}

/// Starts an identity provider and a backend that accepts its assertions. Returns both, the claims of
/// the user, and the settings of the backend.
async fn enterprise_backend() -> (Protected, AuthorizationServer, Arc<Mutex<Value>>, Value) {
    let protected = Protected::start(|request| member(request, "assertion")).await;
    let (provider, claims) = identity_provider().await;
    let settings = json!({"issuer": provider.issuer(), "client_id": "broker-at-idp"});
    let spec = protected.spec(json!({"type": "enterprise", "provider": settings}));
    (protected, provider, claims, spec)
}

/// An identity provider: signs users in, and gives `jag-NUMBER` for an ID token.
pub(crate) async fn identity_provider() -> (AuthorizationServer, Arc<Mutex<Value>>) {
    let provider = AuthorizationServer::start().await;
    provider.set_metadata(json!({"code_challenge_methods_supported": ["S256"]}));
    let claims = Arc::new(Mutex::new(json!({"aud": "broker-at-idp"})));
    let (changes, key) = (claims.clone(), provider.key().clone());
    let template = provider.claims("ann", json!({}));
    provider.answer_tokens(Arc::new(move |request, number| {
        if member(request, "grant_type").as_deref() != Some(EXCHANGE) {
            let mut claims = template.clone();
            for (name, value) in changes.lock().as_object().unwrap() {
                claims[name] = value.clone();
            }
            return (200, json!({"access_token": "of-idp", "token_type": "Bearer", "expires_in": 3600, "id_token": key.sign(&claims)}));
        }
        if changes.lock().get("refuses").is_some() {
            return (400, json!({"error": "invalid_grant"}));
        }
        (200, json!({"access_token": format!("jag-{number}"), "token_type": "N_A", "issued_token_type": "urn:ietf:params:oauth:token-type:id-jag"}))
    }));
    (provider, claims)
}

#[tokio::test]
async fn an_assertion_of_the_identity_provider_is_exchanged_for_a_token() {
    let protected = Protected::start(|request| {
        let jag = member(request, "assertion")?;
        (member(request, "grant_type")? == JWT_BEARER).then_some(jag)
    })
    .await;
    let (provider, claims) = identity_provider().await;
    let settings = json!({"issuer": provider.issuer(), "client_id": "broker-at-idp"});
    let spec = protected.spec(json!({"type": "enterprise", "provider": settings}));
    let broker = builder().single_process().start().await;
    let path = "/admin/v1/tenants/default/backends/b";
    assert_eq!(broker.admin().put(path, &spec).await.0, 201);
    let client = broker.connected(json!({})).await;
    let answer = call(&client, "b__connect").await;
    assert!(answer.to_string().contains("/connect/b"), "{answer}");
    let browser = Browser::new(&broker);
    let request = browser.start_login().await;
    assert!(request.starts_with(&format!("{}/authorize?", provider.issuer())), "{request}");
    assert_eq!(parameter(&request, "scope").as_deref(), Some("openid"));
    assert_eq!(parameter(&request, "resource"), None, "{request}");
    // An ID token for another client, of another issuer, or that is over connects nothing.
    for wrong in [
        json!({"aud": "other"}),
        json!({"aud": "broker-at-idp", "iss": "https://evil.example"}),
        json!({"aud": "broker-at-idp", "exp": 1}),
    ] {
        *claims.lock() = wrong.clone();
        let request = browser.start_login().await;
        assert_eq!(browser.answer(&request, "&code=c").await, 502, "{wrong}");
    }
    *claims.lock() = json!({"aud": "broker-at-idp"});
    assert_eq!(browser.connect().await, 200);
    eventually("the tools", || async {
        let listed = client.result("tools/list", json!({})).await;
        if listed.to_string().contains("b__echo") { Ok(()) } else { Err(listed) }
    })
    .await;
    let params = json!({"name": "b__echo", "arguments": {"as": "jag"}});
    client.result("tools/call", params).await;
    let exchanges: Vec<_> = provider.take_token_requests();
    let exchange = exchanges.iter().find(|one| member(one, "subject_token").is_some()).unwrap();
    for (name, wanted) in [
        ("requested_token_type", "urn:ietf:params:oauth:token-type:id-jag"),
        ("subject_token_type", "urn:ietf:params:oauth:token-type:id_token"),
        ("audience", protected.server.issuer()),
        ("resource", protected.backend.url().as_str()),
        ("client_id", "broker-at-idp"),
    ] {
        assert_eq!(member(exchange, name).as_deref(), Some(wanted), "{name}");
    }
    let id_token = member(exchange, "subject_token").unwrap();
    let asked = protected.server.take_token_requests();
    assert!(
        asked.iter().all(|one| !one.form.contains(&id_token)),
        "the server of the backend gets no ID token"
    );
    assert!(asked[0].authorization.as_deref().unwrap().starts_with("Basic "));
    for (_, header) in protected.callers() {
        assert!(header.starts_with("Bearer for-jag-"), "{header}");
    }
    // The provider ends the sign-in. The user is asked to sign in again.
    *claims.lock() = json!({"aud": "broker-at-idp", "refuses": true});
    protected.accepted.lock().clear();
    eventually("the end of the sign-in", || async {
        let answer = call(&client, "b__echo").await;
        if answer.to_string().contains("/connect/b") { Ok(()) } else { Err(answer) }
    })
    .await;
    let (_, list) = broker.admin().get("/admin/v1/tenants/default/connections").await;
    assert_eq!(list["connections"][0]["state"], "reconnect", "{list}");
    assert!(!broker.log().contains(&id_token) && !list.to_string().contains(&id_token));
}

/// The token for the backend could be used for another hour.
#[tokio::test]
async fn a_token_is_not_used_after_the_sign_in_that_it_was_made_of() {
    let (protected, provider, claims, spec) = enterprise_backend().await;
    let broker = builder().single_process().start().await;
    let path = "/admin/v1/tenants/default/backends/b";
    assert_eq!(broker.admin().put(path, &spec).await.0, 201);
    let browser = Browser::new(&broker);
    assert_eq!(browser.connect().await, 200);
    broker.admin().wait_backend_state("default", "b", "ready").await;
    let client = broker.client("/mcp/b").connected(json!({})).await;
    assert_ne!(echo(&client, "ann").await["isError"], true);

    // Another user signs in, in place of the first one.
    *claims.lock() = json!({"aud": "broker-at-idp", "sub": "bob"});
    assert_eq!(browser.connect().await, 200);
    assert_ne!(echo(&client, "bob").await["isError"], true);
    let callers = protected.callers();
    assert_eq!(callers.len(), 2, "{callers:?}");
    assert_ne!(callers[0].1, callers[1].1, "the token of the first user");
    let asked = provider.take_token_requests();
    let subject = asked.iter().rev().find_map(|one| member(one, "subject_token"));
    assert_eq!(payload(&subject.expect("an exchange"))["sub"], "bob");

    let path = "/admin/v1/tenants/default/connections/anonymous/b";
    assert_eq!(broker.admin().delete(path).await.0, 204);
    let answer = echo(&client, "bob").await;
    assert!(answer.to_string().contains("/connect/b"), "{answer}");
    assert_eq!(protected.callers(), callers, "no call has the token of the ended sign-in");
}

#[tokio::test]
async fn the_broker_signs_with_its_own_keys_of_each_tenant() {
    let protected = Protected::start(|_| Some("broker".to_owned())).await;
    let broker = builder().single_process().tenant("acme").tenant("idle").start().await;
    let auth = json!({"type": "oauth_client", "client_secret": null, "token_endpoint_auth_method": "private_key_jwt"});
    for tenant in ["default", "acme"] {
        broker.admin().put_ready_backend(tenant, "b", &protected.spec(auth.clone())).await;
    }
    let browser = Browser::new(&broker);
    let mut sets = Vec::new();
    for tenant in ["default", "acme"] {
        let answer = browser.send("GET", &format!("/oauth/jwks.json?tenant={tenant}"), "").await;
        sets.push(answer.json().await["keys"].as_array().unwrap().clone());
    }
    let plain = browser.send("GET", "/oauth/jwks.json", "").await.json().await;
    assert_eq!(plain["keys"].as_array(), Some(&sets[0]));
    assert!(sets.iter().flatten().all(|key| key.get("d").is_none() && key["kty"] == "EC"));
    assert!(sets[0].iter().all(|key| !sets[1].contains(key)), "no tenant has a key of another");
    for tenant in ["idle", "absent", "../x"] {
        let answer = browser.send("GET", &format!("/oauth/jwks.json?tenant={tenant}"), "").await;
        assert_eq!(answer.status, 404, "{tenant}");
    }
    for (asked, keys) in protected.server.take_token_requests().iter().zip(&sets) {
        let assertion = member(asked, "client_assertion").unwrap();
        signer(&assertion, keys);
        let claims = payload(&assertion);
        assert_eq!(
            (&claims["iss"], &claims["aud"]),
            (&json!("broker"), &json!(protected.server.issuer()))
        );
    }
}

#[tokio::test]
async fn lists_are_fetched_before_a_user_connects_if_permitted() {
    let world = World::start(3600).await;
    let broker = builder().single_process().start().await;
    let mut spec = world.spec();
    spec["auth"]["client_secret"] = json!("the-secret-of-the-broker");
    spec["auth"]["catalog_auth"] = json!("service");
    broker.admin().put_ready_backend("default", "b", &spec).await;
    let asked = world.server.take_token_requests();
    assert_eq!(member(&asked[0], "grant_type").as_deref(), Some("client_credentials"));
    let client = broker.connected(json!({})).await;
    let listed = client.result("tools/list", json!({})).await;
    assert!(listed.to_string().contains("b__echo"), "{listed}");
    let answer = call(&client, "b__echo").await;
    assert!(answer.to_string().contains("/connect/b"), "a call is the user's: {answer}");
    assert_eq!(Browser::new(&broker).connect().await, 200);
    assert_ne!(call(&client, "b__echo").await["isError"], true);
}

#[tokio::test]
async fn a_final_slash_of_an_issuer_is_ignored_only_if_configured() {
    let world = World::start(3600).await;
    let slash = format!("{}/", world.server.issuer());
    world
        .server
        .set_metadata(json!({"issuer": slash, "code_challenge_methods_supported": ["S256"]}));
    let broker = world.broker().await;
    let browser = Browser::new(&broker);
    assert_eq!(browser.send("GET", "/connect/b", "").await.status, 502);
    let mut spec = world.spec();
    spec["auth"]["issuer_compare"] = json!("pathless_slash");
    broker.admin().put("/admin/v1/tenants/default/backends/b", &spec).await;
    assert_eq!(browser.connect().await, 200);
    let (_, list) = broker.admin().get("/admin/v1/tenants/default/connections").await;
    assert_eq!(list["connections"][0]["issuer"], json!(slash), "{list}");
}

#[tokio::test]
async fn an_exchange_names_the_broker_as_the_acting_party() {
    for (kind, key) in [("access_token", None), ("jwt", Some("private_key_jwt"))] {
        let protected = Protected::start(|request| match member(request, "subject_token") {
            Some(subject) => Some(payload(&subject)["sub"].as_str()?.to_owned()),
            None => Some("actor".to_owned()),
        })
        .await;
        let issuer = AuthorizationServer::start().await;
        let mut auth = json!({"type": "token_exchange", "actor_token": kind});
        if let Some(method) = key {
            auth["client_secret"] = Value::Null;
            auth["token_endpoint_auth_method"] = json!(method);
        }
        let broker = broker_for(&issuer, true, &protected.spec(auth)).await;
        let token = issuer.token("ann");
        let client = broker.client("/mcp/b").bearer(&token).connected(json!({})).await;
        assert_ne!(echo(&client, "ann").await["isError"], true);
        let asked = protected.server.take_token_requests();
        let exchange = asked.iter().find(|one| member(one, "subject_token").is_some()).unwrap();
        let actor = member(exchange, "actor_token").expect("an acting party");
        let name = format!("urn:ietf:params:oauth:token-type:{kind}");
        assert_eq!(member(exchange, "actor_token_type"), Some(name));
        assert_eq!(member(exchange, "subject_token"), Some(token));
        if kind == "jwt" {
            let claims = payload(&actor);
            assert_eq!((&claims["iss"], &claims["sub"]), (&json!("broker"), &json!("broker")));
            assert_eq!(claims["aud"], json!(protected.server.issuer()));
        } else {
            assert!(actor.starts_with("for-actor-"), "a token of the broker: {actor}");
            let own = asked.iter().find(|one| member(one, "subject_token").is_none()).unwrap();
            assert_eq!(member(own, "grant_type").as_deref(), Some("client_credentials"));
        }
        for (_, header) in protected.callers() {
            assert!(header.starts_with("Bearer for-ann-"), "the user's token: {header}");
        }
    }
}

/// A principal of the identity provider is one of its users, and connects no account of another one.
#[tokio::test]
async fn a_principal_of_an_identity_provider_can_sign_in_only_as_itself() {
    let (_protected, provider, claims, spec) = enterprise_backend().await;
    let broker =
        builder().single_process().auth_required().admin_token("operator-of-tests").start().await;
    let admin = broker.admin();
    assert_eq!(admin.put("/admin/v1/tenants/default/backends/b", &spec).await.0, 201);
    let connections = "/admin/v1/tenants/default/connections";
    let ann = format!("{} ann", provider.issuer());
    let (status, link) = admin.post(connections, &json!({"principal": ann, "backend": "b"})).await;
    assert_eq!(status, 201, "{link}");
    let secret = parameter(link["url"].as_str().unwrap(), "link").unwrap();
    let browser = Browser::new(&broker);
    assert_eq!(browser.send("POST", "/connect", &format!("link={secret}")).await.status, 303);
    *claims.lock() = json!({"aud": "broker-at-idp", "sub": "bob"});
    let request = browser.start_login().await;
    assert_eq!(browser.answer(&request, "&code=c").await, 502);
    assert_eq!(admin.get(connections).await.1["connections"], json!([]));
    *claims.lock() = json!({"aud": "broker-at-idp", "sub": "ann"});
    assert_eq!(browser.connect().await, 200);
    assert_eq!(admin.get(connections).await.1["connections"][0]["principal"], json!(ann));
}

/// The claim that names the principals of an issuer decides who has signed in there.
#[tokio::test]
async fn a_sign_in_is_compared_by_the_claim_that_names_the_principal() {
    let (_protected, provider, claims, spec) = enterprise_backend().await;
    let broker = builder()
        .single_process()
        .auth_required()
        .admin_token("operator-of-tests")
        .config(provider.config("default", json!({"principal_claim": "email"})))
        .start()
        .await;
    let admin = broker.admin();
    assert_eq!(admin.put("/admin/v1/tenants/default/backends/b", &spec).await.0, 201);
    let connections = "/admin/v1/tenants/default/connections";
    let ann = format!("{} ann@example.com", provider.issuer());
    let (status, link) = admin.post(connections, &json!({"principal": ann, "backend": "b"})).await;
    assert_eq!(status, 201, "{link}");
    let secret = parameter(link["url"].as_str().unwrap(), "link").unwrap();
    let browser = Browser::new(&broker);
    assert_eq!(browser.send("POST", "/connect", &format!("link={secret}")).await.status, 303);
    for (subject, email) in [
        ("7", json!("bob@example.com")),
        ("ann@example.com", json!("bob@example.com")),
        ("ann@example.com", json!("")),
        ("ann@example.com", json!(["ann@example.com"])),
        ("ann@example.com", Value::Null),
    ] {
        *claims.lock() = json!({"aud": "broker-at-idp", "sub": subject, "email": email});
        assert_eq!(browser.connect().await, 502, "{subject} {email}");
    }
    *claims.lock() = json!({"aud": "broker-at-idp", "sub": "7", "email": "ann@example.com"});
    assert_eq!(browser.connect().await, 200);
    assert_eq!(admin.get(connections).await.1["connections"][0]["principal"], json!(ann));
}

#[tokio::test]
async fn parallel_calls_without_a_token_to_exchange_wait_at_the_same_time() {
    let protected = Protected::start(|_| Some("x".to_owned())).await;
    let issuer = AuthorizationServer::start().await;
    let mut spec = protected.spec(json!({"type": "token_exchange"}));
    spec["timeouts"] = json!({"call": "9s"});
    let broker = broker_for(&issuer, false, &spec).await;
    let token = issuer.token("ann");
    let calls = (0..16).map(|_| async {
        let client = broker.client("/mcp/b").bearer(&token).connected(json!({})).await;
        kind(&client.error("prompts/get", json!({"name": "p"})).await).to_owned()
    });
    for kind in futures_util::future::join_all(calls).await {
        assert_eq!(kind, "token_required");
    }
}
