//! The broker as an OAuth client towards backends: how it finds the authorization server, which
//! tokens it gets, and what a backend sees of them.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use serde_json::{Value, json};
use testkit::{
    AuthorizationServer, FakeBackend, GateAnswer, IssuerBehavior, TestBroker, TokenRequest,
    eventually,
};

use crate::{builder, kind};

const SECRET: &str = "a-secret-that-no-answer-shows";

/// A backend that demands tokens of its server.
struct Protected {
    backend: FakeBackend,
    server: AuthorizationServer,
    /// Tokens that the backend accepts, with their scopes.
    accepted: Arc<Mutex<HashMap<String, String>>>,
    granted: Arc<AtomicUsize>,
}

/// Returns the value of a form's member.
fn member(request: &TokenRequest, name: &str) -> Option<String> {
    let mut pairs = request.form.split('&').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.find(|(found, _)| *found == name)?;
    Some(value.replace('+', " ").replace("%3A", ":").replace("%2F", "/"))
}

impl Protected {
    async fn start() -> Self {
        let (backend, server) = (FakeBackend::echo().await, AuthorizationServer::start().await);
        let accepted: Arc<Mutex<HashMap<String, String>>> = Arc::default();
        let granted = Arc::<AtomicUsize>::default();
        let (to_server, counted) = (accepted.clone(), granted.clone());
        server.answer_tokens(Arc::new(move |request, _| {
            let number = counted.fetch_add(1, Ordering::SeqCst) + 1;
            let scope = member(request, "scope").unwrap_or_default();
            to_server.lock().insert(format!("Bearer token-{number}"), scope.clone());
            let token = format!("token-{number}");
            (200, json!({"access_token": token, "token_type": "bearer", "scope": scope, "expires_in": 3600}))
        }));
        let protected = Self { backend, server, accepted, granted };
        protected.gate(json!({}), "");
        protected
    }

    /// Sets the protected resource metadata, and a scope that calls need.
    fn gate(&self, metadata: Value, needed: &'static str) {
        let mut document = json!({
            "resource": self.backend.url(), "authorization_servers": [self.server.issuer()],
            "scopes_supported": ["mcp:base"],
        });
        for (name, value) in metadata.as_object().unwrap() {
            document[name] = value.clone();
        }
        let accepted = self.accepted.clone();
        let metadata_url =
            format!("http://{}/.well-known/oauth-protected-resource", self.backend.address());
        let answer = |status, headers: &[(&str, String)], body: Value| {
            let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
            Some(GateAnswer { status, headers: headers.collect(), body })
        };
        self.backend.gate(move |path, headers| {
            if path.starts_with("/.well-known/oauth-protected-resource") {
                return answer(200, &[], document.clone());
            }
            let header = headers.get("authorization").and_then(|value| value.to_str().ok());
            let scopes = header.and_then(|header| accepted.lock().get(header).cloned());
            match scopes {
                None => {
                    let challenge = format!("Bearer resource_metadata=\"{metadata_url}\"");
                    answer(401, &[("www-authenticate", challenge)], json!({}))
                }
                Some(scopes) if !scopes.contains(needed) => {
                    let challenge =
                        format!("Bearer error=\"insufficient_scope\", scope=\"{needed}\"");
                    answer(403, &[("www-authenticate", challenge)], json!({}))
                }
                Some(_) => None,
            }
        });
    }

    fn spec(&self, more: Value) -> Value {
        let mut spec = self.backend.spec();
        spec["auth"] =
            json!({"type": "oauth_client", "client_id": "broker", "client_secret": SECRET});
        for (name, value) in more.as_object().unwrap() {
            spec["auth"][name] = value.clone();
        }
        spec
    }

    async fn broker(&self, more: Value) -> TestBroker {
        builder().single_process().backend("default", "b", self.spec(more)).start().await
    }

    /// Registers the backend, and returns why it does not work.
    async fn fault(&self, broker: &TestBroker, more: Value) -> String {
        let (status, view) = broker.admin().put_backend("default", "b", &self.spec(more)).await;
        assert!([200, 201].contains(&status), "{view}");
        assert!(!view.to_string().contains(SECRET), "{view}");
        broker.admin().delete("/admin/v1/tenants/default/backends/b").await;
        view["last_error"].as_str().unwrap_or_else(|| panic!("no error: {view}")).to_owned()
    }

