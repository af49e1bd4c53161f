//! The broker's own authorization server in front of an issuer.

use std::sync::Arc;

use serde_json::{Value, json};
use testkit::{
    AuthorizationServer, FakeBackend, IssuerBehavior, TestBroker, TestClient,
    authorization::RESOURCE, eventually,
};

use super::{WELL_KNOWN, guarded, reload::reload};

const SECRET: &str = "secret-of-the-client";

fn registration() -> Value {
    json!({
        "client_id": "fixed",
        "redirect_uris": ["http://localhost/cb", "https://page.example/cb"],
        "secret": SECRET,
    })
}

/// Returns a client of a path of the broker whose answers are not judged: they are no MCP.
fn at(broker: &TestBroker, path: &str) -> TestClient {
    TestClient::new(broker.http_address(), path)
}

async fn started(more: Value) -> (TestBroker, AuthorizationServer, FakeBackend) {
    let (server, backend) = (AuthorizationServer::start().await, FakeBackend::echo().await);
    server.set_metadata(json!({
        "scopes_supported": ["openid"],
        "response_types_supported": ["code"],
        "token_endpoint_auth_methods_supported": ["client_secret_post", "client_secret_basic"],
        "pushed_authorization_request_endpoint": "https://login.example/par",
        "mtls_endpoint_aliases": {"token_endpoint": "https://mtls.example/token"},
        "signed_metadata": "a.b.c",
        "device_authorization_endpoint": "https://login.example/device",
    }));
    (guarded(&server, &backend, more).single_process().start().await, server, backend)
}

/// Returns the path of the broker's authorization server, by the metadata of the resource.
async fn path_of_server(broker: &TestBroker) -> String {
    let document = at(broker, WELL_KNOWN).send("GET", &[], "").await.json().await;
    let server = document["authorization_servers"][0].as_str().unwrap().to_owned();
    server.strip_prefix(RESOURCE).unwrap_or_else(|| panic!("{server}")).to_owned()
}

async fn metadata(broker: &TestBroker, path: &str) -> Value {
    let url = format!("/.well-known/oauth-authorization-server{path}");
    let response = at(broker, &url).send("GET", &[], "").await;
    assert_eq!(response.status, 200);
    response.json().await
}

const FORM: &[(&str, &str)] = &[("content-type", "application/x-www-form-urlencoded")];
const JSON: &[(&str, &str)] = &[("content-type", "application/json")];

#[tokio::test]
async fn metadata_has_the_brokers_identifier_and_endpoints_at_each_url() {
    let more = json!({"preset": "entra", "registration": registration(), "metadata_set": {"x": 1}});
    let (broker, server, _backend) = started(more).await;
    let path = path_of_server(&broker).await;
    let own = format!("{RESOURCE}{path}");
    let document = metadata(&broker, &path).await;
    let wanted = json!({
        "issuer": own,
        "authorization_endpoint": format!("{own}/authorize"),
        "token_endpoint": format!("{own}/token"),
        "registration_endpoint": format!("{own}/register"),
        "jwks_uri": server.keys_url(),
        "scopes_supported": ["openid"],
        "response_types_supported": ["code"],
        "token_endpoint_auth_methods_supported": ["none"],
        "code_challenge_methods_supported": ["S256"],
        "x": 1,
    });
    assert_eq!(document, wanted);
    for url in [
        format!("/.well-known/openid-configuration{path}"),
        format!("{path}/.well-known/openid-configuration"),
    ] {
        let origin = [("origin", "http://localhost:3000")];
        let response = at(&broker, &url).send("GET", &origin, "").await;
        assert_eq!(
            (response.status, response.header("access-control-allow-origin")),
            (200, Some("http://localhost:3000")),
            "{url}"
        );
        assert_eq!(response.header("cache-control"), Some("public, max-age=60"));
        assert_eq!(response.json().await, wanted, "{url}");
        let evil = at(&broker, &url).send("GET", &[("origin", "https://evil.example")], "").await;
        assert_eq!(evil.status, 403);
        let preflight = at(&broker, &url).send("OPTIONS", &origin, "").await;
        assert_eq!(preflight.status, 204);
        assert_eq!(at(&broker, &url).send("POST", JSON, "{}").await.status, 405);
    }
    for path in ["/authorization/0123456789abcdef/token", "/authorization/x", "/authorization/"] {
        assert_eq!(at(&broker, path).send("POST", FORM, "a=1").await.status, 404, "{path}");
    }
    // What the front does not change, clients do at the issuer itself.
    reload(&broker, |config| {
        config["auth"]["issuers"] = json!([server.entry("acme", json!({"front": "adapted"}))]);
    })
    .await;
    let document = metadata(&broker, &path).await;
    assert_eq!(document["issuer"], json!(own));
    assert_eq!(document["token_endpoint"], json!(format!("{}/token", server.issuer())));
    assert_eq!(document["authorization_endpoint"], json!(format!("{}/authorize", server.issuer())));
    assert_eq!(document["registration_endpoint"], Value::Null);
    assert_eq!(at(&broker, &format!("{path}/register")).send("POST", JSON, "{}").await.status, 404);
}

