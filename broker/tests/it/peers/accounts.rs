//! Accounts at real authorization servers: `oidc-provider`, which gives each refresh token once and
//! revokes a grant whose token comes twice, `@jmondi/oauth2-server`, which exchanges tokens, and
//! authlib.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use futures_util::future::join_all;
use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};
use testkit::{
    AuthorizationServer, FakeBackend, GateAnswer, eventually,
    http::{RawResponse, send_http1},
    within,
};
use tokio::process::Command;

use super::{
    install::Peers,
    process::{Ended, Server, run},
};
use crate::{
    accounts::{Browser, between},
    builder,
};

/// Address of the broker for browsers. The tests send its requests to one of the replicas.
const ADDRESS: &str = "http://127.0.0.1:9";
const CALLS: usize = 200;
const BROWSES_WITHIN: Duration = Duration::from_secs(90);

async fn started(script: &str, arguments: &[&str]) -> Server {
    let peers = Peers::installed();
    let mut command = Command::new(peers.node());
    command
        .env("NODE_MODULES", peers.node_folder().join("node_modules"))
        .arg(Peers::ours(&format!("peers/servers/{script}.mjs")))
        .args(arguments);
    let prefix = format!("{script} listening on ");
    Server::start(command, move |line| line.strip_prefix(&prefix).map(str::to_owned)).await
}

async fn get(url: &str) -> RawResponse {
    let (address, path) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let request = Request::builder()
        .uri(format!("/{path}"))
        .header("host", address)
        .body(Full::new(Bytes::new()))
        .unwrap();
    within("an answer of a peer", send_http1(address.parse().unwrap(), request)).await.unwrap()
}

/// Returns the claims of a JWT in a header.
fn claims(header: &str) -> Option<Value> {
    let payload = header.strip_prefix("Bearer ")?.split('.').nth(1)?;
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()
}

/// Returns whether a JWT is for this resource, and has not expired.
fn is_live(header: &str, resource: &str) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    claims(header).is_some_and(|claims| {
        claims["exp"].as_u64().is_some_and(|end| end > now) && claims["aud"] == resource
    })
}

fn is_exchanged(header: &str, _resource: &str) -> bool {
    claims(header)
        .is_some_and(|claims| claims["jti"].as_str().is_some_and(|id| id.starts_with("exchanged-")))
}

/// Starts a backend that demands tokens of the server, and judges each by this rule.
async fn protected(
    issuer: &str,
    accepts: impl Fn(&str, &str) -> bool + Send + Sync + 'static,
) -> FakeBackend {
    let backend = FakeBackend::echo().await;
    protect(&backend, issuer, accepts);
    backend
}

fn protect(
    backend: &FakeBackend,
    issuer: &str,
    accepts: impl Fn(&str, &str) -> bool + Send + Sync + 'static,
) {
    let resource = backend.url();
    let document = json!({"resource": resource, "authorization_servers": [issuer], "scopes_supported": ["mcp:read"]});
    backend.gate(move |path, headers| {
        if path.starts_with("/.well-known/") {
            return Some(GateAnswer { status: 200, headers: vec![], body: document.clone() });
        }
        let header = headers.get("authorization").and_then(|value| value.to_str().ok());
        if header.is_some_and(|header| accepts(header, &resource)) {
            return None;
        }
        let challenge = ("www-authenticate".to_owned(), "Bearer".to_owned());
        Some(GateAnswer { status: 401, headers: vec![challenge], body: json!({}) })
    });
}