    fn granted(&self) -> usize {
        self.granted.load(Ordering::SeqCst)
    }
}

#[tokio::test]
async fn a_backend_gets_tokens_of_its_authorization_server_shared_by_all_links() {
    let protected = Protected::start().await;
    let broker = protected.broker(json!({})).await;
    let canary = broker.admin().create_key("default").await;
    let call = || async {
        let client = broker.client("/mcp").bearer(&canary).connected(json!({})).await;
        client.result("tools/call", json!({"name": "b__echo", "arguments": {"x": 1}})).await
    };
    for result in futures_util::future::join_all((0..20).map(|_| call())).await {
        assert!(result["content"].is_array(), "{result}");
    }
    assert_eq!(protected.granted(), 1, "all links use one token");
    let asked = protected.server.take_token_requests();
    assert_eq!(member(&asked[0], "grant_type").as_deref(), Some("client_credentials"));
    assert_eq!(member(&asked[0], "resource"), Some(protected.backend.url()));
    assert_eq!(member(&asked[0], "scope").as_deref(), Some("mcp:base"));
    assert!(asked[0].authorization.as_deref().unwrap().starts_with("Basic "), "{asked:?}");
    for seen in protected.backend.recorded() {
        assert!(!format!("{seen:?}").contains(&canary), "a caller's token left: {seen:?}");
        let sent = seen.header("authorization");
        let probe = seen.method() == Some("ping") || seen.http == "GET" && sent.is_none();
        assert!(probe || sent == Some("Bearer token-1"), "{seen:?}");
    }
    let (_, view) = broker.admin().get("/admin/v1/tenants/default/backends/b").await;
    let shown = json!({"type": "oauth_client", "client_id": "broker", "client_secret": "***"});
    assert_eq!(view["settings"]["auth"], shown);
    assert!(!view.to_string().contains(SECRET) && !broker.log().contains(SECRET), "{view}");
    let labels = [("outcome", "granted")];
    assert_eq!(broker.admin().metric("mcp_upstream_refresh_total", &labels).await, Some(1.0));
}

#[tokio::test]
async fn a_refused_token_is_replaced_once_and_the_request_is_executed_once() {
    let protected = Protected::start().await;
    let broker =
        protected.broker(json!({"token_endpoint_auth_method": "client_secret_post"})).await;
    let client = broker.connected(json!({})).await;
    let arguments = json!({"name": "b__echo", "arguments": {}});
    client.result("tools/call", arguments.clone()).await;
    protected.accepted.lock().clear();
    client.result("tools/call", arguments.clone()).await;
    assert_eq!(protected.granted(), 2);
    let asked = protected.server.take_token_requests();
    assert_eq!(member(&asked[1], "client_secret").as_deref(), Some(SECRET));
    assert!(asked.iter().all(|request| request.authorization.is_none()), "{asked:?}");
    // A server whose tokens the backend never accepts: two tries, then the refusal.
    protected.server.answer_tokens(Arc::new(|_, _| {
        (200, json!({"access_token": "useless", "token_type": "Bearer"}))
    }));
    protected.accepted.lock().clear();
    let before = protected.backend.count(|request| request.calls("echo"));
    let refused = client.error("tools/call", arguments).await;
    assert_eq!(kind(&refused), "backend_protocol_error");
    assert_eq!(protected.backend.count(|request| request.calls("echo")), before + 2);
    assert_eq!(protected.server.take_token_requests().len(), 1);
}

