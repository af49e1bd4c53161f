//! The metadata of the resource (RFC 9728), and the challenges that name it.

use serde_json::json;
use testkit::{
    AuthorizationServer, FakeBackend, HttpVersion, TestBroker, TestClient, authorization::RESOURCE,
};

use super::{WELL_KNOWN, guarded, started};
use crate::{echo, initialize_body, kind, refused, request};

/// Returns a client whose answers are not judged: they are no messages of MCP.
fn at(broker: &TestBroker, path: &str) -> TestClient {
    TestClient::new(broker.http_address(), path)
}

#[tokio::test]
async fn auth_01_each_endpoint_has_metadata_that_names_the_issuer() {
    let (server, backend) = (AuthorizationServer::start().await, FakeBackend::echo().await);
    let broker = guarded(&server, &backend, json!({"scopes": ["mcp:tools"]})).start().await;
    for (path, resource) in [
        ("", ""),
        ("/", ""),
        ("/mcp", "/mcp"),
        ("/mcp/b", "/mcp/b"),
        ("/mcp/unknown", "/mcp/unknown"),
    ] {
        for version in [HttpVersion::Http1, HttpVersion::Http2] {
            let client = at(&broker, &format!("{WELL_KNOWN}{path}")).http(version);
            let response = client.send("GET", &[("origin", "http://localhost:3000")], "").await;
            assert_eq!(
                (response.status, response.content_type()),
                (200, "application/json"),
                "{path}"
            );
            assert_eq!(
                response.header("access-control-allow-origin"),
                Some("http://localhost:3000")
            );
            let document = response.json().await;
            let wanted = json!({
                "resource": format!("{RESOURCE}{resource}"),
                "authorization_servers": [server.issuer()],
                "bearer_methods_supported": ["header"],
                "scopes_supported": ["mcp:tools"],
                "resource_name": "MCP broker",
            });
            assert_eq!(document, wanted, "{path}");
        }
    }
    for path in ["/ws", "/mcp/No", "/mcp/b/c", "x"] {
        assert_eq!(
            at(&broker, &format!("{WELL_KNOWN}{path}")).send("GET", &[], "").await.status,
            404,
            "{path}"
        );
    }
    let evil = at(&broker, WELL_KNOWN).send("GET", &[("origin", "https://evil.example")], "").await;
    assert_eq!(evil.status, 403);
    let preflight =
        at(&broker, WELL_KNOWN).send("OPTIONS", &[("origin", "http://localhost")], "").await;
    assert_eq!(
        (preflight.status, preflight.header("access-control-allow-origin")),
        (204, Some("http://localhost"))
    );
    assert_eq!(at(&broker, WELL_KNOWN).post(request(1, "ping", json!({}))).await.status, 404);
}

#[tokio::test]
async fn without_issuers_no_metadata_is_served_and_challenges_are_unchanged() {
    let (broker, _backend) = echo().await;
    for path in [WELL_KNOWN.to_owned(), format!("{WELL_KNOWN}/mcp")] {
        assert_eq!(at(&broker, &path).send("GET", &[], "").await.status, 404);
    }
    let response = broker
        .client("/mcp")
        .bearer("eyJhbGciOiJub25lIn0.e30.AA")
        .post(initialize_body("2025-11-25"))
        .await;
    assert_eq!((response.status, response.header("www-authenticate")), (401, Some("Bearer")));
}

