//! Tokens of further real authorization servers: one made of authlib's parts (JWT access tokens,
//! opaque tokens, introspection, revocation), and glewlwyd of the distribution.

use std::net::SocketAddr;

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};
use testkit::{
    FakeBackend, TestBroker,
    authorization::RESOURCE,
    http::{RawResponse, send_http1},
    within,
};
use tokio::process::Command;

use super::{install::Peers, process::Server};
use crate::{builder, tokens::until_status};

/// The authorization server, and what a machine does there.
struct Issuer(Server);

impl Issuer {
    async fn start(script: &str) -> Self {
        let mut command = Command::new(Peers::installed().python_of_authlib());
        command.arg(Peers::ours(script)).arg(RESOURCE);
        let server = Server::start(command, |line| {
            line.split_once(" listening on ").map(|(_, url)| url.to_owned())
        });
        Self(server.await)
    }

    /// Returns the path of an endpoint below the issuer, and the address of the server.
    fn path_and_address(&self, endpoint: &str) -> (String, SocketAddr) {
        let url: http::Uri = self.0.url.parse().unwrap();
        let path = format!("{}{endpoint}", url.path().trim_end_matches('/'));
        (path, url.authority().unwrap().as_str().parse().unwrap())
    }

    async fn post(&self, path: &str, machine: &str, form: &str) -> RawResponse {
        let (path, address) = self.path_and_address(path);
        let basic = STANDARD.encode(format!("{machine}:secret-of-{machine}"));
        let request = Request::post(path)
            .header("host", address.to_string())
            .header("authorization", format!("Basic {basic}"))
            .header("content-type", "application/x-www-form-urlencoded")
            .body(Full::new(Bytes::from(form.to_owned())))
            .unwrap();
        within("an answer of the server", send_http1(address, request)).await.unwrap()
    }

    async fn token(&self, machine: &str, scope: &str) -> String {
        let form = format!("grant_type=client_credentials&scope={scope}&resource={RESOURCE}");
        let answer = self.post("/token", machine, &form).await.json().await;
        answer["access_token"].as_str().expect("a token").to_owned()
    }

    async fn revoke(&self, machine: &str, token: &str) {
        assert_eq!(self.post("/revoke", machine, &format!("token={token}")).await.status, 200);
    }

    /// Starts a broker that accepts tokens of the server. `more` are members of the issuer.
    async fn broker(&self, backend: &FakeBackend, more: Value, default: &str) -> TestBroker {
        let mut issuer = json!({"issuer": self.0.url, "tenant": "acme", "require_typ": "at+jwt"});
        issuer.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let broker = builder()
            .single_process()
            .auth_required()
            .config(json!({"auth": {"resource": RESOURCE, "issuers": [issuer]}}))
            .tenant("acme")
            .backend("acme", "b", backend.spec())
            .start()
            .await;
        let policy = json!({"default": default, "rules": [
            {"id": "robots", "effect": "allow", "subjects": {"groups": ["robots"]}},
            {"id": "write", "effect": "deny", "objects": {"tools": ["b/echo"]},
                "required_scopes": ["write"]},
        ]});
        let path = "/admin/v1/tenants/acme/policy";
        assert_eq!(broker.admin().put(path, &policy).await.0, 201);
        broker
    }
}

/// Returns whether a call of the tool succeeds. A refusal has to ask for the missing scope.
async fn may_write(broker: &TestBroker, token: &str) -> bool {
    let client = broker.client("/mcp").bearer(token).connected(json!({})).await;
    let call = json!({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": {"name": "b__echo", "arguments": {"message": "hi"}}});
    let answer = client.post(call.to_string()).await;
    if answer.status == 200 {
        return answer.text().await.contains("hi");
    }
    assert_eq!(answer.status, 403);
    let challenge = answer.header("www-authenticate").expect("a challenge").to_owned();
    assert!(challenge.contains(r#"scope="write""#), "{challenge}");
    false
}

#[tokio::test]
async fn machine_tokens_of_authlib_have_their_rights_until_they_are_revoked() {
    let issuer = Issuer::start("peers/servers/authlib_issuer.py").await;
    let backend = FakeBackend::echo().await;
    let introspection = json!({
        "endpoint": format!("{}/introspect", issuer.0.url), "client_id": "broker",
        "client_secret": "secret-of-broker", "ttl": "1s",
    });
    let more = json!({
        "claims": {"groups": "groups"}, "introspection": introspection, "check": "introspect",
    });
    let broker = issuer.broker(&backend, more, "deny").await;
    for machine in ["robot", "opaque"] {
        let token = issuer.token(machine, "read+write").await;
        assert_eq!(token.matches('.').count(), if machine == "robot" { 2 } else { 0 }, "{token}");
        until_status(&broker, &token, 200).await;
        assert!(may_write(&broker, &token).await);
        assert!(!may_write(&broker, &issuer.token(machine, "read").await).await);
        issuer.revoke(machine, &token).await;
        until_status(&broker, &token, 401).await;
    }
    let guest = issuer.token("guest", "write").await;
    let client = broker.client("/mcp").bearer(&guest).connected(json!({})).await;
    let listed: Value = client.result("tools/list", json!({})).await;
    assert_eq!(listed["tools"], json!([]));
}

#[tokio::test]
async fn machine_tokens_of_glewlwyd_have_the_rights_of_their_scopes() {
    let issuer = Issuer::start("peers/servers/glewlwyd.py").await;
    let backend = FakeBackend::echo().await;
    let broker = issuer.broker(&backend, json!({}), "allow").await;
    let robot = issuer.token("robot", "read+write").await;
    until_status(&broker, &robot, 200).await;
    assert!(may_write(&broker, &robot).await);
    assert!(!may_write(&broker, &issuer.token("robot", "read").await).await);
    assert!(!may_write(&broker, &issuer.token("guest", "read").await).await);
    let sessions = broker.admin().sessions("acme").await;
    let principal = format!("{} robot", issuer.0.url);
    assert!(sessions.iter().any(|session| session["principal"] == principal), "{sessions:?}");
}