#[tokio::test]
async fn a_token_without_a_scope_is_replaced_by_one_with_the_union() {
    let protected = Protected::start().await;
    let broker = protected.broker(json!({})).await;
    let client = broker.connected(json!({})).await;
    protected.gate(json!({}), "mcp:write");
    client.result("tools/call", json!({"name": "b__echo", "arguments": {}})).await;
    let asked = protected.server.take_token_requests();
    let scopes: Vec<_> = asked.iter().filter_map(|request| member(request, "scope")).collect();
    assert_eq!(scopes, ["mcp:base", "mcp:base mcp:write"]);
    // A scope that the server never grants ends after three tries.
    protected.gate(json!({}), "mcp:admin");
    protected.server.answer_tokens(Arc::new(|_, number| {
        (200, json!({"access_token": format!("token-{number}"), "token_type": "Bearer"}))
    }));
    protected.accepted.lock().extend((1..9).map(|n| (format!("Bearer token-{n}"), String::new())));
    let before = protected.backend.count(|request| request.calls("echo"));
    let refused = client.error("tools/call", json!({"name": "b__echo", "arguments": {}})).await;
    assert_eq!(kind(&refused), "backend_protocol_error");
    assert_eq!(protected.backend.count(|request| request.calls("echo")), before + 3);
}

#[tokio::test]
async fn a_token_is_renewed_before_its_expiry_and_kept_during_an_outage() {
    let protected = Protected::start().await;
    let accepted = protected.accepted.clone();
    protected.server.answer_tokens(Arc::new(move |_, number| {
        accepted.lock().insert(format!("Bearer token-{number}"), String::new());
        match number {
            2 => (503, json!({})),
            _ => (200, json!({"access_token": format!("token-{number}"), "token_type": "Bearer", "expires_in": 10})),
        }
    }));
    let broker = protected.broker(json!({"scopes": ["own"]})).await;
    let client = broker.connected(json!({})).await;
    eventually("the third token", || async {
        client.result("tools/call", json!({"name": "b__echo", "arguments": {}})).await;
        let calls = protected.backend.recorded();
        let last = calls.iter().rev().find(|request| request.calls("echo")).unwrap();
        match last.header("authorization") {
            Some("Bearer token-3") => Ok(()),
            other => Err(other.map(str::to_owned)),
        }
    })
    .await;
    let labels = [("outcome", "unavailable")];
    assert!(broker.admin().metric("mcp_upstream_refresh_total", &labels).await >= Some(1.0));
}

#[tokio::test]
async fn an_outage_causes_one_token_request_a_second_at_most() {
    let protected = Protected::start().await;
    let accepted = protected.accepted.clone();
    protected.server.answer_tokens(Arc::new(move |_, number| {
        accepted.lock().insert("Bearer token-1".to_owned(), String::new());
        match number {
            1 => {
                (200, json!({"access_token": "token-1", "token_type": "Bearer", "expires_in": 15}))
            }
            _ => (503, json!({})),
        }
    }));
    let broker = protected.broker(json!({})).await;
    let client = broker.connected(json!({})).await;
    // The token is due after 12 seconds, and backends accept it for 15.
    let started_at = Instant::now();
    eventually("a failed renewal", || async {
        client.result("tools/call", json!({"name": "b__echo", "arguments": {}})).await;
        let requests = protected.server.token_requests().len();
        if requests > 1 { Ok(()) } else { Err(requests) }
    })
    .await;
    assert!(started_at.elapsed() > Duration::from_secs(2), "the token is used before");
    let asked = Instant::now();
    for _ in 0..50 {
        // The token may have expired before the last of these calls.
        client.request("tools/call", json!({"name": "b__echo", "arguments": {}})).await;
    }
    let allowed = 3 + usize::try_from(asked.elapsed().as_secs()).unwrap();
    let requests = protected.server.token_requests().len();
    assert!(requests <= allowed, "{requests} token requests for 50 calls");
}