#[tokio::test]
async fn an_issuer_that_sends_iss_is_not_adapted() {
    let (server, backend) = (AuthorizationServer::start().await, FakeBackend::echo().await);
    server.set_metadata(json!({"authorization_response_iss_parameter_supported": true}));
    let broker =
        guarded(&server, &backend, json!({"preset": "okta"})).single_process().start().await;
    let path = path_of_server(&broker).await;
    for (url, method) in [
        (format!("/.well-known/oauth-authorization-server{path}"), "GET"),
        (format!("{path}/authorize?client_id=a"), "GET"),
        (format!("{path}/token"), "POST"),
    ] {
        let response = at(&broker, &url).send(method, FORM, "").await;
        assert_eq!((response.status, response.header("retry-after")), (503, Some("5")), "{url}");
        let text = response.text().await;
        assert!(text.contains("RFC 9207") && text.contains("front: direct"), "{text}");
    }
    assert!(broker.log().contains("an issuer cannot be adapted"), "{}", broker.log());
    let (_, issuers) = broker.admin().get("/admin/v1/tenants/acme/issuers").await;
    assert!(issuers["issuers"][0]["fault"].as_str().unwrap().contains("RFC 9207"), "{issuers}");
    // Its tokens are accepted.
    super::until_status(&broker, &server.token("ann"), 200).await;
}

#[tokio::test]
async fn an_authorization_request_is_forwarded_in_the_form_of_the_issuer() {
    let more = json!({
        "preset": "entra", "prompt": "drop", "scope_prefix": "api://x/",
        "scopes_append": ["offline_access", "openid"], "registration": registration(),
    });
    let (broker, server, _backend) = started(more).await;
    server.set_metadata(
        json!({"authorization_endpoint": format!("{}/authorize?p=1", server.issuer())}),
    );
    let path = path_of_server(&broker).await;
    let authorize = |query: &str| {
        let client = at(&broker, &format!("{path}/authorize?{query}"));
        async move { client.send("GET", &[], "").await }
    };
    let query = "response_type=code&client_id=fixed&redirect_uri=http%3A%2F%2Flocalhost%3A99%2Fcb\
        &resource=https%3A%2F%2Fmcp.example.com%2Fmcp&scope=mcp%3Atools+openid&prompt=consent\
        &state=a%20b%26c&code_challenge=x&code_challenge_method=S256";
    let response = authorize(query).await;
    assert_eq!((response.status, response.header("cache-control")), (302, Some("no-store")));
    assert_eq!(response.header("content-security-policy"), Some("default-src 'none'; sandbox"));
    let issuer = server.issuer();
    let wanted = format!(
        "{issuer}/authorize?response_type=code&client_id=fixed&redirect_uri=http%3A%2F%2Flocalhost%3A99%2Fcb\
        &scope=api%3A%2F%2Fx%2Fmcp%3Atools%20openid%20offline_access&state=a%20b%26c\
        &code_challenge=x&code_challenge_method=S256"
    );
    assert_eq!(response.header("location"), Some(wanted.as_str()));
    for refused in [
        "client_id=fixed&redirect_uri=https%3A%2F%2Fevil.example%2Fcb",
        "client_id=fixed&client_id=other",
        "client_id=fixed",
        "",
        "client_id=",
        "redirect_uri=http%3A%2F%2Flocalhost%3A99%2Fcb",
        "client%5Fid=fixed&client_id=other",
        "state=%zz",
    ] {
        let response = authorize(refused).await;
        assert_eq!((response.status, response.header("location")), (400, None), "{refused}");
        assert!(response.text().await.contains("invalid_request"));
    }
    // Another client of the issuer has redirect URIs of its own, which the issuer checks.
    let other = "client_id=other&redirect_uri=https%3A%2F%2Fother.example%2Fcb";
    assert_eq!(authorize(other).await.status, 302);
}

