//! Operators of the admin API that sign in with a token of an issuer (`auth.issuers[].admin`).

use serde_json::{Value, json};
use testkit::{AuthorizationServer, FakeBackend, TestBroker, authorization::now, eventually};

use super::{guarded, status};
use crate::builder;

const ADMIN_AUDIENCE: &str = "https://broker.example/operators";

fn mapping() -> Value {
    json!({"admin": {"claim": "realm.roles", "audiences": [ADMIN_AUDIENCE], "map": [
        {"value": "sre", "role": "operator"},
        {"value": "acme-admins", "role": "tenant_admin", "tenants": ["acme"]},
    ]}})
}

/// Returns a token for the admin API of a principal with these roles.
fn operator_token(server: &AuthorizationServer, name: &str, roles: &[&str], more: Value) -> String {
    let mut claims = json!({"aud": ADMIN_AUDIENCE, "realm": {"roles": roles}});
    claims.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    server.token_with(name, claims)
}

async fn get(broker: &TestBroker, token: &str, path: &str) -> (u16, Value) {
    broker.admin().with_token(Some(token)).get(path).await
}

async fn wait_admitted(broker: &TestBroker, token: &str) {
    eventually("the keys of the issuer to be known", || async {
        let (status, answer) = get(broker, token, "/admin/v1/tenants").await;
        if status == 200 { Ok(()) } else { Err(answer) }
    })
    .await;
}

#[tokio::test]
async fn a_token_of_an_issuer_has_the_role_of_its_claim() {
    let (server, backend) = (AuthorizationServer::start().await, FakeBackend::echo().await);
    let broker = guarded(&server, &backend, mapping()).start().await;
    let sre = operator_token(&server, "sue", &["dev", "sre", "acme-admins"], json!({}));
    wait_admitted(&broker, &sre).await;
    assert_eq!(get(&broker, &sre, "/admin/v1/nodes").await.0, 200);
    assert_eq!(
        get(&broker, &sre, "/admin/v1/audit").await.0,
        403,
        "an operator reads no audit log"
    );
    let tess = operator_token(&server, "tess", &["acme-admins"], json!({}));
    let (_, list) = get(&broker, &tess, "/admin/v1/tenants").await;
    assert_eq!(list["tenants"].as_array().unwrap().len(), 1, "{list}");
    let keys = "/admin/v1/tenants/acme/keys";
    let admin = broker.admin().with_token(Some(&tess));
    assert_eq!(admin.post(keys, &json!({})).await.0, 201);
    let (_, log) = broker.admin().get("/admin/v1/audit?kind=admin&tenant=acme").await;
    let records = log["records"].as_array().unwrap();
    let name = format!("{} tess", server.issuer());
    assert!(records.iter().any(|record| record["principal"] == name), "{log}");
    assert!(!log.to_string().contains(&tess));
}

#[tokio::test]
async fn a_token_of_another_audience_is_refused_by_the_admin_api() {
    let (server, backend) = (AuthorizationServer::start().await, FakeBackend::echo().await);
    let broker = guarded(&server, &backend, mapping()).start().await;
    wait_admitted(&broker, &operator_token(&server, "sue", &["sre"], json!({}))).await;
    let roles = json!({"realm": {"roles": ["sre"]}});
    for (what, token) in [
        ("a token for MCP clients", server.token_with("sue", roles)),
        ("no role", operator_token(&server, "sue", &["dev"], json!({}))),
        ("no claim", server.token_with("sue", json!({"aud": ADMIN_AUDIENCE}))),
        ("a role that is not text", {
            server.token_with("sue", json!({"aud": ADMIN_AUDIENCE, "realm": {"roles": [7]}}))
        }),
        ("expired", operator_token(&server, "sue", &["sre"], json!({"exp": now() - 3_600}))),
        ("not yet", operator_token(&server, "sue", &["sre"], json!({"nbf": now() + 3_600}))),
        ("bound", operator_token(&server, "sue", &["sre"], json!({"cnf": {"jkt": "x"}}))),
        ("another issuer", {
            operator_token(&server, "sue", &["sre"], json!({"iss": "https://other.example"}))
        }),
    ] {
        let (status, answer) = get(&broker, &token, "/admin/v1/tenants").await;
        assert_eq!(status, 401, "{what}: {answer}");
        assert!(!answer.to_string().contains(&token), "{what}");
    }
    let operator = operator_token(&server, "sue", &["sre"], json!({}));
    assert_eq!(status(&broker, &operator).await, 401, "and it opens no session of MCP");
}

#[tokio::test]
async fn an_open_loopback_listener_refuses_an_invalid_token() {
    let server = AuthorizationServer::start().await;
    let broker = builder().tenant("acme").config(server.config("acme", mapping())).start().await;
    let sue = operator_token(&server, "sue", &["sre"], json!({}));
    wait_admitted(&broker, &sue).await;
    assert_eq!(get(&broker, &sue, "/admin/v1/operators").await.0, 403, "the role counts");
    let none = operator_token(&server, "sue", &["dev"], json!({}));
    assert_eq!(get(&broker, &none, "/admin/v1/tenants").await.0, 401);
    assert_eq!(broker.admin().with_token(None).get("/admin/v1/operators").await.0, 200);
}