#[tokio::test]
async fn invalid_metadata_stops_the_broker_before_it_sends_its_credential() {
    let protected = Protected::start().await;
    let evil = AuthorizationServer::start().await;
    let broker = builder().single_process().start().await;
    let fault = |more: Value| protected.fault(&broker, more);
    protected.gate(json!({"resource": "https://evil.example/mcp"}), "");
    assert!(fault(json!({})).await.contains("is about another resource"));
    protected.gate(json!({"authorization_servers": []}), "");
    assert!(fault(json!({})).await.contains("names no authorization server"));
    protected.gate(json!({"authorization_servers": [evil.issuer()]}), "");
    let bound = fault(json!({"issuer": protected.server.issuer()})).await;
    assert!(bound.contains("and not"), "{bound}");
    protected.gate(json!({"authorization_servers": ["http://as.example"]}), "");
    assert!(fault(json!({})).await.contains("TLS is required"));
    protected.gate(json!({"authorization_servers": ["https://169.254.169.254/latest"]}), "");
    assert!(fault(json!({})).await.contains("did not answer"), "egress applies");
    protected.gate(json!({}), "");
    for (behavior, wanted) in [
        (IssuerBehavior::WrongIssuer, "names another issuer"),
        (IssuerBehavior::Refuses, "answers 503"),
        (IssuerBehavior::Redirects, "has no metadata"),
        (IssuerBehavior::Oversized, "did not answer"),
        (IssuerBehavior::Garbage, "has no metadata"),
    ] {
        protected.server.set_behavior(behavior);
        let last_error = fault(json!({})).await;
        assert!(last_error.contains(wanted), "{behavior:?}: {last_error}");
    }
    protected.server.set_behavior(IssuerBehavior::Serves);
    for endpoint in ["http://as.example/token", "javascript:x", "", "/token"] {
        protected.server.set_metadata(json!({"token_endpoint": endpoint}));
        let last_error = fault(json!({})).await;
        assert!(last_error.contains("token_endpoint that the broker may use"), "{last_error}");
    }
    assert_eq!(protected.server.take_token_requests(), []);
    assert_eq!(evil.take_token_requests(), []);
}

#[tokio::test]
async fn a_refused_token_request_is_shown_to_operators_and_retried_later() {
    let protected = Protected::start().await;
    let accepted = protected.accepted.clone();
    protected.server.answer_tokens(Arc::new(move |_, number| match number {
        1 => (400, json!({"error": "invalid_client", "error_description": "<script>"})),
        2 => (200, json!({"access_token": "with space", "token_type": "Bearer"})),
        3 => (200, json!({"access_token": "x", "token_type": "DPoP"})),
        _ => {
            accepted.lock().insert("Bearer good".to_owned(), String::new());
            (200, json!({"access_token": "good", "token_type": "Bearer"}))
        }
    }));
    let broker = builder().single_process().start().await;
    let (_, view) = broker.admin().put_backend("default", "b", &protected.spec(json!({}))).await;
    let last_error = view["last_error"].as_str().unwrap();
    assert!(last_error.contains("invalid_client") && !last_error.contains("script"), "{view}");
    broker.admin().wait_backend_state("default", "b", "ready").await;
    assert_eq!(protected.server.take_token_requests().len(), 4);
}

#[tokio::test]
async fn a_server_that_changes_does_not_get_the_credential_of_the_first_one() {
    let protected = Protected::start().await;
    let other = AuthorizationServer::start().await;
    let broker = protected.broker(json!({})).await;
    let client = broker.connected(json!({})).await;
    protected.gate(json!({"authorization_servers": [other.issuer()]}), "");
    protected.accepted.lock().clear();
    let refused = client.error("tools/call", json!({"name": "b__echo", "arguments": {}})).await;
    assert_eq!(kind(&refused), "backend_unavailable");
    assert_eq!(other.take_token_requests(), []);
    let (_, view) = broker.admin().get("/admin/v1/tenants/default/backends/b").await;
    assert!(view["last_error"].as_str().unwrap().contains("belongs to"), "{view}");
}

#[tokio::test]
async fn a_secret_is_read_from_a_file_of_the_configuration_only() {
    let protected = Protected::start().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secret");
    std::fs::write(&file, format!("{SECRET}\n")).unwrap();
    let mut spec =
        protected.spec(json!({"client_secret_file": file, "issuer": protected.server.issuer()}));
    spec["auth"].as_object_mut().unwrap().remove("client_secret");
    let config = json!({"backends": {"b": spec}});
    let broker = builder().single_process().config(config).start().await;
    broker.admin().wait_backend_state("default", "b", "ready").await;
    let (status, problem) = broker.admin().put_backend("default", "c", &spec).await;
    assert_eq!(status, 400, "{problem}");
}