#[tokio::test]
async fn a_token_request_gets_the_secret_only_for_its_client_and_a_user() {
    let (broker, server, _backend) =
        started(json!({"preset": "entra", "registration": registration()})).await;
    let path = path_of_server(&broker).await;
    let token_path = format!("{path}/token");
    let send = |form: &str, authorization: Option<&str>| {
        let (client, form) = (at(&broker, &token_path), form.to_owned());
        let authorization = authorization.map(str::to_owned);
        async move {
            let mut headers = FORM.to_vec();
            headers.extend(authorization.as_deref().map(|value| ("authorization", value)));
            client.send("POST", &headers, form).await
        }
    };
    let code = "grant_type=authorization_code&code=c&client_id=fixed&resource=r&code_verifier=v&redirect_uri=http%3A%2F%2Flocalhost%3A7%2Fcb";
    let response = send(code, None).await;
    assert_eq!((response.status, response.header("cache-control")), (200, Some("no-store")));
    assert_eq!(response.json().await["access_token"], "issued");
    let sent = server.take_token_requests();
    assert!(sent[0].form.ends_with(&format!("&client_secret={SECRET}")), "{sent:?}");
    assert!(!sent[0].form.contains("resource") && sent[0].authorization.is_none(), "{sent:?}");
    send("grant_type=refresh_token&refresh_token=r&client_id=fixed", None).await;
    assert!(server.take_token_requests()[0].form.contains(SECRET));
    for (form, authorization) in [
        ("grant_type=client_credentials&client_id=fixed", None),
        ("grant_type=urn:ietf:params:oauth:grant-type:device_code&client_id=fixed", None),
        ("grant_type=password&client_id=fixed&username=a&password=b", None),
        ("grant_type=authorization_code&client_id=other&code=c", None),
        ("grant_type=authorization_code&code=c", None),
        ("client_id=fixed", None),
        ("grant_type=refresh_token&client_id=fixed&client_secret=own-of-it", None),
        ("grant_type=refresh_token&client_id=fixed&client_secret=", None),
        ("grant_type=refresh_token&client_id=fixed&client_assertion=a", None),
        ("grant_type=refresh_token&client_id=fixed", Some("Basic Zml4ZWQ6eA==")),
    ] {
        assert_eq!(send(form, authorization).await.status, 200, "{form}");
        let sent = server.take_token_requests().remove(0);
        assert!(!sent.form.contains(SECRET), "{form}: {sent:?}");
        assert_eq!(sent.authorization.as_deref(), authorization, "{form}");
    }
    let long = format!("a={}", "b".repeat(80 * 1024));
    for (form, status) in [
        ("grant_type=authorization_code&grant_type=client_credentials&client_id=fixed", 400),
        ("client_id=fixed&client_id=other", 400),
        (
            "grant_type=authorization_code&client_id=fixed&redirect_uri=https%3A%2F%2Fevil.example",
            400,
        ),
        (long.as_str(), 413),
    ] {
        assert_eq!(send(form, None).await.status, status);
    }
    let json = at(&broker, &token_path).send("POST", JSON, "{}").await;
    assert_eq!((json.status, server.take_token_requests().len()), (415, 0));
    for (behavior, status) in [
        (IssuerBehavior::Redirects, 503),
        (IssuerBehavior::Oversized, 503),
        (IssuerBehavior::Gone, 410),
        (IssuerBehavior::Garbage, 502),
    ] {
        server.set_behavior(behavior);
        assert_eq!(send(code, None).await.status, status, "{behavior:?}");
    }
    server.set_behavior(IssuerBehavior::Serves);
    // An issuer that takes no secret in the body gets it in the header.
    server.set_metadata(json!({"token_endpoint_auth_methods_supported": ["client_secret_basic"]}));
    reload(&broker, |config| config["auth"]["issuers"][0]["prompt"] = json!("drop")).await;
    eventually("the new metadata", || async {
        server.take_token_requests();
        let status = send(code, None).await.status;
        let sent = server.take_token_requests();
        let basic = sent.first().and_then(|sent| sent.authorization.clone());
        match basic.as_deref() {
            Some("Basic Zml4ZWQ6c2VjcmV0LW9mLXRoZS1jbGllbnQ=")
                if !sent[0].form.contains(SECRET) =>
            {
                Ok(())
            }
            _ => Err((status, sent)),
        }
    })
    .await;
    assert!(!broker.log().contains(SECRET));
}