#[tokio::test]
async fn two_hundred_calls_with_an_expired_token_use_the_refresh_token_once() {
    let server = started("oidc", &["--rotate", "--login-token-ttl", "8"]).await;
    let backend = protected(&server.url, is_live).await;
    let cluster = builder().config(json!({"auth": {"resource": ADDRESS}})).cluster(2).start().await;
    let mut spec = backend.spec();
    spec["auth"] = json!({"type": "oauth_user"});
    let (status, view) = cluster.operator().put_backend("default", "b", &spec).await;
    assert_eq!(status, 201, "{view}");

    // The broker registers itself. The server signs in, and redirects to the broker.
    let browser = Browser::at(cluster.replicas()[0].http_address());
    let redirected = get(&browser.start_login().await).await;
    let location = redirected.header("location").expect("a redirect").to_owned();
    let path = location.strip_prefix(ADDRESS).unwrap_or_else(|| panic!("{location}"));
    assert_eq!(browser.send("GET", path, "").await.status, 200);

    let cluster = &cluster;
    let clients = join_all((0..20).map(|number| async move {
        let client = cluster.client_of(number % 2, "/mcp/b").connected(json!({})).await;
        client.result("tools/call", json!({"name": "echo", "arguments": {}})).await;
        client
    }))
    .await;
    // Nothing is called meanwhile, so nothing renews the token before its end.
    let path = "/admin/v1/tenants/default/connections";
    eventually("the end of the token", || async {
        let (_, list) = cluster.operator().get(path).await;
        let ends = list["connections"][0]["expires_at"].as_str().unwrap_or_default().to_owned();
        let now = cluster
            .sql("SELECT to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS')")
            .await;
        if ends.as_str() < now.as_str() { Ok(()) } else { Err((ends, now)) }
    })
    .await;
    let each = CALLS / clients.len();
    let outcomes = join_all(clients.iter().flat_map(|client| {
        (0..each).map(move |number| {
            let params = json!({"name": "echo", "arguments": {"number": number}});
            client.attempt("tools/call", params, Duration::from_secs(60))
        })
    }))
    .await;
    let failed: Vec<_> = outcomes.iter().filter(|outcome| outcome.kind() != "result").collect();
    assert!(failed.is_empty() && outcomes.len() == CALLS, "{failed:?}");
    let counts = get(&format!("{}/counts", server.url)).await.json().await;
    assert_eq!(counts, json!({"refreshed": 1, "refused": 0, "revoked": 0}));
    let (_, list) = cluster.operator().get(path).await;
    assert_eq!(list["connections"][0]["state"], "connected", "{list}");
}

#[tokio::test]
async fn the_tokens_of_callers_are_exchanged_at_a_real_server() {
    let issuer = AuthorizationServer::start().await;
    let server = started("exchange", &[issuer.issuer()]).await;
    let backend = protected(&server.url, is_exchanged).await;
    let broker = builder()
        .single_process()
        .auth_required()
        .admin_token("operator-of-tests")
        .config(issuer.config("default", json!({"exchange": {"issuers": [server.url]}})))
        .start()
        .await;
    let mut spec = backend.spec();
    spec["auth"] = json!({"type": "token_exchange", "issuer": server.url, "client_id": "broker", "client_secret": "secret-of-broker", "token_endpoint_auth_method": "client_secret_post", "actor_token": "access_token"});
    let (status, view) = broker.admin().put_backend("default", "b", &spec).await;
    assert_eq!(status, 201, "{view}");
    for user in ["ann", "bob"] {
        let client = broker.client("/mcp/b").bearer(&issuer.token(user)).connected(json!({})).await;
        let params = json!({"name": "echo", "arguments": {"user": user}});
        client.result("tools/call", params).await;
    }
    let tokens = get(&format!("{}/tokens", server.url)).await.json().await;
    let calls: Vec<_> = backend.recorded().into_iter().filter(|seen| seen.calls("echo")).collect();
    assert_eq!(calls.len(), 2);
    for call in calls {
        let token = call.header("authorization").unwrap().strip_prefix("Bearer ").unwrap();
        assert_eq!(tokens[token]["user"], call.message["params"]["arguments"]["user"], "{tokens}");
        assert_eq!(tokens[token]["resource"], json!(backend.url()), "{tokens}");
        assert_eq!(tokens[token]["act"], json!({"sub": "broker"}), "the broker acts: {tokens}");
    }
}