#[tokio::test]
async fn auth_02_n_auth_01_a_refusal_names_the_metadata_on_every_path() {
    let (server, backend) = (AuthorizationServer::start().await, FakeBackend::echo().await);
    let broker =
        guarded(&server, &backend, json!({"scopes": ["mcp:tools", "mcp:read"]})).start().await;
    let expired = server.token_with("ann", json!({"exp": 1}));
    let [shown, nothing] = [Some(format!("Bearer {expired}")), None];
    for (path, suffix) in [
        ("/mcp", "/mcp"),
        ("/mcp/b", "/mcp/b"),
        ("/mcp/unknown", "/mcp/unknown"),
        ("/ws", ""),
        ("/sse", ""),
    ] {
        for method in ["POST", "GET", "DELETE"] {
            if !path.starts_with("/mcp") && method != "GET" {
                continue;
            }
            for token in [&shown, &nothing] {
                let mut headers = vec![
                    ("accept", testkit::client::ACCEPT_BOTH),
                    ("content-type", "application/json"),
                    ("origin", "http://localhost"),
                ];
                headers.extend(token.as_deref().map(|token| ("authorization", token)));
                let body =
                    if method == "POST" { initialize_body("2025-11-25") } else { String::new() };
                let response = broker.client(path).send(method, &headers, body).await;
                let error = if token.is_some() { ", error=\"invalid_token\"" } else { "" };
                let wanted = format!(
                    "Bearer resource_metadata=\"{RESOURCE}{WELL_KNOWN}{suffix}\"{error}, scope=\"mcp:tools mcp:read\""
                );
                assert_eq!(
                    response.header("www-authenticate"),
                    Some(wanted.as_str()),
                    "{method} {path}"
                );
                let (status, error) = refused(response).await;
                assert_eq!((status, kind(&error)), (401, "unauthorized"), "{method} {path}");
            }
        }
    }
}

#[tokio::test]
async fn auth_04_n_auth_01_a_missing_scope_is_refused_with_all_required_scopes() {
    let (server, backend) = (AuthorizationServer::start().await, FakeBackend::echo().await);
    let broker =
        guarded(&server, &backend, json!({"scopes": ["mcp:tools", "mcp:read"]})).start().await;
    let response = super::client(&broker, &server.token_with("ann", json!({"scope": "mcp:read"})))
        .post(initialize_body("2025-11-25"))
        .await;
    let url = format!("{RESOURCE}{WELL_KNOWN}/mcp");
    let wanted = format!(
        "Bearer error=\"insufficient_scope\", scope=\"mcp:tools mcp:read\", resource_metadata=\"{url}\""
    );
    assert_eq!(response.header("www-authenticate"), Some(wanted.as_str()));
    let (status, error) = refused(response).await;
    assert_eq!(
        (status, kind(&error), &error["data"]["scope"]),
        (403, "insufficient_scope", &json!("mcp:tools mcp:read"))
    );
    let broad = server.token_with("ann", json!({"scope": "profile mcp:read mcp:tools mcp:admin"}));
    assert_eq!(super::status(&broker, &broad).await, 200);
}

#[tokio::test]
async fn auth_05_a_token_in_the_query_is_refused() {
    let (broker, server, _backend) = started().await;
    let response = at(&broker, &format!("/mcp?access_token={}", server.token("ann")))
        .post(initialize_body("2025-11-25"))
        .await;
    assert_eq!(refused(response).await.0, 400);
}

#[tokio::test]
async fn scopes_of_the_tenants_policy_are_in_the_metadata() {
    let (server, backend) = (AuthorizationServer::start().await, FakeBackend::echo().await);
    let broker = guarded(&server, &backend, json!({"scopes": ["mcp:tools", "offline_access"]}))
        .single_process()
        .start()
        .await;
    let rule = |id: &str, scopes: serde_json::Value| json!({"id": id, "effect": "deny", "required_scopes": scopes});
    let policy = json!({"rules": [
        rule("a", json!(["b:write", "mcp:tools"])),
        rule("b", json!(["b:read", "offline_access"])),
    ]});
    let (stored, answer) = broker.admin().put("/admin/v1/tenants/acme/policy", &policy).await;
    assert_eq!(stored, 201, "{answer}");
    for path in ["/mcp", "/mcp/b", "?tenant=acme"] {
        let response = at(&broker, &format!("{WELL_KNOWN}{path}")).send("GET", &[], "").await;
        assert_eq!(response.header("cache-control"), Some("public, max-age=60"));
        assert_eq!(response.header("vary"), Some("origin"));
        let scopes = response.json().await["scopes_supported"].clone();
        assert_eq!(scopes, json!(["mcp:tools", "b:read", "b:write"]), "{path}");
    }
}