#[tokio::test]
async fn an_address_with_refused_token_requests_sends_the_issuer_no_further_ones() {
    let (server, backend) = (AuthorizationServer::start().await, FakeBackend::echo().await);
    let limits = json!({
        "limits": {"sign_in_failures_per_minute": 3},
        "listen": {"trusted_proxies": ["127.0.0.1/32"]},
    });
    let more = json!({"preset": "entra", "registration": registration()});
    let broker = guarded(&server, &backend, more).config(limits).single_process().start().await;
    let path = format!("{}/token", path_of_server(&broker).await);
    let send = |address: &'static str| {
        let client = at(&broker, &path);
        let form = "grant_type=authorization_code&code=guessed&client_id=fixed&redirect_uri=http%3A%2F%2Flocalhost%3A7%2Fcb";
        async move { client.send("POST", &[FORM[0], ("x-forwarded-for", address)], form).await }
    };
    server.answer_tokens(Arc::new(|_, _| (400, json!({"error": "invalid_grant"}))));
    for status in [400, 400, 400, 429, 429] {
        let response = send("192.0.2.1").await;
        assert_eq!(response.status, status);
        assert_eq!(response.header("retry-after").is_some(), status == 429);
        let error = if status == 429 { "temporarily_unavailable" } else { "invalid_grant" };
        assert_eq!(response.json().await["error"], error);
    }
    assert_eq!(server.take_token_requests().len(), 3);
    let labels = [("plane", "data"), ("reason", "login")];
    assert_eq!(broker.admin().metric("mcp_auth_failures_total", &labels).await, Some(3.0));
    let tokens = json!({"access_token": "issued", "token_type": "Bearer"});
    server.answer_tokens(Arc::new(move |_, _| (200, tokens.clone())));
    assert_eq!(send("192.0.2.1").await.status, 429);
    assert_eq!(send("192.0.2.2").await.status, 200, "another client of the proxy");
}

#[tokio::test]
async fn a_registration_gets_the_fixed_client_and_the_admin_api_shows_no_secret() {
    let (server, declared, backend) = (
        AuthorizationServer::start().await,
        AuthorizationServer::start().await,
        FakeBackend::echo().await,
    );
    let broker = guarded(&declared, &backend, json!({}))
        .single_process()
        .config(json!({"egress": {"allow": ["127.0.0.0/8"]}}))
        .start()
        .await;
    let issuers = "/admin/v1/tenants/acme/issuers/main";
    let body =
        json!({"issuer": server.issuer(), "preset": "entra", "registration": registration()});
    let (_, view) = broker.admin().put(issuers, &body).await;
    let own = view["authorization_server"].as_str().unwrap().to_owned();
    assert_eq!(view["secret"], json!(true), "{view}");
    let (_, shown) = broker.admin().get(issuers).await;
    assert!(!shown.to_string().contains(SECRET) && !view.to_string().contains(SECRET), "{shown}");
    // A client that names its tenant is told about this issuer, and no other client is.
    let listed = |query: &str| {
        let client = at(&broker, &format!("{WELL_KNOWN}/mcp{query}"));
        async move { client.send("GET", &[], "").await.json().await["authorization_servers"].clone() }
    };
    assert_eq!(listed("").await, json!([declared.issuer()]));
    assert_eq!(listed("?tenant=acme").await, json!([declared.issuer(), own]));
    assert_eq!(listed("?tenant=unknown").await, json!([declared.issuer()]));
    let refused =
        broker.client("/mcp?tenant=acme").post(crate::initialize_body("2025-11-25")).await;
    let challenge = refused.header("www-authenticate").unwrap().to_owned();
    assert!(challenge.contains("/mcp?tenant=acme\""), "{challenge}");

    let path = format!("{}/register", own.strip_prefix(RESOURCE).unwrap());
    let register = |body: Value| {
        let client = at(&broker, &path);
        async move { client.send("POST", JSON, body.to_string()).await }
    };
    let known = register(json!({"redirect_uris": ["http://localhost:55/cb"], "client_name": "x"}));
    let known = known.await;
    assert_eq!((known.status, known.header("cache-control")), (201, Some("no-store")));
    let client = known.json().await;
    assert_eq!(
        (&client["client_id"], &client["token_endpoint_auth_method"]),
        (&json!("fixed"), &json!("none"))
    );
    assert!(!client.to_string().contains(SECRET), "{client}");
    for (body, code) in [
        (json!({"redirect_uris": ["https://evil.example/cb"]}), "invalid_redirect_uri"),
        (json!({"client_name": "x"}), "invalid_client_metadata"),
        (json!([1]), "invalid_client_metadata"),
    ] {
        let response = register(body.clone()).await;
        assert_eq!(response.status, 400, "{body}");
        assert_eq!(response.json().await["error"], code, "{body}");
    }
    assert!(!broker.log().contains(SECRET));
}