#[tokio::test]
async fn a_person_connects_an_account_in_a_browser_without_scripts() {
    let peers = Peers::installed();
    let server = started("oidc", &["--pages"]).await;
    let backend = protected(&server.url, is_live).await;
    let broker = builder().single_process().start().await;
    let mut spec = backend.spec();
    spec["auth"] = json!({"type": "oauth_user"});
    let (status, view) = broker.admin().put_backend("default", "b", &spec).await;
    assert_eq!(status, 201, "{view}");
    let mut person = Command::new(peers.node());
    person.arg(Peers::ours("peers/clients/connect_page.mjs"));
    person.args([&broker.url(""), "b", &server.url]);
    let Ended { status, stdout, stderr } = run(person, BROWSES_WITHIN).await;
    let steps = stdout.lines().filter(|line| line.starts_with("ok ")).count();
    assert!(status.success() && steps == 5, "{status}\n{stdout}\n{stderr}\n{}", broker.log());
    let client = broker.client("/mcp/b").connected(json!({})).await;
    client.result("tools/call", json!({"name": "echo", "arguments": {}})).await;
}

#[tokio::test]
async fn the_broker_gets_tokens_of_its_own_from_authlib() {
    let backend = FakeBackend::echo().await;
    let mut command = Command::new(Peers::installed().python_of_authlib());
    command.arg("-B").arg(Peers::ours("peers/servers/authlib_issuer.py")).arg(backend.url());
    let address_of = |line: &str| line.strip_prefix("authlib listening on ").map(str::to_owned);
    let server = Server::start(command, address_of).await;
    protect(&backend, &server.url, is_live);
    let broker = builder().single_process().start().await;
    let mut spec = backend.spec();
    spec["auth"] = json!({"type": "oauth_client", "client_id": "robot", "client_secret": "secret-of-robot", "scopes": ["read"], "issuer": server.url});
    broker.admin().put_ready_backend("default", "b", &spec).await;
    let client = broker.client("/mcp/b").connected(json!({})).await;
    client.result("tools/call", json!({"name": "echo", "arguments": {}})).await;
    let calls: Vec<_> = backend.recorded().into_iter().filter(|seen| seen.calls("echo")).collect();
    let claims = claims(calls[0].header("authorization").unwrap()).unwrap();
    assert_eq!((&claims["scope"], &claims["client_id"]), (&json!("read"), &json!("robot")));
}

#[tokio::test]
async fn a_person_signs_in_and_connects_at_one_real_server() {
    let callback = format!("{ADDRESS}/oauth/callback");
    let server = started("oidc", &["--redirect-uri", &callback]).await;
    let backend = protected(&server.url, is_live).await;
    let issuer =
        json!({"issuer": server.url, "tenant": "default", "sign_in": {"client_id": "login"}});
    let broker = builder()
        .single_process()
        .auth_required()
        .admin_token("operator-of-tests")
        .config(json!({"auth": {"resource": ADDRESS, "issuers": [issuer]}}))
        .start()
        .await;
    let mut spec = backend.spec();
    spec["auth"] = json!({"type": "oauth_user"});
    let (status, view) = broker.admin().put_backend("default", "b", &spec).await;
    assert_eq!(status, 201, "{view}");
    let browser = Browser::new(&broker);
    let page = browser.send("GET", "/connect/b", "").await.text().await;
    let value = |name: &str| {
        between(&page, &format!("name=\"{name}\" value=\""), "\"").expect(&page).to_owned()
    };
    let form = format!("issuer={}&backend=b&proof={}", value("issuer"), value("proof"));
    let sent = browser.send("POST", "/connect", &form).await;
    let request = sent.header("location").expect("a redirect").to_owned();
    // The server signs ann in, and redirects to the broker.
    let back = |redirected: RawResponse| {
        let location = redirected.header("location").expect("a redirect").to_owned();
        location.strip_prefix(ADDRESS).unwrap_or_else(|| panic!("{location}")).to_owned()
    };
    let signed_in = browser.send("GET", &back(get(&request).await), "").await;
    assert_eq!((signed_in.status, signed_in.header("location")), (303, Some("/connect/b")));
    let connected = browser.send("GET", &back(get(&browser.start_login().await).await), "").await;
    assert_eq!(connected.status, 200);
    let (_, list) = broker.admin().get("/admin/v1/tenants/default/connections").await;
    assert_eq!(list["connections"][0]["principal"], json!(format!("{} ann", server.url)));
}
